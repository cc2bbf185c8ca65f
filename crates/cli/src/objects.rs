//! `put`, `get`, `stat`, `ls`, `rm`, `mb` and `rb`: objects and their buckets, over S3.

mod stat;
mod tree;

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, ensure};
use rusty_s3::Method;
use serde::Serialize;

use crate::args::{BucketArgs, GetArgs, LsArgs, ObjectArgs, PutArgs, RmArgs};
use crate::client::{S3, is_refused};
use crate::location::{BUCKET, Location};
use crate::output::{self, byte_bar, json, line, printable, shortened};
use crate::units;
pub(crate) use stat::stat;

const STORAGE_CLASS: &str = "x-amz-storage-class";

/// The S3 endpoint that is asked.
pub(crate) fn s3(with: &ObjectArgs) -> anyhow::Result<S3> {
    S3::of(&with.table.config, with.user.as_deref(), with.table.patience()?, output::advice())
}

/// A finished put.
#[derive(Debug, Serialize)]
pub(crate) struct PutReport {
    bucket: String,
    key: String,
    /// Bytes.
    pub(crate) size: u64,
    etag: String,
    /// CRC-64/NVME of the bytes, which the gateway found in them as well.
    crc64nvme: String,
    /// From the first byte to the version that is visible.
    seconds: f64,
    /// Bytes (10^6) per second.
    pub(crate) mb_per_s: f64,
}

impl PutReport {
    /// Puts, and measures.
    pub(crate) fn of(
        s3: &S3,
        at: &Location,
        source: &mut dyn Read,
        size: Option<u64>,
        class: Option<&str>,
    ) -> anyhow::Result<Self> {
        let begin = Instant::now();
        let put = s3.put(at, source, size, &of_class(class))?;
        let seconds = begin.elapsed().as_secs_f64();
        Ok(Self {
            bucket: at.bucket.clone(),
            key: at.key.clone(),
            size: put.size,
            etag: put.etag.trim_matches('"').to_owned(),
            crc64nvme: put.crc64nvme,
            seconds,
            mb_per_s: units::mb_per_s(put.size, seconds),
        })
    }
}

/// The headers that ask for a storage class.
fn of_class(class: Option<&str>) -> Vec<(&str, &str)> {
    class.map(|class| (STORAGE_CLASS, class)).into_iter().collect()
}

/// A finished get.
#[derive(Debug, Serialize)]
struct GetReport {
    bucket: String,
    key: String,
    size: u64,
    etag: String,
    /// The checksum that the bytes were compared with.
    verified: Option<&'static str>,
    /// From the request to the last verified byte.
    seconds: f64,
    mb_per_s: f64,
}

/// A file to put: its source, and its length if that is known.
fn open_source(path: &Path) -> anyhow::Result<(Box<dyn Read>, Option<u64>)> {
    if path.as_os_str() == "-" {
        return Ok((Box::new(io::stdin()), None));
    }
    let file = File::open(path).with_context(|| format!("{} cannot be opened", path.display()))?;
    let meta = file.metadata().with_context(|| format!("{} cannot be examined", path.display()))?;
    ensure!(!meta.is_dir(), "{} is a directory: name a file, or store all below it with -r", path.display());
    let size = meta.is_file().then_some(meta.len());
    Ok((Box::new(file), size))
}

/// What a file or directory is put as.
fn destination(args: &PutArgs) -> anyhow::Result<Location> {
    let to = args.to.clone().or(args.name.clone());
    let to = to.unwrap_or_else(|| Location { bucket: BUCKET.to_owned(), key: String::new() });
    ensure!(!to.bucket.is_empty(), "{to} names no bucket: write s3://BUCKET/KEY");
    if !to.key.is_empty() && !to.key.ends_with('/') {
        return Ok(to);
    }
    let last = match args.file.as_os_str().to_str() {
        Some("-") => None,
        // The directory where one is has a name, too.
        _ if args.recursive => args.file.canonicalize().ok().and_then(|path| Some(path.file_name()?.to_owned())),
        _ => args.file.file_name().map(ToOwned::to_owned),
    };
    let last = last.context("what is read has no name: say where to, s3://BUCKET/KEY")?;
    let last = last.to_str().with_context(|| {
        format!("{} has a name that is not UTF-8, as keys are: say where to, s3://BUCKET/KEY", args.file.display())
    })?;
    let at = to.join(last);
    at.check().map_err(anyhow::Error::msg)?;
    Ok(at)
}

/// Runs `reservoir put`.
pub(crate) fn put(args: &PutArgs) -> anyhow::Result<()> {
    if args.recursive {
        fs::metadata(&args.file).with_context(|| format!("{} cannot be examined", args.file.display()))?;
        ensure!(args.file.is_dir(), "{} is no directory: store it without -r", args.file.display());
        let (to, class) = (destination(args)?.directory(), of_class(args.class.as_deref()));
        return tree::put(&s3(&args.with)?, &args.file, &to, &class, args.with.table.json);
    }
    let (source, size) = open_source(&args.file)?;
    let at = destination(args)?;
    let s3 = s3(&args.with)?;
    let bar = byte_bar(&shortened(&at.to_string()), size);
    let report = PutReport::of(&s3, &at, &mut bar.wrap_read(source), size, args.class.as_deref())?;
    bar.finish_and_clear();
    if args.with.table.json {
        return json(&report);
    }
    line(&format!("stored {at}: {}, {:.1} MB/s", units::size(report.size), report.mb_per_s))
}

/// Runs `reservoir get`.
pub(crate) fn get(args: &GetArgs) -> anyhow::Result<()> {
    let (at, table) = (&args.what, &args.with.table);
    let path = args.output.clone().unwrap_or_else(|| PathBuf::from(at.last()));
    if args.recursive {
        return tree::get(&s3(&args.with)?, &at.clone().directory(), &path, table.json);
    }
    let s3 = s3(&args.with)?;
    ensure!(!at.key.is_empty(), "{at} names no object: write s3://BUCKET/KEY, or read all with -r");
    let bar = byte_bar(&shortened(&at.to_string()), Some(0));
    let to_stdout = path.as_os_str() == "-";
    let begin = Instant::now();
    let got = if to_stdout {
        let mut sink = io::stdout().lock();
        let got = s3.get(at, &mut sink, &bar)?;
        sink.flush().context("standard output cannot be written")?;
        got
    } else {
        s3.get_to(at, &path, &bar)?
    };
    let seconds = begin.elapsed().as_secs_f64();
    bar.finish_and_clear();
    if to_stdout {
        return Ok(());
    }
    let mb_per_s = units::mb_per_s(got.size, seconds);
    if table.json {
        let (bucket, key) = (at.bucket.clone(), at.key.clone());
        return json(&GetReport {
            bucket,
            key,
            size: got.size,
            etag: got.etag,
            verified: got.verified,
            seconds,
            mb_per_s,
        });
    }
    let verified = got.verified.map_or_else(String::new, |sum| format!(" verified by {sum},"));
    line(&format!("read {at}: {},{verified} {mb_per_s:.1} MB/s, in {}", units::size(got.size), path.display()))
}

/// The time of a list, as it is shown.
fn shown(modified: &str) -> String {
    modified.get(..19).unwrap_or(modified).replace('T', " ")
}

/// Runs `reservoir ls`. Pages are printed as they come.
pub(crate) fn list(args: &LsArgs) -> anyhow::Result<()> {
    let s3 = s3(&args.with)?;
    let everything = Location { bucket: BUCKET.to_owned(), key: String::new() };
    let at = args.what.as_ref().unwrap_or(&everything);
    let as_json = args.with.table.json;
    if at.bucket.is_empty() {
        let buckets = s3.buckets()?;
        return if as_json {
            json(&buckets)
        } else {
            buckets.iter().try_for_each(|name| line(&format!("s3://{name}")))
        };
    }
    let mut count = 0_u64;
    for object in s3.objects(at) {
        let object = match object {
            // Nobody has put anything yet.
            Err(error) if at.bucket == BUCKET && is_refused(&error, "NoSuchBucket") => break,
            object => object?,
        };
        if as_json {
            let text = serde_json::to_string(&object).context("the answer could not be written as JSON")?;
            line(&format!("{}{text}", if count == 0 { "[" } else { "," }))?;
        } else {
            line(&format!(
                "{}  {:>10}  {}",
                shown(&object.modified),
                units::size(object.size),
                printable(&object.key)
            ))?;
        }
        count += 1;
    }
    match (as_json, count) {
        (true, 0) => line("[]"),
        (true, _) => line("]"),
        (false, _) => Ok(()),
    }
}

/// Runs `reservoir rm`.
pub(crate) fn remove(args: &RmArgs) -> anyhow::Result<()> {
    let (at, s3) = (&args.what, s3(&args.with)?);
    if args.recursive {
        ensure!(!at.bucket.is_empty(), "{at} names no bucket: write s3://BUCKET/PREFIX");
        return tree::remove(&s3, &at.clone().directory(), args.with.table.json);
    }
    ensure!(!at.key.is_empty(), "{at} names no object: write s3://BUCKET/KEY, or remove all in a bucket with -r");
    // S3 itself takes the removal of what is not there for done.
    s3.ask(Method::Head, (&at.bucket, &at.key), &[], &[], b"")?;
    s3.remove(&at.bucket, &at.key)?;
    if args.with.table.json { json(&tree::Done { objects: 1, bytes: None }) } else { line(&format!("removed {at}")) }
}

pub(crate) fn make_bucket(args: &BucketArgs) -> anyhow::Result<()> {
    let (at, s3) = (&args.bucket, s3(&args.with)?);
    s3.make_bucket(&at.bucket)?;
    if args.with.table.json { json(&bucket_of(at)) } else { line(&format!("{at} is there")) }
}

pub(crate) fn remove_bucket(args: &BucketArgs) -> anyhow::Result<()> {
    let (at, s3) = (&args.bucket, s3(&args.with)?);
    s3.remove(&at.bucket, "")?;
    if args.with.table.json { json(&bucket_of(at)) } else { line(&format!("removed {at}")) }
}

fn bucket_of(at: &Location) -> serde_json::Value {
    serde_json::json!({ "bucket": at.bucket })
}
