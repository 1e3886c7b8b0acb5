//! Showing images to others as network block devices.
//!
//! ```no_run
//! # fn main() -> oleo::Result<()> {
//! use oleo::serve::{self, ExportOptions, Listener, ServeOptions, Server};
//!
//! let exports = serve::exports(&["disk.img"], &ExportOptions::default().read_only(true))?;
//! let listener = Listener::bind(&serve::listen_at("unix:/run/disk.sock")?)?;
//! let server = Server::start(exports, vec![listener], ServeOptions::default(), Box::new(|line| eprintln!("{line}")))?;
//! let stopper = server.stopper(); // ends it, from any thread
//! server.serve()?;
//! # drop(stopper);
//! # Ok(())
//! # }
//! ```

use std::path::Path;

use oleo_device::FileOptions;

use crate::device::{PlaceOptions, open_named};
use crate::{Error, Result};

#[cfg(feature = "tls")]
pub use oleo_nbd::ServerTls;
pub use oleo_nbd::{At, Export, Listener, Log, ServeOptions, Served, Server, Stopper, Uri, listen_at};

/// What is shown, and how.
#[derive(Clone, Default, Debug)]
#[non_exhaustive]
pub struct ExportOptions {
    /// The names of the exports, one for each image. Empty: a single image has the empty name, several have the last parts
    /// of theirs.
    pub names: Vec<String>,
    /// Clients may only read.
    pub read_only: bool,
    /// Where in each file the image begins, in bytes.
    pub offset: u64,
    /// How images are reached that are no files of this machine.
    pub places: PlaceOptions,
}

oleo_format::setters!(ExportOptions { names: Vec<String>, read_only: bool, offset: u64, places: PlaceOptions });

/// Opens images for a [`Server`]. Nobody else may use them meanwhile, or only for reading if that is all that clients may.
///
/// # Errors
/// An image is not there or in use, or names are too few, too many, or the same.
pub fn exports<P: AsRef<Path>>(images: &[P], options: &ExportOptions) -> Result<Vec<Export>> {
    let names = names(images, &options.names)?;
    let how = FileOptions::default().write(!options.read_only).offset(options.offset);
    let export = |(image, name): (&P, String)| {
        let image = image.as_ref();
        let device = open_named(image, &how, &options.places).map_err(|error| error.of_image(image))?;
        Ok(Export { name, description: String::new(), device, read_only: options.read_only })
    };
    images.iter().zip(names).map(export).collect()
}

fn names<P: AsRef<Path>>(images: &[P], given: &[String]) -> Result<Vec<String>> {
    let names: Vec<String> = match (images, given) {
        ([_], []) => vec![String::new()],
        (_, []) => images.iter().map(|image| last_part(image.as_ref())).collect::<Result<_>>()?,
        _ if given.len() == images.len() => given.to_vec(),
        _ => {
            let text = format!("{} names for {} images: give one for each, or none", given.len(), images.len());
            return Err(Error::Request(text));
        }
    };
    match (1..names.len()).find(|&at| names[..at].contains(&names[at])) {
        Some(at) => Err(Error::Request(format!("two exports would be named {:?}: name each of them", names[at]))),
        None => Ok(names),
    }
}

fn last_part(image: &Path) -> Result<String> {
    let part = image.file_name().and_then(|name| name.to_str());
    let no_name = || Error::Request(format!("{}: name its export", image.display()));
    part.map(str::to_owned).ok_or_else(no_name)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: exports are named as people expect, and never two the same. Method: a table.
    #[test]
    fn names_of_exports() {
        let of = |images: &[&str], given: &[&str]| {
            let given: Vec<String> = given.iter().map(|&name| name.to_owned()).collect();
            names(images, &given).ok()
        };
        assert_eq!(of(&["a"], &[]), Some(vec![String::new()]));
        assert_eq!(of(&["a"], &["x"]), Some(vec!["x".to_owned()]));
        assert_eq!(of(&["d/a", "/e/b.img"], &[]), Some(vec!["a".to_owned(), "b.img".to_owned()]));
        assert_eq!(of(&["d/a", "e/a"], &[]), None);
        assert_eq!(of(&["d/a", "e/a"], &["x", "y"]), Some(vec!["x".to_owned(), "y".to_owned()]));
        assert_eq!(of(&["d/a", "e/a"], &["x"]), None);
        assert_eq!(of(&["d/a", "e/a"], &["x", "x"]), None);
        assert_eq!(of(&["a", "."], &[]).is_some(), Path::new(".").file_name().is_some());
        assert_eq!(of(&["a", ".."], &[]), None);
    }
}
