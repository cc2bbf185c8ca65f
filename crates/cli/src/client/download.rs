//! Getting an object: as it comes, compared with the checksum that it was put with, and under its name only when it is whole.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, ensure};
use crc_fast::{CrcAlgorithm, Digest};
use indicatif::ProgressBar;
use md5::{Digest as _, Md5};
use node::atomic_file;
use rusty_s3::Method;
use serde::Serialize;
use ureq::Body;
use ureq::http::Response;

use super::partial::Partial;
use super::s3::S3;
use super::upload::CRC64;
use crate::location::Location;

fn lower_hex(bytes: &[u8]) -> String {
    hex_simd::encode_to_string(bytes, hex_simd::AsciiCase::Lower)
}

/// Checksums of all bytes of an object that are understood, with the bytes of each.
const CRCS: [(&str, &str, CrcAlgorithm, usize); 3] = [
    (CRC64, "CRC64NVME", CrcAlgorithm::Crc64Nvme, 8),
    ("x-amz-checksum-crc32c", "CRC32C", CrcAlgorithm::Crc32Iscsi, 4),
    ("x-amz-checksum-crc32", "CRC32", CrcAlgorithm::Crc32IsoHdlc, 4),
];
/// Asks for the checksums.
pub(crate) const WITH_CHECKSUMS: [(&str, &str); 1] = [("x-amz-checksum-mode", "ENABLED")];

/// What was got.
#[derive(Debug, Serialize)]
pub(crate) struct Downloaded {
    pub(crate) size: u64,
    pub(crate) etag: String,
    /// The checksum that it was compared with; none when it has none that this program knows, of all bytes.
    pub(crate) verified: Option<&'static str>,
}

/// A header as text; empty when there is none.
pub(crate) fn header<'a>(answer: &'a Response<Body>, name: &str) -> &'a str {
    answer.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default()
}

/// What the bytes are compared with.
enum Check {
    Crc(&'static str, Box<Digest>, String, usize),
    Md5(Md5, String),
    Nothing,
}

impl Check {
    fn of(answer: &Response<Body>) -> Self {
        for (name, label, algorithm, width) in CRCS {
            let expected = header(answer, name);
            // The checksum of an object in parts may be one of the parts' checksums.
            if !expected.is_empty() && !expected.contains('-') {
                return Self::Crc(label, Box::new(Digest::new(algorithm)), expected.to_owned(), width);
            }
        }
        // The tag of an object that was put whole is the hash of its bytes.
        let etag = header(answer, "etag").trim_matches('"');
        if etag.len() == 32 { Self::Md5(Md5::new(), etag.to_owned()) } else { Self::Nothing }
    }

    fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Crc(_, digest, ..) => digest.update(bytes),
            Self::Md5(digest, _) => md5::Digest::update(digest, bytes),
            Self::Nothing => {}
        }
    }

    /// What they were found equal to, or that they are not.
    fn finish(self) -> Result<Option<&'static str>, &'static str> {
        let (name, is_good) = match self {
            Self::Crc(name, digest, expected, width) => {
                let sum = &digest.finalize().to_be_bytes()[8 - width..];
                (name, base64_simd::STANDARD.encode_to_string(sum) == expected)
            }
            Self::Md5(digest, expected) => ("MD5", lower_hex(&digest.finalize()) == expected),
            Self::Nothing => return Ok(None),
        };
        if is_good { Ok(Some(name)) } else { Err(name) }
    }
}

impl S3 {
    /// Writes an object to `sink`. What was written by then is good only when this says so.
    pub(crate) fn get(&self, at: &Location, sink: &mut dyn Write, bar: &ProgressBar) -> anyhow::Result<Downloaded> {
        let mut answer = self.ask(Method::Get, (&at.bucket, &at.key), &[], &WITH_CHECKSUMS, b"")?;
        let size: u64 = header(&answer, "content-length").parse().context("the gateway did not say how long it is")?;
        let (etag, mut check) = (header(&answer, "etag").trim_matches('"').to_owned(), Check::of(&answer));
        bar.inc_length(size);
        let (mut body, mut length, mut buffer) = (answer.body_mut().as_reader(), 0, vec![0; 256 << 10]);
        let broke_off = |length| {
            let endpoint = self.endpoint();
            format!(
                "{at} broke off after {length} of {size} bytes: the log of the gateway at {endpoint} says why; then get it \
                 again"
            )
        };
        loop {
            let count = body.read(&mut buffer).with_context(|| broke_off(length))?;
            if count == 0 {
                break;
            }
            check.update(&buffer[..count]);
            length += count as u64;
            sink.write_all(&buffer[..count]).with_context(|| format!("{at} could not be written"))?;
            bar.inc(count as u64);
        }
        ensure!(length == size, broke_off(length));
        let verified =
            check.finish().map_err(|sum| anyhow::anyhow!("{at} arrived damaged, by its {sum}: get it again"))?;
        Ok(Downloaded { size, etag, verified })
    }

    /// Writes an object to the file `path`, which appears only when all of it is there and was found good. A file that is there is replaced, and who may
    /// read it stays; a link is followed. What is no file, as a pipe or a device, is written to as it comes.
    pub(crate) fn get_to(&self, at: &Location, path: &Path, bar: &ProgressBar) -> anyhow::Result<Downloaded> {
        ensure!(!path.is_dir(), "{} is a directory: name a file with -o", path.display());
        let could_not = || format!("{} could not be written", path.display());
        let there = fs::metadata(path).ok();
        if there.as_ref().is_some_and(|there| !there.is_file()) {
            let mut sink = File::options().write(true).open(path).with_context(could_not)?;
            return self.get(at, &mut sink, bar);
        }
        // Where a link leads to.
        let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let directory = atomic_file::directory(path);
        let mut partial = Partial::in_directory(directory)
            .with_context(|| format!("no file can be made in {}: choose another place with -o", directory.display()))?;
        if let Some(there) = there {
            partial.file().set_permissions(there.permissions()).with_context(could_not)?;
        }
        let got = self.get(at, partial.file(), bar)?;
        partial.appear(directory, path).with_context(could_not)?;
        Ok(got)
    }
}
