//! What clients ask of a gateway, and what they note of the answers.

use std::collections::VecDeque;
use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use catalog::object_manifest::{Body, Kind, ObjectManifest, VersionId, decode_entries, encode_entries};
use catalog::{Catalog, CatalogError, Change, Condition, Part, Refused, Row, Start, Upload};
use object::objects::{ObjectError, Objects, Reader, Sealed, Source};
use object::{ChunkService, Host, RunTiming, ServiceError};
use protocol::id::ChunkId;
use protocol::time::Span;

use super::Objects as Settings;
use super::gateway::Gateway;
use super::history::{Call, History, Name};
use crate::linear::Did;
use crate::planted::PlantedBug;

/// A bucket that keeps no versions, and one that does.
pub(crate) const PLAIN: &str = "plain";
pub(crate) const KEPT: &str = "kept";
/// Keys of both.
pub(crate) const KEYS: [&str; 3] = ["a", "b", "c"];
/// The key of which versions are removed by their ids.
const PRUNED: &str = "c";
/// Chunks that many objects share.
const SHARED: u64 = 4;
/// Before something that failed is tried again.
const AGAIN: Span = Span::from_millis(10);

/// How an operation ended that was not done.
pub(crate) enum Ended {
    /// It was not made, as it should be.
    Refused,
    /// It was not made.
    Failed(String),
    /// It was not made, for want of this chunk or of room for it.
    Wanting(ChunkId, String),
    /// Nobody knows.
    Unknown(String),
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused => write!(f, "refused"),
            Self::Failed(why) | Self::Wanting(_, why) | Self::Unknown(why) => write!(f, "{why}"),
        }
    }
}

impl From<ObjectError> for Ended {
    fn from(error: ObjectError) -> Self {
        match error {
            ObjectError::Catalog(error) => error.into(),
            ObjectError::TooSlow(_) => Self::Refused,
            ObjectError::Chunk { id, .. } => Self::Wanting(id, error.to_string()),
            other => Self::Failed(other.to_string()),
        }
    }
}

impl From<CatalogError> for Ended {
    fn from(error: CatalogError) -> Self {
        match error {
            CatalogError::Refused(_) => Self::Refused,
            other => Self::Unknown(other.to_string()),
        }
    }
}

/// One gateway's objects, for its clients.
#[derive(Clone)]
pub(crate) struct Client {
    pub(crate) gateway: Gateway,
    pub(crate) objects: Arc<Objects>,
    pub(crate) settings: Settings,
}

/// Bytes that come in pieces, with pauses.
struct Pieces<'a> {
    gateway: &'a Gateway,
    left: VecDeque<Bytes>,
    pause: Span,
    etag: String,
}

impl Source for Pieces<'_> {
    fn next(&mut self) -> Result<Option<Bytes>, Box<dyn StdError + Send + Sync>> {
        if self.pause > Span::ZERO {
            self.gateway.handle.sleep(self.pause);
        }
        Ok(self.left.pop_front())
    }

    fn digest(&mut self, _: &Bytes) {}

    fn seal(&mut self, _: u64) -> Result<Sealed, Box<dyn StdError + Send + Sync>> {
        // What comes last, a checksum perhaps, may come late.
        self.gateway.handle.sleep(self.pause);
        Ok(Sealed { etag: self.etag.clone(), ..Sealed::default() })
    }
}

/// The objects of a gateway that begins.
pub(crate) fn objects(gateway: &Gateway, settings: &Settings) -> Objects {
    let time = |span: Span| Duration::from_nanos(span.as_nanos());
    let bug = match gateway.planted {
        Some(PlantedBug::Object(bug)) => Some(bug),
        _ => None,
    };
    let timing = RunTiming {
        lease: time(settings.heartbeat.times(2)),
        dead_after: time(settings.heartbeat.times(6)),
        undecided_for: time(settings.grace),
    };
    let host: Arc<dyn Host> = Arc::new(gateway.clone());
    let service: Arc<dyn ChunkService + Send + Sync> = Arc::new(gateway.clone());
    Objects::new(service, Arc::new(gateway.clone()))
        .on(host, timing)
        .with_limit(time(settings.grace.div(2)))
        .with_inline(settings.inline)
        .with_chunk_size(settings.chunk)
        .with_bug(bug)
}

/// The number that identifies an object's contents.
fn number(row: &Row) -> u64 {
    row.record.etag.parse().unwrap_or(0)
}

impl Client {
    fn below(&self, bound: u64) -> u64 {
        self.gateway.handle.below(bound)
    }

    fn now(&self) -> u64 {
        self.gateway.handle.local().now
    }

    /// Does so many things, with pauses that make them last as long as the faults do.
    pub(crate) fn work(&self, operations: u32, done: &dyn Fn()) {
        self.make_buckets();
        let pause = self.settings.storm.as_nanos() / u64::from(self.settings.operations) * 3 / 2;
        for _ in 0..operations {
            self.gateway.handle.sleep(Span::from_nanos(self.below(pause)));
            let healed = self.gateway.handle.local().healed;
            let bucket = if self.below(2) == 0 { PLAIN } else { KEPT };
            let name = (bucket, KEYS[self.below(KEYS.len() as u64) as usize]);
            let what = self.draw_work();
            let outcome = if healed { self.insist(|| self.work_on(name, what)) } else { self.work_on(name, what) };
            match outcome {
                Err(ended) if healed && !self.is_excused(&ended) => {
                    self.gateway.handle.record(|history, _| history.fail(format!("failed after the heal: {ended}")));
                }
                Err(_) => {}
                Ok(()) => self.gateway.handle.record(|history, _| history.done += 1),
            }
            done();
        }
    }

    fn make_buckets(&self) {
        for name in [PLAIN, KEPT] {
            loop {
                match self.gateway.bucket(name) {
                    Ok(Some(_)) => break,
                    Ok(None) => {
                        let record = ObjectManifest::new(Kind::Bucket, name, "", VersionId::default());
                        if self.objects.create_bucket(record).is_ok() {
                            break;
                        }
                    }
                    Err(_) => {}
                }
                self.gateway.handle.sleep(AGAIN);
            }
        }
    }

    /// Whether it is no failure that it was not done, though nothing is wrong any more.
    pub(crate) fn is_excused(&self, ended: &Ended) -> bool {
        match ended {
            Ended::Refused => true,
            Ended::Wanting(id, _) => self.gateway.handle.record(|history, _| {
                let History { elsewhere, without_room, .. } = history;
                elsewhere.contains(id) || without_room.contains_key(&(self.gateway.handle.node, *id))
            }),
            Ended::Failed(_) | Ended::Unknown(_) => false,
        }
    }

    fn draw_work(&self) -> u64 {
        self.below(100)
    }

    fn work_on(&self, name: Name, what: u64) -> Result<(), Ended> {
        match what {
            0..24 => self.put(name),
            24..38 => self.read(name).map(drop),
            38..48 => self.delete(name),
            48..53 => self.delete_version((KEPT, PRUNED)),
            53..57 => self.read_version((KEPT, PRUNED)),
            57..61 => self.list(name.0),
            61..71 => self.copy(name),
            71..75 => self.revise(name),
            75..80 => self.upload(name),
            80..87 => self.put(name),
            _ => self.read(name).map(drop),
        }
    }

    /// Pieces of a new content, which has chunks that others have as well.
    fn draw(&self) -> Vec<Bytes> {
        let chunk = self.settings.chunk as u64;
        let fill = |length: u64, seed: u64| {
            let mut rng = protocol::rng::Rng::new(seed);
            let mut bytes = BytesMut::with_capacity(length as usize + 8);
            while (bytes.len() as u64) < length {
                bytes.extend_from_slice(&rng.next_u64().to_le_bytes());
            }
            bytes.truncate(length as usize);
            bytes.freeze()
        };
        if self.below(4) == 0 {
            return vec![fill(self.below(self.settings.inline as u64 + 1), self.below(u64::MAX))];
        }
        let pieces = if self.below(40) == 0 { 33 } else { 1 + self.below(4) };
        let mut all: Vec<Bytes> = (1..pieces)
            .map(|_| {
                let shared = self.below(2) == 0;
                fill(chunk, if shared { self.below(SHARED) } else { self.below(u64::MAX) })
            })
            .collect();
        let last = if self.below(3) == 0 {
            fill(chunk, self.below(SHARED))
        } else {
            fill(1 + self.below(chunk), self.below(u64::MAX))
        };
        all.push(last);
        all
    }

    /// A content with its number, and how its bytes come.
    fn source(&self) -> (u64, Pieces<'_>) {
        // What was put before may be gone by now, or about to go.
        let (again, nth) = (self.below(2) == 0, self.below(1 << 20));
        let again = again.then(|| self.gateway.handle.record(|history, _| history.earlier(nth))).flatten();
        let left = again.map_or_else(|| self.draw(), |bytes| vec![bytes]);
        let number = self.gateway.handle.record(|history, _| history.number(left.concat().into()));
        // Some clients are as slow as a put may be, and some much slower.
        let slow = self.below(2) == 0;
        let much = if self.below(2) == 0 && !self.gateway.handle.local().healed { 8 } else { 1 };
        let longest = self.settings.grace.as_nanos() * much / 2 / (left.len() as u64 + 2);
        let pause = if slow { self.below(longest) } else { 0 };
        let pause = Span::from_nanos(if self.settings.cleans { pause } else { 0 });
        (number, Pieces { gateway: &self.gateway, left: left.into(), pause, etag: number.to_string() })
    }

    fn record(&self, name: Name) -> ObjectManifest {
        let mut record = ObjectManifest::new(Kind::Object, name.0, name.1, VersionId::default());
        record.null = name.0 == PLAIN;
        let own = self.settings.redundancy;
        record.set_redundancy(own.filter(|_| self.below(2) == 0));
        record
    }

    /// How a change of the register ended; `mismatch` is what a refused condition says.
    fn close<T, E: Into<Ended>>(&self, call: Call, outcome: Result<T, E>, mismatch: Option<Did>) -> Result<T, Ended> {
        let outcome = outcome.map_err(Into::into);
        self.gateway.handle.record(|history, now| match &outcome {
            Ok(_) => history.answer(call, None, now),
            Err(Ended::Refused) if mismatch.is_some() => history.answer(call, mismatch, now),
            Err(Ended::Refused | Ended::Failed(_) | Ended::Wanting(..)) => history.not_made(call),
            Err(Ended::Unknown(_)) => {}
        });
        outcome
    }

    fn call(&self, name: Name, did: Did) -> (Call, u64) {
        self.gateway.handle.record(|history, now| (history.call(name, did, now), now))
    }

    fn is_put(&self, name: Name, row: &Row, called: u64) {
        self.gateway.handle.record(|history, now| history.put(name, row.record.version.0, called, now));
    }

    fn put(&self, name: Name) -> Result<(), Ended> {
        let condition = match self.below(5) {
            0 => Condition::Absent,
            1 => match self.gateway.newest(name.0, name.1)?.filter(|row| row.record.kind == Kind::Object) {
                Some(row) => Condition::Matches(row.record.etag),
                None => Condition::Absent,
            },
            _ => Condition::Always,
        };
        let (value, mut source) = self.source();
        let (did, mismatch) = match &condition {
            Condition::Absent => (Did::Swap { from: None, value }, Some(Did::Mismatch(None))),
            Condition::Matches(etag) => {
                let from = etag.parse().ok();
                (Did::Swap { from, value }, Some(Did::Mismatch(from)))
            }
            _ => (Did::Write(Some(value)), None),
        };
        let (call, called) = self.call(name, did);
        let outcome = self.objects.put(self.record(name), &condition, &mut source);
        let is_condition =
            |error: &ObjectError| matches!(error.refused(), Some(Refused::Condition | Refused::NoVersion));
        let mismatch = mismatch.filter(|_| outcome.as_ref().is_err_and(is_condition));
        let row = self.close(call, outcome, mismatch)?.row;
        self.is_put(name, &row, called);
        Ok(())
    }

    /// Reads the newest version, and notes what was found.
    pub(crate) fn read(&self, name: Name) -> Result<Option<Row>, Ended> {
        let called = self.now();
        let row = self.gateway.newest(name.0, name.1)?;
        let object = row.as_ref().filter(|row| row.record.kind == Kind::Object);
        self.gateway.handle.record(|history, now| {
            history.read(name, object.map(number), called, now);
            if name.0 == KEPT {
                history.newest(name, row.as_ref().map(|row| row.record.version.0), called, now);
            }
        });
        if let Some(row) = object {
            self.bytes(name, row)?;
        }
        Ok(row)
    }

    /// Reads the bytes of a version, which must be those that were put, unless it goes meanwhile.
    fn bytes(&self, name: Name, row: &Row) -> Result<(), Ended> {
        let read = || {
            let mut reader = Reader::new(&self.objects, row, 0..row.record.size)?;
            let mut bytes = BytesMut::new();
            while let Some(piece) = reader.piece()? {
                bytes.extend_from_slice(&piece);
            }
            Ok::<_, ObjectError>(bytes)
        };
        match read() {
            Ok(bytes) => {
                self.gateway.handle.record(|history, _| {
                    if history.contents(number(row)).is_none_or(|put| *put != bytes) {
                        history.fail(format!("{}/{}: wrong bytes in {}", name.0, name.1, row.record.version));
                    }
                });
                Ok(())
            }
            Err(error) => {
                let version = (!row.record.null).then_some(row.record.version);
                let now = self.gateway.version(name.0, name.1, version)?;
                let stands = now.is_some_and(|now| now.manifest == row.manifest);
                if stands { Err(error.into()) } else { Err(Ended::Refused) }
            }
        }
    }

    fn delete(&self, name: Name) -> Result<(), Ended> {
        let (call, called) = self.call(name, Did::Write(None));
        if name.0 == KEPT {
            let mut marker = self.record(name);
            marker.kind = Kind::Marker;
            let row = self.close(call, self.objects.publish(marker, &Condition::Always), None)?.row;
            self.is_put(name, &row, called);
            return Ok(());
        }
        // As the S3 API does.
        let erase = || {
            while let Some(row) = self.gateway.version(name.0, name.1, None)? {
                if self.objects.erase(&row)? {
                    break;
                }
            }
            Ok::<_, ObjectError>(())
        };
        self.close(call, erase(), None)
    }

    fn delete_version(&self, name: Name) -> Result<(), Ended> {
        let nth = self.below(1 << 20);
        let Some(version) = self.gateway.handle.record(|history, _| history.known_version(name, nth)) else {
            return Ok(());
        };
        let call = self.gateway.handle.record(|history, now| history.erase(name, version, now));
        while let Some(row) = self.gateway.version(name.0, name.1, Some(VersionId(version)))? {
            if self.objects.erase(&row)? {
                break;
            }
        }
        self.gateway.handle.record(|history, now| history.erased(call, now));
        Ok(())
    }

    fn read_version(&self, name: Name) -> Result<(), Ended> {
        let nth = self.below(1 << 20);
        let Some(version) = self.gateway.handle.record(|history, _| history.known_version(name, nth)) else {
            return Ok(());
        };
        let called = self.now();
        let row = self.gateway.version(name.0, name.1, Some(VersionId(version)))?;
        self.gateway.handle.record(|history, now| history.there(name, version, row.is_some(), called, now));
        match row.filter(|row| row.record.kind == Kind::Object) {
            Some(row) => self.bytes(name, &row),
            None => Ok(()),
        }
    }

    pub(crate) fn list(&self, bucket: &'static str) -> Result<(), Ended> {
        let called = self.now();
        let rows = self.gateway.objects(bucket, &Start::Key(vec![]), 100)?;
        self.gateway.handle.record(|history, now| {
            for key in KEYS {
                let found = rows.iter().find(|row| row.record.key == key).map(number);
                history.read((bucket, key), found, called, now);
            }
        });
        Ok(())
    }

    /// A copy of another object, after a while in which that may go.
    fn copy(&self, name: Name) -> Result<(), Ended> {
        let from = (if self.below(2) == 0 { PLAIN } else { KEPT }, KEYS[self.below(KEYS.len() as u64) as usize]);
        let row = self.gateway.newest(from.0, from.1)?.filter(|row| row.record.kind == Kind::Object);
        let Some(row) = row else { return Ok(()) };
        let Ok(whole) = self.objects.whole(&row) else { return Err(Ended::Refused) };
        if self.settings.cleans && self.below(2) == 0 {
            if self.below(2) == 0 {
                // It may go on failing: what counts is that it may be gone.
                let _ = self.delete(from);
            }
            self.gateway.handle.sleep(Span::from_nanos(self.below(self.settings.grace.as_nanos() * 3)));
        }
        let contents = self.gateway.handle.record(|history, _| history.contents(number(&row)).cloned());
        let value = self.gateway.handle.record(|history, _| history.number(contents.unwrap_or_default()));
        let record =
            ObjectManifest { size: whole.size, body: whole.body, etag: value.to_string(), ..self.record(name) };
        let (call, called) = self.call(name, Did::Write(Some(value)));
        let outcome = self.objects.publish(record, &Condition::Always).map_err(|error| match error {
            // What was to be copied is gone.
            ObjectError::Chunk { source, .. } if matches!(*source, ServiceError::Get(_)) => Ended::Refused,
            other => other.into(),
        });
        let row = self.close(call, outcome, None)?.row;
        self.is_put(name, &row, called);
        Ok(())
    }

    /// Other attributes for the newest version. In a bucket that keeps versions that may be the newest no more: what is recorded of
    /// those does not change.
    fn revise(&self, name: Name) -> Result<(), Ended> {
        let row = self.gateway.newest(name.0, name.1)?.filter(|row| row.record.kind == Kind::Object);
        let Some(row) = row else { return Ok(()) };
        let revise = |value: u64| {
            let outcome = self.objects.revise(&row, |record| record.etag = value.to_string());
            outcome.map_err(|error| match error {
                // The version is gone, and with it the manifest that was to be read.
                ObjectError::Chunk { id, .. } if id == row.manifest => Ended::Refused,
                other => other.into(),
            })
        };
        if name.0 == KEPT {
            return revise(number(&row)).map(drop);
        }
        let contents = self.gateway.handle.record(|history, _| history.contents(number(&row)).cloned());
        let value = self.gateway.handle.record(|history, _| history.number(contents.unwrap_or_default()));
        let (call, _) = self.call(name, Did::Swap { from: Some(number(&row)), value });
        self.close(call, revise(value), None).map(drop)
    }

    /// An object in parts.
    fn upload(&self, name: Name) -> Result<(), Ended> {
        let id = self.objects.next_version();
        let record = self.record(name);
        self.gateway.change(Change::StartUpload(Upload { id, record: record.clone() }))?;
        let (mut all, mut sizes) = (BytesMut::new(), vec![]);
        for number in 1..=1 + self.below(3) as u32 {
            let pieces = self.draw();
            let bytes = pieces.concat();
            let mut source =
                Pieces { gateway: &self.gateway, left: pieces.into(), pause: Span::ZERO, etag: String::new() };
            let written = self.objects.write(&mut source, record.redundancy())?;
            let Body::Chunks(entries) = written.body else { return Err(Ended::Refused) };
            let entries = encode_entries(&entries);
            let (etag, checksums) = (number.to_string(), String::new());
            let part = Part { number, size: written.size, etag, micros: 1, checksums, entries };
            self.gateway.change(Change::PutPart(id, part))?;
            all.extend_from_slice(&bytes);
            sizes.push(written.size);
            if self.settings.cleans && self.below(2) == 0 {
                // Its rows alone refer to it.
                self.gateway.handle.sleep(self.settings.grace.times(1 + self.below(3)));
            }
        }
        let parts = self.gateway.parts(id, 0, 100)?;
        let entries = parts.iter().map(|part| {
            let whole = self.gateway.part(id, part.number)?.ok_or(Refused::NoUpload)?;
            decode_entries(&whole.entries).map_err(|why| CatalogError::Engine(why.to_string()).into())
        });
        let body = self.objects.join(entries, record.redundancy())?;
        let value = self.gateway.handle.record(|history, _| history.number(all.freeze()));
        let record = ObjectManifest { size: sizes.iter().sum(), body, etag: value.to_string(), parts: sizes, ..record };
        let (call, called) = self.call(name, Did::Write(Some(value)));
        let row = self.close(call, self.objects.complete(record, &Condition::Always, id), None)?.row;
        self.is_put(name, &row, called);
        Ok(())
    }
}
