//! Connections move between workers all the time, with companions and without, and no byte of any is lost or overtaken; and what
//! several connections of a client bring is handed on in its order. Each way to get that wrong is planted, and found.
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
    /// What has no payload passes what a companion has of its connection.
    Overtake,
    /// What comes over several connections of a client is handed on as it comes.
    Unordered,
}

const BUGS: [Bug; 5] = [Bug::LoseRest, Bug::Forget, Bug::HandOnLate, Bug::Overtake, Bug::Unordered];
/// Each of them shows in so many.
const SEEDS: u64 = 300;
const CLIENTS: usize = 3;
const LANES: usize = 2;
const WORKERS: usize = 4;
const FRAMES: u64 = 80;
/// Longer than anything takes here.
const PATIENCE: Duration = Duration::from_secs(20);
/// What is lost does not come in that time; what is late may be taken for lost, where a bug is to be found.
const LOST: Duration = Duration::from_millis(500);

pub(super) fn given_away(bug: Option<Bug>, mut reader: Reader) -> Option<Reader> {
    match bug {
        Some(Bug::LoseRest) => reader.lose_rest(),
        Some(Bug::Forget) => return None,
        _ => {}
    }
    Some(reader)
}

pub(super) fn hand_on_later<D: Dispatch>(shared: &Shared<D>, own: usize, connection: u32, frames: &mut Vec<Bytes>) {
    if shared.bug == Some(Bug::HandOnLate) && !frames.is_empty() {
        let (dispatch, frames) = (Arc::clone(&shared.dispatch), core::mem::take(frames));
        let arrival = Arrival { worker: own, connection, at: now(), frames, end: None };
        std::thread::spawn(move || dispatch.came(arrival));
    }
}

/// Whether what has no payload is handed on although a companion has not handed on what came before.
pub(super) fn overtakes(bug: Option<Bug>) -> bool {
    bug == Some(Bug::Overtake)
}

/// What came over each connection, and what was made of it for each client.
#[derive(Debug)]
struct Came {
    lanes: Mutex<Vec<Vec<u64>>>,
    clients: Vec<(InOrder<u64>, Mutex<Vec<u64>>)>,
    bug: Option<Bug>,
}

impl Came {
    fn new(bug: Option<Bug>) -> Self {
        let clients = (0..CLIENTS).map(|_| (InOrder::new(FRAMES as usize), Mutex::default())).collect();
        Self { lanes: Mutex::new(vec![Vec::new(); CLIENTS * LANES]), clients, bug }
    }

    /// Whether all is there; none where something is there that should not be.
    fn is_all(&self) -> Option<bool> {
        let handed: Vec<Vec<u64>> = self.clients.iter().map(|(_, handed)| lock(handed).clone()).collect();
        let is_kept = lock(&self.lanes).iter().all(|numbers| numbers.is_sorted())
            && handed.iter().all(|numbers| numbers.iter().copied().eq(0..numbers.len() as u64));
        is_kept.then(|| handed.iter().all(|numbers| numbers.len() == FRAMES as usize))
    }
}

impl Dispatch for Came {
    fn came(&self, arrival: Arrival) -> Spent {
        let Arrival { connection, frames, .. } = arrival;
        let connection = connection as usize;
        let numbers: Vec<u64> = frames.iter().map(|frame| u64::from_le_bytes(*frame.first_chunk().unwrap())).collect();
        lock(&self.lanes)[connection].extend(&numbers);
        let (in_order, handed) = &self.clients[connection / LANES];
        if self.bug == Some(Bug::Unordered) {
            lock(handed).extend(numbers);
        } else {
            let items = numbers.into_iter().map(|number| (number, number));
            // What came twice where a bug is planted is seen by what is handed on, or is not.
            let _ = in_order.came(items, |number| lock(handed).push(number));
        }
        Spent::default()
    }
}

/// What a client sends over its connections: frames, each over any of them.
fn sent(rng: &mut Rng) -> [Vec<u8>; LANES] {
    let mut lanes = [const { Vec::new() }; LANES];
    for number in 0..FRAMES {
        let bytes = &mut lanes[rng.below(LANES as u64) as usize];
        let length = size_of::<u64>() + rng.below(20_000) as usize;
        bytes.extend_from_slice(&(length as u32).to_le_bytes());
        bytes.extend_from_slice(&number.to_le_bytes());
        bytes.resize(bytes.len() + length - size_of::<u64>(), 7);
    }
    lanes
}

/// Sends frames in parts, while connections move; whether all came in order.
fn is_kept(seed: u64, bug: Option<Bug>) -> bool {
    let mut rng = Rng::new(seed);
    let came = Arc::new(Came::new(bug));
    let companions = if bug == Some(Bug::Overtake) || rng.chance(1, 2) { WORKERS } else { 0 };
    let mut shared = dual::Shared::new(companions, Arc::clone(&came));
    shared.bug = bug;
    let dispatch = Arc::new(Dual::run(shared, "companion").unwrap());
    let desks = (0..WORKERS).map(|_| Desk::new().unwrap()).collect();
    let (pool, stops) = (Mutex::new(Pool::new(Policy::RoundRobin, WORKERS)), AtomicBool::new(false));
    let workers = Workers::run(Shared { pool, desks, dispatch, stops, bug }, "worker").unwrap();
    let mut senders = Vec::new();
    for bytes in (0..CLIENTS).flat_map(|_| sent(&mut rng)) {
        let (here, there) = Socket::pair(Domain::UNIX, Type::STREAM, None).unwrap();
        there.set_nonblocking(true).unwrap();
        assert!(workers.serve(senders.len() as u32, Reader::new(Arc::new(Stream::plain(there)))));
        senders.push((here, bytes, 0));
    }
    while senders.iter().any(|(_, bytes, sent)| *sent < bytes.len()) {
        let (socket, bytes, sent) = &mut senders[rng.below((CLIENTS * LANES) as u64) as usize];
        let most = (bytes.len() - *sent).min(1 + rng.below(30_000) as usize);
        // A worker that gave up has closed the other side.
        *sent = (&*socket).write(&bytes[*sent..*sent + most]).map_or(bytes.len(), |count| *sent + count);
        if rng.chance(1, 2) {
            let connection = rng.below((CLIENTS * LANES) as u64) as u32;
            workers.assign(connection, rng.below(WORKERS as u64) as usize);
        }
    }
    let began = std::time::Instant::now();
    let patience = if bug.is_some() { LOST } else { PATIENCE };
    while began.elapsed() < patience {
        match came.is_all() {
            Some(true) => return true,
            Some(false) => std::thread::sleep(Duration::from_millis(1)),
            None => return false,
        }
    }
    // What was overtaken is there: only what is lost is not.
    matches!(bug, Some(Bug::HandOnLate | Bug::Overtake | Bug::Unordered))
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
