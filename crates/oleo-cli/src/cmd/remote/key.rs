//! `oleo remote key`

use std::path::PathBuf;

use oleo::remote::{KeySlots, KeySource, Opener};
use serde_json::json;

use super::VolumeUrl;
use crate::out::{Out, json, println_or_end};

/// Show and change who can open an encrypted volume on an object store
///
/// A volume has up to eight keys, each a key file or a passphrase, and each opens all of it. What is stored is encrypted with one
/// key that never changes: whoever could open the volume once and kept a copy of that can do so for ever.
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    List(List),
    Add(Add),
    Remove(Remove),
}

/// Show the keys of a volume
#[derive(clap::Args)]
pub(crate) struct List {
    #[command(flatten)]
    volume: VolumeUrl,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

/// Let another key file or passphrase open a volume, too
#[derive(clap::Args)]
#[command(
    after_help = "What opens it now is given as for all commands: --remote key-file=FILE, or passphrase-file=FILE."
)]
pub(crate) struct Add {
    #[command(flatten)]
    volume: VolumeUrl,
    #[command(flatten)]
    new: NewKey,
}

/// What is added.
#[derive(clap::Args)]
#[group(required = true, multiple = false)]
pub(crate) struct NewKey {
    /// A file with 32 random bytes, or 64 hexadecimal digits.
    #[arg(long, value_name = "FILE")]
    new_key_file: Option<PathBuf>,
    /// A file whose first line is a passphrase.
    #[arg(long, value_name = "FILE")]
    new_passphrase_file: Option<PathBuf>,
}

/// Take a key away from a volume; the last one stays
#[derive(clap::Args)]
pub(crate) struct Remove {
    #[command(flatten)]
    volume: VolumeUrl,
    /// The beginning of its name, as `list` shows it.
    #[arg(value_name = "KEY")]
    key: String,
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::List(args) => {
                let keys = slots(&args.volume)?.list().map_err(oleo::Error::from)?;
                let kind = |opener| if opener == Opener::File { "key file" } else { "passphrase" };
                if args.json {
                    json(&keys.iter().map(|key| json!({ "key": key.id, "kind": kind(key.opener) })).collect());
                } else {
                    keys.iter().for_each(|key| println_or_end(&format!("{}  {}", key.id, kind(key.opener))));
                }
            }
            Command::Add(args) => {
                let new = match (&args.new.new_key_file, &args.new.new_passphrase_file) {
                    (Some(path), _) => KeySource::key_file(path),
                    (None, Some(path)) => KeySource::passphrase_file(path),
                    (None, None) => unreachable!("one of them is required"),
                };
                let name = slots(&args.volume)?.add(&new.map_err(oleo::Error::from)?).map_err(oleo::Error::from)?;
                out.note(format!("added {name}"));
            }
            Command::Remove(args) => {
                slots(&args.volume)?.remove(&args.key).map_err(oleo::Error::from)?;
                out.note(format!("removed {}", args.key));
            }
        }
        Ok(())
    }
}

fn slots(volume: &VolumeUrl) -> oleo::Result<KeySlots> {
    let opened = volume.open()?;
    Ok(KeySlots::open(opened.store, &opened.options)?)
}
