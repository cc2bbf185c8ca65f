//! The bytes of a connection: as they are, or encrypted (TLS). Its two directions may be two threads' business.

use std::io::{ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustls::Connection;
use socket2::Socket;

/// Encrypted bytes that may wait for a connection.
const BACKLOG: usize = 256 << 10;
/// What one read of encrypted bytes brings at most: more than a record and what was left of the one before.
const RECORDS: usize = 64 << 10;

/// A socket that does not block, and what encrypts what goes over it.
#[derive(Debug)]
pub struct Stream {
    socket: Socket,
    tls: Option<Mutex<Connection>>,
}

impl Stream {
    /// Not encrypted.
    #[must_use]
    pub const fn plain(socket: Socket) -> Self {
        Self { socket, tls: None }
    }

    /// What is sent is encrypted by `tls`, which has not begun.
    #[must_use]
    pub fn encrypted(socket: Socket, mut tls: Connection) -> Self {
        tls.set_buffer_limit(Some(BACKLOG));
        Self { socket, tls: Some(Mutex::new(tls)) }
    }

    /// The socket.
    pub const fn socket(&self) -> &Socket {
        &self.socket
    }

    /// Whether what goes over it is encrypted.
    pub(super) const fn is_encrypted(&self) -> bool {
        self.tls.is_some()
    }

    /// Takes what has come, into the first buffer and then into the second one; 0 when the other side is gone. The first
    /// one is empty where it is encrypted.
    ///
    /// # Errors
    /// As a socket's, and [`ErrorKind::InvalidData`] when the other side does not encrypt, or not as this cluster does.
    pub fn read(&self, first: &mut [u8], buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(mut tls) = self.tls() else {
            return (&self.socket).read_vectored(&mut [IoSliceMut::new(first), IoSliceMut::new(buffer)]);
        };
        let mut filled = 0;
        loop {
            match tls.reader().read(&mut buffer[filled..]) {
                Ok(0) => return Ok(filled),
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return if filled > 0 { Ok(filled) } else { Err(error) },
            }
            // Nothing is left in `tls` of what the socket gave: nobody would hear of it.
            if buffer.len() - filled < RECORDS {
                return Ok(filled);
            }
            match tls.read_tls(&mut &self.socket) {
                Ok(0) => return Ok(filled),
                Ok(_) => {}
                Err(_) if filled > 0 => return Ok(filled),
                Err(error) => return Err(error),
            }
            let outcome = tls.process_new_packets();
            // The answer in a handshake, or why it fails.
            let _ = Self::push(&self.socket, &mut tls);
            outcome.map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error))?;
        }
    }

    /// Hands on what fits, and says how much that was.
    ///
    /// # Errors
    /// As a socket's: [`ErrorKind::WouldBlock`] when nothing fits.
    pub fn write(&self, slices: &[IoSlice<'_>]) -> std::io::Result<usize> {
        let Some(mut tls) = self.tls() else { return self.socket.send_vectored(slices) };
        Self::push(&self.socket, &mut tls)?;
        if tls.is_handshaking() {
            return Err(ErrorKind::WouldBlock.into());
        }
        let count = tls.writer().write_vectored(slices)?;
        Self::push(&self.socket, &mut tls)?;
        if count == 0 { Err(ErrorKind::WouldBlock.into()) } else { Ok(count) }
    }

    /// Hands the kernel what was encrypted and waits.
    ///
    /// # Errors
    /// As a socket's, but that nothing fits is none.
    pub fn flush(&self) -> std::io::Result<()> {
        self.tls().map_or(Ok(()), |mut tls| Self::push(&self.socket, &mut tls))
    }

    /// Whether it goes on when the socket takes more: with what was encrypted already, or with more if there is any.
    pub fn awaits_room(&self, has_more: bool) -> bool {
        self.tls().map_or(has_more, |tls| tls.wants_write() || has_more && !tls.is_handshaking())
    }

    /// Whether the two sides have not agreed yet on how they encrypt: nothing is sent before.
    pub fn is_handshaking(&self) -> bool {
        self.tls().is_some_and(|tls| tls.is_handshaking())
    }

    /// It is over in both directions.
    pub fn shut(&self) {
        // It fails where the other side was sooner.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    fn push(mut socket: &Socket, tls: &mut Connection) -> std::io::Result<()> {
        while tls.wants_write() {
            match tls.write_tls(&mut socket) {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn tls(&self) -> Option<MutexGuard<'_, Connection>> {
        self.tls.as_ref().map(|tls| tls.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl AsFd for Stream {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
