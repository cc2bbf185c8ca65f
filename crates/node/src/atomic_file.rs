//! Files that are there as a whole or not at all.

use std::fs::{self, File, Metadata, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, fchown};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

/// The directory that a file is in, also when its path is a name only.
#[must_use]
pub fn directory(path: &Path) -> &Path {
    path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Puts a text into a file, durably. A file that exists keeps its owner and its mode, for those that read it; a new one
/// is its owner's alone.
///
/// # Errors
/// When it cannot be written: then it is as before.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    replace(path, None, text).map(drop)
}

/// The same, unless the file has another text than this by now. Whether it did.
///
/// # Errors
/// When it cannot be written: then it is as before.
pub fn write_if(path: &Path, was: &str, text: &str) -> io::Result<bool> {
    replace(path, Some(was), text)
}

fn replace(path: &Path, was: Option<&str>, text: &str) -> io::Result<bool> {
    // What a link leads to is replaced, and not the link.
    let path = &fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    let directory = directory(path);
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    // Threads of a process may write one file at once, too.
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let turn = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let partial = directory.join(format!(".{name}.{}.{turn}", std::process::id()));
    let _turn = lock(path)?;
    let write = || {
        // One that was left behind may be readable by others.
        match fs::remove_file(&partial) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().create_new(true).write(true).mode(0o600).open(&partial)?;
        match fs::metadata(path) {
            Ok(before) => keep(&file, &before)?,
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        if let Some(was) = was
            && fs::read_to_string(path)? != was
        {
            return Ok(false);
        }
        fs::rename(&partial, path)?;
        // Neither the name nor the contents may go in a power cut: targets refuse a cluster with another name.
        File::open(directory)?.sync_all()?;
        Ok(true)
    };
    let written = write();
    if !matches!(written, Ok(true)) {
        let _ = fs::remove_file(&partial);
    }
    written
}

/// Waits until nobody else replaces a file that is there.
fn lock(path: &Path) -> io::Result<Option<File>> {
    loop {
        let file = match File::open(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            file => file?,
        };
        file.lock()?;
        // The process that had its turn before has put another file in the place of this one.
        let (locked, there) = (file.metadata()?, fs::metadata(path)?);
        if (locked.dev(), locked.ino()) == (there.dev(), there.ino()) {
            return Ok(Some(file));
        }
    }
}

/// Gives a file the owner and the mode that the one before it had.
fn keep(file: &File, before: &Metadata) -> io::Result<()> {
    let own = file.metadata()?;
    if (own.uid(), own.gid()) != (before.uid(), before.gid()) {
        fchown(file, Some(before.uid()), Some(before.gid()))?;
    }
    file.set_permissions(before.permissions())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    #[test]
    fn what_was_there_keeps_its_mode_and_links_stay_links() {
        let place = tempfile::tempdir().unwrap();
        let [file, link] = ["file", "link"].map(|name| place.path().join(name));
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        write(&file, "one").unwrap();
        assert_eq!(mode(&file), 0o600);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        symlink("file", &link).unwrap();
        write(&link, "two").unwrap();
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), mode(&file)), ("two", 0o644));
        assert!(!write_if(&file, "one", "three").unwrap() && write_if(&file, "two", "three").unwrap());
        assert_eq!((fs::read_to_string(&file).unwrap().as_str(), mode(&file)), ("three", 0o644));
        assert_eq!(fs::read_dir(place.path()).unwrap().count(), 2);
    }
}
