//! What is kept: the results of earlier runs, and the verdicts of people on those that survived.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, ensure};

use crate::plant::PlantedBug;
use crate::trial::Fate;

/// What a verdict begins with.
const KINDS: [&str; 3] = ["equivalent", "slow", "open"];

/// The verdicts of people on survivors, by file and name.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    files: BTreeMap<String, BTreeMap<String, String>>,
}

impl Verdicts {
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let what = || format!("{} cannot be read", path.display());
        let files: BTreeMap<String, BTreeMap<String, String>> =
            toml::from_str(&std::fs::read_to_string(path).with_context(what)?).with_context(what)?;
        for (file, verdicts) in &files {
            for (name, verdict) in verdicts {
                let kind = verdict.split(':').next().unwrap_or_default();
                ensure!(
                    KINDS.contains(&kind),
                    "{}: the verdict of `{name}` in {file} begins with none of {}",
                    path.display(),
                    KINDS.join(", ")
                );
            }
        }
        Ok(Self { files })
    }

    pub(crate) fn get(&self, file: &str, name: &str) -> Option<&str> {
        self.files.get(file)?.get(name).map(String::as_str)
    }

    /// Those of mutants that are no more.
    pub(crate) fn stale(&self, mutants: &[PlantedBug]) -> Vec<(&str, &str)> {
        let there =
            |file: &str, name: &str| mutants.iter().any(|p| p.file == file && p.mutant.name == name && !p.refused);
        let all = self.files.iter().flat_map(|(file, all)| all.keys().map(move |name| (file.as_str(), name.as_str())));
        all.filter(|(file, name)| !there(file, name)).collect()
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Caught(by) => write!(f, "caught\t{by}"),
            Self::Unreached => write!(f, "no test and no seed comes by it"),
            Self::Survived { tests, seeds, changed } => {
                write!(f, "survived {tests} tests and {seeds} seeds, of which {changed} took another course")
            }
        }
    }
}

impl Fate {
    pub(crate) fn is_caught(&self) -> bool {
        matches!(self, Self::Caught(_))
    }

    /// The reverse of its words.
    fn parse(words: &str) -> Option<Self> {
        if let Some(by) = words.strip_prefix("caught\t") {
            return Some(Self::Caught(by.to_owned()));
        }
        let mut numbers = words.split(' ').filter_map(|word| word.parse().ok());
        match words.starts_with("survived") {
            true => Some(Self::Survived { tests: numbers.next()?, seeds: numbers.next()?, changed: numbers.next()? }),
            false => words.starts_with("no test").then_some(Self::Unreached),
        }
    }
}

/// Results so far; what is put is on disk at once, so that a run can be broken off.
#[derive(Debug)]
pub(crate) struct Results {
    file: File,
    fates: BTreeMap<String, Fate>,
}

impl Results {
    pub(crate) fn open(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path).unwrap_or_default();
        let line =
            |line: &str| line.split_once('\t').and_then(|(key, fate)| Some((key.to_owned(), Fate::parse(fate)?)));
        let fates = text.lines().filter_map(line).collect();
        let file = File::options().create(true).append(true).open(path);
        Ok(Self { file: file.with_context(|| format!("{} cannot be opened", path.display()))?, fates })
    }

    pub(crate) fn get(&self, key: &str) -> Option<&Fate> {
        self.fates.get(key)
    }

    pub(crate) fn put(&mut self, key: String, fate: Fate) -> anyhow::Result<()> {
        writeln!(self.file, "{key}\t{}", fate.to_string().replace('\n', " ")).context("a result cannot be written")?;
        self.fates.insert(key, fate);
        Ok(())
    }
}
