//! Encrypted chunks: each has a key of its own, and is encrypted in blocks, so that a range decrypts only those that it
//! touches. `docs/manifest.md` has the layout.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use catalog::entry::{SEAL_BLOCK, SEAL_SALT, SEAL_TAG, sealed_length};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use ring::hmac;
use ring::rand::{SecureRandom, SystemRandom};

/// Bytes of a key.
pub const KEY_BYTES: usize = 32;

/// The key of an object's chunks. Those who have it can read them; it is stored nowhere as it is.
#[derive(Clone, PartialEq, Eq)]
pub struct DataKey([u8; KEY_BYTES]);

/// Keys are never printed.
impl fmt::Debug for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DataKey")
    }
}

/// Why bytes cannot be encrypted or decrypted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SealError {
    /// There is no key for them.
    #[error("it is encrypted, and can be read only with its key")]
    NoKey,
    /// They were encrypted with another key than this, or are not as they were.
    #[error("it is encrypted with another key than this one, or was changed")]
    WrongKey,
    /// There are no random bytes for a new key.
    #[error("the system has no random bytes, without which nothing can be encrypted")]
    NoRandomness,
}

/// Random bytes.
fn randomize(bytes: &mut [u8]) -> Result<(), SealError> {
    SystemRandom::new().fill(bytes).map_err(|_| SealError::NoRandomness)
}

impl DataKey {
    /// The key with these bytes.
    #[must_use]
    pub const fn new(bytes: [u8; KEY_BYTES]) -> Self {
        Self(bytes)
    }

    /// A new key.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn random() -> Result<Self, SealError> {
        let mut bytes = [0; KEY_BYTES];
        randomize(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// Its bytes, to be wrapped.
    #[must_use]
    pub const fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }

    /// Bytes that follow from the key and `text`, and say nothing of either to who does not have the key.
    #[must_use]
    pub fn derive(&self, text: &[u8]) -> [u8; KEY_BYTES] {
        let tag = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &self.0), text);
        let mut derived = [0; KEY_BYTES];
        derived.copy_from_slice(tag.as_ref());
        derived
    }

    /// The key of the chunk with this salt: no other chunk has it, so that its blocks are told apart by their number alone.
    fn of_chunk(&self, salt: &[u8]) -> Result<LessSafeKey, SealError> {
        let key = self.derive(&[b"chunk", salt].concat());
        UnboundKey::new(&AES_256_GCM, &key).map(LessSafeKey::new).map_err(|_| SealError::WrongKey)
    }

    /// Encrypts the bytes of a chunk, of which there are some.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub fn seal(&self, plain: &[u8]) -> Result<Bytes, SealError> {
        let mut sealed = Vec::with_capacity(sealed_length(plain.len() as u64) as usize);
        sealed.resize(SEAL_SALT, 0);
        randomize(&mut sealed)?;
        let key = self.of_chunk(&sealed)?;
        for (number, block) in plain.chunks(SEAL_BLOCK).enumerate() {
            let start = sealed.len();
            sealed.extend_from_slice(block);
            let tag = key.seal_in_place_separate_tag(nonce(number), about(plain.len()), &mut sealed[start..]);
            let tag = tag.map_err(|_| SealError::WrongKey)?;
            sealed.extend_from_slice(tag.as_ref());
        }
        Ok(Bytes::from(sealed))
    }

    /// The bytes of `range` in a chunk of so many, from those that [`sealed_ranges`] names: pieces of it, with where they begin, in order.
    ///
    /// # Errors
    /// When it was not encrypted with this key, or is not as it was.
    pub fn open(&self, pieces: &[(usize, Bytes)], plain: usize, range: Range<usize>) -> Result<Bytes, SealError> {
        let mut salt = Vec::with_capacity(SEAL_SALT);
        copy(pieces, 0..SEAL_SALT, &mut salt);
        let key = self.of_chunk(&salt)?;
        let blocks = blocks_of(&range);
        let mut opened = Vec::with_capacity(blocks.len() * SEAL_BLOCK + SEAL_TAG);
        for number in blocks.clone() {
            let length = SEAL_BLOCK.min(plain.saturating_sub(number * SEAL_BLOCK));
            let start = start_of(number);
            let at = opened.len();
            copy(pieces, start..start + length + SEAL_TAG, &mut opened);
            let found = key.open_in_place(nonce(number), about(plain), &mut opened[at..]);
            let found = found.map_err(|_| SealError::WrongKey)?.len();
            opened.truncate(at + found);
        }
        let first = blocks.start * SEAL_BLOCK;
        let wanted = range.start - first..range.end - first;
        if wanted.end > opened.len() { Err(SealError::WrongKey) } else { Ok(Bytes::from(opened).slice(wanted)) }
    }
}

/// The bytes of an encrypted chunk that it takes to decrypt `range`.
#[must_use]
pub fn sealed_ranges(range: &Range<usize>) -> [Range<usize>; 2] {
    let blocks = blocks_of(range);
    [0..SEAL_SALT, start_of(blocks.start)..start_of(blocks.end)]
}

/// The blocks that have these bytes.
const fn blocks_of(range: &Range<usize>) -> Range<usize> {
    range.start / SEAL_BLOCK..range.end.div_ceil(SEAL_BLOCK)
}

/// Where a block begins in an encrypted chunk.
const fn start_of(block: usize) -> usize {
    SEAL_SALT + block * (SEAL_BLOCK + SEAL_TAG)
}

/// The number of a block. The key is used for one chunk only.
fn nonce(number: usize) -> Nonce {
    let mut bytes = [0; 12];
    bytes[..8].copy_from_slice(&(number as u64).to_le_bytes());
    Nonce::assume_unique_for_key(bytes)
}

/// What is authenticated with each block: how many bytes the chunk has, so that none is cut off.
fn about(plain: usize) -> Aad<[u8; 8]> {
    Aad::from((plain as u64).to_le_bytes())
}

/// Copies `range`, as far as the pieces have it.
fn copy(pieces: &[(usize, Bytes)], range: Range<usize>, out: &mut Vec<u8>) {
    for (at, piece) in pieces {
        let clamp = |place: usize| place.clamp(*at, at + piece.len()) - at;
        out.extend_from_slice(&piece[clamp(range.start)..clamp(range.end)]);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 31 % 251) as u8).collect()
    }

    /// A chunk in pieces of so many bytes.
    fn pieces(sealed: &[u8], size: usize) -> Vec<(usize, Bytes)> {
        (0..).step_by(size).zip(sealed.chunks(size).map(Bytes::copy_from_slice)).collect()
    }

    #[test]
    fn every_range_of_a_chunk_is_what_was_encrypted() {
        let key = DataKey::random().unwrap();
        for length in [1, 15, SEAL_BLOCK - 1, SEAL_BLOCK, SEAL_BLOCK + 1, 3 * SEAL_BLOCK + 7] {
            let plain = content(length);
            let sealed = key.seal(&plain).unwrap();
            assert_eq!(sealed.len() as u64, sealed_length(length as u64));
            let edges = [0, 1, SEAL_BLOCK - 1, SEAL_BLOCK, SEAL_BLOCK + 1, 2 * SEAL_BLOCK, length];
            for (from, to) in edges.iter().flat_map(|from| edges.iter().map(|to| (*from, *to))) {
                if from < to && to <= length {
                    let mut pieces = pieces(&sealed, 1_000);
                    for _ in 0..2 {
                        let opened = key.open(&pieces, length, from..to).unwrap();
                        assert!(opened[..] == plain[from..to], "{from}..{to} of {length}");
                        let needed = sealed_ranges(&(from..to));
                        pieces.retain(|(at, piece)| needed.iter().any(|n| n.start < at + piece.len() && *at < n.end));
                    }
                    pieces.remove(pieces.len() / 2);
                    assert_eq!(key.open(&pieces, length, from..to), Err(SealError::WrongKey));
                }
            }
        }
    }

    #[test]
    fn no_run_of_plain_bytes_is_left_and_no_two_chunks_are_alike() {
        let key = DataKey::random().unwrap();
        let plain = vec![0; 2 * SEAL_BLOCK];
        let [one, two] = [key.seal(&plain).unwrap(), key.seal(&plain).unwrap()];
        assert_ne!(one, two);
        assert!(!one.windows(8).any(|bytes| bytes == [0; 8]));
        assert_ne!(one[SEAL_SALT..][..64], one[SEAL_SALT + SEAL_BLOCK + SEAL_TAG..][..64]);
    }

    #[test]
    fn what_was_changed_moved_cut_or_has_another_key_is_not_opened() {
        let key = DataKey::random().unwrap();
        let plain = content(2 * SEAL_BLOCK + 9);
        let sealed = key.seal(&plain).unwrap();
        let open = |key: &DataKey, sealed: &[u8], length: usize| {
            key.open(&[(0, Bytes::copy_from_slice(sealed))], length, 0..length)
        };
        assert!(open(&key, &sealed, plain.len()).is_ok());
        assert_eq!(open(&DataKey::random().unwrap(), &sealed, plain.len()), Err(SealError::WrongKey));
        for at in [0, SEAL_SALT, SEAL_SALT + SEAL_BLOCK, sealed.len() - 1] {
            let mut bad = sealed.to_vec();
            bad[at] ^= 1;
            assert_eq!(open(&key, &bad, plain.len()), Err(SealError::WrongKey), "{at}");
        }
        let block = SEAL_BLOCK + SEAL_TAG;
        let swapped = [&sealed[..SEAL_SALT], &sealed[SEAL_SALT + block..][..block], &sealed[SEAL_SALT..][..block]];
        let swapped = [&swapped.concat()[..], &sealed[SEAL_SALT + 2 * block..]].concat();
        assert_eq!(open(&key, &swapped, plain.len()), Err(SealError::WrongKey));
        assert_eq!(open(&key, &sealed[..SEAL_SALT + 2 * block], 2 * SEAL_BLOCK), Err(SealError::WrongKey));
        assert_eq!(open(&key, b"", 5), Err(SealError::WrongKey));
        // What one block has is not touched by another that is broken.
        let mut bad = sealed.to_vec();
        bad[SEAL_SALT + block] ^= 1;
        let first = key.open(&[(0, Bytes::from(bad))], plain.len(), 0..SEAL_BLOCK).unwrap();
        assert!(first[..] == plain[..SEAL_BLOCK]);
        assert!(!format!("{key:?}").contains(&key.bytes()[0].to_string()));
    }
}
