//! How long a store takes to open: `cargo run --release --package reservoir-store --example recovery [CHUNKS] [KIB] [DIR]`.
//!
//! Fills a store in a directory of its own under DIR, closes it, and opens it twice: with the files in the page cache,
//! and after they were dropped from it.

use std::error::Error;
use std::fs::File;
use std::time::Instant;

use bytes::Bytes;
use protocol::id::ChunkId;
use rustix::fs::{Advice, fadvise};
use store::backend::{Backend, FileBackend};
use store::{Options, Store};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let chunks: u64 = args.next().map_or(Ok(100_000), |n| n.parse())?;
    let size: usize = args.next().map_or(Ok(16), |n| n.parse())? << 10;
    let dir = tempfile::tempdir_in(args.next().unwrap_or_else(|| ".".to_owned()))?;
    let capacity = chunks * (size as u64 + 128) * 2 + (1 << 30);
    let options = Options { capacity, reserve: 0, segment_size: 64 << 20, cluster: 1, target: 1, secret: 0x5eed };
    let open = || -> Result<_, Box<dyn Error>> {
        let backend = FileBackend::open(dir.path())?;
        let begun = Instant::now();
        let (store, recovery) = Store::open(Box::new(backend), options.clone())?;
        Ok((store, recovery, begun.elapsed()))
    };
    let (store, ..) = open()?;
    let mut payload = vec![0; size];
    for n in 0..chunks {
        payload[..8].copy_from_slice(&n.to_le_bytes());
        let bytes = Bytes::copy_from_slice(&payload);
        store.append(&ChunkId::of_payload(&bytes), &[bytes], 0)?;
        if n % 64 == 63 {
            store.sync()?;
        }
    }
    store.sync()?;
    drop(store);
    let (store, recovery, warm) = open()?;
    drop(store);
    for (name, _) in FileBackend::open(dir.path())?.list()? {
        let file = File::open(dir.path().join(name))?;
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed)?;
    }
    let (_store, again, cold) = open()?;
    assert_eq!((recovery.chunks, again.chunks), (chunks, chunks), "chunks were lost");
    println!("{chunks} chunks of {} KiB: opened in {warm:.2?} (cached), {cold:.2?} (not cached)", size >> 10);
    Ok(())
}
