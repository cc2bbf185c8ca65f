//! Ports for a cluster that is made on one machine.

use std::io;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::ops::Range;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Below the ports that systems give to sockets that ask for any: Linux begins at 32,768.
const PORTS: Range<u16> = 10_000..32_000;
/// Ports that are tried before the kernel chooses one.
const TRIED: usize = 200;

/// Binds a port that is free, that the kernel gives to no socket that asks for any, and that this process did not get
/// before: its user binds it again a moment later, and nobody else must have taken it by then.
///
/// # Errors
/// When there is none.
pub fn at_free_port<T>(interface: IpAddr, bind: impl Fn(SocketAddr) -> io::Result<T>) -> io::Result<T> {
    static NEXT: LazyLock<AtomicUsize> =
        LazyLock::new(|| AtomicUsize::new(getrandom::u32().unwrap_or_else(|_| std::process::id()) as usize));
    for _ in 0..TRIED {
        let port = PORTS.start + (NEXT.fetch_add(1, Ordering::Relaxed) % PORTS.len()) as u16;
        if let Ok(bound) = bind(SocketAddr::new(interface, port)) {
            return Ok(bound);
        }
    }
    bind(SocketAddr::new(interface, 0))
}

/// A free UDP port of `interface`, as [`at_free_port`] chooses it.
///
/// # Errors
/// When there is none.
pub fn free_port(interface: impl Into<IpAddr>) -> io::Result<u16> {
    at_free_port(interface.into(), UdpSocket::bind)?.local_addr().map(|address| address.port())
}
