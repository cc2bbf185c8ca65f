//! Runs tests and seeds, with a mutant or with none.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use serde::{Deserialize, Serialize};

/// Most memory of a trial, in KiB: a mutant may ask for ever more.
const MEMORY: u64 = 4 << 20;
/// How many times as much of the processor's time as without a mutant trials may take, and seconds in addition: what takes
/// longer has noticed the mutant.
const SLOWER: u64 = 3;
const GRACE: u64 = 2;
/// How many times as long they may take by the clock, as others may use the machine as well: for what waits for ever.
const WAITING: u32 = 10;
/// What a test or a seed may take without a mutant, seconds.
const WITHOUT: u64 = 600;
/// Tests that take longer than this, milliseconds, are run after the first seeds.
const SLOW: u64 = 300;
/// Cases of a property that does not ask for more of them itself.
const CASES: &str = "32";
/// Seeds of the first process, and of each further one.
const FIRST: usize = 10;
const TOGETHER: usize = 20;

/// A test, or a seed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Trial {
    /// The program.
    program: PathBuf,
    /// Where it runs.
    dir: PathBuf,
    /// The test or the seed.
    name: String,
    /// How long it takes, milliseconds.
    millis: u64,
    /// What a seed's run comes to.
    digest: Option<String>,
    /// The mutants that it comes by.
    seen: BTreeSet<usize>,
}

/// All tests and seeds, and what is known of them.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Trials {
    /// Of the sources.
    pub(crate) stamp: u64,
    all: Vec<Trial>,
}

/// What became of a mutant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// By this test or seed.
    Caught(String),
    /// No test and no seed comes by it.
    Unreached,
    /// So many tests and seeds came by it; so many seeds took another course.
    Survived { tests: usize, seeds: usize, changed: usize },
}

enum Ended {
    Well(String),
    Badly(String),
    Late,
}

/// Bounds the memory and the processor's time of a program, and runs it with less right to the processor than others.
fn bounded(program: &Path, dir: &Path, seconds: u64) -> Command {
    let mut command = Command::new("nice");
    command
        .args(["-n", "10", "sh", "-c"])
        .arg(format!("ulimit -v {MEMORY} -t {seconds}; exec \"$0\" \"$@\""))
        .arg(program)
        .current_dir(dir)
        // A finding of one mutant is not tried with the next one.
        .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
        .env("PROPTEST_MAX_SHRINK_ITERS", "0")
        .env("PROPTEST_CASES", CASES)
        .env_remove("MUTANT")
        .env_remove("MUTANTS_SEEN");
    command
}

fn wait(child: &mut Child, most: Duration) -> anyhow::Result<Option<ExitStatus>> {
    let begun = Instant::now();
    loop {
        if let Some(status) = child.try_wait().context("a trial cannot be waited for")? {
            return Ok(Some(status));
        }
        if begun.elapsed() > most {
            // It may have ended by itself.
            let _ = child.kill();
            child.wait().context("a trial cannot be waited for")?;
            return Ok(None);
        }
        let short = begun.elapsed() < Duration::from_millis(50);
        std::thread::sleep(Duration::from_millis(if short { 1 } else { 10 }));
    }
}

fn run(mut command: Command, most: Duration) -> anyhow::Result<Ended> {
    let mut output = tempfile::tempfile().context("no temporary file can be made")?;
    let to = output.try_clone().context("a file cannot be shared")?;
    let mut child = command
        .stdin(Stdio::null())
        .stdout(to)
        .stderr(Stdio::null())
        .spawn()
        .with_context(|| format!("{command:?} cannot be started"))?;
    let Some(status) = wait(&mut child, most)? else { return Ok(Ended::Late) };
    let mut printed = String::new();
    std::io::Seek::rewind(&mut output).context("a trial's output cannot be read")?;
    let bytes = read_all(&mut output)?;
    printed.push_str(&String::from_utf8_lossy(&bytes));
    Ok(if status.success() { Ended::Well(printed) } else { Ended::Badly(printed) })
}

fn read_all(file: &mut File) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).context("a trial's output cannot be read")?;
    Ok(bytes)
}

impl Trial {
    fn is_seed(&self) -> bool {
        self.digest.is_some()
    }

    fn watched(program: &Path, dir: &Path, words: &[&str], work: &Path) -> anyhow::Result<Self> {
        let name = words.last().copied().unwrap_or_default().to_owned();
        let list = work.join(format!("seen-{:?}", std::thread::current().id()));
        let _ = std::fs::remove_file(&list);
        let mut command = bounded(program, dir, WITHOUT);
        command.args(words).env("MUTANTS_SEEN", &list);
        let begun = Instant::now();
        let ended = run(command, Duration::from_secs(WITHOUT))?;
        let Ended::Well(printed) = ended else {
            anyhow::bail!("{} fails without a mutant: {} {}", name, program.display(), words.join(" "));
        };
        let digest = printed.strip_prefix(&format!("{name} ")).map(|digest| digest.trim().to_owned());
        let seen = std::fs::read_to_string(&list).unwrap_or_default();
        let seen = seen.lines().filter_map(|line| line.parse().ok()).collect();
        let millis = begun.elapsed().as_millis() as u64;
        Ok(Self { program: program.to_owned(), dir: dir.to_owned(), name, millis, digest, seen })
    }
}

impl Trials {
    /// Runs every test and every seed once without a mutant.
    pub(crate) fn watch(
        stamp: u64,
        tests: &[(PathBuf, PathBuf)],
        seeds: (&Path, u64),
        jobs: usize,
        work: &Path,
    ) -> anyhow::Result<Self> {
        let mut wanted: Vec<(PathBuf, PathBuf, Vec<String>)> = Vec::new();
        for (program, dir) in tests {
            let mut command = bounded(program, dir, WITHOUT);
            command.args(["--list", "--format", "terse"]);
            let Ended::Well(list) = run(command, Duration::from_secs(WITHOUT))? else {
                anyhow::bail!("{} does not list its tests", program.display());
            };
            for name in list.lines().filter_map(|line| line.strip_suffix(": test")) {
                wanted.push((program.clone(), dir.clone(), vec!["--exact".to_owned(), name.to_owned()]));
            }
        }
        let (program, count) = seeds;
        wanted.extend((1..=count).map(|seed| (program.to_owned(), work.to_owned(), vec![seed.to_string()])));
        let all = crate::side_by_side(jobs, &wanted, |(program, dir, words)| {
            let words: Vec<&str> = words.iter().map(String::as_str).collect();
            Trial::watched(program, dir, &words, work)
        });
        let mut all = all.into_iter().collect::<anyhow::Result<Vec<Trial>>>()?;
        ensure!(!all.is_empty(), "there is no test and no seed");
        all.sort_by_key(|trial| trial.millis);
        Ok(Self { stamp, all })
    }

    /// How many tests and seeds there are.
    pub(crate) fn count(&self) -> (usize, usize) {
        let seeds = self.all.iter().filter(|trial| trial.is_seed()).count();
        (self.all.len() - seeds, seeds)
    }

    /// Tries one mutant: first the tests that come by it, a program at a time, then the seeds.
    /// Tests that take longer than `longest` milliseconds are left out.
    pub(crate) fn fate(&self, mutant: usize, longest: u64) -> anyhow::Result<Fate> {
        let apt = |trial: &&Trial| trial.seen.contains(&mutant) && (trial.is_seed() || trial.millis <= longest);
        let (seeds, tests): (Vec<&Trial>, Vec<&Trial>) = self.all.iter().filter(apt).partition(|trial| trial.is_seed());
        let mut changed = 0;
        for group in order(&tests, &seeds) {
            let Some(first) = group.first() else { continue };
            let millis = group.iter().map(|trial| trial.millis).sum::<u64>();
            let mut command = bounded(&first.program, &first.dir, millis * SLOWER / 1_000 + GRACE);
            if !first.is_seed() {
                command.args(["--exact", "--test-threads", "1"]);
            }
            command.args(group.iter().map(|trial| &trial.name)).env("MUTANT", mutant.to_string());
            let printed = match run(command, Duration::from_millis(millis * SLOWER + GRACE * 1_000) * WAITING)? {
                Ended::Well(printed) => printed,
                Ended::Badly(printed) => return Ok(Fate::Caught(first.blame(&printed))),
                Ended::Late => return Ok(Fate::Caught(format!("late: {}", first.program_name()))),
            };
            let lines = group.iter().filter_map(|seed| Some(format!("{} {}", seed.name, seed.digest.as_ref()?)));
            changed += lines.filter(|line| !printed.lines().any(|other| other == line)).count();
        }
        let fate = Fate::Survived { tests: tests.len(), seeds: seeds.len(), changed };
        Ok(if tests.is_empty() && seeds.is_empty() { Fate::Unreached } else { fate })
    }
}

/// The order in which trials find most in the least time, each slice for one process: quick tests, some seeds, slow
/// tests, and the other seeds.
fn order<'a>(tests: &[&'a Trial], seeds: &[&'a Trial]) -> Vec<Vec<&'a Trial>> {
    let (slow, quick): (Vec<&Trial>, Vec<&Trial>) = tests.iter().partition(|test| test.millis > SLOW);
    let mut programs: BTreeMap<&Path, Vec<&Trial>> = BTreeMap::new();
    for test in quick {
        programs.entry(&test.program).or_default().push(test);
    }
    let mut order: Vec<Vec<&Trial>> = programs.into_values().collect();
    order.sort_by_key(|tests| tests.iter().map(|test| test.millis).sum::<u64>());
    let (first, rest) = seeds.split_at(seeds.len().min(FIRST));
    order.push(first.to_vec());
    order.extend(slow.into_iter().map(|test| vec![test]));
    order.extend(rest.chunks(TOGETHER).map(<[&Trial]>::to_vec));
    order
}

impl Trial {
    /// The program's name without its hash.
    fn program_name(&self) -> String {
        let file = self.program.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        file.rsplit_once('-').map_or(file.clone(), |(name, _)| name.to_owned())
    }

    /// Which of a program's tests or seeds failed.
    fn blame(&self, printed: &str) -> String {
        if self.is_seed() {
            let seed = printed.lines().find(|line| line.contains(" failed: "));
            return seed.map_or_else(|| "a seed ended".to_owned(), |line| format!("seed {line}"));
        }
        let test = printed.lines().find_map(|line| line.strip_prefix("test ")?.strip_suffix(" ... FAILED"));
        test.map_or_else(|| format!("{} ended", self.program_name()), |test| format!("{}: {test}", self.program_name()))
    }
}
