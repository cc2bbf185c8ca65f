//! Whether the network carries multicast, as far as this initiator can tell: a switch may stop carrying it, and begin
//! again.

use super::{Context, Destination, Event, GroupId, Instant, Message, NodeId, Span, TxnId};
use crate::machine::Deadline;

/// Consecutive multicast questions that were missed by targets which answer by unicast, before everything goes by unicast.
const UNHEARD: u8 = 3;
/// While all are asked by unicast, a ping by multicast looks so often whether that has to be.
const CHECK_INTERVAL: Span = Span::from_secs(2);
/// Groups that are pinged at a look: one may have no live members.
const CHECKED_GROUPS: usize = 4;

/// What is known of it.
#[derive(Debug)]
pub(in crate::initiator) struct Multicast {
    works: bool,
    /// Questions that did not arrive, and when the last of them was over.
    losses: (u8, Instant),
    check_at: Instant,
    checked: Option<TxnId>,
}

impl Multicast {
    /// `works` says what the driver found before.
    pub(in crate::initiator) const fn new(works: bool) -> Self {
        Self { works, losses: (0, Instant::ZERO), check_at: Instant::ZERO, checked: None }
    }
}

impl Context {
    /// Whether several are told at once.
    pub(in crate::initiator) fn multicast(&self) -> bool {
        self.may_multicast() && self.multicast.works
    }

    /// Whether it is wished for, and sets of targets have addresses by the map in use.
    fn may_multicast(&self) -> bool {
        self.config.multicast && self.map.has_addresses()
    }

    /// A target missed a multicast question that was sent at `since`, but answers by unicast. Overlapping misses count once.
    fn note_loss(&mut self, since: Instant) {
        let (times, over) = self.multicast.losses;
        if since < over || !self.multicast() {
            return;
        }
        self.multicast.losses = (times + 1, self.now);
        if times + 1 >= UNHEARD {
            self.multicast = Multicast { check_at: self.now, ..Multicast::new(false) };
            self.event(Event::Multicast { works: false });
        }
    }

    /// Looks whether multicast works again, when it is time.
    pub(in crate::initiator) fn check_multicast(&mut self) {
        if self.next_multicast_check().is_none_or(|check| check.at > self.now) {
            return;
        }
        let txn = TxnId(self.txns.next_u64());
        self.multicast.checked = Some(txn);
        self.multicast.check_at = self.now + CHECK_INTERVAL;
        // Others each time: the network may carry what some groups are sent, and not what others are.
        let first = self.rng.below(u64::from(self.map.groups())) as usize;
        let groups: Vec<GroupId> = self.map.group_ids().collect();
        for group in groups.iter().cycle().skip(first).take(groups.len().min(CHECKED_GROUPS)) {
            let set = self.map.group_set(*group);
            self.send(Destination::Members(set), &Message::Ping { txn });
        }
    }

    pub(in crate::initiator) fn next_multicast_check(&self) -> Option<Deadline> {
        let is_due = self.may_multicast() && !self.multicast.works;
        is_due.then_some(Deadline { at: self.multicast.check_at, why: "multicast" })
    }

    /// A target answered a ping: whether it was one by which we look.
    pub(in crate::initiator) fn seen(&mut self, txn: TxnId) -> bool {
        let seen = self.multicast.checked == Some(txn);
        if seen {
            self.multicast = Multicast::new(true);
            self.event(Event::Multicast { works: true });
        }
        seen
    }
}

/// What the rounds of one transaction say of multicast.
#[derive(Debug, Default)]
pub(in crate::initiator) struct Rounds {
    /// The targets that this round asked by multicast, and when, while none has answered.
    asked: Option<(Instant, Vec<NodeId>)>,
    /// The same of the last round that no target answered.
    asked_before: Option<(Instant, Vec<NodeId>)>,
    /// When this round sent to several targets that a leader had told by multicast what would come, and how many of
    /// them did not know.
    announced: Option<Instant>,
    strangers: Vec<NodeId>,
}

impl Rounds {
    /// A round begins; `asked` by multicast, if that is how it asks.
    pub(in crate::initiator) fn ask(&mut self, now: Instant, asked: Option<&[NodeId]>) {
        if let Some(last) = self.asked.take() {
            self.asked_before = Some(last);
        }
        self.asked = asked.map(|asked| (now, asked.to_vec()));
        self.announced = None;
        self.strangers.clear();
    }

    /// Whether the last round that asked by multicast reached no target.
    pub(in crate::initiator) const fn is_unanswered(&self) -> bool {
        self.asked.is_some() || self.asked_before.is_some()
    }

    /// An answer to this round.
    pub(in crate::initiator) fn answered(&mut self, context: &mut Context, from: NodeId) {
        if self.asked.take().is_some() {
            self.has_arrived(context);
        } else if let Some((since, _)) = self.asked_before.take_if(|(_, asked)| asked.contains(&from)) {
            context.note_loss(since);
        }
    }

    /// An answer to an earlier round: late, but the question had arrived.
    pub(in crate::initiator) fn late(&mut self) {
        self.asked_before = None;
    }

    fn has_arrived(&mut self, context: &mut Context) {
        self.asked_before = None;
        context.multicast.losses = (0, context.now);
    }

    /// Payload goes to several targets by multicast; a leader told them of it in the same way.
    pub(in crate::initiator) fn send(&mut self, now: Instant) {
        self.announced = Some(now);
    }

    /// A target does not know what it was sent. One may have lost the grant.
    pub(in crate::initiator) fn stranger(&mut self, from: NodeId) {
        self.strangers.push(from);
        if let (Some(since), 2) = (self.announced, self.strangers.len()) {
            self.asked_before = Some((since, self.strangers.clone()));
        }
    }
}
