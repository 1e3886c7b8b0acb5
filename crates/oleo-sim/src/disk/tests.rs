use super::*;

fn byte(disk: &dyn Device, at: u64) -> u8 {
    let mut buf = [0];
    disk.read_at(at, &mut buf).unwrap();
    buf[0]
}

/// Goal: what was flushed survives every crash; what was not may be lost, kept or torn, and all of these happen.
#[test]
fn crashes_keep_what_was_flushed() {
    let disk = SimDisk::new("disk", MemDevice::new(1 << 20), &Power::steady());
    disk.write_at(0, &[1; 8 * SECTOR]).unwrap();
    disk.flush().unwrap();
    disk.write_at(0, &[2; 8 * SECTOR]).unwrap();
    assert_eq!(byte(&disk, 8 * SECTOR as u64 - 1), 2, "reads see what was written");
    let mut seen = [0; 3];
    for seed in 0..100 {
        let after = disk.after_crash(&mut Rng::new(seed));
        let new = (0..8).filter(|i| byte(&after, i * SECTOR as u64) == 2).count();
        assert!((0..8 * SECTOR as u64).all(|at| byte(&after, at) != 0), "lost what was flushed");
        seen[match new {
            0 => 0,
            8 => 1,
            _ => 2,
        }] += 1;
    }
    assert!(seen.iter().all(|n| *n > 0), "lost, kept, torn: {seen:?}");
}

/// Goal: after the cut nothing works, on any disk at the switch.
#[test]
fn a_cut_ends_everything() {
    let power = Power::steady();
    let (a, b) = (SimDisk::new("a", MemDevice::new(4096), &power), SimDisk::new("b", MemDevice::new(4096), &power));
    power.cut_after(2);
    a.write_at(0, &[1]).unwrap();
    b.write_at(0, &[1]).unwrap();
    assert!(a.flush().is_err() && b.write_at(0, &[2]).is_err() && power.is_cut());
    assert!(b.read_at(0, &mut [0]).is_err());
    assert_eq!((a.counts(), b.counts()), ((1, 0), (1, 0)));
}

/// Goal: a discard and a change of length are lost or done like a write, and done when they were flushed.
#[test]
fn discards_and_lengths_are_pending_too() {
    const LEN: u64 = 1 << 20;
    let disk = SimDisk::new("disk", MemDevice::new(LEN), &Power::steady());
    disk.write_at(0, &[1; 8 * SECTOR]).unwrap();
    disk.flush().unwrap();
    disk.discard(0, 8 * SECTOR as u64).unwrap();
    disk.set_len(LEN / 2).unwrap();
    let states: Vec<MemDevice> = (0..100).map(|seed| disk.after_crash(&mut Rng::new(seed))).collect();
    let gone = |state: &MemDevice| (0..8).filter(|i| byte(state, i * SECTOR as u64) != 1).count();
    assert!(states.iter().any(|s| gone(s) == 0) && states.iter().any(|s| gone(s) == 8));
    assert!(states.iter().any(|s| s.len() == LEN) && states.iter().any(|s| s.len() == LEN / 2));
    disk.flush().unwrap();
    let after = disk.after_crash(&mut Rng::new(1));
    assert_eq!((gone(&after), after.len()), (8, LEN / 2));
}
