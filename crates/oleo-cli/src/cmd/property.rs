//! `oleo property`

use std::ffi::OsString;
use std::path::Path;

use oleo::control::{Property, Reply, Request};
use oleo::fs::PROPERTIES;

use crate::args::{DeviceArgs, SubvolArg};
use crate::out::{Out, json, misuse, println_or_end};
use crate::target::{self, Access, Target, answer};

/// Get and set properties of files, directories and subvolumes
#[derive(clap::Subcommand)]
pub(crate) enum Command {
    Get(Get),
    Set(Set),
    List(List),
}

/// Show properties
#[derive(clap::Args)]
#[command(override_usage = "oleo property get [OPTIONS] [IMG] PATH [NAME]")]
pub(crate) struct Get {
    /// An image and a path in it, or a path on a mount; then the property: ro, label, compression or nodatacow [default: all].
    #[arg(value_name = "[IMG] PATH [NAME]", required = true, num_args = 1..=3)]
    args: Vec<OsString>,
    #[command(flatten)]
    others: DeviceArgs,
    #[command(flatten)]
    subvol: SubvolArg,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

/// Set a property
#[derive(clap::Args)]
#[command(override_usage = "oleo property set [OPTIONS] [IMG] PATH NAME VALUE")]
pub(crate) struct Set {
    /// An image and a path in it, or a path on a mount; then the property (ro, label, compression or nodatacow) and its new value,
    /// which may be empty.
    #[arg(value_name = "[IMG] PATH NAME VALUE", required = true, num_args = 1..=4)]
    args: Vec<OsString>,
    #[command(flatten)]
    others: DeviceArgs,
    #[command(flatten)]
    subvol: SubvolArg,
    /// Make a received subvolume writable; this clears its received UUID.
    #[arg(long, short)]
    force: bool,
}

/// List the properties that exist, or those of an object
#[derive(clap::Args)]
#[command(override_usage = "oleo property list [OPTIONS] [[IMG] PATH]")]
pub(crate) struct List {
    /// An image and a path in it, or a path on a mount; by default all properties that exist are listed.
    #[arg(value_name = "[IMG] PATH", num_args = 0..=2)]
    args: Vec<OsString>,
    #[command(flatten)]
    others: DeviceArgs,
    #[command(flatten)]
    subvol: SubvolArg,
    /// Show JSON.
    #[arg(long)]
    json: bool,
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::Get(args) => args.run(),
            Command::Set(args) => args.run(out),
            Command::List(args) => args.run(),
        }
    }
}

/// The target and what is left of the arguments, the thing first.
fn split(
    args: &[OsString],
    others: &DeviceArgs,
    subvol: &SubvolArg,
    access: Access,
) -> anyhow::Result<(Target, Vec<OsString>)> {
    let target = target::open(Path::new(&args[0]), others, access, subvol.subvol.as_deref())?;
    let things = if target.is_mount() { args } else { &args[1..] };
    if things.is_empty() {
        return Err(misuse!("missing argument PATH"));
    }
    Ok((target, things.to_vec()))
}

fn ask(target: &Target, thing: &OsString, name: Option<String>) -> anyhow::Result<Vec<Property>> {
    answer!(target.ask_of(thing, Request::PropertyGet { at: target.at(thing)?, name })?, Reply::Properties(found) => found)
}

impl Get {
    fn run(self) -> anyhow::Result<()> {
        let (target, things) = split(&self.args, &self.others, &self.subvol, Access::Read)?;
        if things.len() > 2 {
            return Err(misuse!("expected the arguments [IMG] PATH [NAME]"));
        }
        let name = things.get(1).map(|name| name.to_string_lossy().into_owned());
        let found = ask(&target, &things[0], name)?;
        if self.json {
            let map: serde_json::Map<_, _> = found.into_iter().map(|p| (p.name, p.value.into())).collect();
            json(&map.into());
        } else {
            for property in &found {
                println_or_end(&format!("{}={}", property.name, property.value));
            }
        }
        Ok(())
    }
}

impl Set {
    fn run(self, out: &Out) -> anyhow::Result<()> {
        let (target, things) = split(&self.args, &self.others, &self.subvol, Access::Write)?;
        let [thing, name, value] = &things[..] else {
            return Err(misuse!("expected the arguments [IMG] PATH NAME VALUE"));
        };
        let property =
            Property { name: name.to_string_lossy().into_owned(), value: value.to_string_lossy().into_owned() };
        let note = format!("{}: {}={}", thing.display(), property.name, property.value);
        target.ask_of(thing, Request::PropertySet { at: target.at(thing)?, property, force: self.force })?;
        target.close()?;
        out.note(note);
        Ok(())
    }
}

impl List {
    fn run(self) -> anyhow::Result<()> {
        let mut known: Vec<(&str, &str)> = PROPERTIES.to_vec();
        if !self.args.is_empty() {
            let (target, things) = split(&self.args, &self.others, &self.subvol, Access::Read)?;
            if things.len() > 1 {
                return Err(misuse!("expected the arguments [IMG] PATH"));
            }
            let found = ask(&target, &things[0], None)?;
            // A compression that is not set can still be set anywhere.
            known.retain(|(name, _)| *name == "compression" || found.iter().any(|p| p.name == *name));
        }
        if self.json {
            json(&known.iter().map(|(name, what)| serde_json::json!({ "name": name, "description": what })).collect());
        } else {
            for (name, what) in known {
                println_or_end(&format!("{name:<16}{what}"));
            }
        }
        Ok(())
    }
}
