//! How the rivals choose among the members of a chunk's group, and what their targets say of themselves. What is taken
//! from whom is in `docs/simulation.md`.

use std::collections::{BTreeMap, VecDeque};

use protocol::id::{NodeId, TxnId};
use protocol::rng::Rng;
use protocol::time::{Instant, Span};

use crate::Members;
use crate::config::{Config, Protocol};
use crate::wire::Load;

/// A new sample is one in so many parts of an average.
const WEIGHT: i64 = 4;
/// Binary digits behind the point in a mean number of copies.
const DIGITS: u32 = 8;
/// Probes for each copy.
const PROBES: usize = 3;
/// Puts that an answer to a probe may serve.
const USES: u32 = 2;
/// Answers after which an older one no longer counts towards the quantile.
const RECENT: usize = 128;
/// Percent of the recent answers whose targets are not hot.
const COLD: usize = 84;
/// Numbers of copies in flight that a target tells apart.
const DEPTHS: usize = 64;

/// What an initiator is to do with a new put.
#[derive(Debug)]
pub(crate) struct Placed {
    /// Where its copies go; nowhere until `probes` are answered.
    pub(crate) targets: Vec<NodeId>,
    /// Whom to ask how busy they are.
    pub(crate) probes: Vec<NodeId>,
}

/// What an initiator knows of a target.
#[derive(Clone, Copy, Debug, Default)]
struct Seen {
    /// C3: own copies that are not acknowledged.
    outstanding: u32,
    /// C3: mean time from the request to the acknowledgement, in nanoseconds.
    response: i64,
    /// C3: mean time that the disk takes for one copy, in nanoseconds.
    service: i64,
    /// C3: mean number of copies in flight there, with [`DIGITS`].
    queue: i64,
    /// Prequal: the last answer, and how many puts it may still serve.
    load: Load,
    uses: u32,
}

/// The policy of an initiator.
#[derive(Debug)]
pub(crate) struct Chooser {
    protocol: Protocol,
    copies: usize,
    initiators: u32,
    rng: Rng,
    last_group: Option<usize>,
    /// One entry a target.
    seen: BTreeMap<NodeId, Seen>,
    /// Copies in flight at targets, by the last [`RECENT`] answers.
    recent: VecDeque<u32>,
}

impl Chooser {
    pub(crate) fn new(config: &Config, rng: Rng) -> Self {
        Self {
            protocol: config.protocol,
            copies: usize::from(config.copies),
            initiators: config.initiators,
            rng,
            last_group: None,
            seen: BTreeMap::new(),
            recent: VecDeque::with_capacity(RECENT),
        }
    }

    /// Begins with a put; a disk that nothing is known of should take `write` for a copy.
    pub(crate) fn choose_targets(&mut self, members: &Members, write: Span) -> Placed {
        let group = members.next_group(&mut self.rng, &mut self.last_group);
        // In an order of chance: whoever is as good as another must not lose for its number.
        let mut group: Vec<NodeId> = members.groups[group].1.to_vec();
        for last in (1..group.len()).rev() {
            group.swap(last, self.rng.below(last as u64 + 1) as usize);
        }
        match self.protocol {
            Protocol::LeastOfTwo => {
                group.truncate(2 * self.copies);
                Placed { targets: Vec::new(), probes: group }
            }
            Protocol::PrequalSync => {
                group.truncate(PROBES * self.copies);
                Placed { targets: Vec::new(), probes: group }
            }
            Protocol::PrequalLike => {
                let probes = (0..PROBES * self.copies)
                    .map(|_| members.targets[self.rng.below(members.targets.len() as u64) as usize]);
                let probes = probes.collect();
                Placed { targets: self.pooled(&group), probes }
            }
            _ => Placed { targets: self.best_scores(group, write), probes: Vec::new() },
        }
    }

    /// The choice of a put that waited, from the answers to its probes in the order in which those were sent.
    pub(crate) fn choose(&mut self, answers: &[(NodeId, Load)]) -> Vec<NodeId> {
        if self.protocol == Protocol::LeastOfTwo {
            let pairs = (0..self.copies.min(answers.len())).map(|copy| {
                let second = answers.get(copy + self.copies);
                [Some(&answers[copy]), second].into_iter().flatten().min_by_key(|(_, load)| load.in_flight)
            });
            return pairs.flatten().map(|(target, _)| *target).collect();
        }
        self.coldest(answers.to_vec())
    }

    /// An answer to a probe.
    pub(crate) fn answered(&mut self, target: NodeId, load: Load) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(load.in_flight);
        let seen = self.seen.entry(target).or_default();
        (seen.load, seen.uses) = (load, USES);
    }

    /// A copy is on disk, `took` after its target was asked.
    pub(crate) fn acknowledged(&mut self, target: NodeId, took: Span, load: Load) {
        let seen = self.seen.entry(target).or_default();
        let mean = |of: &mut i64, sample: i64| *of += (sample - *of) / WEIGHT;
        mean(&mut seen.response, took.as_nanos() as i64);
        mean(&mut seen.queue, i64::from(load.in_flight) << DIGITS);
        mean(&mut seen.service, load.takes as i64);
        seen.outstanding = seen.outstanding.saturating_sub(1);
    }

    /// C3's ranking: the least response time without service, and service for the cube of the queue that is expected.
    /// Every copy of our own that is not acknowledged counts as if each initiator had one.
    fn best_scores(&mut self, mut group: Vec<NodeId>, write: Span) -> Vec<NodeId> {
        let unknown = Seen { service: write.as_nanos() as i64, response: write.as_nanos() as i64, ..Seen::default() };
        let score = |target: &NodeId| -> i128 {
            let seen = self.seen.get(target).unwrap_or(&unknown);
            let own = i128::from(seen.outstanding) * i128::from(self.initiators);
            let queue = ((1 + own) << DIGITS) + i128::from(seen.queue);
            let waits = (queue * queue * queue * i128::from(seen.service)) >> (3 * DIGITS);
            i128::from(seen.response - seen.service) + waits
        };
        group.sort_by_cached_key(score);
        group.truncate(self.copies);
        for target in &group {
            self.seen.entry(*target).or_insert(unknown).outstanding += 1;
        }
        group
    }

    /// The coldest of the members whose answers are in the pool; without enough of them, any others.
    fn pooled(&mut self, group: &[NodeId]) -> Vec<NodeId> {
        let known = group.iter().filter_map(|target| {
            let seen = self.seen.get(target).filter(|seen| seen.uses > 0)?;
            Some((*target, seen.load))
        });
        let mut chosen = self.coldest(known.collect());
        let others: Vec<NodeId> = group.iter().filter(|target| !chosen.contains(target)).copied().collect();
        let missing = self.copies - chosen.len();
        chosen.extend(others.into_iter().take(missing));
        for target in &chosen {
            if let Some(seen) = self.seen.get_mut(target) {
                seen.load.in_flight += 1;
                seen.uses = seen.uses.saturating_sub(1);
            }
        }
        chosen
    }

    /// Prequal's rule: who has no more in flight than most is cold, and of the cold those that are soonest done; when
    /// there are none, who has the fewest in flight.
    fn coldest(&self, mut answers: Vec<(NodeId, Load)>) -> Vec<NodeId> {
        let mut recent: Vec<u32> = self.recent.iter().copied().collect();
        recent.sort_unstable();
        let most = recent.get((recent.len() * COLD / 100).min(recent.len().saturating_sub(1))).copied().unwrap_or(0);
        answers.sort_by_key(|(_, load)| {
            let hot = load.in_flight > most;
            (hot, if hot { u64::from(load.in_flight) } else { load.takes })
        });
        answers.into_iter().take(self.copies).map(|(target, _)| target).collect()
    }
}

/// A copy that is not on disk.
#[derive(Debug)]
struct Open {
    txn: TxnId,
    /// When it was asked for, and how many were before it.
    began: Instant,
    before: usize,
    /// To write it without waiting.
    write: Span,
}

/// A target's account of what it was asked to take.
#[derive(Debug)]
pub(crate) struct Account {
    open: Vec<Open>,
    /// Mean nanoseconds until a copy is on disk, by the number of those that were before it; 0 where none is known.
    took: [i64; DEPTHS],
}

impl Account {
    pub(crate) const fn new() -> Self {
        Self { open: Vec::new(), took: [0; DEPTHS] }
    }

    pub(crate) fn begins(&mut self, now: Instant, txn: TxnId, write: Span) {
        self.open.push(Open { txn, began: now, before: self.open.len(), write });
    }

    /// A copy is on disk: what its write took without waiting.
    pub(crate) fn ends(&mut self, now: Instant, txn: TxnId) -> Span {
        let Some(at) = self.open.iter().position(|open| open.txn == txn) else { return Span::ZERO };
        let Open { began, before, write, .. } = self.open.swap_remove(at);
        let mean = &mut self.took[before.min(DEPTHS - 1)];
        let sample = now.since(began).as_nanos() as i64;
        *mean = if *mean == 0 { sample } else { *mean + (sample - *mean) / WEIGHT };
        write
    }

    pub(crate) fn in_flight(&self) -> u32 {
        self.open.len() as u32
    }

    /// What is said to a probe: the time that copies took which found about as many before them. While none is known,
    /// the time to `write` it and those before it.
    pub(crate) fn load(&self, write: Span) -> Load {
        let here = self.open.len().min(DEPTHS - 1);
        let near = (0..DEPTHS).filter(|depth| self.took[*depth] != 0).min_by_key(|depth| depth.abs_diff(here));
        let unknown = write.times(here as u64 + 1).as_nanos();
        Load { in_flight: self.in_flight(), takes: near.map_or(unknown, |depth| self.took[depth] as u64) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WRITE: Span = Span::from_micros(100);

    fn chooser(protocol: Protocol) -> Chooser {
        let mut config = Config::paper(protocol, 400 << 20);
        (config.copies, config.initiators) = (1, 10);
        Chooser::new(&config, Rng::new(1))
    }

    fn load(in_flight: u32, takes: u64) -> Load {
        Load { in_flight, takes }
    }

    fn targets(count: u32) -> Vec<NodeId> {
        (0..count).map(NodeId).collect()
    }

    #[test]
    fn of_a_pair_the_one_with_fewer_in_flight_is_chosen() {
        let mut chooser = chooser(Protocol::LeastOfTwo);
        assert_eq!(chooser.choose(&[(NodeId(0), load(3, 1)), (NodeId(1), load(2, 9))]), [NodeId(1)]);
        assert_eq!(chooser.choose(&[(NodeId(0), load(2, 9)), (NodeId(1), load(3, 1))]), [NodeId(0)]);
        chooser.copies = 2;
        let answers = [(0, 5), (1, 1), (2, 4), (3, 2)].map(|(n, in_flight)| (NodeId(n), load(in_flight, 0)));
        assert_eq!(
            chooser.choose(&answers),
            [NodeId(2), NodeId(1)],
            "pairs are the first and third, second and fourth"
        );
    }

    /// A queue of three costs 4^3 services and one of none 1: a disk that is ten times slower wins against the first
    /// and loses against a queue of one, which costs 2^3.
    #[test]
    fn scores_rise_with_the_cube_of_the_queue() {
        let best_beside_slow = |queue: u32| {
            let mut chooser = chooser(Protocol::C3Like);
            for _ in 0..100 {
                chooser.acknowledged(NodeId(0), WRITE, load(queue, WRITE.as_nanos()));
                chooser.acknowledged(NodeId(1), WRITE.times(10), load(0, WRITE.times(10).as_nanos()));
            }
            chooser.best_scores(targets(2), WRITE)
        };
        assert_eq!(best_beside_slow(3), [NodeId(1)]);
        assert_eq!(best_beside_slow(1), [NodeId(0)]);
    }

    #[test]
    fn a_copy_under_way_counts_for_every_initiator_until_it_is_acknowledged() {
        let mut chooser = chooser(Protocol::C3Like);
        let first = chooser.best_scores(targets(2), WRITE);
        let second = chooser.best_scores(targets(2), WRITE);
        assert_ne!(first, second);
        chooser.acknowledged(first[0], WRITE, load(0, WRITE.as_nanos()));
        assert_eq!(chooser.best_scores(targets(2), WRITE), first);
    }

    #[test]
    fn the_soonest_of_the_cold_is_chosen_and_of_the_hot_the_least_busy() {
        let mut chooser = chooser(Protocol::PrequalSync);
        for in_flight in 0..100 {
            chooser.answered(NodeId(9), load(in_flight, 0));
        }
        let cold = [(NodeId(0), load(84, 50)), (NodeId(1), load(3, 60)), (NodeId(2), load(85, 1))];
        assert_eq!(chooser.choose(&cold), [NodeId(0)], "who has more in flight than 84 in 100 is hot");
        let hot = [(NodeId(0), load(99, 1)), (NodeId(1), load(90, 60))];
        assert_eq!(chooser.choose(&hot), [NodeId(1)]);
    }

    #[test]
    fn an_answer_serves_so_many_puts_and_each_makes_its_target_busier() {
        let mut chooser = chooser(Protocol::PrequalLike);
        chooser.answered(NodeId(1), load(0, 5));
        for used in 1..=USES {
            assert_eq!(chooser.pooled(&targets(2)), [NodeId(1)]);
            assert_eq!(chooser.seen[&NodeId(1)].load.in_flight, used);
        }
        assert_eq!(chooser.pooled(&targets(2)), [NodeId(0)], "nothing is known of either: in the order of chance");
    }

    #[test]
    fn what_a_copy_should_take_is_what_those_took_that_found_as_many() {
        let mut account = Account::new();
        let at = |micros: u64| Instant::from_nanos(micros * 1_000);
        assert_eq!(account.load(WRITE), load(0, 100_000));
        account.begins(at(0), TxnId(1), WRITE);
        account.begins(at(0), TxnId(2), WRITE);
        assert_eq!(account.load(WRITE), load(2, 300_000));
        account.ends(at(10), TxnId(1));
        account.ends(at(30), TxnId(2));
        assert_eq!(account.load(WRITE), load(0, 10_000));
        account.begins(at(40), TxnId(3), WRITE);
        assert_eq!(account.load(WRITE), load(1, 30_000));
    }
}
