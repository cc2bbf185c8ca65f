//! The clients that send to the messenger that is measured, with as little work for each message as there can be.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use hdrhistogram::Histogram;
use protocol::messenger::{Choice, Lanes};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use socket2::Socket;

use super::Case;
use super::server::message;
use super::skew::Plan;

/// Messages under way on a heavy connection, as far as so many bytes allow.
const UNDER_WAY: usize = 16;
const BYTES: usize = 1 << 20;
/// How often a message comes over a connection that is not heavy.
const LIGHT: Duration = Duration::from_millis(100);
/// How long it is waited for answers before it is looked which connections are due.
const TURN: Timespec = Timespec { tv_sec: 0, tv_nsec: 1_000_000 };
/// Bytes that are sent or read at once.
const AT_ONCE: usize = 256 << 10;

/// What they counted.
pub(super) struct Ended {
    pub(super) answered: u64,
    /// From when a message was sent until its answer was there, in nanoseconds.
    pub(super) latency: Histogram<u64>,
    /// The same of connections that are not heavy.
    pub(super) light: Histogram<u64>,
    /// Seconds of a processor.
    pub(super) cpu: f64,
}

/// One thread that serves all connections from the other side.
pub(super) struct Clients {
    thread: JoinHandle<anyhow::Result<Ended>>,
    counts: Arc<AtomicBool>,
    stops: Arc<AtomicBool>,
}

impl Clients {
    /// Clients that have so many connections each.
    pub(super) fn start(case: Case, plan: Plan, lanes: usize, sockets: Vec<Socket>) -> anyhow::Result<Self> {
        let (counts, stops) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let load = Load::new(case, plan, lanes, sockets);
        let flags = (Arc::clone(&counts), Arc::clone(&stops));
        let started =
            std::thread::Builder::new().name("clients".to_owned()).spawn(move || load.run(&flags.0, &flags.1));
        Ok(Self { thread: started.context("a thread for the clients cannot be started")?, counts, stops })
    }

    /// What comes from now on counts.
    pub(super) fn count(&self) {
        self.counts.store(true, Ordering::Release);
    }

    pub(super) fn end(self) -> anyhow::Result<Ended> {
        self.stops.store(true, Ordering::Release);
        self.thread.join().map_err(|_| anyhow!("the clients' thread panicked"))?
    }
}

struct Client {
    lanes: Lanes,
    /// The number of the next message.
    next: u64,
    /// When a light one sends again.
    due: Instant,
}

/// A connection of a client.
struct Connection {
    socket: Socket,
    /// When each message under way was begun, the oldest first, and whether the client was heavy then.
    begun: VecDeque<(Instant, bool)>,
    /// The numbers of the last of them that are not sent, and how much of the first of these is.
    unsent: VecDeque<u64>,
    sent: usize,
    /// Bytes of the answer to the oldest that have come.
    answered: usize,
}

/// Messages to be sent: one of them many times, so that many can be sent at once.
struct Messages {
    bytes: Vec<u8>,
    /// Bytes of one, and where in it its number is.
    length: usize,
    number: Range<usize>,
}

struct Load {
    plan: Plan,
    messages: Messages,
    answer: usize,
    under_way: usize,
    clients: Vec<Client>,
    /// Those of one client together.
    connections: Vec<Connection>,
    /// Of each client.
    lanes: usize,
    began: Instant,
}

impl Load {
    fn new(case: Case, plan: Plan, lanes: usize, sockets: Vec<Socket>) -> Self {
        let (message, number, answer) = message(case);
        let (length, began) = (message.len(), Instant::now());
        let client = |nth| Client {
            lanes: Lanes::new(Choice::LeastQueued),
            next: 0,
            // Not all at once.
            due: began + LIGHT.mul_f64(f64::from(nth) / plan.connections as f64),
        };
        let connection =
            |socket| Connection { socket, begun: VecDeque::new(), unsent: VecDeque::new(), sent: 0, answered: 0 };
        Self {
            plan,
            messages: Messages { bytes: message.repeat((AT_ONCE / length).max(1)), length, number },
            answer,
            under_way: plan.under_way((BYTES / case.size as usize).clamp(2, UNDER_WAY)),
            clients: (0..plan.connections as u32).map(client).collect(),
            connections: sockets.into_iter().map(connection).collect(),
            lanes,
            began,
        }
    }

    fn run(mut self, counts: &AtomicBool, stops: &AtomicBool) -> anyhow::Result<Ended> {
        let times = Histogram::new_with_max(60_000_000_000, 3)?;
        let mut ended = Ended { answered: 0, latency: times.clone(), light: times, cpu: 0.0 };
        let (mut buffer, mut cpu, mut heavy) = (vec![0; AT_ONCE], None, Vec::new());
        while !stops.load(Ordering::Acquire) {
            let now = Instant::now();
            if cpu.is_none() && counts.load(Ordering::Acquire) {
                cpu = Some(thread_cpu());
            }
            heavy.clear();
            heavy.resize(self.clients.len(), false);
            self.plan.heavy(now - self.began).into_iter().for_each(|nth| heavy[nth] = true);
            for (nth, is_heavy) in heavy.iter().enumerate() {
                self.send(nth, now, *is_heavy)?;
            }
            let waits = |connection: &Connection| {
                if connection.unsent.is_empty() { PollFlags::IN } else { PollFlags::IN | PollFlags::OUT }
            };
            let mut wanted: Vec<PollFd<'_>> =
                self.connections.iter().map(|connection| PollFd::new(&connection.socket, waits(connection))).collect();
            match poll(&mut wanted, Some(&TURN)) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error).context("waiting for answers"),
            }
            let ready: Vec<bool> = wanted.iter().map(|fd| fd.revents().contains(PollFlags::IN)).collect();
            let record = cpu.is_some().then_some(&mut ended);
            self.receive(&ready, &mut buffer, record)?;
        }
        ended.cpu = cpu.map_or(0.0, |before| thread_cpu() - before);
        Ok(ended)
    }

    /// A client begins messages until as many are under way as should be, and sends what the kernel takes.
    fn send(&mut self, nth: usize, now: Instant, is_heavy: bool) -> anyhow::Result<()> {
        let client = &mut self.clients[nth];
        let connections = &mut self.connections[nth * self.lanes..][..self.lanes];
        let most = if is_heavy { self.under_way } else { usize::from(client.due <= now) };
        let under_way = connections.iter().map(|connection| connection.begun.len()).sum();
        for _ in under_way..most {
            let queued: Vec<u64> = connections.iter().map(|connection| connection.begun.len() as u64).collect();
            let lane = client.lanes.choose(&queued).context("a client without connections")?;
            connections[lane].begun.push_back((now, is_heavy));
            connections[lane].unsent.push_back(client.next);
            client.next += 1;
            client.due = now + LIGHT;
        }
        connections.iter_mut().try_for_each(|connection| connection.send(&mut self.messages))
    }

    fn receive(&mut self, ready: &[bool], buffer: &mut [u8], mut ended: Option<&mut Ended>) -> anyhow::Result<()> {
        for (connection, _) in self.connections.iter_mut().zip(ready).filter(|(_, ready)| **ready) {
            match recv(&connection.socket, &mut *buffer, RecvFlags::empty()) {
                Ok((_, 0)) => bail!("the messenger has closed a connection: this is a defect of it"),
                Ok((_, count)) => connection.answered += count,
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(error) => return Err(error).context("reading answers"),
            }
            let now = Instant::now();
            while connection.answered >= self.answer {
                connection.answered -= self.answer;
                let (begun, is_heavy) = connection.begun.pop_front().context("more answers than messages")?;
                if let Some(ended) = &mut ended {
                    ended.answered += 1;
                    let nanos = (now - begun).as_nanos() as u64;
                    ended.latency.saturating_record(nanos);
                    if !is_heavy {
                        ended.light.saturating_record(nanos);
                    }
                }
            }
        }
        Ok(())
    }
}

impl Connection {
    /// Sends what the kernel takes of what was begun.
    fn send(&mut self, messages: &mut Messages) -> anyhow::Result<()> {
        while !self.unsent.is_empty() {
            let slots = messages.bytes.chunks_exact_mut(messages.length);
            let filled = slots.zip(&self.unsent).map(|(slot, number)| {
                slot[messages.number.clone()].copy_from_slice(&number.to_le_bytes());
            });
            let until = filled.count() * messages.length;
            match send(&self.socket, &messages.bytes[self.sent..until], SendFlags::NOSIGNAL) {
                Ok(sent) => self.sent += sent,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => return Err(error).context("sending to the messenger"),
            }
            drop(self.unsent.drain(..self.sent / messages.length));
            self.sent %= messages.length;
        }
        Ok(())
    }
}

fn thread_cpu() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}
