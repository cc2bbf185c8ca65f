//! Draws from distributions in integers, so that they are the same on every build.

use protocol::rng::Rng;

/// Binary digits behind the point in a logarithm.
const DIGITS: u32 = 32;
/// ln 2 with that many digits.
const LN_2: u64 = 2_977_044_472;

/// An exponentially distributed number with this mean.
pub(super) fn exponential(rng: &mut Rng, mean: u64) -> u64 {
    // -ln u = (64 - log2(u * 2^64)) * ln 2 for u drawn evenly from 0 to 1.
    let log = (64_u64 << DIGITS) - log2(rng.next_u64() | 1);
    let minus_ln = (u128::from(log) * u128::from(LN_2)) >> DIGITS;
    ((minus_ln * u128::from(mean)) >> DIGITS) as u64
}

/// The binary logarithm, by squaring.
fn log2(x: u64) -> u64 {
    let whole = x.ilog2();
    let mut log = u64::from(whole) << DIGITS;
    let mut mantissa = x << (63 - whole);
    for digit in (0..DIGITS).rev() {
        let square = u128::from(mantissa) * u128::from(mantissa);
        if square >> 127 == 1 {
            log |= 1 << digit;
            mantissa = (square >> 64) as u64;
        } else {
            mantissa = (square >> 63) as u64;
        }
    }
    log
}

/// `k` to the power of minus `exponent` hundredths, times 2^40, by binary logarithms in integers.
pub(super) fn power(k: u64, exponent: u32) -> u64 {
    // log2(k^-e) = -e log2 k = -(whole + rest).
    let log = u128::from(log2(k.max(1))) * u128::from(exponent) / 100;
    let (whole, rest) = ((log >> DIGITS) as u32, log & ((1 << DIGITS) - 1));
    // 2^-rest is the product of 2^(-2^-n) over the digits of the rest; each factor is the root of the one before.
    let (mut root, mut result) = (1_u128 << 63, 1_u128 << 64);
    for digit in (0..DIGITS).rev() {
        root = (root << 64).isqrt();
        if rest >> digit & 1 == 1 {
            result = (result * root) >> 64;
        }
    }
    ((result >> 24) as u64).checked_shr(whole).unwrap_or(0).max(1)
}

/// One of these, by weight.
pub(super) fn weighted(rng: &mut Rng, choices: &[(u32, u32)]) -> u32 {
    if let [(only, _)] = choices {
        return *only;
    }
    let total: u64 = choices.iter().map(|(_, weight)| u64::from(*weight)).sum();
    let mut at = rng.below(total);
    for (value, weight) in choices {
        if at < u64::from(*weight) {
            return *value;
        }
        at -= u64::from(*weight);
    }
    choices.last().map_or(1, |(value, _)| *value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponential_draws_have_their_moments() {
        let mut rng = Rng::new(3);
        let (mean, count) = (1_000_000_u64, 400_000);
        let draws: Vec<f64> = (0..count).map(|_| exponential(&mut rng, mean) as f64 / mean as f64).collect();
        let first = draws.iter().sum::<f64>() / f64::from(count);
        let second = draws.iter().map(|d| d * d).sum::<f64>() / f64::from(count);
        let beyond = draws.iter().filter(|d| **d > 2.0).count() as f64 / f64::from(count);
        assert!((first - 1.0).abs() < 0.01 && (second - 2.0).abs() < 0.04, "{first} {second}");
        assert!((beyond - (-2.0_f64).exp()).abs() < 0.003, "{beyond}");
    }

    #[test]
    fn powers_are_those_of_the_reals() {
        for (k, exponent) in [(1, 0), (1, 150), (2, 100), (10, 99), (1_000, 75), (100_000, 120)] {
            let (is, should) = (power(k, exponent) as f64, (k as f64).powf(-f64::from(exponent) / 100.0));
            assert!((is / (should * 2.0_f64.powi(40)) - 1.0).abs() < 1e-5, "{k}^-{exponent}: {is}, {should}");
        }
    }

    #[test]
    fn weights_are_kept() {
        let mut rng = Rng::new(3);
        let tens = (0..10_000).filter(|_| weighted(&mut rng, &[(10, 1), (20, 3)]) == 10).count();
        assert!((2_300..2_700).contains(&tens), "{tens}");
    }
}
