//! A gateway that is killed at random moments while objects are put, put in parts, replaced and removed: what was
//! acknowledged is there, what was not is there as a whole or not at all.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::client::S3;
use crate::common::{Cluster, content, reservoir};
use jiff::Timestamp;
use protocol::rng::Rng;

/// Times that the gateway is killed.
const KILLS: u64 = 50;
/// Clients, each with keys of its own in both buckets, so that it knows what they should hold.
const CLIENTS: u64 = 4;
const KEYS: u64 = 6;
/// One without versions, one with.
const BUCKETS: [&str; 2] = ["plain", "versioned"];
/// Bytes of a small object, of one of a chunk and of one of several; and of an upload's first part.
const SIZES: [usize; 3] = [300, 150_000, 1_200_000];
const FIRST_PART: usize = 5 << 20;
/// Milliseconds that a client rests at most after a change: all that was ever put stays on this machine's disk, thrice.
const REST: u64 = 40;
const LIMIT: Duration = Duration::from_secs(60);

/// What a key holds: an object, by the seed and length of its bytes, or nothing.
type Object = Option<(u64, usize)>;

/// What is known of a key.
#[derive(Clone, Debug, Default)]
struct Key {
    acknowledged: Object,
    /// What requests without an answer may have made of it.
    maybe: Vec<Object>,
}

/// One client and its keys.
struct Client {
    number: u64,
    numbers: Rng,
    keys: BTreeMap<(usize, u64), Key>,
    answered: u64,
}

impl Client {
    fn new(number: u64, seed: u64) -> Self {
        let keys = (0..BUCKETS.len()).flat_map(|bucket| (0..KEYS).map(move |key| ((bucket, key), Key::default())));
        Self { number, numbers: Rng::new(seed).fork(number), keys: keys.collect(), answered: 0 }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.numbers.below(below)
    }

    fn name(&self, key: u64) -> String {
        format!("{}/{key}", self.number)
    }

    /// Asks for changes until the gateway is gone.
    fn work(&mut self, s3: &S3, over: &AtomicBool) {
        while !over.load(Ordering::Relaxed) {
            let (bucket, key) = (self.random(2) as usize, self.random(KEYS));
            let (place, name) = (BUCKETS[bucket], self.name(key));
            let seed = self.random(u64::MAX);
            // Few in parts, for the sake of the disk.
            let (object, done) = match self.random(20) {
                0..=3 => (None, ask(s3, "DELETE", place, &name, &[], b"").map(drop)),
                4 => {
                    let tail = self.random(100_000) as usize;
                    (Some((seed, FIRST_PART + tail)), in_parts(s3, place, &name, seed, tail))
                }
                _ => {
                    let size = SIZES[self.random(3) as usize];
                    (Some((seed, size)), ask(s3, "PUT", place, &name, &[], &content(size, seed)).map(drop))
                }
            };
            let known = self.keys.get_mut(&(bucket, key)).unwrap();
            if done.is_none() {
                known.maybe.push(object);
                return;
            }
            known.acknowledged = object;
            self.answered += 1;
            std::thread::sleep(Duration::from_millis(self.random(REST)));
        }
    }

    /// Reads every key: it holds what was acknowledged, or what was asked for last.
    fn check(&mut self, s3: &S3, listed: &[Vec<String>; 2], round: u64) {
        let number = self.number;
        for ((bucket, key), known) in &mut self.keys {
            let (place, name) = (BUCKETS[*bucket], format!("{number}/{key}"));
            let answer = s3.get(place, &name);
            let holds = |object: &Object| match object {
                None => answer.status == 404,
                Some((seed, size)) => answer.status == 200 && answer.body == content(*size, *seed),
            };
            let found = std::iter::once(&known.acknowledged).chain(&known.maybe).find(|object| holds(object)).copied();
            let Some(found) = found else {
                panic!(
                    "kill {round}: {place}/{name} answers {} with {} bytes and should be {known:?}",
                    answer.status,
                    answer.body.len()
                );
            };
            assert_eq!(listed[*bucket].contains(&name), found.is_some(), "kill {round}: {place}/{name} in the list");
            *known = Key { acknowledged: found, maybe: vec![] };
        }
    }
}

/// The answer, if there was one and it was good.
fn ask(
    s3: &S3,
    method: &str,
    bucket: &str,
    key: &str,
    query: &[(&str, &str)],
    body: &[u8],
) -> Option<crate::client::Answer> {
    let address = s3.address(method, bucket, key, query, Timestamp::now());
    let answer = s3.send(method, &address, &[], body).ok()?;
    // Answered, but not done: the gateway lives, so this is an error of its own.
    assert!(answer.status < 300, "{method} {bucket}/{key}: {} {}", answer.status, answer.text());
    Some(answer)
}

/// Puts an object in two parts.
fn in_parts(s3: &S3, bucket: &str, key: &str, seed: u64, tail: usize) -> Option<()> {
    let upload = ask(s3, "POST", bucket, key, &[("uploads", "")], b"")?.element("UploadId");
    let bytes = content(FIRST_PART + tail, seed);
    let mut xml = String::new();
    for (number, part) in [("1", &bytes[..FIRST_PART]), ("2", &bytes[FIRST_PART..])] {
        let answer = ask(s3, "PUT", bucket, key, &[("partNumber", number), ("uploadId", &upload)], part)?;
        let etag = answer.header("etag");
        xml.push_str(&format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>"));
    }
    let xml = format!("<CompleteMultipartUpload>{xml}</CompleteMultipartUpload>");
    let answer = ask(s3, "POST", bucket, key, &[("uploadId", &upload)], xml.as_bytes())?;
    // The status comes before the work is done.
    answer.text().contains("<ETag>").then_some(())
}

/// A gateway that the test starts and kills itself.
struct Gateway(std::process::Child);

impl Gateway {
    fn start(config: &str, s3: &S3) -> Self {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_reservoir"));
        let child = command.args(["gateway", "--config", config]).stderr(std::process::Stdio::null()).spawn().unwrap();
        let deadline = Instant::now() + LIMIT;
        let address = || s3.address("GET", "", "", &[], Timestamp::now());
        while !s3.send("GET", &address(), &[], b"").is_ok_and(|answer| answer.status == 200) {
            assert!(Instant::now() < deadline, "the gateway does not answer");
            std::thread::sleep(Duration::from_millis(10));
        }
        Self(child)
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Every key of a bucket.
fn list(s3: &S3, bucket: &str) -> Vec<String> {
    s3.list(bucket, &[("list-type", "2")]).is(200).elements("Key")
}

fn no_gateway(cluster: &Cluster) {
    crate::common::signal(cluster.children("gateway")[0], "-KILL");
    let deadline = Instant::now() + LIMIT;
    while !cluster.output().contains("stays down") {
        assert!(Instant::now() < deadline, "{}", cluster.output());
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn what_was_acknowledged_survives_fifty_kills_of_the_gateway() {
    let seed = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_nanos() as u64;
    println!("seed {seed}");
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--no-restart"]);
    let (s3, config) = (S3::of(&cluster), cluster.config());
    for bucket in BUCKETS {
        s3.put(bucket, "", b"").is(200);
    }
    let on = "<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    s3.ask("PUT", (BUCKETS[1], ""), &[("versioning", "")], &[], on.as_bytes()).is(200);
    no_gateway(&cluster);
    let mut clients: Vec<Client> = (0..CLIENTS).map(|number| Client::new(number, seed)).collect();
    let mut moments = Client::new(CLIENTS, seed);
    for round in 1..=KILLS {
        let mut gateway = Gateway::start(&config, &s3);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for client in &mut clients {
                let (s3, over) = (&s3, &over);
                scope.spawn(move || client.work(s3, over));
            }
            std::thread::sleep(Duration::from_millis(20 + moments.random(400)));
            gateway.0.kill().unwrap();
            gateway.0.wait().unwrap();
            over.store(true, Ordering::Relaxed);
        });
        drop(gateway);
        let _gateway = Gateway::start(&config, &s3);
        let listed = BUCKETS.map(|bucket| list(&s3, bucket));
        clients.iter_mut().for_each(|client| client.check(&s3, &listed, round));
    }
    let answered: u64 = clients.iter().map(|client| client.answered).sum();
    println!("{answered} changes were acknowledged");
    assert!(answered > KILLS, "next to nothing was asked for");
    check_catalog(&config);
}

/// The catalog has what the manifests say, but for what was never answered.
fn check_catalog(config: &str) {
    let checked = reservoir(&["catalog", "check", "--config", config]);
    let printed = String::from_utf8_lossy(&checked.stdout).into_owned() + &String::from_utf8_lossy(&checked.stderr);
    println!("{printed}");
    assert!(checked.status.success(), "{printed}");
    // What the killed gateways left is no cause for alarm.
    assert!(!printed.contains("lost") && (!printed.contains("leftovers") || printed.contains("harmless")), "{printed}");
    let checked = reservoir(&["catalog", "check", "--json", "--config", config]);
    let found: serde_json::Value = serde_json::from_slice(&checked.stdout).unwrap();
    assert!(checked.status.success() && found["harmless"].is_array(), "{found}");
    for key in ["differences", "remarks"] {
        assert_eq!(found[key], serde_json::json!([]), "{found}");
    }
}
