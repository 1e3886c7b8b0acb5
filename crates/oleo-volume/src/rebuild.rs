//! Parity: rebuilds the bytes of a lost stripe from the other stripes of its row.
//!
//! P is the exclusive or of the data units. Q is their sum in GF(2⁸) with polynomial 0x11d, unit `i` weighted with 2ⁱ.
//! One lost unit follows from P or from Q; two lost data units x and y follow from both: adding the units that are left
//! to P and Q gives `P' = Dx + Dy` and `Q' = 2ˣ·Dx + 2ʸ·Dy`, so `Dx = (Q' + 2ʸ·P') / (2ˣ + 2ʸ)`.

/// Exponentials of 2 in GF(2⁸), twice over so that sums of two logarithms need no reduction, and logarithms.
struct Field {
    exp: [u8; 510],
    log: [u8; 256],
}

const FIELD: Field = {
    let mut field = Field { exp: [0; 510], log: [0; 256] };
    let mut power: u16 = 1;
    let mut i = 0;
    while i < 255 {
        field.exp[i] = power as u8;
        field.exp[i + 255] = power as u8;
        field.log[power as usize] = i as u8;
        power <<= 1;
        if power & 0x100 != 0 {
            power ^= 0x11d;
        }
        i += 1;
    }
    field
};

/// 2ⁿ.
fn exp(n: usize) -> u8 {
    FIELD.exp[n % 255]
}

fn mul(a: u8, b: u8) -> u8 {
    match (a, b) {
        (0, _) | (_, 0) => 0,
        _ => FIELD.exp[usize::from(FIELD.log[usize::from(a)]) + usize::from(FIELD.log[usize::from(b)])],
    }
}

fn inverse(a: u8) -> u8 {
    FIELD.exp[255 - usize::from(FIELD.log[usize::from(a)])]
}

/// `to += factor · from`, byte by byte.
fn add_scaled(to: &mut [u8], from: &[u8], factor: u8) {
    if factor == 1 {
        to.iter_mut().zip(from).for_each(|(t, f)| *t ^= f);
        return;
    }
    let products: [u8; 256] = std::array::from_fn(|b| mul(b as u8, factor));
    to.iter_mut().zip(from).for_each(|(t, f)| *t ^= products[usize::from(*f)]);
}

/// The unit to be rebuilt, and the lost ones, as units of the row: data units from 0, then P, then Q.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Lost {
    /// The data unit that is wanted.
    pub want: usize,
    /// Another unit that cannot be used.
    pub other: Option<usize>,
}

/// Rebuilds data unit `lost.want` of a row with `data` data units. `unit(i)` reads unit `i` (the same range of each)
/// and is called only for those that are needed. `out` is as long as the range.
pub(crate) fn rebuild<E>(
    data: usize,
    lost: Lost,
    out: &mut [u8],
    mut unit: impl FnMut(usize, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    let (p, q) = (data, data + 1);
    let mut buf = vec![0; out.len()];
    out.fill(0);
    let others = (0..data).filter(|&i| i != lost.want && Some(i) != lost.other);
    match lost.other.filter(|&other| other != q) {
        // P is there and every other data unit: exclusive or.
        None => {
            for i in others.chain([p]) {
                unit(i, &mut buf)?;
                add_scaled(out, &buf, 1);
            }
        }
        // P is lost: Q, less the contributions of the others, divided by the weight.
        Some(other) if other == p => {
            for i in others {
                unit(i, &mut buf)?;
                add_scaled(out, &buf, exp(i));
            }
            unit(q, &mut buf)?;
            add_scaled(out, &buf, 1);
            buf.copy_from_slice(out);
            out.fill(0);
            add_scaled(out, &buf, inverse(exp(lost.want)));
        }
        Some(other) => {
            let (x, y) = (lost.want, other);
            let mut q_sum = vec![0; out.len()];
            for i in others {
                unit(i, &mut buf)?;
                add_scaled(out, &buf, 1);
                add_scaled(&mut q_sum, &buf, exp(i));
            }
            unit(p, &mut buf)?;
            add_scaled(out, &buf, 1);
            unit(q, &mut buf)?;
            add_scaled(&mut q_sum, &buf, 1);
            let divisor = inverse(exp(x) ^ exp(y));
            buf.copy_from_slice(out);
            out.fill(0);
            add_scaled(out, &buf, mul(exp(y), divisor));
            add_scaled(out, &q_sum, divisor);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Goal: whichever one or two units of a row are lost, the wanted one is rebuilt. Method: rows of 1 to 40 data
    /// units of fixed noise, parities computed by the definition, every pair of losses.
    #[test]
    fn every_loss_of_two_is_made_good() {
        for data in [1, 2, 3, 7, 40] {
            let mut units: Vec<Vec<u8>> =
                (0..data).map(|i| (0..64).map(|b| (b * 37 + i * 101 + b * i * 11) as u8).collect()).collect();
            let parity = |weight: &dyn Fn(usize) -> u8| -> Vec<u8> {
                (0..64).map(|b| units.iter().enumerate().fold(0, |sum, (i, u)| sum ^ mul(weight(i), u[b]))).collect()
            };
            let (p, q) = (parity(&|_| 1), parity(&exp));
            units.extend([p, q]);
            for want in 0..data {
                let others = (0..data + 2).filter(|&o| o != want).map(Some).chain([None]);
                for other in others {
                    let lost = Lost { want, other };
                    let mut out = vec![0xee; 64];
                    let read = |i: usize, buf: &mut [u8]| {
                        assert!(i != want && Some(i) != other, "{data} {lost:?}: unit {i} is lost");
                        buf.copy_from_slice(&units[i]);
                        Ok::<(), ()>(())
                    };
                    rebuild(data, lost, &mut out, read).expect("reads");
                    assert_eq!(out, units[want], "{data} {lost:?}");
                }
            }
        }
    }

    #[test]
    fn the_field_is_a_field() {
        for a in 1..=255u8 {
            assert_eq!(mul(a, inverse(a)), 1);
            assert_eq!(mul(a, 1), a);
        }
        assert_eq!(mul(0x80, 2), 0x1d);
    }
}
