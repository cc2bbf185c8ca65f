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

/// A frame of which not all is here gets memory of its own when it is as long as this.
const LONG: usize = 8 << 10;
/// But not before so much of it is here: a peer that only says that it is long is given nothing.
const EARNED: usize = 1 << 10;
/// What is read at once with the rest of a long frame, which most often is the beginning of the next one. Memory that
/// readers are lent is longer.
const BEHIND: usize = 4 << 10;

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
    /// The beginning of a short frame, with its length before it.
    begun: BytesMut,
    /// A long frame, and how much of it is here: the rest is read to where it stays.
    long: Option<(Vec<u8>, usize)>,
}

impl Reader {
    /// Nothing was read yet.
    #[must_use]
    pub fn new(stream: Arc<Stream>) -> Self {
        Self { stream, begun: BytesMut::new(), long: None }
    }

    /// Bytes of memory that it keeps.
    #[cfg(test)]
    pub(crate) fn memory(&self) -> usize {
        self.begun.capacity() + self.long.as_ref().map_or(0, |(long, _)| long.capacity())
    }

    /// What was read of a frame that is not whole is lost.
    #[cfg(test)]
    pub(super) fn lose_rest(&mut self) {
        self.begun.clear();
        self.long = None;
    }

    /// Takes what has come, as much as fits into the buffer, and hands over each frame that is whole.
    pub fn read(&mut self, buffer: &mut [u8], mut frame: impl FnMut(Bytes)) -> Progress {
        let (mut rest, mut behind) = (&mut [][..], buffer);
        // What was encrypted is copied in any case.
        if let Some((long, here)) = self.long.as_mut().filter(|_| !self.stream.is_encrypted()) {
            (rest, behind) = (&mut long[*here..], &mut behind[..BEHIND]);
        }
        let (direct, room) = (rest.len(), rest.len() + behind.len());
        let count = match self.stream.read(rest, behind) {
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
        self.grow(count.min(direct), &mut frame);
        if !self.cut(&behind[..count.saturating_sub(direct)], frame) {
            return Progress::Malformed;
        }
        if count == room { Progress::More } else { Progress::Waits }
    }

    /// So much more of a long frame is here.
    fn grow(&mut self, more: usize, mut frame: impl FnMut(Bytes)) {
        if let Some((long, here)) = &mut self.long {
            *here += more;
            if *here == long.len() {
                frame(core::mem::take(long).into());
                self.long = None;
            }
        }
    }

    /// Goes on with what came. Whether it is frames.
    fn cut(&mut self, mut came: &[u8], mut frame: impl FnMut(Bytes)) -> bool {
        while !came.is_empty() {
            if let Some((long, here)) = &mut self.long {
                let next = came.split_off(..came.len().min(long.len() - *here)).unwrap_or_default();
                long[*here..][..next.len()].copy_from_slice(next);
                self.grow(next.len(), &mut frame);
                continue;
            }
            let lacks = LENGTH.saturating_sub(self.begun.len());
            self.begun.extend_from_slice(came.split_off(..lacks.min(came.len())).unwrap_or_default());
            let Some(length) = self.begun.first_chunk::<LENGTH>().map(|length| u32::from_le_bytes(*length) as usize)
            else {
                break;
            };
            if length == 0 || length > LONGEST {
                return false;
            }
            let lacks = LENGTH + length - self.begun.len();
            let next = came.split_off(..lacks.min(came.len())).unwrap_or_default();
            let here = self.begun.len() + next.len();
            if next.len() < lacks && length >= LONG && here >= EARNED {
                let mut long = Vec::with_capacity(length);
                long.extend_from_slice(&self.begun[LENGTH..]);
                long.extend_from_slice(next);
                let here = long.len();
                long.resize(length, 0);
                self.long = Some((long, here));
                self.begun.clear();
            } else if self.begun.len() == LENGTH && next.len() == length {
                self.begun.clear();
                frame(Bytes::copy_from_slice(next));
            } else {
                self.begun.extend_from_slice(next);
                if next.len() == lacks {
                    self.begun.advance(LENGTH);
                    frame(self.begun.split().freeze());
                }
            }
        }
        if self.begun.is_empty() {
            // One that is idle keeps no memory.
            self.begun = BytesMut::new();
        }
        true
    }
}

impl AsFd for Reader {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
