//! `reservoir migrate`: the files that earlier versions kept beside the objects become objects.

use anyhow::{Context, bail, ensure};
use object::files::{File, FileError, Reader, drop_files, each_file};
use rusty_s3::Method;
use serde::Serialize;

use crate::args::MigrateArgs;
use crate::client::{S3, header, is_refused};
use crate::location::Location;
use crate::node_cluster::NodeCluster;
use crate::output::{byte_bar, json, line, say, shortened};
use crate::{local_cluster, objects, units};

/// Which file an object was.
const OF_FILE: &str = "x-amz-meta-reservoir-file";
/// When it was put, milliseconds since 1970.
const STORED: &str = "x-amz-meta-reservoir-stored-ms";
/// Files whose manifests are dropped together.
const BATCH: usize = 256;

/// What was done.
#[derive(Debug, Default, Serialize)]
struct Done {
    /// Files that are objects now; with `--dry-run` those that there are.
    moved: u64,
    bytes: u64,
    /// Files that stay as they are.
    failed: u64,
}

/// Runs `reservoir migrate`.
pub(crate) fn run(args: &MigrateArgs) -> anyhow::Result<()> {
    let config = &args.with.table.config;
    let s3 = objects::s3(&args.with)?;
    let cluster = NodeCluster::start(&local_cluster::read(config)?, None, false, None)?;
    let mut moving = Moving { cluster: &cluster, s3: &s3, args, done: Done::default(), moved: Vec::new() };
    each_file(&cluster, &mut |file| moving.take(file))?;
    moving.drop_moved()?;
    let Done { moved, bytes, failed } = moving.done;
    if args.with.table.json {
        json(&moving.done)?;
    } else {
        let what = if args.dry_run { "would be moved" } else { "moved" };
        line(&format!("{moved} files {what} to {}, {}", args.to, units::size(bytes)))?;
    }
    if failed > 0 {
        bail!("{failed} files were not moved, and are as they were: see the lines above");
    }
    Ok(())
}

struct Moving<'a> {
    cluster: &'a NodeCluster,
    s3: &'a S3,
    args: &'a MigrateArgs,
    done: Done,
    /// Files that are objects by now, and still files.
    moved: Vec<File>,
}

impl Moving<'_> {
    fn take(&mut self, file: Result<File, FileError>) -> anyhow::Result<()> {
        let outcome = match file {
            Ok(file) => {
                let name = file.manifest.name.clone();
                self.one(file).with_context(|| format!("the file {name:?} was not moved"))
            }
            Err(error) => Err(error).context("a file was not moved"),
        };
        if let Err(error) = outcome {
            self.done.failed += 1;
            say!("reservoir: {error:#}");
        }
        if self.moved.len() >= BATCH { self.drop_moved() } else { Ok(()) }
    }

    fn one(&mut self, file: File) -> anyhow::Result<()> {
        let size = file.manifest.size;
        let at = self.args.to.join(&key(&file.manifest.name));
        let as_json = self.args.with.table.json;
        if !self.args.dry_run {
            self.store(&file, &at)?;
            self.moved.push(file);
        }
        self.done.moved += 1;
        self.done.bytes += size;
        if as_json { Ok(()) } else { line(&format!("{at}: {}", units::size(size))) }
    }

    /// Puts the file as an object, unless it is one already: whatever is there stays.
    fn store(&self, file: &File, at: &Location) -> anyhow::Result<()> {
        if self.is_there(file, at)? {
            return Ok(());
        }
        let bar = byte_bar(&shortened(&at.key), Some(file.manifest.size));
        let (of_file, stored) = (file.id.to_string(), file.manifest.created_ms.to_string());
        // The end of the bytes comes only when they were found to be those that were put: without it there is no object.
        let mut source = bar.wrap_read(Reader::new(self.cluster, &file.manifest));
        let headers = [(OF_FILE, of_file.as_str()), (STORED, stored.as_str())];
        let put = self.s3.put_new(at, &mut source, Some(file.manifest.size), &headers);
        bar.finish_and_clear();
        match put {
            Ok(put) => {
                ensure!(put.size == file.manifest.size, "{} of {} bytes were stored", put.size, file.manifest.size);
            }
            // Somebody put one meanwhile: this command too, perhaps, run twice.
            Err(error) if is_refused(&error, "PreconditionFailed") => {}
            Err(error) => return Err(error),
        }
        // What the gateway has decides, before the file goes.
        ensure!(self.is_there(file, at)?, "the object {at} was removed as soon as it was put");
        Ok(())
    }

    /// Whether the object is there that the file becomes: one that was put for it, or one of the same bytes. An error when
    /// there is another one.
    fn is_there(&self, file: &File, at: &Location) -> anyhow::Result<bool> {
        let ask = |method| self.s3.ask(method, (&at.bucket, &at.key), &[], &[], b"");
        let object = match ask(Method::Head) {
            Err(error) if ["NoSuchKey", "NoSuchBucket"].iter().any(|code| is_refused(&error, code)) => {
                return Ok(false);
            }
            answer => answer?,
        };
        let is_as_long = header(&object, "content-length").parse() == Ok(file.manifest.size);
        let is_equal = is_as_long
            && (header(&object, OF_FILE) == file.id.to_string() || {
                let mut hasher = blake3::Hasher::new();
                hasher.update_reader(ask(Method::Get)?.into_body().into_reader())?;
                hasher.finalize().as_bytes() == &file.manifest.hash
            });
        ensure!(is_equal, "there is another object {at}: move to another place, with --to");
        Ok(true)
    }

    /// What became objects is no file any more.
    fn drop_moved(&mut self) -> anyhow::Result<()> {
        if self.moved.is_empty() {
            return Ok(());
        }
        let why = "what was moved is there as files as well: run this again";
        drop_files(self.cluster, &std::mem::take(&mut self.moved)).context(why)
    }
}

/// The key of a file. A URL carries no part of dots.
fn key(name: &str) -> String {
    let part = |part: &str| if matches!(part, "." | "..") { part.replace('.', "%2E") } else { part.to_owned() };
    name.split('/').map(part).collect::<Vec<_>>().join("/")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_stay_but_for_parts_of_dots() {
        for (name, expected) in
            [("a/b", "a/b"), ("..", "%2E%2E"), ("./a/../b", "%2E/a/%2E%2E/b"), ("...", "..."), ("/a", "/a")]
        {
            assert_eq!(key(name), expected);
        }
    }
}
