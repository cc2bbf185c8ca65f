//! The chunks of the small world.

use std::sync::LazyLock;

use bytes::{Bytes, BytesMut};
use erasure::Code;
use protocol::id::coded::{Coded, Header, cut, seal};
use protocol::id::{ChunkId, ChunkKind};
use protocol::redundancy::Piece;

// Made once: an input names them often.
static CODED: LazyLock<[Coded; 3]> = LazyLock::new(|| [of_code("2+1", 3_000), of_code("4+2", 40_000), badly_coded()]);
static CHUNKS: LazyLock<Vec<(ChunkId, Bytes)>> = LazyLock::new(all);

/// Chunk `n`, and the bytes of a copy: a few, of sizes from one byte to several datagrams. A coded chunk is one of them once with each
/// of its pieces, as which it is put, and each piece is by its own id.
#[must_use]
pub fn chunk(n: u8) -> (ChunkId, Bytes) {
    CHUNKS[usize::from(n) % CHUNKS.len()].clone()
}

/// The bytes of a copy or piece: of a coded chunk its first one, and of what is none of the chunks some.
#[must_use]
pub fn bytes_of(id: Option<ChunkId>) -> Bytes {
    let known = CHUNKS.iter().find(|(known, _)| id == Some(*known));
    known.map_or(Bytes::from_static(b"something"), |(_, bytes)| bytes.clone())
}

/// The coded chunk that this is, or of which it is a piece, with all its pieces.
#[must_use]
pub fn coded(id: &ChunkId) -> Option<&'static Coded> {
    CODED.iter().find(|coded| coded.id == id.whole())
}

fn all() -> Vec<(ChunkId, Bytes)> {
    let payload = (1..).zip([1, 300, 4_000, 9_000, 20_000, 40_000]).map(|(fill, size)| Bytes::from(vec![fill; size]));
    let mut all: Vec<(ChunkId, Bytes)> = payload.map(|bytes| (ChunkId::of_payload(&bytes), bytes)).collect();
    // Two versions of a name, of which one may say that it is removed.
    let version = |ms| (ChunkId::of_manifest("name", ms, b"manifest"), Bytes::from_static(b"manifest"));
    all.extend([1, 2].map(version));
    for Coded { id, pieces } in CODED.iter() {
        all.extend(pieces.iter().map(|piece| (*id, piece.clone())));
        all.extend((0..).map(Piece).zip(pieces).map(|(number, piece)| (id.of_piece(number), piece.clone())));
    }
    // Of no code that there is, and a piece that the code does not have.
    let none = |byte| (ChunkId::from_parts(ChunkKind::Coded, [byte; 32]), Bytes::from(vec![byte; 1_000]));
    all.extend([0, 0x42].map(none));
    all
}

fn of_code(code: &str, length: usize) -> Coded {
    let bytes: Vec<u8> = (0..length).map(|n| (n % 251) as u8).collect();
    cut(code.parse().expect("a code"), &bytes).expect("it is short")
}

/// Of a writer who computes a wrong parity: each piece is what its id names, and they are not of one chunk.
fn badly_coded() -> Coded {
    let code = Code::new(2, 1).expect("a code");
    let mut pieces = vec![BytesMut::zeroed(Header::piece_len(code, 1_500)); code.fragments()];
    pieces[2][Header::len(code)] = 1;
    seal(code, 1_500, pieces)
}
