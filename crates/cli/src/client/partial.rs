//! A file that appears under its name only when all of it is there: until then it has no name, where the file system can do that, so
//! that nothing of a part is left however the process ends.

use std::fs::File;
use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags};
use rustix::io::Errno;
use tempfile::NamedTempFile;

/// As any program that writes a file: the umask decides who may read it.
const MODE: u32 = 0o666;

/// A file in the making.
pub(crate) enum Partial {
    Nameless(File),
    /// On file systems that know no files without names.
    Hidden(NamedTempFile),
}

impl Partial {
    /// An empty one that is to appear in this directory.
    pub(crate) fn in_directory(directory: &Path) -> io::Result<Self> {
        let flags = OFlags::TMPFILE | OFlags::WRONLY | OFlags::CLOEXEC;
        let open = || rustix::fs::open(directory, flags, Mode::from_raw_mode(MODE));
        // Through it such a file gets its name.
        match Path::new("/proc/self/fd").exists().then(open) {
            Some(Ok(file)) => Ok(Self::Nameless(file.into())),
            None | Some(Err(Errno::OPNOTSUPP | Errno::ISDIR)) => hidden().tempfile_in(directory).map(Self::Hidden),
            Some(Err(error)) => Err(error.into()),
        }
    }

    pub(crate) fn file(&mut self) -> &mut File {
        match self {
            Self::Nameless(file) => file,
            Self::Hidden(file) => file.as_file_mut(),
        }
    }

    /// Gives it its name, in place of what has that name, when its bytes are durable.
    pub(crate) fn appear(mut self, directory: &Path, path: &Path) -> io::Result<()> {
        self.file().sync_all()?;
        let hidden = match self {
            Self::Hidden(hidden) => hidden.into_temp_path(),
            // A link does not replace a file, as a renaming does.
            Self::Nameless(file) => match link(&file, path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    hidden().make_in(directory, |path| link(&file, path))?.into_temp_path()
                }
                linked => return linked,
            },
        };
        hidden.persist(path).map_err(|failed| failed.error)
    }
}

fn hidden() -> tempfile::Builder<'static, 'static> {
    let mut builder = tempfile::Builder::new();
    builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(MODE));
    builder
}

fn link(file: &File, path: &Path) -> io::Result<()> {
    use std::os::fd::AsRawFd;
    let open = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::linkat(CWD, open, CWD, path, AtFlags::SYMLINK_FOLLOW).map_err(Into::into)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_partial_file_has_no_name_until_it_is_whole_and_then_replaces_what_was_there() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("whole");
        std::fs::write(&path, "before").unwrap();
        let count = || std::fs::read_dir(place.path()).unwrap().count();
        for text in ["new", "nameless", "hidden"] {
            let mut partial = match text {
                "hidden" => Partial::Hidden(hidden().tempfile_in(place.path()).unwrap()),
                _ => Partial::in_directory(place.path()).unwrap(),
            };
            partial.file().write_all(text.as_bytes()).unwrap();
            if text == "new" {
                std::fs::remove_file(&path).unwrap();
            }
            let is_nameless = matches!(partial, Partial::Nameless(_));
            assert_eq!(count(), usize::from(text != "new") + usize::from(!is_nameless), "{text}");
            partial.appear(place.path(), &path).unwrap();
            assert_eq!((std::fs::read_to_string(&path).unwrap(), count()), (text.to_owned(), 1));
        }
    }
}
