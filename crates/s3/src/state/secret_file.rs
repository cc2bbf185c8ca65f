//! Files of secrets: only their owner reads them, and each takes the place of the one before as a whole.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

/// Which file, and when it was changed: a new one takes the place of the old.
pub(crate) type Stamp = (u64, i64, i64);

/// The stamp of a file; the same for all that are not there.
pub(crate) fn stamp(path: &Path) -> Stamp {
    fs::metadata(path).map_or((0, 0, 0), |m| (m.ino(), m.mtime(), m.mtime_nsec()))
}

/// The text of a file; empty when there is none.
pub(crate) fn read(path: &Path) -> io::Result<String> {
    match fs::read_to_string(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        text => text,
    }
}

/// Replaces the file atomically.
pub(crate) fn write(path: &Path, text: &str) -> io::Result<()> {
    let partial = path.with_extension("new");
    // One left by a crash may have another mode.
    match fs::remove_file(&partial) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&partial)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&partial, path)?;
    File::open(path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?.sync_all()
}
