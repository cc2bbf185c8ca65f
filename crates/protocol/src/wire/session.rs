//! One life of a node on the wire: numbers and signs what it sends, checks what arrives. Called by drivers, never by
//! machines, so that a large simulation may charge the time instead of computing the tag.
//!
//! Each start of a node is a session of its own, with a random number. Nothing of a session that is not known counts before
//! its sender has sealed a fresh number (a nonce) in it: so what was recorded of a life that is over is worth nothing, and
//! no clock has to be right.

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut, Bytes, BytesMut};

use super::codec::Reader;
use super::drop_reason::DropReason;
use super::peers::{Bug, Peers, Question};
use super::{CONTROL_HEADER, MAGIC, MAX_CONTROL, TAG, VERSION, is_data};
use crate::id::{ClusterId, NodeId};
use crate::limits;
use crate::rng::Rng;
use crate::time::Instant;

/// Length of the cluster's key.
pub const KEY_LEN: usize = 32;
/// The types of control datagrams that are between sessions, and never for a machine.
const CHALLENGE: u8 = 0x40;
const PROOF: u8 = 0x41;
const REFUSAL: u8 = 0x42;
const AGAIN: u8 = 0x43;
/// Messages that a session can send again: its last.
const RECENT_MESSAGES: usize = 64;

/// What an arrived datagram is good for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// For the machine: data as it is, control without its tag.
    Good(Bytes),
    /// Between the two sessions: what to send to where the datagram came from.
    Between(Vec<Bytes>),
    /// Nothing, as its sender's session is not proven yet: it is dropped. What to send to where it came from, so that the
    /// sender proves its session and says it again.
    Unproven(Vec<Bytes>),
}

/// One life of a node.
#[derive(Clone, Debug)]
pub struct Session {
    key: [u8; KEY_LEN],
    cluster: ClusterId,
    node: NodeId,
    id: u64,
    sequence: u64,
    /// The last messages, as they were sealed.
    recent: VecDeque<Bytes>,
    /// By node.
    answered: BTreeMap<u32, Answered>,
    peers: Peers,
}

/// The first challenge of a node that was answered.
#[derive(Clone, Copy, Debug)]
struct Answered {
    nonce: u64,
    /// Messages that may still be sent again.
    left: usize,
}

/// What stands in the header of a control datagram for its receiver's session.
struct Header {
    code: u8,
    from: u32,
    session: u64,
    sequence: u64,
}

impl Session {
    /// A session of `node`, from when on no earlier process of that node receives anything. `seed`: 64 random bits that
    /// no other session has. They need not be secret: only a node with the key can ask for a proof.
    #[must_use]
    pub fn new(key: [u8; KEY_LEN], cluster: ClusterId, node: NodeId, seed: u64) -> Self {
        let rng = Rng::new(seed);
        let (id, peers) = (rng.fork(1).next_u64(), Peers::new(rng.fork(2)));
        let (recent, answered) = (VecDeque::with_capacity(RECENT_MESSAGES), BTreeMap::new());
        Self { key, cluster, node, id, sequence: 0, recent, answered, peers }
    }

    /// The same with a planted defect.
    #[must_use]
    pub const fn with_bug(mut self, bug: Option<Bug>) -> Self {
        self.peers.bug = bug;
        self
    }

    /// The datagram to send for an encoded control message.
    #[must_use]
    pub fn seal(&mut self, message: &[u8]) -> Bytes {
        let sealed = self.seal_unrepeated(message);
        if self.recent.len() >= RECENT_MESSAGES {
            self.recent.pop_front();
        }
        self.recent.push_back(sealed.slice(..message.len()));
        sealed
    }

    /// The same for what is never sent again.
    fn seal_unrepeated(&mut self, message: &[u8]) -> Bytes {
        self.sequence += 1;
        let mut out = BytesMut::with_capacity(message.len() + TAG);
        out.put_slice(message);
        out[16..24].copy_from_slice(&self.id.to_le_bytes());
        out[24..CONTROL_HEADER].copy_from_slice(&self.sequence.to_le_bytes());
        let tag = blake3::keyed_hash(&self.key, &out);
        out.put_slice(&tag.as_bytes()[..TAG]);
        out.freeze()
    }

    /// What to answer a datagram that was dropped as of another cluster, key or version ([`is_answerable`]): it says
    /// nothing, but its version, cluster and seal let the other side see why it is dropped.
    #[must_use]
    pub fn refusal(&mut self) -> Bytes {
        let refusal = self.between(REFUSAL);
        self.seal_unrepeated(&refusal)
    }

    /// What arrived `now`.
    ///
    /// # Errors
    /// The reason to drop it.
    pub fn open(&mut self, now: Instant, datagram: Bytes) -> Result<Opened, DropReason> {
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
            return Ok(Opened::Good(datagram));
        }
        if !(CONTROL_HEADER + TAG..=MAX_CONTROL).contains(&datagram.len()) {
            return Err(DropReason::Malformed);
        }
        let message = datagram.slice(..datagram.len() - TAG);
        if !self.is_authentic(&message, &datagram[message.len()..]) {
            return Err(DropReason::Forged);
        }
        let header = Header {
            code: message[2],
            from: word(&message, 12),
            session: long(&message, 16),
            sequence: long(&message, 24),
        };
        match header.code {
            CHALLENGE => self.challenged(now, &header, &message[CONTROL_HEADER..]),
            PROOF => self.proven(now, &header, &message[CONTROL_HEADER..]),
            AGAIN => self.again(&header, &message.slice(CONTROL_HEADER..)).map(Opened::Good),
            REFUSAL => Err(DropReason::Refused),
            _ => match self.peers.judge(now, header.from, header.session, header.sequence)? {
                None => Ok(Opened::Good(message)),
                Some(question) => Ok(Opened::Unproven(vec![self.challenge(&header, &question)])),
            },
        }
    }

    fn is_authentic(&self, message: &[u8], tag: &[u8]) -> bool {
        let mut masked = *blake3::keyed_hash(&self.key, message).as_bytes();
        masked[TAG..].fill(0);
        let mut expected = [0; 32];
        expected[..TAG].copy_from_slice(tag);
        // `blake3::Hash` compares in constant time.
        blake3::Hash::from_bytes(masked) == blake3::Hash::from_bytes(expected)
    }

    /// The header of a datagram between sessions.
    fn between(&self, code: u8) -> BytesMut {
        let mut out = BytesMut::with_capacity(64);
        out.put_slice(&[MAGIC, VERSION, code, 0]);
        out.put_u32_le(self.cluster.0);
        // It says nothing that depends on the cluster map.
        out.put_u32_le(0);
        out.put_u32_le(self.node.0);
        out.put_bytes(0, 16);
        out
    }

    /// Asks a node to prove its session, and to send again what was dropped because it was not proven.
    fn challenge(&mut self, of: &Header, question: &Question) -> Bytes {
        let mut out = self.between(CHALLENGE);
        out.put_u32_le(of.from);
        out.put_u64_le(of.session);
        out.put_u64_le(question.nonce);
        out.put_u8(question.missed.len() as u8);
        question.missed.iter().for_each(|sequence| out.put_u64_le(*sequence));
        self.seal_unrepeated(&out)
    }

    /// Answers a challenge. Whose session is not known yet is challenged first, so that its proof is here before what it
    /// says next.
    fn challenged(&mut self, now: Instant, header: &Header, body: &[u8]) -> Result<Opened, DropReason> {
        let mut r = Reader::new(body);
        let mut fields = || {
            let (to, session, nonce) = (r.u32()?, r.u64()?, r.u64()?);
            let missed = (0..r.count(limits::MISSED)?).map(|_| r.u64()).collect::<Option<Vec<u64>>>()?;
            r.at_end().then_some((to, session, nonce, missed))
        };
        let (to, session, nonce, missed) = fields().ok_or(DropReason::Malformed)?;
        if (NodeId(to), session) != (self.node, self.id) {
            return Err(DropReason::Replayed);
        }
        let theirs = self.peers.ask_back(now, header.from, header.session, header.sequence)?;
        let mut replies: Vec<Bytes> = theirs.map(|question| self.challenge(header, &question)).into_iter().collect();
        let mut out = self.between(PROOF);
        out.put_u32_le(header.from);
        out.put_u64_le(nonce);
        replies.push(self.seal_unrepeated(&out));
        let says = self.says_again(header.from, nonce, missed.len());
        let again = missed.into_iter().take(says).filter_map(|sequence| self.say_again(header.from, nonce, sequence));
        replies.extend(again);
        Ok(Opened::Between(replies))
    }

    /// How many of the messages that a node missed are sent to it again. None, unless no life of it can have taken anything of
    /// this session before it drew this nonce: none takes anything before its first challenge was answered.
    fn says_again(&mut self, node: u32, nonce: u64, missed: usize) -> usize {
        if self.answered.len() >= limits::ANSWERED && !self.answered.contains_key(&node) {
            return 0;
        }
        let answered = self.answered.entry(node).or_insert(Answered { nonce, left: 2 * limits::MISSED });
        if answered.nonce != nonce {
            return 0;
        }
        // An attacker that plays a challenge back gets no more for it.
        let says = missed.min(answered.left);
        answered.left -= says;
        says
    }

    fn say_again(&mut self, to: u32, nonce: u64, sequence: u64) -> Option<Bytes> {
        let message = self.recent.iter().find(|message| long(message, 24) == sequence)?.clone();
        let mut out = self.between(AGAIN);
        out.put_u32_le(to);
        out.put_u64_le(nonce);
        out.put_slice(&message);
        (out.len() + TAG <= MAX_CONTROL).then(|| self.seal_unrepeated(&out))
    }

    fn proven(&mut self, now: Instant, header: &Header, body: &[u8]) -> Result<Opened, DropReason> {
        let mut r = Reader::new(body);
        let mut fields = || Some((r.u32()?, r.u64()?, r.at_end().then_some(())?));
        let (to, nonce, ()) = fields().ok_or(DropReason::Malformed)?;
        if NodeId(to) != self.node {
            return Err(DropReason::Replayed);
        }
        let more = self.peers.prove(now, header.from, header.session, header.sequence, nonce)?;
        Ok(Opened::Between(more.map(|question| self.challenge(header, &question)).into_iter().collect()))
    }

    /// The message that another node sends again.
    fn again(&mut self, header: &Header, body: &Bytes) -> Result<Bytes, DropReason> {
        let mut r = Reader::new(body);
        let (to, nonce) = r.u32().zip(r.u64()).ok_or(DropReason::Malformed)?;
        let message = body.slice(12..);
        if message.len() < CONTROL_HEADER {
            return Err(DropReason::Malformed);
        }
        let claimed = (word(&message, 12), long(&message, 16));
        if NodeId(to) != self.node || claimed != (header.from, header.session) {
            return Err(DropReason::Replayed);
        }
        self.peers.again(header.from, header.session, nonce, long(&message, 24))?;
        Ok(message)
    }
}

/// Whether a datagram may be answered with a [refusal](Session::refusal): it is control, no refusal itself, and no shorter
/// than one.
#[must_use]
pub fn is_answerable(datagram: &[u8]) -> bool {
    let long = datagram.len() >= CONTROL_HEADER + TAG;
    long && datagram[0] == MAGIC && datagram[2] != REFUSAL && !is_data(datagram)
}

fn word(datagram: &[u8], at: usize) -> u32 {
    datagram.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn long(datagram: &[u8], at: usize) -> u64 {
    u64::from(word(datagram, at)) | u64::from(word(datagram, at + 4)) << 32
}
