//! Keys that the keys of objects are encrypted with: a service that has them, and one that has them in a file.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use object::seal::{DataKey, KEY_BYTES, SealError};
use serde::{Deserialize, Serialize};

use super::secret_file::{self, Stamp};
use crate::rules::encryption::KMS_DEFAULT_KEY;
use crate::rules::envelope;

/// The key of what is encrypted without naming one (`AES256`). No request can name it.
pub(crate) const MASTER: &str = "sse-s3";

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// There is none of this name.
    #[error(
        "there is no key {0:?} in {1}: `reservoir key list` shows those that there are, `reservoir key add` makes one"
    )]
    NoKey(String, PathBuf),
    /// What was wrapped was wrapped with a version of the key that is not there.
    #[error("version {1} of the key {0:?} is not in {2}: bring back the file that has it")]
    NoVersion(String, u32, PathBuf),
    /// It is not the key that it was wrapped with.
    #[error("the key {0:?} is not the one that this object was encrypted with, or the object was changed")]
    Wrong(String),
    /// The file cannot be read or written.
    #[error("{path}: {source}: the gateway needs this file of keys")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It cannot be parsed. Its text is not repeated, as it has secrets.
    #[error("{0} is not a list of keys: write [[key]] with name, version and secret")]
    Syntax(PathBuf),
    /// A name is taken, or cannot be one.
    #[error("{0}")]
    Name(String),
    /// There is no randomness.
    #[error(transparent)]
    Seal(#[from] SealError),
}

/// Has keys that wrap others, and gives them to nobody. Calls block.
pub trait KeyService: Send + Sync {
    /// Encrypts a key with the newest version of the one of this name. It can be opened only for what it is `about`.
    ///
    /// # Errors
    /// When that is not there.
    fn wrap(&self, name: &str, about: &[u8], key: &DataKey) -> Result<String, KeyError>;
    /// The reverse of [`KeyService::wrap`].
    ///
    /// # Errors
    /// When the version that wrapped it is not there, or is another.
    fn unwrap(&self, name: &str, about: &[u8], wrapped: &str) -> Result<DataKey, KeyError>;
}

/// A version of a key.
#[derive(Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Version {
    name: String,
    version: u32,
    /// In base64.
    secret: String,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct KeysFile {
    #[serde(default)]
    key: Vec<Version>,
}

/// Keys by name in a file. It is read again when it has changed.
#[derive(Clone)]
pub struct Keyring {
    path: PathBuf,
    read: Arc<Mutex<(Option<Stamp>, Vec<Version>)>>,
}

/// Secrets are never printed.
impl fmt::Debug for Keyring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Keyring").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Keyring {
    /// The keys in this file.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), read: Arc::default() }
    }

    /// The name of each key, and its newest version, in the order of the names.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn list(&self) -> Result<Vec<(String, u32)>, KeyError> {
        let mut newest = std::collections::BTreeMap::new();
        for key in self.load()? {
            let version = newest.entry(key.name).or_insert(0);
            *version = key.version.max(*version);
        }
        Ok(newest.into_iter().collect())
    }

    /// Makes the keys that are used where none is named, if they are not there.
    ///
    /// # Errors
    /// When the file cannot be read or written.
    pub fn ensure(&self) -> Result<(), KeyError> {
        let known = self.list()?;
        let missing = |name: &&str| !known.iter().any(|(known, _)| known == name);
        [MASTER, KMS_DEFAULT_KEY].iter().filter(|name| missing(name)).try_for_each(|name| self.extend(name).map(drop))
    }

    /// Makes a new key.
    ///
    /// # Errors
    /// When the name is taken or cannot be one, or the file cannot be written.
    pub fn add(&self, name: &str) -> Result<(), KeyError> {
        let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'/' | b'.');
        if name.is_empty() || name.len() > 128 || !name.bytes().all(good) {
            return Err(KeyError::Name(format!("{name:?} cannot be a key: use 1 to 128 letters, digits and -_/.")));
        }
        if self.list()?.iter().any(|(known, _)| known == name) {
            let why = format!("there is a key {name:?} already: `reservoir key rotate {name}` gives it a new version");
            return Err(KeyError::Name(why));
        }
        self.extend(name).map(drop)
    }

    /// Gives a key, or that of what names none, a new version, which wraps from now on. Older ones stay for what they wrapped.
    ///
    /// # Errors
    /// When there is no such key, or the file cannot be written.
    pub fn rotate(&self, name: Option<&str>) -> Result<u32, KeyError> {
        let name = name.unwrap_or(MASTER);
        if name != MASTER && !self.list()?.iter().any(|(known, _)| known == name) {
            return Err(KeyError::NoKey(name.to_owned(), self.path.clone()));
        }
        self.extend(name)
    }

    /// Adds a version.
    fn extend(&self, name: &str) -> Result<u32, KeyError> {
        let mut key = self.load()?;
        let version = key.iter().filter(|key| key.name == name).map(|key| key.version).max().unwrap_or(0) + 1;
        let secret = base64_simd::STANDARD.encode_to_string(DataKey::random()?.bytes());
        key.push(Version { name: name.to_owned(), version, secret });
        let text = toml::to_string(&KeysFile { key }).map_err(|_| KeyError::Syntax(self.path.clone()))?;
        secret_file::write(&self.path, &text).map_err(|source| self.io(source))?;
        Ok(version)
    }

    fn load(&self) -> Result<Vec<Version>, KeyError> {
        let text = secret_file::read(&self.path).map_err(|source| self.io(source))?;
        let file: KeysFile = toml::from_str(&text).map_err(|_| KeyError::Syntax(self.path.clone()))?;
        Ok(file.key)
    }

    fn io(&self, source: io::Error) -> KeyError {
        KeyError::Io { path: self.path.clone(), source }
    }

    /// A version of a key, or the newest one: its number and the key.
    fn find(&self, name: &str, version: Option<u32>) -> Result<(u32, [u8; KEY_BYTES]), KeyError> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = secret_file::stamp(&self.path);
        if read.0 != Some(stamp) {
            *read = (Some(stamp), self.load()?);
        }
        let versions = read.1.iter().filter(|key| key.name == name);
        let found = match version {
            None => versions.max_by_key(|key| key.version),
            Some(version) => versions.into_iter().find(|key| key.version == version),
        };
        let found = found.ok_or_else(|| match version {
            Some(version) => KeyError::NoVersion(name.to_owned(), version, self.path.clone()),
            None => KeyError::NoKey(name.to_owned(), self.path.clone()),
        })?;
        let secret = base64_simd::STANDARD.decode_to_vec(&found.secret).ok();
        let secret = secret.and_then(|secret| <[u8; KEY_BYTES]>::try_from(secret).ok());
        Ok((found.version, secret.ok_or_else(|| KeyError::Syntax(self.path.clone()))?))
    }
}

/// What a wrapped key is bound to: the key that wrapped it as well.
fn bound(name: &str, about: &[u8]) -> Vec<u8> {
    [name.as_bytes(), b"\0", about].concat()
}

impl KeyService for Keyring {
    fn wrap(&self, name: &str, about: &[u8], key: &DataKey) -> Result<String, KeyError> {
        let (version, secret) = self.find(name, None)?;
        Ok(format!("{version}:{}", envelope::wrap(&secret, &bound(name, about), key)?))
    }

    fn unwrap(&self, name: &str, about: &[u8], wrapped: &str) -> Result<DataKey, KeyError> {
        let wrong = || KeyError::Wrong(name.to_owned());
        let (version, wrapped) = wrapped.split_once(':').ok_or_else(wrong)?;
        let (_, secret) = self.find(name, Some(version.parse().map_err(|_| wrong())?))?;
        envelope::unwrap(&secret, &bound(name, about), wrapped).map_err(|_| wrong())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn what_a_key_wrapped_is_opened_by_it_after_it_was_rotated_and_by_no_other() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("keys.toml");
        let keys = Keyring::at(&path);
        let key = DataKey::random().unwrap();
        assert!(matches!(keys.wrap(MASTER, b"x", &key), Err(KeyError::NoKey(..))));
        keys.ensure().unwrap();
        keys.ensure().unwrap();
        assert_eq!(keys.list().unwrap(), [(KMS_DEFAULT_KEY.to_owned(), 1), (MASTER.to_owned(), 1)]);
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let old = keys.wrap(MASTER, b"x", &key).unwrap();
        assert_eq!(keys.rotate(None).unwrap(), 2);
        let new = keys.wrap(MASTER, b"x", &key).unwrap();
        assert!(old.starts_with("1:") && new.starts_with("2:"));
        for wrapped in [&old, &new] {
            assert_eq!(keys.unwrap(MASTER, b"x", wrapped).unwrap(), key);
            assert!(matches!(keys.unwrap(MASTER, b"y", wrapped), Err(KeyError::Wrong(_))));
        }
        keys.add("mine").unwrap();
        assert!(matches!(keys.add("mine"), Err(KeyError::Name(_))));
        assert!(matches!(keys.add("a b"), Err(KeyError::Name(_))));
        assert!(matches!(keys.rotate(Some("none")), Err(KeyError::NoKey(..))));
        assert!(matches!(keys.unwrap("mine", b"x", &old), Err(KeyError::Wrong(_))));
        assert!(matches!(keys.unwrap("mine", b"x", "9:AAAA"), Err(KeyError::NoVersion(..))));
        for bad in ["", "1", "x:y", "1:%"] {
            assert!(matches!(keys.unwrap("mine", b"x", bad), Err(KeyError::Wrong(_))), "{bad}");
        }
        fs::write(&path, "secret = 'hush'").unwrap();
        let broken = keys.wrap(MASTER, b"x", &key).unwrap_err().to_string();
        assert!(broken.contains("[[key]]") && !broken.contains("hush"), "{broken}");
        fs::remove_file(&path).unwrap();
        assert!(matches!(keys.unwrap(MASTER, b"x", &old), Err(KeyError::NoVersion(..))));
    }
}
