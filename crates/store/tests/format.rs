//! The bytes on disk are those of `docs/disk.md`, version 3.

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, checksum};
use protocol::id::ChunkId;
use protocol::promise::Promise;
use protocol::redundancy::{Redundancy, Wanted};
use store::backend::{Backend, CrashBackend};
use store::{IDENTITY, Options, Store};

const SECRET: u64 = 0x0807_0605_0403_0201;

fn crc(bytes: &[u8]) -> [u8; 4] {
    (checksum(CrcAlgorithm::Crc32Iscsi, bytes) as u32).to_le_bytes()
}

/// `bytes`, and the CRC-32C of all of them.
fn sealed(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = parts.concat();
    bytes.extend(crc(&bytes));
    bytes
}

/// A record at `offset` of segment 1, without its payload, kept as the map says or for so many copies.
fn record(offset: u64, kind: u8, id: &ChunkId, behind: u16, payload: &[u8], sequence: u64, copies: u8) -> Vec<u8> {
    let wanted = if copies == 0 { 0 } else { 1 << 4 | copies };
    let all = sealed(&[
        &SECRET.to_le_bytes(),
        &offset.to_le_bytes(),
        b"RvRc",
        &[kind],
        &id.encode(),
        &behind.to_le_bytes(),
        &(payload.len() as u32 | u32::from(wanted) << 24).to_le_bytes(),
        &1_u32.to_le_bytes(),
        &sequence.to_le_bytes(),
        &crc(payload),
    ]);
    // The secret and the place are not there, but their checksum is.
    all[16..].to_vec()
}

#[test]
fn version_3_is_frozen() {
    let disk = CrashBackend::new();
    let options = Options {
        capacity: 1 << 20,
        reserve: 0,
        segment_size: 32 << 10,
        cluster: 0x0102_0304,
        target: 9,
        secret: SECRET,
    };
    let (store, _) = Store::open(Box::new(disk.clone()), options).expect("opens");
    let payload = Bytes::from_static(b"frozen");
    let id = ChunkId::of_payload(&payload);
    store.append(&id, std::slice::from_ref(&payload), 0).expect("room");
    store.sync().expect("syncs");
    store.remove(&id).expect("removes");
    let promise = Promise { mark: 0, wanted: Wanted::of(Some(Redundancy::Copies(2))), restores: false };
    store.append(&id, std::slice::from_ref(&payload), promise).expect("room");
    store.sync().expect("syncs");
    let read = |name: &str, len| {
        let mut bytes = vec![0; len];
        disk.read_at(name, 0, &mut bytes).expect("reads");
        bytes
    };
    let numbers = [&[4, 3, 2, 1][..], &9_u32.to_le_bytes(), &1_u32.to_le_bytes()].concat();
    assert_eq!(read(IDENTITY, 32), sealed(&[b"RvStore\n", &3_u32.to_le_bytes(), &numbers[..8], &SECRET.to_le_bytes()]));
    let segment = [
        sealed(&[b"RvSegm\x02\n", &numbers, &(32_u64 << 10).to_le_bytes(), &crc(&SECRET.to_le_bytes()), &[0; 28]]),
        // Durable up to the header before it: no whole block back.
        record(64, 1, &id, 1, &payload, 1, 0),
        payload.to_vec(),
        vec![0; 58],
        record(192, 2, &id, 1, &[], 2, 0),
        record(256, 1, &id, 1, &payload, 3, 2),
        payload.to_vec(),
        vec![0; 58],
    ];
    assert_eq!(read("segment-00000001", 384), segment.concat());
}

#[test]
fn what_was_damaged_and_what_was_struck_out_are_frozen() {
    let disk = CrashBackend::new();
    let open = || {
        let options =
            Options { capacity: 1 << 20, reserve: 0, segment_size: 32 << 10, cluster: 7, target: 9, secret: SECRET };
        Store::open(Box::new(disk.clone()), options).expect("opens").0
    };
    let store = open();
    let payload = Bytes::from_static(b"frozen");
    let id = ChunkId::of_payload(&payload);
    store.append(&id, std::slice::from_ref(&payload), 0).expect("room");
    store.sync().expect("syncs");
    assert!(disk.rot_chunk(&id));
    assert_eq!(store.scrub(None, u64::MAX).bad, [id]);
    let read = |at: u64, len| {
        let mut bytes = vec![0; len];
        disk.read_at("segment-00000001", at, &mut bytes).expect("reads");
        bytes
    };
    // The tombstone of a copy that was damaged has a byte behind its header.
    let tombstone = [record(192, 2, &id, 1, b"D", 2, 0), b"D".to_vec()].concat();
    assert_eq!(read(192, tombstone.len()), tombstone);
    assert_eq!(store.missing(None, 9), (vec![id], false));
    drop(store);
    // A record of which the payload never came.
    let other = ChunkId::of_payload(b"of 100 bytes");
    disk.write_at("segment-00000001", 320, &record(320, 1, &other, 0, &[7; 100], 3, 0)).expect("writes");
    let store = open();
    assert_eq!((store.contains(&other), store.missing(None, 9)), (None, (vec![id], false)));
    assert_eq!(read(320, 66)[..5], *b"RvRc\x03", "struck out");
    let struck = record(320, 3, &other, 0, &[7; 100], 3, 0);
    assert_eq!(read(320, struck.len()), struck, "what it says besides stays");
}

#[test]
fn behind_the_highest_number_nothing_is_counted_as_missing() {
    let disk = CrashBackend::new();
    let open = || {
        let options =
            Options { capacity: 1 << 20, reserve: 0, segment_size: 8 << 10, cluster: 7, target: 9, secret: SECRET };
        Store::open(Box::new(disk.clone()), options).expect("opens")
    };
    let (store, _) = open();
    let ids = [1, 2, 3, 4].map(|n| {
        let payload = Bytes::from(vec![n; 2_500]);
        let id = ChunkId::of_payload(&payload);
        store.append(&id, &[payload], 0).expect("room");
        store.sync().expect("syncs");
        id
    });
    drop(store);
    // The last of the first segment has it; the second one begins with an ordinary one.
    disk.write_at("segment-00000001", 64 + 2 * 2_624, &record(64 + 2 * 2_624, 1, &ids[2], 1, &[3; 2_500], u64::MAX, 0))
        .expect("writes");
    let (store, recovery) = open();
    assert_eq!((recovery.gaps, store.damaged()), (vec![], (0, false)));
    assert_eq!(store.chunks(), 4);
}
