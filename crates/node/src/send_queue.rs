//! What waits for the socket.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;
use protocol::wire::is_data;

/// Control messages that may wait for the socket.
const URGENT: usize = 4_096;

/// What one call hands to the kernel: a datagram in two pieces, or equal segments that the kernel makes datagrams of.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) head: Bytes,
    pub(crate) payload: Bytes,
    pub(crate) segment: Option<usize>,
    pub(crate) to: SocketAddr,
}

impl Outgoing {
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }

    pub(crate) fn datagrams(&self) -> u64 {
        self.segment.map_or(1, |segment| self.len().div_ceil(segment)) as u64
    }
}

/// What waits for the socket: control messages first, because they are small, and windows depend on them.
#[derive(Debug)]
pub(crate) struct SendQueue {
    control: VecDeque<Outgoing>,
    data: VecDeque<Outgoing>,
    /// Bytes of data that wait, and the most that may.
    waiting: u64,
    most: u64,
}

impl SendQueue {
    pub(crate) fn new(most: u64) -> Self {
        Self { control: VecDeque::new(), data: VecDeque::new(), waiting: 0, most }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.control.is_empty() && self.data.is_empty()
    }

    /// Whether there is room for it. What there is none for is lost, as on the wire: whoever misses it asks for it.
    pub(crate) fn push(&mut self, outgoing: Outgoing) -> bool {
        if !is_data(&outgoing.head) {
            let fits = self.control.len() < URGENT;
            fits.then(|| self.control.push_back(outgoing));
            return fits;
        }
        let bytes = outgoing.len() as u64;
        let fits = self.waiting + bytes <= self.most;
        if fits {
            self.waiting += bytes;
            self.data.push_back(outgoing);
        }
        fits
    }

    pub(crate) fn pop(&mut self) -> Option<Outgoing> {
        self.control.pop_front().or_else(|| {
            let outgoing = self.data.pop_front()?;
            self.waiting -= outgoing.len() as u64;
            Some(outgoing)
        })
    }

    /// Puts back what was popped last.
    pub(crate) fn put_back(&mut self, outgoing: Outgoing) {
        if is_data(&outgoing.head) {
            self.waiting += outgoing.len() as u64;
            self.data.push_front(outgoing);
        } else {
            self.control.push_front(outgoing);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::id::{ClusterId, Epoch, NodeId, TxnId};
    use protocol::wire::{DATA_HEADER, DataHeader, Head, Message, encode_message};

    fn outgoing(head: Bytes, payload: usize) -> Outgoing {
        Outgoing { head, payload: vec![0; payload].into(), segment: None, to: SocketAddr::from(([127, 0, 0, 1], 1)) }
    }

    #[test]
    fn what_waits_for_the_socket_is_bounded_and_control_goes_first() {
        let (cluster, from) = (ClusterId(1), NodeId(1));
        let header = DataHeader { cluster, from, txn: TxnId(1), offset: 0, size: 8_000 };
        let data = || outgoing(Bytes::copy_from_slice(&header.encode()), 8_000 - DATA_HEADER);
        let head = Head { cluster, epoch: Epoch(1), from };
        let control = || outgoing(encode_message(head, &Message::Ping { txn: TxnId(1) }), 0);
        let mut queue = SendQueue::new(80_000);
        assert_eq!((0..20).filter(|_| queue.push(data())).count(), 10);
        assert_eq!((0..2 * URGENT).filter(|_| queue.push(control())).count(), URGENT);
        for n in 0..URGENT + 10 {
            let outgoing = queue.pop().expect("it waits");
            assert_eq!(is_data(&outgoing.head), n >= URGENT, "{n}");
            // The socket did not take it at first.
            queue.put_back(outgoing);
            queue.pop().expect("it waits");
        }
        assert!(queue.is_empty() && queue.pop().is_none());
        assert!(queue.push(data()), "its room is free again");
    }
}
