//! The ids in every answer: `x-amz-request-id` names the request, `x-amz-id-2` the gateway that answered it.

use std::sync::atomic::{AtomicU64, Ordering};

use http::{HeaderMap, HeaderValue};

/// Bytes behind the id of a gateway.
const GATEWAY: usize = 48;
/// Odd, so that ids repeat only after all of 64 bits, and far from 1, so that they do not look alike.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Gives each request of a gateway an id.
pub(crate) struct RequestIds {
    next: AtomicU64,
    gateway: String,
}

impl RequestIds {
    /// For a gateway that begins.
    ///
    /// # Errors
    /// When the system has no randomness.
    pub(crate) fn new() -> Result<Self, String> {
        let mut bytes = [0; GATEWAY];
        let random = getrandom::fill(&mut bytes).and_then(|()| getrandom::u64());
        let first = random.map_err(|failure| format!("no randomness for the ids of requests: {failure}"))?;
        Ok(Self { next: AtomicU64::new(first), gateway: base64_simd::STANDARD.encode_to_string(bytes) })
    }

    /// The id of the next request.
    pub(crate) fn next(&self) -> String {
        format!("{:016X}", self.next.fetch_add(STEP, Ordering::Relaxed))
    }

    /// The id of the gateway.
    pub(crate) fn gateway(&self) -> &str {
        &self.gateway
    }

    /// Sets both in an answer.
    pub(crate) fn set(&self, request: &str, headers: &mut HeaderMap) {
        for (name, id) in [("x-amz-request-id", request), ("x-amz-id-2", self.gateway())] {
            if let Ok(value) = HeaderValue::from_str(id) {
                headers.insert(name, value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_request_has_an_id_of_its_own() {
        let ids = RequestIds::new().expect("ids");
        let all: std::collections::BTreeSet<String> = (0..10_000).map(|_| ids.next()).collect();
        assert_eq!(all.len(), 10_000);
        assert!(all.iter().all(|id| id.len() == 16));
        let mut headers = HeaderMap::new();
        ids.set("00AB", &mut headers);
        assert_eq!(headers.get("x-amz-request-id").map(HeaderValue::as_bytes), Some(&b"00AB"[..]));
        assert_eq!(headers.get("x-amz-id-2").map(HeaderValue::len), Some(64));
    }
}
