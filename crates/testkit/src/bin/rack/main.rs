//! `rack`: a cluster of the real binary on a rack of network namespaces, to measure it and to break things in it.

mod bench;
mod clients;
mod compare;
mod faults;
mod figures;
mod load;
mod maintain;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use clap::{Args, Parser, Subcommand};
use testkit::{Carrier, Cluster, Plan, Rack, Shape, remove_own, remove_own_places, remove_stale, remove_stale_places};
use tokio::signal::unix::{SignalKind, signal};

/// A cluster on a rack of network namespaces: each server a namespace with a cable of its own to a switch, each cable
/// limited to a rate. Needs root and the commands ip, tc and bridge, and nft or iptables for lost datagrams. Lists are given
/// with commas. What a run leaves behind that is killed, the next one removes.
#[derive(Debug, Parser)]
#[command(name = "rack")]
struct Arguments {
    #[command(subcommand)]
    command: Task,
}

#[derive(Debug, Subcommand)]
enum Task {
    /// Measure puts and gets over the rack's cables, for each transport, and compare with what the cables can carry.
    Bench(bench::BenchArgs),
    /// Break things while clients put and get, mend them, and show how long everything took to be as before; at the end
    /// every acknowledged file is read back.
    Faults(faults::FaultArgs),
    /// Lose a target for good, add targets and take them out again, while clients put, get, list and remove: how fast all is whole
    /// again, what moves, and what the clients notice.
    #[command(
        mut_arg("targets", |arg| arg.default_value("12")),
        mut_arg("rate", |arg| arg.default_value("100")),
        // A port is handed 256 KiB at once, which have to wait somewhere.
        mut_arg("queue", |arg| arg.default_value("150")),
    )]
    Maintain(maintain::MaintainArgs),
    /// Run the scenario of this rack in the simulator, and show its puts beside those of the rack.
    Compare(compare::CompareArgs),
    /// Remove what earlier runs left behind that are no more.
    Clean {
        /// Where the targets' data were.
        #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
        data: PathBuf,
    },
}

/// The rack to build.
#[derive(Clone, Debug, Args)]
struct RackArgs {
    /// Target servers, with one target each.
    #[arg(long, value_name = "N", default_value_t = 9, value_parser = clap::value_parser!(u8).range(3..=16))]
    targets: u8,
    /// Rate of every cable in each direction, megabits per second.
    #[arg(long, value_name = "MBIT", default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(10..=100_000))]
    rate: u32,
    /// How long a datagram may wait at either end of a cable, milliseconds.
    #[arg(long, value_name = "MS", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    queue: u32,
    /// Have both ends of every cable put control (DSCP EF) before payload that waits, as switches can.
    #[arg(long)]
    control_first: bool,
    /// MTU of every interface, bytes.
    #[arg(long, value_name = "BYTES", default_value_t = 9_000, value_parser = clap::value_parser!(u32).range(576..=65_535))]
    mtu: u32,
    /// What carries messages and payload: over TCP there is no multicast.
    #[arg(long, value_enum, default_value = "udp")]
    carrier: Carrier,
    /// Encrypt what goes between nodes.
    #[arg(long)]
    encrypt: bool,
    /// Cables of IPv6.
    #[arg(long)]
    ipv6: bool,
    /// Directory under which the targets' data are: of memory, so that nine targets do not wait for one disk.
    #[arg(long, value_name = "DIR", default_value = "/dev/shm")]
    data: PathBuf,
    /// The binary to run [default: reservoir beside this program].
    #[arg(long, value_name = "FILE")]
    reservoir: Option<PathBuf>,
}

impl RackArgs {
    fn program(&self) -> anyhow::Result<PathBuf> {
        let beside = || std::env::current_exe().map(|this| this.with_file_name("reservoir"));
        let program = self.reservoir.clone().map_or_else(beside, Ok).context("this program's own path is unknown")?;
        ensure!(
            program.is_file(),
            "{} is missing: build it with `cargo build --release --package reservoir-cli`, or name it with --reservoir",
            program.display()
        );
        program.canonicalize().with_context(|| format!("{} cannot be found", program.display()))
    }

    /// Builds the rack and starts the targets.
    fn start(&self, gateways: usize) -> anyhow::Result<Cluster> {
        self.start_as(self.plan(gateways)?)
    }

    fn plan(&self, gateways: usize) -> anyhow::Result<Plan> {
        Ok(Plan {
            program: self.program()?,
            place: self.data.clone(),
            targets: self.targets.into(),
            gateways,
            spares: 0,
            group_cells: 3,
            switches: 0,
            carrier: self.carrier,
            encrypt: self.encrypt,
            shape: Shape {
                mtu: self.mtu,
                rate_mbit: Some(self.rate),
                queue_ms: self.queue,
                control_first: self.control_first,
                ipv6: self.ipv6,
                ..Shape::default()
            },
            capacity: "2GiB".to_owned(),
            out_after_seconds: 600,
            log: "warn,node=info".to_owned(),
        })
    }

    fn start_as(&self, plan: Plan) -> anyhow::Result<Cluster> {
        if let Some(reason) = Rack::obstacle(self.ipv6) {
            anyhow::bail!("no rack can be built: {reason}");
        }
        ensure!(!self.ipv6 || self.mtu >= 1_280, "IPv6 has no MTU of {}: choose 1280 or more", self.mtu);
        stop_in_order(self.data.clone())?;
        Cluster::start(plan)
    }
}

/// Takes everything down when the program is asked to stop: by Ctrl-C, or to end.
fn stop_in_order(place: PathBuf) -> anyhow::Result<()> {
    static STARTED: AtomicBool = AtomicBool::new(false);
    if STARTED.swap(true, Ordering::Relaxed) {
        return Ok(());
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    let (mut interrupt, mut end) = {
        let _here = runtime.enter();
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?)
    };
    std::thread::spawn(move || {
        runtime.block_on(async {
            tokio::select! { _ = interrupt.recv() => {}, _ = end.recv() => {} }
        });
        eprintln!("rack: stopped; everything is taken down");
        if let Err(error) = remove_own() {
            eprintln!("rack: {error:#}; `rack clean` removes the rest");
        }
        remove_own_places(&place);
        std::process::exit(130);
    });
    Ok(())
}

fn clean(data: &Path) -> anyhow::Result<()> {
    if let Some(reason) = Rack::obstacle(false) {
        anyhow::bail!("nothing can be removed: {reason}");
    }
    ensure!(data.is_dir(), "{} is no directory: --data says where the targets' data were", data.display());
    println!("{} namespaces and {} directories removed", remove_stale()?, remove_stale_places(data));
    Ok(())
}

fn main() -> std::process::ExitCode {
    let outcome = match Arguments::parse().command {
        Task::Bench(args) => bench::run(&args),
        Task::Faults(args) => faults::run(&args),
        Task::Maintain(args) => maintain::run(&args),
        Task::Compare(args) => compare::run(&args),
        Task::Clean { data } => clean(&data),
    };
    match outcome {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rack: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
