//! How fast codes are on one core: `cargo run --release -p reservoir-erasure --example speed`.

use std::time::{Duration, Instant};

use erasure::{Code, Combination};

/// Data of one chunk.
const CHUNK: usize = 1 << 20;
/// For so long each is repeated; the best of several such rounds counts.
const ROUND: Duration = Duration::from_millis(200);

/// Bytes of data a second, in 10^9.
fn rate(code: Code, combination: &Combination, outputs: usize) -> f64 {
    let each = code.fragment_len(CHUNK);
    let data: Vec<u8> =
        (0..code.data() * each).map(|n| (n as u32).wrapping_mul(0x9e37_79b9).to_be_bytes()[0]).collect();
    let inputs: Vec<&[u8]> = data.chunks(each).collect();
    let mut made = vec![vec![0; each]; outputs];
    let mut made: Vec<&mut [u8]> = made.iter_mut().map(Vec::as_mut_slice).collect();
    let round = || {
        let (begin, mut count) = (Instant::now(), 0);
        while begin.elapsed() < ROUND {
            combination.make(&inputs, &mut made);
            count += 1;
        }
        f64::from(count) * CHUNK as f64 / begin.elapsed().as_secs_f64() / 1e9
    };
    std::iter::repeat_with(round).take(5).fold(0.0, f64::max)
}

fn main() {
    println!("code  encode GB/s  decode GB/s (as much lost as may be, of data)");
    for code in ["2+1", "4+2", "6+3", "8+3", "10+4"].into_iter().filter_map(|text| text.parse::<Code>().ok()) {
        let from: Vec<usize> = (code.parity()..code.fragments()).take(code.data()).collect();
        let lost: Vec<usize> = (0..code.parity().min(code.data())).collect();
        let decode = code.decoding(&from, &lost).map(|decoding| rate(code, &decoding, lost.len()));
        println!("{code:5} {:11.2}  {:11.2}", rate(code, &code.encoding(), code.parity()), decode.unwrap_or_default());
    }
}
