//! Authenticating control datagrams, and dropping replayed ones. Called by drivers, never by machines, so that a large
//! simulation may charge the time instead of computing the tag.

use std::collections::BTreeMap;

use bytes::{BufMut, Bytes, BytesMut};

use super::{CONTROL_HEADER, MAGIC, MAX_CONTROL, TAG, VERSION, is_data};
use crate::id::ClusterId;
use crate::limits;

/// Length of the cluster's key.
pub const KEY_LEN: usize = 32;
/// Sequence numbers that may overtake each other.
const WINDOW: u64 = 1_024;

/// Why a datagram was dropped before a machine saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum DropReason {
    /// Too short, too long, or not ours.
    Malformed,
    /// A version that this build does not speak.
    Version,
    /// Of another cluster.
    OtherCluster,
    /// The tag is wrong: forged, or sealed with another key.
    Forged,
    /// Seen before, or too old to tell.
    Replayed,
}

impl DropReason {
    /// Every reason.
    pub const ALL: [Self; 5] = [Self::Malformed, Self::Version, Self::OtherCluster, Self::Forged, Self::Replayed];

    /// A short name, for counters.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Version => "version",
            Self::OtherCluster => "other_cluster",
            Self::Forged => "forged",
            Self::Replayed => "replayed",
        }
    }
}

/// Numbers and signs what this node sends.
#[derive(Clone, Debug)]
pub struct Sealer {
    key: [u8; KEY_LEN],
    sequence: u64,
}

impl Sealer {
    /// A sealer whose first number follows `sequence`, which must be larger than any that this node id used before:
    /// daemons start from nanoseconds since 1970.
    #[must_use]
    pub const fn new(key: [u8; KEY_LEN], sequence: u64) -> Self {
        Self { key, sequence }
    }

    /// The datagram to send for an encoded control message.
    #[must_use]
    pub fn seal(&mut self, message: &Bytes) -> Bytes {
        self.sequence += 1;
        let mut out = BytesMut::with_capacity(message.len() + TAG);
        out.put_slice(message);
        out[CONTROL_HEADER - 8..CONTROL_HEADER].copy_from_slice(&self.sequence.to_le_bytes());
        let tag = blake3::keyed_hash(&self.key, &out);
        out.put_slice(&tag.as_bytes()[..TAG]);
        out.freeze()
    }
}

/// Checks what arrives.
#[derive(Clone, Debug)]
pub struct Opener {
    key: [u8; KEY_LEN],
    cluster: ClusterId,
    senders: BTreeMap<u32, Seen>,
    clock: u64,
}

/// The sequence numbers seen of one sender.
#[derive(Clone, Debug)]
struct Seen {
    highest: u64,
    bits: [u64; (WINDOW / 64) as usize],
    used: u64,
}

impl Opener {
    /// An opener for one cluster.
    #[must_use]
    pub const fn new(key: [u8; KEY_LEN], cluster: ClusterId) -> Self {
        Self { key, cluster, senders: BTreeMap::new(), clock: 0 }
    }

    /// The datagram as a machine takes it: data as it is, control without its tag.
    ///
    /// # Errors
    /// The reason to drop it.
    pub fn open(&mut self, datagram: Bytes) -> Result<Bytes, DropReason> {
        if datagram.len() < CONTROL_HEADER || datagram[0] != MAGIC {
            return Err(DropReason::Malformed);
        }
        if datagram[1] != VERSION {
            return Err(DropReason::Version);
        }
        if word(&datagram, 4) != self.cluster.0 {
            return Err(DropReason::OtherCluster);
        }
        if is_data(&datagram) {
            return Ok(datagram);
        }
        if !(CONTROL_HEADER + TAG..=MAX_CONTROL).contains(&datagram.len()) {
            return Err(DropReason::Malformed);
        }
        let message = datagram.slice(..datagram.len() - TAG);
        let expected = blake3::keyed_hash(&self.key, &message);
        let mut tag = [0; 32];
        tag[..TAG].copy_from_slice(&datagram[message.len()..]);
        let mut masked = *expected.as_bytes();
        masked[TAG..].fill(0);
        // `blake3::Hash` compares in constant time.
        if blake3::Hash::from_bytes(masked) != blake3::Hash::from_bytes(tag) {
            return Err(DropReason::Forged);
        }
        let sequence = u64::from(word(&message, 16)) | u64::from(word(&message, 20)) << 32;
        if self.is_fresh(word(&message, 12), sequence) { Ok(message) } else { Err(DropReason::Replayed) }
    }

    fn is_fresh(&mut self, from: u32, sequence: u64) -> bool {
        self.clock += 1;
        if !self.senders.contains_key(&from) && self.senders.len() >= limits::SENDERS {
            let oldest = self.senders.iter().min_by_key(|(_, seen)| seen.used).map(|(id, _)| *id);
            oldest.map(|id| self.senders.remove(&id));
        }
        let seen = self.senders.entry(from).or_insert(Seen { highest: 0, bits: [0; 16], used: 0 });
        seen.used = self.clock;
        seen.take(sequence)
    }
}

impl Seen {
    fn take(&mut self, sequence: u64) -> bool {
        let slot = |n: u64| (((n % WINDOW) / 64) as usize, 1_u64 << (n % 64));
        if sequence > self.highest {
            if sequence - self.highest >= WINDOW {
                self.bits = [0; 16];
            } else {
                for n in self.highest + 1..=sequence {
                    let (word, bit) = slot(n);
                    self.bits[word] &= !bit;
                }
            }
            self.highest = sequence;
        } else if self.highest - sequence >= WINDOW {
            return false;
        }
        let (word, bit) = slot(sequence);
        let fresh = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        fresh
    }
}

fn word(datagram: &[u8], at: usize) -> u32 {
    datagram.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}
