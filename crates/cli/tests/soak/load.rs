//! Clients that put, put in parts, copy, replace, read, list and remove objects, each under keys of its own.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use protocol::rng::Rng;

use crate::client::{Answer, S3};
use crate::model::{Key, Object};
use crate::story::{Kind, Story};

pub(crate) const BUCKET: &str = "soak";
/// Keys of a client.
const KEYS: u64 = 30;
/// Milliseconds that a client rests at most after a request: what is replaced is garbage for the grace time of cleaning, and must have room.
const REST: u64 = 400;
/// And after one that failed.
const FAILED_REST: u64 = 600;
/// A first part, which must be so large; and how much larger the whole may be.
const FIRST_PART: usize = 5 << 20;
const TAIL: u64 = 1 << 20;
/// Bytes of an object that is to fill the disks, and how many of them there are at most.
const FILLING: usize = 12 << 20;
const FILLINGS: usize = 400;
/// Refusals after which the disks count as full.
const FULL: u64 = 3;

/// See the [module](self).
pub(crate) struct Client<'a> {
    prefix: String,
    numbers: Rng,
    keys: Vec<Key>,
    s3: &'a S3,
    story: &'a Story,
    /// Why the last request failed.
    problem: String,
}

impl<'a> Client<'a> {
    pub(crate) fn new(number: u64, seed: u64, s3: &'a S3, story: &'a Story) -> Self {
        let prefix = format!("client-{number}/");
        let keys = (0..KEYS).map(|key| Key::new(format!("{prefix}{key:02}"))).collect();
        Self { prefix, numbers: Rng::new(seed).fork(number), keys, s3, story, problem: String::new() }
    }

    /// Asks for one thing after the other until it is over.
    pub(crate) fn work(&mut self) {
        while !self.story.is_over() {
            let key = self.numbers.below(KEYS) as usize;
            let done = match self.numbers.below(100) {
                0..30 => {
                    let object = self.new_object();
                    self.put(key, object)
                }
                30 => self.put_in_parts(key),
                31..37 => self.copy(key),
                37..62 => self.get(key),
                62..72 => self.get_range(key),
                72..80 => self.head(key),
                80..84 => self.list(),
                _ => self.delete(key),
            };
            self.rest(done);
        }
    }

    fn rest(&mut self, done: bool) {
        let most = if done { REST } else { FAILED_REST };
        std::thread::sleep(Duration::from_millis(self.numbers.below(most)));
    }

    /// Bytes of its own; often few, seldom several chunks, and around the sizes at which objects are stored in another way.
    fn new_object(&mut self) -> Object {
        let (seed, around) = (self.numbers.next_u64(), self.numbers.below(5) as usize);
        let length = match self.numbers.below(20) {
            0 => 0,
            1..8 => self.numbers.below(2_000) as usize,
            8 => (64 << 10) - 2 + around,
            9 => (1 << 20) - 2 + around,
            10..19 => self.numbers.below(300_000) as usize,
            _ => self.numbers.below(4 << 20) as usize,
        };
        Object { seed, length }
    }

    /// The answer; `None` when it failed in a way that faults explain. Everything but these statuses is wrong.
    fn ask(
        &mut self,
        kind: Kind,
        (method, key): (&str, &str),
        query: &[(&str, &str)],
        headers: &[(&str, &str)],
        body: &[u8],
        good: &[u16],
    ) -> Option<Answer> {
        let address = self.s3.address_with(method, (BUCKET, key), query, headers, Timestamp::now());
        let began = Instant::now();
        let answer = self.s3.send(method, &address, headers, body);
        let took = began.elapsed();
        let (good, problem) = match answer {
            Ok(answer) if good.contains(&answer.status) => (Some(answer), String::new()),
            Ok(answer) => {
                let problem = format!("{} {}", answer.status, answer.text());
                if answer.status < 500 {
                    self.story.fail(&format!("{method} {key} {query:?} {headers:?} is answered {problem}"));
                }
                (None, problem)
            }
            Err(ureq::Error::Timeout(_)) => {
                self.story.fail(&format!("{method} {key} {query:?}: no answer in {took:?}"));
                (None, "no answer".to_owned())
            }
            Err(error) => (None, error.to_string()),
        };
        self.story.count(kind, good.is_some(), took);
        self.problem = problem;
        good
    }

    fn remember(&mut self, key: usize, what: &str, done: bool) {
        let outcome = if done { "done" } else { &self.problem };
        let line = format!("{:.1} s  {what}: {outcome}", self.story.seconds());
        self.keys[key].remember(line);
    }

    fn wrong(&self, key: usize, what: &str) {
        self.story.fail(&format!("{what}: {}", self.keys[key].tell()));
    }

    /// A change was done, or has failed.
    fn changed(&mut self, key: usize, what: &str, object: Option<Object>, done: bool) -> bool {
        self.remember(key, what, done);
        if done {
            self.keys[key].is(object)
        } else {
            self.keys[key].may_be(object)
        }
        done
    }

    fn put(&mut self, key: usize, object: Object) -> bool {
        let name = self.keys[key].name.clone();
        let done = self.ask(Kind::Put, ("PUT", &name), &[], &[], &object.bytes(), &[200]).is_some();
        self.changed(key, &format!("put {object:?}"), Some(object), done)
    }

    fn delete(&mut self, key: usize) -> bool {
        let name = self.keys[key].name.clone();
        let done = self.ask(Kind::Delete, ("DELETE", &name), &[], &[], b"", &[204]).is_some();
        self.changed(key, "delete", None, done)
    }

    /// A copy of another of its objects.
    fn copy(&mut self, key: usize) -> bool {
        let from = self.numbers.below(KEYS) as usize;
        let Some(Some(object)) = self.keys[from].certain().filter(|_| from != key) else { return self.get(from) };
        let name = self.keys[key].name.clone();
        let source = format!("/{BUCKET}/{}", self.keys[from].name);
        let headers = [("x-amz-copy-source", source.as_str())];
        let answer = self.ask(Kind::Copy, ("PUT", &name), &[], &headers, b"", &[200]);
        let done = answer.is_some_and(|answer| answer.text().contains("<ETag>"));
        self.changed(key, &format!("copy of {source}, {object:?}"), Some(object), done)
    }

    fn put_in_parts(&mut self, key: usize) -> bool {
        let length = FIRST_PART + self.numbers.below(TAIL) as usize;
        let object = Object { seed: self.numbers.next_u64(), length };
        let name = self.keys[key].name.clone();
        let begun = self.ask(Kind::Parts, ("POST", &name), &[("uploads", "")], &[], b"", &[200]);
        let Some(upload) = begun.map(|answer| answer.element("UploadId")) else { return false };
        let bytes = object.bytes();
        let mut listed = String::new();
        for (number, part) in [("1", &bytes[..FIRST_PART]), ("2", &bytes[FIRST_PART..])] {
            let query = [("partNumber", number), ("uploadId", upload.as_str())];
            let Some(answer) = self.ask(Kind::Parts, ("PUT", &name), &query, &[], part, &[200]) else {
                // What is not aborted is, at the end.
                let _ = self.ask(Kind::Parts, ("DELETE", &name), &[("uploadId", &upload)], &[], b"", &[204]);
                return false;
            };
            let etag = answer.header("etag").to_owned();
            listed += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{etag}</ETag></Part>");
        }
        let body = format!("<CompleteMultipartUpload>{listed}</CompleteMultipartUpload>");
        let answer = self.ask(Kind::Parts, ("POST", &name), &[("uploadId", &upload)], &[], body.as_bytes(), &[200]);
        // The status comes before the work is done.
        let done = answer.is_some_and(|answer| answer.text().contains("<ETag>"));
        self.changed(key, &format!("put in parts {object:?}"), Some(object), done)
    }

    fn get(&mut self, key: usize) -> bool {
        let name = self.keys[key].name.clone();
        let answer = self.ask(Kind::Get, ("GET", &name), &[], &[], b"", &[200, 404]);
        self.remember(key, "get", answer.is_some());
        let Some(answer) = answer else { return false };
        let bytes = (answer.status == 200).then_some(&answer.body[..]);
        if !self.keys[key].saw(bytes) {
            let what = format!("a get of {name} is answered {} with {} bytes", answer.status, answer.body.len());
            self.wrong(key, &what);
        }
        match bytes {
            Some(bytes) => self.story.compared(bytes.len()),
            None => self.story.missed(),
        }
        true
    }

    fn get_range(&mut self, key: usize) -> bool {
        let Some(Some(object)) = self.keys[key].certain().filter(|object| object.is_some_and(|o| o.length > 0)) else {
            return self.get(key);
        };
        let first = self.numbers.below(object.length as u64) as usize;
        let last = first + self.numbers.below((object.length - first) as u64) as usize;
        let name = self.keys[key].name.clone();
        let range = format!("bytes={first}-{last}");
        let answer = self.ask(Kind::Range, ("GET", &name), &[], &[("range", &range)], b"", &[206, 404]);
        self.remember(key, &format!("get of {range}"), answer.is_some());
        let Some(answer) = answer else { return false };
        if answer.status != 206 || answer.body != object.bytes()[first..=last] {
            let what = format!("a get of {range} is answered {} with {} bytes", answer.status, answer.body.len());
            self.wrong(key, &what);
        }
        self.story.compared(answer.body.len());
        true
    }

    fn head(&mut self, key: usize) -> bool {
        let name = self.keys[key].name.clone();
        let answer = self.ask(Kind::Head, ("HEAD", &name), &[], &[], b"", &[200, 404]);
        self.remember(key, "head", answer.is_some());
        let Some(answer) = answer else { return false };
        let length = answer.header("content-length").parse();
        let known = &self.keys[key];
        let is_good = match answer.status {
            200 => length.is_ok_and(|length| known.may_have(length)),
            _ => known.may_be_absent(),
        };
        if !is_good {
            self.wrong(key, &format!("a head is answered {} {:?}", answer.status, answer.headers));
        }
        true
    }

    /// All that is there of its keys, with their sizes, page by page.
    fn listed(&mut self) -> Option<BTreeMap<String, usize>> {
        let most = (1 + self.numbers.below(2 * KEYS)).to_string();
        let (prefix, mut found, mut after) = (self.prefix.clone(), BTreeMap::new(), String::new());
        loop {
            let mut query = vec![("list-type", "2"), ("prefix", prefix.as_str()), ("max-keys", most.as_str())];
            if !after.is_empty() {
                query.push(("continuation-token", after.as_str()));
            }
            let answer = self.ask(Kind::List, ("GET", ""), &query, &[], b"", &[200])?;
            let sizes = answer.elements("Size").into_iter().map(|size| size.parse().unwrap());
            found.extend(answer.elements("Key").into_iter().zip(sizes));
            if answer.element("IsTruncated") != "true" {
                return Some(found);
            }
            after = answer.element("NextContinuationToken");
        }
    }

    fn list(&mut self) -> bool {
        let Some(found) = self.listed() else { return false };
        for (at, key) in self.keys.iter().enumerate() {
            let is_good = match found.get(&key.name) {
                Some(size) => key.may_have(*size),
                None => key.may_be_absent(),
            };
            if !is_good {
                self.wrong(at, &format!("a list has of it {:?}", found.get(&key.name)));
            }
        }
        let strange = found.keys().find(|name| !self.keys.iter().any(|key| key.name == **name));
        if let Some(name) = strange {
            self.story.fail(&format!("a list has {name}, which nobody put"));
        }
        true
    }

    /// Puts until the disks are full, and removes all of it, whenever it is asked to.
    pub(crate) fn fill_when_asked(&mut self, asked: &AtomicBool) {
        while !self.story.is_over() {
            if asked.load(Ordering::SeqCst) {
                self.fill();
                asked.store(false, Ordering::SeqCst);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    fn fill(&mut self) {
        let (mut refused, mut count) = (0, 0);
        while refused < FULL && count < FILLINGS && !self.story.is_over() {
            if count == self.keys.len() {
                self.keys.push(Key::new(format!("{}{count:02}", self.prefix)));
            }
            let object = Object { seed: self.numbers.next_u64(), length: FILLING };
            if !self.put(count, object) {
                let is_full = self.problem.contains("full targets: ") && !self.problem.contains("full targets: none");
                refused += u64::from(is_full);
                self.rest(false);
            }
            count += 1;
        }
        if refused < FULL {
            self.story.say("the disks did not get full");
        } else {
            let fits = self.keys.iter().filter(|key| key.may_be_present() && !key.may_be_absent()).count();
            self.story.fault("full disks", &format!("after {} MiB more; all that goes again", (fits * FILLING) >> 20));
        }
        for _ in 0..3 {
            let key = self.numbers.below(count.max(1) as u64) as usize;
            self.get(key);
        }
        for key in 0..self.keys.len() {
            while self.keys[key].may_be_present() && !self.story.is_over() && !self.delete(key) {
                self.rest(false);
            }
        }
    }

    /// Reads, or misses, all of its keys, and lists them: nothing may fail any more.
    pub(crate) fn check(&mut self) {
        for key in 0..self.keys.len() {
            if !self.get(key) {
                let what = format!("it cannot be read when all is whole: {}", self.problem);
                self.wrong(key, &what);
            }
        }
        if !self.list() {
            self.story.fail(&format!("a list fails when all is whole: {}", self.problem));
        }
    }

    /// Aborts all uploads under way.
    pub(crate) fn abort_uploads(&mut self) {
        let query = [("uploads", ""), ("prefix", &self.prefix.clone())];
        let answer = self.ask(Kind::Parts, ("GET", ""), &query, &[], b"", &[200]).expect("a list of uploads");
        for (key, upload) in answer.elements("Key").iter().zip(answer.elements("UploadId")) {
            self.ask(Kind::Parts, ("DELETE", key), &[("uploadId", &upload)], &[], b"", &[204]).expect("an abort");
        }
    }

    /// What it has, and how many keys it ever had.
    pub(crate) fn objects(&self) -> (Vec<Object>, usize) {
        (self.keys.iter().filter_map(|key| key.certain().flatten()).collect(), self.keys.len())
    }
}
