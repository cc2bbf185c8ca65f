//! What only the page cache has is not durable: after a failed sync, after a killed process, in the midst of a start.

use bytes::Bytes;
use protocol::id::ChunkId;
use protocol::rng::Rng;
use store::backend::{Backend, CrashBackend, SyncFault};
use store::{Bug, Options, Store, StoreError};

fn options() -> Options {
    Options { capacity: 1 << 20, reserve: 16 << 10, segment_size: 32 << 10, cluster: 7, target: 3, secret: 0x5eed }
}

fn open(disk: &CrashBackend, bug: Option<Bug>) -> Result<Store, StoreError> {
    Store::open_planted(Box::new(disk.clone()), options(), bug).map(|(store, _)| store)
}

fn chunk(n: u8) -> (ChunkId, Bytes) {
    let bytes = Bytes::from(vec![n; 100 + usize::from(n) * 300]);
    (ChunkId::of_payload(&bytes), bytes)
}

fn append(store: &Store, n: u8) -> ChunkId {
    let (id, bytes) = chunk(n);
    store.append(&id, &[bytes], 0).expect("room");
    id
}

/// What a start shows of a group whose sync failed must outlast the power: it is called durable from then on.
fn lost_after_a_failed_sync(bug: Option<Bug>) -> usize {
    let lost = |seed: u64| {
        let disk = CrashBackend::seeded(seed);
        let store = open(&disk, None).expect("opens");
        append(&store, 1);
        store.sync().expect("syncs");
        let _: Vec<ChunkId> = (2..9).map(|n| append(&store, n)).collect();
        disk.set_sync_fault(Some(SyncFault::Once));
        assert!(store.sync().is_err());
        drop(store);
        let shown = open(&disk, bug).expect("opens").list(&[], None, 99).0;
        disk.crash(seed);
        let left = open(&disk, None).expect("opens").list(&[], None, 99).0;
        shown.into_iter().any(|id| !left.contains(&id))
    };
    (0..60).filter(|seed| lost(*seed)).count()
}

#[test]
fn what_a_start_shows_after_a_failed_sync_is_durable() {
    assert_eq!(lost_after_a_failed_sync(None), 0);
    assert!(lost_after_a_failed_sync(Some(Bug::TrustClean)) > 0, "to sync it once more is not enough");
    assert!(lost_after_a_failed_sync(Some(Bug::TrustCache)) > 0);
}

#[test]
fn a_chunk_whose_tombstone_may_be_on_the_disk_is_promised_to_nobody() {
    for seed in 0..20 {
        let disk = CrashBackend::seeded(seed);
        let store = open(&disk, None).expect("opens");
        let id = append(&store, 1);
        store.sync().expect("syncs");
        assert_eq!(store.discard(&[id], 1, 0).dropped, 0);
        disk.set_sync_fault(Some(SyncFault::Once));
        assert!(store.discard(&[id], 2, 1).failed.is_some());
        let promised = store.promise(&id, 3).is_some();
        drop(store);
        let held = open(&disk, None).expect("opens").contains(&id).is_some();
        assert!(held || !promised, "seed {seed}: it was promised, and is gone");
    }
}

#[test]
fn an_identity_that_only_the_cache_has_is_written_again_before_there_are_segments() {
    for seed in 0..20 {
        let disk = CrashBackend::seeded(seed);
        disk.set_sync_fault(Some(SyncFault::Once));
        assert!(open(&disk, None).is_err());
        // Once killed before the sync, and once after one that failed.
        let store = open(&disk, None).expect("opens");
        append(&store, 1);
        store.sync().expect("syncs");
        drop(store);
        disk.crash(seed);
        let store = open(&disk, None);
        assert!(store.is_ok_and(|store| store.chunks() == 1), "seed {seed}");
    }
}

/// A machine that stops in the midst of every change in turn, also while it recovers, loses nothing that was durable.
#[test]
fn a_stop_in_the_midst_of_any_change_loses_nothing_durable() {
    for seed in 0..150 {
        let mut rng = Rng::new(seed);
        let disk = CrashBackend::seeded(seed);
        let (mut durable, mut pending, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        let mut next = 0;
        for life in 0..8 {
            disk.stop_after(rng.below(12));
            let mut tries = 0;
            let store = loop {
                match open(&disk, None) {
                    Ok(store) => break store,
                    Err(error) => assert!(disk.has_stopped() && tries < 20, "seed {seed}, life {life}: {error}"),
                }
                tries += 1;
                stop(&disk, &mut rng);
                if tries < 6 {
                    disk.stop_after(rng.below(8));
                }
            };
            // What was neither acknowledged nor lost counts from now on; what was half removed is there or not.
            durable.extend(pending.drain(..).filter(|id| store.contains(id).is_some()));
            for id in &durable {
                assert!(store.read(id).is_ok(), "seed {seed}, life {life}: {id:?}");
            }
            for id in &gone {
                assert!(store.contains(id).is_none(), "seed {seed}, life {life}: {id:?} came back");
            }
            while !disk.has_stopped() {
                match rng.below(8) {
                    0 if !durable.is_empty() => {
                        let id = durable.swap_remove(rng.below(durable.len() as u64) as usize);
                        match store.remove(&id) {
                            Ok(()) => {
                                gone.push(id);
                                durable.append(&mut pending);
                            }
                            Err(_) => pending.push(id),
                        }
                    }
                    1 => drop(store.prepare_segment()),
                    2 => drop(store.compact(&mut |_| std::ops::ControlFlow::Continue(()))),
                    3 | 4 if store.sync().is_ok() => durable.append(&mut pending),
                    _ => {
                        next += 1;
                        let bytes: Bytes = (0..rng.below(4_000) + 4).map(|n| (n + next * 7 + seed) as u8).collect();
                        let bytes = Bytes::from([&next.to_le_bytes()[..], &bytes].concat());
                        let id = ChunkId::of_payload(&bytes);
                        if store.append(&id, &[bytes], 0).is_ok() {
                            pending.push(id);
                        } else if !disk.has_stopped() {
                            disk.stop_after(0);
                        }
                    }
                }
                if rng.chance(1, 40) {
                    disk.stop_after(rng.below(6));
                }
            }
            drop(store);
            stop(&disk, &mut rng);
        }
    }
}

/// The power fails, or only the process ends.
fn stop(disk: &CrashBackend, rng: &mut Rng) {
    if rng.chance(1, 2) {
        disk.crash(rng.next_u64());
    } else {
        disk.kill();
    }
}

#[test]
fn a_disk_that_does_not_read_is_no_proof_of_damage() {
    let disk = CrashBackend::new();
    let store = open(&disk, None).expect("opens");
    let ids: Vec<ChunkId> = (1..9).map(|n| append(&store, n)).collect();
    store.sync().expect("syncs");
    disk.set_fail_read(true);
    let scrubbed = store.scrub(None, u64::MAX);
    assert_eq!((scrubbed.bad.len(), scrubbed.unreadable.len()), (0, ids.len()));
    assert!(open(&disk, None).is_err(), "a start that cannot read knows nothing");
    disk.set_fail_read(false);
    assert!(ids.iter().all(|id| store.read(id).is_ok()));
    drop(store);
    let store = open(&disk, None).expect("opens");
    assert!(ids.iter().all(|id| store.read(id).is_ok()));
    let names = disk.list().expect("lists");
    assert_eq!(names.iter().filter(|(name, _)| name.starts_with("segment-")).count(), 1);
}
