//! Images restored by `btrfs-image`: every reader accepts them, nothing writes to them.

use std::path::Path;

use oleo::check::Start;
use oleo::mkfs::BuildOptions;
use oleo::{Image, OpenOptions};
use oleo_check::CheckOptions;
use oleo_sim::oracle::{oracle, run};

use crate::check::kit::{MIB, some_files};

/// Goal: the dumps that people attach to reports of damage can be read, and are not written to. Method: an image of
/// ours and one filled by the kernel, dumped and restored; a check with data, names, trees; opening for writing is
/// refused with the reason.
#[test]
fn dumps_can_be_read() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let ours = scratch.path().join("ours");
    oleo::mkfs::build(&[&ours], BuildOptions::default().size(Some(256 * MIB))).unwrap();
    let image = Image::open(&ours, &OpenOptions::writing()).unwrap();
    some_files(&image);
    image.close().unwrap();
    let theirs = scratch.image("theirs", 300 << 20).unwrap();
    oracle.mkfs(&[], &[&theirs]).unwrap();
    let mounted = oracle.mount(&[&theirs], "").unwrap();
    std::fs::create_dir(mounted.path().join("v")).unwrap();
    std::fs::write(mounted.path().join("large"), vec![7; 300_000]).unwrap();
    mounted.unmount().unwrap();
    for (what, from) in [("ours", &ours), ("the kernel's", &theirs)] {
        let (dump, restored) = (scratch.path().join("dump"), scratch.path().join("restored"));
        let paths = |args: &[&dyn AsRef<Path>]| args.iter().map(|a| a.as_ref().to_owned()).collect::<Vec<_>>();
        run("btrfs-image", paths(&[from, &dump])).unwrap();
        let _ = std::fs::remove_file(&restored);
        run("btrfs-image", paths(&[&"-r", &dump, &restored])).unwrap();
        let how = CheckOptions::default().data(true);
        let report = oleo::check::image(&restored, &OpenOptions::default(), Start::default(), &how).unwrap();
        assert!(!report.has_errors(), "{what}: {:#?}", report.findings);
        assert!(report.metadata_only && report.counts.verified_bytes == 0, "{what}");
        let image = Image::open(&restored, &OpenOptions::default()).unwrap();
        let names = image.list("/").unwrap();
        assert!(names.iter().any(|entry| entry.name == b"v"[..]) && names.len() > 1, "{what}: {names:?}");
        drop(image);
        let inspector = oleo::inspect::Inspector::open(&restored, &OpenOptions::default()).unwrap();
        drop(inspector);
        let refused = Image::open(&restored, &OpenOptions::writing()).err().expect("a refusal").to_string();
        assert!(refused.contains("btrfs-image"), "{what}: {refused}");
    }
}
