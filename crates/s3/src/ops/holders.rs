//! Where an object's chunks are: a GetObject with a header of its own, so that who may read an object may know, and nobody else.

use std::ops::Range;

use bytes::Bytes;
use catalog::Row;
use http::{HeaderMap, HeaderValue};
use object::objects;
use protocol::redundancy::Redundancy;
use s3s::dto::{GetObjectOutput, StreamingBlob};
use s3s::{Body, S3Response, S3Result, s3_error};

use crate::rules::error;
use crate::rules::holders::{ChunkHolders, HOLDERS, MOST_CHUNKS, ObjectHolders, PieceHolders};
use crate::state::State;

/// Of how many chunks it is asked, if it is.
pub(super) fn most(headers: &HeaderMap) -> S3Result<Option<usize>> {
    let Some(value) = headers.get(HOLDERS) else { return Ok(None) };
    let most = value.to_str().ok().and_then(|text| text.parse().ok()).filter(|most| (1..=MOST_CHUNKS).contains(most));
    most.map(Some).ok_or_else(|| s3_error!(InvalidArgument, "{HOLDERS} is a number of chunks, 1 to {MOST_CHUNKS}"))
}

/// The answer's bytes.
pub(super) fn find(state: &State, row: &Row, range: &Range<u64>, most: usize) -> S3Result<Bytes> {
    let found = state.objects.holders(row, range, most).map_err(error::s3)?;
    let answer = ObjectHolders {
        chunks: found.chunks.iter().map(of_chunk).collect(),
        has_more: found.has_more,
        silent: found.silent.iter().map(|target| target.0).collect(),
    };
    let text = serde_json::to_vec(&answer);
    text.map(Bytes::from).map_err(|failure| s3_error!(InternalError, "the answer cannot be written: {failure}"))
}

fn of_chunk(chunk: &objects::ChunkHolders) -> ChunkHolders {
    let holders = chunk.holders.iter().map(|(piece, targets)| PieceHolders {
        piece: piece.map(|piece| piece.0),
        targets: targets.iter().map(|target| target.0).collect(),
    });
    let code = chunk.id.code().map(|code| Redundancy::Code(code).to_string());
    ChunkHolders { id: chunk.id.to_string(), bytes: chunk.bytes, code, holders: holders.collect() }
}

/// The answer.
pub(super) fn respond(text: Bytes) -> S3Response<GetObjectOutput> {
    let mut response = S3Response::new(GetObjectOutput {
        content_length: i64::try_from(text.len()).ok(),
        content_type: Some("application/json".to_owned()),
        body: Some(StreamingBlob::from(Body::from(text))),
        ..GetObjectOutput::default()
    });
    response.headers.insert(HOLDERS, HeaderValue::from_static("here"));
    response
}
