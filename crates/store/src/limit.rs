//! Limits of the process or of the system, which are not the disk's fault.

use std::io;

use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

/// Which limit this error is about, and what to do; `None` when it is about something else.
pub(crate) fn exceeded(error: &io::Error) -> Option<String> {
    let limit = |resource| getrlimit(resource).current.map_or_else(|| "none".to_owned(), |limit| limit.to_string());
    match Errno::from_io_error(error)? {
        Errno::MFILE => Some(format!(
            "the process has no file descriptor left (its limit is {}): raise the limit on open files",
            limit(Resource::Nofile)
        )),
        Errno::NFILE => Some("the system has no file descriptor left: raise `fs.file-max`".to_owned()),
        Errno::FBIG => Some(format!(
            "the process may not make files that long (its limit is {} bytes): raise the limit on the size of files",
            limit(Resource::Fsize)
        )),
        _ => None,
    }
}
