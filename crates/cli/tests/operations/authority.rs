//! Each epoch of the cluster map is decided once, however many operators ask: in a file, and in a real PostgreSQL.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use crate::common::{Cluster, Role, error_of, reservoir, wait_until};
use testkit::Postgres;

/// Operators who ask at once.
const OPERATORS: usize = 20;

fn status(cluster: &Cluster) -> serde_json::Value {
    serde_json::from_slice(&cluster.run(&["status", "--json"])).unwrap()
}

fn epoch(cluster: &Cluster) -> u64 {
    status(cluster)["epoch"].as_u64().unwrap()
}

/// The map as `reservoir cluster show` has it.
fn shown(config: &str, catalog: &[&str]) -> Option<serde_json::Value> {
    let out = reservoir(&[&["cluster", "show", "--json", "--config", config], catalog].concat());
    out.status.success().then(|| serde_json::from_slice(&out.stdout).unwrap())
}

/// Many operators read one map, and then all add a target of their own. Exactly one of them gets it.
fn of_many_operators_one_wins(place: &Path, config: &str, catalog: &[&str]) {
    let before = shown(config, catalog).unwrap();
    let next = before["targets"].as_array().unwrap().len() + 1;
    let pipes: Vec<String> =
        (0..OPERATORS).map(|n| place.join(format!("pipe-{n}")).to_str().unwrap().to_owned()).collect();
    assert!(Command::new("mkfifo").args(&pipes).status().unwrap().success());
    let outcomes: Vec<Result<(), String>> = std::thread::scope(|scope| {
        let plan = |pipe: &str| {
            let plan = ["cluster", "plan", "--add", pipe, "--stored", "0", "--write", "--config", config];
            let out = reservoir(&[&plan[..], catalog].concat());
            out.status.success().then_some(()).ok_or_else(|| String::from_utf8(out.stderr).unwrap())
        };
        let plans: Vec<_> = pipes.iter().map(|pipe| scope.spawn(move || plan(pipe))).collect();
        // Each has read the map when it asks for what is to be added.
        let asked: Vec<fs::File> =
            pipes.iter().map(|pipe| fs::OpenOptions::new().write(true).open(pipe).unwrap()).collect();
        for (n, mut asked) in asked.into_iter().enumerate() {
            let entry = format!(
                "[[target]]\nid = {next}\ndomain = \"operator-{n}\"\naddress = \"127.0.0.1:{}\"\ndata = \"targets/of-{n}\"\n\
                 capacity = \"1GiB\"\n",
                21_000 + n
            );
            asked.write_all(entry.as_bytes()).unwrap();
        }
        plans.into_iter().map(|plan| plan.join().unwrap()).collect()
    });
    let winners: Vec<usize> = (0..OPERATORS).filter(|n| outcomes[*n].is_ok()).collect();
    let [winner] = winners[..] else { panic!("{winners:?} won") };
    for error in outcomes.iter().filter_map(|outcome| outcome.as_ref().err()) {
        // The last of them may hear from targets that a newer map is in use before it looks.
        let is_told = ["was changed meanwhile: nothing is written", "is not the newest, as others use"];
        assert!(is_told.iter().any(|why| error.contains(why)) && error.contains("plan again"), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let after = shown(config, catalog).unwrap();
    assert_eq!(after["epoch"].as_u64().unwrap(), before["epoch"].as_u64().unwrap() + 1);
    assert_eq!(after["targets"][next - 1]["domain"], format!("operator-{winner}"));
}

#[test]
fn of_many_operators_one_changes_the_file() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let up = ["up", "--data", data.to_str().unwrap(), "--targets", "4", "--once"];
    assert!(reservoir(&up).status.success());
    of_many_operators_one_wins(place.path(), data.join("cluster.toml").to_str().unwrap(), &[]);
    assert!(data.join("cluster.toml.1").exists() && !data.join("cluster.toml.2").exists());
    // The gateway of a copy is elsewhere, and so are its decisions.
    let gateway = data.join("gateway.toml");
    let settings = fs::read_to_string(&gateway).unwrap().replace("127.0.0.1:", "192.0.2.1:");
    fs::write(&gateway, settings).unwrap();
    let config = data.join("cluster.toml");
    let error = error_of(&["cluster", "drain", "1", "--stored", "0", "--config", config.to_str().unwrap()]);
    assert!(error.contains("is a copy (its gateway's address 192.0.2.1:"), "{error}");
    fs::remove_file(&gateway).unwrap();
    let error = error_of(&["cluster", "drain", "1", "--stored", "0", "--config", config.to_str().unwrap()]);
    assert!(error.contains("is a copy (no gateway.toml is beside it)"), "{error}");
}

#[test]
fn of_many_operators_one_changes_the_database_and_gateways_follow() {
    let Ok(server) = Postgres::start().inspect_err(|why| println!("skipped: {why:#}")) else { return };
    let url = server.database().unwrap();
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "4", "--gateways", "2", "--catalog", &url]);
    let (config, catalog) = (cluster.config(), ["--catalog", &url]);
    // The first gateway puts the map there that it was made with.
    wait_until("a map in the database", || shown(&config, &catalog).is_some());
    let first = shown(&config, &catalog).unwrap();
    assert_eq!(first["epoch"], 1);
    let decided = first["decided"].as_str().unwrap();
    assert!(decided.starts_with("in postgres://reservoir@127.0.0.1:") && !decided.contains(Postgres::PASSWORD));
    of_many_operators_one_wins(place.path(), &config, &catalog);
    wait_until("the gateway uses it", || epoch(&cluster) == 2);
    // An operator elsewhere has the files as they were. All that runs here learns of the change from the database.
    let elsewhere = place.path().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for name in ["cluster.key", "gateway.toml"] {
        fs::copy(cluster.directory.join(name), elsewhere.join(name)).unwrap();
    }
    let there = elsewhere.join("cluster.toml");
    fs::copy(format!("{config}.1"), &there).unwrap();
    let there = there.to_str().unwrap();
    let change = reservoir(&["cluster", "drain", "2", "--stored", "0", "--config", there, catalog[0], catalog[1]]);
    assert!(change.status.success(), "{}", String::from_utf8_lossy(&change.stderr));
    wait_until("the gateway uses it", || epoch(&cluster) == 3);
    let drained = |config: &str| fs::read_to_string(config).unwrap().contains("epoch = 3\n");
    assert!(drained(there) && drained(&config));
    // A map that was written by hand is put there by a gateway that uses it.
    let text = fs::read_to_string(&config).unwrap();
    fs::write(place.path().join("new"), text.replace("epoch = 3\n", "epoch = 5\n")).unwrap();
    fs::rename(place.path().join("new"), &config).unwrap();
    wait_until("the database has it", || shown(there, &catalog).is_some_and(|map| map["epoch"] == 5));
    // Targets join at both gateways at once, and each gets a map of its own.
    let key = cluster.directory.join("cluster.key").to_str().unwrap().to_owned();
    let http = |file: &str| {
        let text = fs::read_to_string(cluster.directory.join(file)).unwrap();
        text.lines().find_map(|line| line.strip_prefix("http = \"")).unwrap().trim_end_matches('"').to_owned()
    };
    let gateways = ["gateway.toml", "gateway-2.toml"].map(http);
    let joined: Vec<Role> = (0..6)
        .map(|n| {
            let disk = place.path().join(format!("disk-{n}"));
            let (gateway, disk) = (&gateways[n % 2], disk.to_str().unwrap());
            let join = ["target", "--join", gateway, "--key-file", &key, "--capacity", "256MiB", "--data", disk];
            Role::start(&join)
        })
        .collect();
    wait_until("all have joined", || shown(there, &catalog).is_some_and(|map| map["epoch"] == 11));
    assert_eq!(shown(there, &catalog).unwrap()["targets"].as_array().unwrap().len(), 11);
    wait_until("the gateway uses the last map", || epoch(&cluster) == 11);
    joined.into_iter().for_each(|role| assert!(role.stop()));
    assert!(cluster.stop());
}

#[test]
fn while_the_database_is_away_nothing_is_decided_and_gateways_work_on() {
    let Ok(mut server) = Postgres::start().inspect_err(|why| println!("skipped: {why:#}")) else { return };
    let url = server.database().unwrap();
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    // Without its database a cluster has a file, and no map is in the database yet.
    let plain = place.path().join("plain");
    let up = ["up", "--data", plain.to_str().unwrap(), "--targets", "3", "--once"];
    assert!(reservoir(&up).status.success());
    let other = server.database().unwrap();
    let error = error_of(&[
        "cluster",
        "drain",
        "1",
        "--stored",
        "0",
        "--catalog",
        &other,
        "--config",
        plain.join("cluster.toml").to_str().unwrap(),
    ]);
    assert!(error.contains("no cluster map is in the database yet: start a gateway"), "{error}");

    let cluster = Cluster::start(&data, &["--targets", "3", "--catalog", &url]);
    let (config, catalog) = (cluster.config(), ["--catalog", &url]);
    wait_until("a map in the database", || shown(&config, &catalog).is_some());
    let before = fs::read_to_string(&config).unwrap();
    server.crash().unwrap();
    let error =
        error_of(&["cluster", "weight", "1=1GiB", "--stored", "0", "--config", &config, catalog[0], catalog[1]]);
    assert!(error.contains("the catalog in postgres://reservoir@127.0.0.1:") && !error.contains(Postgres::PASSWORD));
    let (gateway, key) = (cluster.gateway(), data.join("cluster.key"));
    let disk = place.path().join("disk");
    let join = ["target", "--join", &gateway, "--key-file", key.to_str().unwrap(), "--capacity", "256MiB", "--data"];
    let join = [&join[..], &[disk.to_str().unwrap()]].concat();
    let error = error_of(&join);
    assert!(error.contains("the catalog in postgres://reservoir@127.0.0.1:") && !disk.exists(), "{error}");
    assert_eq!((epoch(&cluster), fs::read_to_string(&config).unwrap()), (1, before));
    server.start_again().unwrap();
    let target = Role::start(&join);
    wait_until("the target joins", || shown(&config, &catalog).is_some_and(|map| map["epoch"] == 2));
    wait_until("the gateway uses its map", || epoch(&cluster) == 2);
    // It is in the map before it listens for what would stop it.
    wait_until("the target serves", || {
        let targets = status(&cluster)["targets"].as_array().unwrap().clone();
        targets.len() == 4 && targets.iter().all(|target| target["alive"] == true)
    });
    assert!(target.stop() && cluster.stop());
}
