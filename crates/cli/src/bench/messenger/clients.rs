//! Who sends to the messenger that is measured, with as little work for each message as there can be.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, anyhow, bail};
use hdrhistogram::Histogram;
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
    pub(super) fn start(case: Case, plan: Plan, sockets: Vec<Socket>) -> anyhow::Result<Self> {
        let (counts, stops) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let load = Load::new(case, plan, sockets);
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

/// A connection, as its client sees it.
struct Sender {
    socket: Socket,
    /// When each message under way was begun, the oldest first, and whether the connection was heavy then.
    begun: VecDeque<(Instant, bool)>,
    /// Bytes that are still to be sent, of the last of them.
    unsent: usize,
    /// Bytes of the answer to the oldest that have come.
    answered: usize,
    /// When a light one sends again.
    due: Instant,
}

struct Load {
    plan: Plan,
    /// So many times the message that many of them can be sent at once.
    bytes: Vec<u8>,
    message: usize,
    answer: usize,
    under_way: usize,
    senders: Vec<Sender>,
    began: Instant,
}

impl Load {
    fn new(case: Case, plan: Plan, sockets: Vec<Socket>) -> Self {
        let (message, answer) = message(case);
        let (length, began) = (message.len(), Instant::now());
        let sender = |(nth, socket)| Sender {
            socket,
            begun: VecDeque::new(),
            unsent: 0,
            answered: 0,
            // Not all at once.
            due: began + LIGHT.mul_f64(f64::from(nth) / plan.connections as f64),
        };
        Self {
            plan,
            bytes: message.repeat((AT_ONCE / length).max(1)),
            message: length,
            answer,
            under_way: plan.under_way((BYTES / case.size as usize).clamp(2, UNDER_WAY)),
            senders: (0..).zip(sockets).map(sender).collect(),
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
            heavy.resize(self.senders.len(), false);
            self.plan.heavy(now - self.began).into_iter().for_each(|nth| heavy[nth] = true);
            for (sender, is_heavy) in self.senders.iter_mut().zip(&heavy) {
                let most = if *is_heavy { self.under_way } else { usize::from(sender.due <= now) };
                sender.send((now, *is_heavy), most, &self.bytes, self.message)?;
            }
            let waits =
                |sender: &Sender| if sender.unsent > 0 { PollFlags::IN | PollFlags::OUT } else { PollFlags::IN };
            let mut wanted: Vec<PollFd<'_>> =
                self.senders.iter().map(|sender| PollFd::new(&sender.socket, waits(sender))).collect();
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

    fn receive(&mut self, ready: &[bool], buffer: &mut [u8], mut ended: Option<&mut Ended>) -> anyhow::Result<()> {
        for (sender, _) in self.senders.iter_mut().zip(ready).filter(|(_, ready)| **ready) {
            match recv(&sender.socket, &mut *buffer, RecvFlags::empty()) {
                Ok((_, 0)) => bail!("the messenger has closed a connection: this is a defect of it"),
                Ok((_, count)) => sender.answered += count,
                Err(Errno::AGAIN | Errno::INTR) => continue,
                Err(error) => return Err(error).context("reading answers"),
            }
            let now = Instant::now();
            while sender.answered >= self.answer {
                sender.answered -= self.answer;
                let (begun, is_heavy) = sender.begun.pop_front().context("more answers than messages")?;
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

impl Sender {
    /// Begins messages until so many are under way, and sends what the kernel takes.
    fn send(&mut self, begun: (Instant, bool), most: usize, bytes: &[u8], message: usize) -> anyhow::Result<()> {
        while self.begun.len() < most {
            self.begun.push_back(begun);
            self.unsent += message;
            self.due = begun.0 + LIGHT;
        }
        while self.unsent > 0 {
            // What is left of the first is the end of it.
            let from = (message - self.unsent % message) % message;
            let until = bytes.len().min(from + self.unsent);
            match send(&self.socket, &bytes[from..until], SendFlags::NOSIGNAL) {
                Ok(sent) => self.unsent -= sent,
                Err(Errno::AGAIN | Errno::INTR) => break,
                Err(error) => return Err(error).context("sending to the messenger"),
            }
        }
        Ok(())
    }
}

fn thread_cpu() -> f64 {
    let spent = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    spent.tv_sec as f64 + spent.tv_nsec as f64 / 1e9
}
