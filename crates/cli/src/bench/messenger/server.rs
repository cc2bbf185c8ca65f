//! The messenger that is measured: workers that verify what comes, and answer.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use anyhow::{Context, ensure};
use node::messenger::{Arrival, Dispatch, Dual, InOrder, Reader, Spent, Stream, Workers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SendFlags, send};
use socket2::Socket;

use super::{Case, Direction, Shape, Variant};

/// Payload of a frame: the message of a chunk is cut into pieces as for a datagram.
const PIECE: usize = 60 << 10;
/// What comes before it: whether it is the last of a message, the bytes of the answer, the hash of the payload, and in the last of a
/// message its number.
const HEAD: usize = 1 + 4 + 32 + NUMBER;
const NUMBER: usize = 8;
/// Messages of a client that may come before their turn.
const EARLY: usize = 64;
/// An answer without payload.
const ACKNOWLEDGEMENT: usize = 20;
/// What kernels may keep of a connection, so that an answer is no reason to wait.
const BUFFER: usize = 4 << 20;
/// A client that takes nothing for so long gets nothing more.
const PATIENCE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// The message of a case, in frames; where its number is written, and the bytes of its answer.
pub(super) fn message(case: Case) -> (Vec<u8>, Range<usize>, usize) {
    let (payload, answer) = match case.direction {
        Direction::Write => (vec![0x5a; case.size as usize], ACKNOWLEDGEMENT),
        Direction::Read => (Vec::new(), ACKNOWLEDGEMENT + case.size as usize),
    };
    let pieces: Vec<&[u8]> = if payload.is_empty() { vec![&[]] } else { payload.chunks(PIECE).collect() };
    let mut message = Vec::with_capacity(payload.len() + pieces.len() * (HEAD + 4));
    let mut number = 0..0;
    for (nth, piece) in pieces.iter().enumerate() {
        message.extend_from_slice(&((HEAD + piece.len()) as u32).to_le_bytes());
        message.push(u8::from(nth + 1 == pieces.len()));
        message.extend_from_slice(&(answer as u32).to_le_bytes());
        message.extend_from_slice(blake3::hash(piece).as_bytes());
        number = message.len()..message.len() + NUMBER;
        message.extend_from_slice(&[0; NUMBER]);
        message.extend_from_slice(piece);
    }
    (message, number, answer)
}

/// What a worker does with a message that it has verified: as much as takes so long, by a count of hashes and not by a clock,
/// which goes on while another thread has the processor.
#[derive(Clone, Copy, Debug)]
pub(super) struct Dispatching {
    pub(super) micros: u32,
    hashes: u32,
}

impl Dispatching {
    /// Finds out how many hashes take so long on this machine now.
    pub(super) fn of(micros: u32) -> Self {
        const TRIED: u32 = 20_000;
        let began = std::time::Instant::now();
        Self { micros, hashes: TRIED }.work();
        let each = began.elapsed().as_secs_f64() / f64::from(TRIED);
        Self { micros, hashes: (f64::from(micros) / 1e6 / each) as u32 }
    }

    fn work(self) {
        let mut hash = blake3::hash(&[]);
        for _ in 0..self.hashes {
            hash = blake3::hash(hash.as_bytes());
        }
        std::hint::black_box(hash);
    }
}

/// See the [module](self).
pub(super) struct Server {
    workers: Workers<Dual<Answers>>,
    answers: Arc<Answers>,
}

/// Verifies and answers, in the threads of the workers.
struct Answers {
    streams: Vec<Arc<Stream>>,
    /// Of each client that has several connections: messages that came before their turn, each with the connection and the bytes of
    /// its answer.
    clients: Vec<InOrder<(usize, usize)>>,
    lanes: usize,
    ordered: bool,
    /// Bytes read and sent, by worker.
    bytes: Vec<AtomicU64>,
    /// The worker that brought the last of a connection, and how often that was another one than before.
    worker: Vec<AtomicUsize>,
    moves: AtomicU64,
    /// Frames that were not what their hash says.
    damaged: AtomicU64,
    dispatch: Dispatching,
    nothing: Vec<u8>,
}

impl Server {
    /// Workers and connections, whose other ends are returned, those of one client together.
    pub(super) fn start(shape: &Shape, variant: Variant) -> anyhow::Result<(Self, Vec<Socket>)> {
        let Shape { workers, dispatch, .. } = *shape;
        let Variant { policy, dual, lanes, ordered } = variant;
        let connections = shape.connections * lanes;
        let failed = "connections on loopback cannot be made: raise the limit of open files (ulimit -n)";
        let (mut here, mut there) = (Vec::new(), Vec::new());
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context(failed)?;
        let address = listener.local_addr().context(failed)?;
        for _ in 0..connections {
            let client = TcpStream::connect(address).context(failed)?;
            let (server, _) = listener.accept().context(failed)?;
            for (stream, list) in [(client, &mut there), (server, &mut here)] {
                stream.set_nodelay(true).context(failed)?;
                stream.set_nonblocking(true).context(failed)?;
                let socket = Socket::from(stream);
                socket.set_send_buffer_size(BUFFER).context(failed)?;
                list.push(socket);
            }
        }
        let answers = Arc::new(Answers {
            streams: here.into_iter().map(|socket| Arc::new(Stream::plain(socket))).collect(),
            clients: (0..shape.connections).map(|_| InOrder::new(EARLY)).collect(),
            lanes,
            ordered,
            bytes: (0..workers).map(|_| AtomicU64::new(0)).collect(),
            worker: (0..connections).map(|_| AtomicUsize::new(usize::MAX)).collect(),
            moves: AtomicU64::new(0),
            damaged: AtomicU64::new(0),
            dispatch,
            nothing: vec![0; PIECE],
        });
        let companions = if dual { workers } else { 0 };
        let started = Dual::start(companions, "companion", Arc::clone(&answers))
            .and_then(|dual| Workers::start(workers, policy, "worker", Arc::new(dual)));
        let workers = started.context("the workers cannot be started: choose fewer --workers")?;
        for (nth, stream) in (0..).zip(&answers.streams) {
            ensure!(workers.serve(nth, Reader::new(Arc::clone(stream))), "too many connections: choose fewer");
        }
        Ok((Self { workers, answers }, there))
    }

    pub(super) fn bytes(&self) -> Vec<u64> {
        self.answers.bytes.iter().map(|bytes| bytes.load(Ordering::Relaxed)).collect()
    }

    /// How often a connection has come to another worker.
    pub(super) fn moves(&self) -> u64 {
        self.answers.moves.load(Ordering::Relaxed)
    }

    /// Stops the workers, and sees that nothing came damaged.
    pub(super) fn end(self) -> anyhow::Result<()> {
        drop(self.workers);
        let damaged = self.answers.damaged.load(Ordering::Relaxed);
        ensure!(damaged == 0, "{damaged} frames came damaged or out of order: this is a defect of the messenger");
        Ok(())
    }
}

impl Answers {
    /// Whether the frame is what its hash says; the number and the bytes of the answer if it is the last of a message.
    fn check(frame: &[u8]) -> Option<Option<(u64, usize)>> {
        let (head, payload) = frame.split_at_checked(HEAD)?;
        let answer = u32::from_le_bytes(*head[1..].first_chunk()?) as usize;
        let number = u64::from_le_bytes(*head.last_chunk()?);
        let is_last = (head[0] == 1).then_some((number, answer));
        (blake3::hash(payload).as_bytes() == &head[5..HEAD - NUMBER]).then_some(is_last)
    }

    /// Does what is to be done with messages of a client in the order in which they were sent, and answers.
    fn in_order(&self, connection: usize, messages: &[(u64, usize)]) {
        let items = messages.iter().map(|(number, answer)| (*number, (connection, *answer)));
        let outcome = self.clients[connection / self.lanes].came(items, |(connection, answer)| {
            self.dispatch.work();
            self.answer(self.streams[connection].socket(), answer);
        });
        self.damaged.fetch_add(u64::from(outcome.is_err()), Ordering::Relaxed);
    }

    fn answer(&self, socket: &Socket, mut bytes: usize) {
        while bytes > 0 {
            match send(socket, &self.nothing[..bytes.min(self.nothing.len())], SendFlags::NOSIGNAL) {
                Ok(sent) => bytes -= sent,
                Err(rustix::io::Errno::AGAIN) => {
                    let mut room = [PollFd::new(socket, PollFlags::OUT)];
                    if !poll(&mut room, Some(&PATIENCE)).is_ok_and(|ready| ready > 0) {
                        return;
                    }
                }
                Err(rustix::io::Errno::INTR) => {}
                // The client is gone.
                Err(_) => return,
            }
        }
    }
}

impl Dispatch for Answers {
    fn came(&self, arrival: Arrival) -> Spent {
        let Arrival { worker, connection, frames, .. } = arrival;
        let connection = connection as usize;
        let before = self.worker[connection].swap(worker, Ordering::Relaxed);
        if before != worker && before != usize::MAX {
            self.moves.fetch_add(1, Ordering::Relaxed);
        }
        let (mut bytes, mut messages) = (0, Vec::new());
        for frame in frames {
            bytes += frame.len();
            match Self::check(&frame) {
                Some(message) => messages.extend(message),
                None => drop(self.damaged.fetch_add(1, Ordering::Relaxed)),
            }
        }
        let answers = messages.iter().map(|(_, answer)| *answer).sum::<usize>();
        self.bytes[worker].fetch_add((bytes + answers) as u64, Ordering::Relaxed);
        if self.ordered {
            self.in_order(connection, &messages);
        } else {
            messages.iter().for_each(|_| self.dispatch.work());
            self.answer(self.streams[connection].socket(), answers);
        }
        Spent::default()
    }
}
