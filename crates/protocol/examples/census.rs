//! What a census costs: `cargo run --release --package reservoir-protocol --example census [CHUNKS] [DIFFER]`.
//!
//! Two members of a group hold the same chunks. Their steward sweeps all of them once; then some copies are lost, half of them here and
//! half there, and it sweeps again. Shown are the messages between the two, their bytes, and the processor time of both
//! machines and of their indices, which are in memory.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::time::Duration;

use bytes::Bytes;
use protocol::census::{Count, Counted, Holding, IdRange};
use protocol::config::Config;
use protocol::id::{ChunkId, ChunkKind, ClusterId, Epoch, NodeId};
use protocol::machine::{Body, Completion, Destination, Effect, Input, Machine, Output};
use protocol::map::{ClusterMap, TargetEntry};
use protocol::redundancy::Wanted;
use protocol::target::{Setup, Target};
use protocol::time::{Instant, Span};
use protocol::wire::{Message, decode_message};

/// How long a message is under way.
const TRIP: Span = Span::from_micros(50);

/// Two targets and what they hold.
struct Pair {
    now: Instant,
    targets: [Target; 2],
    held: [BTreeSet<ChunkId>; 2],
    under_way: VecDeque<(usize, Bytes)>,
    bytes: usize,
    messages: usize,
    /// The messages and bytes of the first sweep.
    look: Option<(usize, usize)>,
    /// Chunks of which the steward told a holder to put them.
    found: BTreeSet<ChunkId>,
}

impl Pair {
    fn new(chunks: &BTreeSet<ChunkId>) -> Result<Self, Box<dyn Error>> {
        let entry = |n: u32| TargetEntry { id: NodeId(n), domain: n as u16, capacity: 1 << 40 };
        let map = ClusterMap::new(ClusterId(1), Epoch(1), 2, 1, vec![entry(1), entry(2)])?;
        let nothing = Span::ZERO;
        let config = Config { census_interval: Span::from_secs(10), scrub_interval: nothing, ..Config::default() };
        let target = |n: u32| {
            let setup = Setup { id: NodeId(n), map: map.clone(), free: 1 << 40, chunks: 0, seed: n.into(), bug: None };
            Target::new(setup, config.clone())
        };
        Ok(Self {
            now: Instant::ZERO,
            targets: [target(1), target(2)],
            held: [chunks.clone(), chunks.clone()],
            under_way: VecDeque::new(),
            bytes: 0,
            messages: 0,
            look: None,
            found: BTreeSet::new(),
        })
    }

    /// Lets a target do what it wants done.
    fn drain(&mut self, nth: usize) {
        loop {
            match self.targets[nth].poll_output() {
                Output::Transmit(transmit) => {
                    let (Destination::Node(to), Body::Control(bytes)) = (transmit.to, transmit.body) else { continue };
                    (self.bytes, self.messages) = (self.bytes + bytes.len(), self.messages + 1);
                    self.under_way.push_back((to.0 as usize - 1, bytes));
                }
                Output::Effect { op, effect: Effect::Census { range, salt, after, .. } } => {
                    let completion = Completion::Counted(count(&self.held[nth], range, salt, after));
                    self.targets[nth].handle_input(self.now, Input::Done { op, completion });
                }
                // A chunk is to be put from here: that it is found is enough.
                Output::Effect { op, effect: Effect::Lookup { id, .. } } => {
                    self.found.insert(id);
                    self.targets[nth].handle_input(self.now, Input::Done { op, completion: Completion::Found(None) });
                }
                Output::Effect { .. } | Output::Event(_) => {}
                Output::Idle(_) => return,
            }
        }
    }

    /// Runs until the steward knows how all is, and has found so many chunks.
    fn run(&mut self, find: usize) -> Result<(), Box<dyn Error>> {
        let is_whole = |pair: &Self| pair.targets.iter().flat_map(Target::health).any(|(_, health)| health.whole);
        while self.found.len() < find || find == 0 && !is_whole(self) {
            if let Some((to, bytes)) = self.under_way.pop_front() {
                self.now += TRIP;
                if matches!(decode_message(&bytes), Some((_, Message::Restore { .. }))) {
                    self.bytes -= bytes.len();
                }
                self.targets[to].handle_input(self.now, Input::Datagram { bytes, arrived: self.now });
                self.drain(to);
                continue;
            }
            let next = self.targets.iter().filter_map(|target| Some(target.next_deadline()?.at)).min();
            let next = self.now.max(next.ok_or("nothing is left to do")?);
            // The steward rests, and then looks again.
            if next.since(self.now) > Span::from_millis(100) && self.look.is_none() && self.messages > 0 {
                self.look = Some((self.messages, self.bytes));
            }
            self.now = next;
            for nth in 0..2 {
                self.targets[nth].handle_input(self.now, Input::Wake);
                self.drain(nth);
            }
        }
        Ok(())
    }

    fn measured(
        &mut self,
        what: &str,
        run: impl FnOnce(&mut Self) -> Result<(), Box<dyn Error>>,
    ) -> Result<(), Box<dyn Error>> {
        (self.bytes, self.messages, self.look) = (0, 0, None);
        self.found.clear();
        let begun = processor_time()?;
        run(self)?;
        let took = processor_time()? - begun;
        let (messages, kb, found) = (self.messages, self.bytes as f64 / 1000.0, self.found.len());
        println!("{what:<42} {messages:>9} {kb:>11.1} {:>8.3} {found:>7}", took.as_secs_f64());
        if let Some((messages, bytes)) = self.look.filter(|_| found > 0) {
            println!("{:<42} {messages:>9} {:>11.1}", "  of that the first look", bytes as f64 / 1000.0);
        }
        Ok(())
    }
}

/// What is held of a range, as the store counts it.
fn count(held: &BTreeSet<ChunkId>, range: IdRange, salt: u64, after: Option<ChunkId>) -> Holding {
    let mut count = Count::new(range, salt, after);
    for kind in [ChunkKind::Payload, ChunkKind::Manifest] {
        let (first, last) = range.ends(kind);
        let from = after.filter(|after| *after >= first).unwrap_or(first);
        if from > last {
            continue;
        }
        if !held.range(from..=last).all(|id| count.add(Counted { id: *id, wanted: Wanted::BY_MAP })) {
            break;
        }
    }
    count.finish()
}

/// Processor time of this process, of which there is one thread.
#[expect(clippy::disallowed_methods, reason = "what it measures is no machine")]
fn processor_time() -> Result<Duration, Box<dyn Error>> {
    let stat = std::fs::read_to_string("/proc/self/schedstat")?;
    let nanos: u64 = stat.split_whitespace().next().ok_or("no time in /proc/self/schedstat")?.parse()?;
    Ok(Duration::from_nanos(nanos))
}

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut number = |otherwise: usize| args.next().map_or(Ok(otherwise), |n| n.parse::<usize>());
    let (chunks, differ) = (number(1_000_000)?, number(100)?);
    let all: BTreeSet<ChunkId> = (0..chunks).map(|n| ChunkId::of_payload(&n.to_le_bytes())).collect();
    let mut pair = Pair::new(&all)?;
    println!("{:<42} {:>9} {:>11} {:>8} {:>7}", "", "messages", "kB", "CPU s", "found");
    pair.measured("first sweep", |pair| pair.run(0))?;
    // Spread evenly over the ids.
    let lost: BTreeMap<usize, ChunkId> =
        all.iter().step_by((chunks / differ.max(1)).max(1)).take(differ).copied().enumerate().collect();
    for (nth, id) in &lost {
        pair.held[nth % 2].remove(id);
    }
    let found = lost.len();
    pair.measured(&format!("until {found} copies are found lost at two looks"), |pair| pair.run(found))?;
    Ok(())
}
