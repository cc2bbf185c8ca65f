//! What the processes have resident.

use std::collections::BTreeMap;
use std::fs;

/// How much more may be resident in the last third of a run than in the middle one: a quarter, and so much.
const MARGIN: u64 = 32 << 20;

/// The largest of each process by the third of the run, in bytes.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    most: BTreeMap<String, [u64; 3]>,
    now: BTreeMap<String, u64>,
}

impl Memory {
    /// What they have now, in this third.
    pub(crate) fn look(&mut self, processes: &[(String, u32)], third: usize) {
        self.now.clear();
        for (name, pid) in processes {
            let text = fs::read_to_string(format!("/proc/{pid}/statm")).unwrap_or_default();
            let pages = text.split_whitespace().nth(1).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
            let bytes = pages * rustix::param::page_size() as u64;
            let most = &mut self.most.entry(name.clone()).or_default()[third];
            *most = (*most).max(bytes);
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
        println!("\n{:<16}{:>12}{:>12}{:>12}", "most MiB in the", "first", "middle", "last third");
        for (name, [first, middle, last]) in &self.most {
            println!("{name:<16}{:>12}{:>12}{:>12}", first >> 20, middle >> 20, last >> 20);
        }
    }

    /// Those that had much more in the last third than in the middle one. A target that is started again has more for a while, as it reads
    /// what it holds: those count as large as the largest.
    pub(crate) fn grown(&self, left_alone: &[&str]) -> Vec<String> {
        let targets = self.most.iter().filter(|(name, _)| *name != "gateway");
        let largest = targets.map(|(_, [_, middle, _])| *middle).max().unwrap_or(0);
        let mut grown = vec![];
        for (name, [_, middle, last]) in &self.most {
            let before = if left_alone.contains(&name.as_str()) { *middle } else { largest };
            if *last > before + before / 4 + MARGIN {
                grown.push(format!("{name}: {} MiB, then {}", before >> 20, last >> 20));
            }
        }
        grown
    }
}
