//! What waits for the socket.

use std::collections::VecDeque;
use std::net::SocketAddr;

use bytes::Bytes;
use protocol::wire::is_data;

/// Control messages that may wait for the socket.
const URGENT: usize = 4_096;

/// What one call hands to the kernel: a datagram in two pieces, or equal segments that the kernel makes datagrams of.
#[derive(Debug)]
pub(crate) struct Parcel {
    pub(crate) head: Bytes,
    pub(crate) payload: Bytes,
    pub(crate) segment: Option<usize>,
    pub(crate) to: SocketAddr,
}

impl Parcel {
    pub(crate) fn len(&self) -> usize {
        self.head.len() + self.payload.len()
    }
}

/// What waits for the socket: control messages first, because they are small, and windows depend on them.
#[derive(Debug)]
pub(crate) struct Backlog {
    control: VecDeque<Parcel>,
    data: VecDeque<Parcel>,
    /// Bytes of data that wait, and the most that may.
    waiting: u64,
    most: u64,
}

impl Backlog {
    pub(crate) fn new(most: u64) -> Self {
        Self { control: VecDeque::new(), data: VecDeque::new(), waiting: 0, most }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.control.is_empty() && self.data.is_empty()
    }

    /// Whether there is room for it. What there is none for is lost, as on the wire: whoever misses it asks for it.
    pub(crate) fn push(&mut self, parcel: Parcel) -> bool {
        if !is_data(&parcel.head) {
            let fits = self.control.len() < URGENT;
            fits.then(|| self.control.push_back(parcel));
            return fits;
        }
        let bytes = parcel.len() as u64;
        let fits = self.waiting + bytes <= self.most;
        if fits {
            self.waiting += bytes;
            self.data.push_back(parcel);
        }
        fits
    }

    pub(crate) fn pop(&mut self) -> Option<Parcel> {
        self.control.pop_front().or_else(|| {
            let parcel = self.data.pop_front()?;
            self.waiting -= parcel.len() as u64;
            Some(parcel)
        })
    }

    /// Puts back what was popped last.
    pub(crate) fn put_back(&mut self, parcel: Parcel) {
        if is_data(&parcel.head) {
            self.waiting += parcel.len() as u64;
            self.data.push_front(parcel);
        } else {
            self.control.push_front(parcel);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::id::{ClusterId, Epoch, NodeId, TxnId};
    use protocol::wire::{DATA_HEADER, DataHeader, Head, Message, encode_message};

    fn parcel(head: Bytes, payload: usize) -> Parcel {
        Parcel { head, payload: vec![0; payload].into(), segment: None, to: SocketAddr::from(([127, 0, 0, 1], 1)) }
    }

    #[test]
    fn what_waits_for_the_socket_is_bounded_and_control_goes_first() {
        let (cluster, from) = (ClusterId(1), NodeId(1));
        let header = DataHeader { cluster, from, txn: TxnId(1), offset: 0, size: 8_000 };
        let data = || parcel(Bytes::copy_from_slice(&header.encode()), 8_000 - DATA_HEADER);
        let head = Head { cluster, epoch: Epoch(1), from };
        let control = || parcel(encode_message(head, &Message::Ping { txn: TxnId(1) }), 0);
        let mut backlog = Backlog::new(80_000);
        assert_eq!((0..20).filter(|_| backlog.push(data())).count(), 10);
        assert_eq!((0..2 * URGENT).filter(|_| backlog.push(control())).count(), URGENT);
        for n in 0..URGENT + 10 {
            let parcel = backlog.pop().expect("it waits");
            assert_eq!(is_data(&parcel.head), n >= URGENT, "{n}");
            // The socket did not take it at first.
            backlog.put_back(parcel);
            backlog.pop().expect("it waits");
        }
        assert!(backlog.is_empty() && backlog.pop().is_none());
        assert!(backlog.push(data()), "its room is free again");
    }
}
