//! `stat`: what is known of an object, and where it is.

use std::ops::Range;

use anyhow::{Context, ensure};
use rusty_s3::Method;
use s3::{ChunkHolders, HOLDERS, MOST_CHUNKS, ObjectHolders};
use serde::Serialize;

use super::{STORAGE_CLASS, s3};
use crate::args::StatArgs;
use crate::client::{S3, WITH_CHECKSUMS, header};
use crate::location::Location;
use crate::output::{self, json, line};
use crate::units;

/// What is known of an object.
#[derive(Debug, Serialize)]
struct Known {
    bucket: String,
    key: String,
    size: u64,
    modified: String,
    etag: String,
    storage_class: String,
    /// Of a bucket that keeps versions.
    version: Option<String>,
    content_type: Option<String>,
    /// By the names of their headers.
    checksums: Vec<(String, String)>,
    /// The same of what users set for it.
    metadata: Vec<(String, String)>,
    /// Where its manifest and its first chunks are.
    places: Option<ObjectHolders>,
}

/// Runs `reservoir stat`.
pub(crate) fn stat(args: &StatArgs) -> anyhow::Result<()> {
    let at = &args.what;
    ensure!(!at.key.is_empty(), "{at} names no object: write s3://BUCKET/KEY");
    let s3 = s3(&args.with)?;
    let answer = s3.ask(Method::Head, (&at.bucket, &at.key), &[], &WITH_CHECKSUMS, b"")?;
    let some = |name: &str| Some(header(&answer, name).to_owned()).filter(|text| !text.is_empty());
    let beginning = |start: &str| -> Vec<(String, String)> {
        let names = answer.headers().keys().map(|name| name.as_str().to_owned());
        let names = names.filter(|name| name.starts_with(start) && name != "x-amz-checksum-type");
        names.map(|name| (name.clone(), header(&answer, &name).to_owned())).collect()
    };
    let known = Known {
        bucket: at.bucket.clone(),
        key: at.key.clone(),
        size: header(&answer, "content-length").parse().context("the gateway did not say how long it is")?,
        modified: header(&answer, "last-modified").to_owned(),
        etag: header(&answer, "etag").trim_matches('"').to_owned(),
        // S3 says nothing of the usual one.
        storage_class: some(STORAGE_CLASS).unwrap_or_else(|| "STANDARD".to_owned()),
        version: some("x-amz-version-id"),
        content_type: some("content-type"),
        checksums: beginning("x-amz-checksum-"),
        metadata: beginning("x-amz-meta-"),
        places: if args.chunks == 0 { None } else { ask_holders(&s3, at, args.chunks)? },
    };
    if args.with.table.json {
        return json(&known);
    }
    let mut rows = vec![
        ("bucket".to_owned(), known.bucket),
        ("key".to_owned(), known.key),
        ("size".to_owned(), format!("{} bytes ({})", known.size, units::size(known.size))),
        ("modified".to_owned(), known.modified),
        ("entity tag".to_owned(), known.etag),
        ("storage class".to_owned(), known.storage_class),
    ];
    rows.extend(known.version.map(|version| ("version".to_owned(), version)));
    rows.extend(known.content_type.map(|kind| ("content type".to_owned(), kind)));
    rows.extend(known.checksums.into_iter().chain(known.metadata));
    output::pairs(rows)?;
    known.places.map_or(Ok(()), show)
}

/// Where its first chunks are; `None` when the gateway is of a version that does not say it.
fn ask_holders(s3: &S3, at: &Location, most: usize) -> anyhow::Result<Option<ObjectHolders>> {
    let most = most.to_string();
    let mut answer = s3.ask(Method::Get, (&at.bucket, &at.key), &[], &[(HOLDERS, &most)], b"")?;
    if header(&answer, HOLDERS).is_empty() {
        return Ok(None);
    }
    let text = answer.body_mut().read_to_string().context("the gateway's answer broke off")?;
    serde_json::from_str(&text).map(Some).context("the gateway did not say in words that are understood where it is")
}

/// Prints where it is.
fn show(places: ObjectHolders) -> anyhow::Result<()> {
    line("")?;
    let rows = places.chunks.iter().enumerate().map(|(number, chunk)| {
        let name = if number == 0 { "manifest".to_owned() } else { number.to_string() };
        let bytes = if number == 0 { String::new() } else { chunk.bytes.to_string() };
        vec![name, bytes, kept_as(chunk), targets(chunk)]
    });
    output::table(&["chunk", "bytes", "kept as", "on targets"], rows.collect())?;
    if places.has_more {
        line(&format!("and more chunks: --chunks shows up to {MOST_CHUNKS}"))?;
    }
    if !places.silent.is_empty() {
        line(&format!("silent, so that what they hold is not shown: targets {}", listed(&places.silent, " ")))?;
    }
    Ok(())
}

fn kept_as(chunk: &ChunkHolders) -> String {
    match (&chunk.code, chunk.holders.iter().map(|piece| piece.targets.len()).sum()) {
        (Some(code), _) => code.clone(),
        (None, 1) => "1 copy".to_owned(),
        (None, copies) => format!("{copies} copies"),
    }
}

/// The targets that have it; of a coded chunk its pieces by their numbers, those of data first.
fn targets(chunk: &ChunkHolders) -> String {
    let Some((data, parity)) = chunk.code.as_deref().and_then(|code| code.split_once('+')) else {
        return chunk.holders.iter().map(|copies| listed(&copies.targets, " ")).collect();
    };
    let [data, parity] = [data, parity].map(|number| number.parse().unwrap_or(0_u8));
    let of = |number: u8| {
        let holders = chunk.holders.iter().find(|holders| holders.piece == Some(number));
        holders.map_or_else(|| "-".to_owned(), |holders| listed(&holders.targets, "/"))
    };
    let some = |numbers: Range<u8>| numbers.map(of).collect::<Vec<_>>().join(" ");
    format!("{} + {}", some(0..data), some(data..data.saturating_add(parity)))
}

fn listed(targets: &[u32], between: &str) -> String {
    targets.iter().map(u32::to_string).collect::<Vec<_>>().join(between)
}
