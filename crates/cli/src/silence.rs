//! Why a target is silent, in words.

use std::collections::BTreeMap;
use std::net::SocketAddrV4;
use std::time::Duration;

use node::hearing::{Obstacle, Silence};
use protocol::wire::DropReason;
use serde::{Deserialize, Serialize};

use crate::service::duration;

/// Why a target is silent, as far as the gateway knows.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SilenceInfo {
    /// `closed`, `unreachable`, `version`, `other_cluster`, `forged`, `replayed`, `unproven`, `refused`, `malformed`;
    /// `quiet` when it was heard before and nothing is known, `never` when it was not.
    pub(crate) reason: String,
    /// The same in words, and what to do.
    pub(crate) text: String,
    /// Seconds since it was heard last; none when it never was since the gateway was started.
    pub(crate) heard_seconds_ago: Option<f64>,
    /// How often each reason was met since it was heard last.
    pub(crate) met: BTreeMap<String, u64>,
}

impl SilenceInfo {
    /// What is known of the target at `address`.
    pub(crate) fn new(silence: &Silence, address: SocketAddrV4) -> Self {
        let heard = silence.heard.map(duration);
        let reason = match (silence.obstacle, heard) {
            (Some(obstacle), _) => obstacle.name(),
            (None, Some(_)) => "quiet",
            (None, None) => "never",
        };
        Self {
            reason: reason.to_owned(),
            text: text(silence.obstacle, heard, duration(silence.listened), address),
            heard_seconds_ago: heard.map(|span| span.as_secs_f64()),
            met: silence.counts.iter().map(|(obstacle, count)| (obstacle.name().to_owned(), *count)).collect(),
        }
    }
}

fn text(obstacle: Option<Obstacle>, heard: Option<Duration>, listened: Duration, address: SocketAddrV4) -> String {
    let Some(obstacle) = obstacle else {
        return match heard {
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
        Obstacle::Dropped(reason) => match reason {
            DropReason::Version => {
                format!("who answers at {address} speaks another wire version: run the same version on all nodes")
            }
            DropReason::OtherCluster => {
                format!("who answers at {address} is of another cluster: correct the address in the cluster map")
            }
            DropReason::Forged => format!(
                "who answers at {address} seals with another key: give all nodes of the cluster the same key file"
            ),
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
        let address = "127.0.0.1:4000".parse().expect("an address");
        let told = |obstacle, heard| {
            let silence = Silence { obstacle, counts: BTreeMap::new(), heard, listened: Span::from_secs(7) };
            SilenceInfo::new(&silence, address)
        };
        let mut all = vec![told(None, None), told(None, Some(Span::from_secs(5)))];
        all.extend([Obstacle::Closed, Obstacle::Unreachable].map(|obstacle| told(Some(obstacle), None)));
        let dropped = DropReason::ALL.into_iter().filter(|reason| *reason != DropReason::Replayed);
        all.extend(dropped.map(|reason| told(Some(Obstacle::Dropped(reason)), None)));
        assert!(all.iter().all(|info| info.text.contains("127.0.0.1:4000")));
        let texts: std::collections::BTreeSet<_> = all.iter().map(|info| &info.text).collect();
        let reasons: std::collections::BTreeSet<_> = all.iter().map(|info| &info.reason).collect();
        assert_eq!((texts.len(), reasons.len()), (all.len(), all.len()));
    }
}
