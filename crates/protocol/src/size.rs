//! Numbers of bytes as people write them, in files of settings, on the command line and in scenarios.

/// The units, from the smallest, each with its bytes.
pub const UNITS: [(&str, u64); 5] = [("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Bytes of `10GiB`, `1.5 TiB`, `64k`, `1048576`. `None` for anything else, and for `10GB`, which not everybody takes
/// for the same.
#[must_use]
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let (whole, fraction) = number.split_once('.').unwrap_or((number, "0"));
    let unit = unit.trim();
    let is_it = |name: &str| name.eq_ignore_ascii_case(unit) || name[..1].eq_ignore_ascii_case(unit);
    let bytes = if unit.is_empty() { 1 } else { UNITS.into_iter().find(|(name, _)| is_it(name))?.1 };
    let parts = 10_u64.checked_pow(u32::try_from(fraction.len()).ok()?)?;
    let rest = u128::from(fraction.parse::<u64>().ok()?) * u128::from(bytes) / u128::from(parts);
    whole.parse::<u64>().ok()?.checked_mul(bytes)?.checked_add(rest as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse("10GiB"), Some(10 << 30));
        assert_eq!(parse(" 64 MiB "), Some(64 << 20));
        assert_eq!(["7", "7b", "1m", "1M"].map(parse), [Some(7), Some(7), Some(1 << 20), Some(1 << 20)]);
        assert_eq!((parse("1.5GiB"), parse("0.25 k")), (Some(3 << 29), Some(256)));
        assert_eq!(["7 GB", "1.5.2k", ".5k", "1.k", "1.99999999999999999999k", "", "x", "-1"].map(parse), [None; 8]);
        assert_eq!(parse("99999999TiB"), None);
    }
}
