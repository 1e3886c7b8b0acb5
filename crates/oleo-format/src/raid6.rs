//! Parity of RAID5 and RAID6 as pure functions over equally long stripes.
//!
//! P is the sum of the data stripes in GF(2⁸), that is their XOR. Q is the sum of `gⁱ · dataᵢ` with `g` = 2 and the
//! polynomial x⁸ + x⁴ + x³ + x² + 1 (0x11d), so that any two stripes can be lost. The order of stripes is data, P, Q.

/// The polynomial without x⁸.
const POLY: u8 = 0x1d;

/// Which parity a set of stripes has.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Parity {
    /// P as the last stripe.
    Raid5,
    /// P and Q as the last two.
    Raid6,
}

impl Parity {
    /// How many stripes are parity, and how many may be lost.
    pub fn count(self) -> usize {
        match self {
            Parity::Raid5 => 1,
            Parity::Raid6 => 2,
        }
    }
}

/// More stripes are lost than there is parity for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{lost} stripes are lost; parity can rebuild {max}")]
pub struct TooManyLost {
    /// How many are lost.
    pub lost: usize,
    /// How many may be.
    pub max: usize,
}

/// Powers and logarithms of the generator. `EXP` goes round twice, so that sums of two logarithms need no modulo.
const TABLES: ([u8; 512], [u8; 256]) = {
    let (mut exp, mut log) = ([0; 512], [0; 256]);
    let mut x = 1u8;
    let mut i = 0;
    while i < 255 {
        exp[i] = x;
        exp[i + 255] = x;
        #[allow(clippy::cast_possible_truncation, reason = "below 255")]
        {
            log[x as usize] = i as u8;
        }
        x = (x << 1) ^ (if x & 0x80 != 0 { POLY } else { 0 });
        i += 1;
    }
    (exp, log)
};

/// `g` to a power.
fn exp(power: usize) -> u8 {
    TABLES.0[power % 255]
}

fn mul(a: u8, b: u8) -> u8 {
    if a == 0 || b == 0 {
        return 0;
    }
    TABLES.0[usize::from(TABLES.1[usize::from(a)]) + usize::from(TABLES.1[usize::from(b)])]
}

/// One divided by `a`, which is not zero.
fn inverse(a: u8) -> u8 {
    TABLES.0[255 - usize::from(TABLES.1[usize::from(a)])]
}

/// Adds `src` to `dst`.
pub fn xor_into(dst: &mut [u8], src: &[u8]) {
    assert_eq!(dst.len(), src.len(), "stripes are equally long");
    for (d, s) in dst.iter_mut().zip(src) {
        *d ^= s;
    }
}

/// `dst = dst · g + src`. Byte by byte and without a branch, so that the compiler makes steps of whole registers of it: twice as fast as eight bytes in a word.
fn double_and_add(dst: &mut [u8], src: &[u8]) {
    assert_eq!(dst.len(), src.len(), "stripes are equally long");
    for (d, s) in dst.iter_mut().zip(src) {
        // All bits are the highest one.
        let overflows = (d.cast_signed() >> 7).cast_unsigned();
        *d = (*d << 1) ^ (overflows & POLY) ^ s;
    }
}

/// Adds a part of each stripe to `dst`: several in one step, since loading and storing the sum costs as much as adding one.
fn add_all(dst: &mut [u8], stripes: &[&[u8]], from: usize) {
    let to = from + dst.len();
    for group in stripes.chunks(4) {
        match *group {
            [a, b, c, d] => {
                let parts = a[from..to].iter().zip(&b[from..to]).zip(c[from..to].iter().zip(&d[from..to]));
                dst.iter_mut().zip(parts).for_each(|(sum, ((a, b), (c, d)))| *sum ^= a ^ b ^ c ^ d);
            }
            [a, b, c] => {
                let parts = a[from..to].iter().zip(&b[from..to]).zip(&c[from..to]);
                dst.iter_mut().zip(parts).for_each(|(sum, ((a, b), c))| *sum ^= a ^ b ^ c);
            }
            _ => group.iter().for_each(|part| xor_into(dst, &part[from..to])),
        }
    }
}

/// Multiplies every element by `by`.
fn scale(stripe: &mut [u8], by: u8) {
    let mut table = [0; 256];
    for (x, y) in (0..=255u8).zip(&mut table) {
        *y = mul(x, by);
    }
    stripe.iter_mut().for_each(|b| *b = table[usize::from(*b)]);
}

/// Bytes of each stripe that are looked at together: with some twenty stripes they are in a processor's nearest cache.
const PIECE_LEN: usize = 1 << 10;

/// P of the data stripes, and Q if it is wanted, in one pass over them.
///
/// # Panics
/// The stripes are not equally long.
pub fn sums(data: &[&[u8]], p: &mut [u8], mut q: Option<&mut [u8]>) {
    let len = p.len();
    assert!(data.iter().all(|d| d.len() == len), "stripes are equally long");
    for from in (0..len).step_by(PIECE_LEN) {
        let to = (from + PIECE_LEN).min(len);
        p_of_piece(data, from, &mut p[from..to]);
        if let Some(q) = q.as_deref_mut() {
            q_of_piece(data, from, &mut q[from..to]);
        }
    }
}

/// Whether P, and Q if there is one, are those of the data stripes, in a range of them. Nothing of the sums is kept, so that they stay in the nearest cache.
///
/// # Panics
/// The range is not in all stripes, or there are more parities than two.
pub fn fits(data: &[&[u8]], parities: &[&[u8]], (from, to): (usize, usize)) -> bool {
    assert!(parities.len() <= 2, "P and Q");
    let mut sum = [0; PIECE_LEN];
    (from..to).step_by(PIECE_LEN).all(|at| {
        let end = (at + PIECE_LEN).min(to);
        let sum = &mut sum[..end - at];
        parities.iter().enumerate().all(|(nth, parity)| {
            if nth == 0 {
                p_of_piece(data, at, sum)
            } else {
                q_of_piece(data, at, sum)
            }
            *sum == parity[at..end]
        })
    })
}

/// P of a part of the stripes.
fn p_of_piece(data: &[&[u8]], from: usize, p: &mut [u8]) {
    p.fill(0);
    add_all(p, data, from);
}

/// Q of a part of the stripes.
fn q_of_piece(data: &[&[u8]], from: usize, q: &mut [u8]) {
    q.fill(0);
    let to = from + q.len();
    data.iter().rev().for_each(|d| double_and_add(q, &d[from..to]));
}

/// P of the data stripes.
pub fn parity_p(data: &[&[u8]], p: &mut [u8]) {
    p_of_piece(data, 0, p);
}

/// Q of the data stripes.
pub fn parity_q(data: &[&[u8]], q: &mut [u8]) {
    q_of_piece(data, 0, q);
}

/// Rebuilds the stripes whose indexes are in `lost` from all the others. `stripes` are data, P and, with RAID6, Q; the
/// contents of the lost ones do not matter. The indexes are distinct.
pub fn rebuild(stripes: &mut [&mut [u8]], parity: Parity, lost: &[usize]) -> Result<(), TooManyLost> {
    if lost.len() > parity.count() {
        return Err(TooManyLost { lost: lost.len(), max: parity.count() });
    }
    let data_count = stripes.len() - parity.count();
    let p = data_count;
    let lost_data: Vec<usize> = lost.iter().copied().filter(|&i| i < data_count).collect();
    match (lost_data.as_slice(), lost.contains(&p)) {
        (&[], _) => {}
        (&[x], false) => data_from_p(stripes, data_count, x),
        (&[x], true) => data_from_q(stripes, data_count, x),
        (&[x, y, ..], _) => data_from_both(stripes, data_count, x.min(y), x.max(y)),
    }
    let (data, parities) = stripes.split_at_mut(data_count);
    let data: Vec<&[u8]> = data.iter().map(|d| &**d).collect();
    for (i, stripe) in parities.iter_mut().enumerate().filter(|(i, _)| lost.contains(&(p + i))) {
        if i == 0 { parity_p(&data, stripe) } else { parity_q(&data, stripe) }
    }
    Ok(())
}

/// A data stripe is P and all the others added up.
fn data_from_p(stripes: &mut [&mut [u8]], data_count: usize, x: usize) {
    let mut sum = stripes[data_count].to_vec();
    for (i, stripe) in stripes[..data_count].iter().enumerate() {
        if i != x {
            xor_into(&mut sum, stripe);
        }
    }
    stripes[x].copy_from_slice(&sum);
}

/// Q of the data stripes with zeros for those in `lost`, plus the stored Q: what the lost ones contribute.
fn q_of_lost(stripes: &mut [&mut [u8]], data_count: usize, lost: &[usize]) -> Vec<u8> {
    lost.iter().for_each(|&i| stripes[i].fill(0));
    let data: Vec<&[u8]> = stripes[..data_count].iter().map(|d| &**d).collect();
    let mut q = vec![0; stripes[0].len()];
    parity_q(&data, &mut q);
    xor_into(&mut q, stripes[data_count + 1]);
    q
}

fn data_from_q(stripes: &mut [&mut [u8]], data_count: usize, x: usize) {
    let mut q = q_of_lost(stripes, data_count, &[x]);
    scale(&mut q, inverse(exp(x)));
    stripes[x].copy_from_slice(&q);
}

/// With P′ = Dx + Dy and Q′ = gˣ·Dx + gʸ·Dy: Dx = (gʸ·P′ + Q′) / (gˣ + gʸ).
fn data_from_both(stripes: &mut [&mut [u8]], data_count: usize, x: usize, y: usize) {
    let mut dx = q_of_lost(stripes, data_count, &[x, y]);
    let mut p = stripes[data_count].to_vec();
    stripes[..data_count].iter().for_each(|d| xor_into(&mut p, d));
    let mut scaled = p.clone();
    scale(&mut scaled, exp(y));
    xor_into(&mut dx, &scaled);
    scale(&mut dx, inverse(exp(x) ^ exp(y)));
    xor_into(&mut p, &dx);
    stripes[x].copy_from_slice(&dx);
    stripes[y].copy_from_slice(&p);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Goal: multiplication is that of the field. Method: shift and reduce bit by bit.
    #[test]
    fn multiplication_is_that_of_the_field() {
        for a in 0..=255u8 {
            for b in 0..=255u8 {
                let (mut want, mut x) = (0, a);
                for bit in 0..8 {
                    if b >> bit & 1 == 1 {
                        want ^= x;
                    }
                    x = (x << 1) ^ ((x >> 7) * POLY);
                }
                assert_eq!(mul(a, b), want);
            }
            assert!(a == 0 || mul(a, inverse(a)) == 1);
        }
    }

    /// P and Q, one byte after the other by the table of the field.
    fn parities_by_table(data: &[Vec<u8>], len: usize) -> [Vec<u8>; 2] {
        let p = (0..len).map(|at| data.iter().fold(0, |sum, d| sum ^ d[at])).collect();
        let q = (0..len).map(|at| data.iter().enumerate().fold(0, |sum, (i, d)| sum ^ mul(exp(i), d[at]))).collect();
        [p, q]
    }

    proptest! {
        /// Goal: parity that is right fits in every range; a wrong bit of data or parity is seen in each range that has it, and in no other.
        /// Method: stripes of several pieces, parity by the table; one bit flipped, at the ends of pieces and ranges, too.
        #[test]
        fn what_does_not_fit_is_seen(count in 1usize..20, len in 1usize..3000, two in any::<bool>(), seed: u64) {
            let mut state = seed;
            let mut next = || { state = state.wrapping_mul(6364136223846793005).wrapping_add(1); (state >> 33) as usize };
            let data: Vec<Vec<u8>> = (0..count).map(|_| (0..len).map(|_| next() as u8).collect()).collect();
            let mut stripes: Vec<Vec<u8>> = data.iter().cloned().chain(parities_by_table(&data, len)).collect();
            stripes.truncate(count + 1 + usize::from(two));
            let from = next() % len;
            let to = from + 1 + next() % (len - from);
            let fits_in = |stripes: &[Vec<u8>], range| {
                let views: Vec<&[u8]> = stripes.iter().map(Vec::as_slice).collect();
                fits(&views[..count], &views[count..], range)
            };
            prop_assert!(fits_in(&stripes, (0, len)) && fits_in(&stripes, (from, to)));
            let piece = from / PIECE_LEN * PIECE_LEN;
            for at in [0, from, to - 1, len - 1, piece, piece.saturating_sub(1), next() % len] {
                let wrong = next() % stripes.len();
                stripes[wrong][at] ^= 1 << (next() % 8);
                prop_assert!(!fits_in(&stripes, (0, len)), "stripe {} at {}", wrong, at);
                prop_assert_eq!(fits_in(&stripes, (from, to)), !(from..to).contains(&at), "stripe {} at {}", wrong, at);
                stripes[wrong].clone_from(data.get(wrong).unwrap_or(&parities_by_table(&data, len)[wrong.saturating_sub(count).min(1)]));
            }
        }

        /// Goal: any loss that parity covers is undone. Method: every pair of lost stripes of a random set.
        #[test]
        fn every_loss_that_parity_covers_is_rebuilt(count in 1usize..20, len in 1usize..70, seed: u64) {
            let mut state = seed;
            let mut next = || { state = state.wrapping_mul(6364136223846793005).wrapping_add(1); (state >> 56) as u8 };
            let data: Vec<Vec<u8>> = (0..count).map(|_| (0..len).map(|_| next()).collect()).collect();
            let views: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let (mut p, mut q) = (vec![9; len], vec![9; len]);
            parity_p(&views, &mut p);
            parity_q(&views, &mut q);
            let (mut p_too, mut q_too) = (vec![7; len], vec![7; len]);
            sums(&views, &mut p_too, Some(&mut q_too));
            prop_assert_eq!((&p_too, &q_too), (&p, &q));
            for parity in [Parity::Raid5, Parity::Raid6] {
                let mut whole = data.clone();
                whole.push(p.clone());
                if parity == Parity::Raid6 { whole.push(q.clone()); }
                for a in 0..whole.len() {
                    for b in a..whole.len() {
                        let lost: Vec<usize> = if a == b { vec![a] } else { vec![b, a] };
                        let mut damaged = whole.clone();
                        lost.iter().for_each(|&i| damaged[i].fill(0x5a));
                        let mut views: Vec<&mut [u8]> = damaged.iter_mut().map(Vec::as_mut_slice).collect();
                        let done = rebuild(&mut views, parity, &lost);
                        if lost.len() > parity.count() {
                            prop_assert!(done.is_err());
                        } else {
                            prop_assert_eq!(&damaged, &whole, "lost {:?}", lost);
                        }
                    }
                }
            }
        }
    }
}
