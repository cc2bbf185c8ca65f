//! Figure 9 of the paper on parity in the network: a writer sends data and parity to three storage nodes, or sends data
//! alone to a computer that stands for a programmable switch. That computer splits the data, computes the parity and
//! sends both on. The same is done with our machines.
//!
//! # The paper's testbed
//!
//! Links of InfiniBand FDR (56 Gb/s, of 66 bits on the wire 64 are data), 2+1, no disks. The text gives three figures:
//! with the switch the writer is 14 % faster with stripes of 8 KB and 44 % with 64 KB, and reaches 5,548 MB/s (section
//! 5). A model needs as many costs ([`Costs`]), so these are found from the figures for 8 KB and 64 KB, and what is
//! between them follows. It is not known where the paper would differ, as it has no other number.
//!
//! # Ours
//!
//! Our initiator, targets and aggregator on a network of the same links (`perf`), with disks that take no time: the initiator negotiates
//! each stripe with a group of nine, and sends the parity itself, or not.

use protocol::time::Span;

use crate::perf::{Scenario, run};

/// Sizes of a stripe, of which two are data and one is parity, in KB of 2^10.
pub const STRIPES: [u64; 7] = [4, 8, 16, 32, 64, 128, 256];
/// What the text says of how much faster it is with the switch: KB, percent.
const PUBLISHED: [(u64, f64); 2] = [(8, 14.0), (64, 44.0)];
/// Most that a switch can gain with 2+1, percent: the writer sends 2 in place of 3.
pub const BOUND: f64 = 50.0;

/// Stripes of data, and of parity.
const DATA: u64 = 2;
const PARITY: u64 = 1;
/// Stripes that are sent in a run of the model, and that fit into a ring buffer.
const COUNT: usize = 4_000;
const RING: usize = 32;

/// The node that computes the parity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum By {
    /// The writer, which sends it.
    Writer,
    /// The node in between.
    Switch,
}

/// What things take on the paper's testbed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Costs {
    /// Bytes per second of a link: what the standard says.
    pub link: u64,
    /// For each message (an RDMA write) at its sender, beside its bytes: from the writer's own parity at 64 KB, which is 5,548 MB/s less 44 %.
    pub message: Span,
    /// For each stripe of data and parity at the switch, which takes two messages and sends three: from the 14 % at 8 KB.
    pub stripe: Span,
    /// Bytes of data per second that go through the exclusive or: from the 5,548 MB/s.
    pub parity: u64,
}

impl Costs {
    /// See the fields.
    pub const PAPER: Self = Self {
        link: 56_000_000_000 / 8 / 66 * 64,
        message: Span::from_nanos(1_690),
        stripe: Span::from_nanos(5_330),
        parity: 7_170_000_000,
    };
}

/// What a writer reaches with stripes of so many bytes, in bytes of data per second: each message waits for the one before it at its port,
/// and the switch's thread takes a stripe when all of it has come and there is room for what it sends.
#[must_use]
pub fn model(by: By, stripe: u64, costs: &Costs) -> f64 {
    let message = (costs.message + Span::of_transfer(stripe, costs.link)).as_nanos();
    let computes = (costs.stripe + Span::of_transfer(DATA * stripe, costs.parity)).as_nanos();
    let sent = match by {
        By::Writer => DATA + PARITY,
        By::Switch => DATA,
    };
    // When the writer's port, the switch's thread, and its ports to the storage nodes are through with each stripe.
    let (mut writer, mut thread, mut ports) = (0, 0, 0);
    let mut through: Vec<u64> = Vec::with_capacity(COUNT);
    for nth in 0..COUNT {
        // A place in the ring is free when what was in it has been sent.
        let room = nth.checked_sub(RING).map_or(0, |before| through[before]);
        writer = writer.max(room) + sent * message;
        match by {
            By::Writer => through.push(writer),
            By::Switch => {
                thread = thread.max(writer) + computes;
                ports = ports.max(thread) + message;
                through.push(ports);
            }
        }
    }
    let half = COUNT / 2;
    let took = through[COUNT - 1] - through[half - 1];
    (DATA * stripe) as f64 * half as f64 * 1e9 / took as f64
}

/// What our initiator reaches, in bytes of data per second, when each message costs its nodes so much of a processor.
///
/// # Errors
/// The scenario cannot be: a line that says why.
pub fn ours(by: By, stripe: u64, message: Span, seed: u64) -> Result<f64, String> {
    let aggregators = u8::from(by == By::Switch);
    let mbit = Costs::PAPER.link * 8 / 1_000_000;
    let text = format!(
        "profile = \"product\"\nprotocol = \"replicast-h\"\ncode = \"2+1\"\naggregators = {aggregators}\n\
         initiators = 1\ntargets = 9\ndepth = 32\nchunk = \"{}B\"\nlink_mbit_per_s = {mbit}\n\
         disk_mb_per_s = 1000000\ncpu_message = \"{}ns\"\nwarm_up = \"5ms\"\nlength = \"25ms\"\nseed = {seed}\n",
        DATA * stripe,
        message.as_nanos(),
    );
    let setup = Scenario::parse("Figure 9", &text, &[]).map_err(|error| error.to_string())?.setup;
    let outcome = run(&setup)?;
    let wrong = outcome.product.as_ref().map_or(0, |product| product.failed + product.undurable);
    if wrong > 0 {
        return Err(format!("{wrong} puts failed, or were acknowledged too soon"));
    }
    Ok(outcome.chunks_per_second * (DATA * stripe) as f64)
}

/// How many percent the second is above the first.
#[must_use]
pub fn gain(writer: f64, switch: f64) -> f64 {
    100.0 * (switch / writer - 1.0)
}

/// What the text says for stripes of so many bytes, percent.
#[must_use]
pub fn published(stripe: u64) -> Option<f64> {
    PUBLISHED.iter().find(|(kb, _)| kb << 10 == stripe).map(|(_, gain)| *gain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_gains_what_the_paper_says() {
        let of = |by, kb: u64| model(by, kb << 10, &Costs::PAPER);
        for (kb, gains) in PUBLISHED {
            let is = gain(of(By::Writer, kb), of(By::Switch, kb));
            assert!((is - gains).abs() < 1.0, "{kb} KB: {is} is not {gains}");
        }
        assert!((of(By::Switch, 64) / 5_548e6 - 1.0).abs() < 0.01, "{}", of(By::Switch, 64));
        let gains = STRIPES.map(|kb| gain(of(By::Writer, kb), of(By::Switch, kb)));
        assert!(gains.is_sorted() && gains[6] <= BOUND, "{gains:?}");
        // Without what its thread needs, the switch gains all that can be gained.
        let free = Costs { stripe: Span::ZERO, parity: u64::MAX, ..Costs::PAPER };
        let all = gain(model(By::Writer, 8 << 10, &free), model(By::Switch, 8 << 10, &free));
        assert!((all - BOUND).abs() < 0.5, "{all}");
    }

    #[test]
    fn ours_gains_nearly_all_that_can_be_gained() {
        for (kb, least) in [(8, 30.0), (64, 48.0)] {
            let of = |by| ours(by, kb << 10, Span::from_nanos(100), 1).unwrap();
            let is = gain(of(By::Writer), of(By::Switch));
            assert!(is >= least, "{kb} KB: {is} %");
        }
    }
}
