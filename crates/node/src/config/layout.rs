//! The cells of a cluster map as text, and the map that comes next.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use protocol::id::{ClusterId, Epoch, NodeId};
use protocol::map::{ClusterMap, MapError, TargetEntry};
use protocol::placement::{Cell, Layout, Placement, Shares};
use protocol::planner::{self, Plan, Wish};
use protocol::redundancy::Redundancy;
use protocol::time::Span;
use serde::{Deserialize, Serialize};

use super::{ClusterConfig, ConfigError};
use crate::atomic_file;

/// Sections `[layout]` and `[previous]`: where chunks belong, and where they belonged before.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LayoutConfig {
    /// Cells in a group. Absent only in maps of earlier versions: there it is the `group_cells` of the map.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group_cells: Option<usize>,
    /// In how many equal shares all chunks are divided.
    pub shares: u32,
    /// Draws of each group, in a map that was taken over from before there were cells in it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drawn: Vec<u8>,
    /// The ring of cells.
    #[serde(rename = "cell")]
    pub cells: Vec<CellConfig>,
}

/// Sections `[[layout.cell]]` and `[[previous.cell]]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CellConfig {
    /// Its id, which stays as long as it exists.
    pub id: u32,
    /// The ids of its targets.
    pub targets: Vec<u32>,
    /// The shares of the group that begins here, like `0-63,70`; absent: none begins here.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub shares: String,
}

impl LayoutConfig {
    fn of(layout: &Layout) -> Self {
        let cell = |cell: &Cell| CellConfig {
            id: cell.id,
            targets: cell.targets.iter().map(|id| id.0).collect(),
            shares: cell.shares.to_string(),
        };
        Self {
            group_cells: Some(layout.group_cells),
            shares: layout.shares,
            drawn: layout.drawn.clone(),
            cells: layout.cells.iter().map(cell).collect(),
        }
    }

    fn layout(&self, group_cells: usize) -> Result<Layout, String> {
        let cell = |cell: &CellConfig| {
            let shares: Shares = cell.shares.parse().map_err(|problem| format!("cell {}: {problem}", cell.id))?;
            Ok(Cell { id: cell.id, targets: cell.targets.iter().map(|id| NodeId(*id)).collect(), shares })
        };
        let group_cells = self.group_cells.unwrap_or(group_cells);
        if !(1..=10).contains(&group_cells) {
            return Err(format!("group_cells = {group_cells}: choose 1 to 10"));
        }
        let cells = self.cells.iter().map(cell).collect::<Result<Vec<Cell>, String>>()?;
        Ok(Layout { group_cells, shares: self.shares, drawn: self.drawn.clone(), cells })
    }
}

/// The numbers of failure domains, in alphabetical order.
type Domains<'c> = BTreeMap<&'c str, u16>;

fn domains<'c>(configs: &[&'c ClusterConfig]) -> Domains<'c> {
    let names = configs.iter().flat_map(|config| config.targets.iter().map(|target| target.domain.as_str()));
    let mut domains: Domains = names.map(|name| (name, 0)).collect();
    domains.values_mut().enumerate().for_each(|(n, number)| *number = n as u16);
    domains
}

impl ClusterConfig {
    /// The map for the protocol. A file without cells is taken over: each chunk is in the group in which it was.
    ///
    /// # Errors
    /// When it cannot keep the copies in different failure domains, or its cells are not those of its targets.
    pub fn map(&self) -> Result<ClusterMap, ConfigError> {
        self.numbered(&domains(&[self]))
    }

    fn numbered(&self, domains: &Domains) -> Result<ClusterMap, ConfigError> {
        let map_error = |cause| ConfigError::Map { path: self.path.clone(), cause };
        let (cluster, epoch, targets) = (ClusterId::of_name(&self.cluster), Epoch(self.epoch), self.entries(domains));
        self.check_drained()?;
        let map = match &self.layout {
            None => ClusterMap::taken_over(cluster, epoch, self.copies, self.group_cells, self.overlap, targets)
                .map_err(map_error)?,
            Some(layout) => {
                self.check_group_cells(layout)?;
                let layout = layout.layout(self.group_cells).map_err(|problem| self.value(problem))?;
                let map = ClusterMap::with_layout(cluster, epoch, self.copies, targets, layout).map_err(map_error)?;
                map.with_overlap(self.overlap)
            }
        };
        let previous = self.previous.as_ref().map(|previous| {
            let layout = previous.layout(self.group_cells).map_err(|problem| self.value(problem))?;
            Placement::new(layout).map_err(|cause| map_error(MapError::Layout(cause)))
        });
        let map = map.with_previous(previous.transpose()?);
        let map = map.with_moved(self.targets.iter().filter(|t| t.moved).map(|t| NodeId(t.id)));
        let map = map.with_moves_paused(self.moves_paused);
        let map = map.with_aggregators(self.switches.iter().map(|switch| NodeId(switch.id)));
        let map = match self.restart_within_seconds {
            Some(seconds) => map.with_restart_within(Span::from_secs(seconds.into())),
            None => map,
        };
        self.with_floor(self.with_few_copies(map)?)
    }

    /// The map, with what is kept for maintenance by the file.
    fn with_floor(&self, map: ClusterMap) -> Result<ClusterMap, ConfigError> {
        match self.maintenance_floor {
            Some(floor @ 101..) => Err(self.value(format!(
                "maintenance_floor = {floor}: write a number of percent from 0 to 100, or leave it out"
            ))),
            floor => Ok(floor.map_or(map.clone(), |floor| map.with_maintenance_floor(floor))),
        }
    }

    /// The map, with how few copies may be enough by the file.
    fn with_few_copies(&self, mut map: ClusterMap) -> Result<ClusterMap, ConfigError> {
        for (name, few) in [("min_copies", self.min_copies), ("fewest_copies", self.fewest_copies)] {
            if let Some(few) = few.filter(|few| *few == 0 || *few > self.copies) {
                let problem = format!("{name} = {few}: write a number from 1 to `copies`, or leave it out");
                return Err(self.value(problem));
            }
        }
        if let Some(few) = self.min_copies {
            map = map.with_min_copies(few);
        }
        Ok(self.fewest_copies.map_or(map.clone(), |few| map.with_fewest(few)))
    }

    fn entries(&self, domains: &Domains) -> Vec<TargetEntry> {
        let entry = |t: &super::TargetConfig| TargetEntry {
            id: NodeId(t.id),
            domain: domains.get(t.domain.as_str()).copied().unwrap_or(0),
            capacity: protocol::size::parse(&t.capacity).unwrap_or(0),
        };
        self.targets.iter().map(entry).collect()
    }

    fn value(&self, problem: String) -> ConfigError {
        ConfigError::Value { path: self.path.clone(), problem }
    }

    /// The groups of a layout stay as they are, whatever is written elsewhere in the file.
    fn check_group_cells(&self, layout: &LayoutConfig) -> Result<(), ConfigError> {
        let Some(own) = layout.group_cells.filter(|own| *own != self.group_cells) else { return Ok(()) };
        let wished = self.group_cells;
        Err(self.value(format!(
            "group_cells = {wished}, and the groups of its [layout] have {own} cells: write {own}, and change it with `reservoir \
             cluster plan --group-cells {wished}`"
        )))
    }

    /// The targets in cells take chunks, and no others.
    fn check_drained(&self) -> Result<(), ConfigError> {
        let cells = self.layout.iter().flat_map(|layout| &layout.cells);
        let placed: BTreeSet<u32> = cells.flat_map(|cell| cell.targets.iter().copied()).collect();
        let plan = "make the next map with `reservoir cluster plan`";
        for target in &self.targets {
            match (self.layout.is_some(), target.drain, placed.contains(&target.id)) {
                (false, true, _) => {
                    return Err(self.value(format!("target {} is drained, and there is no layout: {plan}", target.id)));
                }
                (true, false, false) => {
                    return Err(self.value(format!("target {} is in no cell of the layout: {plan}", target.id)));
                }
                (true, true, true) => {
                    let problem = format!("target {} is drained, and in a cell of the layout: {plan}", target.id);
                    return Err(self.value(problem));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// The same cluster with the layout, epoch and history of this map.
    #[must_use]
    pub fn with_map(mut self, map: &ClusterMap) -> Self {
        let layout = map.placement().layout();
        let placed: BTreeSet<u32> = layout.cells.iter().flat_map(|cell| cell.targets.iter().map(|id| id.0)).collect();
        let moved: BTreeSet<u32> = map.moved().map(|id| id.0).collect();
        for target in &mut self.targets {
            target.drain = !placed.contains(&target.id);
            target.moved = moved.contains(&target.id);
        }
        self.epoch = map.epoch.0;
        self.group_cells = layout.group_cells;
        self.overlap = map.overlap();
        // Also when this map is content with as few: a later one may not be.
        self.fewest_copies = Some(map.fewest_before()).filter(|fewest| *fewest < map.copies);
        self.layout = Some(LayoutConfig::of(layout));
        self.previous = map.previous().map(|previous| LayoutConfig::of(previous.layout()));
        self
    }

    /// The same cluster, of which nothing is stored yet, with the layout of a new one. Drained targets stay drained,
    /// and what is known of earlier maps stays known.
    ///
    /// # Errors
    /// When its targets cannot keep the copies in different failure domains.
    pub fn with_first_layout(self) -> Result<Self, ConfigError> {
        let all = self.entries(&domains(&[&self]));
        let (cluster, epoch) = (ClusterId::of_name(&self.cluster), Epoch(self.epoch));
        let is_drained = |id: NodeId| self.targets.iter().any(|target| target.id == id.0 && target.drain);
        let active = all.iter().filter(|target| !is_drained(target.id)).cloned().collect();
        let map = ClusterMap::new(cluster, epoch, self.copies, self.group_cells, active)
            .and_then(|map| if self.overlap { Ok(map) } else { map.with_disjoint_groups() })
            .and_then(|map| ClusterMap::with_layout(cluster, epoch, self.copies, all, map.placement().layout().clone()))
            .map_err(|cause| ConfigError::Map { path: self.path.clone(), cause })?;
        let map = self.with_few_copies(map.with_overlap(self.overlap))?;
        let moved: Vec<NodeId> = self.targets.iter().filter(|t| t.moved).map(|t| NodeId(t.id)).collect();
        Ok(self.with_map(&map.with_moved(moved)))
    }

    /// Makes the map that follows this one, when the cluster is to be as `wished` says: its targets, which of them are
    /// drained, their capacities and domains, and `copies`, `group_cells` and `overlap`. `replacements` says which target
    /// takes the place of which, first the one that goes. `most` is the largest redundancy that storage classes ask
    /// for, `stored` how many bytes all copies of all chunks have, and `level` whether groups are to have shares by
    /// their capacities again.
    ///
    /// # Errors
    /// When no map can keep the copies in different failure domains on these targets.
    pub fn plan(
        &self,
        wished: &Self,
        replacements: &BTreeMap<NodeId, NodeId>,
        most: Redundancy,
        stored: u64,
        level: bool,
    ) -> Result<(Self, Plan), ConfigError> {
        let numbers = domains(&[self, wished]);
        let present = self.numbered(&numbers)?;
        let drained = |of: &Self| -> BTreeSet<NodeId> {
            of.targets.iter().filter(|target| target.drain).map(|target| NodeId(target.id)).collect()
        };
        // Those that take no chunks weigh nothing.
        let (was_drained, drained) = (drained(self), drained(wished));
        let capacities: BTreeMap<NodeId, u64> =
            present.targets().filter(|t| !was_drained.contains(&t.id)).map(|t| (t.id, t.capacity)).collect();
        let targets: BTreeMap<NodeId, TargetEntry> =
            wished.entries(&numbers).into_iter().map(|target| (target.id, target)).collect();
        let weighed = |target: &TargetEntry| {
            !drained.contains(&target.id) && capacities.get(&target.id).is_some_and(|was| *was != target.capacity)
        };
        let wish = Wish {
            level: level || targets.values().any(weighed),
            drained,
            targets,
            replacements: replacements.clone(),
            copies: wished.copies,
            most,
            group_cells: wished.group_cells,
            overlap: wished.overlap,
        };
        let made = planner::plan(&present, &wish, stored)
            .map_err(|cause| ConfigError::Map { path: wished.path.clone(), cause })?;
        Ok((wished.clone().with_map(&made.map), made))
    }

    /// Writes the cells that a map without them stands for to the end of its file, when they are not there yet: from then on
    /// they change only where they must. What it writes stays beside it as `FILE.EPOCH`, as with each next map. Whether it did.
    ///
    /// # Errors
    /// When the file cannot be read or replaced, or when such a file beside it has other cells: then this one has lost them, and
    /// most of what is stored would not be found.
    pub fn take_over(path: &Path) -> Result<bool, ConfigError> {
        // Read once: all targets of a machine may do this to one file as they start.
        let text = Self::read(path)?;
        let config = Self::parse(&text, path)?;
        if config.layout.is_some() {
            return Ok(false);
        }
        let failed = |cause: std::io::Error| ConfigError::Write { path: path.to_owned(), cause };
        let layout = LayoutConfig::of(config.map()?.placement().layout());
        let section = toml::to_string(&BTreeMap::from([("layout", layout)]));
        let section = section.map_err(|error| config.value(format!("its cells cannot be written: {error}")))?;
        let whole = format!("{}\n\n{CELLS}{section}", text.trim_end());
        if Self::parse(&whole, path)?.map()? != config.map()? {
            return Err(config.value("its cells cannot be written: the file says more than is known".to_owned()));
        }
        config.check_kept()?;
        let kept = PathBuf::from(format!("{}.{}", path.display(), config.epoch));
        atomic_file::write(&kept, &whole).map_err(failed)?;
        atomic_file::write_if(path, &text, &whole).map_err(failed)
    }

    /// Whether none of the maps that were kept beside this one places chunks elsewhere than this one, which has no cells.
    fn check_kept(&self) -> Result<(), ConfigError> {
        let placement = |config: &Self| config.map().map(|map| map.placement().clone());
        let own = placement(self)?;
        let directory = atomic_file::directory(&self.path);
        let name = format!("{}.", self.path.file_name().unwrap_or_default().to_string_lossy());
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            let is_kept = |file: &str| file.strip_prefix(&name).is_some_and(|epoch| epoch.parse::<u32>().is_ok());
            let Some(file) = entry.file_name().to_str().filter(|file| is_kept(file)).map(str::to_owned) else {
                continue;
            };
            let Ok(kept) = Self::load(&entry.path()) else { continue };
            let has_cells = kept.cluster == self.cluster && kept.layout.is_some();
            if has_cells && placement(&kept).is_ok_and(|kept| kept != own) {
                return Err(self.value(format!(
                    "it has no [layout], and {file} beside it has one with other cells: take [layout] from the newest of \
                     these, or most of what is stored is not found (for a cluster that is empty remove {file})"
                )));
            }
        }
        Ok(())
    }
}

/// What stands before the cells of a map that was taken over.
const CELLS: &str = "# The cells of this map as they were until now. `reservoir cluster plan` makes the next ones.\n";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::TargetConfig;

    const COPIES: Redundancy = Redundancy::Copies(3);

    /// A map from before there were cells in it: so many targets, each a domain of its own.
    fn old(targets: u32) -> String {
        let target = |n| {
            format!(
                "[[target]]\nid = {n}\ndomain = \"d{n:02}\"\naddress = \"127.0.0.1:{n}\"\ndata = \"{n}\"\n\
                 capacity = \"1GiB\"\n"
            )
        };
        let targets: String = (1..=targets).map(target).collect();
        format!("# Ours.\ncluster = \"c\"\nepoch = 4\nkey_file = \"k\"\n\n{targets}")
    }

    fn parse(text: &str) -> Result<ClusterConfig, ConfigError> {
        ClusterConfig::parse(text, Path::new("cluster.toml"))
    }

    /// The text of cells, as earlier versions wrote it: it has to be read for ever.
    const TAKEN_OVER: &str = r#"[layout]
shares = 64
drawn = [16, 16, 16, 16]

[[layout.cell]]
id = 0
targets = [1, 5, 9]
shares = "0-15"

[[layout.cell]]
id = 1
targets = [2, 6, 10]
shares = "16-31"

[[layout.cell]]
id = 2
targets = [3, 7, 11]
shares = "32-47"

[[layout.cell]]
id = 3
targets = [4, 8, 12]
shares = "48-63"
"#;

    /// The same as it is written.
    fn written() -> String {
        TAKEN_OVER.replacen("[layout]\n", "[layout]\ngroup_cells = 3\n", 1)
    }

    #[test]
    fn the_groups_of_a_layout_stay_whatever_else_the_file_says() {
        let text = format!("{}\n{}", old(12), written());
        let map = parse(&text).and_then(|config| config.map()).expect("a good map");
        let before = parse(&format!("{}\n{TAKEN_OVER}", old(12))).and_then(|config| config.map()).expect("a good map");
        assert_eq!(map, before, "what earlier versions wrote is read as it was");
        let edited = text.replacen("epoch = 4", "epoch = 4\ngroup_cells = 2", 1);
        let error = parse(&edited).expect_err("most of what is stored would not be found").to_string();
        assert!(error.contains("the groups of its [layout] have 3 cells: write 3, and change it with"), "{error}");
        // The layout before may have other groups.
        let config = parse(&text).expect("a good map");
        let wished = ClusterConfig { group_cells: 2, ..config.clone() };
        let (next, made) = config.plan(&wished, &BTreeMap::new(), COPIES, 1, false).expect("a good plan");
        let cells = |layout: &Option<LayoutConfig>| layout.as_ref().and_then(|layout| layout.group_cells);
        assert_eq!((next.group_cells, cells(&next.layout), cells(&next.previous)), (2, Some(2), Some(3)));
        let read = parse(&toml::to_string(&next).expect("it can be written")).and_then(|config| config.map());
        assert_eq!(read.expect("a good map"), made.map);
    }

    #[test]
    fn a_map_without_cells_gets_those_that_it_stands_for() {
        let place = tempfile::tempdir().expect("a directory");
        let path = place.path().join("cluster.toml");
        std::fs::write(&path, old(12)).expect("writes");
        let before = ClusterConfig::load(&path).and_then(|config| config.map()).expect("a good map");
        assert!(ClusterConfig::take_over(&path).expect("it can be written"));
        let text = std::fs::read_to_string(&path).expect("reads");
        assert_eq!(text, format!("{}\n\n{CELLS}{}", old(12).trim_end(), written()));
        assert_eq!(ClusterConfig::load(&path).and_then(|config| config.map()).expect("a good map"), before);
        assert!(!ClusterConfig::take_over(&path).expect("it can be read"), "once is enough");
        let kept = place.path().join("cluster.toml.4");
        assert_eq!(std::fs::read_to_string(&kept).expect("it is kept"), text);
        assert_eq!(std::fs::read_dir(place.path()).expect("reads").count(), 2, "nothing else is left");
        // A node that loses them and has other targets does not go on; one that has the same targets gets them back.
        std::fs::write(&path, old(15)).expect("writes");
        let lost = ClusterConfig::take_over(&path).expect_err("they are lost").to_string();
        assert!(lost.contains("it has no [layout], and cluster.toml.4 beside it"), "{lost}");
        std::fs::write(&path, old(12)).expect("writes");
        assert!(ClusterConfig::take_over(&path).expect("it can be written"));
        assert_eq!(std::fs::read_to_string(&path).expect("reads"), text);
    }

    #[test]
    fn nobody_takes_over_what_another_does_meanwhile() {
        let place = tempfile::tempdir().expect("a directory");
        let (path, other) = (place.path().join("cluster.toml"), place.path().join("other"));
        let taken = format!("{}\n\n{CELLS}{}", old(12).trim_end(), written());
        std::fs::write(&path, old(12)).expect("writes");
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for text in [&taken, &old(12)].into_iter().cycle() {
                    if is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    std::fs::write(&other, text).and_then(|()| std::fs::rename(&other, &path)).expect("replaces");
                }
            });
            let all: Result<Vec<bool>, ConfigError> = (0..1_000).map(|_| ClusterConfig::take_over(&path)).collect();
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            all.expect("each is taken over, or was");
        });
    }

    #[test]
    fn the_next_map_is_read_back_as_it_was_made() {
        let present = parse(&old(12)).expect("a good map");
        let mut wished = parse(&old(14)).expect("a good map");
        wished.targets[2].drain = true;
        let (next, made) = present.plan(&wished, &BTreeMap::new(), COPIES, 1 << 40, false).expect("a good plan");
        assert!(made.regroups && made.moves.bytes() > 0);
        let text = toml::to_string(&next).expect("it can be written");
        let read = parse(&text).expect("a good map");
        assert_eq!(read.map().expect("a good map"), made.map);
        assert_eq!((read.epoch, read.targets[2].drain), (5, true));
        let previous = read.previous.expect("it was elsewhere before");
        assert_eq!(toml::to_string(&BTreeMap::from([("layout", previous)])).expect("text"), written());
    }

    #[test]
    fn a_new_layout_leaves_who_is_drained_and_what_was_before() {
        let mut config = parse(&old(12)).and_then(ClusterConfig::with_first_layout).expect("a good map");
        config.targets[4].drain = true;
        config.targets[7].moved = true;
        config.fewest_copies = Some(2);
        let config = config.with_first_layout().expect("a good map");
        let map = parse(&toml::to_string(&config).expect("text")).and_then(|read| read.map()).expect("a good map");
        assert_eq!(
            (map.targets().count(), map.fewest_before(), map.moved().collect::<Vec<_>>()),
            (12, 2, vec![NodeId(8)])
        );
        let cells = &map.placement().layout().cells;
        let placed: BTreeSet<u32> = cells.iter().flat_map(|cell| cell.targets.iter().map(|id| id.0)).collect();
        assert_eq!(placed, (1..=12).filter(|id| *id != 5).collect());
    }

    #[test]
    fn the_capacity_of_who_takes_no_chunks_moves_nothing() {
        let mut config = parse(&old(30)).and_then(ClusterConfig::with_first_layout).expect("a good map");
        let plan = |present: &ClusterConfig, wished: &ClusterConfig| {
            present.plan(wished, &BTreeMap::new(), COPIES, 1 << 40, false).expect("a good plan")
        };
        // A newcomer has far more room than the others: only when shares are levelled its groups get more of them.
        let mut grown = config.clone();
        let address = "127.0.0.1:31".parse().expect("an address");
        let large = "64GiB".to_owned();
        grown.targets.push(TargetConfig { id: 31, address, capacity: large.clone(), ..config.targets[0].clone() });
        config = plan(&config, &grown).0;
        let changed = |of: &ClusterConfig, drain: bool, capacity: &str| {
            let mut wished = of.clone();
            wished.targets[4] = TargetConfig { drain, capacity: capacity.to_owned(), ..of.targets[4].clone() };
            plan(of, &wished)
        };
        assert!(changed(&config, false, "2GiB").1.regroups, "those that take chunks take more, and all is levelled");
        let (drained, made) = changed(&config, true, "1GiB");
        let strays = made.moves.strays;
        let (both, made) = changed(&config, true, "64GiB");
        assert_eq!((&both.layout, made.moves.strays), (&drained.layout, strays));
        let (still, made) = changed(&drained, true, "64GiB");
        assert!(!made.regroups && made.moves.bytes() == 0, "{:?}", made.moves);
        assert_eq!((&still.layout, still.targets[4].capacity.as_str()), (&drained.layout, "64GiB"));
        // A target that takes chunks again is a newcomer like any other.
        assert!(!changed(&still, false, "1GiB").1.regroups);
    }

    #[test]
    fn a_plan_keeps_the_domains_that_the_most_copies_need() {
        // Ten disks of one server come, and crowd the groups that they join until those are split.
        let target = |n: u32| {
            let domain = (n - 1) % 5;
            format!(
                "[[target]]\nid = {n}\ndomain = \"d{domain}\"\naddress = \"127.0.0.1:{n}\"\ndata = \"{n}\"\n\
                 capacity = \"1GiB\"\n"
            )
        };
        let targets: String = (1..=40).map(target).collect();
        let text = format!("cluster = \"c\"\nepoch = 4\ngroup_cells = 1\nkey_file = \"k\"\n\n{targets}");
        let text = text.replacen("epoch = 4", "epoch = 4\ncopies = 2", 1);
        let config = parse(&text).and_then(ClusterConfig::with_first_layout).expect("a good map");
        let mut wished = config.clone();
        wished.targets.extend((41..=50).map(|n| TargetConfig {
            id: n,
            domain: "d0".to_owned(),
            address: format!("127.0.0.1:{n}").parse().expect("an address"),
            ..config.targets[0].clone()
        }));
        let kept = |most: Redundancy| {
            let made = config.plan(&wished, &BTreeMap::new(), most, 1, false).expect("a good plan").1;
            made.map.can_keep(Redundancy::Copies(3)).is_ok()
        };
        assert!(kept(Redundancy::Copies(3)) && !kept(Redundancy::Copies(2)));
    }

    #[test]
    fn a_new_cluster_has_no_draws() {
        let config = parse(&old(30)).and_then(ClusterConfig::with_first_layout).expect("a good map");
        let layout = config.layout.as_ref().expect("it has one");
        assert_eq!((layout.drawn.len(), layout.shares, layout.cells.len()), (0, 512, 10));
        assert_eq!(config.map().expect("a good map").groups(), 10);
    }

    #[test]
    fn a_target_in_no_cell_has_to_be_drained() {
        let text = format!("{}\n{TAKEN_OVER}", old(12));
        let error = |text: &str| parse(text).expect_err("it is wrong").to_string();
        assert!(error(&text.replace("[1, 5, 9]", "[5, 9]")).contains("target 1 is in no cell"));
        let drained = text.replace("data = \"1\"\n", "data = \"1\"\ndrain = true\n");
        assert!(error(&drained).contains("target 1 is drained, and in a cell"));
        let config = parse(&drained.replace("[1, 5, 9]", "[5, 9]")).expect("a good map");
        assert_eq!(config.map().expect("a good map").targets().count(), 12);
        assert!(error(&text.replace("[1, 5, 9]", "[1, 5, 99]")).contains("target 9 is in no cell"));
        assert!(error(&text.replace("\"0-15\"", "\"0-16\"")).contains("share 16 belongs to two cells"));
        assert!(error(&text.replace("\"0-15\"", "\"15-0\"")).contains("write ascending numbers"));
    }
}
