//! Permissions: what a cluster keeps is its owner's alone. Files and directories that are open to others are tightened.

use std::ffi::OsStr;
use std::fs::{File, OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::OFlags;

/// The rights of the owner, and the bit that a directory has which many share (`/tmp`).
const OWNER_ONLY: u32 = 0o700;
const STICKY: u32 = 0o1000;

/// What became of files and directories that others could use.
#[derive(Debug, Default)]
pub struct PermissionFixes {
    count: usize,
    /// How many stay as they are, and the first of them with the reason.
    failed: usize,
    first: Option<(PathBuf, io::Error)>,
}

impl PermissionFixes {
    /// Lets nobody but its owner use this file. What is not there, and a symbolic link, is passed over.
    pub fn file(&mut self, path: &Path) {
        match path.symlink_metadata() {
            // A user that could write here may have put a link, or a pipe, in the place of a file.
            Ok(found) if found.is_file() && is_loose(&found) => {
                let flags = i32::try_from((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits()).unwrap_or(0);
                self.note(
                    path,
                    OpenOptions::new().read(true).custom_flags(flags).open(path).and_then(|file| tighten(&file)),
                );
            }
            _ => {}
        }
    }

    /// Lets nobody but its owner use this directory and the files in it that are `ours` by their names. A directory that
    /// holds anything else, or that many share, is not ours and stays as it is.
    pub fn directory(&mut self, path: &Path, ours: impl Fn(&OsStr) -> bool) {
        let Ok(entries) = std::fs::read_dir(path) else { return };
        let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
        let is_shared = |found: &std::fs::Metadata| found.mode() & STICKY != 0;
        if let Ok(directory) = File::open(path)
            && let Ok(found) = directory.metadata()
            && is_loose(&found)
            && !is_shared(&found)
            && names.iter().all(|name| ours(name))
        {
            self.note(path, tighten(&directory));
        }
        names.iter().filter(|name| ours(name)).for_each(|name| self.file(&path.join(name)));
    }

    fn note(&mut self, path: &Path, outcome: io::Result<()>) {
        match outcome {
            Ok(()) => self.count += 1,
            Err(error) => {
                self.failed += 1;
                self.first.get_or_insert((path.to_owned(), error));
            }
        }
    }

    /// What was tightened, in a line; `None` when nothing was.
    #[must_use]
    pub fn done(&self) -> Option<String> {
        (self.count > 0).then(|| {
            format!("{} files and directories could be used by other users of this machine: no longer", self.count)
        })
    }

    /// What others can use still, in a line; `None` when there is nothing.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let (path, error) = self.first.as_ref()?;
        let more = match self.failed - 1 {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        Some(format!(
            "{}{more} can be used by other users of this machine, which cannot be changed: {error}; give it to the user that \
             this runs as, or take the rights of others away (chmod go-rwx)",
            path.display()
        ))
    }

    /// Logs both.
    pub fn log(&self) {
        self.done().into_iter().for_each(|text| tracing::info!("{text}"));
        self.problem().into_iter().for_each(|text| tracing::warn!("{text}"));
    }
}

fn is_loose(found: &std::fs::Metadata) -> bool {
    found.mode() & !OWNER_ONLY & 0o777 != 0
}

fn tighten(file: &File) -> io::Result<()> {
    file.set_permissions(Permissions::from_mode(file.metadata()?.mode() & OWNER_ONLY))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().mode() & 0o7777
    }

    fn set(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn what_is_ours_is_tightened_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let dir = place.path().join("dir");
        let [ours, other, link] = ["ours-1", "other", "ours-link"].map(|name| dir.join(name));
        fs::create_dir(&dir).unwrap();
        set(place.path(), 0o755);
        let outside = place.path().join("outside");
        for file in [&ours, &other, &outside] {
            fs::write(file, "").unwrap();
            set(file, 0o644);
        }
        symlink(&outside, &link).unwrap();
        set(&dir, 0o777);
        let run = || {
            let mut tightened = PermissionFixes::default();
            tightened.directory(&dir, |name| name.to_string_lossy().starts_with("ours"));
            (tightened.done(), tightened.problem())
        };
        let (done, problem) = run();
        assert!(done.is_some_and(|text| text.starts_with("1 files")) && problem.is_none());
        assert_eq!(
            [dir.as_path(), &ours, &other, &outside, place.path()].map(mode),
            [0o777, 0o600, 0o644, 0o644, 0o755]
        );
        // Nothing of others is in it any more; but many share it.
        fs::remove_file(&other).unwrap();
        set(&dir, 0o1777);
        assert_eq!(run(), (None, None));
        set(&dir, 0o755);
        assert!(run().0.is_some_and(|text| text.starts_with("1 files")));
        assert_eq!([dir.as_path(), &outside, place.path()].map(mode), [0o700, 0o644, 0o755]);
        assert_eq!(run(), (None, None));
    }
}
