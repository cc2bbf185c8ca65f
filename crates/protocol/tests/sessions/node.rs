//! A node with its session, and what passes between two.

use bytes::Bytes;
use protocol::id::{ClusterId, Epoch, NodeId, TxnId};
use protocol::time::{Instant, Span};
use protocol::wire::{DropReason, Head, Message, Opened, Session, decode_message, encode_message};

pub(super) const KEY: [u8; 32] = [9; 32];
pub(super) const CLUSTER: ClusterId = ClusterId(0x0403_0201);

/// A node with its session, in a world with one clock.
pub(super) struct Node {
    pub(super) id: NodeId,
    pub(super) session: Session,
    /// Pings that its machine would have heard: from whom, which.
    pub(super) received: Vec<(u32, u64)>,
    pub(super) dropped: Vec<DropReason>,
}

pub(super) fn ms(n: u64) -> Instant {
    Instant::ZERO + Span::from_millis(n)
}

impl Node {
    pub(super) fn start(id: u32, seed: u64) -> Self {
        let session = Session::new(KEY, CLUSTER, NodeId(id), seed);
        Self { id: NodeId(id), session, received: Vec::new(), dropped: Vec::new() }
    }

    /// Ping number `n`, sealed.
    pub(super) fn ping(&mut self, n: u64) -> Bytes {
        let head = Head { cluster: CLUSTER, epoch: Epoch(1), from: self.id };
        self.session.seal(&encode_message(head, &Message::Ping { txn: TxnId(n) }))
    }

    /// Takes a datagram; what it answers.
    pub(super) fn take(&mut self, now: Instant, datagram: &Bytes) -> Vec<Bytes> {
        let message = match self.session.open(now, datagram.clone()) {
            Ok(Opened::Good(message)) => message,
            Ok(Opened::Between(replies) | Opened::Unproven(replies)) => return replies,
            Err(reason) => {
                self.dropped.push(reason);
                return vec![];
            }
        };
        let (head, message) = decode_message(&message).unwrap();
        let Message::Ping { txn } = message else { panic!("{message:?}") };
        self.received.push((head.from.0, txn.0));
        vec![]
    }
}

/// Delivers a datagram from `a` to `b`, then whatever they have to say to each other, a round trip each millisecond.
/// Everything that was sent.
pub(super) fn deliver(now: Instant, a: &mut Node, b: &mut Node, first: &Bytes) -> Vec<Bytes> {
    let mut sent = Vec::new();
    let mut to_b = vec![first.clone()];
    for n in 0..10 {
        let at = now + Span::from_millis(n);
        let to_a: Vec<Bytes> = to_b.iter().flat_map(|datagram| b.take(at, datagram)).collect();
        sent.append(&mut to_b);
        to_b = to_a.iter().flat_map(|datagram| a.take(at, datagram)).collect();
        sent.extend(to_a);
        if to_b.is_empty() {
            return sent;
        }
    }
    panic!("they never stop")
}

/// Whether a datagram says a message again.
pub(super) fn is_again(datagram: &&Bytes) -> bool {
    datagram[2] == 0x43
}

/// A gateway and a target that know each other, and all that they have sent.
pub(super) fn acquainted() -> (Node, Node, Vec<Bytes>) {
    let (mut gateway, mut target) = (Node::start(1 << 24, 1), Node::start(1, 2));
    let first = gateway.ping(1);
    let mut sent = deliver(ms(1_000), &mut gateway, &mut target, &first);
    let answer = target.ping(100);
    sent.extend(deliver(ms(1_010), &mut target, &mut gateway, &answer));
    assert_eq!((&target.received[..], &gateway.received[..]), (&[(1 << 24, 1)][..], &[(1, 100)][..]));
    (gateway, target, sent)
}
