//! `mutants`: plants small changes in `protocol` and `store`, one at a time, and lists those that no test and no seed
//! notices. `docs/mutants.md` explains it.

mod find;
mod plant;
mod trial;
mod verdicts;

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use clap::Parser;

use plant::{Copy, PlantedBug};
use trial::{Fate, Trials};
use verdicts::{Results, Verdicts};

/// Plants small changes in `protocol` and `store`, runs tests and seeds against each, and lists those that nothing
/// noticed and docs/mutants.toml does not know. Fails when there are such. What was tried before is not tried again.
#[derive(Debug, Parser)]
#[command(name = "mutants")]
struct Arguments {
    /// Try only about so many, spread over all.
    #[arg(long, value_name = "N")]
    sample: Option<usize>,
    /// Try only the I-th of N equal parts, I from 1.
    #[arg(long, value_name = "I/N", value_parser = parse_shard)]
    shard: Option<(usize, usize)>,
    /// Try only those whose file, function or change has this text in it; give it again for others as well.
    #[arg(long, value_name = "TEXT")]
    only: Vec<String>,
    /// Leave out those whose file, function or change has this text in it; give it again for others as well.
    #[arg(long, value_name = "TEXT")]
    skip: Vec<String>,
    /// Begin no further one after so many seconds.
    #[arg(long, value_name = "SECONDS")]
    seconds: Option<u64>,
    /// Seeds of `reservoir sim check` to run against each.
    #[arg(long, value_name = "N", default_value_t = 100)]
    seeds: u64,
    /// Leave out tests that take longer than so many seconds: for a quick run.
    #[arg(long, value_name = "SECONDS")]
    longest: Option<u64>,
    /// How many to try at a time.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u8).range(1..=64))]
    jobs: u8,
    /// Try those again that survived; once more also those with a verdict.
    #[arg(long)]
    again: bool,
    /// Print all that would be tried, each with its number, and try none.
    #[arg(long)]
    list: bool,
    /// Where the copy, its build and the results are.
    #[arg(long, value_name = "DIR", default_value = "target/mutants")]
    work: PathBuf,
}

fn parse_shard(words: &str) -> Result<(usize, usize), String> {
    let parts = words.split_once('/').and_then(|(part, all)| Some((part.parse().ok()?, all.parse().ok()?)));
    parts.filter(|(part, all)| (1..=*all).contains(part)).ok_or_else(|| "give it as 2/5".to_owned())
}

/// Does `work` for each of `items` on so many threads; the results in the order of the items.
pub(crate) fn side_by_side<T: Sync, R: Send>(jobs: usize, items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let (next, done) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    std::thread::scope(|scope| {
        for _ in 0..jobs {
            scope.spawn(|| {
                while let nth = next.fetch_add(1, Ordering::Relaxed)
                    && let Some(item) = items.get(nth)
                {
                    let result = work(item);
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((nth, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(nth, _)| *nth);
    done.into_iter().map(|(_, result)| result).collect()
}

fn hash(of: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    of.hash(&mut hasher);
    hasher.finish()
}

impl Arguments {
    /// The numbers of those to try, spread so that an early end leaves a sample of all.
    fn choose(&self, mutants: &[PlantedBug]) -> Vec<usize> {
        let has = |texts: &[String], planted: &PlantedBug| texts.iter().any(|text| planted.key().contains(text));
        let wanted =
            |planted: &PlantedBug| (self.only.is_empty() || has(&self.only, planted)) && !has(&self.skip, planted);
        let mut chosen: Vec<usize> =
            (0..mutants.len()).filter(|n| !mutants[*n].refused && wanted(&mutants[*n])).collect();
        chosen.sort_by_key(|number| hash(mutants[*number].key()));
        if let Some((part, all)) = self.shard {
            chosen = chosen.into_iter().skip(part - 1).step_by(all).collect();
        }
        chosen.truncate(self.sample.unwrap_or(usize::MAX));
        chosen
    }

    /// Tests and seeds, and which mutants they come by; from the last run when nothing changed since.
    fn trials(&self, copy: &Copy, work: &Path) -> anyhow::Result<Trials> {
        let (tests, seeds) = copy.build()?;
        let stamp = hash((copy.stamp()?, self.seeds));
        let kept = work.join("trials.json");
        let last = std::fs::read(&kept).ok().and_then(|bytes| serde_json::from_slice::<Trials>(&bytes).ok());
        if let Some(trials) = last.filter(|trials| trials.stamp == stamp) {
            return Ok(trials);
        }
        eprintln!("running every test and {} seeds without a mutant", self.seeds);
        let trials = Trials::watch(stamp, &tests, (&seeds, self.seeds), usize::from(self.jobs), work)?;
        let json = serde_json::to_vec(&trials).context("what the tests come by cannot be kept")?;
        std::fs::write(&kept, json).with_context(|| format!("{} cannot be written", kept.display()))?;
        Ok(trials)
    }

    fn run(&self, copy: &Copy, work: &Path, verdicts: &Verdicts) -> anyhow::Result<Results> {
        let trials = self.trials(copy, work)?;
        let results = Mutex::new(Results::open(&work.join("results.tsv"))?);
        let chosen = self.choose(&copy.mutants);
        let known = |number: &usize| {
            let (file, name) = (&copy.mutants[*number].file, &copy.mutants[*number].mutant.name);
            let results = results.lock().unwrap_or_else(PoisonError::into_inner);
            match results.get(&copy.mutants[*number].key()) {
                Some(fate) => fate.is_caught() || !self.again,
                None => !self.again && verdicts.get(file, name).is_some(),
            }
        };
        let open: Vec<usize> = chosen.iter().copied().filter(|number| !known(number)).collect();
        let (tests, seeds) = trials.count();
        eprintln!("{} mutants to try of {} chosen, with {tests} tests and {seeds} seeds", open.len(), chosen.len());
        let (begun, done) = (Instant::now(), AtomicUsize::new(0));
        let most = self.seconds.map_or(Duration::MAX, Duration::from_secs);
        let outcomes = side_by_side(usize::from(self.jobs), &open, |number| {
            if begun.elapsed() > most {
                return Ok(());
            }
            let fate = trials.fate(*number, self.longest.map_or(u64::MAX, |seconds| seconds * 1_000))?;
            let planted = &copy.mutants[*number];
            let nth = done.fetch_add(1, Ordering::Relaxed) + 1;
            if !fate.is_caught() {
                eprintln!(
                    "[{nth}/{}] {}:{} {}: {fate}",
                    open.len(),
                    planted.file,
                    planted.mutant.line,
                    planted.mutant.name
                );
            } else if nth.is_multiple_of(50) {
                eprintln!("[{nth}/{}] {:.0} s", open.len(), begun.elapsed().as_secs_f64());
            }
            results.lock().unwrap_or_else(PoisonError::into_inner).put(planted.key(), fate)
        });
        outcomes.into_iter().collect::<anyhow::Result<()>>()?;
        let done = done.into_inner();
        if done < open.len() {
            eprintln!("the time is over: {} are left for the next run", open.len() - done);
        }
        Ok(results.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Prints what survived and has no verdict; how many.
fn report(copy: &Copy, chosen: &[usize], results: &Results, verdicts: &Verdicts) -> usize {
    let (mut caught, mut known, mut new) = (0, 0, 0);
    for planted in chosen.iter().map(|number| &copy.mutants[*number]) {
        let verdict = verdicts.get(&planted.file, &planted.mutant.name);
        match (results.get(&planted.key()), verdict) {
            (Some(Fate::Caught(by)), Some(_)) => {
                caught += 1;
                println!("{} is caught ({by}): take it out of docs/mutants.toml", planted.key());
            }
            (Some(Fate::Caught(_)), None) => caught += 1,
            (_, Some(_)) => known += 1,
            (Some(fate), None) => {
                new += 1;
                println!("{}:{} {}: {fate}", planted.file, planted.mutant.line, planted.mutant.name);
            }
            (None, None) => {}
        }
    }
    let tried = caught + new;
    println!("{tried} tried: {caught} caught, {new} survived without a verdict; {known} known to survive");
    new
}

fn main() -> anyhow::Result<()> {
    let arguments = Arguments::parse();
    let root = std::env::current_dir().context("the current directory is unknown")?;
    ensure!(
        root.join("crates/protocol/src").is_dir(),
        "there is no crates/protocol here: run it in the repository's root"
    );
    let work = root.join(&arguments.work);
    std::fs::create_dir_all(&work).with_context(|| format!("{} cannot be made", work.display()))?;
    let verdicts = Verdicts::read(&root.join("docs/mutants.toml"))?;
    let mut copy = Copy::new(&root, &work)?;
    eprintln!("{} mutants; building all of them at once in {}", copy.mutants.len(), work.display());
    copy.write_what_compiles()?;
    let chosen = arguments.choose(&copy.mutants);
    for (file, name) in verdicts.stale(&copy.mutants) {
        println!("docs/mutants.toml has a mutant that is no more: {file}: {name}");
    }
    if arguments.list {
        for (number, planted) in chosen.iter().map(|number| (number, &copy.mutants[*number])) {
            println!("{number} {}:{} {}", planted.file, planted.mutant.line, planted.mutant.name);
        }
        return Ok(());
    }
    let results = arguments.run(&copy, &work, &verdicts)?;
    let new = report(&copy, &chosen, &results, &verdicts);
    ensure!(new == 0, "{new} mutants survived: close the hole by a test, or judge them in docs/mutants.toml");
    Ok(())
}
