//! What comes over a connection: frames, each behind its length.

use std::io::ErrorKind;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use bytes::{Buf, Bytes, BytesMut};

use super::Stream;

/// Bytes of a frame's length before it.
pub(crate) const LENGTH: usize = 4;
/// The longest frame: as the longest datagram.
pub(crate) const LONGEST: usize = 65_507;

/// How far reading came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// There may be more at once.
    More,
    /// It goes on when the socket is ready.
    Waits,
    /// What came is no frame.
    Malformed,
    /// The other side does not encrypt, or not as this cluster does.
    Unencrypted,
    /// The other side is gone.
    Over,
}

impl Progress {
    /// Whether the connection is over.
    #[must_use]
    pub const fn is_end(self) -> bool {
        matches!(self, Self::Malformed | Self::Unencrypted | Self::Over)
    }
}

/// Reads from a socket, and cuts that into frames.
#[derive(Debug)]
pub struct Reader {
    stream: Arc<Stream>,
    /// Of a frame that is not whole.
    read: BytesMut,
}

impl Reader {
    /// Nothing was read yet.
    #[must_use]
    pub fn new(stream: Arc<Stream>) -> Self {
        Self { stream, read: BytesMut::new() }
    }

    /// Bytes of memory that it keeps.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.read.capacity()
    }

    /// What was read of a frame that is not whole is lost.
    #[cfg(test)]
    pub(super) fn lose_rest(&mut self) {
        self.read.clear();
    }

    /// Takes what has come, as much as fits into the buffer, and hands over each frame that is whole.
    pub fn read(&mut self, buffer: &mut [u8], mut frame: impl FnMut(Bytes)) -> Progress {
        let count = match self.stream.read(buffer) {
            Ok(0) => return Progress::Over,
            Ok(count) => count,
            Err(error) => {
                return match error.kind() {
                    ErrorKind::WouldBlock | ErrorKind::Interrupted => Progress::Waits,
                    ErrorKind::InvalidData => Progress::Unencrypted,
                    _ => Progress::Over,
                };
            }
        };
        self.read.extend_from_slice(&buffer[..count]);
        while let Some(length) = self.read.first_chunk::<LENGTH>().map(|length| u32::from_le_bytes(*length) as usize) {
            if length == 0 || length > LONGEST {
                return Progress::Malformed;
            }
            if self.read.len() < LENGTH + length {
                break;
            }
            self.read.advance(LENGTH);
            frame(self.read.split_to(length).freeze());
        }
        if self.read.is_empty() {
            // One that is idle keeps no memory.
            self.read = BytesMut::new();
        }
        if count == buffer.len() { Progress::More } else { Progress::Waits }
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
