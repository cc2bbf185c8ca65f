//! The users of the gateway: a file of access keys and secrets, readable by its owner only.

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use s3s::auth::{S3Auth, SecretKey};
use s3s::{S3ErrorCode, S3Result};
use serde::{Deserialize, Serialize};

use super::secret_file::{self, Stamp};

/// Characters of new keys: without those that look alike.
const ALPHABET: &[u8; 32] = b"ABCDEFGHJKLMNPQRSTUVWXYZ23456789";
const ACCESS_KEY_LEN: usize = 20;
const SECRET_KEY_LEN: usize = 40;

/// One user.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct User {
    /// The name: buckets are owned by it.
    pub name: String,
    /// The public half of the key.
    pub access_key: String,
    /// The secret half.
    pub secret_key: String,
}

/// Secrets are never printed.
impl fmt::Debug for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("User").field("name", &self.name).field("access_key", &self.access_key).finish_non_exhaustive()
    }
}

#[derive(Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct UsersFile {
    #[serde(default)]
    user: Vec<User>,
}

/// What is wrong with the file of users.
#[derive(Debug, thiserror::Error)]
pub enum UsersError {
    /// It cannot be read or written.
    #[error("{path}: {source}: the gateway needs this file of access keys")]
    Io {
        /// Which file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// It cannot be parsed. Its text is not repeated, as it has secrets.
    #[error("{0} is not a list of users: write [[user]] with name, access_key and secret_key")]
    Syntax(PathBuf),
    /// A name is taken, or cannot be one.
    #[error("{0}")]
    Name(String),
}

/// For so long the file of users is not looked at again: one request finds its user three times.
const LOOKED: Duration = Duration::from_millis(10);

/// The file of users. It is read again when it has changed.
#[derive(Clone, Debug)]
pub struct Users {
    path: PathBuf,
    read: Arc<Mutex<ReadUsers>>,
}

#[derive(Debug, Default)]
struct ReadUsers {
    stamp: Stamp,
    looked: Option<Instant>,
    by_access_key: BTreeMap<String, User>,
}

impl Users {
    /// The users in this file.
    #[must_use]
    pub fn at(path: &Path) -> Self {
        Self { path: path.to_owned(), read: Arc::default() }
    }

    /// All users in the order of the file; none when there is no file.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn list(&self) -> Result<Vec<User>, UsersError> {
        let text = secret_file::read(&self.path).map_err(|source| self.io(source))?;
        let file: UsersFile = toml::from_str(&text).map_err(|_| UsersError::Syntax(self.path.clone()))?;
        Ok(file.user)
    }

    /// The user of this name.
    ///
    /// # Errors
    /// When there is no such user, or the file cannot be read.
    pub fn get(&self, name: &str) -> Result<User, UsersError> {
        self.list()?.into_iter().find(|user| user.name == name).ok_or_else(|| unknown(name))
    }

    /// Adds a user with new keys.
    ///
    /// # Errors
    /// When the name is taken or cannot be one, or the file cannot be written.
    pub fn add(&self, name: &str) -> Result<User, UsersError> {
        let usable = !name.is_empty() && name.len() <= 64 && name.bytes().all(|b| b.is_ascii_graphic());
        if !usable {
            return Err(UsersError::Name(format!(
                "{name:?} cannot be a user: use 1 to 64 printable ASCII characters without spaces"
            )));
        }
        let mut users = self.list()?;
        if users.iter().any(|user| user.name == name) {
            return Err(UsersError::Name(format!("there is a user {name:?} already: choose another name")));
        }
        let mut random = [0; ACCESS_KEY_LEN + SECRET_KEY_LEN];
        getrandom::fill(&mut random).map_err(|e| self.io(e.into()))?;
        let text: String = random.iter().map(|byte| char::from(ALPHABET[usize::from(byte % 32)])).collect();
        let (access_key, secret_key) = text.split_at(ACCESS_KEY_LEN);
        let user = User { name: name.to_owned(), access_key: access_key.to_owned(), secret_key: secret_key.to_owned() };
        users.push(user.clone());
        self.write(users)?;
        Ok(user)
    }

    /// Removes a user. Buckets stay, and belong to nobody until there is a user of that name again.
    ///
    /// # Errors
    /// When there is no such user, or the file cannot be written.
    pub fn remove(&self, name: &str) -> Result<(), UsersError> {
        let mut users = self.list()?;
        let before = users.len();
        users.retain(|user| user.name != name);
        if users.len() == before {
            return Err(unknown(name));
        }
        self.write(users)
    }

    /// Replaces the file atomically.
    fn write(&self, user: Vec<User>) -> Result<(), UsersError> {
        let text = toml::to_string(&UsersFile { user }).map_err(|_| UsersError::Syntax(self.path.clone()))?;
        secret_file::write(&self.path, &text).map_err(|e| self.io(e))?;
        self.read.lock().unwrap_or_else(PoisonError::into_inner).looked = None;
        Ok(())
    }

    fn io(&self, source: io::Error) -> UsersError {
        UsersError::Io { path: self.path.clone(), source }
    }

    /// The user with this access key, as the file said at most [`LOOKED`] ago.
    pub(crate) fn find(&self, access_key: &str) -> Option<User> {
        let mut read = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if read.looked.is_none_or(|looked| looked.elapsed() >= LOOKED) {
            self.look(&mut read);
        }
        read.by_access_key.get(access_key).cloned()
    }

    /// Reads the file again, if it has changed.
    fn look(&self, read: &mut ReadUsers) {
        read.looked = Some(Instant::now());
        let stamp = secret_file::stamp(&self.path);
        if stamp == read.stamp {
            return;
        }
        match self.list() {
            Ok(users) => {
                read.by_access_key = users.into_iter().map(|user| (user.access_key.clone(), user)).collect();
                read.stamp = stamp;
            }
            Err(error) => tracing::error!("the users stay as they were: {error}"),
        }
    }
}

fn unknown(name: &str) -> UsersError {
    UsersError::Name(format!("there is no user {name:?}: `reservoir user list` shows them"))
}

#[async_trait::async_trait]
impl S3Auth for Users {
    async fn get_secret_key(&self, access_key: &str) -> S3Result<SecretKey> {
        match self.find(access_key) {
            Some(user) => Ok(user.secret_key.into()),
            None => Err(S3ErrorCode::InvalidAccessKeyId.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn users_come_and_go_and_only_their_owner_reads_the_file() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("users.toml");
        let users = Users::at(&path);
        assert_eq!(users.list().unwrap(), []);
        let ann = users.add("ann").unwrap();
        let bob = users.add("bob").unwrap();
        assert_ne!(ann.secret_key, bob.secret_key);
        assert_eq!(users.find(&ann.access_key), Some(ann.clone()));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert!(users.add("ann").is_err());
        assert!(users.add("a b").is_err());
        assert_eq!(users.get("ann").unwrap(), ann);
        users.remove("ann").unwrap();
        assert!(users.get("ann").is_err());
        assert_eq!(users.find(&ann.access_key), None);
        assert_eq!(users.find(&bob.access_key), Some(bob.clone()));
        assert!(users.remove("ann").is_err());
        assert!(!format!("{bob:?}").contains(&bob.secret_key));
    }

    #[test]
    fn a_broken_file_is_refused_without_repeating_it() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("users.toml");
        fs::write(&path, "secret_key = 'hush'").unwrap();
        let error = Users::at(&path).list().unwrap_err().to_string();
        assert!(error.contains("[[user]]") && !error.contains("hush"), "{error}");
    }
}
