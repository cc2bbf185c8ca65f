//! A chunk that is kept as fragments of a code in place of copies: its id, its pieces, and how they are checked.
//!
//! A *piece* is a fragment with a header before it. The header says what the code is, how long the chunk is, and the
//! BLAKE3 hash of each fragment. It is the same in all pieces, except for a byte that says which of them this is. The
//! id of the chunk begins with the hash of the header without that byte. So a node that has one good piece knows all
//! the others by their hashes, and each piece is checked by itself: a target checks what it is to store, no matter
//! which node computed it, and a scrub and a repair check the same. Pieces have the id of the chunk except for the last
//! byte, which is their number. So they are of one group, and listed under one prefix. A piece says which one it is, so
//! the initiator that chooses the targets need not tell them.
//!
//! | bytes of an id | what |
//! |---|---|
//! | 30 | the first of the BLAKE3 hash of the header |
//! | 1 | the code, as in the header |
//! | 1 | the number of the piece, those of data first; 255 for the chunk |
//!
//! | bytes of a header | what |
//! |---|---|
//! | 1 | the code: fragments of data in the upper half, of parity in the lower |
//! | 1 | the number of the piece; 0 where the header is hashed |
//! | 2 | 0 |
//! | 4 | bytes of the chunk, little-endian |
//! | 32 for each fragment | its BLAKE3 hash |

use core::ops::Range;

use bytes::{Bytes, BytesMut};
use erasure::Code;

use crate::id::{ChunkId, ChunkKind};
use crate::redundancy::{Piece, Pieces};

/// Bytes of an id that are of a hash, and the same for all pieces of a chunk.
pub const HASHED: usize = 30;
/// Bytes that an id and those of all pieces have in common.
pub const COMMON: usize = 31;
const WHOLE: u8 = u8::MAX;
const HASH: usize = 32;
const FIXED: usize = 8;
/// Where in a piece its number is.
const NUMBER: usize = 1;

/// What stands before each fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Header {
    code: Code,
    piece: Piece,
    length: u32,
    hashes: Vec<[u8; HASH]>,
}

/// A chunk that was cut into pieces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coded {
    /// The chunk's id.
    pub id: ChunkId,
    /// Its pieces, by their numbers: header and fragment.
    pub pieces: Vec<Bytes>,
}

impl ChunkId {
    /// The code of a coded chunk; `None` for another chunk, or for a code that does not exist.
    #[must_use]
    pub fn code(&self) -> Option<Code> {
        (self.kind() == ChunkKind::Coded).then(|| Code::from_byte(self.bytes()[HASHED])).flatten()
    }

    /// Which piece of a coded chunk it is; `None` for all of one, and for other chunks.
    #[must_use]
    pub fn piece(&self) -> Option<Piece> {
        let number = self.bytes()[COMMON];
        self.code().filter(|code| usize::from(number) < code.fragments()).map(|_| Piece(number))
    }

    /// The id of a piece of this coded chunk; of another chunk its own, as copies are alike.
    #[must_use]
    pub fn of_piece(&self, piece: Piece) -> Self {
        self.with_number(piece.0)
    }

    /// The id of the piece of this coded chunk that `piece`, its bytes one part after the other, says that it is; itself where that is no
    /// coded chunk.
    pub(crate) fn of_its_piece(&self, piece: &[Bytes]) -> Self {
        let number = piece.iter().flatten().nth(NUMBER);
        number.map_or(*self, |number| self.with_number(*number))
    }

    /// The coded chunk of which this is a piece; itself, if it is no piece.
    #[must_use]
    pub fn whole(&self) -> Self {
        self.with_number(WHOLE)
    }

    /// What the encoded ids of all of its pieces begin with, and those of no other chunk; of another chunk all of its own.
    #[must_use]
    pub fn prefix(&self) -> Vec<u8> {
        let encoded = self.encode();
        let shared = if self.kind() == ChunkKind::Coded { &encoded[..=COMMON] } else { &encoded[..] };
        shared.to_vec()
    }

    fn with_number(&self, number: u8) -> Self {
        if self.kind() != ChunkKind::Coded {
            return *self;
        }
        let mut bytes = *self.bytes();
        bytes[COMMON] = number;
        Self::from_parts(self.kind(), bytes)
    }
}

impl Header {
    /// The code.
    #[must_use]
    pub const fn code(&self) -> Code {
        self.code
    }

    /// Bytes of the chunk.
    #[must_use]
    pub const fn length(&self) -> usize {
        self.length as usize
    }

    /// Bytes of the header for a code.
    #[must_use]
    pub const fn len(code: Code) -> usize {
        FIXED + HASH * code.fragments()
    }

    /// Bytes of a piece of a chunk of `length` bytes.
    #[must_use]
    pub const fn piece_len(code: Code, length: usize) -> usize {
        Self::len(code) + code.fragment_len(length)
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::len(self.code));
        bytes.extend([self.code.byte(), self.piece.0, 0, 0]);
        bytes.extend(self.length.to_le_bytes());
        self.hashes.iter().for_each(|hash| bytes.extend(hash));
        bytes
    }

    /// Reads the one at the beginning of a piece. Nothing is checked but that it is one of a code that there is.
    #[must_use]
    pub fn decode(piece: &[u8]) -> Option<Self> {
        let (fixed, rest) = piece.split_at_checked(FIXED)?;
        let code = Code::from_byte(fixed[0]).filter(|_| fixed[2..4] == [0; 2])?;
        let piece = Some(Piece(fixed[NUMBER])).filter(|piece| usize::from(piece.0) < code.fragments())?;
        let length = u32::from_le_bytes([fixed[4], fixed[5], fixed[6], fixed[7]]);
        let hashes = rest.get(..HASH * code.fragments())?.as_chunks().0.to_vec();
        Some(Self { code, piece, length, hashes })
    }
}

/// The id of the chunk of which a piece has this header.
fn id_of(header: &Header) -> ChunkId {
    let mut bytes = [0; 32];
    let hashed = Header { piece: Piece(0), ..header.clone() }.encode();
    bytes[..HASHED].copy_from_slice(&blake3::hash(&hashed).as_bytes()[..HASHED]);
    (bytes[HASHED], bytes[COMMON]) = (header.code.byte(), WHOLE);
    ChunkId::from_parts(ChunkKind::Coded, bytes)
}

/// A header for the piece with this number, in place of one of the same chunk.
pub(crate) fn renumber(piece: &mut [u8], number: usize) {
    piece[NUMBER] = number as u8;
}

/// Cuts a chunk into pieces, and computes those of parity. CPU-heavy, as all in this module: drivers and clients do it, machines never do.
/// `None` for more than 4 GiB.
#[must_use]
pub fn cut(code: Code, chunk: &[u8]) -> Option<Coded> {
    let length = u32::try_from(chunk.len()).ok()?;
    let (each, before) = (code.fragment_len(chunk.len()), Header::len(code));
    let mut pieces = vec![BytesMut::zeroed(before + each); code.fragments()];
    for (fragment, piece) in pieces.iter_mut().enumerate().take(code.data()) {
        let data = &chunk[code.range(fragment, chunk.len())];
        piece[before..][..data.len()].copy_from_slice(data);
    }
    let (data, parity) = pieces.split_at_mut(code.data());
    let inputs: Vec<&[u8]> = data.iter().map(|piece| &piece[before..]).collect();
    let mut outputs: Vec<&mut [u8]> = parity.iter_mut().map(|piece| &mut piece[before..]).collect();
    code.encoding().make(&inputs, &mut outputs);
    Some(seal(code, length, pieces))
}

/// The pieces of a chunk of `length` bytes, once all fragments of a `code` are there: the headers before them are written. What is in a
/// fragment is not looked at.
#[must_use]
pub fn seal(code: Code, length: u32, mut pieces: Vec<BytesMut>) -> Coded {
    let before = Header::len(code);
    let hashes = pieces.iter().map(|piece| *blake3::hash(&piece[before..]).as_bytes()).collect();
    let header = Header { code, piece: Piece(0), length, hashes };
    let encoded = header.encode();
    for (number, piece) in pieces.iter_mut().enumerate() {
        piece[..before].copy_from_slice(&encoded);
        renumber(piece, number);
    }
    Coded { id: id_of(&header), pieces: pieces.into_iter().map(BytesMut::freeze).collect() }
}

/// Whether `parts`, one after the other, are the piece with this id. A coded chunk is no sequence of bytes itself.
pub(crate) fn matches<'a>(id: &ChunkId, parts: impl IntoIterator<Item = &'a [u8]>) -> bool {
    let (Some(code), Some(piece)) = (id.code(), id.piece()) else { return false };
    let (mut header, mut fragment, mut length) = (Vec::with_capacity(Header::len(code)), blake3::Hasher::new(), 0);
    for part in parts {
        let (of_header, rest) = part.split_at(part.len().min(Header::len(code) - header.len()));
        header.extend_from_slice(of_header);
        fragment.update(rest);
        length += rest.len();
    }
    let Some(read) = Header::decode(&header).filter(|read| read.code == code && read.piece == piece) else {
        return false;
    };
    let is_of_chunk = id_of(&read) == id.whole() && length == code.fragment_len(read.length());
    is_of_chunk && read.hashes.get(usize::from(piece.0)) == Some(fragment.finalize().as_bytes())
}

/// The pieces of a chunk with these numbers, made from as many others as it has fragments of data, all of which were
/// checked. `None` when they are not so many different ones of one chunk, or when what comes of them is not what their
/// header says: then the node that cut the chunk computed a wrong parity.
#[must_use]
pub fn make(from: &[Bytes], wanted: &[Piece]) -> Option<Vec<Bytes>> {
    let (code, length, numbers) = same_chunk(from)?;
    let (before, each) = (Header::len(code), code.fragment_len(length));
    let wanted: Vec<usize> = wanted.iter().map(|piece| usize::from(piece.0)).collect();
    let decoding = code.decoding(&numbers, &wanted)?;
    if wanted.is_empty() {
        return Some(Vec::new());
    }
    let inputs: Vec<&[u8]> = from.iter().map(|piece| &piece[before..]).collect();
    let mut made = vec![BytesMut::zeroed(before + each); wanted.len()];
    let mut outputs: Vec<&mut [u8]> = made.iter_mut().map(|piece| &mut piece[before..]).collect();
    decoding.make(&inputs, &mut outputs);
    let header = Header::decode(&from[0])?;
    for (piece, number) in made.iter_mut().zip(wanted) {
        if header.hashes.get(number) != Some(blake3::hash(&piece[before..]).as_bytes()) {
            return None;
        }
        piece[..before].copy_from_slice(&from[0][..before]);
        renumber(piece, number);
    }
    Some(made.into_iter().map(BytesMut::freeze).collect())
}

/// All pieces of a chunk, by their numbers. `None` as for [`make`].
#[must_use]
pub fn make_all(from: &[Bytes]) -> Option<Vec<Bytes>> {
    let (code, _, numbers) = same_chunk(from)?;
    let lost: Vec<Piece> = (0..code.fragments()).filter(|n| !numbers.contains(n)).map(|n| Piece(n as u8)).collect();
    let mut pieces: Vec<(usize, Bytes)> = numbers.into_iter().zip(from.iter().cloned()).collect();
    pieces.extend(lost.iter().map(|piece| usize::from(piece.0)).zip(make(from, &lost)?));
    pieces.sort_by_key(|(number, _)| *number);
    Some(pieces.into_iter().map(|(_, piece)| piece).collect())
}

/// The bytes of these fragments of data of a chunk, from them or from as many pieces as there are fragments of data, all of which were checked:
/// in order, without a copy of those that are there. `None` as for [`make`], and for fragments that are none of data.
#[must_use]
pub fn join(from: &[Bytes], wanted: Pieces) -> Option<Vec<Bytes>> {
    let (code, length, numbers) = same_chunk(from)?;
    if !wanted.and_not(Pieces::first(code.data())).is_empty() {
        return None;
    }
    let of = |number: usize| numbers.iter().position(|other| *other == number).map(|at| from[at].clone());
    let lost: Vec<Piece> = wanted.iter().filter(|piece| of(usize::from(piece.0)).is_none()).collect();
    let mut made = if lost.is_empty() { Vec::new() } else { make(from, &lost)? }.into_iter();
    let mut fragments = Vec::with_capacity(wanted.len());
    for number in wanted.iter().map(|piece| usize::from(piece.0)) {
        let piece = of(number).or_else(|| made.next())?;
        let before = Header::len(code);
        fragments.push(piece.slice(before..before + code.range(number, length).len()));
    }
    Some(fragments)
}

/// The same of all fragments of data.
#[must_use]
pub fn join_all(from: &[Bytes]) -> Option<Vec<Bytes>> {
    let code = Header::decode(from.first()?)?.code;
    join(from, Pieces::first(code.data()))
}

/// The fragments of data in which the bytes of these ranges of a coded chunk of `length` bytes lie, and which of its bytes each of them has; `None`
/// where they are all fragments, or none, and for another chunk.
#[must_use]
pub fn fragments_of(id: &ChunkId, length: usize, ranges: &[Range<usize>]) -> Option<(Pieces, Vec<Range<usize>>)> {
    let code = id.code()?;
    let bytes = |piece: &Piece| code.range(usize::from(piece.0), length);
    let has = |piece: &Piece| {
        let own = bytes(piece);
        ranges.iter().any(|range| own.start < range.end && range.start < own.end)
    };
    let all = Pieces::first(code.data());
    let wanted: Pieces = all.iter().filter(has).collect();
    let is_part = !wanted.is_empty() && wanted != all;
    is_part.then(|| (wanted, wanted.iter().map(|piece| bytes(&piece)).collect()))
}

/// The code and the length of the chunk of which these are pieces, and their numbers.
fn same_chunk(pieces: &[Bytes]) -> Option<(Code, usize, Vec<usize>)> {
    let first = Header::decode(pieces.first()?)?;
    let (code, length) = (first.code, first.length());
    let number = |piece: &Bytes| {
        let read = Header::decode(piece)?;
        let number = usize::from(read.piece.0);
        let is_same = piece.len() == Header::piece_len(code, length) && Header { piece: first.piece, ..read } == first;
        is_same.then_some(number)
    };
    Some((code, length, pieces.iter().map(number).collect::<Option<_>>()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn chunk(length: usize, seed: u64) -> Vec<u8> {
        (0..length as u64).map(|n| crate::rng::mix(seed ^ n) as u8).collect()
    }

    fn codes() -> impl Iterator<Item = Code> {
        [(2, 1), (4, 2), (8, 3), (10, 6)].into_iter().filter_map(|(data, parity)| Code::new(data, parity))
    }

    #[test]
    fn each_piece_is_checked_by_itself_against_the_id_of_the_chunk() {
        for code in codes() {
            let bytes = chunk(10_000, 7);
            let Coded { id, pieces } = cut(code, &bytes).expect("it is short");
            assert_eq!((id.code(), id.piece(), id.whole(), pieces.len()), (Some(code), None, id, code.fragments()));
            assert_eq!(ChunkId::decode(&id.encode()), Some(id));
            for (number, piece) in (0..).map(Piece).zip(&pieces) {
                let own = id.of_piece(number);
                assert_eq!((own.piece(), own.whole(), own.placement_key()), (Some(number), id, id.placement_key()));
                assert!(own.matches([&piece[..]]) && own.matches(piece.chunks(7)), "in one part or many");
                let other = Piece((number.0 + 1) % code.fragments() as u8);
                assert!(!id.of_piece(other).matches([&piece[..]]) && !id.matches([&piece[..]]), "of another number");
                assert!(!own.matches([&piece[..piece.len() - 1]]) && !own.matches([&piece[..], &[0]]));
                for at in [0, 1, 5, 9, piece.len() - 1] {
                    let mut bad = piece.to_vec();
                    bad[at] ^= 1;
                    assert!(!own.matches([&bad[..]]), "{code}: byte {at} of piece {number:?}");
                }
            }
            assert!(id.encode()[..1 + COMMON] == id.of_piece(Piece(0)).encode()[..1 + COMMON], "one prefix");
        }
        let code = Code::new(4, 2).expect("a code");
        let twice = [cut(code, &chunk(5_000, 1)), cut(code, &chunk(5_000, 1))].map(|cut| cut.expect("short").id);
        let other = cut(code, &chunk(5_001, 1)).expect("short").id;
        assert!(twice[0] == twice[1] && twice[0] != other);
    }

    #[test]
    fn a_wrong_parity_gives_no_wrong_bytes() {
        let code = Code::new(4, 2).expect("a code");
        let mut pieces: Vec<BytesMut> =
            cut(code, &chunk(9_000, 3)).expect("short").pieces.iter().map(|p| p[..].into()).collect();
        pieces[5][Header::len(code) + 7] ^= 1;
        let Coded { id, pieces } = seal(code, 9_000, pieces);
        assert!((0..).map(Piece).zip(&pieces).all(|(number, piece)| id.of_piece(number).matches([&piece[..]])));
        assert!(join_all(&pieces[..4]).is_some() && join_all(&pieces[1..5]).is_some(), "without it nothing is wrong");
        assert!(join_all(&pieces[2..]).is_none() && make_all(&pieces[..4]).is_none());
    }

    #[test]
    fn what_is_no_piece_is_none() {
        for byte in [0, 0x10, 0x21, 0x42, 0xff] {
            let mut bytes = [7; 32];
            (bytes[HASHED], bytes[COMMON]) = (byte, 3);
            let id = ChunkId::from_parts(ChunkKind::Coded, bytes);
            assert_eq!(id.piece().is_some(), byte == 0x42, "{byte:x}");
            assert!(!id.matches([&[byte; 500][..]]) && !id.matches([]));
        }
        let payload = ChunkId::of_payload(b"x");
        assert_eq!((payload.code(), payload.piece(), payload.whole()), (None, None, payload));
        assert_eq!(payload.prefix(), payload.encode());
        assert!(Header::decode(&[0x42; 7]).is_none() && Header::decode(&[0x42, 0, 0, 0, 1, 0, 0, 0]).is_none());
        assert!(make(&[], &[]).is_none() && join_all(&[]).is_none());
    }

    proptest! {
        #[test]
        fn any_pieces_enough_give_the_chunk_and_the_others(seed: u64, length in 0_usize..20_000, nth in 0_usize..4) {
            let code = codes().nth(nth).expect("a code");
            let bytes = chunk(length, seed);
            let Coded { id, pieces } = cut(code, &bytes).expect("it is short");
            let mut order: Vec<Piece> = (0..code.fragments() as u8).map(Piece).collect();
            order.sort_by_key(|piece| crate::rng::mix(seed ^ u64::from(piece.0)));
            let (from, lost) = order.split_at(code.data());
            let from: Vec<Bytes> = from.iter().map(|n| pieces[usize::from(n.0)].clone()).collect();
            let joined = join_all(&from).expect("enough");
            prop_assert!(joined.concat() == bytes);
            for (piece, made) in lost.iter().zip(make(&from, lost).expect("enough")) {
                prop_assert!(id.of_piece(*piece).matches([&made[..]]));
                prop_assert!(id.of_piece(*piece).encode().starts_with(&id.prefix()));
            }
            prop_assert!(make_all(&from).is_some_and(|all| all == pieces));
            let mut ends = [seed as usize % (length + 1), (seed >> 32) as usize % (length + 1)];
            ends.sort_unstable();
            let ranges = [0..1, ends[0]..ends[1]];
            for ranges in [&ranges[..], &ranges[1..]] {
                let Some((some, has)) = fragments_of(&id, length, ranges) else { continue };
                let alone: Vec<Bytes> = some.iter().map(|n| pieces[usize::from(n.0)].clone()).collect();
                for from in [&from, &alone] {
                    let part = join(from, some).expect("enough").concat();
                    prop_assert!(part == has.iter().flat_map(|own| &bytes[own.clone()]).copied().collect::<Vec<u8>>());
                    let has = |at: usize| has.iter().any(|own| own.contains(&at));
                    prop_assert!(ranges.iter().all(|range| range.clone().all(has)));
                }
                prop_assert!(join_all(&alone).is_none() && join(&alone, Pieces::first(code.data() + 1)).is_none());
            }
            prop_assert!(join_all(&from[1..]).is_none(), "one is missing");
            let twice = [&from[1..], &from[1..2]].concat();
            prop_assert!(join_all(&twice).is_none(), "one is there twice");
        }
    }
}
