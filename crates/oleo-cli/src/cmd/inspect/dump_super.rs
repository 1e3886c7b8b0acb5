//! `oleo inspect dump-super`

use std::path::PathBuf;

use oleo::ErrorKind;
use oleo_format::print;
use serde_json::json;

use crate::args::{StoreArgs, size};
use crate::out::{Said, json, println_or_end};

/// Show the superblock of a device
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image file or block device.
    #[arg(value_name = "IMG")]
    image: PathBuf,
    /// Offset of the image in the file, in bytes.
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = size, hide_default_value = true)]
    offset: u64,
    /// Show the system chunks and the backup roots too.
    #[arg(long, short)]
    full: bool,
    /// Show all copies of the superblock.
    #[arg(long, short)]
    all: bool,
    /// Show JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    store: StoreArgs,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let copies = oleo::inspect::superblocks(&self.image, self.offset, &self.store.places()?)?;
        let mut shown = Vec::new();
        let mut good = 0;
        let mut first_error = None;
        for (at, copy) in copies {
            match copy {
                Ok(sb) => {
                    good += 1;
                    if self.json {
                        shown.push(json!({ "device": self.image.display().to_string(), "superblock": print::json::super_block(&sb) }));
                    } else {
                        println_or_end(&format!("superblock: bytenr={at}, device={}", self.image.display()));
                        println_or_end(&"-".repeat(57));
                        println_or_end(&print::super_block(&sb, self.full).to_string());
                    }
                }
                Err(error) if self.all => {
                    if self.json {
                        shown.push(json!({ "bytenr": at, "error": error.to_string() }));
                    } else {
                        println_or_end(&format!("superblock: bytenr={at}: {error}"));
                    }
                }
                Err(error) => {
                    first_error.get_or_insert(error);
                }
            }
            if good == 1 && !self.all {
                break;
            }
        }
        if self.json {
            json(&shown.into());
        }
        match first_error {
            Some(error) if good == 0 => Err(error.into()),
            _ if good == 0 => Err(anyhow::Error::new(Said(
                ErrorKind::Corruption,
                format!("{}: no superblock is whole", self.image.display()),
            ))),
            _ => Ok(()),
        }
    }
}
