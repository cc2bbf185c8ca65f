//! A store on a disk whose bytes rot, tear and are cut, with chunks that imitate the disk format. It opens or refuses; it
//! never panics, and never returns bytes that are not what the id names. Without damage nothing durable is lost.

#![no_main]

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use arbitrary::Arbitrary;
use bytes::Bytes;
use crc_fast::{CrcAlgorithm, Digest};
use libfuzzer_sys::fuzz_target;
use protocol::id::ChunkId;
use store::backend::{Backend, CrashBackend};
use store::{Options, ReadError, Recovery, Store};

#[derive(Arbitrary, Debug)]
struct Plan {
    steps: Vec<Step>,
}

#[derive(Arbitrary, Debug)]
enum Step {
    Append(AnyChunk),
    Sync,
    Remove(AnyChunk),
    Prepare,
    Compact,
    Scrub {
        after: Option<AnyChunk>,
        max_bytes: u16,
    },
    List {
        prefix: u8,
        after: Option<AnyChunk>,
    },
    /// Power cut, and a new start.
    Crash(u64),
    Damage(Damage),
}

/// What may happen to a medium.
#[derive(Arbitrary, Debug)]
enum Damage {
    Flip {
        file: u8,
        at: u16,
        bits: u8,
    },
    Write {
        file: u8,
        at: u16,
        bytes: Vec<u8>,
    },
    Cut {
        file: u8,
        len: u16,
    },
    Lose {
        file: u8,
    },
    Copy {
        from: u8,
        to: u8,
    },
    /// A record whose checksums are right although the store never wrote it, at a place where one may begin.
    Record {
        file: u8,
        at: u8,
        record: AnyRecord,
    },
}

/// What a record says, but for its place.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct AnyRecord {
    kind: u8,
    imitates: u8,
    /// Instead of that of its payload.
    len: Option<u32>,
    behind: u16,
    sequence: u64,
}

#[derive(Arbitrary, Clone, Copy, Debug)]
enum AnyChunk {
    Plain {
        fill: u8,
        len: u16,
    },
    /// Its payload is a record in the disk format, as a user may have it stored who does not know the store's secret.
    Record {
        record: AnyRecord,
        segment: u8,
        at: u8,
        true_to_id: bool,
    },
}

impl AnyChunk {
    fn bytes(self) -> Bytes {
        match self {
            Self::Plain { fill, len } => vec![fill % 4; usize::from(len % 3_000) + 1].into(),
            Self::Record { record, segment, at, true_to_id } => {
                let original = record.original();
                let inside = if true_to_id { original } else { Bytes::from_static(b"something else") };
                let mut out = record.encode(&inside, SECRET + 1, u32::from(segment), 64 * u64::from(at));
                // Several of them, so that one is whole when another is damaged.
                out.extend_from_within(..);
                out.into()
            }
        }
    }

    fn id(self) -> ChunkId {
        ChunkId::of_payload(&self.bytes())
    }
}

impl AnyRecord {
    /// The payload of the chunk whose record it is.
    fn original(self) -> Bytes {
        AnyChunk::Plain { fill: self.imitates, len: 100 }.bytes()
    }

    /// As `docs/disk.md` describes it, filled up to the next multiple of 64.
    fn encode(self, payload: &[u8], secret: u64, segment: u32, offset: u64) -> Vec<u8> {
        let mut out = b"RvRc".to_vec();
        out.push(self.kind % 5);
        out.extend(ChunkId::of_payload(&self.original()).encode());
        out.extend(self.behind.to_le_bytes());
        out.extend(self.len.unwrap_or(payload.len() as u32).to_le_bytes());
        out.extend(segment.to_le_bytes());
        out.extend(self.sequence.to_le_bytes());
        out.extend(crc(&[payload]));
        let header = crc(&[&secret.to_le_bytes(), &offset.to_le_bytes(), &out]);
        out.extend(header);
        out.extend(payload);
        out.resize(out.len().next_multiple_of(64), 0);
        out
    }
}

fn crc(pieces: &[&[u8]]) -> [u8; 4] {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    pieces.iter().for_each(|piece| digest.update(piece));
    (digest.finalize() as u32).to_le_bytes()
}

struct World {
    disk: CrashBackend,
    store: Store,
    /// What must be there, as long as the disk is not damaged.
    durable: BTreeMap<ChunkId, Bytes>,
    pending: BTreeMap<ChunkId, Bytes>,
    damaged: bool,
}

const SECRET: u64 = 0x5eed;

fn options() -> Options {
    Options { capacity: 96 << 10, reserve: 8 << 10, segment_size: 8 << 10, cluster: 7, target: 3, secret: SECRET }
}

fn open(disk: &CrashBackend) -> Option<(Store, Recovery)> {
    Store::open(Box::new(disk.clone()), options()).ok()
}

fuzz_target!(|plan: Plan| {
    let disk = CrashBackend::new();
    let Some((store, _)) = open(&disk) else { return };
    let mut world = World { disk, store, durable: BTreeMap::new(), pending: BTreeMap::new(), damaged: false };
    for step in plan.steps {
        if !world.step(step) {
            return;
        }
    }
    world.check();
    if world.reopen(None) {
        let mut scrubbed = world.store.scrub(None, u64::MAX);
        while scrubbed.next.is_some() {
            scrubbed = world.store.scrub(scrubbed.next, u64::MAX);
        }
        world.check();
        while let Ok(Some(_)) = world.store.compact(&mut |_| ControlFlow::Continue(())) {}
        world.check();
    }
});

impl World {
    /// Whether there is still a store.
    fn step(&mut self, step: Step) -> bool {
        match step {
            Step::Append(chunk) => {
                let (id, bytes) = (chunk.id(), chunk.bytes());
                let half = bytes.len() / 2;
                if self.store.append(&id, &[bytes.slice(..half), bytes.slice(half..)], 0).is_ok() {
                    self.pending.insert(id, bytes);
                }
            }
            Step::Sync => {
                if self.store.sync().is_ok() {
                    self.durable.append(&mut self.pending);
                }
            }
            Step::Remove(chunk) => {
                let id = chunk.id();
                if self.store.remove(&id).is_ok() {
                    self.durable.append(&mut self.pending);
                    self.durable.remove(&id);
                } else {
                    self.damaged = true;
                }
            }
            Step::Prepare => drop(self.store.prepare_segment()),
            Step::Compact => {
                // A disk that is full or damaged may not let it.
                let _ = self.store.compact(&mut |_| ControlFlow::Continue(()));
                self.check();
            }
            Step::Scrub { after, max_bytes } => {
                let scrubbed = self.store.scrub(after.map(AnyChunk::id), max_bytes.into());
                assert!(self.damaged || scrubbed.bad.is_empty(), "{scrubbed:?}");
                self.check();
            }
            Step::List { prefix, after } => {
                let prefix = vec![0; usize::from(prefix % 2)];
                let after = after.map(AnyChunk::id);
                let (ids, _) = self.store.list(&prefix, after.as_ref(), 5);
                assert!(ids.len() <= 5 && ids.is_sorted() && ids.iter().all(|id| Some(*id) > after));
            }
            Step::Crash(seed) => return self.reopen(Some(seed)),
            Step::Damage(damage) => {
                self.damaged = true;
                self.damage(damage);
            }
        }
        true
    }

    fn reopen(&mut self, crash: Option<u64>) -> bool {
        if let Some(seed) = crash {
            self.disk.crash(seed);
        }
        self.pending.clear();
        match open(&self.disk) {
            Some((store, recovery)) => {
                assert!(self.damaged || recovery.damaged.is_empty(), "a crash was taken for damage");
                self.store = store;
            }
            None => {
                assert!(self.damaged, "an undamaged disk was refused");
                return false;
            }
        }
        self.check();
        true
    }

    fn check(&self) {
        let (ids, more) = self.store.list(&[], None, usize::MAX);
        assert_eq!((ids.len() as u64, more), (self.store.chunks(), false));
        for id in &ids {
            match self.store.read(id) {
                Ok(bytes) => {
                    assert!(id.matches([&bytes[..]]), "wrong bytes for {id:?}");
                    assert_eq!(self.store.contains(id), Some(bytes.len() as u32));
                }
                Err(error) => assert!(self.damaged, "{error}, on an undamaged disk"),
            }
        }
        let space = self.store.space();
        assert!(space.dead <= space.written && space.free <= space.capacity);
        assert!(self.damaged || space.written < space.used && space.used <= space.capacity || space.used == 0);
        if !self.damaged {
            for (id, bytes) in &self.durable {
                assert_eq!(self.store.read(id).as_ref(), Ok(bytes));
            }
            let absent = ChunkId::of_payload(b"never stored");
            assert_eq!(self.store.read(&absent), Err(ReadError::Missing));
        }
    }

    fn damage(&self, damage: Damage) {
        let Ok(files) = self.disk.list() else { return };
        if files.is_empty() {
            return;
        }
        let file = |n: u8| files[usize::from(n) % files.len()].clone();
        let good = match damage {
            Damage::Flip { file: n, at, bits } => {
                let (name, len) = file(n);
                let at = u64::from(at) % len.max(1);
                let mut byte = [0];
                self.disk.read_at(&name, at, &mut byte).and_then(|()| self.disk.write_at(&name, at, &[byte[0] ^ bits]))
            }
            Damage::Write { file: n, at, bytes } => {
                let (name, len) = file(n);
                self.disk.write_at(&name, u64::from(at) % len.max(1), &bytes)
            }
            Damage::Cut { file: n, len } => {
                let (name, old) = file(n);
                self.replace(&name, &name, old.min(len.into()))
            }
            Damage::Lose { file: n } => self.disk.remove(&file(n).0),
            Damage::Copy { from, to } => {
                let ((from, len), (to, _)) = (file(from), file(to));
                self.replace(&from, &to, len)
            }
            Damage::Record { file: n, at, record } => {
                let (name, len) = file(n);
                let segment = name.strip_prefix("segment-").and_then(|number| number.parse().ok()).unwrap_or(0);
                let offset = 64 * (u64::from(at) % (len / 64).max(1));
                let bytes = record.encode(&record.original(), SECRET, segment, offset);
                self.disk.write_at(&name, offset, &bytes)
            }
        };
        // Nothing to damage there.
        drop(good);
    }

    /// Makes `to` the first `len` bytes of `from`.
    fn replace(&self, from: &str, to: &str, len: u64) -> std::io::Result<()> {
        let mut bytes = vec![0; len as usize];
        self.disk.read_at(from, 0, &mut bytes)?;
        self.disk.remove(to)?;
        self.disk.create(to, len)?;
        self.disk.write_at(to, 0, &bytes)?;
        self.disk.sync(to)
    }
}
