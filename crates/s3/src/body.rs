//! Bodies: a request's as a source of bytes with its sums, an answer's as a stream.

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use object::objects::{Reader, Sealed, Source};
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
use s3s::dto::{Checksum, StreamingBlob};
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{S3Error, S3ErrorCode, S3Result, StdError as BoxError, TrailingHeaders, s3_error};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use crate::attributes::{Attributes, CHECKSUM_TYPE};
use crate::chunks;
use crate::error;
use crate::etag::Etag;
use crate::pulse::Pulse;
use crate::turn::{self, LOOK, Leave, Pace};

/// How long a client may neither send of its object nor take of what it asked for.
const IDLE: Duration = Duration::from_secs(60);
/// Pieces of an answer that wait for a slow client.
const AHEAD: usize = 2;

/// The checksums of S3, and the headers that carry them.
pub(crate) const CHECKSUMS: [&str; 5] = [
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
];

/// Checksums by header, in base64.
pub(crate) type Sums = Vec<(&'static str, String)>;

/// The values of a set of checksums.
pub(crate) fn sums(checksum: Checksum) -> Sums {
    let values = [
        checksum.checksum_crc32,
        checksum.checksum_crc32c,
        checksum.checksum_crc64nvme,
        checksum.checksum_sha1,
        checksum.checksum_sha256,
    ];
    CHECKSUMS.into_iter().zip(values).filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Takes the checksums that a request gives: every kind of request has these fields of its own.
macro_rules! given_sums {
    ($input:expr) => {
        $crate::body::sums(s3s::dto::Checksum {
            checksum_crc32: $input.checksum_crc32.take(),
            checksum_crc32c: $input.checksum_crc32c.take(),
            checksum_crc64nvme: $input.checksum_crc64nvme.take(),
            checksum_sha1: $input.checksum_sha1.take(),
            checksum_sha256: $input.checksum_sha256.take(),
            ..s3s::dto::Checksum::default()
        })
    };
}
pub(crate) use given_sums;

/// What the request says of its body.
#[derive(Default)]
pub(crate) struct Expected {
    /// Bytes, when it says so.
    pub(crate) length: Option<i64>,
    /// `Content-MD5`.
    pub(crate) md5: Option<String>,
    /// Checksums that came as headers.
    pub(crate) sums: Sums,
    /// The algorithm that is named; its value may be in the trailer.
    pub(crate) algorithm: Option<String>,
    /// Names of checksums that the trailer brings.
    pub(crate) trailer: Option<String>,
    /// What came after the body.
    pub(crate) trailers: Option<TrailingHeaders>,
}

/// Where bytes come from.
enum Origin {
    /// A request's body. It is read on a thread that may block; so `s3s` verifies signed bodies there as well.
    Body(StreamingBlob),
    /// An object that is copied, while somebody waits for it.
    Object(Reader, Weak<()>),
    /// They have ended.
    Nowhere,
}

/// Bytes that are put, and their sums.
pub(crate) struct Incoming {
    origin: Origin,
    runtime: Handle,
    expected: Expected,
    /// Bytes that have come.
    seen: u64,
    md5: Option<Etag>,
    hasher: ChecksumHasher,
    /// Of who brings a body: it is kept from others only while the body comes.
    turn: Option<Leave>,
    pace: Pace,
    /// Whether the bucket wants them compressed, when it says.
    pub(crate) compress: Option<bool>,
}

impl Incoming {
    /// A body that should be as the request says.
    pub(crate) fn new(body: Option<StreamingBlob>, expected: Expected, turn: Leave) -> Self {
        Self { turn: Some(turn), ..Self::from(body.map_or(Origin::Nowhere, Origin::Body), expected) }
    }

    /// The bytes of an object that is copied. It ends when what `asked` is a part of is dropped, which a request is when its
    /// client leaves: large copies must not go on for nobody.
    pub(crate) fn copying(reader: Reader, asked: Weak<()>, expected: Expected) -> Self {
        Self::from(Origin::Object(reader, asked), expected)
    }

    fn from(origin: Origin, expected: Expected) -> Self {
        let mut hasher = ChecksumHasher::default();
        let mut any = false;
        let trailer = expected.trailer.as_deref().unwrap_or_default().to_ascii_lowercase();
        let algorithm = expected.algorithm.as_deref().unwrap_or_default().to_ascii_lowercase();
        for name in CHECKSUMS {
            let wanted = expected.sums.iter().any(|(given, _)| *given == name)
                || trailer.split(',').any(|given| given.trim() == name)
                || name.strip_prefix("x-amz-checksum-") == Some(algorithm.as_str());
            if wanted {
                any = true;
                switch_on(&mut hasher, name);
            }
        }
        if !any {
            // What S3 does when nothing is asked for.
            switch_on(&mut hasher, CHECKSUMS[2]);
        }
        let md5 = Some(Etag::new());
        let (turn, pace) = (None, Pace::default());
        Self { origin, runtime: Handle::current(), expected, seen: 0, md5, hasher, turn, pace, compress: None }
    }

    fn verify(&mut self, size: u64) -> S3Result<Sealed> {
        if let Some(length) = self.expected.length
            && length != i64::try_from(size).unwrap_or(i64::MAX)
        {
            return Err(s3_error!(IncompleteBody, "the body has {size} bytes, and should have {length}"));
        }
        let md5 = self.md5.take().map(Etag::finish).unwrap_or_default();
        if let Some(given) = &self.expected.md5 {
            let given = base64_simd::STANDARD.decode_to_vec(given).ok().filter(|bytes| bytes.len() == 16);
            match given {
                None => return Err(S3ErrorCode::InvalidDigest.into()),
                Some(given) if given[..] != md5[..] => return Err(S3ErrorCode::BadDigest.into()),
                Some(_) => {}
            }
        }
        let computed = sums(std::mem::take(&mut self.hasher).finalize());
        let mut given = std::mem::take(&mut self.expected.sums);
        given.extend(chunks::trailer(self.expected.trailer.as_deref(), self.expected.trailers.take())?);
        for (name, value) in &given {
            if !computed.iter().any(|(other, sum)| other == name && sum == value) {
                return Err(s3_error!(BadDigest, "the {name} that you gave is not that of the body"));
            }
        }
        let mut attributes = Attributes::new();
        attributes.extend(computed.into_iter().map(|(name, value)| (name.to_owned(), value)));
        attributes.insert(CHECKSUM_TYPE.to_owned(), "FULL_OBJECT".to_owned());
        let etag = hex(&md5);
        Ok(Sealed { etag, attributes })
    }
}

fn switch_on(hasher: &mut ChecksumHasher, name: &str) {
    match name {
        "x-amz-checksum-crc32" => hasher.crc32 = Some(Crc32::new()),
        "x-amz-checksum-crc32c" => hasher.crc32c = Some(Crc32c::new()),
        "x-amz-checksum-sha1" => hasher.sha1 = Some(Sha1::new()),
        "x-amz-checksum-sha256" => hasher.sha256 = Some(Sha256::new()),
        _ => hasher.crc64nvme = Some(Crc64Nvme::new()),
    }
}

/// The next part of a body. Late when it does not come, and when it comes too slowly while others wait for the turn.
async fn wait_for(
    body: &mut StreamingBlob,
    turn: Option<&Leave>,
    pace: &mut Pace,
) -> Result<Option<Result<Bytes, BoxError>>, String> {
    let begin = Instant::now();
    let mut counted = Duration::ZERO;
    loop {
        let part = tokio::time::timeout(LOOK, body.next()).await;
        let waited = begin.elapsed();
        let bytes = match &part {
            Ok(Some(Ok(bytes))) => bytes.len() as u64,
            _ => 0,
        };
        pace.count(waited - counted, bytes);
        counted = waited;
        if matches!(&part, Ok(None | Some(Err(_)))) {
            return part.map_err(|_| String::new());
        }
        if pace.is_slow() && turn.is_some_and(Leave::is_wanted) {
            return Err(turn::slow());
        }
        match part {
            Ok(part) => return Ok(part),
            Err(_) if waited >= IDLE => return Err(format!("nothing of the body came for {} s", IDLE.as_secs())),
            Err(_) => {}
        }
    }
}

impl Source for Incoming {
    fn next(&mut self) -> Result<Option<Bytes>, Box<dyn StdError + Send + Sync>> {
        let body = match &mut self.origin {
            Origin::Body(body) => body,
            Origin::Object(_, asked) if asked.strong_count() == 0 => {
                return Err(error::boxed(s3_error!(RequestTimeout, "the client has left")));
            }
            Origin::Object(reader, _) => return reader.piece().map_err(|e| error::boxed(error::s3(e))),
            Origin::Nowhere => return Ok(None),
        };
        let part = self.runtime.block_on(wait_for(body, self.turn.as_ref(), &mut self.pace));
        let failure = match part {
            Ok(Some(Ok(bytes))) => {
                self.seen += bytes.len() as u64;
                return Ok(Some(bytes));
            }
            Ok(None) => {
                self.origin = Origin::Nowhere;
                return Ok(None);
            }
            Ok(Some(Err(broken))) => error::broken_body(&*broken),
            Err(late) => S3Error::with_message(S3ErrorCode::RequestTimeout, late),
        };
        self.origin = Origin::Nowhere;
        Err(error::boxed(failure))
    }

    fn left(&self) -> Option<u64> {
        let length = u64::try_from(self.expected.length?).ok()?;
        Some(length.saturating_sub(self.seen))
    }

    fn digest(&mut self, bytes: &Bytes) {
        if let Some(md5) = &mut self.md5 {
            md5.update(bytes);
        }
        self.hasher.update(bytes);
    }

    fn compress(&self) -> Option<bool> {
        self.compress
    }

    fn seal(&mut self, size: u64) -> Result<Sealed, Box<dyn StdError + Send + Sync>> {
        self.verify(size).map_err(error::boxed)
    }
}

/// Hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What is read, as a stream. It ends with an error when a chunk cannot be had: the connection is broken off then, for
/// the length was promised.
pub(crate) struct Outgoing {
    pieces: mpsc::Receiver<Result<Bytes, BoxError>>,
    length: usize,
}

impl Stream for Outgoing {
    type Item = Result<Bytes, BoxError>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let next = self.pieces.poll_recv(context);
        if let Poll::Ready(Some(Ok(piece))) = &next {
            self.length = self.length.saturating_sub(piece.len());
        }
        next
    }
}

impl ByteStream for Outgoing {
    fn remaining_length(&self) -> RemainingLength {
        RemainingLength::new_exact(self.length)
    }
}

/// The bytes of `reader`, of which the first piece is there already, as a stream. The turn is held until the last was
/// taken, the client has gone, or it takes too little, which `pulse` knows, while others wait.
pub(crate) fn stream(
    first: Option<Bytes>,
    mut reader: Reader,
    length: u64,
    turn: Leave,
    pulse: Option<Arc<Pulse>>,
) -> StreamingBlob {
    let (sender, pieces) = mpsc::channel(AHEAD);
    let runtime = Handle::current();
    let length = usize::try_from(length).unwrap_or(usize::MAX);
    let whole = first.as_ref().map_or(0, Bytes::len) == length;
    if let Some(first) = first {
        let _ = sender.try_send(Ok(first));
    }
    if !whole {
        tokio::task::spawn_blocking(move || {
            let mut pace = Pace::default();
            loop {
                let piece = match reader.piece() {
                    Ok(Some(piece)) => Ok(piece),
                    Ok(None) => return,
                    Err(failure) => {
                        tracing::warn!("an object cannot be read to its end: {failure}");
                        Err(Box::new(failure) as BoxError)
                    }
                };
                let broken = piece.is_err();
                let sent = runtime.block_on(hand_over(piece, &sender, &turn, pulse.as_deref(), &mut pace));
                // Who has gone, or takes too little, gets no more: the answer ends short of its length.
                if broken || !sent {
                    return;
                }
            }
        });
    }
    StreamingBlob::new(Outgoing { pieces, length })
}

/// Waits until a piece of an answer finds room; whether it did.
async fn hand_over(
    piece: Result<Bytes, BoxError>,
    sender: &mpsc::Sender<Result<Bytes, BoxError>>,
    turn: &Leave,
    pulse: Option<&Pulse>,
    pace: &mut Pace,
) -> bool {
    let begin = Instant::now();
    let (mut counted, mut taken) = (Duration::ZERO, pulse.map_or(0, Pulse::taken));
    loop {
        let room = tokio::time::timeout(LOOK, sender.reserve()).await;
        let waited = begin.elapsed();
        let now_taken = pulse.map_or(0, Pulse::taken);
        pace.count(waited - counted, now_taken - taken);
        (counted, taken) = (waited, now_taken);
        match room {
            Ok(Ok(room)) => {
                room.send(piece);
                return true;
            }
            Ok(Err(_)) => return false,
            Err(_) if waited >= IDLE || pace.is_slow() && turn.is_wanted() => return false,
            Err(_) => {}
        }
    }
}
