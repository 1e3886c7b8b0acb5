use super::*;
use crate::manifest::{Detail, Ignore, Manifest};
use crate::oracle::{Scratch, oracle, run};

/// Goal: names of a set have equal directory hashes, as the format counts them.
#[test]
fn collisions_collide() {
    let sets = colliding_names(5, 10);
    assert_eq!(sets.len(), 10);
    for set in sets {
        let hash = |n: &Vec<u8>| !crc32c::crc32c_append(!(!1_u32), n);
        assert_eq!(set.len(), 4);
        assert!(set.iter().all(|n| hash(n) == hash(&set[0])), "{set:?}");
    }
}

/// Goal: a specimen is the same for the same seed, and survives a copy onto a kernel btrfs in every detail that is
/// compared: so what the tests compare later are our differences, not the method's.
#[test]
fn a_copy_by_the_kernel_is_equal() {
    let scratch = Scratch::new().unwrap();
    let options = Options { wide: 100, large_len: 1 << 20, ..Options::default() };
    let (first, second) = (scratch.dir("first").unwrap(), scratch.dir("second").unwrap());
    make(&first, &options).unwrap();
    make(&second, &options).unwrap();
    let detail = Detail { holes: true, ..Detail::default() };
    let want = Manifest::of_dir(&first, detail).unwrap();
    assert!(want.entries.len() > 400);
    want.must_equal(&Manifest::of_dir(&second, detail).unwrap(), &Ignore::default(), "same seed");

    let Some(oracle) = oracle() else { return };
    let image = scratch.image("image", 300 << 20).unwrap();
    oracle.mkfs(&[], &[&image]).unwrap();
    let mounted = oracle.mount(&[&image], "").unwrap();
    run("cp", ["-a".as_ref(), "--sparse=always".as_ref(), first.join(".").as_os_str(), mounted.path().as_os_str()])
        .unwrap();
    let have = Manifest::of_dir(mounted.path(), detail).unwrap();
    // Preallocated space is copied as a hole and zeros as holes; sockets' and fifos' device numbers are nothing.
    let ignore = Ignore { holes: true, ..Ignore::from_elsewhere() };
    want.must_equal(&have, &ignore, "cp -a to a kernel btrfs");
    mounted.unmount().unwrap();
    oracle.must_be_sound(&[&image], "copied").unwrap();
}
