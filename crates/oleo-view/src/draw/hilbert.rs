//! The Hilbert curve: neighbours in a row of numbers are neighbours on the square.

/// The column and row of the n-th point on the curve over a square of two to the `order` points on each side.
pub(super) fn place(order: u32, n: u64) -> (u32, u32) {
    let (mut x, mut y) = (0u32, 0u32);
    let mut rest = n;
    for level in 0..order {
        let side = 1 << level;
        let right = (rest >> 1 & 1) as u32;
        let up = ((rest ^ u64::from(right)) & 1) as u32;
        if up == 0 {
            if right == 1 {
                x = side - 1 - x;
                y = side - 1 - y;
            }
            std::mem::swap(&mut x, &mut y);
        }
        x += side * right;
        y += side * up;
        rest >>= 2;
    }
    (x, y)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// Goal: the curve visits every point once, each beside the one before.
    #[test]
    fn a_walk_over_every_point() {
        for order in 0..6 {
            let points: Vec<(u32, u32)> = (0..1 << (2 * order)).map(|n| place(order, n)).collect();
            assert_eq!(points.iter().collect::<BTreeSet<_>>().len(), points.len());
            assert!(points.iter().all(|(x, y)| *x < 1 << order && *y < 1 << order));
            for pair in points.windows(2) {
                assert_eq!(pair[0].0.abs_diff(pair[1].0) + pair[0].1.abs_diff(pair[1].1), 1, "{order} {pair:?}");
            }
        }
    }
}
