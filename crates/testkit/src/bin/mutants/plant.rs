//! Plants all mutants in a copy of the sources, each behind a switch, so that one build has them all.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, bail, ensure};
use serde_json::Value;

use crate::find::{self, Form, Mutant};

/// The crates whose sources are changed; the first has the switch.
const CHANGED: [(&str, &str); 2] = [("protocol", "crate"), ("store", "protocol")];
/// The crates that are only copied: the runner of seeds, and what cargo wants to see with it.
const COPIED: [&str; 6] = ["catalog", "erasure", "object", "paper", "sim", "testkit"];
/// Most runs of the compiler; each reports more mutants that do not compile.
const CHECKS: usize = 30;

/// A mutant and its file.
#[derive(Debug)]
pub(crate) struct PlantedBug {
    /// From the root of the repository.
    pub(crate) file: String,
    pub(crate) mutant: Mutant,
    /// Whether the compiler refuses it.
    pub(crate) refused: bool,
}

impl PlantedBug {
    /// File and name.
    pub(crate) fn key(&self) -> String {
        format!("{}: {}", self.file, self.mutant.name)
    }
}

/// The copy.
#[derive(Debug)]
pub(crate) struct Copy {
    from: PathBuf,
    pub(crate) tree: PathBuf,
    build: PathBuf,
    /// Where what the compiler refused is kept for the next time.
    refused: PathBuf,
    /// Numbered from 0.
    pub(crate) mutants: Vec<PlantedBug>,
}

fn files(dir: &Path, found: &mut Vec<PathBuf>) -> anyhow::Result<()> {
    let entries = fs::read_dir(dir).with_context(|| format!("{} cannot be listed", dir.display()))?;
    for entry in entries {
        let path = entry.with_context(|| format!("{} cannot be listed", dir.display()))?.path();
        if path.is_dir() { files(&path, found)? } else { found.push(path) }
    }
    Ok(())
}

fn read(path: &Path) -> anyhow::Result<String> {
    fs::read_to_string(path).with_context(|| format!("{} cannot be read", path.display()))
}

/// Writes a file unless it is there just so: what did not change is not compiled again.
fn write(path: &Path, bytes: &[u8]) -> anyhow::Result<()> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let dir = path.parent().context("a file without a directory")?;
    fs::create_dir_all(dir).with_context(|| format!("{} cannot be made", dir.display()))?;
    fs::write(path, bytes).with_context(|| format!("{} cannot be written", path.display()))
}

impl Copy {
    /// Finds the mutants of the repository at `from`; the copy and its build will be under `work`.
    pub(crate) fn new(from: &Path, work: &Path) -> anyhow::Result<Self> {
        let refused = work.join("refused");
        let known: BTreeSet<String> =
            fs::read_to_string(&refused).unwrap_or_default().lines().map(str::to_owned).collect();
        let mut copy = Self {
            from: from.to_owned(),
            tree: work.join("tree"),
            build: work.join("build"),
            refused,
            mutants: Vec::new(),
        };
        for (name, _) in CHANGED {
            for file in copy.sources(name)? {
                let text = read(&from.join(&file))?;
                let mutants = find::mutants(&file, &text)?.into_iter();
                copy.mutants.extend(mutants.map(|mutant| PlantedBug { file: file.clone(), mutant, refused: false }));
            }
        }
        for planted in &mut copy.mutants {
            planted.refused = known.contains(&planted.key());
        }
        Ok(copy)
    }

    /// The sources of a crate that are changed.
    fn sources(&self, name: &str) -> anyhow::Result<Vec<String>> {
        let mut found = Vec::new();
        files(&self.from.join("crates").join(name).join("src"), &mut found)?;
        let relative = |path: PathBuf| path.strip_prefix(&self.from).ok().map(|path| path.display().to_string());
        let mut found: Vec<String> = found.into_iter().filter_map(relative).collect();
        found.retain(|file| file.ends_with(".rs"));
        found.sort();
        Ok(found)
    }

    /// Copies everything and changes it, without what the compiler refused. Files that are gone go from the copy too.
    fn write(&self) -> anyhow::Result<()> {
        let mut wanted = BTreeSet::new();
        for file in ["Cargo.toml", "rust-toolchain.toml", "Cargo.lock"] {
            let to = self.tree.join(file);
            // Cargo takes what is not copied out of the lock: it is only taken anew with other dependencies.
            if file != "Cargo.lock" || !to.exists() {
                write(&to, read(&self.from.join(file))?.as_bytes())?;
            }
            wanted.insert(to);
        }
        for name in CHANGED.iter().map(|(name, _)| *name).chain(COPIED) {
            let mut found = Vec::new();
            files(&self.from.join("crates").join(name), &mut found)?;
            for path in found {
                let to = self.tree.join(path.strip_prefix(&self.from).context("a file outside the repository")?);
                let bytes = fs::read(&path).with_context(|| format!("{} cannot be read", path.display()))?;
                let file =
                    path.strip_prefix(&self.from).context("a file outside the repository")?.display().to_string();
                let bytes = if file.ends_with(".rs") { self.changed(&file, bytes)? } else { bytes };
                write(&to, &bytes)?;
                wanted.insert(to);
            }
        }
        let switch = self.tree.join("crates/protocol/src/planted.rs");
        write(&switch, include_bytes!("planted.rs"))?;
        wanted.insert(switch);
        let mut there = Vec::new();
        files(&self.tree, &mut there)?;
        for gone in there.into_iter().filter(|path| !wanted.contains(path)) {
            fs::remove_file(&gone).with_context(|| format!("{} cannot be removed", gone.display()))?;
        }
        Ok(())
    }

    fn changed(&self, file: &str, bytes: Vec<u8>) -> anyhow::Result<Vec<u8>> {
        let mutants: Vec<(usize, &Mutant)> = self
            .mutants
            .iter()
            .enumerate()
            .filter(|(_, planted)| planted.file == file && !planted.refused)
            .map(|(number, planted)| (number, &planted.mutant))
            .collect();
        if mutants.is_empty() && file != "crates/protocol/src/lib.rs" {
            return Ok(bytes);
        }
        let text = String::from_utf8(bytes).with_context(|| format!("{file} is not text"))?;
        let home = CHANGED.iter().find(|(name, _)| file.starts_with(&format!("crates/{name}/")));
        let (_, switch) = home.context("a mutant in a crate that is only copied")?;
        let mut changed = render(&text, 0..text.len(), &mutants, switch);
        if file == "crates/protocol/src/lib.rs" {
            changed.push_str("\n#[doc(hidden)]\npub mod planted;\n");
        }
        Ok(changed.into_bytes())
    }

    fn cargo(&self, words: &[&str]) -> Command {
        let mut cargo = Command::new("cargo");
        cargo
            .args(words)
            .args(["--release", "--message-format", "json"])
            .current_dir(&self.tree)
            .env("CARGO_TARGET_DIR", &self.build)
            .env("CARGO_PROFILE_RELEASE_DEBUG", "0")
            .env("RUSTFLAGS", "--allow warnings")
            .stdin(Stdio::null());
        cargo
    }

    /// Of all files of the copy.
    pub(crate) fn stamp(&self) -> anyhow::Result<u64> {
        let mut paths = Vec::new();
        files(&self.tree, &mut paths)?;
        paths.sort();
        let texts =
            paths.iter().map(|path| fs::read(path).with_context(|| format!("{} cannot be read", path.display())));
        Ok(crate::hash((&paths, texts.collect::<anyhow::Result<Vec<_>>>()?)))
    }

    /// Runs cargo; whether it went well, and its messages.
    fn ask(&self, words: &[&str]) -> anyhow::Result<(bool, Vec<Value>, String)> {
        let output = self.cargo(words).output().context("cargo cannot be started")?;
        let printed = String::from_utf8_lossy(&output.stdout);
        let messages = printed.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
        Ok((output.status.success(), messages, String::from_utf8_lossy(&output.stderr).into_owned()))
    }

    /// Writes the copy, asking the compiler until nothing is left that it refuses.
    pub(crate) fn write_what_compiles(&mut self) -> anyhow::Result<()> {
        for _ in 0..CHECKS {
            self.write()?;
            let (well, messages, errors) = self.ask(&["check", "--package", "reservoir-store"])?;
            if well {
                let refused: String =
                    self.mutants.iter().filter(|planted| planted.refused).map(|planted| planted.key() + "\n").collect();
                return write(&self.refused, refused.as_bytes());
            }
            let before = self.mutants.iter().filter(|planted| planted.refused).count();
            for message in messages.iter().filter(|message| message["message"]["level"] == "error") {
                for number in self.guilty(&message["message"])? {
                    self.mutants[number].refused = true;
                }
            }
            let after = self.mutants.iter().filter(|planted| planted.refused).count();
            eprintln!("  {after} mutants do not compile");
            ensure!(after > before, "the copy in {} does not compile:\n{errors}", self.tree.display());
        }
        bail!("the copy in {} still does not compile after {CHECKS} times", self.tree.display())
    }

    /// The mutants that an error of the compiler stands in.
    fn guilty(&self, message: &Value) -> anyhow::Result<Vec<usize>> {
        let spans = message["spans"].as_array().cloned().unwrap_or_default();
        let (first, others): (Vec<Value>, Vec<Value>) = spans.into_iter().partition(|span| span["is_primary"] == true);
        for span in first.iter().chain(&others) {
            let (Some(file), Some(at)) = (span["file_name"].as_str(), span["byte_start"].as_u64()) else { continue };
            let path = self.tree.join(file);
            if path.is_file() {
                let around = around(&read(&path)?, at as usize);
                if !around.is_empty() {
                    return Ok(around);
                }
            }
        }
        Ok(Vec::new())
    }

    /// Builds the tests of the changed crates and the runner of seeds: the programs, with their packages' directories.
    pub(crate) fn build(&self) -> anyhow::Result<(Vec<(PathBuf, PathBuf)>, PathBuf)> {
        let packages = ["--package", "reservoir-protocol", "--package", "reservoir-store"];
        let (well, messages, errors) = self.ask(&[&["test", "--no-run"], &packages[..]].concat())?;
        ensure!(well, "the tests do not build:\n{errors}");
        let tests = messages.iter().filter(|message| message["profile"]["test"] == true);
        let tests = tests.filter_map(|message| {
            let package = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
            Some((PathBuf::from(message["executable"].as_str()?), package))
        });
        let mut tests: Vec<(PathBuf, PathBuf)> = tests.collect();
        tests.sort();
        let (well, messages, errors) = self.ask(&["build", "--package", "reservoir-sim", "--example", "seeds"])?;
        ensure!(well, "the runner of seeds does not build:\n{errors}");
        let seeds = messages.iter().filter(|message| message["target"]["name"] == "seeds");
        let seeds = seeds.filter_map(|message| message["executable"].as_str()).next();
        Ok((tests, seeds.map(PathBuf::from).context("cargo does not say where the runner of seeds is")?))
    }
}

/// A stretch of source with its mutants, each behind the switch, and marked so that errors are traced back to it.
fn render(text: &str, range: std::ops::Range<usize>, mutants: &[(usize, &Mutant)], switch: &str) -> String {
    let (mut out, mut at, mut next) = (String::new(), range.start, 0);
    while let Some((number, mutant)) = mutants.get(next) {
        let here = mutant.range.clone();
        out.push_str(&text[at..here.start]);
        at = here.end;
        let is = |number: usize| format!("{switch}::planted::is({number})");
        let mut inner = next + 1;
        let end = |from: usize| from + mutants[from..].iter().take_while(|(_, m)| m.range.start < here.end).count();
        match &mutant.form {
            Form::Return(value) => {
                out.push_str(&format!("/*{{{number}*/ if {} {{ return {value}; }} /*}}*/", is(*number)));
            }
            Form::Never => out.push_str(&format!("/*{{{number}*/ if !{} /*}}*/", is(*number))),
            Form::Without => {
                let end = end(inner);
                let rest = render(text, here.clone(), &mutants[inner..end], switch);
                out.push_str(&format!("/*{{{number}*/ if !{} {{ {rest} }} /*}}*/", is(*number)));
                inner = end;
            }
            Form::Instead(_) => {
                let all = mutants[next..].iter().take_while(|(_, m)| m.range == here).count();
                inner = next + all;
                let numbers: Vec<String> = mutants[next..inner].iter().map(|(n, _)| n.to_string()).collect();
                out.push_str(&format!("/*{{{}*/(", numbers.join(",")));
                for (number, mutant) in &mutants[next..inner] {
                    if let Form::Instead(other) = &mutant.form {
                        out.push_str(&format!("if {} {{ /*{{{number}*/ {other} /*}}*/ }} else ", is(*number)));
                    }
                }
                let end = end(inner);
                let rest = render(text, here.clone(), &mutants[inner..end], switch);
                out.push_str(&format!("{{ {rest} }})/*}}*/"));
                inner = end;
            }
        }
        next = inner;
    }
    out.push_str(&text[at..range.end]);
    out
}

/// The mutants of the innermost marks around a place in a rendered file.
fn around(text: &str, at: usize) -> Vec<usize> {
    let mut open: Vec<Vec<usize>> = Vec::new();
    let mut rest = 0;
    while let Some(mark) = text[rest..].find("/*{").into_iter().chain(text[rest..].find("/*}*/")).min() {
        let begin = rest + mark;
        if begin > at {
            break;
        }
        let Some(len) = text[begin..].find("*/") else { break };
        match text[begin..begin + len].strip_prefix("/*{") {
            Some(numbers) => open.push(numbers.split(',').filter_map(|number| number.parse().ok()).collect()),
            None => drop(open.pop()),
        }
        rest = begin + len + 2;
    }
    open.pop().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_mutant_is_behind_its_own_switch_and_the_code_stays() {
        let text = "fn f(a: u32) -> bool { if a < 3 && g() { h(a + 1); } a == 4 }";
        let found = find::mutants("f.rs", text).unwrap();
        let numbered: Vec<(usize, &Mutant)> = found.iter().enumerate().collect();
        let rendered = render(text, 0..text.len(), &numbered, "crate");
        syn::parse_file(&rendered).unwrap();
        for number in 0..found.len() {
            assert_eq!(rendered.matches(&format!("is({number})")).count(), 1, "{rendered}");
        }
        let names: Vec<&str> = found.iter().map(|mutant| mutant.name.as_str()).collect();
        for name in [
            "f: returns true at once",
            "f: `a < 3 && g()` becomes `false`",
            "f: `a < 3` becomes `true`",
            "f: `a < 3` becomes `a <= 3`",
            "f: `g()` becomes `true`",
            "f: without `h(a + 1);`",
            "f: `a + 1` becomes `a - 1`",
            "f: `a == 4` becomes `a != 4`",
            "f: `4` becomes `5`",
        ] {
            assert!(names.contains(&name), "{name} is not in {names:?}");
        }
    }

    #[test]
    fn an_error_is_traced_to_the_innermost_mark() {
        let text = "a /*{1,2*/( /*{1*/ b /*}*/ c )/*}*/ d";
        let at = |letter| around(text, text.find(letter).unwrap());
        assert_eq!((at('a'), at('b'), at('c'), at('d')), (vec![], vec![1], vec![1, 2], vec![]));
    }
}
