use super::*;
use crate::oracle::oracle;

/// Goal: damage gets past checksums, is undone exactly, and the oracle notices it. Method: damage a kernel image
/// repeatedly; after each, the superblock (or the blocks) have sound checksums; after the guard is gone, the image is
/// as before. `btrfs check` must complain about a good part of it.
#[test]
fn damage_is_real_and_undone() {
    let Some(oracle) = oracle() else { return };
    let scratch = oracle.scratch().unwrap();
    let image = scratch.image("rot", 128 << 20).unwrap();
    oracle.mkfs(&[], &[&image]).unwrap();
    let before = std::fs::read(&image).unwrap();
    let rot = Rot::survey(&image).unwrap();
    assert!(rot.blocks() >= 8, "{} blocks", rot.blocks());
    assert!(rot.blocks.iter().any(|b| b.copies.len() == 2), "metadata is dup");
    let mut complaints = 0;
    let mut rng = Rng::new(11);
    const ROUNDS: u32 = 25;
    for _ in 0..ROUNDS {
        let damage = rot.random(&mut rng).unwrap();
        let done = rot.inflict(&damage).unwrap();
        if let Damage::Block { index, .. } = &damage {
            for at in &rot.blocks[*index].copies {
                let block = rot.read(*at, rot.nodesize).unwrap();
                assert_eq!(block[..4], rot.csum.csum(&block[32..])[..4], "{damage:?}");
            }
        }
        complaints += u32::from(!oracle.check(&[&image]).unwrap().is_clean());
        drop(done);
        assert!(before == std::fs::read(&image).unwrap(), "{damage:?} was not undone");
    }
    assert!(complaints > ROUNDS / 3, "only {complaints} of {ROUNDS} were noticed");
    // The part that is cut off takes no more damage.
    let first = rot.blocks[0].copies[0];
    let cut = rot.inflict(&Damage::Truncate(first + 1)).unwrap();
    let block = Damage::Block { index: 0, logical: rot.blocks[0].logical, edits: vec![(101, vec![1])] };
    let beyond = rot.inflict(&block).unwrap();
    assert_eq!(std::fs::metadata(&image).unwrap().len(), first + 1);
    drop(beyond);
    drop(cut);
    assert!(before == std::fs::read(&image).unwrap(), "damage behind a cut was not undone");
}
