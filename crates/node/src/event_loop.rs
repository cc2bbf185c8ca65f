//! The loop of a node: one thread, woken by what a carrier brings, by a timer with microseconds, or by another thread.

use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use protocol::id::OpId;
use protocol::machine::{Completion, Effect, Input, Machine, Output};
use protocol::time::Instant;
use rustix::event::{EventfdFlags, eventfd};
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create, timerfd_settime,
};

use crate::carrier::{Carrier, Poller, RESERVED, Readiness};
use crate::clock::now;
use crate::config::ClusterConfig;

const TIMER: u64 = RESERVED;
const MAILBOX: u64 = RESERVED + 1;
/// Batches taken from one socket before the others and the timer have their turn.
const BUDGET: usize = 4;

/// Letters taken from the mailbox before the sockets and the timer have their turn.
const LETTERS: usize = 64;
/// Descriptors that are handled before the next poll.
const EVENTS: usize = 64;

/// Messages of other threads to the loop.
#[derive(Debug)]
pub enum Mail<R> {
    /// A request of the application.
    Request(R),
    /// An effect is done.
    Done(OpId, Completion),
    /// The cluster map may have changed.
    Reload,
    /// A newer cluster map, and the request for the machine.
    Map(Box<ClusterConfig>, R),
    /// Stop.
    Stop,
}

/// Sends mail to a loop and wakes it.
#[derive(Debug)]
pub struct Mailbox<R> {
    sender: Sender<Mail<R>>,
    bell: Arc<OwnedFd>,
}

impl<R> Clone for Mailbox<R> {
    fn clone(&self) -> Self {
        Self { sender: self.sender.clone(), bell: Arc::clone(&self.bell) }
    }
}

impl<R> Mailbox<R> {
    /// A mailbox and its other end.
    ///
    /// # Errors
    /// When the process has no descriptors left.
    pub fn new() -> std::io::Result<(Self, Receiver<Mail<R>>)> {
        let (sender, receiver) = channel();
        let bell = Arc::new(eventfd(0, EventfdFlags::NONBLOCK | EventfdFlags::CLOEXEC)?);
        Ok((Self { sender, bell }, receiver))
    }

    /// Whether the loop is still there to take it.
    pub fn send(&self, mail: Mail<R>) -> bool {
        let delivered = self.sender.send(mail).is_ok();
        self.ring();
        delivered
    }

    fn ring(&self) {
        // A full counter means that the bell is ringing already.
        let _ = rustix::io::write(&*self.bell, &1_u64.to_ne_bytes());
    }
}

/// The node's side of a loop: runs effects, receives events.
pub trait Host<M: Machine> {
    /// Does it and answers at once, or starts it and answers later by mail.
    fn effect(&mut self, op: OpId, effect: Effect) -> Option<Completion>;
    /// The machine reported an event.
    fn event(&mut self, now: Instant, event: M::Event);
    /// Looks for a newer cluster map elsewhere than in the loop's thread, and mails it ([`Mail::Map`]).
    fn reload(&mut self);
    /// The machine has no more outputs for now.
    fn settled(&mut self, _machine: &M) {}
}

/// Lowers the priority of the calling thread, so that hashing and disk work do not keep the ports of this host from being
/// on time. Where that is refused, all are equal.
pub(crate) fn yield_to_event_loops() {
    let _ = rustix::process::nice(5);
}

/// Runs until it is asked to stop.
///
/// # Errors
/// When the kernel refuses descriptors or timers.
pub fn run<M: Machine>(
    mut machine: M,
    carrier: &mut dyn Carrier,
    mail: &Receiver<Mail<M::Request>>,
    mailbox: &Mailbox<M::Request>,
    host: &mut impl Host<M>,
) -> std::io::Result<()> {
    let poller = Poller::new()?;
    let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::NONBLOCK | TimerfdFlags::CLOEXEC)?;
    poller.watch_for(&timer, TIMER, false)?;
    poller.watch_for(&*mailbox.bell, MAILBOX, false)?;
    let mut events = Vec::with_capacity(EVENTS);
    // What is due before anything arrives must not wait for that.
    let mut armed = drain(&mut machine, carrier, host);
    arm(&timer, armed)?;
    loop {
        carrier.prepare(&poller)?;
        poller.wait(&mut events)?;
        for event in &events {
            match event.data.u64() {
                TIMER => {
                    let _ = rustix::io::read(&timer, &mut [0_u8; 8]);
                    armed = None;
                }
                MAILBOX => {
                    let _ = rustix::io::read(&*mailbox.bell, &mut [0_u8; 8]);
                    if read_mail(&mut machine, carrier, mail, mailbox, host).is_break() {
                        // What was said last is on its way.
                        return carrier.prepare(&poller);
                    }
                }
                token => {
                    let (token, flags) = (token as u32, event.flags);
                    carrier.ready(token, Readiness::from(flags));
                    for _ in 0..BUDGET {
                        let more = carrier.receive(token);
                        while let Some((bytes, arrived)) = carrier.arrived() {
                            machine.handle_input(now(), Input::Datagram { bytes, arrived });
                            drain(&mut machine, carrier, host);
                        }
                        if !more {
                            break;
                        }
                    }
                }
            }
        }
        machine.handle_input(now(), Input::Wake);
        let deadline = drain(&mut machine, carrier, host);
        host.settled(&machine);
        if deadline != armed {
            armed = deadline;
            arm(&timer, deadline)?;
        }
    }
}

/// Hands letters to the machine, a bounded number of them, until one says to stop.
fn read_mail<M: Machine>(
    machine: &mut M,
    carrier: &mut dyn Carrier,
    mail: &Receiver<Mail<M::Request>>,
    mailbox: &Mailbox<M::Request>,
    host: &mut impl Host<M>,
) -> ControlFlow<()> {
    let mut count = 0;
    for letter in mail.try_iter().take(LETTERS) {
        count += 1;
        let input = match letter {
            Mail::Request(request) => Input::Request(request),
            Mail::Done(op, completion) => Input::Done { op, completion },
            Mail::Reload => {
                host.reload();
                continue;
            }
            Mail::Map(config, request) => {
                if let Err(error) = carrier.reload(&config) {
                    tracing::error!("with the new cluster map: {error}");
                }
                Input::Request(request)
            }
            Mail::Stop => return ControlFlow::Break(()),
        };
        machine.handle_input(now(), input);
        drain(machine, carrier, host);
    }
    if count == LETTERS {
        // There may be more: they have the next turn.
        mailbox.ring();
    }
    ControlFlow::Continue(())
}

/// Sets the timer to `deadline`, or off.
fn arm(timer: &OwnedFd, deadline: Option<Instant>) -> std::io::Result<()> {
    // Zero would switch the timer off.
    let nanos = deadline.map_or(0, |at| at.as_nanos().max(1));
    let value = Timespec { tv_sec: (nanos / 1_000_000_000) as i64, tv_nsec: (nanos % 1_000_000_000) as i64 };
    let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
    timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &once)?;
    Ok(())
}

/// Performs the outputs of the machine until it is idle; returns when to wake it.
fn drain<M: Machine>(machine: &mut M, carrier: &mut dyn Carrier, host: &mut impl Host<M>) -> Option<Instant> {
    loop {
        match machine.poll_output() {
            Output::Transmit(transmit) => carrier.send(&transmit),
            Output::Effect { op, effect } => {
                if let Some(completion) = host.effect(op, effect) {
                    machine.handle_input(now(), Input::Done { op, completion });
                }
            }
            Output::Event(event) => host.event(now(), event),
            Output::Idle(deadline) => return deadline.map(|d| d.at).filter(|at| *at < Instant::FAR),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use std::collections::VecDeque;
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::mpsc::RecvTimeoutError;
    use std::time::Duration;

    use protocol::id::NodeId;
    use protocol::machine::{Body, Deadline, Destination, Transmit};
    use protocol::wire::{Head, Message, encode_message};

    use super::*;
    use crate::udp::Udp;

    /// How long the loop may sleep with something to do.
    const LIMIT: Duration = Duration::from_secs(30);

    /// Records its inputs.
    #[derive(Default)]
    struct Diary(Vec<&'static str>, VecDeque<Output<Vec<&'static str>>>);

    impl Machine for Diary {
        type Request = ();
        type Event = Vec<&'static str>;

        fn handle_input(&mut self, _: Instant, input: Input<()>) {
            match input {
                Input::Request(()) => self.0.push("letter"),
                Input::Datagram { .. } => self.0.push("datagram"),
                _ => return,
            }
            self.1.push_back(Output::Event(self.0.clone()));
        }

        fn outputs(&mut self) -> &mut VecDeque<Output<Self::Event>> {
            &mut self.1
        }

        fn next_deadline(&self) -> Option<Deadline> {
            None
        }
    }

    /// Reads the diary, and sends a datagram when the first letter was read.
    struct Reader {
        diary: Vec<&'static str>,
        other: Udp,
        datagram: Transmit,
    }

    impl Host<Diary> for Reader {
        fn effect(&mut self, _: OpId, _: Effect) -> Option<Completion> {
            None
        }

        fn event(&mut self, _: Instant, event: Vec<&'static str>) {
            if event.len() == 1 {
                self.other.send(&self.datagram);
            }
            self.diary = event;
        }

        fn reload(&mut self) {}
    }

    /// A machine with something to do at once, and no peers.
    #[derive(Default)]
    struct Impatient {
        woken: bool,
        out: VecDeque<Output<()>>,
    }

    impl Machine for Impatient {
        type Request = ();
        type Event = ();

        fn handle_input(&mut self, _: Instant, input: Input<()>) {
            if matches!(input, Input::Wake) && !std::mem::replace(&mut self.woken, true) {
                self.out.push_back(Output::Event(()));
            }
        }

        fn outputs(&mut self) -> &mut VecDeque<Output<()>> {
            &mut self.out
        }

        fn next_deadline(&self) -> Option<Deadline> {
            (!self.woken).then_some(Deadline { at: Instant::ZERO, why: "a start" })
        }
    }

    /// Stops the loop at the first event, and remembers that there was one.
    struct Stopper(Mailbox<()>, bool);

    impl Host<Impatient> for Stopper {
        fn effect(&mut self, _: OpId, _: Effect) -> Option<Completion> {
            None
        }

        fn event(&mut self, _: Instant, (): ()) {
            self.1 = true;
            self.0.send(Mail::Stop);
        }

        fn reload(&mut self) {}
    }

    fn config(dir: &std::path::Path) -> ClusterConfig {
        std::fs::write(dir.join("cluster.key"), "5a".repeat(32)).unwrap();
        let port = crate::free_port(Ipv4Addr::LOCALHOST).unwrap();
        let map = format!(
            "cluster = \"c\"\nepoch = 1\ncopies = 1\nkey_file = \"cluster.key\"\n[network]\nmulticast = \"off\"\n\
             [[target]]\nid = 1\ndomain = \"d\"\naddress = \"127.0.0.1:{port}\"\ndata = \"t\"\ncapacity = \"64MiB\"\n"
        );
        std::fs::write(dir.join("cluster.toml"), map).unwrap();
        ClusterConfig::load(&dir.join("cluster.toml")).unwrap()
    }

    #[test]
    fn what_is_due_at_the_start_does_not_wait_for_a_datagram() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let mut net = Udp::open(&config, config.targets[0].address, NodeId(1)).unwrap();
        let (mailbox, mail) = Mailbox::new().unwrap();
        let mut host = Stopper(mailbox.clone(), false);
        let (over, watch) = channel::<()>();
        let impatience = mailbox.clone();
        std::thread::spawn(move || {
            if watch.recv_timeout(LIMIT) == Err(RecvTimeoutError::Timeout) {
                impatience.send(Mail::Stop);
            }
        });
        run(Impatient::default(), &mut net, &mail, &mailbox, &mut host).unwrap();
        drop(over);
        assert!(host.1, "it was not woken");
    }

    #[test]
    fn a_full_mailbox_does_not_keep_datagrams_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let config = config(dir.path());
        let mut net = Udp::open(&config, config.targets[0].address, NodeId(1)).unwrap();
        let sender = NodeId(NodeId::FIRST_INITIATOR);
        let mut other = Udp::open(&config, SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), sender).unwrap();
        let map = config.map().unwrap();
        let head = Head { cluster: map.cluster, epoch: map.epoch, from: sender };
        let ping = encode_message(head, &Message::Ping { txn: protocol::id::TxnId(1) });
        let datagram = Transmit { to: Destination::Node(NodeId(1)), body: Body::Control(ping) };
        // Their sessions know each other, so that one datagram is accepted at once.
        let deadline = std::time::Instant::now() + LIMIT;
        for attempt in 0_u32.. {
            if attempt.is_multiple_of(1_000) {
                // A first datagram is repeated once: a node that gets no answer asks again.
                other.send(&datagram);
            }
            if net.arrived().is_some() {
                break;
            }
            assert!(std::time::Instant::now() < deadline, "they do not get to know each other");
            net.receive(0);
            other.receive(0);
            assert!(other.arrived().is_none());
        }
        let (mailbox, mail) = Mailbox::new().unwrap();
        let letters = 10 * LETTERS;
        assert!((0..letters).all(|_| mailbox.send(Mail::Request(()))));
        mailbox.send(Mail::Stop);
        let mut host = Reader { diary: Vec::new(), other, datagram };
        run(Diary::default(), &mut net, &mail, &mailbox, &mut host).unwrap();
        let position = host.diary.iter().position(|what| *what == "datagram").expect("it is received");
        // The bell may be polled once more before the socket.
        assert!(position <= 2 * LETTERS, "after {position} letters");
        assert_eq!(host.diary.len(), letters + 1, "every letter is read");
    }
}
