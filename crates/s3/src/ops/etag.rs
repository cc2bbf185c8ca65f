//! MD5 of bodies: their entity tags. It takes more time than all else that is done to the bytes of a put.
//!
//! A single stream is hashed by the thread that has its bytes. For several, one thread hashes all that have bytes at the
//! moment, side by side, without waiting for more.

mod lanes;

use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, SyncSender, channel, sync_channel};

use bytes::Bytes;
use fearless_simd::Level;

use self::lanes::{BEGIN, BLOCK, LANES, State, compress};

/// Blocks after which others that have come meanwhile join in.
const STRETCH: usize = 512;
/// With fewer blocks than this, a hop to another thread costs more than it saves.
const WORTH: usize = 256;

/// Streams that are open in this process.
static OPEN: AtomicUsize = AtomicUsize::new(0);
/// The thread that hashes for all; none when it could not be started.
static SHARED: OnceLock<Option<Sender<Job>>> = OnceLock::new();

/// The hash of a stream of bytes.
#[derive(Debug)]
pub(crate) struct Etag {
    state: State,
    /// Bytes so far; those after the last whole block are kept.
    length: u64,
    rest: [u8; BLOCK],
}

/// Blocks of one stream.
struct Job {
    state: State,
    bytes: Bytes,
    done: SyncSender<State>,
}

impl Etag {
    pub(crate) fn new() -> Self {
        OPEN.fetch_add(1, Ordering::Relaxed);
        Self { state: BEGIN, length: 0, rest: [0; BLOCK] }
    }

    /// Goes on with these bytes. Blocks until they are hashed.
    pub(crate) fn update(&mut self, bytes: &Bytes) {
        let mut bytes = bytes.clone();
        let kept = self.kept();
        self.length += bytes.len() as u64;
        if kept > 0 {
            let more = bytes.split_to(bytes.len().min(BLOCK - kept));
            self.rest[kept..kept + more.len()].copy_from_slice(&more);
            if kept + more.len() < BLOCK {
                return;
            }
            alone(&mut self.state, &self.rest);
        }
        let rest = bytes.split_off(bytes.len() / BLOCK * BLOCK);
        self.rest[..rest.len()].copy_from_slice(&rest);
        let shared = bytes.len() / BLOCK >= WORTH && OPEN.load(Ordering::Relaxed) > 1;
        if !(shared && self.together(&bytes)) {
            alone(&mut self.state, &bytes);
        }
    }

    /// Has the blocks hashed by the thread that hashes for all; whether it is there.
    fn together(&mut self, blocks: &Bytes) -> bool {
        let shared = SHARED.get_or_init(|| {
            let (sender, queue) = channel();
            let thread = std::thread::Builder::new().name("md5".into()).spawn(move || hash_all(&queue));
            thread.is_ok().then_some(sender)
        });
        let (done, end) = sync_channel(1);
        let job = Job { state: self.state, bytes: blocks.clone(), done };
        let sent = shared.as_ref().is_some_and(|shared| shared.send(job).is_ok());
        match end.recv() {
            Ok(state) if sent => self.state = state,
            _ => return false,
        }
        true
    }

    /// Bytes that wait for their block to be whole.
    const fn kept(&self) -> usize {
        (self.length % BLOCK as u64) as usize
    }

    pub(crate) fn finish(mut self) -> [u8; 16] {
        let bits = self.length.wrapping_mul(8).to_le_bytes();
        let kept = self.kept();
        // A one, zeros, and the length at the end of a block.
        let mut last = [0; 2 * BLOCK];
        last[..kept].copy_from_slice(&self.rest[..kept]);
        last[kept] = 0x80;
        let end = if kept + 1 + bits.len() <= BLOCK { BLOCK } else { 2 * BLOCK };
        last[end - bits.len()..end].copy_from_slice(&bits);
        alone(&mut self.state, &last[..end]);
        let mut sum = [0; 16];
        sum.iter_mut().zip(self.state.iter().flat_map(|word| word.to_le_bytes())).for_each(|(to, byte)| *to = byte);
        sum
    }
}

impl Drop for Etag {
    fn drop(&mut self) {
        OPEN.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Hashes whole blocks of one stream.
fn alone(state: &mut State, blocks: &[u8]) {
    md5::block_api::compress(state, blocks.as_chunks().0);
}

fn hash_all(queue: &Receiver<Job>) {
    let level = Level::new();
    let mut jobs: Vec<Job> = vec![];
    loop {
        if jobs.is_empty() {
            let Ok(job) = queue.recv() else { return };
            jobs.push(job);
        }
        jobs.extend(queue.try_iter().take(LANES - jobs.len()));
        step(level, &mut jobs);
        jobs.retain(|job| {
            let over = job.bytes.is_empty();
            if over {
                // Whoever asked may be gone.
                let _ = job.done.send(job.state);
            }
            !over
        });
    }
}

/// Brings all jobs on by as many blocks, at most a stretch.
fn step(level: Level, jobs: &mut [Job]) {
    let count = jobs.iter().map(|job| job.bytes.len() / BLOCK).min().unwrap_or(0).min(STRETCH);
    let blocks: Vec<Bytes> = jobs.iter_mut().map(|job| job.bytes.split_to(count * BLOCK)).collect();
    if let ([job], [bytes]) = (&mut *jobs, &blocks[..]) {
        return alone(&mut job.state, bytes);
    }
    let mut streams: Vec<(State, &[u8])> =
        jobs.iter().zip(&blocks).map(|(job, bytes)| (job.state, &bytes[..])).collect();
    compress(level, &mut streams, count);
    jobs.iter_mut().zip(streams).for_each(|(job, (state, _))| job.state = state);
}

#[cfg(test)]
mod tests;
