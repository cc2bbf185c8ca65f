//! Bodies in chunks (`aws-chunked`). For `s3s` such a body ends where its bytes end. Here it must end with its last
//! chunk, which is empty.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use http::HeaderMap;
use hyper::body::{Body, Frame, SizeHint};
use s3s::StdError as BoxError;

/// Whether a request's body comes in chunks.
pub(crate) fn are_in(headers: &HeaderMap) -> bool {
    headers.get("x-amz-content-sha256").is_some_and(|value| value.as_bytes().starts_with(b"STREAMING-"))
}

/// A body in chunks. It is passed on unchanged, and fails when it ends before its last chunk.
pub(crate) struct Chunked<B> {
    body: B,
    chunks: Chunks,
}

impl<B> Chunked<B> {
    pub(crate) fn new(body: B) -> Self {
        Self { body, chunks: Chunks::default() }
    }
}

impl<B: Body<Data = Bytes, Error = BoxError> + Unpin> Body for Chunked<B> {
    type Data = Bytes;
    type Error = BoxError;

    fn poll_frame(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(context));
        match &frame {
            Some(Ok(frame)) => self.chunks.follow(frame.data_ref().map_or(&[], |bytes| bytes)),
            // The error comes once.
            None if !std::mem::replace(&mut self.chunks.last, true) => {
                return Poll::Ready(Some(Err("the body ended before its last chunk, which is empty".into())));
            }
            None | Some(Err(_)) => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.chunks.last && self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// The position in a body in chunks: `SIZE;...\r\n`, so many bytes, `\r\n`, and again. `s3s` refuses what is no chunk.
#[derive(Debug, Default)]
struct Chunks {
    /// What the line says, up to where it was read.
    size: u64,
    /// The digits of the size have ended.
    sized: bool,
    /// Bytes until the next line.
    left: u64,
    /// The last chunk has begun.
    last: bool,
}

impl Chunks {
    fn follow(&mut self, mut bytes: &[u8]) {
        while !self.last {
            let skipped = bytes.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
            self.left -= skipped as u64;
            let Some((byte, rest)) = bytes[skipped..].split_first() else { return };
            bytes = rest;
            match char::from(*byte).to_digit(16) {
                _ if *byte == b'\n' => {
                    (self.last, self.left) = (self.size == 0, self.size.saturating_add(2));
                    (self.size, self.sized) = (0, false);
                }
                Some(digit) if !self.sized => self.size = self.size.saturating_mul(16).saturating_add(u64::from(digit)),
                _ => self.sized = true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends(pieces: &[&[u8]]) -> bool {
        let mut chunks = Chunks::default();
        pieces.iter().for_each(|piece| chunks.follow(piece));
        chunks.last
    }

    #[test]
    fn the_last_chunk_is_found_wherever_the_bytes_are_cut() {
        let whole =
            b"5;chunk-signature=00\r\n0\r\n0\n\r\n00A\r\n0123456789\r\n0;chunk-signature=00\r\nx-amz-a:b\r\n\r\n";
        let head = whole.windows(4).rposition(|part| part == b"=00\r").map_or(0, |at| at + 5);
        for cut in 0..=whole.len() {
            assert!(ends(&[&whole[..cut], &whole[cut..]]));
            assert_eq!(ends(&[&whole[..cut]]), cut >= head, "{cut}");
        }
        assert!(!ends(&[]) && !ends(&[b"0"]) && ends(&[b"0\r\n"]) && ends(&[b"0", b"\r", b"\n"]));
        assert!(!ends(&[b"ffffffffffffffffffff\r\n", b"0\r\n0\r\n"]));
    }
}
