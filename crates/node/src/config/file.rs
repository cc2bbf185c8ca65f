//! The cluster map's file: how it is read, and how the next map takes its place.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::{ClusterConfig, ConfigError};
use crate::atomic_file;

/// What stands before a map that the program writes.
const HEADER: &str = "# A Reservoir cluster. docs/operate.md explains each line.\n";

impl ClusterConfig {
    /// Reads and checks a cluster map.
    ///
    /// # Errors
    /// One line that says where and what.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        Ok(Self::load_text(path)?.1)
    }

    /// The same, and the text that it was read from: to replace just that.
    ///
    /// # Errors
    /// One line that says where and what.
    pub fn load_text(path: &Path) -> Result<(String, Self), ConfigError> {
        let text = Self::read(path)?;
        let config = Self::parse(&text, path)?;
        Ok((text, config))
    }

    pub(super) fn read(path: &Path) -> Result<String, ConfigError> {
        let failed = |cause: std::io::Error| ConfigError::Read {
            path: path.to_owned(),
            advice: match cause.kind() {
                ErrorKind::NotFound => "name the map of a cluster with --config",
                _ => "let this user read it, or name another with --config",
            },
            cause,
        };
        fs::read_to_string(path).map_err(failed)
    }

    /// Puts this map into its file in the place of the one before, which had this text and this epoch and is kept beside it. Whether
    /// it did: not when the file has another text by now.
    ///
    /// # Errors
    /// When it cannot be written, or would not be read back as it is: then the file is as before.
    pub fn replace(&self, (was, epoch): (&str, u32)) -> Result<bool, ConfigError> {
        let path = &self.path;
        let failed = |path: &Path, cause| ConfigError::Write { path: path.to_owned(), cause };
        let text = toml::to_string(self).map_err(|error| failed(path, std::io::Error::other(error)))?;
        Self::parse(&text, path)?;
        // What another has kept under this name is its business.
        if Self::read(path)? != was {
            return Ok(false);
        }
        let kept = PathBuf::from(format!("{}.{epoch}", path.display()));
        atomic_file::write(&kept, was).map_err(|cause| failed(&kept, cause))?;
        let text = format!("{HEADER}{text}");
        atomic_file::write_if(path, was, &text).map_err(|cause| failed(path, cause))
    }
    /// Puts this map into its file, where there is none yet.
    ///
    /// # Errors
    /// When it cannot be written, or would not be read back as it is.
    pub fn create(&self) -> Result<(), ConfigError> {
        let failed = |cause| ConfigError::Write { path: self.path.clone(), cause };
        let text = toml::to_string(self).map_err(|error| failed(std::io::Error::other(error)))?;
        Self::parse(&text, &self.path)?;
        atomic_file::write(&self.path, &format!("{HEADER}{text}")).map_err(failed)
    }
}
