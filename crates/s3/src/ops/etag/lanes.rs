//! MD5 of several streams side by side. One stream is a chain of additions that each wait for the one before, so that a
//! processor adds sixteen chains in hardly more time.

use fearless_simd::{Level, Simd, SimdBase, SimdFrom, dispatch, u32x16};

/// Streams side by side.
pub(super) const LANES: usize = 16;
/// Bytes of a block.
pub(super) const BLOCK: usize = 64;
/// What a stream begins with.
pub(super) const BEGIN: State = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// What a stream has come to.
pub(super) type State = [u32; 4];

/// RFC 1321: the whole part of 2^32 times the sine of 1, 2, 3 ...
const SINES: [u32; 64] = [
    0xd76a_a478,
    0xe8c7_b756,
    0x2420_70db,
    0xc1bd_ceee,
    0xf57c_0faf,
    0x4787_c62a,
    0xa830_4613,
    0xfd46_9501,
    0x6980_98d8,
    0x8b44_f7af,
    0xffff_5bb1,
    0x895c_d7be,
    0x6b90_1122,
    0xfd98_7193,
    0xa679_438e,
    0x49b4_0821,
    0xf61e_2562,
    0xc040_b340,
    0x265e_5a51,
    0xe9b6_c7aa,
    0xd62f_105d,
    0x0244_1453,
    0xd8a1_e681,
    0xe7d3_fbc8,
    0x21e1_cde6,
    0xc337_07d6,
    0xf4d5_0d87,
    0x455a_14ed,
    0xa9e3_e905,
    0xfcef_a3f8,
    0x676f_02d9,
    0x8d2a_4c8a,
    0xfffa_3942,
    0x8771_f681,
    0x6d9d_6122,
    0xfde5_380c,
    0xa4be_ea44,
    0x4bde_cfa9,
    0xf6bb_4b60,
    0xbebf_bc70,
    0x289b_7ec6,
    0xeaa1_27fa,
    0xd4ef_3085,
    0x0488_1d05,
    0xd9d4_d039,
    0xe6db_99e5,
    0x1fa2_7cf8,
    0xc4ac_5665,
    0xf429_2244,
    0x432a_ff97,
    0xab94_23a7,
    0xfc93_a039,
    0x655b_59c3,
    0x8f0c_cc92,
    0xffef_f47d,
    0x8584_5dd1,
    0x6fa8_7e4f,
    0xfe2c_e6e0,
    0xa301_4314,
    0x4e08_11a1,
    0xf753_7e82,
    0xbd3a_f235,
    0x2ad7_d2bb,
    0xeb86_d391,
];

/// Brings each of the streams on by `count` blocks of its bytes, of which there must be so many.
pub(super) fn compress(level: Level, streams: &mut [(State, &[u8])], count: usize) {
    for group in streams.chunks_mut(LANES) {
        let Some(&(begin, bytes)) = group.first() else { return };
        // Lanes without a stream do as the first does, for nobody.
        let (mut states, mut blocks) = ([begin; LANES], [bytes.as_chunks().0; LANES]);
        for (lane, (state, bytes)) in group.iter().enumerate() {
            (states[lane], blocks[lane]) = (*state, bytes.as_chunks().0);
        }
        dispatch!(level, simd => many(simd, &mut states, &blocks, count));
        group.iter_mut().zip(states).for_each(|((state, _), new)| *state = new);
    }
}

#[inline(always)]
fn many<S: Simd>(simd: S, states: &mut [State; LANES], blocks: &[&[[u8; BLOCK]]; LANES], count: usize) {
    let [mut a, mut b, mut c, mut d]: [u32x16<S>; 4] =
        std::array::from_fn(|word| u32x16::simd_from(simd, states.map(|state| state[word])));
    for n in 0..count {
        let words = words(simd, blocks.map(|blocks| &blocks[n]));
        let before = [a, b, c, d];
        // One of the four rounds: how it mixes, which word each step takes, and how far each of four steps turns.
        macro_rules! round {
            ($number:literal, $mix:expr, $word:expr, $queue:expr) => {
                for i in (0..16).step_by(4) {
                    let add = |k: usize| words[$word(i + k) % 16] + SINES[16 * $number + i + k];
                    a = b + turned(a + $mix(b, c, d) + add(0), $queue[0]);
                    d = a + turned(d + $mix(a, b, c) + add(1), $queue[1]);
                    c = d + turned(c + $mix(d, a, b) + add(2), $queue[2]);
                    b = c + turned(b + $mix(c, d, a) + add(3), $queue[3]);
                }
            };
        }
        round!(0, |x, y, z| z ^ (x & (y ^ z)), |i| i, [7, 12, 17, 22]);
        round!(1, |x, y, z| y ^ (z & (x ^ y)), |i| 5 * i + 1, [5, 9, 14, 20]);
        round!(2, |x, y, z| x ^ y ^ z, |i| 3 * i + 5, [4, 11, 16, 23]);
        round!(3, |x: u32x16<S>, y, z: u32x16<S>| y ^ (x | !z), |i| 7 * i, [6, 10, 15, 21]);
        [a, b, c, d] = [a + before[0], b + before[1], c + before[2], d + before[3]];
    }
    let ends = [a, b, c, d].map(<[u32; LANES]>::from);
    *states = std::array::from_fn(|lane| ends.map(|word| word[lane]));
}

#[inline(always)]
fn turned<S: Simd>(value: u32x16<S>, bits: u32) -> u32x16<S> {
    (value << bits) | (value >> (32 - bits))
}

/// The words of a block of each stream: the first words of all, their second words, and so on. Four times the rows are dealt
/// like two halves of a pack of cards, which makes columns of them.
#[inline(always)]
fn words<S: Simd>(simd: S, blocks: [&[u8; BLOCK]; LANES]) -> [u32x16<S>; 16] {
    let mut rows = blocks.map(|block| {
        let words = block.as_chunks().0;
        u32x16::simd_from(simd, std::array::from_fn(|n| u32::from_le_bytes(words[n])))
    });
    for _ in 0..4 {
        rows = std::array::from_fn(|n| {
            let (low, high) = (rows[n / 2], rows[n / 2 + 8]);
            if n % 2 == 0 { low.zip_low(high) } else { low.zip_high(high) }
        });
    }
    rows
}
