//! The processes of the cluster: those that `up` runs, and targets that joined, which are run here.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::common::{Cluster, RESERVOIR, reservoir, signal};

/// Bytes that a target may take of the disk.
pub(crate) const CAPACITY: &str = "400MiB";
/// Targets in the beginning, two on a server.
const TARGETS: u32 = 9;
pub(crate) const SERVERS: u32 = 5;
/// Seconds for which a target is down until it is taken out of the map. One that is killed is back sooner: see [`Processes::may_kill`].
const OUT_AFTER: u32 = 20;
/// `up` starts again what ended after 1 s, and twice as long each time within a minute: so few in this time, or one that is to come back
/// were down for too long.
const KILLS: usize = 3;
const KILLS_IN: Duration = Duration::from_secs(200);
/// Until a target that joined is started again, when it was killed.
const RESTART: Duration = Duration::from_millis(1_500);

/// The name under which kills of the gateway are counted; targets have their ids.
pub(crate) const GATEWAY: u32 = 0;

/// A target that joined.
struct Joined {
    words: Vec<String>,
    directory: PathBuf,
    child: Option<Child>,
    start_at: Instant,
    /// Its last words that were told.
    said: String,
}

/// See the [module](self).
pub(crate) struct Processes {
    place: PathBuf,
    cluster: Option<Cluster>,
    joined: BTreeMap<u32, Joined>,
    kills: BTreeMap<u32, Vec<Instant>>,
    next_id: u32,
}

/// Makes a cluster of small targets on few servers, whose gateway cleans all the time.
fn make(data: &Path, grace: u32) {
    let text = data.to_str().unwrap();
    let made = reservoir(&["up", "--data", text, "--targets", &TARGETS.to_string(), "--once"]);
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let path = data.join("cluster.toml");
    let map = fs::read_to_string(&path).unwrap();
    let mut server = 0;
    let mut edit = |line: &str| match line.split_once(" = ").map_or("", |(name, _)| name) {
        "capacity" => format!("capacity = \"{CAPACITY}\"\n"),
        "out_after_seconds" => format!("out_after_seconds = {OUT_AFTER}\n"),
        "group_cells" => "group_cells = 2\n".to_owned(),
        "domain" => {
            server += 1;
            format!("domain = \"server-{}\"\n", (server - 1) % SERVERS + 1)
        }
        _ => format!("{line}\n"),
    };
    let map: String = map.split("[layout]").next().unwrap().lines().map(&mut edit).collect();
    fs::write(&path, map).unwrap();
    // Three groups that share cells, where there would be one.
    let plan = ["cluster", "plan", "--new", "--stored", "0MiB", "--write", "--config", path.to_str().unwrap()];
    let planned = reservoir(&plan);
    assert!(planned.status.success(), "{}", String::from_utf8_lossy(&planned.stderr));
    let gateway = data.join("gateway.toml");
    let settings = fs::read_to_string(&gateway).unwrap();
    fs::write(gateway, format!("{settings}\n[clean]\ngrace_seconds = {grace}\npause_seconds = 3\n")).unwrap();
}

impl Processes {
    pub(crate) fn start(place: &Path, grace: u32) -> Self {
        let data = place.join("data");
        make(&data, grace);
        let cluster = Some(Cluster::start(&data, &[]));
        let place = place.to_owned();
        Self { place, cluster, joined: BTreeMap::new(), kills: BTreeMap::new(), next_id: TARGETS + 1 }
    }

    pub(crate) fn cluster(&self) -> &Cluster {
        self.cluster.as_ref().expect("it runs")
    }

    /// How the cluster is, if the gateway answers.
    pub(crate) fn status(&self) -> Option<Value> {
        let output = self.cluster().try_run(&["status", "--json", "--timeout", "20"], b"");
        output.status.success().then(|| serde_json::from_slice(&output.stdout).unwrap())
    }

    /// The process that runs a target.
    pub(crate) fn pid(&self, id: u32) -> Option<u32> {
        if let Some(joined) = self.joined.get(&id) {
            return joined.child.as_ref().map(Child::id);
        }
        let of = |pid: &u32| {
            let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            line.contains(&format!("\0--id\0{id}\0"))
        };
        self.cluster().children("target").into_iter().find(of)
    }

    /// Names and process ids of all that have data or serve.
    pub(crate) fn all(&self) -> Vec<(String, u32)> {
        let mut all: Vec<(String, u32)> =
            self.cluster().children("gateway").into_iter().map(|pid| ("gateway".to_owned(), pid)).collect();
        let targets = (1..self.next_id).filter_map(|id| Some((format!("target {id}"), self.pid(id)?)));
        all.extend(targets);
        all
    }

    /// Whether what is killed is back soon.
    pub(crate) fn may_kill(&mut self, who: u32) -> bool {
        let kills = self.kills.entry(who).or_default();
        kills.retain(|at| at.elapsed() < KILLS_IN);
        kills.len() < KILLS
    }

    /// Kills a process that is started again. Whether it was there.
    pub(crate) fn kill(&mut self, who: u32) -> bool {
        let pid = match who {
            GATEWAY => self.cluster().children("gateway").first().copied(),
            id => self.pid(id),
        };
        let Some(pid) = pid else { return false };
        self.kills.entry(who).or_default().push(Instant::now());
        match self.joined.get_mut(&who) {
            Some(joined) => joined.kill(),
            None => signal(pid, "-KILL"),
        }
        true
    }

    /// Kills everybody, `up` first, and starts all again on the same data after a while.
    pub(crate) fn kill_everyone(&mut self, rest: Duration) {
        let cluster = self.cluster.take().expect("it runs");
        let children: Vec<u32> = ["target", "gateway"].iter().flat_map(|role| cluster.children(role)).collect();
        let data = cluster.crash();
        children.iter().for_each(|pid| signal(*pid, "-KILL"));
        self.joined.values_mut().for_each(Joined::kill);
        std::thread::sleep(rest);
        let deadline = Instant::now() + Duration::from_secs(20);
        while children.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
            assert!(Instant::now() < deadline, "a process does not end that was killed");
            std::thread::sleep(Duration::from_millis(10));
        }
        self.joined.values_mut().for_each(Joined::start);
        self.cluster = Some(Cluster::start(&data, &[]));
        self.kills.clear();
    }

    /// Where a target has its store.
    fn store(&self, id: u32) -> PathBuf {
        match self.joined.get(&id) {
            Some(joined) => joined.directory.join("store"),
            None => self.cluster().directory.join(format!("targets/{id}")),
        }
    }

    /// Kills a target, and all that it had is gone.
    pub(crate) fn lose(&mut self, id: u32) {
        let (store, gone) = (self.store(id), self.place.join(format!("lost-{id}")));
        // While it runs, so that nobody starts it again with what it had.
        fs::rename(&store, &gone).unwrap();
        match self.joined.get_mut(&id) {
            Some(joined) => joined.kill(),
            None => self.pid(id).into_iter().for_each(|pid| signal(pid, "-KILL")),
        }
        // It may have written another file meanwhile.
        let _ = fs::remove_dir_all(&store);
        fs::remove_dir_all(gone).unwrap();
    }

    /// Puts an empty store in the place of a lost one.
    pub(crate) fn put_empty_store(&mut self, id: u32) {
        let config = match self.joined.get(&id) {
            Some(joined) => joined.directory.join("cluster.toml"),
            None => self.cluster().directory.join("cluster.toml"),
        };
        crate::common::make_store(config.to_str().unwrap(), id as usize);
    }

    /// A target that is not in the map any more: its process is ended (`up` tries to start it again, in vain), and its data go.
    pub(crate) fn forget(&mut self, id: u32) {
        match self.joined.remove(&id) {
            Some(mut joined) => {
                joined.kill();
                let _ = fs::remove_dir_all(&joined.directory);
            }
            None => {
                self.pid(id).into_iter().for_each(|pid| signal(pid, "-KILL"));
                let _ = fs::remove_dir_all(self.store(id));
            }
        }
    }

    /// Lets a new target join, in the place of another if one is named; its id.
    pub(crate) fn join(&mut self, domain: &str, replace: Option<u32>) -> u32 {
        let id = self.next_id;
        self.next_id += 1;
        let directory = self.place.join(format!("disk-{id}"));
        let gateway = self.cluster().gateway();
        let key = self.cluster().directory.join("cluster.key");
        let (key, data, number) = (key.to_str().unwrap(), directory.to_str().unwrap(), id.to_string());
        let words = ["target", "--join", &gateway, "--key-file", key, "--data", data, "--id", &number];
        let more = ["--capacity", CAPACITY, "--domain", domain];
        let replace = replace.map(|old| ["--replace".to_owned(), old.to_string()]);
        let words = words.iter().chain(&more).map(|word| (*word).to_owned());
        let words = words.chain(replace.into_iter().flatten()).collect();
        let mut joined = Joined { words, directory, child: None, start_at: Instant::now(), said: String::new() };
        joined.start();
        self.joined.insert(id, joined);
        id
    }

    /// Starts again those that joined and have ended. What those said that ended by themselves, once.
    pub(crate) fn look_after_joined(&mut self) -> Vec<String> {
        let mut said = vec![];
        for (id, joined) in &mut self.joined {
            if joined.child.as_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None))) {
                let words = joined.last_words();
                if words != joined.said {
                    said.push(format!("target {id} ended: {words}"));
                }
                joined.said = words;
                (joined.child, joined.start_at) = (None, Instant::now() + RESTART);
            }
            if joined.child.is_none() && Instant::now() >= joined.start_at {
                joined.start();
            }
        }
        said
    }

    /// The logs of all, since they were started by `up` or joined.
    pub(crate) fn logs(&self) -> Vec<(PathBuf, String)> {
        let logs = fs::read_dir(self.cluster().directory.join("logs")).unwrap().flatten().map(|entry| entry.path());
        let logs = logs.chain(self.joined.values().map(|joined| joined.directory.with_extension("log")));
        logs.map(|log| (log.clone(), fs::read_to_string(&log).unwrap_or_default())).collect()
    }

    /// What the logs say last: for whoever has to find out what was wrong.
    pub(crate) fn print_logs(&self) {
        for (log, text) in self.logs() {
            let lines: Vec<&str> = text.lines().collect();
            println!("{}:\n{}\n", log.display(), lines[lines.len().saturating_sub(12)..].join("\n"));
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        self.joined.values_mut().for_each(Joined::kill);
    }
}

impl Joined {
    fn start(&mut self) {
        let log = File::options().create(true).append(true).open(self.directory.with_extension("log")).unwrap();
        let mut command = Command::new(RESERVOIR);
        command.args(&self.words).env_remove("RUST_LOG").stdin(Stdio::null());
        self.child = Some(command.stdout(log.try_clone().unwrap()).stderr(log).spawn().unwrap());
    }

    fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        self.start_at = Instant::now() + RESTART;
    }

    fn last_words(&self) -> String {
        let text = fs::read_to_string(self.directory.with_extension("log")).unwrap_or_default();
        text.lines().last().unwrap_or_default().to_owned()
    }
}
