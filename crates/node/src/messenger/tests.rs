//! Connections move between workers all the time, and no byte of any is lost or overtaken. Each way to get that wrong is planted,
//! and found.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use std::io::Write;
use std::time::Duration;

use protocol::rng::Rng;
use socket2::{Domain, Socket, Type};

use super::*;

/// A way to get it wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// What was read of a frame that is not whole does not move with its connection.
    LoseRest,
    /// The connection that a worker gives away is nobody's.
    Forget,
    /// What was read is handed on by a thread that nobody waits for: the next worker may be sooner.
    HandOnLate,
}

const BUGS: [Bug; 3] = [Bug::LoseRest, Bug::Forget, Bug::HandOnLate];
/// Each of them shows in so many.
const SEEDS: u64 = 300;
const CONNECTIONS: usize = 6;
const WORKERS: usize = 4;
const FRAMES: u32 = 40;
/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(20);
/// What is lost does not come in that time; what is late may be taken for lost, where a bug is to be found.
const LOST: Duration = Duration::from_millis(500);

pub(super) fn given_away(bug: Option<Bug>, mut reader: Reader) -> Option<Reader> {
    match bug {
        Some(Bug::LoseRest) => reader.lose_rest(),
        Some(Bug::Forget) => return None,
        Some(Bug::HandOnLate) | None => {}
    }
    Some(reader)
}

pub(super) fn hand_on_later<D: Dispatch>(shared: &Shared<D>, own: usize, connection: u32, frames: &mut Vec<Bytes>) {
    if shared.bug == Some(Bug::HandOnLate) && !frames.is_empty() {
        let (dispatch, mut frames) = (Arc::clone(&shared.dispatch), core::mem::take(frames));
        std::thread::spawn(move || dispatch.came(own, connection, now(), &mut frames, None));
    }
}

/// What came over each connection, in the order in which it came.
#[derive(Debug, Default)]
struct Came(Mutex<Vec<Vec<u32>>>);

impl Dispatch for Came {
    fn came(&self, _: usize, connection: u32, _: Instant, frames: &mut Vec<Bytes>, _: Option<Progress>) -> Span {
        let numbers = frames.drain(..).map(|frame| u32::from_le_bytes(*frame.first_chunk().unwrap()));
        lock(&self.0)[connection as usize].extend(numbers);
        Span::ZERO
    }
}

/// Sends frames in parts, while connections move; whether all came in order.
fn is_kept(seed: u64, bug: Option<Bug>) -> bool {
    let mut rng = Rng::new(seed);
    let dispatch = Arc::new(Came(Mutex::new(vec![Vec::new(); CONNECTIONS])));
    let desks = (0..WORKERS).map(|_| Desk::new().unwrap()).collect();
    let (pool, stops) = (Mutex::new(Pool::new(Policy::RoundRobin, WORKERS)), AtomicBool::new(false));
    let shared = Shared { pool, desks, dispatch: Arc::clone(&dispatch), stops, bug };
    let workers = Workers::run(shared, "worker").unwrap();
    let mut senders = Vec::new();
    for connection in 0..CONNECTIONS {
        let (here, there) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        there.set_nonblocking(true).unwrap();
        assert!(workers.serve(connection as u32, Reader::new(Arc::new(Stream::plain(there)))));
        let mut bytes = Vec::new();
        for number in 0..FRAMES {
            let length = LENGTH as u32 + rng.below(3_000) as u32;
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(&number.to_le_bytes());
            bytes.resize(bytes.len() + length as usize - LENGTH, 7);
        }
        senders.push((here, bytes, 0));
    }
    while senders.iter().any(|(_, bytes, sent)| *sent < bytes.len()) {
        let connection = rng.below(CONNECTIONS as u64) as usize;
        let (socket, bytes, sent) = &mut senders[connection];
        let most = (bytes.len() - *sent).min(1 + rng.below(5_000) as usize);
        // A worker that gave up has closed the other side.
        *sent = (&*socket).write(&bytes[*sent..*sent + most]).map_or(bytes.len(), |count| *sent + count);
        if rng.chance(1, 2) {
            workers.assign(rng.below(CONNECTIONS as u64) as u32, rng.below(WORKERS as u64) as usize);
        }
    }
    let all: Vec<Vec<u32>> = vec![(0..FRAMES).collect(); CONNECTIONS];
    let began = std::time::Instant::now();
    let patience = if bug.is_some() { LOST } else { PATIENCE };
    while began.elapsed() < patience {
        let came = lock(&dispatch.0);
        if *came == all {
            return true;
        }
        if came.iter().any(|numbers| !numbers.iter().copied().eq(0..numbers.len() as u32)) {
            return false;
        }
        drop(came);
        std::thread::sleep(Duration::from_millis(1));
    }
    false
}

#[test]
fn nothing_is_lost_or_overtaken_when_connections_move() {
    for seed in 0..SEEDS {
        assert!(is_kept(seed, None), "seed {seed}");
    }
}

#[test]
fn every_planted_bug_is_found() {
    for bug in BUGS {
        assert!((0..SEEDS).any(|seed| !is_kept(seed, Some(bug))), "{bug:?} shows in none of {SEEDS} seeds");
    }
}
