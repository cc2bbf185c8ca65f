//! Sizes, spans, rates and quantiles as people write and read them.

use std::time::Duration;

use protocol::size::UNITS;
use protocol::time::Span;

/// A number of bytes such as `16KiB`, `1MiB` or `4096`.
pub(crate) fn parse_size(text: &str) -> Result<u64, String> {
    protocol::size::parse(text)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| format!("{text:?} is not a size: write for example 128KiB, 1MiB or 10GiB"))
}

/// Bytes with a binary unit.
pub(crate) fn size(bytes: u64) -> String {
    match UNITS.iter().rev().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) if bytes.is_multiple_of(*unit) => format!("{} {name}", bytes / unit),
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / *unit as f64),
        None => format!("{bytes} B"),
    }
}

/// A span as the standard library has it.
pub(crate) const fn duration(span: Span) -> Duration {
    Duration::from_nanos(span.as_nanos())
}

/// Seconds, minutes or hours.
pub(crate) fn time(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        _ => format!("{} h", seconds / 3_600),
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
}
