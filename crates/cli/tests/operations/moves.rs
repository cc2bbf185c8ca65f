//! What moves can be stopped, goes on, and is cancelled at any moment; everything is read meanwhile.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::common::{Cluster, content};

const OBJECTS: u64 = 24;
const BYTES: usize = 1_500_000;

fn read_all(cluster: &Cluster) {
    for n in 0..OBJECTS {
        assert!(cluster.run(&["get", &format!("o{n}"), "-o", "-"]) == content(BYTES, n), "o{n} is another");
    }
}

/// Changes the map by a command, and reads everything. What the command says.
fn change(cluster: &Cluster, words: &[&str]) -> Value {
    let said = cluster.run(&[&["cluster"], words, &["--json"]].concat());
    read_all(cluster);
    serde_json::from_slice(&said).unwrap()
}

fn target(status: &Value, id: u64) -> &Value {
    status["targets"].as_array().unwrap().iter().find(|target| target["id"] == id).unwrap()
}

fn wait_until_whole(cluster: &Cluster, epoch: &Value) -> Value {
    cluster.wait_for("whole", |status| status["epoch"] == *epoch && status["whole"] == true)
}

#[test]
fn what_moves_is_stopped_goes_on_and_is_cancelled() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "6"]);
    for n in 0..OBJECTS {
        assert!(cluster.try_run(&["put", "-", &format!("o{n}")], &content(BYTES, n)).status.success());
    }
    let before = cluster.wait_for("whole", |status| status["whole"] == true);
    let had = target(&before, 6)["chunks"].as_u64().unwrap();
    assert!(had > 5, "{before}");

    // Paused before it begins: nothing moves, and all is said.
    assert_eq!(change(&cluster, &["pause"]), serde_json::json!({ "epoch": 2, "moves_paused": true }));
    assert_eq!(change(&cluster, &["pause"])["epoch"], 2, "it is so already");
    let plan = change(&cluster, &["drain", "6"]);
    assert!(plan["written"] == true && plan["moved_bytes"].as_u64() > Some(0), "{plan}");
    let seen = cluster.wait_for("paused", |status| status["epoch"] == 3 && status["strayed"].as_u64() >= Some(had - 1));
    assert_eq!(
        (&seen["moves_paused"], &seen["at_risk"], &target(&seen, 6)["drained"]),
        (&true.into(), &0.into(), &true.into())
    );
    let text = String::from_utf8(cluster.run(&["status"])).unwrap();
    assert!(text.contains("copies stay where they are: `reservoir cluster resume` lets them move again"), "{text}");
    std::thread::sleep(Duration::from_secs(4));
    let later = cluster.status();
    assert_eq!(
        (&later["moved_chunks"], &later["restored_chunks"]),
        (&seen["moved_chunks"], &seen["restored_chunks"]),
        "{later}"
    );
    assert_eq!(target(&later, 6)["chunks"], had);

    let resumed = change(&cluster, &["resume"]);
    let whole = cluster.wait_for("moved", |status| {
        status["epoch"] == resumed["epoch"] && status["whole"] == true && target(status, 6)["chunks"] == 0
    });
    assert_eq!(whole["moves_paused"], false);

    // Changed one's mind: at once, and later.
    let restored = change(&cluster, &["restore", "6"]);
    wait_until_whole(&cluster, &restored["epoch"]);
    change(&cluster, &["drain", "5"]);
    let cancelled = change(&cluster, &["restore", "5"]);
    let whole = wait_until_whole(&cluster, &cancelled["epoch"]);
    assert!(whole["targets"].as_array().unwrap().iter().all(|target| target["drained"] == false), "{whole}");
    let (small, large) = ("4=512MiB", "4=1GiB");
    change(&cluster, &["weight", small]);
    let back = change(&cluster, &["weight", large]);
    wait_until_whole(&cluster, &back["epoch"]);
    let drained = change(&cluster, &["drain", "6"]);
    wait_until_whole(&cluster, &drained["epoch"]);
    // Who was drained has taken another's place at once.
    let replaced = change(&cluster, &["replace", "5", "6", "--forget-previous"]);
    let whole = wait_until_whole(&cluster, &replaced["epoch"]);
    assert_eq!((target(&whole, 6)["drained"].as_bool(), whole["targets"].as_array().unwrap().len()), (Some(false), 5));
    would_come_and_go(&cluster, place.path());
    assert!(cluster.stop());
}

/// What a target would move that comes, or takes another's place, is said, and nothing is written.
fn would_come_and_go(cluster: &Cluster, place: &Path) {
    let (file, epoch) = (place.join("seventh.toml"), cluster.status()["epoch"].as_u64().unwrap());
    let entry = "[[target]]\nid = 7\ndomain = \"seventh\"\naddress = \"127.0.0.1:20999\"\ndata = \"targets/7\"\ncapacity = \"1GiB\"\n";
    fs::write(&file, entry).unwrap();
    let file = file.to_str().unwrap();
    for words in [&["add", file][..], &["replace", "4", "7", "--add", file]] {
        let plan = change(cluster, &[words, &["--dry-run"]].concat());
        assert_eq!((plan["epoch"].as_u64(), &plan["written"]), (Some(epoch + 1), &false.into()), "{plan}");
        assert!(plan["moved_bytes"].as_u64() > Some(0), "{plan}");
    }
    assert_eq!(cluster.status()["epoch"], epoch);
}
