//! The manual: a page for each command, made from its help, and one for what mount(8) calls. Examples, the exit status and
//! what else to see are added here, since the help of a command does not have them.

use std::io::{self, Write};
use std::path::Path;

use clap::CommandFactory;
use clap_mangen::Man;

use crate::Cli;
use crate::examples::with_examples;

/// Pages are of section 8: commands that administer a system.
const SECTION: &str = "8";

/// The meaning of each exit status.
const EXIT: [(&str, &str); 5] = [
    ("0", "Success."),
    ("1", "Refused: there is no such file, no space, the image is in use, a feature is not supported …"),
    ("2", "Wrong usage."),
    ("3", "The image is damaged. oleo check found errors, or another command met what cannot be read."),
    ("4", "A device failed to read or write."),
];

/// Examples: what they do, and the command. The tests parse each line.
const EXAMPLES: &[(&str, &str)] = &[
    (
        "Make an image from a directory, as small as possible:",
        "oleo mkfs --rootdir ./site --compress zstd:3 --shrink site.img",
    ),
    ("List it, print a file, and copy everything out:", "oleo ls -l site.img /"),
    ("", "oleo cat site.img /index.html"),
    ("", "oleo restore site.img ./copy"),
    ("Mount it through FUSE, and unmount it:", "oleo mount -o compress=zstd site.img ./mnt"),
    ("", "oleo unmount ./mnt"),
    (
        "Make a read-only snapshot, and send it to a file for btrfs receive:",
        "oleo subvolume snapshot -r site.img / monday",
    ),
    ("", "oleo send --subvol monday -f monday.stream site.img"),
    ("Check an image, including all data:", "oleo check --data site.img"),
    #[cfg(feature = "nbd")]
    (
        "Serve an image as a network block device, and use it by its name:",
        "oleo serve nbd --listen unix:/run/site.sock site.img",
    ),
    #[cfg(feature = "nbd")]
    ("", "oleo ls 'nbd+unix:///?socket=/run/site.sock'"),
    #[cfg(feature = "remote")]
    (
        "Make a volume on an object store from a directory, mount it, and copy it to an image that the kernel mounts:",
        "oleo mkfs --rootdir ./site s3://bucket/site",
    ),
    #[cfg(feature = "remote")]
    ("", "oleo mount s3://bucket/site ./mnt"),
    #[cfg(feature = "remote")]
    ("", "oleo copy s3://bucket/site site.img"),
];

/// Options of a mount: how to write them, an example that is accepted, and what they do.
const MOUNT_OPTIONS: &[(&str, &str, &str)] = &[
    ("ro, rw", "ro", "Allow no changes, or allow them (the default)."),
    ("subvol=PATH, subvolid=ID", "subvol=home", "Show this subvolume as the root, not the default one."),
    (
        "compress=ALGORITHM[:LEVEL]",
        "compress=zstd:3",
        "Compress new data: zlib[:1-9], lzo, zstd[:1-15]. Data that does not look compressible is left as it is.",
    ),
    ("compress-force=ALGORITHM[:LEVEL]", "compress-force=zstd", "The same, and try with all data."),
    ("nodatacow", "nodatacow", "New files are overwritten in place and have no checksums."),
    ("nodatasum", "nodatasum", "New files have no checksums."),
    (
        "commit=SECONDS",
        "commit=30",
        "Seconds between commits. The default is 30, or 5 if the kernel does not pass sync(2) on to the mount: before Linux 6.18, for ordinary users, of nbd:// and volumes on object stores, with fsname=, and where root has no loop devices.",
    ),
    ("discard", "discard", "Discard on the device what a commit frees."),
    ("noatime, relatime, strictatime, nodiratime", "noatime", "Whether reading changes times; relatime by default."),
    (
        "degraded",
        "degraded",
        "Mount even if devices are missing: for changes, too, if every block group can do without them, and what is there can be read.",
    ),
    (
        "stripe_record=wipe",
        "stripe_record=wipe",
        "RAID5 and RAID6: where something else, such as a boot loader, is in bytes 512 KiB to 1 MiB of a device, overwrite it. Without this place, a crash and \
         the loss of another device together may lose data.",
    ),
    ("device=FILE", "device=/dev/sdb", "Another device of the volume; repeat it for each."),
    ("max_inline=BYTES", "max_inline=2048", "Files of at most so many bytes are kept in their items."),
    ("thread_pool=N", "thread_pool=8", "Threads that answer requests, at most."),
    ("cache=BYTES", "cache=256M", "Memory for tree blocks; by default as the machine allows."),
    ("nodes=N", "nodes=100000", "Inodes that the kernel may know before it is asked to forget some."),
    ("user_subvol_rm_allowed", "user_subvol_rm_allowed", "Users may delete their own subvolumes."),
    (
        "follow=SECONDS",
        "follow=10",
        "Of a volume on an object store that another machine writes, mounted with ro: names lead to what is at most so old.",
    ),
    ("skip_balance", "skip_balance", "Do not resume an interrupted balance."),
    (
        "space_cache=v1, nospace_cache",
        "space_cache=v1",
        "Leave a volume without free-space tree as it is, instead of giving one to those with a cache of free space of version 1.",
    ),
    (
        "rescue=WHAT[:WHAT...]",
        "rescue=nologreplay:ignorebadroots",
        "With ro: tolerate damage. usebackuproot, nologreplay, ignorebadroots, ignoredatacsums, ignoremetacsums, ignoresuperflags, all.",
    ),
    ("allow_other", "allow_other", "Other users may use the mount. The default if root mounts."),
    (
        "fsname=NAME, subtype=NAME",
        "fsname=data,subtype=oleo",
        "What mount(8) and df(1) show as source and type. With fsname=, sync(2) does not reach a mount of an image file.",
    ),
    (
        "io_uring=auto|on|off",
        "io_uring=auto",
        "How requests come from the kernel. auto: through io_uring if the kernel offers it and no device is behind a network.",
    ),
    (
        "halt_poll=auto|on|off",
        "halt_poll=off",
        "While requests come in quick succession over io_uring, threads of class SCHED_IDLE keep the idle processor awake, since waking it costs more than \
         answering. auto: on virtual machines (x86). Off by default: on a busy machine it takes processor time from other programs.",
    ),
    (
        "writeback_cache",
        "writeback_cache",
        "The kernel keeps what was written and writes it later: faster where much is written in small pieces, slower where many files are opened. What could \
         not be written is reported by fsync(2) and close(2), not by write(2).",
    ),
    (
        "ssd, nossd, autodefrag, noacl, notreelog, lazytime ...",
        "ssd,autodefrag",
        "Options of btrfs that mean nothing here are ignored with a message.",
    ),
    ("nosuid, nodev, noexec, sync, dirsync, user, users, owner, group", "nosuid,nodev,noexec", "As in mount(8)."),
    #[cfg(feature = "remote")]
    (
        "take_over, claim=SECONDS, endpoint=URL ...",
        "take_over,claim=60",
        "Of volumes on object stores: take over from another writer, and more; see oleo-remote(8).",
    ),
];

/// Writes all pages into a directory.
pub(super) fn write(dir: &Path) -> io::Result<()> {
    let mut command = with_examples(Cli::command()).disable_help_subcommand(true);
    command.build();
    pages(&command, None, dir)?;
    std::fs::write(dir.join("mount.fuse.oleo.8"), mount_helper())
}

/// The name of a command's page: `oleo-subvolume-create`.
fn name(command: &clap::Command) -> String {
    command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned()
}

fn pages(command: &clap::Command, above: Option<&str>, dir: &Path) -> io::Result<()> {
    let this = name(command);
    let mut see = Vec::new();
    for below in command.get_subcommands().filter(|s| !s.is_hide_set()) {
        pages(below, Some(&this), dir)?;
        see.push(format!("{}(8)", name(below)));
    }
    let page = page(command, above, see)?;
    std::fs::write(dir.join(format!("{this}.{SECTION}")), page)
}

fn page(command: &clap::Command, above: Option<&str>, mut see: Vec<String>) -> io::Result<Vec<u8>> {
    let man =
        Man::new(command.clone()).section(SECTION).manual("Oleo").source(concat!("oleo ", env!("CARGO_PKG_VERSION")));
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    if command.get_arguments().any(|a| !a.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if !see.is_empty() {
        man.render_subcommands_section(&mut page)?;
    }
    match (above, command.get_after_help()) {
        (None, _) => {
            heading(&mut page, "EXAMPLES");
            for (what, line) in EXAMPLES {
                example(&mut page, what, line);
            }
        }
        (Some(_), Some(text)) => {
            let text = text.to_string();
            let (title, text) = match text.strip_prefix("Examples:\n").or(text.strip_prefix("Example:\n")) {
                Some(rest) => ("EXAMPLES", rest),
                None => ("NOTES", text.as_str()),
            };
            heading(&mut page, title);
            verbatim(&mut page, text);
        }
        (Some(_), None) => {}
    }
    exit_status(&mut page);
    if let Some(above) = above {
        see.insert(0, format!("{above}(8)"));
        if above != "oleo" {
            see.insert(0, "oleo(8)".into());
        }
        if command.get_name() == "mount" {
            see.push("mount.fuse.oleo(8)".into());
        }
    } else {
        see.extend(["mount.fuse.oleo(8)", "btrfs(5)", "btrfs(8)", "mkfs.btrfs(8)"].map(str::to_owned));
    }
    see_also(&mut page, &see);
    Ok(page)
}

/// The page of the program that mount(8) calls for the type `fuse.oleo`.
fn mount_helper() -> Vec<u8> {
    let mut page = Vec::new();
    put(&mut page, format_args!(".TH mount.fuse.oleo {SECTION} \"\" \"oleo {}\" Oleo", env!("CARGO_PKG_VERSION")));
    heading(&mut page, "NAME");
    put(&mut page, format_args!("mount.fuse.oleo \\- mount a btrfs image or device without the kernel's btrfs"));
    heading(&mut page, "SYNOPSIS");
    put(
        &mut page,
        format_args!("\\fBmount \\-t fuse.oleo\\fR [\\fB\\-o\\fR \\fIoptions\\fR] \\fIimage\\fR \\fIdirectory\\fR"),
    );
    put(&mut page, format_args!(".br"));
    put(
        &mut page,
        format_args!(
            "\\fBmount.fuse.oleo\\fR \\fIimage\\fR \\fIdirectory\\fR [\\fB\\-snvwr\\fR] [\\fB\\-o\\fR \\fIoptions\\fR]"
        ),
    );
    heading(&mut page, "DESCRIPTION");
    text(
        &mut page,
        "mount(8) calls this program for the type fuse.oleo, from the command line and from fstab(5). It is oleo(8) by another name, a symbolic link in /sbin, and does what oleo-mount(8) does.",
    );
    put(&mut page, format_args!(".PP"));
    text(
        &mut page,
        "The image or device is served by a process in the background until it is unmounted with umount(8) or oleo-unmount(8). The latter returns when everything is on disk. As root, a block device, and an image file by a loop device on top of it, is mounted as fuseblk: umount(8) waits too, and from Linux 6.18 on sync(2) and syncfs(2) write everything. mount(8) and df(1) show the loop device; losetup(8) shows its image.",
    );
    heading(&mut page, "OPTIONS");
    for (syntax, _, what) in MOUNT_OPTIONS {
        put(&mut page, format_args!(".TP\n\\fB{}\\fR", escape(syntax)));
        text(&mut page, what);
    }
    put(&mut page, format_args!(".PP"));
    text(
        &mut page,
        "Options that begin with x- and comments are passed over; any other that is not known is an error.",
    );
    heading(&mut page, "EXAMPLES");
    example(&mut page, "Mount an image by hand:", "mount -t fuse.oleo -o compress=zstd /srv/data.img /mnt");
    example(&mut page, "The same by a line of fstab(5):", "/srv/data.img /mnt fuse.oleo nofail,compress=zstd 0 0");
    heading(&mut page, "FILES");
    put(&mut page, format_args!(".TP\n\\fB/sbin/mount.fuse.oleo\\fR"));
    text(&mut page, "A link to oleo.");
    exit_status(&mut page);
    see_also(
        &mut page,
        &["oleo(8)", "oleo-mount(8)", "oleo-unmount(8)", "mount(8)", "fstab(5)", "fuse(4)"].map(str::to_owned),
    );
    page
}

fn put(page: &mut Vec<u8>, line: std::fmt::Arguments<'_>) {
    writeln!(page, "{line}").expect("memory takes all");
}

fn heading(page: &mut Vec<u8>, name: &str) {
    put(page, format_args!(".SH \"{name}\""));
}

/// Text as roff shows it as it is.
fn escape(text: &str) -> String {
    text.replace('\\', "\\e").replace('-', "\\-").replace('…', "...")
}

/// A line of running text.
fn text(page: &mut Vec<u8>, line: &str) {
    let guard = if line.starts_with(['.', '\'']) { "\\&" } else { "" };
    put(page, format_args!("{guard}{}", escape(line)));
}

/// Lines as they are.
fn verbatim(page: &mut Vec<u8>, lines: &str) {
    put(page, format_args!(".nf"));
    lines.lines().for_each(|line| text(page, line));
    put(page, format_args!(".fi"));
}

/// What to do, if that is said anew, and the command that does it.
fn example(page: &mut Vec<u8>, what: &str, line: &str) {
    if !what.is_empty() {
        put(page, format_args!(".PP"));
        text(page, what);
    }
    put(page, format_args!(".RS"));
    verbatim(page, line);
    put(page, format_args!(".RE"));
}

fn exit_status(page: &mut Vec<u8>) {
    heading(page, "EXIT STATUS");
    for (code, meaning) in EXIT {
        put(page, format_args!(".TP\n\\fB{code}\\fR"));
        text(page, meaning);
    }
}

fn see_also(page: &mut Vec<u8>, pages: &[String]) {
    heading(page, "SEE ALSO");
    text(page, &pages.join(", "));
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use oleo_fuse::MountOptions;

    use super::*;

    /// Goal: what the manual shows can be typed. Method: the examples are parsed, options of a mount too, each of the latter that
    /// the help of `oleo mount` names with a value has its line.
    #[test]
    fn examples_are_accepted() {
        for (_, line) in EXAMPLES {
            if let Err(error) = Cli::try_parse_from(line.split(' ')) {
                panic!("{line}: {error}");
            }
        }
        for (syntax, sample, _) in MOUNT_OPTIONS {
            MountOptions::default().parse(sample).unwrap_or_else(|error| panic!("{syntax}: {error}"));
        }
        let command = Cli::command();
        let mount = command.find_subcommand("mount").unwrap();
        let help = mount.get_arguments().find(|a| a.get_id() == "options").unwrap().get_help().unwrap().to_string();
        let names: Vec<&str> = help
            .split([',', ' ', '\n'])
            .filter_map(|word| word.find(['=', '[']).map(|end| &word[..end]))
            .filter(|name| !name.is_empty())
            .collect();
        assert!(names.len() > 5, "{names:?}");
        for name in names {
            let has = |syntax: &str| syntax.split(", ").any(|s| s.split(['=', '[']).next() == Some(name));
            assert!(MOUNT_OPTIONS.iter().any(|o| has(o.0)), "mount.fuse.oleo(8) does not have {name}");
        }
    }
}
