use super::*;
use crate::manifest::Ignore;
use crate::oracle::oracle;

/// Goal: an aged file system has what it promises: subvolumes of each sort, dead ones, bitmaps; the image is sound and
/// can be read twice with the same result.
#[test]
fn an_aged_file_system_has_it_all() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let recipe = Recipe { default_subvol: true, ..Recipe::default() };
    let aged = make(oracle, &scratch, &recipe).unwrap();
    assert!(
        aged.subvols.iter().any(|s| s.read_only) && aged.subvols.iter().any(|s| !s.read_only),
        "{:?}",
        aged.subvols
    );
    assert!(aged.subvols.iter().any(|s| s.path.starts_with("play/")), "{:?}", aged.subvols);
    assert!(aged.subvols.iter().any(|s| s.id == aged.default_subvol && s.path == "snap-rw"));
    assert!(aged.manifest.entries.len() > 2000);
    let tree =
        run("btrfs", ["inspect-internal".as_ref(), "dump-tree".as_ref(), "-t10".as_ref(), aged.devices[0].as_os_str()])
            .unwrap();
    assert!(tree.contains("FREE_SPACE_BITMAP"), "no bitmaps");
    println!("{} subvolumes, {} dead, {} names", aged.subvols.len(), aged.dead, aged.manifest.entries.len());

    let found = oracle.check(&aged.devices).unwrap();
    assert!(found.is_clean(), "{found}");
    let again = look(oracle, aged.devices.clone()).unwrap();
    aged.manifest.must_equal(&again.manifest, &Ignore::default(), "looked at again");
    assert_eq!(aged.subvols, again.subvols);
}
