//! What the gateway and the commands say to each other over HTTP.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::silence::SilenceInfo;
use crate::units;

/// One target.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct TargetInfo {
    /// Its id.
    pub(crate) id: u32,
    /// Its failure domain, as the map calls it.
    pub(crate) domain: String,
    /// Whether it answered.
    pub(crate) alive: bool,
    /// Whether it takes no chunks, and is only read.
    #[serde(default)]
    pub(crate) drained: bool,
    /// Why it does not answer, as far as it is known.
    #[serde(default)]
    pub(crate) silence: Option<SilenceInfo>,
    /// Bytes that it has free.
    pub(crate) free: Option<u64>,
    /// Chunks that it holds.
    pub(crate) chunks: Option<u64>,
    /// Bytes of their records.
    pub(crate) live: Option<u64>,
    /// Bytes written that nothing refers to any more.
    pub(crate) dead: Option<u64>,
    /// Bytes won back since it was started.
    pub(crate) reclaimed: Option<u64>,
    /// Chunks whose copy there was damaged and dropped, and is not there again.
    pub(crate) damaged: Option<u64>,
    /// Whether there are more than these.
    pub(crate) damaged_more: Option<bool>,
}

/// One switch, which computes the parity of codes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct SwitchInfo {
    /// Its id.
    pub(crate) id: u32,
    /// Where the map says that it is.
    pub(crate) address: String,
    /// Whether it answered.
    pub(crate) alive: bool,
}

/// Copies that were dropped because they were damaged, and are not back at their targets. So many chunks at most have fewer
/// copies than they should.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct DamageInfo {
    /// How many, as far as the targets that answer know.
    pub(crate) copies: u64,
    /// Whether there may be more: a target remembers no more of them, or does not answer.
    pub(crate) at_least: bool,
}

/// How the cluster's data is: what has too few copies, and what is being done about it (`docs/healing.md`).
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct HealthInfo {
    /// Chunks that have fewer copies, in distinct failure domains, than are wanted.
    pub(crate) at_risk: u64,
    /// Whether it is known of all groups that nothing is at risk, and nothing is under way.
    pub(crate) whole: bool,
    /// The same chunks by the number of failure domains in which they have copies. (Keys are text: what is flattened into another
    /// structure has no others.)
    pub(crate) at_risk_by_copies: BTreeMap<String, u64>,
    /// Chunks that have enough copies, of which some are where the layout before had them.
    pub(crate) strayed: u64,
    /// Chunks that were damaged and are on no target that answers, but may be on one that does not. Of a chunk that was damaged on
    /// several targets, each of them says so: at most so many.
    pub(crate) sought: u64,
    /// Targets that may have them.
    pub(crate) sought_on: BTreeSet<u32>,
    /// Chunks that were damaged and are on no target, at most so many: nothing refers to them any more, or they are lost.
    pub(crate) nowhere: u64,
    /// Groups of which nobody says how they are: it is not known yet, or all their targets are silent.
    pub(crate) unknown_groups: u64,
    /// Chunks that targets are putting because they have too few copies.
    pub(crate) restoring: u64,
    /// Chunks that targets have put for that reason since each was started.
    pub(crate) restored_chunks: u64,
    /// Their bytes.
    pub(crate) restored_bytes: u64,
    /// How many in a second, over the last 20 s, or since the first of them.
    pub(crate) restored_chunks_per_second: f64,
    /// Their bytes.
    pub(crate) restored_bytes_per_second: f64,
    /// How long that takes for all that lack copies, at this rate.
    pub(crate) seconds_left: Option<u64>,
    /// Chunks that targets are putting on emptier ones.
    pub(crate) moving: u64,
    /// Chunks that targets have put there since each was started.
    pub(crate) moved_chunks: u64,
    /// Their bytes.
    pub(crate) moved_bytes: u64,
}

impl HealthInfo {
    /// What was damaged and is nowhere as far as is known, in words.
    pub(crate) fn missing_texts(&self) -> Vec<String> {
        let chunks = |count| if count == 1 { "1 chunk".to_owned() } else { format!("up to {count} chunks") };
        let mut texts = Vec::new();
        if self.sought > 0 {
            let ids: Vec<String> = self.sought_on.iter().map(u32::to_string).collect();
            let (target, it) = if ids.len() == 1 { ("target", "it") } else { ("targets", "them") };
            texts.push(format!(
                "sought: {} that were damaged are on no target that answers; {target} {} may have the last copies: start {it}",
                chunks(self.sought),
                ids.join(", ")
            ));
        }
        if self.nowhere > 0 {
            texts.push(format!(
                "nowhere: {} that were damaged are on no target; what refers to them, if anything does, cannot be read: put it again",
                chunks(self.nowhere)
            ));
        }
        texts
    }

    /// What has too few copies, in words.
    pub(crate) fn at_risk_text(&self) -> String {
        if self.at_risk == 0 {
            return format!("{} chunks have enough copies, of which some are outside of their group", self.strayed);
        }
        let domains = |copies: &str| {
            if copies == "1" { "1 failure domain".to_owned() } else { format!("{copies} failure domains") }
        };
        let by = self.at_risk_by_copies.iter().map(|(copies, chunks)| format!("{chunks} in {}", domains(copies)));
        format!("{} chunks have too few copies ({})", self.at_risk, by.collect::<Vec<_>>().join(", "))
    }

    /// The same, and what is done about it.
    pub(crate) fn healing_text(&self) -> String {
        let left = self.seconds_left.map_or_else(String::new, |left| format!(", about {} left", units::time(left)));
        format!(
            "{}; {} are being put, {:.0} chunks/s, {}/s{left}",
            self.at_risk_text(),
            self.restoring,
            self.restored_chunks_per_second,
            units::size(self.restored_bytes_per_second as u64)
        )
    }
}

/// Targets that several others say are down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DownInfo {
    /// For how many seconds each was.
    pub(crate) targets: BTreeMap<String, u64>,
    /// In how many each is taken out of the cluster map, when nothing changes. Those that fell silent with others are not among them.
    #[serde(default)]
    pub(crate) out_in_seconds: BTreeMap<String, u64>,
    /// After how many it is taken out of the cluster map; 0 is never.
    pub(crate) out_after_seconds: u64,
    /// Why one that was down for longer stays in it.
    pub(crate) held: Option<String>,
}

impl DownInfo {
    /// What is said of each, in words.
    pub(crate) fn texts(&self) -> impl Iterator<Item = String> {
        self.targets.iter().map(|(target, seconds)| {
            let out = match (self.out_after_seconds, self.out_in_seconds.get(target)) {
                (0, _) => "it stays in the cluster map, as `out_after_seconds` is 0".to_owned(),
                (_, Some(left)) => format!("it is taken out of the cluster map in {}", units::time(*left)),
                (_, None) => "it stays in the cluster map while others are down as well".to_owned(),
            };
            format!("target {target} is down for {}: {out}", units::time(*seconds))
        })
    }
}

/// Something that happened to the cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Happened {
    /// When, as RFC 3339 says it.
    pub(crate) at: String,
    /// What.
    pub(crate) what: String,
}

/// What the gateway's cleaning has done since it was started.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct CleanInfo {
    /// Passes that were made.
    pub(crate) passes: u64,
    /// Chunks that the last finished pass found nothing to refer to.
    pub(crate) unreferenced: u64,
    /// Copies dropped, by all passes.
    pub(crate) copies: u64,
    /// Their bytes.
    pub(crate) bytes: u64,
    /// Why the last pass was not finished.
    pub(crate) problem: Option<String>,
}

/// Puts that this gateway acknowledged with fewer copies than were wanted, as failure domains were down.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(crate) struct FewerInfo {
    /// How many, since it was started.
    pub(crate) puts: u64,
    /// How long ago the last was; none when there was none.
    pub(crate) seconds_ago: Option<u64>,
}

/// What of a storage class can be found.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ClassInfo {
    /// Copies of each of its chunks, or the code: `4+2`.
    #[serde(default)]
    pub(crate) redundancy: String,
    /// The groups of which silent targets may be all that hold something of it.
    pub(crate) out_of_reach: Vec<u32>,
}

impl Status {
    /// How objects are kept of which nobody said it.
    pub(crate) fn kept(&self) -> String {
        let standard = self.classes.get("STANDARD").filter(|class| !class.redundancy.is_empty());
        standard.map_or_else(
            || format!("{} copies", self.copies),
            |class| format!("objects as {}, all else in {} copies", class.redundancy, self.copies),
        )
    }
}

/// The cluster at a glance.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Status {
    /// Its name.
    pub(crate) cluster: String,
    /// Version of its map.
    pub(crate) epoch: u32,
    /// The epoch of a newer map that others use, and that this gateway's file does not have.
    pub(crate) newer_epoch: Option<u32>,
    /// Whether copies stay where they are for now.
    #[serde(default)]
    pub(crate) moves_paused: bool,
    /// Copies of each chunk.
    pub(crate) copies: u8,
    /// Copies that are enough for a put while no more failure domains are alive.
    #[serde(default)]
    pub(crate) min_copies: u8,
    /// Puts for which such few were enough.
    #[serde(default)]
    pub(crate) fewer_copies: FewerInfo,
    /// How copies are placed and carried.
    pub(crate) transport: String,
    /// Whether multicast is used.
    pub(crate) multicast: bool,
    /// Its targets.
    pub(crate) targets: Vec<TargetInfo>,
    /// Its switches.
    #[serde(default)]
    pub(crate) switches: Vec<SwitchInfo>,
    /// The targets of each negotiating group.
    pub(crate) groups: Vec<Vec<u32>>,
    /// The groups, from 0 on, of which silent targets may be all that hold something: their own, or those of the layout before.
    pub(crate) out_of_reach: Vec<u32>,
    /// The same for objects of the storage classes that this gateway knows, by their names.
    pub(crate) classes: BTreeMap<String, ClassInfo>,
    /// What has too few copies, and what is being done about it.
    #[serde(flatten)]
    pub(crate) health: HealthInfo,
    /// What happened, oldest first.
    #[serde(default)]
    pub(crate) history: Vec<Happened>,
    /// Those that are down.
    #[serde(default)]
    pub(crate) down: DownInfo,
    /// What is missing because it was damaged.
    pub(crate) damaged: DamageInfo,
    /// What cleaning has done.
    pub(crate) cleaning: CleanInfo,
}

/// Why the gateway did not do it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Refusal {
    /// One line: what failed, on what, and what to do.
    pub(crate) error: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Serialize, Deserialize)]
    struct Around {
        epoch: u32,
        #[serde(flatten)]
        health: HealthInfo,
    }

    #[test]
    fn what_is_at_risk_is_read_back_as_it_was_written() {
        let by = [("1".to_owned(), 2), ("2".to_owned(), 40)];
        let health = HealthInfo { at_risk: 42, at_risk_by_copies: by.into(), ..HealthInfo::default() };
        let text = serde_json::to_string(&Around { epoch: 7, health }).unwrap();
        assert!(text.contains("\"at_risk\":42,\"whole\":false,"), "{text}");
        let back: Around = serde_json::from_str(&text).unwrap();
        assert_eq!((back.epoch, back.health.at_risk), (7, 42));
        let words = "42 chunks have too few copies (2 in 1 failure domain, 40 in 2 failure domains)";
        assert_eq!(back.health.at_risk_text(), words);
        let doing = HealthInfo {
            restoring: 4,
            restored_chunks_per_second: 11.6,
            restored_bytes_per_second: 3.5 * 1_048_576.0,
            seconds_left: Some(4),
            ..back.health
        };
        assert_eq!(doing.healing_text(), format!("{words}; 4 are being put, 12 chunks/s, 3.5 MiB/s, about 4 s left"));
    }
}
