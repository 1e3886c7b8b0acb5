//! The commands: one file each.

pub(crate) mod balance;
mod cat;
mod check;
mod copy;
mod cp;
mod device;
mod explore;
mod filesystem;
mod generate;
mod inspect;
mod interruptible;
mod ln;
mod ls;
mod map;
mod mkdir;
mod mkfs;
#[cfg(feature = "fuse")]
pub(crate) mod mount;
mod mv;
mod property;
mod put;
mod qgroup;
mod quota;
#[cfg(any(feature = "fuse", feature = "nbd"))]
mod ready;
mod receive;
#[cfg(feature = "remote")]
mod remote;
mod replace;
mod rescue;
mod restore;
mod rm;
pub(crate) mod scrub;
mod send;
#[cfg(feature = "nbd")]
mod serve;
mod subvolume;
#[cfg(feature = "fuse")]
mod unmount;

use clap::Subcommand;

use crate::out::{Out, println_or_end};

#[derive(Subcommand)]
pub(crate) enum Command {
    Mkfs(Box<mkfs::Args>),
    #[cfg(feature = "fuse")]
    Mount(mount::Args),
    #[cfg(feature = "fuse")]
    #[command(alias = "umount")]
    Unmount(unmount::Args),
    Ls(ls::Args),
    Cat(cat::Args),
    Restore(restore::Args),
    Put(put::Args),
    Send(Box<send::Args>),
    Receive(Box<receive::Args>),
    Mkdir(mkdir::Args),
    Rm(rm::Args),
    Mv(mv::Args),
    Ln(ln::Args),
    Cp(cp::Args),
    Copy(copy::Args),
    #[command(subcommand, alias = "sub")]
    Subvolume(subvolume::Command),
    #[command(subcommand, alias = "fi")]
    Filesystem(filesystem::Command),
    #[command(subcommand, alias = "dev")]
    Device(device::Command),
    #[command(subcommand, alias = "inspect-internal")]
    Inspect(inspect::Command),
    #[command(subcommand)]
    Balance(balance::Command),
    #[command(subcommand)]
    Scrub(scrub::Command),
    #[command(subcommand)]
    Replace(replace::Command),
    #[command(subcommand)]
    Quota(quota::Command),
    #[command(subcommand)]
    Qgroup(qgroup::Command),
    Check(check::Args),
    Map(map::Args),
    Explore(explore::Args),
    #[command(subcommand)]
    Property(property::Command),
    #[command(subcommand)]
    Rescue(rescue::Command),
    #[cfg(feature = "nbd")]
    #[command(subcommand)]
    Serve(serve::Command),
    #[cfg(feature = "remote")]
    #[command(subcommand)]
    Remote(remote::Command),
    #[command(subcommand)]
    Generate(generate::Command),
    /// Show the version, as --version does
    Version,
}

impl Command {
    pub fn run(self, out: &Out) -> anyhow::Result<()> {
        match self {
            Command::Mkfs(args) => args.run(out),
            #[cfg(feature = "fuse")]
            Command::Mount(args) => args.run(out),
            #[cfg(feature = "fuse")]
            Command::Unmount(args) => args.run(out),
            Command::Ls(args) => args.run(),
            Command::Cat(args) => args.run(),
            Command::Restore(args) => args.run(out),
            Command::Put(args) => args.run(out),
            Command::Send(args) => args.run(out),
            Command::Receive(args) => args.run(out),
            Command::Mkdir(args) => args.run(out),
            Command::Rm(args) => args.run(out),
            Command::Mv(args) => args.run(out),
            Command::Ln(args) => args.run(out),
            Command::Cp(args) => args.run(out),
            Command::Copy(args) => args.run(out),
            Command::Subvolume(command) => command.run(out),
            Command::Filesystem(command) => command.run(out),
            Command::Device(command) => command.run(out),
            Command::Inspect(command) => command.run(),
            Command::Balance(command) => command.run(out),
            Command::Scrub(command) => command.run(out),
            Command::Replace(command) => command.run(out),
            Command::Quota(command) => command.run(out),
            Command::Qgroup(command) => command.run(out),
            Command::Check(args) => args.run(out),
            Command::Map(args) => args.run(out),
            Command::Explore(args) => args.run(out),
            Command::Property(command) => command.run(out),
            Command::Rescue(command) => command.run(out),
            #[cfg(feature = "nbd")]
            Command::Serve(command) => command.run(out),
            #[cfg(feature = "remote")]
            Command::Remote(command) => command.run(out),
            Command::Generate(command) => command.run(),
            Command::Version => {
                println_or_end(concat!("oleo ", env!("CARGO_PKG_VERSION")));
                Ok(())
            }
        }
    }
}
