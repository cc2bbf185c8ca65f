//! One connection: frames in both directions, and what waits for room.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use protocol::id::NodeId;
use protocol::wire::is_data;
use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

use crate::carrier::Poller;
use crate::messenger::{LENGTH, LONGEST, Progress, Reader, Stream};
use crate::reachability::Obstacle;
use crate::send_queue::{SendQueue, Waiting};

use super::encryption::Encryption;

/// Slices that one call hands to the kernel.
const SLICES: usize = 64;
/// A peer that does not take what was sent, or does not answer at all, is gone after this.
const PATIENCE: Duration = Duration::from_secs(5);

/// A message, or a piece of payload behind its header.
#[derive(Debug)]
pub(super) struct Frame {
    length: [u8; LENGTH],
    head: Bytes,
    payload: Bytes,
}

impl Frame {
    pub(super) fn new(head: Bytes, payload: Bytes) -> Self {
        let length = (head.len() + payload.len()) as u32;
        Self { length: length.to_le_bytes(), head, payload }
    }

    /// What of it comes after the first `sent` bytes.
    fn rest(&self, sent: usize) -> impl Iterator<Item = &[u8]> {
        let mut skip = sent;
        [&self.length[..], &self.head, &self.payload].into_iter().filter_map(move |part| {
            let from = skip.min(part.len());
            skip -= from;
            (from < part.len()).then(|| &part[from..])
        })
    }
}

impl Waiting for Frame {
    fn is_data(&self) -> bool {
        is_data(&self.head)
    }

    fn len(&self) -> usize {
        LENGTH + self.head.len() + self.payload.len()
    }
}

#[derive(Debug)]
pub(super) struct Connection {
    stream: Arc<Stream>,
    /// None while a worker has it.
    reader: Option<Reader>,
    /// The other side's address, and which node it is: the one that the connection was made for, or the one that has
    /// proved to be there.
    pub(super) to: SocketAddr,
    pub(super) peer: Option<NodeId>,
    /// Whether a message came over it whose sender proved to be there.
    pub(super) is_proven: bool,
    /// Frames that came before, and were no good.
    pub(super) strange: u32,
    is_connecting: bool,
    /// Whether it may be used: it has connected, and both sides agree on how to encrypt.
    is_open: bool,
    /// Whether a message was sent over it, which proves to the other side who is there.
    has_spoken: bool,
    /// Whether the kernel took less than there was, when it was asked last.
    is_choked: bool,
    /// Whether the poller reports room as well; none before it knows of the connection.
    watched: Option<bool>,
    error: Option<ErrorKind>,
    queue: SendQueue<Frame>,
    /// One of which a part was sent, and how much: it is ended before any other.
    begun: Option<(Frame, usize)>,
}

impl Connection {
    /// One that somebody made to this node.
    pub(super) fn accepted(
        socket: Socket,
        from: SocketAddr,
        backlog: u64,
        encryption: Option<&Encryption>,
    ) -> std::io::Result<Self> {
        let tls = encryption.map(Encryption::server).transpose()?;
        Self::new(socket, (from, None), false, backlog, tls)
    }

    /// Begins to connect.
    pub(super) fn to(
        address: SocketAddr,
        peer: NodeId,
        backlog: u64,
        encryption: Option<&Encryption>,
    ) -> std::io::Result<Self> {
        let tls = encryption.map(Encryption::client).transpose()?;
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        let connection = Self::new(socket, (address, Some(peer)), true, backlog, tls)?;
        match connection.stream.socket().connect(&address.into()) {
            Ok(()) => Ok(connection),
            // In progress; the kernel calls it by another name.
            Err(error) if error.raw_os_error() == Some(rustix::io::Errno::INPROGRESS.raw_os_error()) => Ok(connection),
            Err(error) => Err(error),
        }
    }

    fn new(
        socket: Socket,
        (to, peer): (SocketAddr, Option<NodeId>),
        is_connecting: bool,
        backlog: u64,
        tls: Option<rustls::Connection>,
    ) -> std::io::Result<Self> {
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        socket.set_tcp_user_timeout(Some(PATIENCE))?;
        let keepalive = TcpKeepalive::new().with_time(PATIENCE).with_interval(PATIENCE / 5);
        socket.set_tcp_keepalive(&keepalive)?;
        let stream = Arc::new(match tls {
            Some(tls) => Stream::encrypted(socket, tls),
            None => Stream::plain(socket),
        });
        let mut connection = Self {
            reader: Some(Reader::new(Arc::clone(&stream))),
            stream,
            to,
            peer,
            is_proven: false,
            strange: 0,
            is_connecting,
            is_open: false,
            has_spoken: false,
            is_choked: false,
            watched: None,
            error: None,
            queue: SendQueue::new(backlog),
            begun: None,
        };
        connection.note_open();
        Ok(connection)
    }

    /// Frames that wait.
    pub(super) fn waiting(&self) -> usize {
        self.queue.count() + usize::from(self.begun.is_some())
    }

    /// Whether it takes no more just now.
    pub(super) const fn is_choked(&self) -> bool {
        self.is_choked
    }

    /// Bytes that wait before a message, or before payload. What may not be sent yet is behind all that may. A message goes
    /// over one that has carried none, and payload does not: it would be a stranger's to the other side.
    pub(super) fn waiting_bytes(&self, is_data: bool) -> u64 {
        if !self.is_open || is_data && !self.has_spoken {
            return u64::MAX;
        }
        let begun = self.begun.as_ref().map_or(0, |(frame, sent)| frame.len() - sent);
        if self.has_spoken { self.queue.bytes() + begun as u64 } else { 0 }
    }

    /// Whether a worker reads it.
    #[cfg(test)]
    pub(super) const fn is_read_elsewhere(&self) -> bool {
        self.reader.is_none()
    }

    /// Bytes of memory that it keeps, without what waits.
    #[cfg(test)]
    pub(super) fn memory(&self) -> usize {
        size_of::<Self>() + self.reader.as_ref().map_or(0, Reader::memory) + self.queue.memory()
    }

    /// Whether it goes on only when the socket takes more.
    pub(super) fn awaits_room(&self) -> bool {
        self.is_connecting || self.stream.awaits_room(self.waiting() > 0)
    }

    /// The socket takes what is sent: if it was about to connect it has.
    pub(super) fn connected(&mut self) {
        self.is_connecting = false;
        self.note_open();
    }

    /// Whether somebody else may read it.
    pub(super) const fn is_open(&self) -> bool {
        self.is_open
    }

    fn note_open(&mut self) {
        self.is_open = self.is_open || !self.is_connecting && !self.stream.is_handshaking();
    }

    /// Whether it has not begun yet.
    pub(super) const fn is_connecting(&self) -> bool {
        self.is_connecting
    }

    /// Whether the poller knows what it waits for.
    pub(super) fn is_watched(&self) -> bool {
        self.watched == Some(self.awaits_room())
    }

    /// Has the poller know.
    pub(super) fn watch(&mut self, poller: &Poller, token: u32) -> std::io::Result<()> {
        let awaits_room = self.awaits_room();
        match (&self.reader, awaits_room) {
            (Some(_), _) => poller.watch(&*self, token, awaits_room)?,
            (None, true) => poller.watch_room(&*self, token)?,
            (None, false) => poller.forget(&*self),
        }
        self.watched = Some(awaits_room);
        Ok(())
    }

    /// What comes over it is somebody else's to read from now on.
    pub(super) fn take_reader(&mut self) -> Option<Reader> {
        self.watched = None;
        self.reader.take()
    }

    /// It is over, for whoever reads as well.
    pub(super) fn shut(&self) {
        self.stream.shut();
    }

    /// The socket says that something is wrong.
    pub(super) fn note_error(&mut self) {
        self.error = self.stream.socket().take_error().ok().flatten().map(|error| error.kind());
    }

    /// What that says of the way.
    pub(super) fn obstacle(&self) -> Option<Obstacle> {
        crate::reachability::obstacle(self.error?)
    }

    /// Whether there may be no room for more payload.
    pub(super) const fn is_full(&self) -> bool {
        !self.queue.fits(LONGEST as u64)
    }

    /// Has it wait for its turn, unless too much does.
    pub(super) fn push(&mut self, frame: Frame) -> bool {
        self.has_spoken |= !frame.is_data();
        self.queue.push(frame)
    }

    /// Takes what has come ([`Reader::read`]); nothing where a worker does.
    pub(super) fn receive(&mut self, buffer: &mut [u8], frame: impl FnMut(Bytes)) -> Progress {
        let progress = self.reader.as_mut().map_or(Progress::Waits, |reader| reader.read(buffer, frame));
        self.note_open();
        progress
    }

    /// Hands the kernel what waits, as far as it takes it, and says what it took.
    pub(super) fn flush(&mut self, mut sent: impl FnMut(&Frame)) -> Progress {
        if self.is_connecting {
            return Progress::Waits;
        }
        if self.stream.flush().is_err() {
            return Progress::Over;
        }
        self.note_open();
        if !self.is_open {
            return Progress::Waits;
        }
        self.is_choked = false;
        let mut taken: VecDeque<(Frame, usize)> = self.begun.take().into_iter().collect();
        loop {
            while taken.len() < SLICES / 3
                && let Some(frame) = self.queue.pop()
            {
                taken.push_back((frame, 0));
            }
            if taken.is_empty() {
                self.queue.give_back();
                return Progress::More;
            }
            let slices: Vec<IoSlice<'_>> =
                taken.iter().flat_map(|(frame, done)| frame.rest(*done)).map(IoSlice::new).collect();
            let count = match self.stream.write(&slices) {
                Ok(count) => count,
                Err(error) => {
                    let waits = error.kind() == ErrorKind::WouldBlock;
                    self.is_choked = waits;
                    self.put_back(taken);
                    return if waits { Progress::Waits } else { Progress::Over };
                }
            };
            let mut left = count;
            while let Some((frame, done)) = taken.front_mut() {
                let rest = frame.len() - *done;
                if left < rest {
                    *done += left;
                    break;
                }
                left -= rest;
                sent(frame);
                taken.pop_front();
            }
        }
    }

    /// Those of which nothing was sent wait again, as the next ones.
    fn put_back(&mut self, mut taken: VecDeque<(Frame, usize)>) {
        if taken.front().is_some_and(|(_, done)| *done > 0) {
            self.begun = taken.pop_front();
        }
        taken.into_iter().rev().for_each(|(frame, _)| self.queue.put_back(frame));
    }
}

impl AsFd for Connection {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
