//! What the processes have resident.

use std::collections::BTreeMap;
use std::fs;

/// How much more may be resident in the last third of a run than in the middle one: a quarter, and so much.
const MARGIN: u64 = 24 << 20;
/// Looks at a process in a third, so that it says something: one that has just begun reads what it holds, and has more for a while.
const LOOKS: usize = 60;

/// Bytes of each process at each look, by the third of the run.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    seen: BTreeMap<String, [Vec<u64>; 3]>,
    now: BTreeMap<String, u64>,
}

/// The median: where half of the time there was not more.
fn middle_of(bytes: &[u64]) -> u64 {
    let mut sorted = bytes.to_vec();
    sorted.sort_unstable();
    sorted.get(sorted.len() / 2).copied().unwrap_or(0)
}

impl Memory {
    /// What they have now, in this third.
    pub(crate) fn look(&mut self, processes: &[(String, u32)], third: usize) {
        self.now.clear();
        for (name, pid) in processes {
            let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
            // One that was killed just now has none.
            let pages = text.split_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok());
            let Some(pages) = pages.filter(|pages| *pages > 0) else { continue };
            let bytes = pages * rustix::param::page_size() as u64;
            self.seen.entry(name.clone()).or_default()[third].push(bytes);
            self.now.insert(name.clone(), bytes);
        }
    }

    /// Of the gateway, and of the largest target, in MiB.
    pub(crate) fn now(&self) -> (u64, u64) {
        let of = |is_gateway: bool| {
            let those = self.now.iter().filter(|(name, _)| (*name == "gateway") == is_gateway);
            those.map(|(_, bytes)| bytes >> 20).max().unwrap_or(0)
        };
        (of(true), of(false))
    }

    pub(crate) fn print_table(&self) {
        println!("\n{:<24}{:>14}{:>14}{:>14}", "MiB, median and most", "first third", "middle", "last");
        for (name, thirds) in &self.seen {
            let text = thirds.each_ref().map(|bytes| {
                let most = bytes.iter().max().map_or(0, |most| most >> 20);
                format!("{} {most:>5}", middle_of(bytes) >> 20)
            });
            println!("{name:<24}{:>14}{:>14}{:>14}", text[0], text[1], text[2]);
        }
    }

    /// Those that had much more in the last third than in the middle one, most of the time.
    pub(crate) fn grown(&self) -> Vec<String> {
        let mut grown = vec![];
        for (name, [_, middle, last]) in &self.seen {
            let (before, after) = (middle_of(middle), middle_of(last));
            if middle.len().min(last.len()) >= LOOKS && after > before + before / 4 + MARGIN {
                grown.push(format!("{name}: {} MiB, then {}", before >> 20, after >> 20));
            }
        }
        grown
    }
}
