//! Two gateways over one catalog in a real PostgreSQL: what concurrent clients of both see is what one copy could have
//! answered, also when a gateway is killed and when the database crashes meanwhile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Mutex};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use md5::{Digest, Md5};
use sim::linear::{Did, Operation, Value, linearizable};
use testkit::Postgres;

use crate::client::{Answer, S3};
use crate::common::{Cluster, content, error_of, signal};

/// Clients, half of them on each gateway.
const CLIENTS: usize = 8;
/// Keys that are fought for at once.
const KEYS: usize = 3;
/// What a client does before all go on with other keys: a short history is judged soon.
const TURNS: usize = 12;
/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);

/// A cluster with two gateways and their database.
struct Bench {
    cluster: Cluster,
    clients: [S3; 2],
    server: Postgres,
    url: String,
    _place: tempfile::TempDir,
}

impl Bench {
    /// `None`, with the reason printed, where PostgreSQL cannot be had.
    fn start() -> Option<Self> {
        let server = Postgres::start().inspect_err(|why| println!("skipped: {why:#}")).ok()?;
        let place = tempfile::tempdir().unwrap();
        let url = server.database().unwrap();
        let args = ["--targets", "3", "--gateways", "2", "--catalog", &url];
        let cluster = Cluster::start(&place.path().join("data"), &args);
        let first = S3::of(&cluster);
        let printed = cluster.output();
        let second =
            printed.lines().find_map(|line| line.strip_prefix("another endpoint: ")).expect("a second endpoint");
        let clients = [first.clone(), S3::new(second, &first.key, &first.secret)];
        Some(Self { cluster, clients, server, url, _place: place })
    }

    /// Fails unless the catalog and the manifests agree.
    fn check(&self) {
        self.cluster.run(&["catalog", "check", "--catalog", &self.url]);
    }

    /// Waits until both gateways answer again.
    fn wait(&self) {
        let deadline = Instant::now() + LIMIT;
        for client in &self.clients {
            while !matches!(ask(client, "GET", "", "", &[], b""), Some(answer) if answer.status == 200) {
                assert!(Instant::now() < deadline, "{} does not answer: {}", client.endpoint, self.cluster.output());
                std::thread::sleep(Duration::from_millis(50));
            }
        }
    }
}

/// Asks; `None` when there was no answer, or one that leaves open what happened.
fn ask(s3: &S3, method: &str, bucket: &str, key: &str, headers: &[(&str, &str)], body: &[u8]) -> Option<Answer> {
    let address = s3.address_with(method, (bucket, key), &[], headers, Timestamp::now());
    s3.send(method, &address, headers, body).ok().filter(|answer| answer.status < 500)
}

/// The bytes that stand for a value: some ride in the manifest, some are chunks of their own.
fn bytes_of(value: u64) -> Vec<u8> {
    let mut bytes = value.to_string().into_bytes();
    bytes.push(b' ');
    if value.is_multiple_of(4) {
        bytes.extend(content(70_000, value));
    }
    bytes
}

fn value_of(bytes: &[u8]) -> u64 {
    let digits = bytes.split(|byte| *byte == b' ').next().unwrap();
    let value = String::from_utf8_lossy(digits).parse().unwrap();
    assert!(bytes_of(value) == bytes, "{value} is not whole");
    value
}

fn tag_of(value: u64) -> String {
    hex_simd::encode_to_string(Md5::digest(bytes_of(value)), hex_simd::AsciiCase::Lower)
}

/// All that clients saw.
struct Story {
    /// The beginning of all its keys.
    name: &'static str,
    begin: Instant,
    next: AtomicU64,
    /// Values by the entity tag that lists show.
    tags: Mutex<BTreeMap<String, u64>>,
    histories: Mutex<BTreeMap<(String, String), Vec<Operation>>>,
}

impl Story {
    fn new(name: &'static str) -> Self {
        let begin = Instant::now();
        Self { name, begin, next: AtomicU64::new(1), tags: Mutex::default(), histories: Mutex::default() }
    }

    fn now(&self) -> u64 {
        self.begin.elapsed().as_nanos() as u64
    }

    fn note(&self, bucket: &str, key: &str, did: Did, called: u64, answered: Option<u64>) {
        let mut histories = self.histories.lock().unwrap();
        histories.entry((bucket.to_owned(), key.to_owned())).or_default().push(Operation { did, called, answered });
    }

    fn new_value(&self) -> u64 {
        let value = self.next.fetch_add(1, Ordering::SeqCst);
        self.tags.lock().unwrap().insert(tag_of(value), value);
        value
    }

    /// Puts a new value when `condition` holds: nothing is there, or this value.
    fn swap(&self, s3: &S3, bucket: &str, key: &str, from: Value) {
        let value = self.new_value();
        let tag = from.map(|from| format!("\"{}\"", tag_of(from)));
        let header = tag.as_deref().map_or(("if-none-match", "*"), |tag| ("if-match", tag));
        let called = self.now();
        let answer = ask(s3, "PUT", bucket, key, &[header], &bytes_of(value));
        let answered = answer.is_some().then(|| self.now());
        let did = match answer.as_ref().map(|answer| answer.status) {
            None | Some(200) => Did::Swap { from, value },
            Some(412) => Did::Mismatch(from),
            Some(404) if from.is_some() => Did::Read(None),
            // Others were always in the way: nothing was changed.
            Some(409) => return,
            Some(other) => panic!("{other}: {}", answer.unwrap().text()),
        };
        self.note(bucket, key, did, called, answered);
    }

    fn put(&self, s3: &S3, bucket: &str, key: &str) {
        let value = self.new_value();
        let called = self.now();
        let answer = ask(s3, "PUT", bucket, key, &[], &bytes_of(value));
        let answered = answer.map(|answer| answer.is(200)).map(|_| self.now());
        self.note(bucket, key, Did::Write(Some(value)), called, answered);
    }

    fn delete(&self, s3: &S3, bucket: &str, key: &str) {
        let called = self.now();
        let answer = ask(s3, "DELETE", bucket, key, &[], b"");
        let answered = answer.map(|answer| answer.is(204)).map(|_| self.now());
        self.note(bucket, key, Did::Write(None), called, answered);
    }

    fn get(&self, s3: &S3, bucket: &str, key: &str) -> Option<Value> {
        let called = self.now();
        let answer = ask(s3, "GET", bucket, key, &[], b"")?;
        let found = (answer.status != 404).then(|| value_of(&answer.is(200).body));
        self.note(bucket, key, Did::Read(found), called, Some(self.now()));
        Some(found)
    }

    /// One list reads all of `keys`.
    fn list(&self, s3: &S3, bucket: &str, prefix: &str, keys: &[String]) {
        let called = self.now();
        let query = [("list-type", "2"), ("prefix", prefix)];
        let address = s3.address("GET", bucket, "", &query, Timestamp::now());
        let Some(answer) = s3.send("GET", &address, &[], b"").ok().filter(|answer| answer.status == 200) else {
            return;
        };
        let answered = self.now();
        let found: BTreeMap<String, String> = answer.elements("Key").into_iter().zip(answer.elements("ETag")).collect();
        for key in keys {
            let tag = found.get(key).map(|tag| tag.replace("&quot;", "").replace('"', ""));
            let value = tag.map(|tag| self.tags.lock().unwrap()[&tag]);
            self.note(bucket, key, Did::Read(value), called, Some(answered));
        }
    }

    /// Panics unless every history is linearizable; how many operations there were.
    fn judge(&self) -> usize {
        let histories = self.histories.lock().unwrap();
        for ((bucket, key), history) in histories.iter() {
            if !linearizable(None, history) {
                let mut history = history.clone();
                history.sort_by_key(|operation| operation.called);
                let lines: Vec<String> = history.iter().map(|operation| format!("{operation:?}\n")).collect();
                panic!("{bucket}/{key} is not linearizable:\n{}", lines.concat());
            }
        }
        histories.values().map(Vec::len).sum()
    }
}

/// Clients of both gateways fight for a few keys; then for others, while `go_on` says so of the round.
fn fight(clients: &[S3; 2], story: &Story, go_on: &(dyn Fn(usize) -> bool + Sync)) {
    let meet = Barrier::new(CLIENTS);
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for n in 0..CLIENTS {
            let (meet, over) = (&meet, &over);
            let s3 = clients[n % 2].clone();
            scope.spawn(move || {
                for round in 0.. {
                    if meet.wait().is_leader() {
                        over.store(!go_on(round), Ordering::SeqCst);
                    }
                    meet.wait();
                    if over.load(Ordering::SeqCst) {
                        return;
                    }
                    let prefix = format!("{}-{round}/", story.name);
                    let keys: Vec<String> = (0..KEYS).map(|key| format!("{prefix}{key}")).collect();
                    turns(story, &s3, ["plain", "kept"][round % 2], &prefix, &keys, n);
                }
            });
        }
    });
}

fn turns(story: &Story, s3: &S3, bucket: &str, prefix: &str, keys: &[String], n: usize) {
    let dice = content(TURNS * 2, story.next.load(Ordering::SeqCst) * 8 + n as u64);
    for turn in dice.chunks(2) {
        let key = &keys[turn[0] as usize % keys.len()];
        match turn[1] % 8 {
            0 | 1 => story.put(s3, bucket, key),
            2 => story.swap(s3, bucket, key, None),
            3 | 4 => {
                if let Some(found) = story.get(s3, bucket, key) {
                    story.swap(s3, bucket, key, found);
                }
            }
            5 => story.delete(s3, bucket, key),
            6 => story.list(s3, bucket, prefix, keys),
            _ => drop(story.get(s3, bucket, key)),
        }
    }
}

/// What is there in the end is a part of the history of each key, by both gateways.
fn read_all(clients: &[S3; 2], story: &Story) {
    let names: Vec<(String, String)> = story.histories.lock().unwrap().keys().cloned().collect();
    for (bucket, key) in names {
        for client in clients {
            story.get(client, &bucket, &key).expect("an answer");
        }
    }
}

#[test]
fn two_gateways_are_one_store() {
    let Some(mut bench) = Bench::start() else { return };
    bench.clients[0].put("plain", "", b"").is(200);
    bench.clients[1].put("kept", "", b"").is(200);
    let xml = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    bench.clients[0].ask("PUT", ("kept", ""), &[("versioning", "")], &[], xml).is(200);
    uploads(&bench.clients);
    users(&bench);
    compression(&bench.clients);
    what_expires_goes_once(&bench);
    let story = Story::new("calm");
    fight(&bench.clients, &story, &|round| round < 16);
    read_all(&bench.clients, &story);
    println!("{} operations without faults", story.judge());
    bench.check();
    gateways_are_killed(&bench);
    bench.check();
    the_database_crashes(&mut bench);
    bench.check();
    // Their runs end, and others begin.
    let before = bench.cluster.children("gateway");
    before.iter().for_each(|pid| signal(*pid, "-TERM"));
    let deadline = Instant::now() + LIMIT;
    while bench.cluster.children("gateway").iter().any(|pid| before.contains(pid)) {
        assert!(Instant::now() < deadline, "the gateways do not stop: {}", bench.cluster.output());
        std::thread::sleep(Duration::from_millis(20));
    }
    bench.wait();
    // The catalog is made again while both gateways run, and says the same.
    for how in ["--dry-run", "--from-manifests", "--json"] {
        bench.cluster.run(&["catalog", "rebuild", how, "--catalog", &bench.url]);
        bench.check();
    }
    let tags = bench.clients[0].list("packed", &[("tagging", "")]).is(200);
    assert_eq!(tags.elements("Key"), ["reservoir:compress"], "{}", tags.text());
    read_all(&bench.clients, &story);
    story.judge();
}

/// A setting of a bucket made at one gateway counts for the other at once.
fn compression([first, second]: &[S3; 2]) {
    first.put("packed", "", b"").is(200);
    let tags = "<Tagging><TagSet><Tag><Key>reservoir:compress</Key><Value>on</Value></Tag></TagSet></Tagging>";
    first.ask("PUT", ("packed", ""), &[("tagging", "")], &[], tags.as_bytes()).is(200);
    assert_eq!(second.list("packed", &[("tagging", "")]).is(200).element("Value"), "on");
    let text = b"some words that come again. ".repeat(50_000);
    second.put("packed", "k", &text).is(200);
    assert!(first.get("packed", "k").is(200).body == text);
}

/// Both look for what has expired when they start, here at the same moment.
fn what_expires_goes_once(bench: &Bench) {
    const KEYS: usize = 200;
    let [first, second] = &bench.clients;
    for bucket in ["gone", "marked"] {
        first.put(bucket, "", b"").is(200);
        for n in 0..KEYS {
            [first, second][n % 2].put(bucket, &format!("old/{n:04}"), b"x").is(200);
        }
        first.put(bucket, "new", b"x").is(200);
    }
    let versions = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    first.ask("PUT", ("marked", ""), &[("versioning", "")], &[], versions).is(200);
    let rules = "<LifecycleConfiguration><Rule><Status>Enabled</Status><Filter><Prefix>old/</Prefix></Filter>\
                 <Expiration><Date>2020-01-01T00:00:00Z</Date></Expiration></Rule></LifecycleConfiguration>";
    for bucket in ["gone", "marked"] {
        second.ask("PUT", (bucket, ""), &[("lifecycle", "")], &[], rules.as_bytes()).is(200);
    }
    bench.cluster.children("gateway").into_iter().for_each(|pid| signal(pid, "-KILL"));
    let deadline = Instant::now() + LIMIT;
    for bucket in ["gone", "marked"] {
        // While gateways start there may be no answer.
        let left = || Some(ask(first, "GET", bucket, "", &[], b"")?.elements("Key"));
        while left() != Some(vec!["new".to_owned()]) {
            assert!(Instant::now() < deadline, "{bucket}: what has expired stays: {}", bench.cluster.output());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    bench.wait();
    let all = second.list("marked", &[("versions", "")]).is(200);
    assert_eq!(all.text().matches("<DeleteMarker>").count(), KEYS, "one marker a key");
    assert_eq!(all.elements("VersionId").len(), 2 * KEYS + 1);
    assert_eq!(second.list("gone", &[("versions", "")]).is(200).elements("Key"), ["new"]);
    for log in std::fs::read_dir(bench.cluster.directory.join("logs")).unwrap().flatten() {
        let text = std::fs::read_to_string(log.path()).unwrap();
        assert!(!text.contains("what has expired stays"), "{text}");
    }
    bench.check();
}

/// `up` starts them again, each a few times.
fn gateways_are_killed(bench: &Bench) {
    let story = Story::new("killed");
    let go_on = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| fight(&bench.clients, &story, &|_| go_on.load(Ordering::SeqCst)));
        for kill in 0..4 {
            std::thread::sleep(Duration::from_millis(800));
            if let Some(pid) = bench.cluster.children("gateway").get(kill % 2) {
                signal(*pid, "-KILL");
            }
            bench.wait();
        }
        go_on.store(false, Ordering::SeqCst);
    });
    read_all(&bench.clients, &story);
    println!("{} operations while gateways were killed", story.judge());
}

fn the_database_crashes(bench: &mut Bench) {
    let story = Story::new("crashed");
    let go_on = AtomicBool::new(true);
    std::thread::scope(|scope| {
        scope.spawn(|| fight(&bench.clients, &story, &|_| go_on.load(Ordering::SeqCst)));
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(800));
            bench.server.crash().unwrap();
            std::thread::sleep(Duration::from_millis(200));
            bench.server.start_again().unwrap();
        }
        std::thread::sleep(Duration::from_millis(800));
        go_on.store(false, Ordering::SeqCst);
    });
    bench.wait();
    read_all(&bench.clients, &story);
    println!("{} operations while the database crashed", story.judge());
}

fn users(bench: &Bench) {
    let printed = String::from_utf8(bench.cluster.run(&["user", "add", "ann"])).unwrap();
    let line = |name: &str| printed.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let ann = |client: &S3| S3::new(&client.endpoint, &line("access key:"), &line("secret key:"));
    let [one, two] = &bench.clients;
    ann(one).put("hers", "", b"").is(200);
    ann(two).put("hers", "k", b"1").is(200);
    two.get("hers", "k").fails(403, "AccessDenied");
    ann(two).delete("hers", "k").is(204);
    ann(one).delete("hers", "").is(204);
}

/// An upload belongs to no gateway.
fn uploads([one, two]: &[S3; 2]) {
    let begin = |s3: &S3| s3.ask("POST", ("plain", "u"), &[("uploads", "")], &[], b"").is(200).element("UploadId");
    let part = |s3: &S3, id: &str, number: &str, body: &[u8]| {
        s3.ask("PUT", ("plain", "u"), &[("partNumber", number), ("uploadId", id)], &[], body)
    };
    let complete = |s3: &S3, id: &str, tags: &[String]| {
        let one =
            |(n, tag): (usize, &String)| format!("<Part><PartNumber>{}</PartNumber><ETag>{tag}</ETag></Part>", n + 1);
        let parts: String = tags.iter().enumerate().map(one).collect();
        let xml = format!("<CompleteMultipartUpload>{parts}</CompleteMultipartUpload>");
        s3.ask("POST", ("plain", "u"), &[("uploadId", id)], &[], xml.as_bytes())
    };
    let bodies = [content(5 << 20, 1), content(5 << 20, 2), content(77, 3)];
    let id = begin(one);
    assert_eq!(two.list("plain", &[("uploads", "")]).is(200).element("UploadId"), id);
    let put = |s3: &S3, n: usize| part(s3, &id, &(n + 1).to_string(), &bodies[n]).is(200).header("etag").to_owned();
    let tags = [put(one, 0), put(two, 1), put(one, 2)];
    let listed = two.ask("GET", ("plain", "u"), &[("uploadId", &id)], &[], b"").is(200);
    assert_eq!(listed.elements("PartNumber"), ["1", "2", "3"]);
    // Both complete it at once: it is one object.
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| complete(one, &id, &tags));
        (complete(two, &id, &tags), first.join().unwrap())
    });
    assert!(first.status == 200 || second.status == 200, "{} {}", first.text(), second.text());
    assert!(matches!((first.status, second.status), (200 | 404, 200 | 404)), "{} {}", first.text(), second.text());
    assert!(two.get("plain", "u").is(200).body == bodies.concat());
    assert!(one.get("plain", "u").is(200).body == bodies.concat());
    part(two, &id, "4", b"late").fails(404, "NoSuchUpload");
    let id = begin(two);
    part(one, &id, "1", b"1").is(200);
    one.ask("DELETE", ("plain", "u"), &[("uploadId", &id)], &[], b"").is(204);
    part(two, &id, "2", b"2").fails(404, "NoSuchUpload");
    assert_eq!(two.list("plain", &[("uploads", "")]).is(200).element("UploadId"), "");
}

#[test]
fn several_gateways_without_a_shared_catalog_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let data = place.path().join("data");
    let error = error_of(&["up", "--once", "--targets", "3", "--gateways", "2", "--data", data.to_str().unwrap()]);
    assert!(error.contains("--catalog postgres://"), "{error}");
}
