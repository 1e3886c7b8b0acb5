//! `oleo filesystem du`

use oleo::FileUsage;

use crate::args::{ImageArgs, InPath, SubvolArg};
use crate::out::{human, json, println_or_end, text};

/// Show how much space files take, and how much of it they share
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    image: ImageArgs,
    /// What to look at.
    #[arg(value_name = "PATH", default_value = "/", hide_default_value = true)]
    path: InPath,
    #[command(flatten)]
    subvol: SubvolArg,
    /// Only the sum.
    #[arg(long, short)]
    summarize: bool,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Args {
    pub fn run(self) -> anyhow::Result<()> {
        let image = self.image.read()?;
        let inode = image.resolve(&self.subvol.start(&image)?, &self.path.0)?;
        let mut lines: Vec<(String, FileUsage)> = Vec::new();
        let whole = image.du(&inode, |name, usage| {
            if !self.summarize {
                lines.push((self.path.shown().join(text(name)).display().to_string(), usage));
            }
        })?;
        lines.push((self.path.shown().display().to_string(), whole));
        if self.json {
            json(
                &lines
                    .iter()
                    .map(|(path, u)| {
                        serde_json::json!({
                            "path": path, "total": u.total, "exclusive": u.exclusive, "set_shared": u.set_shared,
                        })
                    })
                    .collect(),
            );
            return Ok(());
        }
        println_or_end("     Total   Exclusive  Set shared  Filename");
        for (path, u) in lines {
            let (total, exclusive, shared) = (human(u.total), human(u.exclusive), human(u.set_shared));
            println_or_end(&format!("{total:>10}  {exclusive:>10}  {shared:>10}  {path}"));
        }
        Ok(())
    }
}
