//! The manifest of one version of an object, and of a bucket: all that a catalog's row says.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use bytes::Bytes;
use protocol::id::{ChunkId, ChunkKind};
use protocol::redundancy::Redundancy;

use crate::entry::{
    Entry, FORMAT, Malformed, PACKED, SEALED, entry_bytes, format_of, put_entry, read_entry, sealed_length,
};

/// How the chunk begins.
pub const MAGIC: [u8; 4] = *b"RSVO";
/// Most bytes of a key.
pub const KEY_BYTES: usize = 1_024;
/// The attribute of a bucket that somebody began to remove.
pub const LEAVING: &str = "leaving";
/// The attribute of [`ObjectManifest::begun`].
pub const BEGUN: &str = "begun";
/// The attribute of [`ObjectManifest::redundancy`].
const REDUNDANCY: &str = "redundancy";
/// Entries that a record has; with more it names index chunks.
pub const ENTRIES: usize = 10_000;
/// Entries that a catalog's row repeats; with more the manifest must be read for them.
const ROW_ENTRIES: usize = 32;
const HEADER_BYTES: usize = 40;
/// Bytes of an encoded id before the hash of the manifest: kind, name and time.
const ID_WITHOUT_HASH: usize = 1 + ChunkId::NAME_LEN + 6;

/// A version of a key: microseconds since 1970, which a run of a gateway gives once, and the 64 random bits of that run.
/// Versions of a key sort by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VersionId(pub u128);

impl VersionId {
    /// From its two parts.
    #[must_use]
    pub const fn new(micros: u64, run: u64) -> Self {
        Self((micros as u128) << 64 | run as u128)
    }

    /// The next id: before any that a put gives later. What removes a null version has it, so that no null version which was
    /// put meanwhile is removed with it.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The run of a gateway that gave it.
    #[must_use]
    pub const fn run(self) -> u64 {
        self.0 as u64
    }

    /// Microseconds since 1970.
    #[must_use]
    pub const fn micros(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

impl fmt::Display for VersionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl FromStr for VersionId {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let digits = text.len() == 32 && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        if digits { u128::from_str_radix(text, 16).map(Self).map_err(drop) } else { Err(()) }
    }
}

/// What a record says of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There is an object.
    Object,
    /// The object was deleted, and its older versions are kept: a delete marker.
    Marker,
    /// A version was removed for good: the one in `removes`, or, for the null version, every older null version.
    Removal,
    /// There is a bucket.
    Bucket,
    /// The bucket was deleted.
    BucketRemoval,
}

impl Kind {
    const ALL: [Self; 5] = [Self::Object, Self::Marker, Self::Removal, Self::Bucket, Self::BucketRemoval];
}

/// Where the bytes of an object are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Body {
    /// In the record; encrypted, if they are more than the object has.
    Inline(Bytes),
    /// In these payload chunks.
    Chunks(Vec<Entry>),
    /// In the payload chunks that these index chunks name, each with the bytes of payload that it covers.
    Indexed(Vec<(Entry, u64)>),
    /// Only the manifest says it: this is a catalog's row.
    InManifest,
}

/// What a manifest says, and a row of the catalog: one version of an object, a removal, or a bucket (which has the key "").
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectManifest {
    /// What it says.
    pub kind: Kind,
    /// The bucket.
    pub bucket: String,
    /// The key; empty for a bucket.
    pub key: String,
    /// Which version.
    pub version: VersionId,
    /// Whether S3 calls this version "null": it was put while the bucket kept no versions.
    pub null: bool,
    /// When the attributes were set last, microseconds since 1970; the greater one of two records of a version is true.
    pub revision: u64,
    /// For [`Kind::Removal`] of a version that is not null: which one.
    pub removes: VersionId,
    /// Bytes of the object.
    pub size: u64,
    /// Its entity tag, without quotes.
    pub etag: String,
    /// Headers, user metadata, checksums, tags, and settings of a bucket, by name.
    pub attributes: BTreeMap<String, String>,
    /// Bytes of each part when it was put in parts.
    pub parts: Vec<u64>,
    /// The bytes.
    pub body: Body,
}

impl ObjectManifest {
    /// Whether it says that something is removed whose room is won back. A delete marker wins nothing.
    #[must_use]
    pub fn is_removal(&self) -> bool {
        match self.kind {
            Kind::Removal | Kind::BucketRemoval => true,
            Kind::Bucket => self.attributes.contains_key(LEAVING),
            Kind::Object | Kind::Marker => false,
        }
    }

    /// A record without content.
    #[must_use]
    pub fn new(kind: Kind, bucket: &str, key: &str, version: VersionId) -> Self {
        Self {
            kind,
            bucket: bucket.to_owned(),
            key: key.to_owned(),
            version,
            null: false,
            revision: version.micros(),
            removes: VersionId::default(),
            size: 0,
            etag: String::new(),
            attributes: BTreeMap::new(),
            parts: vec![],
            body: Body::Inline(Bytes::new()),
        }
    }

    /// How the chunks of the object are kept; `None` is as the cluster map had it when they were put.
    #[must_use]
    pub fn redundancy(&self) -> Option<Redundancy> {
        self.attributes.get(REDUNDANCY)?.parse().ok()
    }

    /// Says how the chunks of the object are to be kept.
    pub fn set_redundancy(&mut self, redundancy: Option<Redundancy>) {
        match redundancy {
            Some(redundancy) => self.attributes.insert(REDUNDANCY.to_owned(), redundancy.to_string()),
            None => self.attributes.remove(REDUNDANCY),
        };
    }

    /// The chunk and its id.
    #[must_use]
    pub fn chunk(&self) -> (ChunkId, Bytes) {
        let bytes = Bytes::from(self.encode());
        let id = ChunkId::of_manifest(&self.name(), self.version.micros() / 1_000, &bytes);
        (id, bytes)
    }

    /// The moment and the run in which the change began that stored this record: its version, but for removals and other
    /// attributes, which have it as an attribute.
    #[must_use]
    pub fn begun(&self) -> VersionId {
        self.attributes.get(BEGUN).and_then(|text| text.parse().ok()).unwrap_or(self.version)
    }

    /// Whether `bytes`, of which a catalog's row has read this record, are those of this manifest, as far as its id says: of a
    /// record whose body is left to the manifest, only name and time.
    pub fn is_of(&self, manifest: ChunkId, bytes: &[u8]) -> bool {
        let own = ChunkId::of_manifest(&self.name(), self.version.micros() / 1_000, bytes);
        let checked = if self.body == Body::InManifest { ID_WITHOUT_HASH } else { ChunkId::LEN };
        own.encode()[..checked] == manifest.encode()[..checked]
    }

    /// What is hashed to find the versions of a key. No file has such a name: it has a control character.
    fn name(&self) -> String {
        format!("{}\0{}", self.bucket, self.key)
    }

    /// The record as a catalog keeps it: what can only be needed with the bytes of the object is left to the manifest.
    #[must_use]
    pub fn row(mut self) -> Self {
        let keep = match &self.body {
            Body::Inline(bytes) => bytes.is_empty(),
            Body::Chunks(entries) => entries.len() <= ROW_ENTRIES,
            Body::Indexed(_) | Body::InManifest => false,
        };
        if !keep {
            self.body = Body::InManifest;
        }
        self
    }

    /// The format that says all of it.
    fn format(&self) -> u8 {
        match &self.body {
            Body::Chunks(entries) => format_of(entries),
            Body::Inline(bytes) if bytes.len() as u64 != self.size => SEALED,
            Body::Inline(_) | Body::Indexed(_) | Body::InManifest => FORMAT,
        }
    }

    /// The bytes of the record. `docs/manifest.md` describes them.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(512);
        out.extend(MAGIC);
        out.extend([self.format(), self.kind as u8, u8::from(self.null), 0]);
        out.extend(self.version.0.to_be_bytes());
        out.extend(self.revision.to_le_bytes());
        out.extend(self.size.to_le_bytes());
        debug_assert_eq!(out.len(), HEADER_BYTES);
        out.extend(self.removes.0.to_be_bytes());
        for text in [&self.bucket, &self.key, &self.etag] {
            put_text(&mut out, text);
        }
        put_count(&mut out, self.attributes.len());
        for (name, value) in &self.attributes {
            put_text(&mut out, name);
            put_text(&mut out, value);
        }
        put_count(&mut out, self.parts.len());
        self.parts.iter().for_each(|size| out.extend(size.to_le_bytes()));
        self.encode_body(&mut out);
        out
    }

    fn encode_body(&self, out: &mut Vec<u8>) {
        match &self.body {
            Body::Inline(bytes) => {
                out.push(0);
                put_count(out, bytes.len());
                out.extend(&bytes[..]);
            }
            Body::Chunks(entries) => {
                out.push(1);
                put_count(out, entries.len());
                let format = format_of(entries);
                entries.iter().for_each(|entry| put_entry(out, *entry, format));
            }
            Body::Indexed(indexes) => {
                out.push(2);
                put_count(out, indexes.len());
                for (entry, covers) in indexes {
                    put_entry(out, *entry, FORMAT);
                    out.extend(covers.to_le_bytes());
                }
            }
            Body::InManifest => out.push(3),
        }
    }

    /// The record in these bytes, which must end with it.
    ///
    /// # Errors
    /// When they are not a record of a known format, or one that contradicts itself.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut cursor = Cursor(bytes);
        let magic = cursor.take(4)?;
        if magic != MAGIC {
            return Err(Malformed::Magic);
        }
        let [format, kind, null, unused] = cursor.array()?;
        if ![FORMAT, PACKED, SEALED].contains(&format) {
            return Err(Malformed::Format(format));
        }
        if null > 1 || unused != 0 {
            return Err(Malformed::Kind);
        }
        let kind = *Kind::ALL.get(usize::from(kind)).ok_or(Malformed::Kind)?;
        let version = VersionId(u128::from_be_bytes(cursor.array()?));
        let revision = u64::from_le_bytes(cursor.array()?);
        let size = u64::from_le_bytes(cursor.array()?);
        let removes = VersionId(u128::from_be_bytes(cursor.array()?));
        let [bucket, key, etag] = [cursor.text()?, cursor.text()?, cursor.text()?];
        if bucket.is_empty() || bucket.contains('\0') || key.len() > KEY_BYTES {
            return Err(Malformed::Name);
        }
        let mut attributes = BTreeMap::new();
        for _ in 0..cursor.count()? {
            let (name, value) = (cursor.text()?, cursor.text()?);
            if attributes.last_key_value().is_some_and(|(last, _)| *last >= name) {
                return Err(Malformed::Order);
            }
            if name == REDUNDANCY && value.parse::<Redundancy>().is_err() {
                return Err(Malformed::Redundancy);
            }
            attributes.insert(name, value);
        }
        let mut parts = vec![];
        for _ in 0..cursor.count()? {
            parts.push(u64::from_le_bytes(cursor.array()?));
        }
        let body = cursor.body(format)?;
        if !cursor.0.is_empty() {
            return Err(Malformed::Length);
        }
        let null = null == 1;
        let record = Self { kind, bucket, key, version, null, revision, removes, size, etag, attributes, parts, body };
        record.check_size()?;
        if record.format() == format { Ok(record) } else { Err(Malformed::Packing) }
    }

    fn check_size(&self) -> Result<(), Malformed> {
        let total = match &self.body {
            Body::Inline(bytes) if bytes.len() as u64 == sealed_length(self.size) => Some(self.size),
            Body::Inline(bytes) => Some(bytes.len() as u64),
            Body::Chunks(entries) => Some(entries.iter().map(|e| u64::from(e.plain)).sum()),
            Body::Indexed(indexes) => indexes.iter().try_fold(0_u64, |sum, (_, covers)| sum.checked_add(*covers)),
            Body::InManifest => Some(self.size),
        };
        if total == Some(self.size) { Ok(()) } else { Err(Malformed::Size) }
    }
}

/// The bytes of a list of entries, as an upload keeps them for each part. A list with compressed or encrypted chunks begins with its format,
/// and so does one that would begin with that of a coded chunk, which may be the same byte; others begin with the id of a plain one, which is 0.
#[must_use]
pub fn encode_entries(entries: &[Entry]) -> Vec<u8> {
    let format = format_of(entries);
    let is_plain = format == FORMAT && entries.first().is_none_or(|entry| entry.id.kind() == ChunkKind::Payload);
    let mut out = if is_plain { vec![] } else { vec![format] };
    entries.iter().for_each(|entry| put_entry(&mut out, *entry, format));
    out
}

/// The reverse of [`encode_entries`].
///
/// # Errors
/// When they are not that.
pub fn decode_entries(bytes: &[u8]) -> Result<Vec<Entry>, Malformed> {
    let whole = bytes;
    let (format, bytes) = match bytes.split_first() {
        Some((&format @ (FORMAT | PACKED | SEALED), rest)) => (format, rest),
        _ => (FORMAT, bytes),
    };
    let mut cursor = Cursor(bytes);
    let mut entries = vec![];
    while !cursor.0.is_empty() {
        entries.push(cursor.entry(format)?);
    }
    if encode_entries(&entries) == whole { Ok(entries) } else { Err(Malformed::Packing) }
}

fn put_count(out: &mut Vec<u8>, count: usize) {
    out.extend((count as u32).to_le_bytes());
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    put_count(out, text.len());
    out.extend(text.as_bytes());
}

struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn take(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (head, rest) = self.0.split_at_checked(length).ok_or(Malformed::Length)?;
        self.0 = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N)?);
        Ok(array)
    }

    fn count(&mut self) -> Result<usize, Malformed> {
        let count = u32::from_le_bytes(self.array()?) as usize;
        // Nothing that is counted is shorter than a byte.
        if count > self.0.len() { Err(Malformed::Length) } else { Ok(count) }
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let length = self.count()?;
        core::str::from_utf8(self.take(length)?).map(str::to_owned).map_err(|_| Malformed::Name)
    }

    fn entry(&mut self, format: u8) -> Result<Entry, Malformed> {
        read_entry(self.take(entry_bytes(format))?, format)
    }

    fn index(&mut self) -> Result<(Entry, u64), Malformed> {
        Ok((self.entry(FORMAT)?, u64::from_le_bytes(self.array()?)))
    }

    fn body(&mut self, format: u8) -> Result<Body, Malformed> {
        let [tag] = self.array()?;
        if tag == 3 {
            return Ok(Body::InManifest);
        }
        let count = self.count()?;
        Ok(match tag {
            0 => Body::Inline(Bytes::copy_from_slice(self.take(count)?)),
            1 => Body::Chunks((0..count).map(|_| self.entry(format)).collect::<Result<_, _>>()?),
            2 => Body::Indexed((0..count).map(|_| self.index()).collect::<Result<_, _>>()?),
            other => return Err(Malformed::Level(other)),
        })
    }
}

#[cfg(test)]
mod tests;
