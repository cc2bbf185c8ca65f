//! Which session of each sender counts, which of its sequence numbers were seen, and what waits for a proof.

use std::collections::BTreeMap;

use bytes::Bytes;

use super::session::{Bug, DropReason};
use crate::limits;
use crate::rng::Rng;
use crate::time::{Instant, Span};

/// Sequence numbers that may overtake each other.
const WINDOW: u64 = 1_024;
/// The proof of a session is asked for at most this often.
const ASK_AGAIN: Span = Span::from_millis(10);
/// How long after the first question its answer counts; then another nonce is asked for.
const PATIENCE: Span = Span::from_secs(2);
/// How long what is kept for an unproven session may still be good.
const KEPT: Span = Span::from_millis(100);

/// What is known of the sessions of other nodes.
#[derive(Clone, Debug)]
pub(super) struct Peers {
    proven: BTreeMap<u32, Proven>,
    /// By sender and session.
    unproven: BTreeMap<(u32, u64), Unproven>,
    /// Datagrams that are kept in `unproven`.
    kept: usize,
    nonces: Rng,
    /// Nothing was taken since then of a sender that is not in `proven`.
    since: Instant,
    /// Counts what was heard, to find whom nothing was heard of for longest.
    clock: u64,
    pub(super) bug: Option<Bug>,
}

/// The session of a sender that counts.
#[derive(Clone, Debug)]
struct Proven {
    session: u64,
    since: Instant,
    seen: Seen,
    used: u64,
}

/// A session of a sender that may be its own, or one that somebody plays back.
#[derive(Clone, Debug)]
struct Unproven {
    nonce: u64,
    first: Instant,
    asked: Instant,
    /// When what arrived, and its sequence number.
    kept: Vec<(Instant, u64, Bytes)>,
}

/// What a sender says of its session.
pub(super) struct Proof {
    pub(super) session: u64,
    pub(super) sequence: u64,
    pub(super) nonce: u64,
    /// Higher sequence numbers were sealed after the asking node began, or forgot the sender.
    pub(super) after: u64,
}

pub(super) enum Judged {
    Good,
    /// It waits for a proof; the nonce to ask for it with, if it is time.
    Kept(Option<u64>),
}

impl Peers {
    pub(super) const fn new(nonces: Rng, now: Instant) -> Self {
        Self { proven: BTreeMap::new(), unproven: BTreeMap::new(), kept: 0, nonces, since: now, clock: 0, bug: None }
    }

    /// Since when nothing was taken of `from` but of the session that counts now.
    pub(super) fn heard_none_since(&self, from: u32) -> Instant {
        self.proven.get(&from).map_or(self.since, |known| known.since.max(self.since))
    }

    pub(super) fn judge(
        &mut self,
        now: Instant,
        from: u32,
        session: u64,
        sequence: u64,
        message: &Bytes,
    ) -> Result<Judged, DropReason> {
        self.clock += 1;
        if let Some(bug) = self.bug {
            self.misjudge(now, from, session, bug);
        }
        if let Some(known) = self.proven.get_mut(&from)
            && (known.session == session || self.bug == Some(Bug::TrustSequences))
        {
            known.used = self.clock;
            return known.seen.take(sequence).then_some(Judged::Good).ok_or(DropReason::Replayed);
        }
        if self.kept >= limits::KEPT_IN_ALL {
            self.sweep(now);
        }
        let room = self.kept < limits::KEPT_IN_ALL;
        let (nonce, waits) = self.ask(now, from, session).ok_or(DropReason::Unproven)?;
        let keeps = room && waits.kept.len() < limits::KEPT_OF_A_SESSION;
        if keeps {
            waits.kept.push((now, sequence, message.clone()));
            self.kept += 1;
        }
        if keeps || nonce.is_some() { Ok(Judged::Kept(nonce)) } else { Err(DropReason::Unproven) }
    }

    /// A challenge came in this session: the nonce for one in return, if the session is not known.
    pub(super) fn ask_back(
        &mut self,
        now: Instant,
        from: u32,
        session: u64,
        sequence: u64,
    ) -> Result<Option<u64>, DropReason> {
        match self.proven.get_mut(&from).filter(|known| known.session == session) {
            Some(known) => known.seen.take(sequence).then_some(None).ok_or(DropReason::Replayed),
            None => Ok(self.ask(now, from, session).and_then(|(nonce, _)| nonce)),
        }
    }

    /// The unproven session, and the nonce to ask for its proof with, if it is time. `None` when too many wait for theirs.
    fn ask(&mut self, now: Instant, from: u32, session: u64) -> Option<(Option<u64>, &mut Unproven)> {
        let key = (from, session);
        if !self.unproven.contains_key(&key) {
            let of_sender = self.unproven.range((from, 0)..=(from, u64::MAX));
            let full = of_sender.clone().count() >= limits::UNPROVEN_OF_A_SENDER;
            let oldest = if full {
                of_sender.min_by_key(|(_, waits)| waits.asked)
            } else if self.unproven.len() >= limits::UNPROVEN {
                self.unproven.iter().min_by_key(|(_, waits)| waits.asked)
            } else {
                None
            };
            let oldest = oldest.map(|(key, waits)| (*key, waits.asked));
            // Whoever was asked just now must have the time to answer.
            if oldest.is_some_and(|(_, asked)| now.since(asked) < KEPT) {
                return None;
            }
            oldest.map(|(key, _)| self.forget(key));
        }
        let nonces = &mut self.nonces;
        let mut is_new = false;
        let waits = self.unproven.entry(key).or_insert_with(|| {
            is_new = true;
            Unproven { nonce: nonces.next_u64(), first: now, asked: now, kept: Vec::new() }
        });
        if now.since(waits.first) > PATIENCE {
            (waits.nonce, waits.first) = (nonces.next_u64(), now);
        }
        let asks = is_new || now.since(waits.asked) >= ASK_AGAIN;
        if asks {
            waits.asked = now;
            let before = waits.kept.len();
            waits.kept.retain(|(at, ..)| now.since(*at) <= KEPT);
            self.kept -= before - waits.kept.len();
        }
        Some((asks.then_some(waits.nonce), waits))
    }

    /// Lets go what was kept too long to be good.
    fn sweep(&mut self, now: Instant) {
        for waits in self.unproven.values_mut() {
            waits.kept.retain(|(at, ..)| now.since(*at) <= KEPT);
        }
        self.kept = self.unproven.values().map(|waits| waits.kept.len()).sum();
    }

    fn forget(&mut self, key: (u32, u64)) -> Option<Unproven> {
        let waits = self.unproven.remove(&key)?;
        self.kept -= waits.kept.len();
        Some(waits)
    }

    /// Takes a proof: what was kept and is good. `None` for a proof that was not asked for.
    pub(super) fn prove(&mut self, now: Instant, from: u32, proof: &Proof) -> Option<Vec<Bytes>> {
        let key = (from, proof.session);
        let asked = self.unproven.get(&key)?;
        if asked.nonce != proof.nonce || now.since(asked.first) > PATIENCE {
            return None;
        }
        let waits = self.forget(key)?;
        // What else claims to be this sender is older, or will be asked anew.
        let others: Vec<_> = self.unproven.range((from, 0)..=(from, u64::MAX)).map(|(key, _)| *key).collect();
        others.into_iter().for_each(|key| drop(self.forget(key)));
        let seen = self.know(now, from, proof.session, Seen::from(proof.after, proof.sequence));
        let good = waits.kept.into_iter().filter(|(at, sequence, _)| now.since(*at) <= KEPT && seen.take(*sequence));
        Some(good.map(|(_, _, message)| message).collect())
    }

    /// From now on this session of `from` counts, and no earlier one.
    fn know(&mut self, now: Instant, from: u32, session: u64, seen: Seen) -> &mut Seen {
        self.clock += 1;
        if !self.proven.contains_key(&from) && self.proven.len() >= limits::SENDERS {
            let oldest = self.proven.iter().min_by_key(|(_, known)| known.used).map(|(id, _)| *id);
            oldest.map(|id| self.proven.remove(&id));
            self.since = now;
        }
        let known = Proven { session, since: now, seen, used: self.clock };
        let entry = self.proven.entry(from).insert_entry(known);
        &mut entry.into_mut().seen
    }

    fn misjudge(&mut self, now: Instant, from: u32, session: u64, bug: Bug) {
        let known = self.proven.get(&from).map(|known| known.session);
        let believes = match bug {
            Bug::TrustSequences => known.is_none(),
            Bug::BelieveSessions => known != Some(session),
        };
        if believes {
            self.know(now, from, session, Seen::from(0, 0));
        }
    }
}

/// The sequence numbers seen of a session.
#[derive(Clone, Debug)]
struct Seen {
    highest: u64,
    bits: [u64; (WINDOW / 64) as usize],
}

const fn slot(sequence: u64) -> (usize, u64) {
    (((sequence % WINDOW) / 64) as usize, 1 << (sequence % 64))
}

impl Seen {
    /// All up to `after` were seen or are too old to tell, and `highest`.
    fn from(after: u64, highest: u64) -> Self {
        let mut seen = Self { highest, bits: [u64::MAX; 16] };
        for n in after.saturating_add(1).max(highest.saturating_sub(WINDOW - 1))..highest {
            let (word, bit) = slot(n);
            seen.bits[word] &= !bit;
        }
        seen
    }

    fn take(&mut self, sequence: u64) -> bool {
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
