//! Oleo: btrfs without the kernel. The public library.
//!
//! Everything works on images and devices that nobody has mounted, as an ordinary user. Paths inside an image are bytes
//! ([`ImagePath`]: text, bytes or paths of the host) and begin at the top level; subvolumes are named by path or ID ([`SubvolRef`]);
//! offsets and lengths are in bytes. Errors are one type, [`Error`], which says what went
//! wrong, of which kind it is ([`ErrorKind`]), and what to try ([`Error::hint`]). Nothing here prints or asks. What most programs
//! need is at the root; the rest is in a module for each subject, and every type that is shown has a name in one of them.
//!
//! | to do | begin with |
//! |---|---|
//! | make an empty image and write to it | [`Image::create`], [`Image::create_in_memory`] |
//! | make one from a directory or tar, or on several devices | [`mkfs::build`] |
//! | read and write files in an image | [`Image::open`], [`Image::open_file`], [`File`] |
//! | read and write by `std::io` | [`File::cursor`] |
//! | subvolumes and snapshots | [`Image::create_subvol`], [`Image::snapshot`] |
//! | everything about files and names | [`Image::fs`] |
//! | quota | [`Image::quota_enable`], [`Image::quota`] |
//! | verify and heal every copy | [`Image::scrub`] |
//! | move, pack and convert block groups | [`Image::balance`], [`Image::reclaim`] |
//! | have commits, write-back and cleaning done beside the program | [`Image::start_background`] |
//! | copy files out | [`restore`] |
//! | apply what `btrfs send` wrote | [`Image::receive`], [`receive`] |
//! | write such a stream | [`Image::send`], [`send`] |
//! | do what the command does, here or on a mount | [`control`] |
//! | find out whether an image is sound | [`check`] |
//! | look at blocks and superblocks | [`inspect`] |
//! | use something else than files as devices | [`device::Place`], [`Device`], [`Image::create_on`], [`Image::from_devices`] |
//! | show an image to others as a disk | `serve` (feature `nbd`) |
//! | use a volume on an object store | its name, such as `s3://bucket/prefix`, and `remote` (features `remote`, `cloud`) |
//! | read what another machine writes there, always its newest state | [`Follower`] |
//! | keep snapshots as streams on a store | `streams`, `Image::send_to_store` (feature `remote`) |
//! | copy an image from one place to another | [`copy`] |
//!
//! # Features
//!
//! `zlib`, `lzo` and `zstd` are the kinds of compression, all on by default. A build without one leaves out the code for it: volumes open and
//! can be changed as ever, but reading data that is compressed that way, or asking for new data to be, is refused with
//! `EOPNOTSUPP` and an error that names the feature. New data in files that ask for it by a property is stored as it is. The gzip
//! archives that [`mkfs::Source::Tar`] takes need `zlib`, those of zstd `zstd`.
//!
//! `nbd`, on by default, is for network block devices: names such as `nbd://host/export` wherever an image is named, and `serve`. With
//! `tls` they can be encrypted (`nbds://`); it is off by default because it needs a C compiler.
//!
//! `remote`, on by default, is for volumes on object stores: names such as `file:///dir` and `memory://name/prefix`. With `cloud` those of
//! clouds are known, too: `s3://bucket/prefix`, `gs://`, `az://`; it is off by default because of what it brings with it: a runtime for
//! asynchronous programs, HTTP and TLS, and the need of a C compiler.
//!
//! The command (`oleo-cli`) has the same features, all on, and `fuse` for `oleo mount`.
//!
//! # Other systems than Linux
//!
//! On Windows, macOS and other systems of the Unix kind images are made, opened, read, written, checked, balanced, scrubbed, sent and received as on Linux. There
//! the library is used without `nbd` and `remote`: `default-features = false, features = ["zlib", "lzo", "zstd"]`. Not there are, because they are Linux's:
//!
//! | what | how one learns of it |
//! |---|---|
//! | block devices | refused: "not a regular file" (`EINVAL`) |
//! | who else has an image open | two programs that use this library exclude each other (`EBUSY`); on Windows other programs are kept out, too, on macOS they are not noticed |
//! | directories of the host as a source: `Source::Dir`, [`Image::put`] | refused (`EOPNOTSUPP`); tar archives can be taken, and files written |
//! | directories of the host as a target: `restore::restore_to_dir`, `receive::receive_to_dir` | not in the library; [`restore::restore_to_tar`] is |
//! | mounts, FUSE, requests to a server: `control::execute`, `Client`, `Feed` | not in the library |
//! | exports, object stores | the features do not compile |
//! | holes in image files | what is discarded keeps its room on the host |
//! | on Windows: paths of the host (`Path`) as paths in an image | they are no [`ImagePath`]; text and bytes are |
//!
//! [`Error::errno`] has Linux's numbers everywhere.
//!
//! In WebAssembly (`wasm32-unknown-unknown`) images are only read, from devices that the program brings along ([`Image::from_devices`], [`inspect::Inspector::from_devices`],
//! [`check::devices`]): there are no files, no threads, and neither clock nor random numbers, so that [`fs::FsOptions`] has to have a clock. `zstd` is left out there, since it builds C; who
//! switches the feature on of `oleo-format` itself reads such data all the same.
//!
//! # Making an image, reading and writing, from many threads
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let scratch = tempfile::tempdir()?;
//! # let img = scratch.path().join("disk.img");
//! let image = oleo::Image::create(&img, 1 << 30)?; // bytes; the file is sparse
//! image.create_dir("logs")?;
//! let file = image.create_file("logs/today")?;
//! std::thread::scope(|threads| {
//!     for part in 0..4u64 {
//!         let file = &file;
//!         threads.spawn(move || file.write_at(&[part as u8; 1000], part * 1000));
//!     }
//! });
//! assert_eq!(file.len(), 4000);
//! let mut byte = [0];
//! file.read_at(&mut byte, 2500)?;
//! assert_eq!(byte, [2]);
//! drop(file); // open files keep the image in use
//! image.close()?; // durable from here on
//!
//! let image = oleo::Image::open(&img, &oleo::OpenOptions::default())?;
//! assert_eq!(image.read("logs/today")?.len(), 4000);
//! # Ok(())
//! # }
//! ```
//!
//! # Making an image from a directory
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let scratch = tempfile::tempdir()?;
//! # let (dir, img) = (scratch.path().join("dir"), scratch.path().join("disk.img"));
//! std::fs::create_dir(&dir)?;
//! std::fs::write(dir.join("hello"), "world")?;
//!
//! use oleo::mkfs::{BuildOptions, FillOptions, MkfsOptions, Source};
//!
//! let options = BuildOptions::default()
//!     .source(Source::Dir(dir))
//!     .fill(FillOptions::default().compress(oleo::fs::parse_compress("zstd:3")?))
//!     .mkfs(MkfsOptions::unique().label("demo".into()))
//!     .shrink(true);
//! let report = oleo::mkfs::build(&[&img], options)?;
//! assert_eq!(report.filled.done.files, 1);
//! # Ok(())
//! # }
//! ```
//!
//! # Subvolumes and snapshots
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let image = oleo::Image::create_in_memory(256 << 20)?;
//! image.create_subvol("data")?;
//! image.write("data/file", b"before")?;
//! let options = oleo::SnapshotOptions::default().read_only(true);
//! image.snapshot("data", "data-yesterday", &options)?;
//! image.write("data/file", b"after")?;
//! assert_eq!(image.read("data-yesterday/file")?, b"before");
//! image.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! # Copying files out
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let scratch = tempfile::tempdir()?;
//! # let (img, dest) = (scratch.path().join("disk.img"), scratch.path().join("out"));
//! # let image = oleo::Image::create(&img, 256 << 20)?;
//! # image.write("file", b"contents")?;
//! # image.close()?;
//! use oleo::restore::{RestoreOptions, restore_to_dir, restore_to_tar};
//!
//! let image = oleo::Image::open(&img, &oleo::OpenOptions::default())?;
//! restore_to_dir(&image, &image.top()?, b"", &dest, &RestoreOptions::default())?;
//! assert_eq!(std::fs::read(dest.join("file"))?, b"contents");
//!
//! let mut archive = Vec::new();
//! restore_to_tar(&image, &image.top()?, b"", &mut archive, &RestoreOptions::default())?;
//! # Ok(())
//! # }
//! ```
//!
//! # A volume in memory
//!
//! ```
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let image = oleo::Image::create_in_memory(256 << 20)?;
//! image.write("file", b"contents")?;
//! image.sync()?;
//! # Ok(())
//! # }
//! ```

#[cfg(all(not(target_os = "linux"), any(feature = "nbd", feature = "remote")))]
compile_error!(
    "the features `nbd` and `remote` of oleo need Linux: use default-features = false, features = [\"zlib\", \"lzo\", \"zstd\"]"
);

pub mod background;
pub mod balance;
pub mod check;
pub mod control;
pub mod copy;
mod create;
mod cursor;
pub mod device;
pub mod devices;
pub mod error;
mod file;
mod follow;
pub mod format;
pub mod fs;
mod hint;
mod image;
pub mod inspect;
pub mod layers;
mod log;
pub mod mkfs;
mod notices;
mod ops;
mod options;
mod path;
mod places;
pub mod quota;
pub mod receive;
pub mod rescue;
pub mod restore;
pub mod scrub;
pub mod send;
#[cfg(feature = "nbd")]
pub mod serve;
mod settings;
#[cfg(feature = "remote")]
pub mod streams;
pub mod usage;
pub mod volume;

pub use background::{Background, BackgroundOptions};
pub use cursor::Cursor;
pub use error::{Error, Result};
pub use file::File;
pub use follow::{Follower, Moment};
pub use hint::Hint;
pub use image::Image;
pub use notices::OnNotice;
pub use options::{Access, OpenOptions};
pub use path::{ImagePath, SubvolRef};

pub use oleo_device::Device;
pub use oleo_format::{ErrorKind, TreeId};
pub use oleo_fs::SnapshotOptions;
#[cfg(feature = "remote")]
pub use oleo_remote as remote;
pub use uuid::Uuid;
