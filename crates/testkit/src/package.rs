//! Programs that tests need and a new machine lacks.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// What `find` finds; when it finds nothing, once more after installing Debian's package of that name, where this is
/// possible.
///
/// # Errors
/// Why it is not there, for a test that skips itself.
pub fn find_or_install(package: &str, find: impl Fn() -> Option<PathBuf>) -> Result<PathBuf, String> {
    if let Some(found) = find() {
        return Ok(found);
    }
    may_install(&format!("Debian's package {package}"))?;
    if !rustix::process::geteuid().is_root() {
        return Err(format!("Debian's package {package} is missing, and only root can install it"));
    }
    // One at a time: the package manager refuses a second one.
    let path = std::env::temp_dir().join("reservoir-tests-install.lock");
    let lock = File::create(&path).map_err(|error| format!("{} cannot be made: {error}", path.display()))?;
    lock.lock().map_err(|error| format!("{} cannot be locked: {error}", path.display()))?;
    for words in [&["update", "-q"][..], &["install", "-y", "-q", "--no-install-recommends", package]] {
        if let Some(found) = find() {
            return Ok(found);
        }
        let mut command = Command::new("apt-get");
        eprintln!("{package} is missing: apt-get {} now; NO_INSTALL=1 would forbid it", words.join(" "));
        command.args(words).env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null()).stdout(Stdio::null());
        let status = command.status().map_err(|error| format!("{package} is missing, and apt-get too: {error}"))?;
        if !status.success() {
            return Err(format!("{package} is missing, and apt-get {} failed: {status}", words.join(" ")));
        }
    }
    find().ok_or_else(|| format!("{package} was installed, but what is wanted of it is not where it should be"))
}

/// Whether a test may install what is missing.
///
/// # Errors
/// `NO_INSTALL` forbids it.
pub fn may_install(what: &str) -> Result<(), String> {
    let forbidden = std::env::var_os("NO_INSTALL").is_some_and(|set| !set.is_empty());
    if forbidden { Err(format!("{what} is missing, and NO_INSTALL forbids to install it")) } else { Ok(()) }
}

/// A program in the search path.
#[must_use]
pub fn in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|directory| directory.join(program)).find(|file| file.is_file())
}
