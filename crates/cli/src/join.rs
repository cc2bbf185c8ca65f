//! How a target joins a cluster: what it and a gateway say to each other over the gateway's HTTP port, each proving that it has the
//! cluster's key (`docs/join.md` has the format).

mod newcomer;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use blake3::Hash;
use protocol::limits;
use serde::{Deserialize, Serialize};

pub(crate) use newcomer::prepare;

/// The version of this exchange.
pub(crate) const VERSION: u8 = 1;
/// Where a fresh number is had.
pub(crate) const CHALLENGE: &str = "/v1/challenge";
/// Where a target joins.
pub(crate) const JOIN: &str = "/v1/join";
/// Header with the number that was had.
pub(crate) const CHALLENGE_HEADER: &str = "x-reservoir-challenge";
/// Header with the tag of a request or an answer.
pub(crate) const TAG_HEADER: &str = "x-reservoir-tag";
/// Most bytes of a request.
pub(crate) const REQUEST_BYTES: usize = 16 << 10;
/// Most bytes of an answer: the longest map in base64, and words.
pub(crate) const ANSWER_BYTES: u64 = (limits::MAP_BYTES as u64).div_ceil(3) * 4 + (64 << 10);
/// How old a number may be.
const FRESH: Duration = Duration::from_secs(60);

/// What a target asks for.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Request {
    /// [`VERSION`].
    pub(crate) version: u8,
    /// Random, so that no answer to another request is taken for the one to this.
    pub(crate) nonce: String,
    /// Whether it asked before and may not have heard the answer.
    pub(crate) again: bool,
    /// The id that it wants.
    pub(crate) id: Option<u32>,
    /// The target whose place it takes.
    pub(crate) replace: Option<u32>,
    /// Whether it does so when that target may have every copy of some objects.
    pub(crate) drop_copies: bool,
    /// Its failure domain.
    pub(crate) domain: Option<String>,
    /// The name of its machine.
    pub(crate) host: String,
    /// Where it listens.
    pub(crate) listen: SocketAddr,
    /// Where it serves its metrics.
    pub(crate) metrics: Option<SocketAddr>,
    /// The directory of its store, from the root on.
    pub(crate) data: String,
    /// What its files may take, with a unit.
    pub(crate) capacity: String,
}

/// What a gateway answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Answer {
    /// [`VERSION`].
    pub(crate) version: u8,
    /// The id of the target.
    pub(crate) id: u32,
    /// What the new map moves, for people.
    pub(crate) says: String,
    /// The map that has the target, as nodes hand it to each other, in base64.
    pub(crate) map: String,
}

/// What both sides prove to have: the cluster's key, for this use alone.
#[derive(Clone)]
pub(crate) struct JoinKey([u8; 32]);

impl JoinKey {
    /// Of the cluster with this key.
    pub(crate) fn new(key: &[u8]) -> Self {
        Self(blake3::derive_key("reservoir 2026-11 a target joins a cluster", key))
    }

    /// The tag of a request.
    pub(crate) fn request_tag(&self, challenge: &str, body: &[u8]) -> Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(b"request").update(&(challenge.len() as u64).to_le_bytes());
        hasher.update(challenge.as_bytes()).update(body).finalize()
    }

    /// The tag of an answer to the request with this tag.
    pub(crate) fn answer_tag(&self, request: &Hash, status: u16, body: &[u8]) -> Hash {
        let mut hasher = blake3::Hasher::new_keyed(&self.0);
        hasher.update(b"answer").update(request.as_bytes()).update(&status.to_le_bytes()).update(body).finalize()
    }
}

/// Gives out numbers that are fresh for a while, and remembers none of them: strangers may ask for any number.
pub(crate) struct Challenges {
    began: Instant,
    key: [u8; 32],
}

impl Challenges {
    /// From now on.
    pub(crate) fn new() -> anyhow::Result<Self> {
        let mut key = [0; 32];
        getrandom::fill(&mut key).context("the system gives no random numbers")?;
        Ok(Self { began: Instant::now(), key })
    }

    /// A fresh number.
    pub(crate) fn give(&self, now: Instant) -> String {
        let millis = now.duration_since(self.began).as_millis() as u64;
        format!("{millis:016x}{}", &blake3::keyed_hash(&self.key, &millis.to_le_bytes()).to_hex()[..32])
    }

    /// Whether this is one that was given a moment ago.
    pub(crate) fn is_fresh(&self, challenge: &str, now: Instant) -> bool {
        let millis = challenge.get(..16).and_then(|text| u64::from_str_radix(text, 16).ok());
        let given = millis.and_then(|millis| self.began.checked_add(Duration::from_millis(millis)));
        // Only whoever has the cluster's key gets as far as this comparison.
        given.is_some_and(|given| {
            challenge == self.give(given) && now.checked_duration_since(given).is_some_and(|age| age <= FRESH)
        })
    }
}

/// The tag in a header.
pub(crate) fn tag(text: &str) -> anyhow::Result<Hash> {
    Hash::from_hex(text).ok().context("the tag is none")
}

/// Whether this program speaks that version.
pub(crate) fn check_version(version: u8) -> anyhow::Result<()> {
    ensure!(
        version == VERSION,
        "the other side speaks version {version} of joining, and this one {VERSION}: update the older one"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn a_number_is_good_for_a_while_and_only_where_it_was_given() {
        let here = Challenges::new().unwrap();
        let now = here.began + Duration::from_secs(7);
        let given = here.give(now);
        assert!(here.is_fresh(&given, now) && here.is_fresh(&given, now + FRESH));
        assert!(!here.is_fresh(&given, now + FRESH + Duration::from_millis(1)));
        assert!(!here.is_fresh(&given, now - Duration::from_secs(1)), "not given yet");
        assert!(!Challenges::new().unwrap().is_fresh(&given, now));
        for wrong in ["", "0", "ü", &"f".repeat(48), &given[..47], &given.replace('7', "8"), &format!("{given}0")] {
            assert!(*wrong == *given || !here.is_fresh(wrong, now), "{wrong}");
        }
    }

    #[test]
    fn tags_are_as_they_were() {
        let key = JoinKey::new(&[7; 32]);
        let request = key.request_tag("0123", b"{}");
        let answer = key.answer_tag(&request, 200, b"[]");
        assert_eq!(request.to_hex().as_str(), FIXED[0]);
        assert_eq!(answer.to_hex().as_str(), FIXED[1]);
        assert_ne!(key.request_tag("01", b"23{}"), request);
        assert_ne!(key.answer_tag(&request, 409, b"[]"), answer);
        assert_ne!(JoinKey::new(&[8; 32]).request_tag("0123", b"{}"), request);
    }

    const FIXED: [&str; 2] = [
        "eca10e2b2c51f7b04030f2d82fecca84cb5a4884c7da79eb88270088a596c112",
        "a11ad3690375b1f859cdd863056a7cc136c7d389381e3097559f68eb0f50754e",
    ];

    #[test]
    fn a_request_is_written_as_it_was() {
        let request = Request {
            version: VERSION,
            nonce: "00".repeat(16),
            again: false,
            id: None,
            replace: Some(7),
            drop_copies: false,
            domain: None,
            host: "s4".to_owned(),
            listen: ([10, 0, 0, 7], 7000).into(),
            metrics: None,
            data: "/srv/disk/store".to_owned(),
            capacity: "2TiB".to_owned(),
        };
        let text = "{\"version\":1,\"nonce\":\"00000000000000000000000000000000\",\"again\":false,\"id\":null,\"replace\":7,\
                    \"drop_copies\":false,\"domain\":null,\"host\":\"s4\",\"listen\":\"10.0.0.7:7000\",\"metrics\":null,\
                    \"data\":\"/srv/disk/store\",\"capacity\":\"2TiB\"}";
        assert_eq!(serde_json::to_string(&request).unwrap(), text);
        assert!(serde_json::from_str::<Request>(text).is_ok() && check_version(2).is_err());
        let answer = "{\"version\":1,\"id\":10,\"says\":\"epoch 2\",\"map\":\"AQ==\"}";
        assert_eq!(serde_json::to_string(&serde_json::from_str::<Answer>(answer).unwrap()).unwrap(), answer);
    }
}
