use super::*;
use crate::oracle::{Mounted, Oracle, Scratch, oracle};

fn fresh(oracle: Oracle, scratch: &Scratch, name: &str, args: &[&str]) -> (std::path::PathBuf, Mounted) {
    let image = scratch.image(name, 1 << 30).unwrap();
    oracle.mkfs(args, &[&image]).unwrap();
    let mounted = oracle.mount(&[&image], "").unwrap();
    (image, mounted)
}

/// Goal: scripts do something (most operations succeed, a few fail) and mean the same wherever they run.
/// Method: each seed on two kernel file systems of different shape; results and manifests, sharing and holes included,
/// must be equal.
#[test]
fn two_kernels_agree() {
    let Some(oracle) = oracle() else { return };
    for seed in 1..=3 {
        let scratch = oracle.scratch().unwrap();
        let script = generate(seed, &Mix { steps: 1500, ..Mix::default() });
        assert_eq!(script, generate(seed, &Mix { steps: 1500, ..Mix::default() }));
        assert_eq!(script, from_text(&to_text(&script)).unwrap());
        let (image_a, a) = fresh(oracle, &scratch, "a", &["-n", "4096"]);
        let (image_b, b) = fresh(oracle, &scratch, "b", &["-n", "16384", "-m", "single"]);
        let compare =
            Compare { detail: Detail { holes: true, sharing: true, ..Detail::default() }, ..Compare::default() };
        let done = run_both(&script, &mut Host::new(a.path(), 4096), &mut Host::new(b.path(), 4096), &compare);
        match done {
            Err(e) => panic!("seed {seed}: {e}"),
            Ok(done) => {
                println!("seed {seed}: {done} of {} succeeded", script.len());
                assert!(done * 100 > script.len() * 75, "only {done} of {} succeeded", script.len());
                assert!(done < script.len(), "none failed");
            }
        }
        a.unmount().unwrap();
        b.unmount().unwrap();
        oracle.must_be_sound(&[image_a], "a").unwrap();
        oracle.must_be_sound(&[image_b], "b").unwrap();
    }
}

/// Goal: shrinking finds the few operations that matter.
/// Method: a "failure" that needs three given operations in order.
#[test]
fn shrink_finds_the_culprits() {
    let script = generate(7, &Mix { steps: 600, ..Mix::default() });
    let culprits = [script[50].clone(), script[300].clone(), script[599].clone()];
    let fails = |s: &[Op]| {
        let mut left = culprits.iter().peekable();
        s.iter().for_each(|op| {
            left.next_if(|c| *c == op);
        });
        left.peek().is_none()
    };
    let short = shrink(&script, 10_000, fails);
    assert_eq!(short, culprits);
}
