//! Commands and options of btrfs that Oleo does not have, so that the parser's error names what is missing and what to use.

use std::ffi::OsString;

use oleo::ErrorKind;

use crate::out::Said;

/// Words of a command, an option of it (or none), and what to use.
const UNSUPPORTED: &[(&[&str], Option<&str>, &str)] = &[
    (&["convert"], None, "btrfs-convert makes btrfs of another file system"),
    (&["reflink"], None, "`oleo cp --reflink` clones files in an image, and `cp` on a mount"),
    (
        &["check"],
        Some("--repair"),
        "`oleo check` changes nothing; `oleo restore` saves what can be read, `btrfs check --repair` tries a repair",
    ),
    (&["check"], Some("--init-csum-tree"), "use btrfs check"),
    (&["check"], Some("--init-extent-tree"), "use btrfs check"),
    (
        &["check"],
        Some("--clear-space-cache"),
        "the cache is replaced by a free-space tree when the volume is opened for changes",
    ),
    (&["check"], Some("--tree-root"), "--backup starts from earlier roots"),
    (&["check"], Some("--chunk-root"), "use btrfs check"),
    (
        &["check"],
        Some("--qgroup-report"),
        "`oleo check` compares quota groups in any case; `oleo qgroup show` shows them",
    ),
    (&["check"], Some("--subvol-extents"), "`oleo filesystem du` shows what a subvolume shares"),
    (&["rescue", "chunk-recover"], None, "use btrfs rescue"),
    (
        &["rescue", "super-recover"],
        None,
        "`oleo check --super N` and `btrfs rescue super-recover` use another copy of the superblock",
    ),
    (&["rescue", "fix-device-size"], None, "use btrfs rescue"),
    (&["rescue", "fix-data-checksum"], None, "`oleo scrub start --from` takes the data from elsewhere"),
    (&["rescue", "create-control-device"], None, "no control device is needed"),
    (&["rescue", "clear-uuid-tree"], None, "use btrfs rescue"),
    (
        &["rescue", "clear-space-cache"],
        None,
        "the cache is replaced by a free-space tree when the volume is opened for changes",
    ),
    (&["rescue", "clear-ino-cache"], None, "use btrfs rescue"),
    (&["inspect", "min-dev-size"], None, "`oleo filesystem resize` refuses a size that is too small"),
    (&["inspect", "map-swapfile"], None, "swap files do not work on FUSE mounts"),
    (&["inspect", "list-chunks"], None, "`oleo inspect dump-tree -t chunk` shows them"),
    (&["filesystem", "mkswapfile"], None, "swap files do not work on FUSE mounts"),
    (&["filesystem", "commit-stats"], None, "`oleo filesystem stats` shows commits"),
];

/// The refusal of a command line that the parser does not know, if it is of btrfs.
pub(crate) fn refusal(arguments: &[OsString]) -> Option<anyhow::Error> {
    let words: Vec<&str> = arguments.iter().skip(1).filter_map(|argument| argument.to_str()).collect();
    let commands: Vec<&str> = words.iter().copied().filter(|word| !word.starts_with('-')).collect();
    let begins = |known: &&[&str]| {
        known.len() <= commands.len()
            && known.iter().zip(&commands).all(|(known, given)| known == given || is_alias(known, given))
    };
    let given = |option: &str| words.iter().any(|word| word.split('=').next() == Some(option));
    let (known, option, instead) =
        UNSUPPORTED.iter().find(|(known, option, _)| begins(known) && option.is_none_or(&given))?;
    let name = known.iter().copied().chain(*option).collect::<Vec<_>>().join(" ");
    Some(Said(ErrorKind::Refusal, format!("{name} is not supported: {instead}")).into())
}

/// Whether a word means a command, as with btrfs: the beginning of its name, or a longer name.
fn is_alias(known: &str, given: &str) -> bool {
    let is_short = given.len() >= 2 && known.starts_with(given) && ["filesystem", "inspect", "rescue"].contains(&known);
    is_short || (known == "inspect" && given == "inspect-internal")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: what btrfs has and Oleo has not is named with what to use; anything else is the parser's business. Method: command
    /// lines; and each entry is unknown to the parser, so that none hides a command that exists.
    #[test]
    fn missing_features_are_named() {
        let of = |line: &str| {
            let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
            refusal(&words).map(|error| error.to_string())
        };
        assert!(of("oleo check --repair i").is_some_and(|text| text.starts_with("check --repair is not supported: ")));
        assert!(of("oleo inspect-internal map-swapfile f").is_some());
        assert!(of("oleo fi mkswapfile f").is_some());
        assert_eq!((of("oleo check --nonsense i"), of("oleo re"), of("oleo rescue nonsense")), (None, None, None));
        for (words, option, _) in UNSUPPORTED {
            let line = ["oleo"].iter().chain(*words).copied().chain(*option).chain(["x"]);
            assert!(crate::command().try_get_matches_from(line).is_err(), "{words:?} {option:?}");
        }
    }
}
