//! Faults: cut cables, lost datagrams.

use anyhow::{Context, bail};

use crate::command::{ip, run};
use crate::package::{find_or_install, in_path};
use crate::rack::Rack;

impl Rack {
    /// Cuts the cable between a host and the switch.
    ///
    /// # Errors
    /// The switch refuses.
    pub fn cut(&self, host: usize) -> anyhow::Result<()> {
        ip(&format!("-n {} link set p{host} down", self.switch())).map(drop)
    }

    /// Heals what [`Rack::cut`] cut.
    ///
    /// # Errors
    /// The switch refuses.
    pub fn heal(&self, host: usize) -> anyhow::Result<()> {
        ip(&format!("-n {} link set p{host} up", self.switch())).map(drop)
    }

    /// Whether the switch carries multicast at all. Where it does not, it is as with switches (and clouds) that drop what is
    /// addressed to a group: nobody gets it.
    ///
    /// # Errors
    /// The switch refuses.
    pub fn set_multicast(&self, carried: bool) -> anyhow::Result<()> {
        let (switch, flood) = (self.switch(), if carried { "on" } else { "off" });
        if !carried && self.is_ipv6() {
            self.introduce()?;
        }
        ip(&format!("-n {switch} link set br0 type bridge mcast_snooping {}", u8::from(carried)))?;
        for host in 0..self.hosts() {
            let words = format!("-n {switch} link set dev p{host} mcast_flood {flood}");
            run("bridge", &words.split(' ').collect::<Vec<_>>(), "")?;
        }
        Ok(())
    }

    /// What filters the rack's family: the family and the match of a protocol for `nft`, and the command without it.
    fn filters(&self) -> (&'static str, &'static str, &'static str) {
        if self.is_ipv6() { ("ip6", "ip6 nexthdr", "ip6tables") } else { ("ip", "ip protocol", "iptables") }
    }

    /// Ends what [`Rack::lose`] began.
    ///
    /// # Errors
    /// There is nothing to end, or the system refuses.
    pub fn keep(&self, host: usize) -> anyhow::Result<()> {
        let name = self.host(host);
        let (family, _, iptables) = self.filters();
        ip(&format!("netns exec {name} nft delete table {family} rack"))
            .or_else(|nft| {
                ip(&format!("netns exec {name} {iptables} -F INPUT")).map_err(|error| error.context(format!("{nft:#}")))
            })
            .map(drop)
    }

    /// From now on a host loses so many of a thousand packets of UDP and TCP that reach it over its cable, at random; the
    /// others do not. With `nft`, or with `iptables` where that is missing.
    ///
    /// # Errors
    /// The machine has neither, or its kernel cannot: the errors of both.
    pub fn lose(&self, host: usize, permille: u32) -> anyhow::Result<()> {
        let (family, protocol, iptables) = self.filters();
        if let Err(reason) = find_or_install("nftables", || in_path("nft").or_else(|| in_path("iptables"))) {
            bail!("datagrams cannot be lost: {reason}");
        }
        let rules = format!(
            "table {family} rack {{ chain input {{ type filter hook input priority 0; \
             iifname != \"lo\" {protocol} {{ udp, tcp }} numgen random mod 1000 < {permille} counter drop; }}; }}"
        );
        let name = self.host(host);
        let Err(nft) = run("ip", &["netns", "exec", &name, "nft", &rules], "") else { return Ok(()) };
        let chance = format!("{}.{:03}", permille / 1_000, permille % 1_000);
        let drop_those_of = |protocol| {
            ip(&format!(
                "netns exec {name} {iptables} -A INPUT ! -i lo -p {protocol} -m statistic --mode random --probability {chance} -j DROP"
            ))
        };
        drop_those_of("udp")
            .and_then(|_| drop_those_of("tcp"))
            .map(drop)
            .map_err(|error| error.context(format!("{nft:#}")))
    }

    /// Packets that a host has lost since [`Rack::lose`].
    ///
    /// # Errors
    /// No filter was set to drop any.
    pub fn lost(&self, host: usize) -> anyhow::Result<u64> {
        let name = self.host(host);
        let (family, _, iptables) = self.filters();
        let count = if let Ok(table) = ip(&format!("netns exec {name} nft list table {family} rack")) {
            table.split("packets ").nth(1).and_then(|rest| rest.split(' ').next()).map(str::to_owned)
        } else {
            let rules = ip(&format!("netns exec {name} {iptables} -nvxL INPUT"))?;
            let drops = rules.lines().filter(|line| line.contains("DROP"));
            let lost = drops.filter_map(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            lost.reduce(|one, other| one + other).map(|lost| lost.to_string())
        };
        count.and_then(|count| count.parse().ok()).context("no rule counts lost datagrams: use lose first")
    }
}
