//! What a seed decides of the gateways that propose cluster maps, of the place where maps are decided, and of targets that are lost
//! for good.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use protocol::config::Config;
use protocol::id::NodeId;
use protocol::rng::Rng;
use protocol::time::Span;

use crate::topology::Topology;

/// When something begins, and when it is over.
pub type Period = (Span, Span);

/// How maps are decided, and what goes wrong with that.
#[derive(Clone, Debug)]
pub struct Governing {
    /// Gateways that propose.
    pub gateways: usize,
    /// What operators ask of which gateway, and when.
    pub orders: Vec<(Span, usize)>,
    /// The longest that a question takes to the authority, and its answer back.
    pub trip: Span,
    /// How long a gateway waits for an answer.
    pub patience: Span,
    /// Of 1,000 questions and answers, so many are lost.
    pub lost: u64,
    /// Which gateways do not reach the authority.
    pub partitions: Vec<(usize, Period)>,
    /// When it is down.
    pub outage: Option<Period>,
    /// Gateways that are down; each is another process afterwards.
    pub crashes: Vec<(usize, Period)>,
    /// From one look of a gateway at the targets to the next.
    pub look: Span,
    /// How long a target is down before it is taken out; never, where nothing is lost for good.
    pub out_after: Span,
    /// Targets that are lost for good, all of one failure domain, and when.
    pub dead: Vec<(NodeId, Span)>,
    /// One of them of which all other copies of something go bad, and when.
    pub orphan: Option<(NodeId, Span)>,
    /// Targets of several failure domains that a switch cuts off for longer than it takes until one is out, and maybe some of others.
    pub switch: Option<(Vec<NodeId>, Period)>,
    /// Those of them that are reached last, and when.
    pub last: (Vec<NodeId>, Span),
}

/// How often things happened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Governed {
    /// Maps that were decided.
    pub decided: u32,
    /// Proposals in conflict with another.
    pub conflicts: u32,
    /// Proposals that were decided, whose answer was lost.
    pub unsure: u32,
    /// Targets lost for good that were taken out.
    pub taken_out: u32,
    /// Targets lost for good that could not be.
    pub stayed: u32,
    /// Looks at which somebody was down for long enough, and nobody was taken out.
    pub held: u32,
}

impl Governed {
    pub(crate) fn add(&mut self, other: &Self) {
        self.decided += other.decided;
        self.conflicts += other.conflicts;
        self.unsure += other.unsure;
        self.taken_out += other.taken_out;
        self.stayed += other.stayed;
        self.held += other.held;
    }
}

impl Governing {
    /// For two thirds of the seeds.
    pub(crate) fn draw(seed: u64, topology: &Topology) -> Option<Self> {
        let mut rng = Rng::new(seed).fork(70);
        if !rng.chance(2, 3) {
            return None;
        }
        let millis = |rng: &mut Rng, from: u64, more: u64| Span::from_millis(from + rng.below(more));
        let period = |rng: &mut Rng| {
            let begins = 10 + rng.below(300);
            (Span::from_millis(begins), Span::from_millis(begins + 5 + rng.below(150)))
        };
        let gateways = 2 + rng.below(2) as usize;
        let trip = Span::from_micros(200 + rng.below(10_000));
        let mut orders = Vec::new();
        for _ in 0..rng.below(4) {
            let at = millis(&mut rng, 10, 300);
            // Often two at once.
            for _ in 0..=rng.below(2) {
                orders.push((at + Span::from_nanos(rng.below(trip.as_nanos())), rng.below(gateways as u64) as usize));
            }
        }
        let some = |rng: &mut Rng, most: u64| if rng.chance(1, 2) { 1 + rng.below(most) } else { 0 };
        let lost = some(&mut rng, 200);
        let any = |rng: &mut Rng| rng.below(gateways as u64) as usize;
        let partitions = (0..some(&mut rng, 3)).map(|_| (any(&mut rng), period(&mut rng))).collect();
        let crashes = (0..some(&mut rng, 3)).map(|_| (any(&mut rng), period(&mut rng))).collect();
        let outage = rng.chance(1, 3).then(|| period(&mut rng));
        let mut governing = Self {
            gateways,
            orders,
            trip,
            patience: trip.times(1 + rng.below(3)),
            lost,
            partitions,
            outage,
            crashes,
            look: millis(&mut rng, 15, 30),
            out_after: Span::ZERO,
            dead: Vec::new(),
            orphan: None,
            switch: None,
            last: (Vec::new(), Span::ZERO),
        };
        if rng.chance(1, 2) {
            governing.draw_losses(&mut rng, topology);
            let mut rng = Rng::new(seed).fork(73);
            let last = governing.dead.first().filter(|_| rng.chance(1, 3));
            governing.orphan = last.map(|(last, at)| (*last, *at + Span::from_millis(1 + rng.below(100))));
        }
        Some(governing)
    }

    /// Longer than anything else makes a target silent.
    fn draw_losses(&mut self, rng: &mut Rng, topology: &Topology) {
        self.out_after = Span::from_millis(600 + rng.below(100));
        let targets = &topology.maps[0].targets;
        let mut domains: BTreeMap<u16, Vec<NodeId>> = BTreeMap::new();
        targets.iter().for_each(|target| domains.entry(target.domain).or_default().push(target.id));
        let domains: Vec<Vec<NodeId>> = domains.into_values().collect();
        let losable: Vec<&Vec<NodeId>> =
            domains.iter().filter(|domain| domain.iter().all(|id| topology.losable.contains(id))).collect();
        if !losable.is_empty() && rng.chance(5, 6) {
            let domain = losable[rng.below(losable.len() as u64) as usize];
            let most = (domain.len() as u64).min((targets.len() as u64).saturating_sub(1) / 3).max(1);
            let first = rng.below(domain.len() as u64) as usize;
            let count = 1 + rng.below(most) as usize;
            let at = Span::from_millis(20 + rng.below(340));
            let each = domain.iter().cycle().skip(first).take(count);
            self.dead = each.map(|id| (*id, at + Span::from_millis(rng.below(20)))).collect();
        }
        if rng.chance(1, 2) {
            let dead: BTreeSet<NodeId> = self.dead.iter().map(|(id, _)| *id).collect();
            let mut others: Vec<&Vec<NodeId>> =
                domains.iter().filter(|domain| domain.iter().all(|id| !dead.contains(id))).collect();
            let mut silent = Vec::new();
            for _ in 0..2 + rng.below(2) {
                if others.len() > 1 {
                    silent.extend(others.swap_remove(rng.below(others.len() as u64) as usize).iter().copied());
                }
            }
            // Of the servers that are reached some targets are not: so no target may be left that watches some of the
            // silent ones.
            if rng.chance(1, 2) {
                for domain in &others {
                    silent.extend(domain.iter().take(rng.below(domain.len() as u64) as usize).copied());
                }
            }
            let begins = Span::from_millis(300 + rng.below(400));
            let ends = begins + self.out_after + Span::from_millis(100 + rng.below(300));
            let last = one_domain(&domains, &silent);
            self.last = (last, ends + Span::from_millis(150 + rng.below(150)));
            self.switch = Some((silent, (begins, ends)));
        }
    }

    /// For a replay.
    pub(crate) fn describe(&self) -> String {
        let mut text = format!(
            "{} gateways propose maps, {} changes; {} of 1,000 questions to the authority are lost, {} partitions from it, {} crashes",
            self.gateways,
            self.orders.len(),
            self.lost,
            self.partitions.len(),
            self.crashes.len()
        );
        if let Some((from, to)) = self.outage {
            let _ = write!(text, "; it is down from {from} to {to}");
        }
        if self.takes_out() {
            let _ = write!(text, "; who is down for {} is taken out", self.out_after);
        }
        for (id, at) in &self.dead {
            let _ = write!(text, "\n{id} is lost for good after {at}");
        }
        if let Some((last, at)) = &self.orphan {
            let _ = write!(text, "\nall other copies of a chunk of {last} go bad after {at}");
        }
        if let Some((silent, (from, to))) = &self.switch {
            let silent: Vec<String> = silent.iter().map(ToString::to_string).collect();
            let _ = write!(text, "\na switch cuts off {} from {from} to {to}", silent.join(", "));
        }
        text
    }

    /// Whether targets are taken out.
    pub(crate) fn takes_out(&self) -> bool {
        self.out_after > Span::ZERO
    }

    /// Sets what the targets have to do for it.
    pub(crate) fn configure(&self, seed: u64, config: &mut Config) {
        let mut rng = Rng::new(seed).fork(71);
        if self.takes_out() {
            config.watch_interval = Span::from_millis(10 + rng.below(20));
            // A target that stops on purpose and dies before it is back has this long again.
            config.restart_within = Span::from_millis(50 + rng.below(200));
            if config.census_interval == Span::ZERO {
                config.census_interval = Span::from_millis(20 + rng.below(200));
            }
        }
    }
}

/// The targets of one domain of those that are silent.
fn one_domain(domains: &[Vec<NodeId>], silent: &[NodeId]) -> Vec<NodeId> {
    domains.iter().find(|domain| domain.iter().all(|id| silent.contains(id))).cloned().unwrap_or_default()
}
