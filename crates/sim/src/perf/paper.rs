//! The papers' tables and figures: what was run for each, and what was published. The figures of the text on choosy
//! initiators are among them.

use paper::Config;
pub use paper::Protocol;
use protocol::time::Span;

use super::many::run_all;
use super::setup::{Machines, Paper, Quirks, Setup};
use super::stats::{Estimate, Outcome};

/// A table or figure of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Exhibit {
    /// 90 initiators, disks of 400 MB/s.
    Table2,
    /// 90 initiators, disks of 1000 MB/s.
    Table3,
    /// How often requests meet tentative bids.
    Table5,
    /// Latency of successive chunks of 16K, 30 initiators, 400 MB/s.
    Fig8,
    /// Throughput for 128K.
    Fig9,
    /// Throughput for 16K.
    Fig10,
    /// Sorted latency for 16K.
    Fig11,
    /// Throughput for 128K with 30 initiators.
    Fig12,
    /// Throughput for 1M with 30 initiators.
    Fig13,
    /// Figures 5 and 6 of the text on choosy initiators: what they gain, Replicast-H.
    Choosy,
    /// The same of Replicast-M, which the text does not have.
    ChoosyM,
    /// Figures 3 and 4 of that text: latencies of 1M at 1000 MB/s, without and with.
    ChoosySpikes,
}

/// What is added to a protocol's rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extra {
    /// Nothing.
    None,
    /// Windows that begin too late are given back.
    Choosy,
    /// Tentative windows are offered twice.
    DoubleBooking,
    /// Both of them.
    Both,
}

impl Extra {
    /// A short name; none for nothing.
    #[must_use]
    pub const fn name(self) -> Option<&'static str> {
        match self {
            Self::None => None,
            Self::Choosy => Some("choosy"),
            Self::DoubleBooking => Some("double booking"),
            Self::Both => Some("choosy, double booking"),
        }
    }
}

/// Chunk sizes in bytes, and how the paper writes them.
const CHUNKS: [(u32, &str); 3] = [(16 << 10, "16K"), (128 << 10, "128K"), (1 << 20, "1M")];
/// Disks, in MB/s of 2^20 bytes.
const DISKS: [u64; 2] = [400, 1_000];

impl Exhibit {
    /// Every one, in the order of the paper.
    pub const ALL: [Self; 12] = [
        Self::Table2,
        Self::Table3,
        Self::Table5,
        Self::Fig8,
        Self::Fig9,
        Self::Fig10,
        Self::Fig11,
        Self::Fig12,
        Self::Fig13,
        Self::Choosy,
        Self::ChoosyM,
        Self::ChoosySpikes,
    ];

    /// A short name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Table2 => "table2",
            Self::Table3 => "table3",
            Self::Table5 => "table5",
            Self::Fig8 => "fig8",
            Self::Fig9 => "fig9",
            Self::Fig10 => "fig10",
            Self::Fig11 => "fig11",
            Self::Fig12 => "fig12",
            Self::Fig13 => "fig13",
            Self::Choosy => "choosy",
            Self::ChoosyM => "choosy-m",
            Self::ChoosySpikes => "choosy-spikes",
        }
    }

    /// A heading.
    #[must_use]
    pub const fn title(self) -> &'static str {
        match self {
            Self::Table2 => "Table 2: 90 initiators, 90 targets, disks of 400 MB/s",
            Self::Table3 => "Table 3: 90 initiators, 90 targets, disks of 1000 MB/s",
            Self::Table5 => "Table 5: requests that arrive while a bid is tentative, 90 initiators, 1000 MB/s",
            Self::Fig8 => "Figure 8: put latency, 30 initiators, 16K chunks, disks of 400 MB/s",
            Self::Fig9 => "Figure 9: throughput, 90 initiators, 128K chunks",
            Self::Fig10 => "Figure 10: throughput, 90 initiators, 16K chunks",
            Self::Fig11 => "Figure 11: sorted put latency, 90 initiators, 16K chunks, disks of 400 MB/s",
            Self::Fig12 => "Figure 12: throughput, 30 initiators, 128K chunks",
            Self::Fig13 => "Figure 13: throughput, 30 initiators, 1M chunks",
            Self::Choosy => "Choosy initiators, Figures 5 and 6: put latency of Replicast-H, 90 initiators",
            Self::ChoosyM => "Choosy initiators: put latency of Replicast-M, 90 initiators",
            Self::ChoosySpikes => "Choosy initiators, Figures 3 and 4: 1M chunks, disks of 1000 MB/s",
        }
    }

    /// What it shows.
    #[must_use]
    pub fn cells(self) -> Vec<Cell> {
        let cells = |initiators, chunks: &[usize], disks: &[u64], protocols: &[Protocol]| {
            let mut cells = Vec::new();
            for chunk in chunks {
                for disk in disks {
                    for protocol in protocols {
                        let chunk = CHUNKS[*chunk].0;
                        cells.push(Cell { initiators, chunk, disk: *disk, protocol: *protocol, extra: Extra::None });
                    }
                }
            }
            cells
        };
        let all = &Protocol::ALL;
        let each = |cells: Vec<Cell>, extras: &[Extra]| -> Vec<Cell> {
            cells.into_iter().flat_map(|cell| extras.iter().map(move |extra| Cell { extra: *extra, ..cell })).collect()
        };
        let four = [Extra::None, Extra::Choosy, Extra::DoubleBooking, Extra::Both];
        let h = &[Protocol::ReplicastH];
        let two = &[Protocol::UchCcp, Protocol::ReplicastM];
        match self {
            Self::Table2 => cells(90, &[0, 1, 2], &DISKS[..1], all),
            Self::Table3 => cells(90, &[0, 1, 2], &DISKS[1..], all),
            Self::Table5 => cells(90, &[0, 1, 2], &DISKS[1..], &two[1..]),
            Self::Fig8 => cells(30, &[0], &DISKS[..1], two),
            Self::Fig9 => cells(90, &[1], &DISKS, all),
            Self::Fig10 => cells(90, &[0], &DISKS, all),
            Self::Fig11 => cells(90, &[0], &DISKS[..1], two),
            Self::Fig12 => cells(30, &[1], &DISKS, all),
            Self::Fig13 => cells(30, &[2], &DISKS, all),
            Self::Choosy => each(cells(90, &[1, 2], &DISKS, h), &four),
            Self::ChoosyM => each(cells(90, &[1, 2], &DISKS, &two[1..]), &four[..2]),
            Self::ChoosySpikes => each(cells(90, &[2], &DISKS[1..], h), &four[..2]),
        }
    }

    /// Whether it plots single chunks.
    #[must_use]
    pub const fn plots_chunks(self) -> bool {
        matches!(self, Self::Fig8 | Self::Fig11 | Self::ChoosySpikes)
    }

    /// Whether it is of the text on choosy initiators, or beside it.
    #[must_use]
    pub const fn is_choosy(self) -> bool {
        matches!(self, Self::Choosy | Self::ChoosyM | Self::ChoosySpikes)
    }
}

/// One run of the paper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Cell {
    /// Initiators.
    pub initiators: u32,
    /// Bytes.
    pub chunk: u32,
    /// MB/s.
    pub disk: u64,
    /// Protocol.
    pub protocol: Protocol,
    /// What is added to its rules.
    pub extra: Extra,
}

/// What the paper says of a cell.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Published {
    /// Chunks per second.
    pub chunks_per_second: f64,
    /// Share of the time in which disks work, in percent.
    pub utilisation: f64,
    /// Mean put latency in microseconds.
    pub latency: f64,
}

/// Tables 2 and 3: by disk, chunk, and UCH-CCP, Replicast-M, Replicast-H.
const PUBLISHED: [[[[f64; 3]; 3]; 3]; 2] = [
    [
        [[536_950.0, 70.6, 164.7], [635_750.0, 83.6, 139.0], [525_100.0, 69.0, 168.4]],
        [[58_400.0, 66.4, 1_401.7], [80_700.0, 90.6, 1_039.8], [73_400.0, 83.6, 1_132.6]],
        [[6_733.0, 69.6, 10_260.2], [8_067.0, 85.6, 9_210.8], [8_000.0, 84.9, 8_945.9]],
    ],
    [
        [[918_500.0, 48.1, 96.0], [907_400.0, 47.4, 97.0], [632_200.0, 32.9, 139.3]],
        [[108_900.0, 47.0, 784.7], [176_000.0, 74.7, 489.5], [127_900.0, 55.0, 673.0]],
        [[13_475.0, 48.4, 6_042.9], [19_850.0, 68.6, 4_242.0], [16_075.0, 57.1, 5_163.8]],
    ],
];

/// Table 5: microseconds between requests at a target, and the probability in percent.
const TABLE_5: [(f64, f64); 3] = [(11.0, 46.7), (50.0, 13.0), (500.0, 1.39)];

/// For how long a bid is tentative, in microseconds, as the paper rounds it.
const TENTATIVE_US: f64 = 7.0;

impl Cell {
    fn table_cell(&self) -> Option<(usize, usize)> {
        let chunk = CHUNKS.iter().position(|(bytes, _)| *bytes == self.chunk)?;
        Some((DISKS.iter().position(|d| *d == self.disk)?, chunk))
    }

    /// The chunk size as the paper writes it.
    #[must_use]
    pub fn chunk_name(&self) -> &'static str {
        self.table_cell().map_or("?", |(_, chunk)| CHUNKS[chunk].1)
    }

    /// The paper's figures for it, if it has any in a table.
    #[must_use]
    pub fn published(&self) -> Option<Published> {
        let (disk, chunk) = self.table_cell().filter(|_| self.initiators == 90 && self.extra == Extra::None)?;
        let column = match self.protocol {
            Protocol::UchCcp => 0,
            Protocol::ReplicastM => 1,
            Protocol::ReplicastH => 2,
            _ => return None,
        };
        let [chunks_per_second, utilisation, latency] = PUBLISHED[disk][chunk][column];
        Some(Published { chunks_per_second, utilisation, latency })
    }

    /// By how many percent the text on choosy initiators says that they improve such cells on average: from, to.
    #[must_use]
    pub fn improvement_published(&self) -> Option<(u32, u32)> {
        let is_choosy = self.protocol == Protocol::ReplicastH && self.extra == Extra::Choosy;
        (is_choosy && self.initiators == 90).then_some((8, 20))
    }

    /// The length of the paper's run, which the granularity of its figures gives away.
    #[must_use]
    pub const fn length(&self) -> Span {
        Span::from_millis(match (self.chunk, self.disk) {
            (0x0010_0000, 400) => 30,
            (0x0010_0000, _) => 40,
            (0x4000, 400) => 20,
            _ => 10,
        })
    }

    /// The run.
    #[must_use]
    pub fn setup(&self, seed: u64, quirks: Quirks) -> Setup {
        let mut config = Config::paper(self.protocol, self.disk << 20);
        config.choosy = matches!(self.extra, Extra::Choosy | Extra::Both);
        config.double_booking = matches!(self.extra, Extra::DoubleBooking | Extra::Both);
        let paper = Paper { config, costs: None, quirks };
        let machines = Machines::Paper(Box::new(paper));
        Setup { seed, ..Setup::new(machines, self.initiators, self.chunk, self.length()) }
    }

    /// Table 5's formula, as it should be: microseconds between requests, and the probability in percent; and the
    /// probability that is printed.
    #[must_use]
    pub fn tentative(&self) -> Option<(f64, f64, f64)> {
        let (_, chunk) = self.table_cell()?;
        let (spacing, printed) = TABLE_5[chunk];
        Some((spacing, 100.0 * (1.0 - (-TENTATIVE_US / spacing).exp()), printed))
    }
}

/// A cell as it was measured here.
#[derive(Clone, Debug)]
pub struct Measured {
    /// Which.
    pub cell: Cell,
    /// Chunks per second.
    pub chunks_per_second: Estimate,
    /// Disk utilisation in percent.
    pub utilisation: Estimate,
    /// Mean put latency of the attempts that succeeded, in microseconds.
    pub latency: Estimate,
    /// The longest put latency of all runs, in microseconds.
    pub most: f64,
    /// Choices that were given back because they began too late, and windows that were offered twice and lost, in percent
    /// of the puts.
    pub given_back: (f64, f64),
    /// Microseconds between the requests to a target, and how many percent of them meet a tentative bid.
    pub requests: Option<(f64, f64)>,
    /// Latencies of the chunks of the first seed's run in order, in microseconds, where a figure wants them.
    pub series: Vec<f64>,
    /// Events handled in all runs.
    pub events: u64,
}

impl Measured {
    /// Ours over the paper's throughput.
    #[must_use]
    pub fn ratio(&self) -> Option<f64> {
        self.cell.published().map(|paper| self.chunks_per_second.mean / paper.chunks_per_second)
    }

    /// What is known of a cell that is more than a tenth off.
    #[must_use]
    pub fn remark(&self) -> Option<&'static str> {
        let off = self.ratio().filter(|ratio| (ratio - 1.0).abs() > 0.1)?;
        Some(match (self.cell.chunk >= 1 << 20, off > 1.0) {
            (true, _) => {
                "a run holds only two or three chunks for each initiator, so that what is not finished at its end \
                 decides, and the paper's single run has a sampling error of several per cent"
            }
            (false, true) => {
                "the papers' simulator lets its clock run on while a node has something to send, so that frames and \
                 requests leave late, most of all where a chunk takes little time"
            }
            (false, false) => "unexplained: the rules that are known do not account for it",
        })
    }
}

/// Runs what the exhibits show, each cell with seeds 1 to `seeds`, each only once.
///
/// # Errors
/// Why a run cannot be made.
pub fn reproduce(
    exhibits: &[Exhibit],
    seeds: u64,
    quirks: Quirks,
    threads: usize,
    progress: &(dyn Fn(f64, usize) + Sync),
) -> Result<Vec<Measured>, String> {
    let mut cells: Vec<Cell> = exhibits.iter().flat_map(|exhibit| exhibit.cells()).collect();
    cells.sort_unstable();
    cells.dedup();
    let plotted = |cell: &Cell| exhibits.iter().any(|e| e.plots_chunks() && e.cells().contains(cell));
    let setup = |cell: &Cell, seed| Setup { keep_series: seed == 1 && plotted(cell), ..cell.setup(seed, quirks) };
    let setups: Vec<Setup> = cells.iter().flat_map(|cell| (1..=seeds).map(move |seed| setup(cell, seed))).collect();
    let count = setups.len();
    let outcomes = run_all(&setups, threads, &|done| progress(done, count)).map_err(|(_, why)| why)?;
    let runs = cells.iter().zip(outcomes.chunks(seeds.max(1) as usize));
    Ok(runs.map(|(cell, outcomes)| measured(*cell, outcomes)).collect())
}

fn measured(cell: Cell, outcomes: &[Outcome]) -> Measured {
    let estimate = |of: &dyn Fn(&Outcome) -> f64| Estimate::of(&outcomes.iter().map(of).collect::<Vec<_>>());
    let sum = |of: &dyn Fn(&Outcome) -> u64| outcomes.iter().map(of).sum::<u64>() as f64;
    let requests = sum(&|o| o.requests.0);
    let puts = sum(&|o| o.chunks).max(1.0);
    Measured {
        cell,
        chunks_per_second: estimate(&|o| o.chunks_per_second),
        utilisation: estimate(&|o| 100.0 * o.disk_utilisation),
        latency: estimate(&|o| o.attempt.mean() / 1e3),
        most: outcomes.iter().map(|o| o.attempt.max() as f64 / 1e3).fold(0.0, f64::max),
        given_back: (100.0 * sum(&|o| o.cancelled) / puts, 100.0 * sum(&|o| o.rejected) / puts),
        requests: (requests > 0.0).then(|| {
            let spacing = sum(&|o| o.measured) / 1e3 * 90.0 / requests;
            (spacing, 100.0 * sum(&|o| o.requests.1) / requests)
        }),
        series: outcomes.first().map(|o| o.series.iter().map(|ns| *ns as f64 / 1e3).collect()).unwrap_or_default(),
        events: outcomes.iter().map(|o| o.events).sum(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rules are right when every cell of Tables 2 and 3 comes out: 5 % for UCH-CCP, 8 % for -M, 10 % for -H.
    #[test]
    fn the_tables_of_the_paper_come_out() {
        let all = [Exhibit::Table2, Exhibit::Table3];
        let measured = reproduce(&all, 6, Quirks::default(), 2, &|_, _| ()).unwrap();
        let mut compared = 0;
        for measured in measured {
            let Some(ratio) = measured.ratio() else { continue };
            let tolerance = match measured.cell.protocol {
                Protocol::UchCcp => 0.05,
                Protocol::ReplicastM => 0.08,
                _ => 0.10,
            };
            assert!((ratio - 1.0).abs() <= tolerance, "{:?}: {ratio:.3} of the paper's", measured.cell);
            compared += 1;
        }
        assert_eq!(compared, 18);
    }

    /// The text's gain at 1M and 1000 MB/s, and the end of its spikes.
    #[test]
    fn choosy_initiators_gain_and_their_spikes_are_gone() {
        let measured = reproduce(&[Exhibit::ChoosySpikes], 10, Quirks::default(), 2, &|_, _| ()).unwrap();
        let [plain, choosy] = &measured[..] else { panic!("{measured:?}") };
        assert_eq!((plain.cell.extra, choosy.cell.extra), (Extra::None, Extra::Choosy));
        assert!(choosy.latency.mean < plain.latency.mean, "{:?} {:?}", choosy.latency, plain.latency);
        assert!(choosy.most < plain.most, "{} {}", choosy.most, plain.most);
        assert!(choosy.given_back.0 > 0.0 && plain.given_back.0 == 0.0);
    }

    #[test]
    fn the_formula_of_table_5_gives_what_is_printed() {
        for cell in Exhibit::Table5.cells() {
            let (_, formula, printed) = cell.tentative().unwrap();
            assert!((formula / printed - 1.0).abs() < 0.02, "{formula} {printed}");
        }
    }

    /// What the last hundredth and the queued work are worth.
    #[test]
    fn quirks_move_the_figures_the_way_they_must() {
        let cell =
            Cell { initiators: 90, chunk: 128 << 10, disk: 400, protocol: Protocol::ReplicastM, extra: Extra::None };
        let run = |quirks| super::super::run(&cell.setup(1, quirks)).unwrap();
        let plain = run(Quirks::default());
        let uncounted = run(Quirks { last_hundredth: true, ..Quirks::default() });
        let queued = run(Quirks { scheduled_work: true, ..Quirks::default() });
        let late = run(Quirks { late_frames: Span::from_micros(2), ..Quirks::default() });
        assert!(uncounted.chunks < plain.chunks && uncounted.chunks * 100 > plain.chunks * 96);
        assert!(queued.disk_utilisation > plain.disk_utilisation && queued.chunks == plain.chunks);
        assert!(late.attempt.mean() > plain.attempt.mean());
        // Initiators that do not begin together meet fewer tentative bids.
        let large = Cell { chunk: 1 << 20, disk: 1_000, ..cell };
        let first_wave = |staggered_start| {
            let runs = 1..=4;
            let quirks = Quirks { staggered_start, ..Quirks::default() };
            runs.map(|seed| super::super::run(&large.setup(seed, quirks)).unwrap().aborted).sum::<u64>()
        };
        assert!(first_wave(Span::from_micros(100)) < first_wave(Span::ZERO));
    }
}
