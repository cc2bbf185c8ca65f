use md5::{Digest, Md5};
use proptest::prelude::*;

use super::*;

fn content(length: usize, seed: u64) -> Bytes {
    (0..length as u64).map(|n| ((n + seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// The hash of `bytes`, given in pieces of these lengths and then the rest.
fn in_pieces(bytes: &Bytes, pieces: &[usize]) -> [u8; 16] {
    let (mut etag, mut rest) = (Etag::new(), bytes.clone());
    for piece in pieces {
        etag.update(&rest.split_to(rest.len().min(*piece)));
    }
    etag.update(&rest);
    etag.finish()
}

fn expected(bytes: &[u8]) -> [u8; 16] {
    Md5::digest(bytes).into()
}

#[test]
fn every_length_around_a_block_is_padded_as_it_should_be() {
    for length in 0..=4 * BLOCK {
        let bytes = content(length, 1);
        assert_eq!(in_pieces(&bytes, &[]), expected(&bytes), "{length} bytes");
    }
}

#[test]
fn as_many_streams_as_there_are_lanes_and_fewer_come_to_what_each_comes_to_alone() {
    for level in [Level::new(), Level::baseline()] {
        for streams in 1..=LANES + 3 {
            let bytes: Vec<Bytes> = (0..streams).map(|n| content(9 * BLOCK, n as u64)).collect();
            let mut together: Vec<(State, &[u8])> = bytes.iter().map(|bytes| (BEGIN, &bytes[..])).collect();
            compress(level, &mut together, 7);
            for (n, (state, bytes)) in together.into_iter().enumerate() {
                let mut one = BEGIN;
                alone(&mut one, &bytes[..7 * BLOCK]);
                assert_eq!(state, one, "stream {n} of {streams} with {level:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn streams_at_once_do_not_disturb_each_other(
        streams in prop::collection::vec((0_usize..300_000, prop::collection::vec(0_usize..90_000, 0..5)), 1..24),
    ) {
        std::thread::scope(|scope| {
            for (n, (length, pieces)) in streams.iter().enumerate() {
                scope.spawn(move || {
                    let bytes = content(*length, n as u64);
                    assert_eq!(in_pieces(&bytes, pieces), expected(&bytes));
                });
            }
        });
    }

    #[test]
    fn jobs_of_all_lengths_end_with_what_each_comes_to_alone(
        lengths in prop::collection::vec(1_usize..2_000, 1..=LANES),
    ) {
        let (done, _end) = sync_channel(1);
        let bytes: Vec<Bytes> = lengths.iter().zip(0..).map(|(blocks, n)| content(blocks * BLOCK, n)).collect();
        let job = |bytes: &Bytes| Job { state: BEGIN, bytes: bytes.clone(), done: done.clone() };
        let mut jobs: Vec<(usize, Job)> = bytes.iter().map(job).enumerate().collect();
        while !jobs.is_empty() {
            let (names, mut now): (Vec<usize>, Vec<Job>) = jobs.drain(..).unzip();
            step(Level::new(), &mut now);
            for (n, job) in names.into_iter().zip(now) {
                if !job.bytes.is_empty() {
                    jobs.push((n, job));
                    continue;
                }
                let mut one = BEGIN;
                alone(&mut one, &bytes[n]);
                prop_assert_eq!(job.state, one);
            }
        }
    }
}
