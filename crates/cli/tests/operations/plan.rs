//! The cells of a cluster's map: written down for maps from before there were any, and changed by plans.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use crate::common::{Cluster, make_store, reservoir};

fn without_cells(map: &Path) -> String {
    let text = fs::read_to_string(map).unwrap();
    let (rest, _) = text.split_once("[layout]").unwrap();
    rest.to_owned()
}

#[test]
fn a_map_from_before_there_were_cells_is_taken_over() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let up = ["up", "--data", data.to_str().unwrap(), "--targets", "13", "--once"];
    assert!(reservoir(&up).status.success());
    let map = data.join("cluster.toml");
    let old = without_cells(&map);
    fs::write(&map, &old).unwrap();
    let cluster = Cluster::start(&data, &[]);
    let taken = fs::read_to_string(&map).unwrap();
    assert!(taken.starts_with(old.trim_end()) && taken.contains("\ndrawn = [16, "), "{taken}");
    for n in 0..12 {
        let name = format!("f{n}");
        assert!(cluster.try_run(&["put", "-", &name], name.as_bytes()).status.success());
    }
    assert!(cluster.stop());
    // A file that is written anew without them, and with other targets, would lose most of what is stored.
    let (rest, last) = old.rsplit_once("[[target]]").unwrap();
    assert!(last.contains("id = 13"));
    fs::write(&map, rest).unwrap();
    let lost = crate::common::error_of(&["up", "--data", data.to_str().unwrap(), "--once"]);
    assert!(lost.contains("it has no [layout], and cluster.toml.1 beside it"), "{lost}");
    fs::write(&map, &taken).unwrap();
    let cluster = Cluster::start(&data, &[]);
    assert_eq!(fs::read_to_string(&map).unwrap(), taken);
    for n in 0..12 {
        let name = format!("f{n}");
        assert_eq!(cluster.run(&["get", &name, "-o", "-"]), name.as_bytes());
    }
    assert!(cluster.stop());
}

#[test]
fn a_plan_adds_a_target_and_moves_nothing_out_of_reach() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    fs::create_dir(&data).unwrap();
    let cluster = Cluster::start(&data, &["--targets", "12"]);
    for n in 0..12 {
        let name = format!("f{n}");
        assert!(cluster.try_run(&["put", "-", &name], name.as_bytes()).status.success());
    }
    let port = node::free_port(Ipv4Addr::LOCALHOST).unwrap();
    let new = data.join("new.toml");
    let entry = format!(
        "[[target]]\nid = 13\ndomain = \"disk-013\"\naddress = \"127.0.0.1:{port}\"\ndata = \"targets/13\"\n\
         capacity = \"1GiB\"\n"
    );
    fs::write(&new, entry).unwrap();
    let before = fs::read_to_string(cluster.config()).unwrap();
    let wish = ["cluster", "plan", "--add", new.to_str().unwrap(), "--json"];
    let plan: serde_json::Value = serde_json::from_slice(&cluster.run(&wish)).unwrap();
    assert_eq!((&plan["epoch"], &plan["regroups"], &plan["written"]), (&2.into(), &false.into(), &false.into()));
    assert!(plan["stored_bytes"].as_u64() > Some(0) && plan["strayed_bytes"] == 0, "{plan}");
    assert_eq!(fs::read_to_string(cluster.config()).unwrap(), before);
    let printed = String::from_utf8(cluster.run(&[&wish[..4], &["--stored", "10TiB", "--write"]].concat())).unwrap();
    assert!(printed.contains("of 10 TiB stored"), "{printed}");
    assert_eq!(fs::read_to_string(format!("{}.1", cluster.config())).unwrap(), before);
    make_store(&cluster.config(), 13);
    assert!(cluster.stop());
    let cluster = Cluster::start(&data, &[]);
    for n in 0..12 {
        let name = format!("f{n}");
        assert_eq!(cluster.run(&["get", &name, "-o", "-"]), name.as_bytes());
    }
    // What would hide all of it is not even planned.
    let anew = |more: &[&str]| cluster.try_run(&[&["cluster", "plan", "--new"][..], more].concat(), b"");
    let map = fs::read_to_string(cluster.config()).unwrap();
    let refused = anew(&["--write"]);
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("would not be found"));
    let shown = anew(&["--stored", "0"]);
    assert!(shown.status.success() && String::from_utf8_lossy(&shown.stdout).contains("nothing is written"));
    assert_eq!(fs::read_to_string(cluster.config()).unwrap(), map);
    let nobody = cluster.try_run(&["cluster", "plan", "--drain", "77", "--stored", "1TiB"], b"");
    assert!(String::from_utf8_lossy(&nobody.stderr).contains("there is no target 77"));
    assert!(cluster.stop());
}

/// What a plan of this cluster says, or why there is none.
fn planned(map: &Path, wish: &[&str]) -> Result<serde_json::Value, String> {
    let always = ["cluster", "plan", "--config", map.to_str().unwrap(), "--stored", "200MiB", "--json"];
    let out = reservoir(&[&always[..], wish].concat());
    if !out.status.success() {
        return Err(String::from_utf8(out.stderr).unwrap());
    }
    Ok(serde_json::from_slice(&out.stdout).unwrap())
}

/// A file with a target of the size of those that are in the map.
fn write_target(path: &Path, map: &Path, id: u32, domain: &str) {
    let map = fs::read_to_string(map).unwrap();
    let capacity = map.lines().find(|line| line.starts_with("capacity = ")).unwrap();
    let address = format!("address = \"127.0.0.1:{}\"", 20_000 + id);
    let entry = format!("[[target]]\nid = {id}\ndomain = \"{domain}\"\n{address}\ndata = \"targets/{id}\"\n");
    fs::write(path, format!("{entry}{capacity}\n")).unwrap();
}

fn made(data: &Path, targets: &str) -> PathBuf {
    let up = ["up", "--data", data.to_str().unwrap(), "--targets", targets, "--once"];
    assert!(reservoir(&up).status.success());
    data.join("cluster.toml")
}

#[test]
fn as_many_domains_as_there_are_copies_are_not_taken_out_by_mistake() {
    let place = tempfile::tempdir().unwrap();
    let map = made(&place.path().join("data"), "12");
    let settings = map.with_file_name("gateway.toml");
    let plain = fs::read_to_string(&settings).unwrap();
    let three = ["--remove", "3", "--remove", "4", "--remove", "5"];
    assert!(planned(&map, &three[..2]).is_ok());
    // Two copies are enough for a put while a third domain is down.
    assert!(planned(&map, &three[..4]).unwrap_err().contains("targets 3, 4 are in 2 failure domains"));
    let error = planned(&map, &three).unwrap_err();
    assert!(
        error.contains("targets 3, 4, 5 are in 3 failure domains") && error.contains("(the cluster's, with 2)"),
        "{error}"
    );
    assert!(error.contains("--drop-copies"), "{error}");
    assert!(planned(&map, &[&three[..], &["--drop-copies"]].concat()).is_ok());
    // Who comes in its place brings nothing of what is taken out.
    let new = place.path().join("new.toml");
    write_target(&new, &map, 13, "another");
    let swap = ["--add", new.to_str().unwrap(), "--replace", "3=13", "--remove", "4", "--remove", "5"];
    assert!(planned(&map, &swap).unwrap_err().contains("targets 3, 4, 5 are in 3 failure domains"));
    // Objects of a storage class may have fewer.
    fs::write(&settings, format!("{plain}\n[s3.storage_class]\nONEZONE_IA = {{ copies = 1 }}\n")).unwrap();
    let error = planned(&map, &three[..2]).unwrap_err();
    assert!(error.contains("(those of class ONEZONE_IA, with 1)"), "{error}");
    let empty = ["cluster", "plan", "--config", map.to_str().unwrap(), "--stored", "0", "--remove", "3"];
    assert!(reservoir(&empty).status.success(), "nothing is stored");
    // A file that cannot be read may say anything.
    fs::write(&settings, format!("{plain}\nthis is no TOML\n")).unwrap();
    assert!(planned(&map, &["--level"]).unwrap_err().contains("gateway.toml"));
    fs::remove_file(&settings).unwrap();
    assert!(planned(&map, &["--level"]).is_ok(), "no gateway runs here");
}

/// The target that a process is.
fn id_of(pid: u32) -> Option<u32> {
    let line = fs::read_to_string(format!("/proc/{pid}/cmdline")).ok()?;
    line.split('\0').skip_while(|part| *part != "--id").nth(1)?.parse().ok()
}

#[test]
fn status_counts_what_drained_targets_hide() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let map = made(&data, "12");
    planned(&map, &["--drain", "3", "--write"]).unwrap();
    let cluster = Cluster::start(&data, &[]);
    let status = || serde_json::from_slice::<serde_json::Value>(&cluster.run(&["status", "--json"])).unwrap();
    let before = status();
    assert_eq!((&before["targets"][2]["drained"], &before["targets"][3]["drained"]), (&true.into(), &false.into()));
    let table = String::from_utf8(cluster.run(&["status"])).unwrap();
    assert_eq!((table.matches("drained").count(), table.matches("out of reach").count()), (1, 0), "{table}");
    // They were a cell, and so in a group.
    let text: toml::Table = toml::from_str(&fs::read_to_string(&map).unwrap()).unwrap();
    let cells = text["previous"]["cell"].as_array().unwrap().clone();
    assert!(cells.iter().any(|cell| cell["targets"] == toml::Value::from(vec![3, 7, 11])), "{cells:?}");
    let (mut stopped, mut hidden) = (Vec::new(), Vec::new());
    for id in [7, 11, 3] {
        let target = cluster.children("target").into_iter().find(|pid| id_of(*pid) == Some(id)).unwrap();
        crate::common::signal(target, "-STOP");
        stopped.push((id, target));
        // On a machine that has much to do another may be silent for a moment.
        let are_silent = |status: &serde_json::Value| {
            let rows = status["targets"].as_array().unwrap();
            rows.iter().all(|row| (row["alive"] == false) == stopped.iter().any(|(id, _)| row["id"] == *id))
        };
        let seen = (0..20).map(|_| status()).find(are_silent).expect("those that were stopped are silent");
        hidden.push(seen["out_of_reach"].as_array().unwrap().len());
    }
    stopped.iter().for_each(|(_, target)| crate::common::signal(*target, "-CONT"));
    // Two copies are enough for a put while a third target is down.
    assert!(hidden[0] == 0 && hidden[1] > 0 && hidden[2] >= hidden[1], "{hidden:?}");
    assert!(cluster.stop());
}

#[test]
fn a_map_that_is_changed_while_it_is_planned_is_not_replaced() {
    let place = tempfile::tempdir().unwrap();
    let map = made(&place.path().join("data"), "4");
    let (pipe, new) = (place.path().join("pipe"), place.path().join("new.toml"));
    write_target(&new, &map, 5, "another");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let text = fs::read_to_string(&map).unwrap();
    let edited = text.replace("epoch = 1", "epoch = 2");
    std::thread::scope(|scope| {
        let plan = scope.spawn(|| planned(&map, &["--add", pipe.to_str().unwrap(), "--write"]));
        // It has read the map when it asks for what is to be added.
        let mut asked = fs::OpenOptions::new().write(true).open(&pipe).unwrap();
        fs::write(&map, &edited).unwrap();
        std::io::Write::write_all(&mut asked, &fs::read(&new).unwrap()).unwrap();
        drop(asked);
        let error = plan.join().unwrap().unwrap_err();
        assert!(error.contains("was changed meanwhile: nothing is written; plan again"), "{error}");
    });
    assert_eq!(fs::read_to_string(&map).unwrap(), edited);
    assert!(!map.with_file_name("cluster.toml.1").exists());
}

#[test]
fn a_layout_that_is_needed_is_forgotten_only_when_that_is_said() {
    let place = tempfile::tempdir().unwrap();
    let map = made(&place.path().join("data"), "12");
    assert!(planned(&map, &["--drain", "3", "--write"]).unwrap()["regroups"].as_bool().unwrap());
    let error = planned(&map, &["--drain", "4", "--write"]).unwrap_err();
    assert!(error.contains("--forget-previous"), "{error}");
    let text = || fs::read_to_string(&map).unwrap();
    assert!(text().contains("epoch = 2\n") && !text().contains("settled"));
    planned(&map, &["--drain", "4", "--write", "--forget-previous"]).unwrap();
    assert!(text().contains("epoch = 3\n") && text().contains("settled = 2\n"), "{}", text());
    // A new layout for an empty cluster needs none of those before it, and leaves who is drained alone.
    let anew = ["cluster", "plan", "--config", map.to_str().unwrap(), "--stored", "0", "--new", "--write"];
    assert!(reservoir(&anew).status.success());
    assert!(text().contains("epoch = 4\n") && text().contains("settled = 4\n"), "{}", text());
    assert_eq!(text().matches("drain = true").count(), 2, "{}", text());
}

#[test]
fn a_target_replaces_another_in_its_place() {
    let place = tempfile::tempdir().unwrap();
    let (data, new) = (place.path().join("data"), place.path().join("new.toml"));
    let map = made(&data, "12");
    write_target(&new, &map, 13, "another");
    let add = ["--add", new.to_str().unwrap()];
    let with_new = |map: &Path, wish: &[&str]| planned(map, &[&add[..], wish].concat());
    let before = fs::read_to_string(&map).unwrap();
    let refused = |wish: &[&str], why: &str| {
        let error = with_new(&map, wish).unwrap_err();
        assert!(error.contains(why), "{wish:?}: {error}");
    };
    refused(&["--replace", "77=13"], "there is no target 77");
    refused(&["--replace", "7=5"], "target 5 has a place already");
    refused(&["--replace", "7=14"], "target 14 is not in the map, or is to be drained: add it with --add FILE");
    refused(
        &["--replace", "7=13", "--replace", "8=13", "--drop-copies"],
        "--replace 8=13: say once what becomes of a target",
    );
    refused(&["--replace", "7=13", "--remove", "7"], "--replace 7=13: say once what becomes of a target");
    refused(&["--replace", "7"], "write for example 7=19");
    assert_eq!(fs::read_to_string(&map).unwrap(), before);

    let plan = with_new(&map, &["--replace", "7=13", "--write"]).unwrap();
    assert_eq!((&plan["regroups"], &plan["written"]), (&false.into(), &true.into()), "{plan}");
    let moved = &plan["moved_bytes"];
    let rows = serde_json::json!([
        { "id": 7, "leaves_bytes": moved, "arrives_bytes": 0 },
        { "id": 13, "leaves_bytes": 0, "arrives_bytes": moved },
    ]);
    assert_eq!(plan["targets"], rows);
    let cells = |text: &str| {
        let map: toml::Table = toml::from_str(text).unwrap();
        let cells = map["layout"]["cell"].as_array().unwrap().clone();
        cells.into_iter().map(|cell| cell["targets"].to_string()).collect::<Vec<String>>().join(" ")
    };
    let after = fs::read_to_string(&map).unwrap();
    let swapped = cells(&before).replace('7', "13");
    assert_eq!(cells(&after), swapped);
    assert!(!after.contains("\nid = 7\n") && after.contains("\nid = 13\n"));

    // With one target to a domain, and as many domains as copies, only one of its own domain can do it.
    let three = made(&place.path().join("three"), "3");
    write_target(&new, &three, 13, "disk-001");
    let error = with_new(&three, &["--replace", "2=13"]).unwrap_err();
    assert!(error.contains("target 13 cannot take the place of target 2"), "{error}");
    write_target(&new, &three, 13, "another");
    let plan = with_new(&three, &["--replace", "2=13"]).unwrap();
    assert_eq!(plan["regroups"], false, "{plan}");
}

#[test]
fn what_cannot_be_planned_is_refused_where_it_was_said() {
    let place = tempfile::tempdir().unwrap();
    let map = made(&place.path().join("data"), "4");
    let before = fs::read_to_string(&map).unwrap();
    let new = place.path().join("new.toml");
    let refused = |wish: &[&str], why: &[&str]| {
        let error = planned(&map, &[wish, &["--write"]].concat()).unwrap_err();
        assert!(why.iter().all(|why| error.contains(why)) && error.lines().count() == 1, "{error}");
        assert_eq!(fs::read_to_string(&map).unwrap(), before);
    };
    refused(&["--remove", "1", "--drop-copies", "--drain", "1"], &["say once what becomes of target 1"]);
    refused(&["--capacity", "3=-5GiB"], &["--capacity 3=-5GiB", "write a size"]);
    let add = ["--add", new.to_str().unwrap()];
    write_target(&new, &map, 9, "disk-009");
    let good = fs::read_to_string(&new).unwrap();
    for (from, to, why) in [
        ("data = \"targets/9\"", "data = \"targets/3\"", "targets 3 and 9 have one directory"),
        ("address = \"127.0.0.1:20009\"", "address = \"127.0.0.1:99999\"", "line 4: "),
        ("capacity = \"", "capacity = \"-", "cannot be added: "),
    ] {
        assert!(good.contains(from), "{good}");
        fs::write(&new, good.replace(from, to)).unwrap();
        refused(&add, &[why]);
    }
}
