//! Why a target is silent: what came from its address and was dropped, and what the network reported of the way there.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::id::NodeId;
use protocol::time::{Instant, Span};
use protocol::wire::DropReason;

use crate::config::ClusterConfig;

/// What is older than this does not explain why a target is silent now: the node that asks has just asked the target.
const RECENT: Span = Span::from_secs(10);
/// How long a node may take to prove that it is alive, however often it sends meanwhile.
const START: Span = Span::from_secs(5);
/// The least time between lines of the log about one reason.
const LOG_INTERVAL: Span = Span::from_secs(60);

/// What keeps a target from being reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Obstacle {
    /// Its host says that nobody listens at its address.
    Closed,
    /// There is no way to its host.
    Unreachable,
    /// It ends connections before it says anything, or what it sends is not encrypted as in this cluster.
    Encryption,
    /// What came from its address was dropped.
    Dropped(DropReason),
}

impl Obstacle {
    /// A short name, for programs.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Closed => "closed",
            Self::Unreachable => "unreachable",
            Self::Encryption => "encryption",
            Self::Dropped(reason) => reason.name(),
        }
    }
}

/// What an error of the network says of the way to where something was sent.
pub(crate) const fn obstacle(kind: ErrorKind) -> Option<Obstacle> {
    match kind {
        ErrorKind::ConnectionRefused => Some(Obstacle::Closed),
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable | ErrorKind::PermissionDenied => {
            Some(Obstacle::Unreachable)
        }
        _ => None,
    }
}

/// What is known of why a target is silent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// The last obstacle within 10 s, if it came after the last datagram of the target.
    pub obstacle: Option<Obstacle>,
    /// How often each obstacle was met since the last good datagram of the target.
    pub counts: BTreeMap<Obstacle, u64>,
    /// How long ago a good datagram came from it; `None` when none ever did.
    pub last_seen: Option<Span>,
    /// How long this node has listened.
    pub listened: Span,
}

#[derive(Clone, Debug, Default)]
struct Known {
    last_seen: Option<Instant>,
    last: Option<(Obstacle, Instant)>,
    counts: BTreeMap<Obstacle, u64>,
}

/// What a node knows of the targets in its cluster map. Clones share it.
#[derive(Clone, Debug)]
pub struct Reachability {
    began: Instant,
    known: Arc<Mutex<Targets>>,
}

#[derive(Debug, Default)]
struct Targets {
    by_address: BTreeMap<SocketAddr, NodeId>,
    by_id: BTreeMap<NodeId, Known>,
}

impl Reachability {
    pub(crate) fn new(config: &ClusterConfig, began: Instant) -> Self {
        let reachability = Self { began, known: Arc::default() };
        reachability.set(config);
        reachability
    }

    /// Listens for the targets of this map, and no others.
    pub(crate) fn set(&self, config: &ClusterConfig) {
        let mut targets = self.lock();
        let mut old = std::mem::take(&mut targets.by_id);
        targets.by_address = config.targets.iter().map(|t| (t.address, NodeId(t.id))).collect();
        let ids = config.targets.iter().map(|t| NodeId(t.id));
        targets.by_id = ids.map(|id| (id, old.remove(&id).unwrap_or_default())).collect();
    }

    fn lock(&self) -> MutexGuard<'_, Targets> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A good datagram came from `id`.
    pub(crate) fn mark_alive(&self, id: NodeId, now: Instant) {
        if let Some(known) = self.lock().by_id.get_mut(&id) {
            known.last_seen = Some(now);
            if known.last.take().is_some() {
                known.counts.clear();
            }
        }
    }

    /// Something stands between this node and `address`. The target that should be there, if it is one's address.
    pub(crate) fn met(&self, address: SocketAddr, obstacle: Obstacle, now: Instant) -> Option<NodeId> {
        let mut targets = self.lock();
        let id = *targets.by_address.get(&address)?;
        if let Some(known) = targets.by_id.get_mut(&id) {
            known.last = Some((obstacle, now));
            *known.counts.entry(obstacle).or_default() += 1;
        }
        Some(id)
    }

    /// What is known of why `id` is silent.
    #[must_use]
    pub fn silence(&self, id: NodeId) -> Silence {
        self.silence_at(id, crate::clock::now())
    }

    fn silence_at(&self, id: NodeId, now: Instant) -> Silence {
        let known = self.lock().by_id.get(&id).cloned().unwrap_or_default();
        Silence {
            obstacle: known.last.filter(|(_, at)| now.since(*at) <= RECENT).map(|(obstacle, _)| obstacle),
            counts: known.counts,
            last_seen: known.last_seen.map(|at| now.since(at)),
            listened: now.since(self.began),
        }
    }
}

/// What is dropped for a reason that somebody has to do something about, logged at most once a minute for each reason.
#[derive(Debug, Default)]
pub(crate) struct DropWarnings {
    /// When each was logged last, and how often it was met since.
    logged: BTreeMap<DropReason, (Instant, u64)>,
    /// Since when, and when last, there were senders without a proof.
    unproven: Option<(Instant, Instant)>,
}

impl DropWarnings {
    /// Logs that a datagram from `address`, where `target` should be, was dropped.
    pub(crate) fn dropped(&mut self, reason: DropReason, address: SocketAddr, target: Option<NodeId>, now: Instant) {
        let advice = match reason {
            DropReason::Version => "it is of another wire version; run the same version on all nodes",
            DropReason::OtherCluster => "it is of another cluster; correct the addresses in the cluster map",
            DropReason::Forged => "it is sealed with another key, or forged; give all nodes the same key file",
            DropReason::Unproven => {
                "its sender does not prove that it is alive: somebody plays back what was sent before, or nothing of what \
                 is sent there arrives; look at the network"
            }
            DropReason::Refused => {
                "it says that what came from here cannot be opened there; look what changes datagrams on the way"
            }
            // The network doubles datagrams, and noise is nobody's fault here.
            DropReason::Malformed | DropReason::Replayed => return,
        };
        if reason == DropReason::Unproven && !self.lasts(now) {
            return;
        }
        let (last, since) = self.logged.get(&reason).copied().unwrap_or((Instant::ZERO, 0));
        if last != Instant::ZERO && now.since(last) < LOG_INTERVAL {
            self.logged.insert(reason, (last, since + 1));
            return;
        }
        self.logged.insert(reason, (now, 0));
        let name = target.map_or_else(String::new, |id| format!(" (target {})", id.0));
        let more = if since > 0 { format!("; so were {since} more since the last such line") } else { String::new() };
        tracing::warn!("dropped a datagram from {address}{name}: {advice}{more}");
    }

    /// Whether proofs have been missing for so long that it is no start, whose first datagrams overtake the question.
    fn lasts(&mut self, now: Instant) -> bool {
        let since = self.unproven.filter(|(_, last)| now.since(*last) < START).map_or(now, |(since, _)| since);
        self.unproven = Some((since, now));
        now.since(since) >= START
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proofs_that_are_missing_at_a_start_are_not_complained_of() {
        let (mut warnings, at) = (DropWarnings::default(), |secs| Instant::ZERO + Span::from_secs(secs));
        assert!([1, 1, 2, 20, 21, 40].iter().all(|secs| !warnings.lasts(at(*secs))), "a few at each of three starts");
        assert_eq!([60, 63, 66, 69].map(|secs| warnings.lasts(at(secs))), [false, false, true, true]);
    }

    #[test]
    fn the_last_obstacle_counts_until_the_target_answers_or_it_is_old() {
        let address = SocketAddr::from(([127, 0, 0, 1], 4_000));
        let reachability = Reachability { began: Instant::ZERO, known: Arc::default() };
        reachability.lock().by_address.insert(address, NodeId(1));
        reachability.lock().by_id.insert(NodeId(1), Known::default());
        let at = |secs| Instant::ZERO + Span::from_secs(secs);
        assert_eq!(reachability.met(address, Obstacle::Unreachable, at(1)), Some(NodeId(1)));
        reachability.met(address, Obstacle::Closed, at(2));
        assert_eq!(reachability.met(SocketAddr::from(([127, 0, 0, 1], 5_000)), Obstacle::Closed, at(3)), None);
        let silence = reachability.silence_at(NodeId(1), at(5));
        let counts = BTreeMap::from([(Obstacle::Closed, 1), (Obstacle::Unreachable, 1)]);
        let expected =
            Silence { obstacle: Some(Obstacle::Closed), counts, last_seen: None, listened: Span::from_secs(5) };
        assert_eq!(silence, expected);
        assert_eq!(reachability.silence_at(NodeId(1), at(100)).obstacle, None, "it is old");
        reachability.mark_alive(NodeId(1), at(101));
        let silence = reachability.silence_at(NodeId(1), at(103));
        assert_eq!((silence.obstacle, silence.counts.len(), silence.last_seen), (None, 0, Some(Span::from_secs(2))));
    }
}
