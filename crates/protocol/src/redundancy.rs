//! How a chunk is kept, so that it outlasts what fails.

use core::cmp::Ordering;
use core::fmt;
use core::str::FromStr;

use erasure::Code;

use crate::limits;

/// One piece of a chunk, by its number: they count from 0. Copies are numbered in the order in which they become durable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Piece(pub u8);

/// Some pieces of a chunk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Pieces(u16);

const _: () =
    assert!(limits::PIECES <= u16::BITS as usize && limits::COPIES <= limits::PIECES, "every piece needs a bit");

impl Pieces {
    /// So many pieces, from the first on; at most [`limits::PIECES`].
    #[must_use]
    pub const fn first(count: usize) -> Self {
        Self(((1_u32 << if count < limits::PIECES { count } else { limits::PIECES }) - 1) as u16)
    }

    /// How many they are.
    #[must_use]
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Whether there are none.
    #[must_use]
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Those that are in both.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Those that are in one of both.
    #[must_use]
    pub const fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Those that are not in the other.
    #[must_use]
    pub const fn and_not(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether this one is among them.
    #[must_use]
    pub const fn contains(self, piece: Piece) -> bool {
        self.0 & Self::bit(piece) != 0
    }

    /// With one more.
    #[must_use]
    pub const fn with(self, piece: Piece) -> Self {
        Self(self.0 | Self::bit(piece))
    }

    /// Without one of them.
    #[must_use]
    pub const fn without(self, piece: Piece) -> Self {
        Self(self.0 & !Self::bit(piece))
    }

    /// The one with the lowest number.
    #[must_use]
    pub fn lowest(self) -> Option<Piece> {
        (self.0 != 0).then(|| Piece(self.0.trailing_zeros() as u8))
    }

    /// Each of them, in order.
    pub fn iter(self) -> impl Iterator<Item = Piece> {
        (0..limits::PIECES as u8).map(Piece).filter(move |piece| self.0 & Self::bit(*piece) != 0)
    }

    const fn bit(piece: Piece) -> u16 {
        if (piece.0 as usize) < limits::PIECES { 1 << piece.0 } else { 0 }
    }
}

impl From<Piece> for Pieces {
    fn from(piece: Piece) -> Self {
        Self(Self::bit(piece))
    }
}

impl FromIterator<Piece> for Pieces {
    fn from_iter<I: IntoIterator<Item = Piece>>(pieces: I) -> Self {
        Self(pieces.into_iter().fold(0, |bits, piece| bits | Self::bit(piece)))
    }
}

/// What of a chunk has to be durable, piece by piece, each in a failure domain of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Redundancy {
    /// So many whole copies.
    Copies(u8),
    /// A fragment of each number of a code ([`coded`](crate::id::coded)).
    Code(Code),
}

impl Redundancy {
    /// Whole copies, when there can be so many: 1 to [`limits::COPIES`].
    #[must_use]
    pub fn copies(copies: u8) -> Option<Self> {
        (1..=limits::COPIES).contains(&usize::from(copies)).then_some(Self::Copies(copies))
    }

    /// The fragments of a code, when as many copies as survive the same can be had of what names them.
    #[must_use]
    pub fn code(code: Code) -> Option<Self> {
        (code.parity() < limits::COPIES).then_some(Self::Code(code))
    }

    /// The code, if it is one.
    #[must_use]
    pub const fn of_code(self) -> Option<Code> {
        match self {
            Self::Code(code) => Some(code),
            Self::Copies(_) => None,
        }
    }

    /// Into how many pieces a chunk is put.
    #[must_use]
    pub const fn pieces(self) -> usize {
        match self {
            Self::Copies(copies) => copies as usize,
            Self::Code(code) => code.fragments(),
        }
    }

    /// What its pieces are called.
    #[must_use]
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Copies(_) => "copies",
            Self::Code(_) => "pieces",
        }
    }

    /// How many of these pieces a chunk is read from.
    #[must_use]
    pub const fn enough(self) -> usize {
        match self {
            Self::Copies(_) => 1,
            Self::Code(code) => code.data(),
        }
    }

    /// The number of copies that would survive as many failures of domains as what is kept in so many of them: one more
    /// than it survives. 0 when it cannot be read.
    #[must_use]
    pub const fn as_copies(self, domains: usize) -> usize {
        (domains + 1).saturating_sub(self.enough())
    }

    /// As many whole copies as survive the same failures.
    #[must_use]
    pub const fn in_copies(self) -> Self {
        Self::Copies(self.as_copies(self.pieces()) as u8)
    }

    /// The same with so many copies at most, and one at least. A code keeps all of its pieces.
    #[must_use]
    pub fn at_most(self, copies: u8) -> Self {
        match self {
            Self::Copies(wanted) => Self::Copies(wanted.min(copies.max(1))),
            Self::Code(_) => self,
        }
    }

    /// All pieces.
    #[must_use]
    pub const fn all(self) -> Pieces {
        Pieces::first(self.pieces())
    }

    /// The pieces that this one may count as, of a chunk that is kept so: copies are alike, so any.
    #[must_use]
    pub fn counting(self, piece: Piece) -> Pieces {
        match self {
            Self::Copies(_) => self.all(),
            Self::Code(_) => piece.into(),
        }
    }

    /// Whether in so many failure domains each piece can have one of its own.
    #[must_use]
    pub const fn is_met(self, domains: usize) -> bool {
        domains >= self.pieces()
    }
}

/// The more failure domains it takes the more it is, and of as many the more it survives.
impl Ord for Redundancy {
    fn cmp(&self, other: &Self) -> Ordering {
        let key = |of: &Self| (of.pieces(), of.as_copies(of.pieces()));
        key(self).cmp(&key(other))
    }
}

impl PartialOrd for Redundancy {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// So many copies by their number, a code as `4+2`.
impl fmt::Display for Redundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copies(copies) => write!(f, "{copies}"),
            Self::Code(code) => write!(f, "{code}"),
        }
    }
}

/// What a copy is kept for: how the objects that refer to its chunk want to have it kept. One byte on the wire and on
/// disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Wanted {
    /// Whether an object wants what the map says, which may change.
    by_map: bool,
    /// The most copies that an object wants whatever the map says; 0: none does.
    copies: u8,
}

/// Set in the byte when no object wants what the map says.
const NOT_BY_MAP: u8 = 1 << 4;

impl Wanted {
    /// What the map says.
    pub const BY_MAP: Self = Self { by_map: true, copies: 0 };

    /// What an object wants that asks for this; `None` is as the map says. Coded chunks are named by chunks that are
    /// kept as copies, which survive as many failures.
    #[must_use]
    pub const fn of(asked: Option<Redundancy>) -> Self {
        match asked {
            None => Self::BY_MAP,
            Some(asked) => Self { by_map: false, copies: asked.as_copies(asked.pieces()) as u8 },
        }
    }

    /// The number of copies that is wanted whatever the map says, when no object wants what it says.
    #[must_use]
    pub fn own(self) -> Option<Redundancy> {
        Redundancy::copies(self.copies).filter(|_| !self.by_map)
    }

    /// What both want.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { by_map: self.by_map || other.by_map, copies: self.copies.max(other.copies) }
    }

    /// Whether a copy that is kept for this serves an object that wants the other.
    #[must_use]
    pub fn covers(self, other: Self) -> bool {
        self.and(other) == self
    }

    /// What the map says, and so many copies whatever it says: one or both of them.
    pub fn parts(self) -> impl Iterator<Item = Self> {
        let own = Redundancy::copies(self.copies).map(|own| Self::of(Some(own)));
        self.by_map.then_some(Self::BY_MAP).into_iter().chain(own)
    }

    /// How the chunk has to be kept, when the map says this.
    #[must_use]
    pub fn redundancy(self, map: Redundancy) -> Redundancy {
        let own = Redundancy::copies(self.copies);
        own.map_or(map, |own| if self.by_map { own.max(map) } else { own })
    }

    /// As one byte; 0 is what the map says.
    #[must_use]
    pub const fn code(self) -> u8 {
        self.copies | if self.by_map { 0 } else { NOT_BY_MAP }
    }

    /// The reverse of [`Wanted::code`]; `None` for what is no such byte.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        let wanted = Self { by_map: code & NOT_BY_MAP == 0, copies: code & !NOT_BY_MAP };
        let is_possible = wanted.copies == 0 && wanted.by_map || Redundancy::copies(wanted.copies).is_some();
        is_possible.then_some(wanted)
    }
}

/// A text that says no redundancy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnknownRedundancy;

impl fmt::Display for UnknownRedundancy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "choose a number of copies, 1 to {}, or a code as 4+2", limits::COPIES)
    }
}

impl core::error::Error for UnknownRedundancy {}

impl FromStr for Redundancy {
    type Err = UnknownRedundancy;

    fn from_str(text: &str) -> Result<Self, UnknownRedundancy> {
        if text.contains('+') {
            let code = text.parse().map_err(|_| UnknownRedundancy)?;
            return Self::code(code).ok_or(UnknownRedundancy);
        }
        // As it is written: no sign, no zeros before.
        let copies: u8 = text.parse().map_err(|_| UnknownRedundancy)?;
        Self::copies(copies).filter(|parsed| parsed.to_string() == text).ok_or(UnknownRedundancy)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_wanted_by_several_is_the_most() {
        let [two, three] = [2, 3].map(Redundancy::Copies);
        let (map, few, many) = (Wanted::BY_MAP, Wanted::of(Some(two)), Wanted::of(Some(three)));
        assert_eq!([map, few, many, few.and(map)].map(|w| w.redundancy(three)), [three, two, three, three]);
        assert_eq!([map, few, many, many.and(map)].map(|w| w.redundancy(two)), [two, two, three, three]);
        assert!(many.covers(few) && !few.covers(many) && !many.covers(map) && !map.covers(few));
        assert!(many.and(map).covers(few) && many.and(map).covers(map) && many.and(map).covers(many.and(few)));
        let all: Vec<Wanted> = (0..=u8::MAX).filter_map(Wanted::from_code).collect();
        assert_eq!(all.len(), 1 + 2 * limits::COPIES, "by the map or not, with a number or without");
        assert!(all.iter().all(|wanted| Wanted::from_code(wanted.code()) == Some(*wanted)));
        assert!(all.iter().all(|wanted| wanted.parts().reduce(Wanted::and) == Some(*wanted)));
        assert_eq!((map.code(), Wanted::from_code(0)), (0, Some(map)), "as what was written without the byte");
    }

    #[test]
    fn each_copy_needs_a_domain() {
        let three = Redundancy::copies(3).expect("there can be three");
        assert_eq!((three.pieces(), three.all().len(), three.counting(Piece(9))), (3, 3, three.all()));
        assert!(three.is_met(4) && three.is_met(3) && !three.is_met(2));
        assert_eq!(("3".parse(), three.to_string()), (Ok(three), "3".to_owned()));
        for wrong in ["", "0", "+3", "03", "3 copies", "256", "4+", "4+0", "1+1", "04+2", "4+2+1", "8+9"] {
            assert_eq!(wrong.parse::<Redundancy>(), Err(UnknownRedundancy), "{wrong}");
        }
        assert_eq!((Redundancy::copies(0), Redundancy::copies(limits::COPIES as u8 + 1)), (None, None));
    }

    #[test]
    fn each_fragment_of_a_code_counts_as_itself() {
        let code = Code::new(4, 2).and_then(Redundancy::code).expect("a code");
        assert_eq!((code.pieces(), code.enough(), code.counting(Piece(5))), (6, 4, Piece(5).into()));
        assert_eq!(("4+2".parse(), code.to_string()), (Ok(code), "4+2".to_owned()));
        assert_eq!([6, 5, 4, 3].map(|domains| code.as_copies(domains)), [3, 2, 1, 0]);
        assert_eq!(code.in_copies(), Redundancy::Copies(3));
        assert_eq!(Wanted::of(Some(code)), Wanted::of(Some(Redundancy::Copies(3))));
        assert_eq!(Code::new(2, 8).and_then(Redundancy::code), None);
    }
}
