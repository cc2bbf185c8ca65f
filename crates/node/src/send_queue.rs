//! What waits for a socket.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;
use protocol::wire::is_data;

/// Control messages that may wait for the socket.
const URGENT: usize = 4_096;
/// For so many of each kind memory is kept when nothing waits.
const KEPT: usize = 16;

/// What one call hands to the kernel: a datagram in two pieces, or equal segments that the kernel makes datagrams of.
#[derive(Debug)]
pub(crate) struct Outgoing {
    pub(crate) head: Bytes,
    pub(crate) payload: Bytes,
    pub(crate) segment: Option<usize>,
    pub(crate) to: SocketAddr,
}

/// What can wait.
pub(crate) trait Waiting {
    /// Whether it is payload.
    fn is_data(&self) -> bool;
    /// Its bytes.
    fn len(&self) -> usize;
}

impl Waiting for Outgoing {
    fn is_data(&self) -> bool {
        is_data(&self.head)
    }

    fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }
}

impl Outgoing {
    pub(crate) fn datagrams(&self) -> u64 {
        self.segment.map_or(1, |segment| self.len().div_ceil(segment)) as u64
    }
}

/// What waits for a socket: control messages first, because they are small, and windows depend on them.
#[derive(Debug)]
pub(crate) struct SendQueue<W> {
    control: VecDeque<W>,
    data: VecDeque<W>,
    /// Bytes of data that wait, and the most that may.
    waiting: u64,
    most: u64,
}

impl<W: Waiting> SendQueue<W> {
    pub(crate) fn new(most: u64) -> Self {
        Self { control: VecDeque::new(), data: VecDeque::new(), waiting: 0, most }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.control.is_empty() && self.data.is_empty()
    }

    /// Gives back what a burst needed. There may be thousands of connections that are idle after one.
    pub(crate) fn give_back(&mut self) {
        for waiting in [&mut self.control, &mut self.data] {
            waiting.shrink_to(KEPT);
        }
    }

    /// Bytes of memory beside the frames.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        (self.control.capacity() + self.data.capacity()) * size_of::<W>()
    }

    /// How many wait.
    pub(crate) fn count(&self) -> usize {
        self.control.len() + self.data.len()
    }

    /// The bytes of data that wait.
    pub(crate) const fn bytes(&self) -> u64 {
        self.waiting
    }

    /// Whether there is room for so many more bytes of data.
    pub(crate) const fn fits(&self, bytes: u64) -> bool {
        self.waiting + bytes <= self.most
    }

    /// Whether there is room for it. What there is none for is lost, as on the wire: the node that misses it asks for
    /// it.
    pub(crate) fn push(&mut self, outgoing: W) -> bool {
        if !outgoing.is_data() {
            let fits = self.control.len() < URGENT;
            fits.then(|| self.control.push_back(outgoing));
            return fits;
        }
        let bytes = outgoing.len() as u64;
        let fits = self.fits(bytes);
        if fits {
            self.waiting += bytes;
            self.data.push_back(outgoing);
        }
        fits
    }

    pub(crate) fn pop(&mut self) -> Option<W> {
        self.control.pop_front().or_else(|| {
            let outgoing = self.data.pop_front()?;
            self.waiting -= outgoing.len() as u64;
            Some(outgoing)
        })
    }

    /// Puts back what was popped last.
    pub(crate) fn put_back(&mut self, outgoing: W) {
        if outgoing.is_data() {
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
