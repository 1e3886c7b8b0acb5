//! An example for the help page of each command.

use clap::Command;

/// Commands, and one or more examples of each. A test parses them.
const EXAMPLES: &[(&str, &[&str])] = &[
    ("mount", &["oleo mount disk.img /mnt", "oleo mount -o ro,subvol=home,compress=zstd disk.img /mnt"]),
    ("unmount", &["oleo unmount /mnt"]),
    ("ls", &["oleo ls -l disk.img /etc"]),
    ("cat", &["oleo cat disk.img /etc/fstab"]),
    ("restore", &["oleo restore disk.img ./out", "oleo restore --path /home disk.img - | tar -t"]),
    ("put", &["oleo put disk.img ./motd /etc/", "date | oleo put disk.img - /stamp"]),
    (
        "send",
        &[
            "oleo send disk.img --subvol home@1 -f home@1.stream",
            "oleo send disk.img --subvol home@2 -p home@1 | ssh backup btrfs receive /pool",
        ],
    ),
    ("receive", &["oleo receive -f home@1.stream disk.img", "oleo receive --dump -f home@1.stream"]),
    ("mkdir", &["oleo mkdir -p disk.img /var/log/app"]),
    ("rm", &["oleo rm -r disk.img /var/cache"]),
    ("mv", &["oleo mv disk.img /etc/hostname /etc/hostname.old"]),
    ("ln", &["oleo ln -s disk.img usr/bin /bin"]),
    ("cp", &["oleo cp --reflink disk.img /var/db /var/db.copy"]),
    ("subvolume list", &["oleo subvolume list --sizes disk.img"]),
    ("subvolume show", &["oleo subvolume show disk.img home"]),
    ("subvolume create", &["oleo subvolume create disk.img home", "oleo subvolume create /mnt/home"]),
    ("subvolume snapshot", &["oleo subvolume snapshot -r disk.img home home@1"]),
    ("subvolume delete", &["oleo subvolume delete disk.img home@1"]),
    ("subvolume set-default", &["oleo subvolume set-default disk.img home"]),
    ("subvolume get-default", &["oleo subvolume get-default disk.img"]),
    ("subvolume find-new", &["oleo subvolume find-new disk.img home 1000"]),
    ("subvolume sync", &["oleo subvolume sync /mnt"]),
    ("filesystem show", &["oleo filesystem show disk.img"]),
    ("filesystem df", &["oleo filesystem df /mnt"]),
    ("filesystem du", &["oleo filesystem du -s disk.img home", "oleo filesystem du --set home@1,home@2 disk.img"]),
    ("filesystem usage", &["oleo filesystem usage /mnt"]),
    ("filesystem stats", &["oleo filesystem stats /mnt"]),
    ("filesystem sync", &["oleo filesystem sync /mnt"]),
    ("filesystem label", &["oleo filesystem label disk.img backup"]),
    ("filesystem resize", &["oleo filesystem resize +10G disk.img", "oleo filesystem resize 2:max /mnt"]),
    ("filesystem reclaim", &["oleo filesystem reclaim /mnt"]),
    ("filesystem defragment", &["oleo filesystem defragment -r /mnt/home"]),
    ("filesystem trim", &["oleo filesystem trim disk.img"]),
    ("device add", &["oleo device add second.img disk.img"]),
    ("device remove", &["oleo device remove second.img /mnt", "oleo device remove --degraded missing disk.img"]),
    ("device scan", &["oleo device scan ./images"]),
    ("device ready", &["oleo device ready --scan ./images disk.img"]),
    ("device stats", &["oleo device stats /mnt"]),
    ("device usage", &["oleo device usage disk.img --device second.img"]),
    ("inspect dump-super", &["oleo inspect dump-super disk.img"]),
    ("inspect dump-tree", &["oleo inspect dump-tree -t chunk disk.img"]),
    ("inspect tree-stats", &["oleo inspect tree-stats disk.img"]),
    ("inspect inode-resolve", &["oleo inspect inode-resolve 257 disk.img"]),
    ("inspect logical-resolve", &["oleo inspect logical-resolve 13631488 disk.img"]),
    ("inspect subvolid-resolve", &["oleo inspect subvolid-resolve 256 disk.img"]),
    ("inspect rootid", &["oleo inspect rootid /mnt/home"]),
    (
        "balance start",
        &[
            "oleo balance start -dusage=50 /mnt",
            "oleo balance start -dconvert=raid1,soft -mconvert=raid1,soft disk.img",
        ],
    ),
    ("balance pause", &["oleo balance pause /mnt"]),
    ("balance cancel", &["oleo balance cancel /mnt"]),
    ("balance resume", &["oleo balance resume disk.img"]),
    ("balance status", &["oleo balance status /mnt"]),
    ("scrub start", &["oleo scrub start disk.img", "oleo scrub start -B --limit 50M /mnt"]),
    ("scrub cancel", &["oleo scrub cancel /mnt"]),
    ("scrub resume", &["oleo scrub resume /mnt"]),
    ("scrub status", &["oleo scrub status /mnt"]),
    ("scrub limit", &["oleo scrub limit --limit 50M /mnt"]),
    ("replace start", &["oleo replace start old.img new.img /mnt", "oleo replace start 2 new.img --degraded disk.img"]),
    ("replace status", &["oleo replace status /mnt"]),
    ("replace cancel", &["oleo replace cancel /mnt"]),
    ("replace resume", &["oleo replace resume disk.img"]),
    ("quota enable", &["oleo quota enable /mnt"]),
    ("quota disable", &["oleo quota disable /mnt"]),
    ("quota rescan", &["oleo quota rescan -w /mnt"]),
    ("quota status", &["oleo quota status disk.img"]),
    ("qgroup show", &["oleo qgroup show -pcre /mnt"]),
    ("qgroup create", &["oleo qgroup create 1/100 /mnt"]),
    ("qgroup destroy", &["oleo qgroup destroy 1/100 /mnt"]),
    ("qgroup assign", &["oleo qgroup assign 0/256 1/100 disk.img", "oleo qgroup assign /mnt/home 1/100 /mnt"]),
    ("qgroup remove", &["oleo qgroup remove 0/256 1/100 disk.img"]),
    ("qgroup limit", &["oleo qgroup limit 10G 0/256 disk.img", "oleo qgroup limit none /mnt/home"]),
    ("qgroup clear-stale", &["oleo qgroup clear-stale /mnt"]),
    ("check", &["oleo check disk.img", "oleo check --data disk.img --device second.img"]),
    ("property get", &["oleo property get disk.img home@1 ro"]),
    ("property set", &["oleo property set disk.img home@1 ro true"]),
    ("property list", &["oleo property list disk.img home"]),
    ("rescue zero-log", &["oleo rescue zero-log disk.img"]),
    ("remote show", &["oleo remote show s3://bucket/volume"]),
    ("remote unpin", &["oleo remote unpin s3://bucket/volume monday"]),
    ("remote branch", &["oleo remote branch s3://bucket/volume s3://bucket/trial"]),
    ("remote detach", &["oleo remote detach s3://bucket/trial"]),
    ("remote gc", &["oleo remote gc s3://bucket/volume"]),
    ("remote verify", &["oleo remote verify s3://bucket/volume"]),
    ("remote probe", &["oleo remote probe s3://bucket/volume"]),
    ("remote bench", &["oleo remote bench s3://bucket/bench"]),
    ("remote key list", &["oleo remote key list s3://bucket/volume"]),
    ("remote key add", &["oleo remote key add --remote key-file=old.key --new-key-file new.key s3://bucket/volume"]),
    ("remote key remove", &["oleo remote key remove --remote key-file=old.key s3://bucket/volume 1"]),
    ("remote streams list", &["oleo remote streams list s3://bucket/backups"]),
    ("remote streams verify", &["oleo remote streams verify s3://bucket/backups"]),
    ("remote streams prune", &["oleo remote streams prune --keep-last 7 s3://bucket/backups"]),
    ("remote streams gc", &["oleo remote streams gc s3://bucket/backups"]),
    ("remote streams ls", &["oleo remote streams ls s3://bucket/backups?snapshot=home@1 /etc"]),
    ("remote streams cat", &["oleo remote streams cat s3://bucket/backups /notes"]),
    ("remote streams restore", &["oleo remote streams restore s3://bucket/backups /home ./out"]),
    ("generate completions", &["oleo generate completions bash > /etc/bash_completion.d/oleo"]),
    ("generate man", &["oleo generate man ./man1"]),
    ("version", &["oleo version"]),
];

/// The grammar with the examples at the ends of help pages. All commands are gone through in order: a changed one is put last.
pub(crate) fn with_examples(command: Command) -> Command {
    with(command, "")
}

fn with(mut command: Command, path: &str) -> Command {
    let subcommands: Vec<String> = command.get_subcommands().map(|sub| sub.get_name().to_owned()).collect();
    for name in subcommands {
        let below = if path.is_empty() { name.clone() } else { format!("{path} {name}") };
        command = command.mut_subcommand(name, |sub| with(sub, &below));
    }
    let Some((_, lines)) = EXAMPLES.iter().find(|(known, _)| *known == path) else { return command };
    let word = if lines.len() == 1 { "Example" } else { "Examples" };
    let text = format!("{word}:\n  {}", lines.join("\n  "));
    let text = command.get_after_help().map(|before| format!("{before}\n\n{text}")).unwrap_or(text);
    command.after_help(text)
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    /// Goal: every command has an example, and every example is a command line that the parser takes. Method: walk the grammar;
    /// parse each line up to a pipe or redirection.
    #[cfg(all(feature = "fuse", feature = "nbd", feature = "remote"))]
    #[test]
    fn every_command_has_examples_that_parse() {
        fn look(command: &Command, path: &str, missing: &mut Vec<String>) {
            let mut subcommands = command.get_subcommands().filter(|sub| !sub.is_hide_set()).peekable();
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            if subcommands.peek().is_none() && !help.contains("oleo ") {
                missing.push(path.to_owned());
            }
            subcommands.for_each(|sub| look(sub, &format!("{path} {}", sub.get_name()), missing));
        }
        let mut missing = Vec::new();
        look(&crate::command(), "oleo", &mut missing);
        assert!(missing.is_empty(), "{missing:?}");
        let mut wrong = Vec::new();
        for line in EXAMPLES.iter().flat_map(|(_, lines)| *lines) {
            let line = line.split(['|', '>']).find(|part| part.contains("oleo ")).unwrap_or_default();
            let words = line.split_whitespace().map(OsString::from);
            let parsed = crate::command().try_get_matches_from(crate::cmd::balance::start::with_equals(words));
            if let Err(error) = parsed {
                wrong.push(format!("{line}: {error}"));
            }
        }
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    }
}
