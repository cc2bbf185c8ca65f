//! The network: every node has a port out and, at the switch, a port in with a queue that all that is sent to it shares.
//!
//! A run of payload travels as a train: it begins, it ends, and while it passes the queues grow and shrink steadily, so
//! nothing has to happen for each of its datagrams. Control goes between two datagrams of its sender's trains, and
//! queues behind everything at its receivers' ports, or behind other control only, where switches put it first.

use std::collections::VecDeque;

use protocol::machine::Destination;
use protocol::wire::DataHeader;

/// Payload on its way.
#[derive(Clone, Debug)]
pub(in crate::perf) struct Train {
    pub(in crate::perf) to: Destination,
    pub(in crate::perf) header: DataHeader,
    /// The number of the piece, if it is the beginning of one.
    pub(in crate::perf) number: u8,
    /// Bytes of payload, and of it in a datagram.
    pub(in crate::perf) len: usize,
    pub(in crate::perf) per_datagram: usize,
    /// Time on the wire of one full datagram, and of all.
    pub(in crate::perf) datagram: u64,
    pub(in crate::perf) takes: u64,
    /// When it began to reach its receivers' ports.
    pub(in crate::perf) reached: u64,
    /// What full queues dropped: receiver, first byte, end. Made up of whole datagrams only at the end.
    pub(in crate::perf) dropped: Vec<(u32, u64, u64)>,
}

/// A node's port outwards: trains one after the other, control in between.
#[derive(Debug, Default)]
pub(super) struct Uplink {
    queue: VecDeque<(Box<Train>, u64)>,
    active: Option<Active>,
    control_until: u64,
}

#[derive(Clone, Copy, Debug)]
struct Active {
    to: Destination,
    start: u64,
    until: u64,
    datagram: u64,
}

/// A train that begins: which, when, and when it should end.
#[derive(Debug)]
pub(super) struct Begun {
    pub(super) train: Box<Train>,
    pub(super) start: u64,
    pub(super) until: u64,
}

/// What there is to do when a train may have been sent.
#[derive(Debug)]
pub(super) enum Sent {
    /// Look again then: control went in between.
    Later(u64),
    /// One was, which goes there; perhaps another begins.
    Done(Destination, Option<Begun>),
}

impl Uplink {
    /// Reads it, and says nothing.
    pub(super) fn prefetch(&self) -> u64 {
        self.control_until ^ self.queue.len() as u64
    }

    /// Control that is handed over at `at` and takes `takes`; when its end has left.
    pub(super) fn control(&mut self, at: u64, takes: u64) -> u64 {
        let mut start = at.max(self.control_until);
        if let Some(active) = &mut self.active
            && start >= active.start
            && start < active.until
        {
            // Behind the datagram that is being sent.
            let into = (start - active.start) % active.datagram.max(1);
            start = (start + active.datagram - into).min(active.until);
            active.until += takes;
        }
        self.control_until = start + takes;
        self.control_until
    }

    /// A train that is handed over; it begins at `at` if nothing is before it.
    pub(super) fn send(&mut self, at: u64, train: Box<Train>) -> Option<Begun> {
        if self.active.is_some() {
            self.queue.push_back((train, at));
            return None;
        }
        Some(self.begin(at.max(self.control_until), train))
    }

    fn begin(&mut self, start: u64, train: Box<Train>) -> Begun {
        let until = start + train.takes;
        self.active = Some(Active { to: train.to, start, until, datagram: train.datagram });
        Begun { train, start, until }
    }

    /// Trains that wait, and when the one before them is sent: the less, the sooner another is.
    pub(super) fn backlog(&self) -> (usize, u64) {
        (self.queue.len(), self.active.map_or(0, |active| active.until))
    }

    pub(super) fn sent(&mut self, now: u64) -> Option<Sent> {
        let active = self.active?;
        if active.until > now {
            return Some(Sent::Later(active.until));
        }
        self.active = None;
        let next = self.queue.pop_front();
        let next = next.map(|(train, at)| self.begin(at.max(now).max(self.control_until), train));
        Some(Sent::Done(active.to, next))
    }
}

/// A switch's port to one node.
#[derive(Debug, Default)]
pub(super) struct Port {
    at: u64,
    /// What waits, as time on the wire.
    backlog: u64,
    /// The senders of the trains that are arriving.
    arriving: Vec<u32>,
    /// When the last of the trains began to arrive, and how long each of its datagrams takes.
    begun: u64,
    datagram: u64,
    /// When the last of the payload that came is through, and the last control: neither overtakes its like.
    through: u64,
    control: u64,
}

impl Port {
    /// Reads it, and says nothing.
    pub(super) const fn prefetch(&self) -> u64 {
        self.at ^ self.through
    }
    /// Nothing waits here: it is a port of many lanes.
    pub(super) const fn pass(&mut self, now: u64) {
        (self.at, self.backlog) = (now, 0);
    }

    /// Lets the queue grow and shrink until `now`. What does not fit into `room` is dropped: the time on the wire of it,
    /// for each of the trains that are arriving.
    pub(super) fn advance(&mut self, now: u64, room: u64) -> u64 {
        let time = now - self.at;
        self.at = now;
        match self.arriving.len() as u64 {
            0 => self.backlog = self.backlog.saturating_sub(time),
            trains => self.backlog += (trains - 1) * time,
        }
        let excess = self.backlog.saturating_sub(room);
        if excess == 0 || self.arriving.is_empty() {
            return 0;
        }
        self.backlog -= excess;
        excess / self.arriving.len() as u64
    }

    pub(super) fn arriving(&self) -> &[u32] {
        &self.arriving
    }

    /// Control that arrives and takes `takes`; when it is through, or `None` when there is no room for it. If it goes `first`, only the
    /// datagram that is passing and other control are before it.
    pub(super) fn control(&mut self, now: u64, takes: u64, room: u64, first: bool) -> Option<u64> {
        if self.backlog + takes > room {
            return None;
        }
        let passing = if self.arriving.is_empty() {
            self.backlog.min(self.datagram)
        } else {
            self.datagram.max(1) - (now - self.begun) % self.datagram.max(1)
        };
        let wait = self.backlog.max(passing);
        self.backlog += takes;
        if first {
            self.control = (now + passing).max(self.control + takes);
            return Some(self.control);
        }
        self.through = self.through.max(now + wait);
        Some(self.through)
    }

    /// A train begins; when the end of its first datagram is through.
    pub(super) fn begin(&mut self, now: u64, sender: u32, first: u64, datagram: u64) -> u64 {
        self.arriving.push(sender);
        (self.begun, self.datagram) = (now, datagram);
        self.through = self.through.max(now + first + self.backlog);
        self.through
    }

    /// A train ends; when its end is through.
    pub(super) fn end(&mut self, now: u64, sender: u32) -> u64 {
        self.arriving.retain(|other| *other != sender);
        self.through = self.through.max(now + self.backlog);
        self.through
    }
}

/// The parts of a train's payload, behind its first datagram, that are not in `lost` (byte ranges, in order): where each
/// begins and ends. The last datagram is a part of its own, so that its receiver knows when the others came.
pub(super) fn parts(len: usize, per_datagram: usize, lost: &[(usize, usize)], mut each: impl FnMut(usize, usize)) {
    let last = (len - 1) / per_datagram * per_datagram;
    let mut at = per_datagram.min(len);
    let mut whole = |from: usize, to: usize| {
        if from < last.min(to) {
            each(from, last.min(to));
        }
        if from.max(last) < to {
            each(from.max(last), to);
        }
    };
    for (from, to) in lost {
        if *from > at {
            whole(at, *from);
        }
        at = at.max(*to);
    }
    if at < len {
        whole(at, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::id::{ClusterId, NodeId, TxnId};

    fn train(to: u32, takes: u64, datagram: u64) -> Box<Train> {
        let header = DataHeader { cluster: ClusterId(1), from: NodeId(0), txn: TxnId(1), offset: 0, size: 1 };
        let to = Destination::Node(NodeId(to));
        Box::new(Train {
            to,
            header,
            number: 0,
            len: 1,
            per_datagram: 1,
            datagram,
            takes,
            reached: 0,
            dropped: Vec::new(),
        })
    }

    #[test]
    fn trains_follow_each_other_and_control_goes_in_between() {
        let mut port = Uplink::default();
        let begun = port.send(5, train(1, 100, 10)).map(|begun| (begun.start, begun.until));
        assert_eq!(begun, Some((5, 105)));
        assert!(port.send(6, train(2, 50, 10)).is_none());
        assert_eq!(port.control(17, 3), 28, "behind the datagram that ends at 25");
        assert!(matches!(port.sent(105), Some(Sent::Later(108))));
        let Some(Sent::Done(to, Some(next))) = port.sent(108) else { panic!("the second follows") };
        assert_eq!((to, next.train.to), (Destination::Node(NodeId(1)), Destination::Node(NodeId(2))));
        assert_eq!((next.start, next.until), (108, 158));
        assert!(matches!(port.sent(158), Some(Sent::Done(_, None))));
    }

    #[test]
    fn a_queue_grows_by_what_comes_at_once_and_drops_what_does_not_fit() {
        let mut port = Port::default();
        assert_eq!(port.begin(0, 0, 10, 10), 10);
        assert_eq!(port.advance(50, 1_000), 0);
        assert_eq!(port.begin(50, 1, 10, 10), 60);
        assert_eq!(port.advance(100, 1_000), 0);
        assert_eq!(port.end(100, 0), 150, "both came for 50: 50 wait");
        assert_eq!(port.advance(150, 1_000), 0);
        assert_eq!(port.end(150, 1), 200);
        assert_eq!(port.advance(190, 1_000), 0);
        assert_eq!(port.control(190, 2, 1_000, false), Some(200));
        assert_eq!(port.control(190, 2, 13, false), None);
        port.begin(190, 2, 10, 10);
        port.begin(190, 3, 10, 10);
        assert_eq!(port.advance(290, 32), 40, "80 of 112 do not fit: 40 of each");
    }

    #[test]
    fn control_that_goes_first_waits_for_one_datagram_and_for_control() {
        let mut port = Port::default();
        port.begin(0, 0, 10, 10);
        port.begin(0, 1, 10, 10);
        assert_eq!(port.advance(43, 1_000), 0);
        assert_eq!(port.control(43, 2, 1_000, true), Some(50), "43 wait, and seven of a datagram pass");
        assert_eq!(port.control(43, 2, 1_000, true), Some(52));
        assert_eq!(port.control(43, 2, 1_000, false), Some(90), "behind all that waits");
    }

    #[test]
    fn parts_are_what_is_not_lost() {
        let of = |len, lost: &[(usize, usize)]| {
            let mut all = Vec::new();
            parts(len, 10, lost, |from, to| all.push((from, to)));
            all
        };
        assert_eq!(of(35, &[]), [(10, 30), (30, 35)]);
        assert_eq!(of(10, &[]), []);
        assert_eq!(of(35, &[(10, 20)]), [(20, 30), (30, 35)]);
        assert_eq!(of(35, &[(20, 35)]), [(10, 20)]);
        assert_eq!(of(35, &[(0, 10), (20, 30)]), [(10, 20), (30, 35)]);
    }
}
