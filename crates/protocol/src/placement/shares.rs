//! Sets of shares, as ranges.

use core::fmt;
use core::str::FromStr;

/// Numbers of shares: ascending ranges, each its first and its last. As text `0-63,70`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shares(Vec<(u32, u32)>);

impl Shares {
    /// So many from this one on.
    #[must_use]
    pub fn run(first: u32, count: u32) -> Self {
        Self(count.checked_sub(1).map(|more| (first, first.saturating_add(more))).into_iter().collect())
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> u32 {
        self.0.iter().fold(0, |sum: u32, (first, last)| sum.saturating_add((last - first).saturating_add(1)))
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// First and last of each range.
    pub fn ranges(&self) -> impl Iterator<Item = (u32, u32)> + '_ {
        self.0.iter().copied()
    }

    /// Each of them.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.ranges().flat_map(|(first, last)| first..=last)
    }

    /// Takes those of others as well.
    pub(crate) fn join(&mut self, others: Self) {
        self.0.extend(others.0);
        self.0.sort_unstable();
        let mut joined: Vec<(u32, u32)> = Vec::with_capacity(self.0.len());
        for (first, last) in self.0.drain(..) {
            match joined.last_mut() {
                Some(before) if before.1.saturating_add(1) >= first => before.1 = before.1.max(last),
                _ => joined.push((first, last)),
            }
        }
        self.0 = joined;
    }

    /// Keeps so many, from the first on, and gives the others away.
    pub(crate) fn split_off(&mut self, keep: u32) -> Self {
        let (mut kept, mut rest, mut room) = (Vec::new(), Vec::new(), keep);
        for (first, last) in self.0.drain(..) {
            let count = last - first + 1;
            let here = count.min(room);
            room -= here;
            kept.extend((here > 0).then(|| (first, first + (here - 1))));
            rest.extend((here < count).then_some((first + here, last)));
        }
        self.0 = kept;
        Self(rest)
    }

    /// The same chunks, of twice as many shares.
    pub(crate) fn doubled(&self) -> Self {
        Self(self.0.iter().map(|(first, last)| (first * 2, last * 2 + 1)).collect())
    }
}

impl fmt::Display for Shares {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (nth, (first, last)) in self.0.iter().enumerate() {
            let comma = if nth == 0 { "" } else { "," };
            if first == last { write!(f, "{comma}{first}") } else { write!(f, "{comma}{first}-{last}") }?;
        }
        Ok(())
    }
}

impl FromStr for Shares {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |part: &str| part.trim().parse::<u32>().ok();
        let range = |part: &str| match part.split_once('-') {
            Some((first, last)) => number(first).zip(number(last)).filter(|(first, last)| first <= last),
            None => number(part).map(|only| (only, only)),
        };
        let parts = text.split(',').filter(|part| !part.trim().is_empty());
        let ranges: Option<Vec<(u32, u32)>> = parts.map(range).collect();
        let ranges = ranges.filter(|ranges| ranges.is_sorted_by(|one, next| one.1 < next.0));
        ranges
            .map(Self)
            .ok_or_else(|| format!("shares = {text:?}: write ascending numbers and ranges, like \"0-63,70\""))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_split_and_joined() {
        let mut shares: Shares = "0-3, 8,10-19".parse().expect("shares");
        assert_eq!((shares.len(), shares.to_string().as_str()), (15, "0-3,8,10-19"));
        let rest = shares.split_off(6);
        assert_eq!((shares.to_string(), rest.to_string()), ("0-3,8,10".to_owned(), "11-19".to_owned()));
        shares.join(rest);
        shares.join(Shares::run(4, 4));
        assert_eq!(shares.to_string(), "0-8,10-19");
        assert_eq!(Shares::run(3, 2).doubled().to_string(), "6-9");
        assert!(Shares::run(3, 0).is_empty() && Shares::default().to_string().is_empty());
        for wrong in ["5-3", "1,1", "2-4,3", "x", "1-2-3", "-1", "4294967296"] {
            assert!(wrong.parse::<Shares>().is_err(), "{wrong}");
        }
    }
}
