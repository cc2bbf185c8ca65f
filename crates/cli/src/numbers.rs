//! Sizes, rates and quantiles as people write and read them.

/// A number of bytes such as `16KiB`, `1MiB` or `4096`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: u64 = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        "g" | "gib" => 1 << 30,
        unit => return Err(format!("{unit:?} is not a unit: use KiB, MiB or GiB")),
    };
    let number: u64 = digits.parse().map_err(|_| format!("{text:?} is not a size: write for example 128KiB"))?;
    number.checked_mul(unit).filter(|n| *n > 0).ok_or_else(|| format!("{text:?} is out of range"))
}

/// Bytes with a binary unit.
pub(crate) fn size(bytes: u64) -> String {
    let units = [(1_u64 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match units.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

/// Megabytes (10^6) per second.
pub(crate) fn mb_per_s(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 { bytes as f64 / seconds / 1e6 } else { 0.0 }
}

/// The value below which `per_cent` of the sorted values lie; 0 for none.
pub(crate) fn quantile(sorted: &[f64], per_cent: f64) -> f64 {
    let at = (sorted.len() as f64 * per_cent / 100.0).ceil() as usize;
    sorted.get(at.saturating_sub(1)).or(sorted.last()).copied().unwrap_or(0.0)
}

/// Milliseconds since 1970 as a UTC date and time.
pub(crate) fn date(ms: u64) -> String {
    let (days, rest) = ((ms / 86_400_000) as i64, ms / 1_000 % 86_400);
    // Days since 1970 to a civil date, by eras of 400 years that begin in March.
    let shifted = days + 719_468;
    let era = shifted.div_euclid(146_097);
    let day = shifted.rem_euclid(146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let (d, m) = (of_year - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    let y = year + era * 400 + i64::from(m <= 2);
    format!("{y:04}-{m:02}-{d:02} {:02}:{:02}:{:02}", rest / 3_600, rest / 60 % 60, rest % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        assert_eq!(parse_size("16KiB"), Ok(16 << 10));
        assert_eq!(parse_size("1m"), Ok(1 << 20));
        assert_eq!(parse_size("77"), Ok(77));
        for bad in ["", "x", "1xb", "0", "99999999999GiB", "-1"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
        assert_eq!(size(64 << 20), "64 MiB");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(5), "5 B");
    }

    #[test]
    fn quantiles() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!((quantile(&values, 50.0), quantile(&values, 99.0)), (50.0, 99.0));
        assert_eq!(quantile(&[], 50.0), 0.0);
    }

    #[test]
    fn dates() {
        assert_eq!(date(0), "1970-01-01 00:00:00");
        assert_eq!(date(951_782_400_000), "2000-02-29 00:00:00");
        assert_eq!(date(1_735_689_599_000), "2024-12-31 23:59:59");
    }
}
