//! Putting an object: whole when it is small, in parts that travel beside each other when it is not. What arrives is
//! compared with checksums before anything is visible.

use std::collections::VecDeque;
use std::io::Read;

use anyhow::{Context, ensure};
use crc_fast::{CrcAlgorithm, checksum, checksum_combine};
use rusty_s3::Method;
use rusty_s3::actions::{CompleteMultipartUploadResponse, CreateMultipartUpload};
use ureq::Body;
use ureq::http::Response;

use super::s3::{S3, is_refused};
use crate::location::{BUCKET, Location};

/// Bytes of a part, unless there would be more parts than S3 allows.
const PART: u64 = 16 << 20;
/// The most that S3 allows.
const PARTS: u64 = 10_000;
/// So many parts of what has no length that is known are of one size; the next are twice as large, up to this.
const ALIKE: u64 = 1_000;
const LARGEST: u64 = 256 << 20;
/// Bytes of parts on their way at once; one part is, however large.
const FLIGHT: u64 = 64 << 20;
/// The header of the checksum.
pub(super) const CRC64: &str = "x-amz-checksum-crc64nvme";

/// What was put.
#[derive(Debug)]
pub(crate) struct Uploaded {
    pub(crate) size: u64,
    pub(crate) etag: String,
    /// As the header has it.
    pub(crate) crc64nvme: String,
}

/// A checksum as a header has it.
pub(super) fn text_of(crc: u64) -> String {
    base64_simd::STANDARD.encode_to_string(crc.to_be_bytes())
}

/// Bytes of this part, by its number from 1 on, of so many in all if that is known.
fn part_size(number: u64, total: Option<u64>) -> u64 {
    match total {
        Some(total) => PART.max(total.div_ceil(PARTS).next_multiple_of(1 << 20)),
        None => (PART << ((number - 1) / ALIKE)).min(LARGEST),
    }
}

/// Up to `size` bytes; fewer only at the end of the source.
fn read_part(source: &mut dyn Read, size: u64) -> anyhow::Result<Vec<u8>> {
    let mut part = Vec::new();
    source.take(size).read_to_end(&mut part)?;
    Ok(part)
}

/// Refuses what became longer or shorter while it was read.
fn check_length(at: &Location, total: Option<u64>, read: u64) -> anyhow::Result<()> {
    let total = total.unwrap_or(read);
    ensure!(
        read == total,
        "the data for {at} had {total} bytes and {read} were read: it changed meanwhile, put it again"
    );
    Ok(())
}

/// The entity tag in an answer.
fn etag(answer: &Response<Body>) -> anyhow::Result<String> {
    let etag = answer.headers().get("etag").and_then(|etag| etag.to_str().ok());
    etag.map(str::to_owned).context("the gateway's answer has no entity tag: is it an S3 endpoint?")
}

impl S3 {
    /// Stores what `source` yields, of so many bytes if that is known; `headers` say more of the object. Until this is done
    /// there is nothing new under the key.
    pub(crate) fn put(
        &self,
        at: &Location,
        source: &mut dyn Read,
        total: Option<u64>,
        headers: &[(&str, &str)],
    ) -> anyhow::Result<Uploaded> {
        self.put_if(&[], at, source, total, headers)
    }

    /// The same, when there is no object at that place in the moment in which this one would be visible. Else S3 refuses it:
    /// `PreconditionFailed`.
    pub(crate) fn put_new(
        &self,
        at: &Location,
        source: &mut dyn Read,
        total: Option<u64>,
        headers: &[(&str, &str)],
    ) -> anyhow::Result<Uploaded> {
        self.put_if(&[("if-none-match", "*")], at, source, total, headers)
    }

    fn put_if(
        &self,
        condition: &[(&str, &str)],
        at: &Location,
        source: &mut dyn Read,
        total: Option<u64>,
        headers: &[(&str, &str)],
    ) -> anyhow::Result<Uploaded> {
        let unreadable = || format!("the data for {at} could not be read");
        let first = read_part(source, part_size(1, total)).with_context(unreadable)?;
        let second = if (first.len() as u64) < part_size(1, total) {
            Vec::new()
        } else {
            read_part(source, part_size(2, total)).with_context(unreadable)?
        };
        if second.is_empty() {
            check_length(at, total, first.len() as u64)?;
            let crc64nvme = text_of(checksum(CrcAlgorithm::Crc64Nvme, &first));
            let headers = &[headers, condition, &[(CRC64, &crc64nvme)]].concat();
            let answer = self.first(at, || self.ask(Method::Put, (&at.bucket, &at.key), &[], headers, &first))?;
            return Ok(Uploaded { size: first.len() as u64, etag: etag(&answer)?, crc64nvme });
        }
        let headers = &[headers, &[("x-amz-checksum-algorithm", "CRC64NVME")]].concat();
        let (key, query) = ((at.bucket.as_str(), at.key.as_str()), [("uploads", "")]);
        let answer = self.first(at, || self.document(Method::Post, key, &query, headers, b""))?;
        let upload = CreateMultipartUpload::parse_response(&answer)
            .with_context(|| format!("the gateway's answer to an upload of {at} is unreadable"))?;
        let parts = Parts { s3: self, at, upload: upload.upload_id(), condition, total, sent: 0, crc: None };
        parts.put(source, [first, second]).inspect_err(|_| {
            // One that stays is forgotten by the gateway after some days.
            let _ = self.ask(Method::Delete, key, &[("uploadId", upload.upload_id())], &[], b"");
        })
    }

    /// Asks for the first time for something in a bucket, which is made if it is the one that nobody has to make.
    fn first<T>(&self, at: &Location, ask: impl Fn() -> anyhow::Result<T>) -> anyhow::Result<T> {
        match ask() {
            Err(error) if at.bucket == BUCKET && is_refused(&error, "NoSuchBucket") => {
                self.make_bucket(&at.bucket)?;
                ask()
            }
            other => other,
        }
    }
}

/// A part on its way: its bytes, and what becomes its entity tag.
type Flying<'scope> = (u64, std::thread::ScopedJoinHandle<'scope, anyhow::Result<String>>);

fn landed((_, part): Flying<'_>) -> anyhow::Result<String> {
    part.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// An upload that is under way.
struct Parts<'a> {
    s3: &'a S3,
    at: &'a Location,
    upload: &'a str,
    /// Under which it becomes visible.
    condition: &'a [(&'a str, &'a str)],
    total: Option<u64>,
    /// Bytes that were sent, or are being sent.
    sent: u64,
    /// Of all of them.
    crc: Option<u64>,
}

impl Parts<'_> {
    fn put(mut self, source: &mut dyn Read, begun: [Vec<u8>; 2]) -> anyhow::Result<Uploaded> {
        let mut etags = Vec::new();
        std::thread::scope(|scope| {
            let mut flight: VecDeque<Flying<'_>> = VecDeque::new();
            let mut begun = begun.into_iter();
            for number in 1.. {
                let size = part_size(number, self.total);
                while flight.iter().map(|(bytes, _)| bytes).sum::<u64>() + size > FLIGHT {
                    let Some(oldest) = flight.pop_front() else { break };
                    etags.push(landed(oldest)?);
                }
                let read =
                    || read_part(source, size).with_context(|| format!("the data for {} could not be read", self.at));
                let part = begun.next().map_or_else(read, Ok)?;
                if part.is_empty() {
                    break;
                }
                ensure!(number <= PARTS, "{} is too large: what has no length that is known may have 1.7 TB", self.at);
                let crc = checksum(CrcAlgorithm::Crc64Nvme, &part);
                let length = part.len() as u64;
                self.crc = Some(match self.crc {
                    Some(all) => checksum_combine(CrcAlgorithm::Crc64Nvme, all, crc, length),
                    None => crc,
                });
                self.sent += length;
                let (s3, at, upload) = (self.s3, self.at, self.upload);
                let sending = scope.spawn(move || {
                    let (number, crc) = (number.to_string(), text_of(crc));
                    let query = [("partNumber", number.as_str()), ("uploadId", upload)];
                    let answer = s3.ask(Method::Put, (&at.bucket, &at.key), &query, &[(CRC64, &crc)], &part)?;
                    etag(&answer)
                });
                flight.push_back((length, sending));
            }
            for part in flight {
                etags.push(landed(part)?);
            }
            anyhow::Ok(())
        })?;
        check_length(self.at, self.total, self.sent)?;
        self.complete(&etags)
    }

    /// Joins the parts, if all of them together are what was read.
    fn complete(&self, etags: &[String]) -> anyhow::Result<Uploaded> {
        let crc64nvme = text_of(self.crc.unwrap_or_default());
        let part = |(number, etag): (usize, &String)| {
            format!("<Part><PartNumber>{}</PartNumber><ETag>{etag}</ETag></Part>", number + 1)
        };
        let body: String = etags.iter().enumerate().map(part).collect();
        let body = format!("<CompleteMultipartUpload>{body}</CompleteMultipartUpload>");
        let at = (self.at.bucket.as_str(), self.at.key.as_str());
        let (query, headers) = ([("uploadId", self.upload)], [self.condition, &[(CRC64, &crc64nvme)]].concat());
        let answer = self.s3.document(Method::Post, at, &query, &headers, body.as_bytes())?;
        let done = CompleteMultipartUploadResponse::parse(&answer)
            .with_context(|| format!("the gateway did not say that the parts of {} were joined", self.at))?;
        Ok(Uploaded { size: self.sent, etag: done.etag().to_owned(), crc64nvme })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_few_enough_and_large_enough() {
        assert_eq!(part_size(1, Some(17 << 20)), PART);
        let largest = 5 << 40;
        assert!(part_size(1, Some(largest)) * PARTS >= largest);
        assert_eq!([1, 1_000, 1_001, 9_000].map(|number| part_size(number, None)), [PART, PART, 2 * PART, LARGEST]);
        assert!((1..=PARTS).map(|number| part_size(number, None)).sum::<u64>() > 1_700_000_000_000);
    }
}
