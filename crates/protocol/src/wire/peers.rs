//! Which session of each sender counts, which of its sequence numbers were seen, and which sessions are asked for a
//! proof.

use std::collections::BTreeMap;

use super::drop_reason::DropReason;
use crate::limits;
use crate::rng::Rng;
use crate::time::{Instant, Span};

/// Sequence numbers that may overtake each other.
const WINDOW: u64 = 1_024;
/// The proof of a session is asked for at most this often: one that was asked for in vain is asked for again after it.
pub const ASK_AGAIN: Span = Span::from_millis(10);
/// How long after the first question its answer counts; then another nonce is asked for.
const PATIENCE: Span = Span::from_secs(2);
/// How long a session that is asked has its place to itself: long enough to be asked twice. It is not counted from the
/// last question, as an attacker that plays back a session that is over could hold its place for as long as it likes.
const TURN: Span = Span::from_millis(20);

/// A defect that is planted to prove that the simulator's checkers bite.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bug {
    /// Sequence numbers are judged without their session: the highest counts, over restarts too.
    TrustSequences,
    /// A session counts from its first datagram on, proven or not.
    BelieveSessions,
    /// What was sealed before the proof of a session counts, too, if this life has not received it.
    BelieveBefore,
}

/// What is known of the sessions of other nodes.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    proven: BTreeMap<u32, Proven>,
    /// By sender and session.
    unproven: BTreeMap<(u32, u64), Unproven>,
    nonces: Rng,
    /// Counts what was received, to find the node that was silent for longest.
    clock: u64,
    pub(super) bug: Option<Bug>,
}

/// The session of a sender that counts.
#[derive(Clone, Debug)]
struct Proven {
    session: u64,
    seen: Seen,
    /// What was asked.
    nonce: u64,
    /// What was dropped before the proof, and is good once if it is sent again.
    missed: Vec<u64>,
    used: u64,
}

/// A session of a sender that may be its own, or one that an attacker plays back.
#[derive(Clone, Debug)]
struct Unproven {
    nonce: u64,
    first: Instant,
    asked: Instant,
    /// Sequence numbers that came and were dropped.
    missed: Vec<u64>,
    /// How many of them the last question named.
    listed: usize,
}

/// What to ask the sender of an unproven session.
pub(super) struct Question {
    pub(super) nonce: u64,
    /// What it should send again, if no life of this node can have received it.
    pub(super) missed: Vec<u64>,
}

impl Peers {
    pub(super) const fn new(nonces: Rng) -> Self {
        Self { proven: BTreeMap::new(), unproven: BTreeMap::new(), nonces, clock: 0, bug: None }
    }

    /// Takes a message: `None` if it is good, else what to ask its sender before anything of it is.
    pub(super) fn judge(
        &mut self,
        now: Instant,
        from: u32,
        session: u64,
        sequence: u64,
    ) -> Result<Option<Question>, DropReason> {
        self.clock += 1;
        if let Some(bug) = self.bug {
            self.misjudge(from, session, bug);
        }
        if let Some(known) = self.proven.get_mut(&from)
            && (known.session == session || self.bug == Some(Bug::TrustSequences))
        {
            known.used = self.clock;
            return known.seen.take(sequence).then_some(None).ok_or(DropReason::Replayed);
        }
        let question = self.ask(now, from, session, Some(sequence));
        question.map(Some).ok_or(DropReason::Unproven)
    }

    /// A challenge came in this session: one in return, if the session is not known.
    pub(super) fn ask_back(
        &mut self,
        now: Instant,
        from: u32,
        session: u64,
        sequence: u64,
    ) -> Result<Option<Question>, DropReason> {
        match self.proven.get_mut(&from).filter(|known| known.session == session) {
            Some(known) => known.seen.take(sequence).then_some(None).ok_or(DropReason::Replayed),
            None => Ok(self.ask(now, from, session, None)),
        }
    }

    /// What to ask of an unproven session that missed a message, if it is time and not too many wait for their proof.
    fn ask(&mut self, now: Instant, from: u32, session: u64, missed: Option<u64>) -> Option<Question> {
        let key = (from, session);
        if !self.unproven.contains_key(&key) {
            let of_sender = self.unproven.range((from, 0)..=(from, u64::MAX));
            let full = of_sender.clone().count() >= limits::UNPROVEN_OF_A_SENDER;
            let oldest = if full {
                of_sender.min_by_key(|(_, waits)| waits.first)
            } else if self.unproven.len() >= limits::UNPROVEN {
                self.unproven.iter().min_by_key(|(_, waits)| waits.first)
            } else {
                None
            };
            let oldest = oldest.map(|(key, waits)| (*key, waits.first));
            // A node that was asked just now must have the time to answer.
            if oldest.is_some_and(|(_, first)| now.since(first) < TURN) {
                return None;
            }
            oldest.map(|(key, _)| self.unproven.remove(&key));
        }
        let nonces = &mut self.nonces;
        let mut is_new = false;
        let waits = self.unproven.entry(key).or_insert_with(|| {
            is_new = true;
            Unproven { nonce: nonces.next_u64(), first: now, asked: now, missed: Vec::new(), listed: 0 }
        });
        if now.since(waits.first) > PATIENCE {
            *waits = Unproven { nonce: nonces.next_u64(), first: now, missed: Vec::new(), listed: 0, ..*waits };
        }
        let missed = missed.filter(|n| waits.missed.len() < limits::MISSED && !waits.missed.contains(n));
        waits.missed.extend(missed);
        let asks = is_new || now.since(waits.asked) >= ASK_AGAIN;
        if asks {
            (waits.asked, waits.listed) = (now, waits.missed.len());
        }
        asks.then(|| Question { nonce: waits.nonce, missed: waits.missed.clone() })
    }

    /// Takes a proof, which was sealed as number `sequence` of its session: what to ask for yet, of what was missed since the
    /// question was asked. An error for one that was not asked for.
    ///
    /// The nonce was drawn here, in this life: so whatever has a higher number was sealed in this life, and what has not
    /// may have been received by an earlier one.
    pub(super) fn prove(
        &mut self,
        now: Instant,
        from: u32,
        session: u64,
        sequence: u64,
        nonce: u64,
    ) -> Result<Option<Question>, DropReason> {
        let key = (from, session);
        let waits = self.unproven.get(&key);
        if waits.is_none_or(|waits| waits.nonce != nonce || now.since(waits.first) > PATIENCE) {
            return Err(DropReason::Replayed);
        }
        let (mut missed, listed) =
            self.unproven.remove(&key).map_or_else(Default::default, |waits| (waits.missed, waits.listed));
        let unlisted: Vec<u64> = missed.iter().skip(listed).copied().filter(|n| *n <= sequence).collect();
        // What was sealed behind the proof and overtook it is good as it is.
        missed.retain(|n| *n <= sequence);
        // What else claims to be this sender is older, or will be asked anew.
        let others: Vec<_> = self.unproven.range((from, 0)..=(from, u64::MAX)).map(|(key, _)| *key).collect();
        others.into_iter().for_each(|key| drop(self.unproven.remove(&key)));
        let seen = if self.bug == Some(Bug::BelieveBefore) { Seen::none() } else { Seen::up_to(sequence) };
        self.know(from, Proven { session, seen, nonce, missed, used: 0 });
        Ok((!unlisted.is_empty()).then_some(Question { nonce, missed: unlisted }))
    }

    /// Takes message number `missed`, which its sender sends again, asked with this nonce.
    pub(super) fn again(&mut self, from: u32, session: u64, nonce: u64, missed: u64) -> Result<(), DropReason> {
        let known = self.proven.get_mut(&from).filter(|known| known.session == session).ok_or(DropReason::Unproven)?;
        let asked = known.missed.iter().position(|n| *n == missed).filter(|_| known.nonce == nonce);
        known.missed.swap_remove(asked.ok_or(DropReason::Replayed)?);
        Ok(())
    }

    /// From now on this session of `from` counts, and no earlier one.
    fn know(&mut self, from: u32, known: Proven) {
        self.clock += 1;
        if !self.proven.contains_key(&from) && self.proven.len() >= limits::SENDERS {
            let oldest = self.proven.iter().min_by_key(|(_, known)| known.used).map(|(id, _)| *id);
            oldest.map(|id| self.proven.remove(&id));
        }
        self.proven.insert(from, Proven { used: self.clock, ..known });
    }

    fn misjudge(&mut self, from: u32, session: u64, bug: Bug) {
        let known = self.proven.get(&from).map(|known| known.session);
        let believes = match bug {
            Bug::TrustSequences => known.is_none(),
            Bug::BelieveSessions => known != Some(session),
            Bug::BelieveBefore => false,
        };
        if believes {
            self.know(from, Proven { session, seen: Seen::none(), nonce: 0, missed: Vec::new(), used: 0 });
        }
    }
}

/// The sequence numbers seen of a session.
#[derive(Clone, Debug)]
struct Seen {
    highest: u64,
    bits: [u64; (WINDOW / 64) as usize],
}

const fn bit_of(sequence: u64) -> (usize, u64) {
    (((sequence % WINDOW) / 64) as usize, 1 << (sequence % 64))
}

impl Seen {
    const fn none() -> Self {
        Self { highest: 0, bits: [0; (WINDOW / 64) as usize] }
    }

    /// All up to `highest`, or they are too old to tell.
    const fn up_to(highest: u64) -> Self {
        Self { highest, bits: [u64::MAX; (WINDOW / 64) as usize] }
    }

    fn take(&mut self, sequence: u64) -> bool {
        if sequence > self.highest {
            if sequence - self.highest >= WINDOW {
                self.bits = [0; (WINDOW / 64) as usize];
            } else {
                for n in self.highest + 1..=sequence {
                    let (word, bit) = bit_of(n);
                    self.bits[word] &= !bit;
                }
            }
            self.highest = sequence;
        } else if self.highest - sequence >= WINDOW {
            return false;
        }
        let (word, bit) = bit_of(sequence);
        let fresh = self.bits[word] & bit == 0;
        self.bits[word] |= bit;
        fresh
    }
}
