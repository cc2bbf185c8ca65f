//! The bytes on disk are those of `docs/disk.md`, version 1.

use bytes::Bytes;
use crc_fast::{CrcAlgorithm, checksum};
use protocol::id::ChunkId;
use store::backend::{Backend, CrashBackend};
use store::{IDENTITY, Options, Store};

/// `bytes`, and the CRC-32C of all of them.
fn sealed(parts: &[&[u8]]) -> Vec<u8> {
    let mut bytes = parts.concat();
    let crc = checksum(CrcAlgorithm::Crc32Iscsi, &bytes) as u32;
    bytes.extend(crc.to_le_bytes());
    bytes
}

/// A record of segment 1 without its payload.
fn record(kind: u8, id: &ChunkId, behind: u16, payload: &[u8], sequence: u64) -> Vec<u8> {
    let crc = checksum(CrcAlgorithm::Crc32Iscsi, payload) as u32;
    sealed(&[
        b"RvRc",
        &[kind],
        &id.encode(),
        &behind.to_le_bytes(),
        &(payload.len() as u32).to_le_bytes(),
        &1_u32.to_le_bytes(),
        &sequence.to_le_bytes(),
        &crc.to_le_bytes(),
    ])
}

#[test]
fn version_1_is_frozen() {
    let disk = CrashBackend::new();
    let options = Options { capacity: 1 << 20, reserve: 0, segment_size: 32 << 10, cluster: 0x0102_0304, target: 9 };
    let (store, _) = Store::open(Box::new(disk.clone()), options).expect("opens");
    let payload = Bytes::from_static(b"frozen");
    let id = ChunkId::of_payload(&payload);
    store.append(&id, std::slice::from_ref(&payload), 0).expect("room");
    store.sync().expect("syncs");
    store.remove(&id).expect("removes");
    let read = |name: &str, len| {
        let mut bytes = vec![0; len];
        disk.read_at(name, 0, &mut bytes).expect("reads");
        bytes
    };
    let numbers = [&[4, 3, 2, 1][..], &9_u32.to_le_bytes(), &1_u32.to_le_bytes()].concat();
    assert_eq!(read(IDENTITY, 24), sealed(&[b"RvStore\n", &1_u32.to_le_bytes(), &numbers[..8]]));
    let segment = [
        sealed(&[b"RvSegm\x01\n", &numbers, &[0; 40]]),
        // Durable up to the header before it: no whole block back.
        record(1, &id, 1, &payload, 1),
        payload.to_vec(),
        vec![0; 58],
        record(2, &id, 1, &[], 2),
        vec![0; 128],
    ];
    assert_eq!(read("segment-00000001", 384), segment.concat());
}
