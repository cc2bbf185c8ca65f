//! Why a target is silent, in words.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use node::reachability::{Obstacle, Silence};
use protocol::wire::DropReason;
use serde::{Deserialize, Serialize};

use crate::units::duration;

/// Why a target is silent, as far as the gateway knows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SilenceInfo {
    /// `closed`, `unreachable`, `version`, `other_cluster`, `forged`, `replayed`, `unproven`, `refused`, `malformed`;
    /// `quiet` when it was seen before and nothing is known, `never` when it was not.
    pub(crate) reason: String,
    /// The same in words, and what to do.
    pub(crate) text: String,
    /// Seconds since the last good datagram from it; none when there was none since the gateway was started.
    pub(crate) heard_seconds_ago: Option<f64>,
    /// How often each reason was met since that datagram.
    pub(crate) met: BTreeMap<String, u64>,
}

impl SilenceInfo {
    /// What is known of the target at `address`.
    pub(crate) fn new(silence: &Silence, address: SocketAddr) -> Self {
        let last_seen = silence.last_seen.map(duration);
        let reason = match (silence.obstacle, last_seen) {
            (Some(obstacle), _) => obstacle.name(),
            (None, Some(_)) => "quiet",
            (None, None) => "never",
        };
        Self {
            reason: reason.to_owned(),
            text: text(silence.obstacle, last_seen, duration(silence.listened), address),
            heard_seconds_ago: last_seen.map(|span| span.as_secs_f64()),
            met: silence.counts.iter().map(|(obstacle, count)| (obstacle.name().to_owned(), *count)).collect(),
        }
    }
}

fn text(obstacle: Option<Obstacle>, last_seen: Option<Duration>, listened: Duration, address: SocketAddr) -> String {
    let Some(obstacle) = obstacle else {
        return match last_seen {
            Some(ago) => format!(
                "nothing was heard from {address} for {} s: its process hangs, its host is down, or the way there is cut",
                ago.as_secs()
            ),
            None => format!(
                "nothing was ever heard from {address} in the {} s since this gateway was started: start the target, and look \
                 at the address in the cluster map and at firewalls",
                listened.as_secs()
            ),
        };
    };
    match obstacle {
        Obstacle::Closed => format!(
            "its host says that nobody listens at {address}: start the target, or correct the address in the cluster map"
        ),
        Obstacle::Unreachable => {
            format!("there is no way to {address}: look whether its host is up, and at the network between")
        }
        Obstacle::Encryption => format!(
            "what answers at {address} does not understand this node, or not the reverse: write the same encrypt in [network] on \
             all nodes, and give them the same key file"
        ),
        Obstacle::Dropped(reason) => match reason {
            DropReason::Version => {
                format!("the node at {address} speaks another wire version: run the same version on all nodes")
            }
            DropReason::OtherCluster => {
                format!("the node at {address} is of another cluster: correct the address in the cluster map")
            }
            DropReason::Forged => {
                format!("the node at {address} seals with another key: give all nodes of the cluster the same key file")
            }
            DropReason::Replayed | DropReason::Unproven => format!(
                "what comes from {address} is not proven to be of today: somebody plays back what was sent before, or \
                 nothing of what is sent there arrives; look at the network"
            ),
            DropReason::Refused => format!(
                "the target at {address} cannot open what comes from here: look what changes datagrams on the way"
            ),
            DropReason::Malformed => {
                format!("what comes from {address} is not of a target: correct the address in the cluster map")
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use protocol::time::Span;

    #[test]
    fn each_obstacle_has_words_of_its_own_that_name_the_address() {
        for address in ["127.0.0.1:4000", "[fd00::1]:4000"] {
            each_obstacle_is_described(address);
        }
    }

    fn each_obstacle_is_described(at: &str) {
        let address = at.parse().expect("an address");
        let info = |obstacle, last_seen| {
            let silence = Silence { obstacle, counts: BTreeMap::new(), last_seen, listened: Span::from_secs(7) };
            SilenceInfo::new(&silence, address)
        };
        let mut all = vec![info(None, None), info(None, Some(Span::from_secs(5)))];
        all.extend(
            [Obstacle::Closed, Obstacle::Unreachable, Obstacle::Encryption].map(|obstacle| info(Some(obstacle), None)),
        );
        let dropped = DropReason::ALL.into_iter().filter(|reason| *reason != DropReason::Replayed);
        all.extend(dropped.map(|reason| info(Some(Obstacle::Dropped(reason)), None)));
        assert!(all.iter().all(|info| info.text.contains(at)));
        let texts: std::collections::BTreeSet<_> = all.iter().map(|info| &info.text).collect();
        let reasons: std::collections::BTreeSet<_> = all.iter().map(|info| &info.reason).collect();
        assert_eq!((texts.len(), reasons.len()), (all.len(), all.len()));
    }
}
