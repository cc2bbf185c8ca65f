//! Targets that join a cluster by one command, and take the place of others.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::common::{Cluster, Role, content, error_of, reservoir, signal, wait_until};

/// What the gateway says of a target that is up.
fn up(cluster: &Cluster, id: u32) -> Option<serde_json::Value> {
    let targets = cluster.status()["targets"].clone();
    targets.as_array().unwrap().iter().find(|target| target["id"] == id && target["alive"] == true).cloned()
}

/// The words that let a target join.
struct Joining {
    gateway: String,
    key: String,
    place: PathBuf,
}

impl Joining {
    fn of(cluster: &Cluster, place: &Path) -> Self {
        let key = cluster.directory.join("cluster.key").to_str().unwrap().to_owned();
        Self { gateway: cluster.gateway(), key, place: place.to_owned() }
    }

    fn directory(&self, name: &str) -> String {
        self.place.join(name).to_str().unwrap().to_owned()
    }

    fn words<'a>(&'a self, directory: &'a str, more: &[&'a str]) -> Vec<&'a str> {
        let words = ["target", "--join", &self.gateway, "--key-file", &self.key, "--data", directory];
        let capacity: &[&str] = if more.contains(&"--capacity") { &[] } else { &["--capacity", "256MiB"] };
        [&words[..], capacity, more].concat()
    }

    fn start(&self, name: &str, more: &[&str]) -> Role {
        Role::start(&self.words(&self.directory(name), more))
    }

    /// What a target is told that may not join; nothing of it stays.
    fn refused(&self, name: &str, more: &[&str]) -> String {
        let error = error_of(&self.words(&self.directory(name), more));
        assert!(!self.place.join(name).exists(), "{error}");
        error
    }
}

#[test]
fn a_target_joins_takes_chunks_and_starts_again_when_no_gateway_answers() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, &["--targets", "4"]);
    let joining = Joining::of(&cluster, place.path());
    let fifth = joining.start("disk", &["--domain", "server-5"]);
    wait_until("joining", || up(&cluster, 5).is_some());
    assert_eq!(up(&cluster, 5).unwrap()["domain"], "server-5");
    let old = content(3_000_000, 7);
    assert!(cluster.try_run(&["put", "-", "old"], &old).status.success());
    for n in 0..20 {
        assert!(cluster.try_run(&["put", "-", &format!("f{n}")], &content(90_000, n)).status.success());
    }
    wait_until("a chunk on it", || up(&cluster, 5).unwrap()["chunks"].as_u64() > Some(0));
    // Both keep the map, with the same words; its directory has the key as well, for its owner alone.
    let disk = place.path().join("disk");
    let map =
        |of: &Path| fs::read_to_string(of.join("cluster.toml")).unwrap().split_once("[network]").unwrap().1.to_owned();
    assert_eq!(map(&disk), map(&data));
    let mode = std::os::unix::fs::PermissionsExt::mode(&fs::metadata(disk.join("cluster.key")).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    // Those that `up` runs are its own; the other one runs on by itself, and is found again.
    assert!(cluster.stop());
    let cluster = Cluster::start(&data, &[]);
    assert_eq!(cluster.children("target").len(), 4);
    wait_until("all five", || up(&cluster, 5).is_some());
    assert!(cluster.stop() && fifth.stop());
    // Nobody answers: it starts with what it kept, in each of three ways.
    let (directory, config) = (joining.directory("disk"), disk.join("cluster.toml"));
    let ways = [
        vec!["target", "--data", &directory],
        joining.words(&directory, &[]),
        vec!["target", "--id", "5", "--config", config.to_str().unwrap()],
    ];
    assert!(error_of(&["target", "--data", &directory, "--id", "4"]).contains("is 5: leave --id out"));
    let mut alone = None;
    for words in ways {
        drop(alone.take());
        let mut role = Role::start(&words);
        std::thread::sleep(Duration::from_millis(700));
        assert!(role.is_running(), "{words:?}");
        alone = Some(role);
    }
    let cluster = Cluster::start(&data, &[]);
    wait_until("the one that started alone", || up(&cluster, 5).is_some());
    assert_eq!(cluster.run(&["get", "old", "-o", "-"]), old);
    drop(alone);
    assert!(cluster.stop());
}

#[test]
fn who_may_not_join_is_told_why_and_nothing_changes() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, &["--targets", "3"]);
    let joining = Joining::of(&cluster, place.path());
    let before = fs::read_to_string(cluster.config()).unwrap();
    let wrong = place.path().join("wrong.key");
    fs::write(&wrong, "5a".repeat(32)).unwrap();
    let other = Joining { key: wrong.to_str().unwrap().to_owned(), ..Joining::of(&cluster, place.path()) };
    let error = other.refused("disk", &[]);
    assert!(error.contains("has another key: take the cluster.key of its cluster"), "{error}");
    fs::write(&wrong, "5a").unwrap();
    assert!(other.refused("disk", &[]).contains("a key is 64 hexadecimal digits"));
    let nobody = Joining { gateway: "127.0.0.1:9".to_owned(), ..Joining::of(&cluster, place.path()) };
    assert!(nobody.refused("disk", &[]).contains("no gateway answers at 127.0.0.1:9"));
    for (more, why) in [
        (&["--id", "2"][..], "target 2 is in the map already, at 127.0.0.1:"),
        (&["--capacity", "1MiB"], "write a size of at least 64MiB"),
        (&["--replace", "9"], "there is no target 9 in the map"),
        (&["--listen", "10.0.0.7:7000"], "10.0.0.7 is not of the loopback interface, where all targets are"),
        (&["--listen", "0.0.0.0:7000"], "0.0.0.0:7000 is the address of no machine"),
        (&["--listen", "[::1]:7000"], "of the other family"),
        // It would be the third in one domain of three.
        (&["--replace", "2", "--domain", "disk-001"], "target 4 cannot take the place of target 2"),
    ] {
        let error = joining.refused("disk", more);
        assert!(error.contains(why), "{more:?}: {error}");
    }
    let own = before.lines().find_map(|line| line.strip_prefix("address = \"")).unwrap().trim_end_matches('"');
    assert!(joining.refused("disk", &["--listen", own]).contains("have one address"));
    // A directory in which something is.
    let error = error_of(&joining.words(data.to_str().unwrap(), &[]));
    assert!(error.contains("no target in "), "{error}");
    let used = place.path().join("used");
    fs::create_dir(&used).unwrap();
    fs::write(used.join("thesis.txt"), "").unwrap();
    let error = error_of(&joining.words(used.to_str().unwrap(), &[]));
    assert!(error.contains("is not empty (it has thesis.txt)"), "{error}");
    assert_eq!(fs::read_to_string(cluster.config()).unwrap(), before);
    assert!(!data.join("cluster.toml.1").exists());
    // The status of the gateway tells nobody anything more.
    let post = |body: &str, tag: &str| {
        let agent = ureq::Agent::new_with_config(ureq::Agent::config_builder().http_status_as_error(false).build());
        let request = agent.post(format!("http://{}/v1/join", joining.gateway)).header("x-reservoir-tag", tag);
        request.send(body).unwrap().status().as_u16()
    };
    assert_eq!([post("{}", ""), post("{}", &"0".repeat(64)), post(&"x".repeat(20_000), "")], [401, 401, 413]);
    assert!(cluster.stop());
}

#[test]
fn a_disk_that_is_not_mounted_does_not_join_as_another_one() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, &["--targets", "3"]);
    let joining = Joining::of(&cluster, place.path());
    let fourth = joining.start("disk", &[]);
    wait_until("joining", || up(&cluster, 4).is_some());
    assert!(fourth.stop());
    let (disk, elsewhere) = (place.path().join("disk"), place.path().join("elsewhere"));
    fs::rename(&disk, &elsewhere).unwrap();
    fs::create_dir(&disk).unwrap();
    let error = error_of(&joining.words(disk.to_str().unwrap(), &[]));
    assert!(error.contains("target 4 of 127.0.0.1 has its data in "), "{error}");
    assert!(error.contains("mount its disk and start it again; if its disk is lost") && error.contains("--replace 4"));
    assert!(error_of(&["target", "--data", disk.to_str().unwrap()]).contains("no target has joined with"));
    assert_eq!(fs::read_dir(&disk).unwrap().count(), 0);
    // An answer that was lost is asked for again, and gets no second place.
    let config = fs::read_to_string(elsewhere.join("cluster.toml")).unwrap();
    let entry = config.rsplit("[[target]]").find(|part| part.contains("id = 4\n")).unwrap();
    let address = entry.lines().find_map(|line| line.strip_prefix("address = ")).unwrap();
    fs::write(disk.join("join.toml"), format!("listen = {address}\n")).unwrap();
    let again = joining.start("disk", &[]);
    wait_until("joining again", || up(&cluster, 4).is_some());
    assert_eq!(cluster.status()["targets"].as_array().unwrap().len(), 4);
    assert!(!disk.join("join.toml").exists());
    assert!(again.stop());
    // The disk is lost: an empty one takes its place, with another id.
    fs::remove_dir_all(&disk).unwrap();
    let replacement = joining.start("disk", &["--replace", "4"]);
    wait_until("the replacement", || up(&cluster, 5).is_some());
    let map = fs::read_to_string(cluster.config()).unwrap();
    assert!(!map.contains("\nid = 4\n") && map.contains("\nid = 5\n"), "{map}");
    assert!(replacement.stop());
    // An id that was given before is not given again, also when it was the highest.
    cluster.run(&["cluster", "remove", "5"]);
    assert!(fs::read_to_string(cluster.config()).unwrap().contains("\nlast_id = 5\n"));
    fs::remove_dir_all(&disk).unwrap();
    assert!(joining.refused("disk", &["--id", "5"]).contains("target 5 may have been in the map before"));
    let next = joining.start("disk", &[]);
    wait_until("the next one", || up(&cluster, 6).is_some());
    assert!(next.stop() && cluster.stop());
}

#[test]
fn a_died_disk_is_replaced_by_one_that_has_room_for_its_data() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, &["--targets", "4", "--no-restart"]);
    let joining = Joining::of(&cluster, place.path());
    let large = content(160_000_000, 3);
    assert!(cluster.try_run(&["put", "-", "large"], &large).status.success());
    wait_until("all copies", || cluster.status()["whole"] == true);
    let before = fs::read_to_string(cluster.config()).unwrap();
    let small = joining.refused("disk", &["--replace", "2", "--capacity", "64MiB"]);
    assert!(
        small.contains("target 5 would have room for 62 MiB, and target 2, whose place it is to take, has"),
        "{small}"
    );
    let weight = String::from_utf8(cluster.try_run(&["cluster", "weight", "2=64MiB"], b"").stderr).unwrap();
    assert!(weight.contains("target 2 has ") && weight.contains("would have room for 62 MiB with 64MiB"), "{weight}");
    let all = ["cluster", "plan", "--stored", "1TiB", "--remove", "2", "--write"];
    let error = String::from_utf8(cluster.try_run(&all, b"").stderr).unwrap();
    assert!(
        error.contains("the targets that take chunks would have room for") && error.lines().count() == 1,
        "{error}"
    );
    let few = ["cluster", "remove", "2", "3", "--drop-copies"];
    let error = String::from_utf8(cluster.try_run(&few, b"").stderr).unwrap();
    assert!(error.contains("3 copies need 3 failure domains") && error.lines().count() == 1, "{error}");
    assert_eq!(fs::read_to_string(cluster.config()).unwrap(), before);
    // It died: neither its process nor its data are left.
    let second = cluster.children("target")[1];
    signal(second, "-KILL");
    fs::remove_dir_all(data.join("targets/2")).unwrap();
    wait_until("its silence", || up(&cluster, 2).is_none());
    let fifth = joining.start("disk", &["--replace", "2"]);
    wait_until("the other in its place", || up(&cluster, 5).is_some());
    // It is of the same server, so it is in the domain that this had.
    assert_eq!(up(&cluster, 5).unwrap()["domain"], "disk-002");
    wait_until("all copies again", || cluster.status()["whole"] == true);
    assert!(up(&cluster, 5).unwrap()["chunks"].as_u64() > Some(20));
    assert!(cluster.run(&["get", "large", "-o", "-"]) == large);
    assert!(fifth.stop() && cluster.stop());
}

#[test]
fn many_targets_join_at_once() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, &["--targets", "3"]);
    let joining = Joining::of(&cluster, place.path());
    let names: Vec<String> = (0..6).map(|n| format!("disk-{n}")).collect();
    let roles: Vec<Role> = names.iter().map(|name| joining.start(name, &["--domain", name])).collect();
    wait_until("all of them", || (4..10).all(|id| up(&cluster, id).is_some()));
    let shown: serde_json::Value = serde_json::from_slice(&cluster.run(&["cluster", "show", "--json"])).unwrap();
    assert_eq!((&shown["epoch"], shown["targets"].as_array().unwrap().len()), (&7.into(), 9), "one a map");
    assert!(shown["decided"].as_str().unwrap().ends_with("cluster.toml"), "{shown}");
    // A joined target's file is a copy: what it says is decided elsewhere.
    let copy = place.path().join("disk-3/cluster.toml");
    let drain = ["cluster", "drain", "4", "--stored", "1MiB", "--config", copy.to_str().unwrap()];
    assert!(
        error_of(&drain)
            .contains("is a copy (no gateway.toml is beside it): the next map is made where the gateway runs")
    );
    assert!(reservoir(&["cluster", "show", "--config", copy.to_str().unwrap()]).status.success());
    roles.into_iter().for_each(|role| assert!(role.stop()));
    assert!(cluster.stop());
}
