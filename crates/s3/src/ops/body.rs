//! Bodies: that of a request as a source of bytes with checksums, that of an answer as a stream.

use std::error::Error as StdError;
use std::pin::Pin;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use hex_simd::AsciiCase;
use object::objects::{Reader, Sealed, Source};
use object::seal::DataKey;
use s3s::checksum::ChecksumHasher;
use s3s::crypto::{Checksum as _, Crc32, Crc32c, Crc64Nvme, Sha1, Sha256};
use s3s::dto::StreamingBlob;
use s3s::stream::{ByteStream, RemainingLength};
use s3s::{S3Error, S3ErrorCode, S3Result, StdError as BoxError, TrailingHeaders, s3_error};
use tokio::runtime::Handle;
use tokio::sync::mpsc;

use super::etag::Etag;
use crate::rules::attributes::{Attributes, CHECKSUM_TYPE};
use crate::rules::checksums::{self, CHECKSUMS, Checksums, trailer};
use crate::rules::encryption::Sealing;
use crate::rules::error;
use crate::state::activity::Activity;
use crate::state::fair_queue::{self, CHECK_INTERVAL, ClientSpeed, Permit};

/// How long a client may send nothing of its object, or take nothing of its answer.
const IDLE: Duration = Duration::from_secs(60);
/// Pieces of an answer that wait for a slow client.
const AHEAD: usize = 2;

/// What a request says of its body.
#[derive(Default)]
pub(crate) struct Expected {
    /// Its length in bytes, if that is given.
    pub(crate) length: Option<i64>,
    /// `Content-MD5`.
    pub(crate) md5: Option<String>,
    /// Checksums in headers.
    pub(crate) checksums: Checksums,
    /// The checksum's algorithm, if it is named. The value may be in the trailer.
    pub(crate) algorithm: Option<String>,
    /// Names of the checksums in the trailer.
    pub(crate) trailer: Option<String>,
    /// The trailer.
    pub(crate) trailers: Option<TrailingHeaders>,
}

impl Expected {
    /// Refuses what no body can fulfil, before it is asked for.
    pub(crate) fn check(&self) -> S3Result<()> {
        if self.md5.as_deref().is_some_and(|text| md5(text).is_none()) {
            return Err(S3ErrorCode::InvalidDigest.into());
        }
        if let Some(name) = &self.algorithm {
            checksums::check_algorithm(name)?;
        }
        checksums::announced(self.trailer.as_deref())?;
        checksums::check(&self.checksums)
    }
}

/// The hash in `Content-MD5`.
fn md5(text: &str) -> Option<Vec<u8>> {
    base64_simd::STANDARD.decode_to_vec(text).ok().filter(|bytes| bytes.len() == 16)
}

/// The origin of bytes.
enum Origin {
    /// The body of a request. It is read on a thread that may block, so that `s3s` verifies signed bodies there as well.
    Body(StreamingBlob),
    /// An object that is copied, as long as its request exists.
    Object(Reader, Weak<()>),
    /// They have ended.
    Nowhere,
}

/// Bytes that are put, and their checksums.
pub(crate) struct Incoming {
    origin: Origin,
    runtime: Handle,
    expected: Expected,
    /// Bytes that have come.
    seen: u64,
    md5: Option<Etag>,
    hasher: ChecksumHasher,
    /// The permit of a request with a body. It may be lost when the body comes too slowly.
    permit: Option<Permit>,
    pace: ClientSpeed,
    /// Whether they are compressed, if the bucket says so.
    pub(crate) compress: Option<bool>,
    /// What they are encrypted with, if they are.
    sealing: Option<Sealing>,
}

impl Incoming {
    /// The body of a request.
    pub(crate) fn new(body: Option<StreamingBlob>, expected: Expected, permit: Permit) -> Self {
        Self { permit: Some(permit), ..Self::from(body.map_or(Origin::Nowhere, Origin::Body), expected) }
    }

    /// The bytes of an object that is copied. The copy ends when the request that `asked` belongs to is dropped, because
    /// its client left.
    pub(crate) fn copying(reader: Reader, asked: Weak<()>, expected: Expected) -> Self {
        Self::from(Origin::Object(reader, asked), expected)
    }

    /// The same, encrypted with this.
    pub(crate) fn sealed(mut self, sealing: Option<Sealing>) -> Self {
        self.sealing = sealing;
        self
    }

    fn from(origin: Origin, expected: Expected) -> Self {
        let mut hasher = ChecksumHasher::default();
        let mut any = false;
        let trailer = expected.trailer.as_deref().unwrap_or_default().to_ascii_lowercase();
        let algorithm = expected.algorithm.as_deref().unwrap_or_default().to_ascii_lowercase();
        for name in CHECKSUMS {
            let wanted = expected.checksums.iter().any(|(requested, _)| *requested == name)
                || trailer.split(',').any(|requested| requested.trim() == name)
                || name.strip_prefix("x-amz-checksum-") == Some(algorithm.as_str());
            if wanted {
                any = true;
                switch_on(&mut hasher, name);
            }
        }
        if !any {
            // The default of S3.
            switch_on(&mut hasher, CHECKSUMS[2]);
        }
        let md5 = Some(Etag::new());
        let (permit, pace) = (None, ClientSpeed::default());
        let runtime = Handle::current();
        Self { origin, runtime, expected, seen: 0, md5, hasher, permit, pace, compress: None, sealing: None }
    }

    fn verify(&mut self, size: u64) -> S3Result<Sealed> {
        if let Some(length) = self.expected.length
            && length != i64::try_from(size).unwrap_or(i64::MAX)
        {
            return Err(s3_error!(IncompleteBody, "the body has {size} bytes, and should have {length}"));
        }
        let md5 = self.md5.take().map(Etag::finish).unwrap_or_default();
        if let Some(requested) = &self.expected.md5 {
            match self::md5(requested) {
                None => return Err(S3ErrorCode::InvalidDigest.into()),
                Some(requested) if requested[..] != md5[..] => return Err(S3ErrorCode::BadDigest.into()),
                Some(_) => {}
            }
        }
        let computed = checksums::from_dto(std::mem::take(&mut self.hasher).finalize());
        let mut requested = std::mem::take(&mut self.expected.checksums);
        requested.extend(trailer(self.expected.trailer.as_deref(), self.expected.trailers.take())?);
        for (name, value) in &requested {
            if !computed.iter().any(|(other, sum)| other == name && sum == value) {
                return Err(s3_error!(BadDigest, "the {name} that you gave is not that of the body"));
            }
        }
        let mut attributes = Attributes::new();
        attributes.extend(computed.into_iter().map(|(name, value)| (name.to_owned(), value)));
        attributes.insert(CHECKSUM_TYPE.to_owned(), "FULL_OBJECT".to_owned());
        let tag = self.sealing.as_ref().map_or_else(|| md5.to_vec(), |sealing| sealing.tag(&md5));
        let etag = hex_simd::encode_to_string(tag, AsciiCase::Lower);
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

/// The next part of a body. An error when it does not come in time, or too slowly while others wait for the permit.
async fn wait_for(
    body: &mut StreamingBlob,
    permit: Option<&Permit>,
    pace: &mut ClientSpeed,
) -> Result<Option<Result<Bytes, BoxError>>, String> {
    let begin = Instant::now();
    let mut counted = Duration::ZERO;
    loop {
        let part = tokio::time::timeout(CHECK_INTERVAL, body.next()).await;
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
        if pace.is_slow() && permit.is_some_and(Permit::is_wanted) {
            return Err(fair_queue::slow());
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
        let part = self.runtime.block_on(wait_for(body, self.permit.as_ref(), &mut self.pace));
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

    fn key(&self) -> Option<DataKey> {
        self.sealing.as_ref().map(|sealing| sealing.key.clone())
    }

    fn seal(&mut self, size: u64) -> Result<Sealed, Box<dyn StdError + Send + Sync>> {
        self.verify(size).map_err(error::boxed)
    }
}

/// The body of an answer, as a stream. It ends with an error when a chunk cannot be read: the connection is closed then,
/// as the length was promised.
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

/// The bytes of `reader`, whose first piece was read already, as a stream. The permit is held until the client has received the
/// last piece or has left, or takes too little (`activity`) while others wait.
pub(crate) fn stream(
    first: Option<Bytes>,
    mut reader: Reader,
    length: u64,
    permit: Permit,
    activity: Option<Arc<Activity>>,
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
            let mut pace = ClientSpeed::default();
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
                let sent = runtime.block_on(hand_over(piece, &sender, &permit, activity.as_deref(), &mut pace));
                // The client has left or takes too little: the answer ends short of its length.
                if broken || !sent {
                    return;
                }
            }
        });
    }
    StreamingBlob::new(Outgoing { pieces, length })
}

/// Waits for room for a piece of an answer; `false` when there will be none.
async fn hand_over(
    piece: Result<Bytes, BoxError>,
    sender: &mpsc::Sender<Result<Bytes, BoxError>>,
    permit: &Permit,
    activity: Option<&Activity>,
    pace: &mut ClientSpeed,
) -> bool {
    let begin = Instant::now();
    let (mut counted, mut received) = (Duration::ZERO, activity.map_or(0, Activity::received));
    loop {
        let room = tokio::time::timeout(CHECK_INTERVAL, sender.reserve()).await;
        let waited = begin.elapsed();
        let now_received = activity.map_or(0, Activity::received);
        pace.count(waited - counted, now_received - received);
        (counted, received) = (waited, now_received);
        match room {
            Ok(Ok(room)) => {
                room.send(piece);
                return true;
            }
            Ok(Err(_)) => return false,
            Err(_) if waited >= IDLE || pace.is_slow() && permit.is_wanted() => return false,
            Err(_) => {}
        }
    }
}
