//! `oleo filesystem label`

use crate::args::ImageArgs;
use crate::out::{Out, println_or_end, text};

/// Show the name of the file system, or change it
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// The new name; empty for none.
    #[arg(value_name = "LABEL")]
    label: Option<String>,
}

impl Args {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        let Some(label) = &self.label else {
            println_or_end(&text(&self.image.read()?.label()));
            return Ok(());
        };
        let image = self.image.write()?;
        image.set_label(label.as_bytes())?;
        image.close()?;
        out.note(format!("{}: the label is '{label}' now", self.image.image.display()));
        Ok(())
    }
}
