//! GF(2^8): polynomials over bits, modulo x^8 + x^4 + x^3 + x^2 + 1.

/// The polynomial without its highest bit.
const POLYNOMIAL: u8 = 0x1d;

/// The product of two elements.
pub(crate) const fn mul(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut product) = (a, b, 0);
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = (a << 1) ^ if a & 0x80 != 0 { POLYNOMIAL } else { 0 };
        b >>= 1;
    }
    product
}

/// The element by which `a` gives one; 0 for 0, which has none.
pub(crate) const fn inverse(a: u8) -> u8 {
    // a^254, as a^255 is one.
    let (mut power, mut product, mut bit) = (a, 1, 254_u8);
    while bit != 0 {
        if bit & 1 != 0 {
            product = mul(product, power);
        }
        power = mul(power, power);
        bit >>= 1;
    }
    product
}

/// Which planes of an element are added up for plane `plane` of its product with `by`: bit q is plane q.
pub(crate) const fn planes(by: u8, plane: usize) -> u8 {
    let (mut chosen, mut q) = (0, 0);
    while q < 8 {
        // The product of x^q has the bits that plane q goes into.
        chosen |= ((mul(by, 1 << q) >> plane) & 1) << q;
        q += 1;
    }
    chosen
}

/// How many planes are added up for a product with `by`: those that each plane goes into.
pub(crate) fn weight(by: u8) -> u32 {
    (0..8).map(|plane| mul(by, 1 << plane).count_ones()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_a_field() {
        for a in 1..=u8::MAX {
            assert_eq!((mul(a, inverse(a)), mul(a, 1), mul(a, 0)), (1, a, 0));
            for b in 0..=u8::MAX {
                assert_eq!(mul(a, b), mul(b, a));
                assert_eq!(mul(a, b ^ 7), mul(a, b) ^ mul(a, 7));
                assert_eq!(mul(mul(a, b), 19), mul(a, mul(b, 19)));
            }
        }
    }

    #[test]
    fn planes_say_the_product() {
        for (by, element) in (0..=u8::MAX).flat_map(|by| (0..=u8::MAX).map(move |element| (by, element))) {
            let bit = |plane| ((planes(by, plane) & element).count_ones() & 1) as u8;
            assert_eq!((0..8).map(|plane| bit(plane) << plane).sum::<u8>(), mul(by, element));
        }
        for by in 0..=u8::MAX {
            assert_eq!((0..8).map(|plane| planes(by, plane).count_ones()).sum::<u32>(), weight(by));
        }
    }
}
