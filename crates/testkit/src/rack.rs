//! Building the rack, looking at it, and taking it down.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use serde_json::Value;

use crate::command::{ip, ip_batch, run, tc};
use crate::package::{find_or_install, in_path};
use crate::process::Process;

/// Namespaces of all racks begin with this; then follow the process that owns it, the rack's number, and the place.
const PREFIX: &str = "rack";
/// Hosts that one rack may have: their addresses differ in the last byte.
const HOSTS: usize = 250;

/// What a rack looks like.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Servers, 1 to 250.
    pub hosts: usize,
    /// MTU of every interface, bytes.
    pub mtu: u32,
    /// Megabits per second of every cable in each direction; `None` is as fast as the machine copies.
    pub rate_mbit: Option<u32>,
    /// How long a datagram may wait at either end of a cable, milliseconds: what would wait longer is dropped.
    pub queue_ms: u32,
    /// Whether datagrams of DSCP EF (control) go before all that waits at either end of a cable.
    pub control_first: bool,
    /// Whether the switch learns which hosts listen to which multicast group. One that does not sends multicast to all.
    pub snooping: bool,
    /// Whether its network is IPv6. Else it is IPv4.
    pub ipv6: bool,
}

impl Shape {
    /// What a rack looks like if nothing else is said.
    pub const USUAL: Self = Self {
        hosts: 10,
        mtu: 9_000,
        rate_mbit: Some(1_000),
        queue_ms: 20,
        control_first: false,
        snooping: true,
        ipv6: false,
    };
}

impl Default for Shape {
    fn default() -> Self {
        Self::USUAL
    }
}

/// Lets a thread enter a host.
#[derive(Debug)]
pub struct Namespace(File);

impl Namespace {
    /// Moves the calling thread to the host, for good.
    ///
    /// # Errors
    /// The system refuses.
    pub fn enter(&self) -> anyhow::Result<()> {
        move_into_link_name_space(self.0.as_fd(), Some(LinkNameSpaceType::Network))
            .context("the namespace of a host cannot be entered")
    }
}

/// A running rack. Host `n` has the address `10.77.0.(n+1)`, or `fd77::(n+1)`, on its interface `eth0`, and a loopback
/// interface.
#[derive(Debug)]
pub struct Rack {
    name: String,
    hosts: usize,
    queue_ms: u32,
    control_first: bool,
    ipv6: bool,
}

impl Rack {
    /// Why no rack of this family can be built on this machine, if so.
    #[must_use]
    pub fn obstacle(ipv6: bool) -> Option<String> {
        if ipv6 && !Path::new("/proc/sys/net/ipv6").exists() {
            return Some("this machine's kernel has no IPv6".to_owned());
        }
        if !rustix::process::geteuid().is_root() {
            return Some("network namespaces need root: run it with sudo".to_owned());
        }
        if let Err(reason) = find_or_install("iproute2", || in_path("tc")) {
            return Some(reason);
        }
        // A bare switch with a cable: what only the machine, and not this crate, can fail at.
        let rack = Self { name: unique_name(), hosts: 0, queue_ms: 20, control_first: false, ipv6 };
        let switch = rack.switch();
        let attempt = ip(&format!("netns add {switch}"))
            .and_then(|_| ip(&format!("-n {switch} link add br0 type bridge mcast_snooping 1")))
            .and_then(|_| ip(&format!("-n {switch} link add p0 type veth peer name p1")))
            .and_then(|_| rack.limit(&switch, "p0", 1_000))
            .and_then(|()| ip(&format!("netns exec {switch} ip link show br0")))
            .and_then(|_| run("bridge", &["-n", &switch, "mdb", "show"], ""));
        attempt
            .err()
            .map(|error| format!("network namespaces cannot be had (ip, tc and bridge come with iproute2): {error:#}"))
    }

    /// Builds a rack, after removing those whose process is gone.
    ///
    /// # Errors
    /// A command of the system fails: with its words. Nothing is left behind.
    pub fn build(shape: &Shape) -> anyhow::Result<Self> {
        ensure!((1..=HOSTS).contains(&shape.hosts), "a rack has 1 to {HOSTS} hosts, not {}", shape.hosts);
        remove_stale()?;
        // From here on dropping it removes what there is of it.
        let Shape { hosts, queue_ms, control_first, ipv6, .. } = *shape;
        let rack = Self { name: unique_name(), hosts, queue_ms, control_first, ipv6 };
        let (switch, mtu) = (rack.switch(), shape.mtu);
        let mut lines = vec![format!("netns add {switch}")];
        for host in 0..rack.hosts {
            let name = rack.host(host);
            lines.push(format!("netns add {name}"));
            lines.push(format!("link add eth0 netns {name} type veth peer name p{host} netns {switch}"));
        }
        ip_batch(None, &lines)?;
        rack.set_up_switch(mtu, shape.snooping)?;
        for host in 0..rack.hosts {
            ip_batch(Some(&rack.host(host)), &rack.host_lines(host, mtu))?;
            if let Some(rate) = shape.rate_mbit {
                rack.set_rate(host, rate)?;
            }
        }
        Ok(rack)
    }

    fn set_up_switch(&self, mtu: u32, snooping: bool) -> anyhow::Result<()> {
        // A switch floods until a querier has been there for as long as members may take to answer it; and a report of
        // membership that it missed comes again when it asks, by default half a minute later. In hundredths of a second.
        let mut lines = vec![
            "link add br0 type bridge mcast_query_response_interval 10".to_owned(),
            "link set br0 type bridge mcast_startup_query_interval 100 mcast_query_interval 200".to_owned(),
            format!("link set br0 type bridge mcast_snooping {} mcast_querier 1", u8::from(snooping)),
            format!("link set br0 mtu {mtu} addrgenmode none up"),
        ];
        if self.ipv6 {
            // The querier for members over IPv6 needs a link-local address.
            lines.push("address add fe80::77:ffff/64 dev br0 nodad".to_owned());
        }
        lines.extend((0..self.hosts).map(|host| format!("link set p{host} mtu {mtu} addrgenmode none master br0 up")));
        ip_batch(Some(&self.switch()), &lines)
    }

    fn host_lines(&self, host: usize, mtu: u32) -> Vec<String> {
        let (address, hardware) = (self.address(host), hardware(host));
        // A real cable carries datagrams one by one: what the kernel would hand over in one piece is cut here, so that
        // each can be lost alone. Addresses are used at once: nobody else has them.
        let mut lines = vec![
            "link set lo up".to_owned(),
            format!("link set eth0 address {hardware} mtu {mtu} gso_max_segs 1 addrgenmode none up"),
        ];
        if self.ipv6 {
            lines.push(format!("address add fe80::77:{:x}/64 dev eth0 nodad", host + 1));
            lines.push(format!("address add {address}/64 dev eth0 nodad"));
        } else {
            lines.push(format!("address add {address}/24 dev eth0"));
            lines.push("route add 239.0.0.0/8 dev eth0".to_owned());
        }
        lines
    }

    /// Lets every host know the others' interfaces, so that none has to ask by multicast, as IPv6 does.
    pub(crate) fn introduce(&self) -> anyhow::Result<()> {
        for host in 0..self.hosts {
            let others = (0..self.hosts).filter(|other| *other != host);
            let line =
                |n| format!("neighbor replace {} lladdr {} dev eth0 nud permanent", self.address(n), hardware(n));
            ip_batch(Some(&self.host(host)), &others.map(line).collect::<Vec<_>>())?;
        }
        Ok(())
    }

    /// Limits a host's cable to so many megabits per second in each direction.
    ///
    /// # Errors
    /// The cable's ends cannot be limited.
    pub fn set_rate(&self, host: usize, rate_mbit: u32) -> anyhow::Result<()> {
        self.limit(&self.host(host), "eth0", rate_mbit)?;
        self.limit(&self.switch(), &format!("p{host}"), rate_mbit)
    }

    fn limit(&self, namespace: &str, device: &str, rate: u32) -> anyhow::Result<()> {
        let queue = self.queue_ms;
        if !self.control_first {
            return tc(&format!(
                "-n {namespace} qdisc replace dev {device} root tbf rate {rate}mbit burst 64kb latency {queue}ms"
            ));
        }
        // A class for control that goes first, and one for all else; each may have the whole cable.
        let (of, waits) = (format!("-n {namespace}"), u64::from(rate) * 125 * u64::from(queue));
        let class = |id: u32, least: u32, first: u32| {
            format!(
                "{of} class replace dev {device} parent 1:1 classid 1:{id} htb rate {least}mbit ceil {rate}mbit prio {first} \
                 burst 64kb cburst 64kb quantum 60000"
            )
        };
        let control = (rate / 10).max(1);
        let protocol = if self.ipv6 { "ipv6" } else { "ip" };
        let (family, field) = if self.ipv6 { ("ip6", "priority") } else { ("ip", "dsfield") };
        let _ = tc(&format!("{of} qdisc del dev {device} root"));
        for line in [
            format!("{of} qdisc replace dev {device} root handle 1: htb default 20"),
            format!("{of} class replace dev {device} parent 1: classid 1:1 htb rate {rate}mbit burst 64kb cburst 64kb"),
            class(10, control, 0),
            class(20, (rate - control).max(1), 1),
            format!("{of} qdisc replace dev {device} parent 1:10 handle 10: bfifo limit {waits}"),
            format!("{of} qdisc replace dev {device} parent 1:20 handle 20: bfifo limit {waits}"),
            format!(
                "{of} filter replace dev {device} parent 1: protocol {protocol} prio 1 u32 match {family} {field} 0xb8 0xfc \
                 flowid 1:10"
            ),
        ] {
            tc(&line)?;
        }
        Ok(())
    }

    /// How many hosts there are.
    #[must_use]
    pub fn hosts(&self) -> usize {
        self.hosts
    }

    pub(crate) fn host(&self, host: usize) -> String {
        format!("{}-h{host}", self.name)
    }

    pub(crate) fn switch(&self) -> String {
        format!("{}-sw", self.name)
    }

    /// The namespaces of this rack.
    #[must_use]
    pub fn namespaces(&self) -> Vec<String> {
        (0..self.hosts).map(|host| self.host(host)).chain([self.switch()]).collect()
    }

    /// The address of a host.
    #[must_use]
    pub fn address(&self, host: usize) -> IpAddr {
        let n = host as u8 + 1;
        if self.ipv6 {
            Ipv6Addr::new(0xfd77, 0, 0, 0, 0, 0, 0, n.into()).into()
        } else {
            Ipv4Addr::new(10, 77, 0, n).into()
        }
    }

    /// Whether its network is IPv6.
    #[must_use]
    pub fn is_ipv6(&self) -> bool {
        self.ipv6
    }

    /// Does some work on a host: what it connects to is what that host reaches.
    ///
    /// # Errors
    /// The host cannot be entered.
    ///
    /// # Panics
    /// When `work` panics.
    pub fn visit<T: Send>(&self, host: usize, work: impl FnOnce() -> T + Send) -> anyhow::Result<T> {
        let namespace = self.namespace(host)?;
        // A thread is in one place; the others stay where they are.
        std::thread::scope(|scope| {
            let visitor = scope.spawn(move || namespace.enter().map(|()| work()));
            visitor.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// What lets a thread enter a host.
    ///
    /// # Errors
    /// The host is gone.
    pub fn namespace(&self, host: usize) -> anyhow::Result<Namespace> {
        let path = format!("/run/netns/{}", self.host(host));
        File::open(&path).map(Namespace).with_context(|| format!("the namespace {path} cannot be opened"))
    }

    /// A command that runs on a host.
    #[must_use]
    pub fn command(&self, host: usize, program: &Path) -> Command {
        let mut command = Command::new("ip");
        // It replaces itself by the program: whoever kills the child kills the program.
        command.args(["netns", "exec", &self.host(host)]).arg(program);
        command
    }

    /// Starts a command made by [`Rack::command`]; what it says goes to `log`.
    ///
    /// # Errors
    /// It cannot be started, or the log not be written.
    pub fn start(&self, command: Command, log: &Path) -> anyhow::Result<Process> {
        Process::start(command, log)
    }

    /// Bytes that a host's interface has sent and received, headers included.
    ///
    /// # Errors
    /// The interface cannot be asked.
    pub fn traffic(&self, host: usize) -> anyhow::Result<(u64, u64)> {
        let text = ip(&format!("-n {} -j -s link show dev eth0", self.host(host)))?;
        let value: Value = serde_json::from_str(&text).context("ip answers with JSON")?;
        let bytes = |direction| value.pointer(&format!("/0/stats64/{direction}/bytes")).and_then(Value::as_u64);
        bytes("tx").zip(bytes("rx")).context("an interface has counters")
    }

    /// The multicast groups that the switch knows, each with the hosts it forwards to; but for those that IPv6 itself needs
    /// on a link.
    ///
    /// # Errors
    /// The switch cannot be asked.
    pub fn groups(&self) -> anyhow::Result<BTreeMap<IpAddr, BTreeSet<usize>>> {
        let text = run("bridge", &["-n", &self.switch(), "-j", "mdb", "show"], "")?;
        let value: Value = serde_json::from_str(&text).context("bridge answers with JSON")?;
        let mut groups: BTreeMap<IpAddr, BTreeSet<usize>> = BTreeMap::new();
        for entry in value.pointer("/0/mdb").and_then(Value::as_array).into_iter().flatten() {
            let field = |name| entry.get(name).and_then(Value::as_str);
            let group = field("grp").and_then(|group| group.parse().ok());
            let group = group.filter(|group| !matches!(group, IpAddr::V6(group) if group.segments()[0] == 0xff02));
            let host = field("port").and_then(|port| port.strip_prefix('p')).and_then(|port| port.parse().ok());
            if let (Some(group), Some(host)) = (group, host) {
                groups.entry(group).or_default().insert(host);
            }
        }
        Ok(groups)
    }

    /// The multicast groups that a host has joined on its interface, but for those of its link itself.
    ///
    /// # Errors
    /// The host cannot be asked.
    pub fn joined(&self, host: usize) -> anyhow::Result<BTreeSet<IpAddr>> {
        let text = ip(&format!("-n {} -j maddr show dev eth0", self.host(host)))?;
        let value: Value = serde_json::from_str(&text).context("ip answers with JSON")?;
        let entries = value.pointer("/0/maddr").and_then(Value::as_array).into_iter().flatten();
        let groups = entries.filter_map(|entry| entry.get("address")?.as_str()?.parse().ok());
        let is_ours = |group: &IpAddr| match group {
            IpAddr::V4(group) => group.octets()[0] == 239,
            IpAddr::V6(group) => !matches!(group.segments()[0], 0xff01 | 0xff02),
        };
        Ok(groups.filter(is_ours).collect())
    }

    /// IP fragments that a host has made or put together.
    ///
    /// # Errors
    /// The host's counters cannot be read.
    pub fn fragments(&self, host: usize) -> anyhow::Result<u64> {
        let read = |file| ip(&format!("netns exec {} cat /proc/net/{file}", self.host(host)));
        let (v4, v6) = (read("snmp")?, if self.ipv6 { read("snmp6")? } else { String::new() });
        let mut lines = v4.lines().filter(|line| line.starts_with("Ip:"));
        let (names, values) = lines.next().zip(lines.next()).context("/proc/net/snmp has names and values of IP")?;
        let mut counters: BTreeMap<&str, &str> = names.split(' ').zip(values.split(' ')).collect();
        counters.extend(v6.lines().filter_map(|line| line.split_once(char::is_whitespace)));
        let count = |name| -> anyhow::Result<u64> {
            let value = counters.get(name).with_context(|| format!("there is no counter {name}"))?;
            value.trim().parse().with_context(|| format!("{name} is no number"))
        };
        let v4 = count("FragCreates")? + count("ReasmReqds")?;
        Ok(if self.ipv6 { v4 + count("Ip6FragCreates")? + count("Ip6ReasmReqds")? } else { v4 })
    }
}

impl Drop for Rack {
    fn drop(&mut self) {
        for namespace in self.namespaces() {
            remove(&namespace);
        }
    }
}

/// The address of a host's interface on its cable.
fn hardware(host: usize) -> String {
    format!("02:77:00:00:00:{:02x}", host + 1)
}

fn unique_name() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    format!("{PREFIX}-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Whether something is called `rack-PID-…`, and there is no such process any more.
pub(crate) fn is_stale(name: &str) -> bool {
    let mut parts = name.split('-');
    let ours = parts.next() == Some(PREFIX);
    let owner = parts.next().and_then(|pid| pid.parse::<u32>().ok());
    ours && owner.is_some_and(|pid| !lives(pid))
}

/// Whether something is called after this process.
pub(crate) fn is_own(name: &str) -> bool {
    name.starts_with(&format!("{PREFIX}-{}-", std::process::id()))
}

/// Whether there is such a process. One that has ended, and that its parent has not asked for, is none.
fn lives(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The state follows the name, which may have any characters, in brackets.
    let state = stat.rsplit_once(')').and_then(|(_, rest)| rest.trim_start().chars().next());
    state.is_some_and(|state| state != 'Z' && state != 'X')
}

/// Removes racks of processes that are gone; how many namespaces that were.
///
/// # Errors
/// The system does not list its namespaces.
pub fn remove_stale() -> anyhow::Result<usize> {
    remove_all(is_stale)
}

/// Removes the racks of this process, which is about to end.
///
/// # Errors
/// The system does not list its namespaces.
pub fn remove_own() -> anyhow::Result<usize> {
    remove_all(is_own)
}

fn remove_all(these: impl Fn(&str) -> bool) -> anyhow::Result<usize> {
    let list = ip("netns list")?;
    let names = list.lines().filter_map(|line| line.split(' ').next()).filter(|name| these(name));
    Ok(names.filter(|name| remove(name)).count())
}

/// Kills what runs in a namespace, and deletes it; its interfaces, and with them the cables, go too. Whether it was deleted.
fn remove(namespace: &str) -> bool {
    // All of this is best effort: a namespace that was never made has no processes and cannot be deleted.
    for pid in ip(&format!("netns pids {namespace}")).unwrap_or_default().lines() {
        if let Some(pid) = pid.parse().ok().and_then(Pid::from_raw) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
    ip(&format!("netns delete {namespace}")).is_ok()
}
