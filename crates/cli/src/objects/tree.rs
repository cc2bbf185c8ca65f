//! Trees: the files below a directory, and the objects whose keys begin alike.

use std::fs::{self, ReadDir};
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, bail, ensure};
use indicatif::ProgressBar;
use serde::Serialize;

use crate::client::{Listed, S3, concerns_all};
use crate::location::Location;
use crate::output::{byte_bar, json, line, say};
use crate::units;

/// Objects in work at once.
const HANDS: usize = 4;

/// What was done.
#[derive(Debug, Serialize)]
pub(super) struct Done {
    pub(super) objects: u64,
    /// Of what was put or got.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) bytes: Option<u64>,
}

/// Does `work` with each thing, a few at a time. What fails is reported and does not keep the others from being done, unless they
/// would fail as well; in the end it is an error. What `work` returns is added up.
fn each<T: Send>(
    what: &str,
    things: impl Iterator<Item = anyhow::Result<T>> + Send,
    work: impl Fn(T) -> anyhow::Result<u64> + Sync,
) -> anyhow::Result<(u64, u64)> {
    let things = Mutex::new(things.fuse());
    let [done, failed, sum] = [const { AtomicU64::new(0) }; 3];
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..HANDS {
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    let next = things.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some(thing) = next else { break };
                    match thing.and_then(&work) {
                        Ok(bytes) => {
                            done.fetch_add(1, Ordering::Relaxed);
                            sum.fetch_add(bytes, Ordering::Relaxed);
                        }
                        Err(error) => {
                            failed.fetch_add(1, Ordering::Relaxed);
                            // Others who have found the same meanwhile need not say it again.
                            if !(concerns_all(&error) && is_over.swap(true, Ordering::Relaxed)) {
                                say!("reservoir: {error:#}");
                            }
                        }
                    }
                }
            });
        }
    });
    let (done, failed, sum) = (done.into_inner(), failed.into_inner(), sum.into_inner());
    ensure!(!is_over.into_inner(), "{done} objects were {what}, and the rest cannot be: see the lines above");
    ensure!(failed == 0, "{done} objects were {what}, {failed} were not: see the lines above");
    Ok((done, sum))
}

fn report(what: &str, (objects, bytes): (u64, u64), as_json: bool) -> anyhow::Result<()> {
    if as_json {
        return json(&Done { objects, bytes: Some(bytes) });
    }
    line(&format!("{what}: {objects} objects, {}", units::size(bytes)))
}

/// The files below a directory, as they are found.
struct Walk {
    open: Vec<(PathBuf, ReadDir)>,
}

/// Deepest directory that is read: what is deeper has no key.
const DEPTH: usize = 512;

impl Walk {
    fn new(root: &Path) -> anyhow::Result<Self> {
        Ok(Self { open: vec![(root.to_owned(), read_dir(root)?)] })
    }

    /// What is to be done with the next entry of a directory: nothing, or to put it.
    fn next_file(&mut self, path: PathBuf) -> anyhow::Result<Option<PathBuf>> {
        let of = |path: &Path| format!("{} cannot be examined", path.display());
        let kind = fs::symlink_metadata(&path).with_context(|| of(&path))?.file_type();
        if kind.is_dir() {
            ensure!(self.open.len() < DEPTH, "{} is too deep to be stored", path.display());
            let entries = read_dir(&path)?;
            self.open.push((path, entries));
            return Ok(None);
        }
        // A link is as good as what it leads to, if that is a file.
        if fs::metadata(&path).with_context(|| of(&path))?.is_file() {
            return Ok(Some(path));
        }
        say!("reservoir: {} is no file, and is left out", path.display());
        Ok(None)
    }
}

fn read_dir(path: &Path) -> anyhow::Result<ReadDir> {
    fs::read_dir(path).with_context(|| format!("the directory {} cannot be read", path.display()))
}

impl Iterator for Walk {
    type Item = anyhow::Result<PathBuf>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let (path, entries) = self.open.last_mut()?;
            match entries.next() {
                None => drop(self.open.pop()),
                Some(Err(error)) => {
                    let error = anyhow::Error::new(error);
                    return Some(Err(error.context(format!("the directory {} cannot be read", path.display()))));
                }
                Some(Ok(entry)) => match self.next_file(entry.path()) {
                    Ok(None) => {}
                    Ok(Some(path)) => return Some(Ok(path)),
                    Err(error) => return Some(Err(error)),
                },
            }
        }
    }
}

/// Puts all files below `root`.
pub(super) fn put(s3: &S3, root: &Path, to: &Location, headers: &[(&str, &str)], as_json: bool) -> anyhow::Result<()> {
    let bar = byte_bar("put", None);
    let one = |path: PathBuf| {
        let below = path.strip_prefix(root).ok().and_then(Path::to_str);
        let below = below.with_context(|| format!("{} has a name that is not UTF-8, as keys are", path.display()))?;
        let (source, size) = super::open_source(&path)?;
        let at = to.join(below);
        Ok(s3.put(&at, &mut bar.wrap_read(source), size, headers)?.size)
    };
    let done = each("stored", Walk::new(root)?, one)?;
    bar.finish_and_clear();
    report(&format!("stored in {to}"), done, as_json)
}

/// Where the object `key` belongs in a directory, if it is in the tree `at`.
fn path_of(at: &Location, key: &str, root: &Path) -> anyhow::Result<PathBuf> {
    let below = key.strip_prefix(&at.key).unwrap_or(key);
    // A path means the same without them, and an object with them is another one.
    let is_path = below.split('/').all(|part| !part.is_empty());
    let below = Path::new(below);
    let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
    ensure!(
        is_path && below.components().all(is_plain),
        "s3://{}/{key} would not be written below {}: read it alone, with -o",
        at.bucket,
        root.display()
    );
    Ok(root.join(below))
}

/// Gets all objects below `at` into files below `root`.
pub(super) fn get(s3: &S3, at: &Location, root: &Path, as_json: bool) -> anyhow::Result<()> {
    ensure!(root.as_os_str() != "-", "a tree has no place on standard output: name a directory with -o");
    let bar = byte_bar("get", Some(0));
    let one = |object: Listed| {
        // What stands for a directory of others.
        if object.key.ends_with('/') && object.size == 0 {
            return Ok(0);
        }
        let path = path_of(at, &object.key, root)?;
        if let Some(above) = path.parent() {
            fs::create_dir_all(above).with_context(|| format!("the directory {} cannot be made", above.display()))?;
        }
        let from = Location { bucket: at.bucket.clone(), key: object.key };
        got(s3, &from, &path, &bar)
    };
    let done = each("read", s3.objects(at), one)?;
    bar.finish_and_clear();
    ensure!(done.0 > 0, "there is nothing in {at}");
    report(&format!("read into {}", root.display()), done, as_json)
}

fn got(s3: &S3, at: &Location, path: &Path, bar: &ProgressBar) -> anyhow::Result<u64> {
    at.check().map_err(anyhow::Error::msg)?;
    Ok(s3.get_to(at, path, bar)?.size)
}

/// Removes all objects below `at`.
pub(super) fn remove(s3: &S3, at: &Location, as_json: bool) -> anyhow::Result<()> {
    let one = |object: Listed| {
        let this = Location { bucket: at.bucket.clone(), key: object.key };
        this.check().map_err(anyhow::Error::msg)?;
        s3.remove(&this.bucket, &this.key)?;
        Ok(0)
    };
    let (objects, _) = each("removed", s3.objects(at), one)?;
    if objects == 0 {
        bail!("there is nothing in {at}");
    }
    if as_json { json(&Done { objects, bytes: None }) } else { line(&format!("removed from {at}: {objects} objects")) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn nothing_is_written_outside_the_directory_and_no_two_keys_are_one_file() {
        let at = Location { bucket: "b".to_owned(), key: "t/".to_owned() };
        let root = Path::new("here");
        assert_eq!(path_of(&at, "t/a/b", root).unwrap(), Path::new("here/a/b"));
        for key in ["t/../x", "t//etc/x", "t/", "t/a/../../x", "t/a//b", "t/a/"] {
            assert!(path_of(&at, key, root).is_err(), "{key}");
        }
    }

    #[test]
    fn what_fails_is_counted_and_the_rest_is_done() {
        let things = (0..20).map(|n| if n == 3 { bail!("three") } else { Ok(n) });
        let error = each("done", things, |n| if n == 5 { bail!("five") } else { Ok(n) }).unwrap_err();
        assert!(error.to_string().starts_with("18 objects were done, 2 were not"), "{error}");
        assert_eq!(each("done", (0..20).map(Ok), Ok).unwrap(), (20, 190));
    }
}
