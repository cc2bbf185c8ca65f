//! Encrypts payload that goes in datagrams: AES-256-GCM, with a key for each start of each node.
//!
//! Messages are sealed and not encrypted: they say which chunks there are and how large, not what is in them.

use std::collections::BTreeMap;
use std::fmt;

use bytes::{BufMut, Bytes, BytesMut};
use protocol::wire::{DATA_HEADER, KEY_LEN};
use ring::aead::{AES_256_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};

/// Bytes that an encrypted datagram is longer by: the sender's session, the datagram's number, and the tag.
pub(crate) const OVERHEAD: usize = SESSION + NUMBER + TAG;
const SESSION: usize = 8;
const NUMBER: usize = 8;
const TAG: usize = 16;
/// What is authenticated with the payload.
const HEAD: usize = DATA_HEADER + SESSION + NUMBER;
/// Where the header says that what follows is encrypted, and what it says then.
const FLAGS: usize = 3;
const ENCRYPTED: u8 = 1;
/// What keys are derived for.
const PURPOSE: &str = "reservoir 2026-11 payload in datagrams of a session";
/// Sessions whose keys are kept; when there are more, they are derived again.
const SESSIONS: usize = 1_024;

/// The keys of a node, and of those that it hears.
pub(crate) struct PayloadCipher {
    key: [u8; KEY_LEN],
    session: u64,
    own: LessSafeKey,
    /// How many datagrams were encrypted. Each has a number of its own: one that were used twice would give both away.
    sent: u64,
    others: BTreeMap<u64, LessSafeKey>,
}

impl fmt::Debug for PayloadCipher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PayloadCipher")
            .field("session", &self.session)
            .field("sent", &self.sent)
            .finish_non_exhaustive()
    }
}

impl PayloadCipher {
    /// That of a node which begins now: `session` is random.
    pub(crate) fn new(key: [u8; KEY_LEN], session: u64) -> Option<Self> {
        let own = key_of(&key, session)?;
        Some(Self { key, session, own, sent: 0, others: BTreeMap::new() })
    }

    /// A datagram as it goes out, behind what is in `out` already.
    pub(crate) fn seal(&mut self, header: &[u8; DATA_HEADER], payload: &[u8], out: &mut BytesMut) {
        let begin = out.len();
        out.reserve(HEAD + payload.len() + TAG);
        out.put_slice(header);
        out[begin + FLAGS] = ENCRYPTED;
        out.put_u64_le(self.session);
        out.put_u64_le(self.sent);
        out.put_slice(payload);
        let (head, payload) = out[begin..].split_at_mut(HEAD);
        // It fails for payload of 64 GiB.
        let tag = self.own.seal_in_place_separate_tag(nonce(self.sent), Aad::from(&*head), payload);
        self.sent += 1;
        match tag {
            Ok(tag) => out.put_slice(tag.as_ref()),
            Err(_) => out.truncate(begin),
        }
    }

    /// A datagram as it was before it was encrypted; `None` when it was not, or not by a node of this cluster.
    pub(crate) fn open(&mut self, datagram: &Bytes) -> Option<Bytes> {
        let (head, _) = datagram.split_at_checked(HEAD)?;
        let (session, number) = head[DATA_HEADER..].split_at(SESSION);
        let session = u64::from_le_bytes(session.try_into().ok()?);
        let number = u64::from_le_bytes(number.try_into().ok()?);
        if !is_encrypted(datagram) {
            return None;
        }
        let derived = if self.others.contains_key(&session) { None } else { Some(key_of(&self.key, session)?) };
        let mut opened = BytesMut::with_capacity(datagram.len() - SESSION - NUMBER);
        opened.put_slice(&head[..DATA_HEADER]);
        opened.put_slice(&datagram[HEAD..]);
        let key = self.others.get(&session).or(derived.as_ref())?;
        let length = key.open_in_place(nonce(number), Aad::from(head), &mut opened[DATA_HEADER..]).ok()?.len();
        opened.truncate(DATA_HEADER + length);
        opened[FLAGS] = 0;
        // Only of those that have the key: nobody else can fill this.
        if let Some(derived) = derived {
            if self.others.len() >= SESSIONS {
                self.others.clear();
            }
            self.others.insert(session, derived);
        }
        Some(opened.freeze())
    }
}

/// Whether a datagram of payload says that it is encrypted.
pub(crate) fn is_encrypted(datagram: &[u8]) -> bool {
    datagram.get(FLAGS).is_some_and(|flags| flags & ENCRYPTED != 0)
}

fn key_of(key: &[u8; KEY_LEN], session: u64) -> Option<LessSafeKey> {
    let mut material = key.to_vec();
    material.extend_from_slice(&session.to_le_bytes());
    UnboundKey::new(&AES_256_GCM, &blake3::derive_key(PURPOSE, &material)).ok().map(LessSafeKey::new)
}

fn nonce(number: u64) -> Nonce {
    let mut nonce = [0; NONCE_LEN];
    nonce[..NUMBER].copy_from_slice(&number.to_le_bytes());
    Nonce::assume_unique_for_key(nonce)
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]
mod tests {
    use protocol::id::{ClusterId, NodeId, TxnId};
    use protocol::wire::DataHeader;

    use super::*;

    fn header(offset: u32) -> [u8; DATA_HEADER] {
        DataHeader { cluster: ClusterId(1), from: NodeId(2), txn: TxnId(3), offset, size: 1 << 20 }.encode()
    }

    fn sealed(cipher: &mut PayloadCipher, offset: u32, payload: &[u8]) -> Bytes {
        let mut out = BytesMut::new();
        cipher.seal(&header(offset), payload, &mut out);
        assert_eq!(out.len(), DATA_HEADER + payload.len() + OVERHEAD);
        out.freeze()
    }

    #[test]
    fn payload_is_read_by_the_cluster_alone_and_as_it_was_sent() {
        let [mut one, mut two, mut other] =
            [(7, 1), (7, 2), (8, 3)].map(|(key, session)| PayloadCipher::new([key; KEY_LEN], session).unwrap());
        let payload = b"what nobody on the way is to read".repeat(9);
        let first = sealed(&mut one, 0, &payload);
        assert!(first.windows(9).all(|bytes| !payload.windows(9).any(|of_it| of_it == bytes)));
        let opened = two.open(&first).unwrap();
        assert_eq!(DataHeader::decode(&opened).unwrap().1, payload);
        assert_eq!(opened[..DATA_HEADER], header(0));
        assert_eq!(other.open(&first), None, "of another cluster");
        // The same payload is not the same datagram.
        let again = sealed(&mut one, 0, &payload);
        assert!(again != first && two.open(&again) == two.open(&first));
        // Nothing of it can be changed, cut or exchanged.
        for at in 0..first.len() {
            let mut changed = first.to_vec();
            changed[at] ^= 0x10;
            assert_eq!(two.open(&changed.into()), None, "byte {at}");
        }
        for length in 0..first.len() {
            assert_eq!(two.open(&first.slice(..length)), None, "{length} bytes");
        }
        let plain: Bytes = [&header(0)[..], &payload].concat().into();
        assert_eq!(two.open(&plain), None, "not encrypted");
        assert_eq!(other.others.len(), 0, "a stranger is remembered");
    }
}
