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
    fn weights_are_kept() {
        let mut rng = Rng::new(3);
        let tens = (0..10_000).filter(|_| weighted(&mut rng, &[(10, 1), (20, 3)]) == 10).count();
        assert!((2_300..2_700).contains(&tens), "{tens}");
    }
}
