//! The token of files over HTTP: whoever can read it may read and store files. It is beside `cluster.toml`, and readable by
//! its owner only.

use std::fs::{self, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Context;

use crate::layout;

/// Its file.
pub(crate) const FILE: &str = "gateway.token";

fn path(config: &Path) -> PathBuf {
    layout::directory(config).join(FILE)
}

/// The token of the cluster whose configuration is `config`.
pub(crate) fn read(config: &Path) -> anyhow::Result<String> {
    let path = path(config);
    let text = fs::read_to_string(&path).with_context(|| {
        format!("{} cannot be read, which files need: copy it from where the gateway runs", path.display())
    })?;
    Ok(text.trim().to_owned())
}

/// The token of the cluster whose configuration is `config`; a new one when there is none.
pub(crate) fn make(config: &Path) -> anyhow::Result<String> {
    let path = path(config);
    let write = || -> anyhow::Result<()> {
        if !path.exists() {
            let random = layout::random_bytes()?;
            let mut file = tempfile::NamedTempFile::new_in(layout::directory(config))?;
            writeln!(file, "{}", crate::api::hex(&random))?;
            file.as_file().sync_all()?;
            match file.persist_noclobber(&path) {
                // Another gateway of this directory was sooner.
                Err(failure) if failure.error.kind() == io::ErrorKind::AlreadyExists => {}
                made => drop(made?),
            }
        }
        // It may have been copied here.
        if fs::metadata(&path)?.permissions().mode() & 0o077 != 0 {
            fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        }
        Ok(())
    };
    write().with_context(|| format!("{} cannot be made: let the gateway write there", path.display()))?;
    read(config)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn a_token_is_made_once_and_only_its_owner_reads_it() {
        let place = tempfile::tempdir().unwrap();
        let config = place.path().join("cluster.toml");
        assert!(read(&config).unwrap_err().to_string().contains(FILE));
        let token = make(&config).unwrap();
        assert_eq!(token.len(), 2 * 32);
        fs::set_permissions(path(&config), Permissions::from_mode(0o644)).unwrap();
        assert_eq!(make(&config).unwrap(), token);
        assert_eq!(read(&config).unwrap(), token);
        assert_eq!(fs::metadata(path(&config)).unwrap().permissions().mode() & 0o777, 0o600);
    }
}
