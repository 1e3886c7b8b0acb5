//! `oleo property`

use oleo::PROPERTIES;

use crate::args::{ImageArgs, InPath, SubvolArg};
use crate::out::{Out, json, println_or_end};

/// Get and set properties of files, directories and subvolumes
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Get(Get),
    Set(Set),
}

/// Show properties
#[derive(clap::Args)]
pub(crate) struct Get {
    #[command(flatten)]
    image: ImageArgs,
    /// Of what.
    #[arg(value_name = "PATH")]
    path: InPath,
    /// Which one: ro, label, compression, nodatacow [default: all].
    #[arg(value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    subvol: SubvolArg,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

/// Set a property
#[derive(clap::Args)]
pub(crate) struct Set {
    #[command(flatten)]
    image: ImageArgs,
    /// Of what.
    #[arg(value_name = "PATH")]
    path: InPath,
    /// Which one: ro, label, compression, nodatacow.
    #[arg(value_name = "NAME")]
    name: String,
    /// The new value; empty for none.
    #[arg(value_name = "VALUE")]
    value: String,
    #[command(flatten)]
    subvol: SubvolArg,
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::Get(args) => args.run(),
            Command::Set(args) => args.run(out),
        }
    }
}

impl Get {
    fn run(self) -> anyhow::Result<()> {
        let image = self.image.read()?;
        let inode = image.resolve(&self.subvol.start(&image)?, &self.path.0)?;
        let names = match &self.name {
            Some(name) => vec![name.as_str()],
            None => PROPERTIES.iter().map(|(name, _)| *name).collect(),
        };
        let mut found = serde_json::Map::new();
        for name in names {
            if let Some(value) = image.property(&inode, name)? {
                found.insert(name.to_owned(), value.into());
            }
        }
        if self.json {
            json(&found.into());
        } else {
            for (name, value) in &found {
                println_or_end(&format!("{name}={}", value.as_str().unwrap_or_default()));
            }
        }
        Ok(())
    }
}

impl Set {
    fn run(self, out: &Out) -> anyhow::Result<()> {
        let image = self.image.write()?;
        let inode = image.resolve(&self.subvol.start(&image)?, &self.path.0)?;
        image.set_property(&inode, &self.name, &self.value)?;
        image.close()?;
        out.note(format!("{}: {}={}", self.path.shown().display(), self.name, self.value));
        Ok(())
    }
}
