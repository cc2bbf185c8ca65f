//! The file `gateway.toml` beside `cluster.toml`: where a gateway listens, S3, storage classes, cleaning.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, bail};
use node::atomic_file;
use node::config::problem;
use protocol::limits;
use protocol::map::ClusterMap;
use protocol::redundancy::Redundancy;
use serde::{Deserialize, Serialize};

use crate::output::program;

/// The whole file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GatewayFile {
    /// Where the gateway listens for HTTP.
    pub(crate) http: SocketAddr,
    /// Hosts that are this gateway's HTTP address, beside addresses and `localhost`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) names: Vec<String>,
    /// The S3 endpoint; absent: there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) s3: Option<S3File>,
    /// Cleaning.
    #[serde(default, skip_serializing_if = "CleanFile::is_default")]
    pub(crate) clean: CleanFile,
}

/// Section `[clean]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct CleanFile {
    /// The grace time: nothing goes that was referred to, or put, less than this ago. A put may take half of it. The same in
    /// all gateways of a cluster.
    pub(crate) grace_seconds: u64,
    /// From the end of one pass to the next; 0: this gateway does not clean by itself.
    pub(crate) pause_seconds: u64,
}

impl Default for CleanFile {
    fn default() -> Self {
        Self { grace_seconds: 24 * 3_600, pause_seconds: 3_600 }
    }
}

impl CleanFile {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// How long a put may take.
    pub(crate) const fn limit(self) -> Duration {
        Duration::from_millis(self.grace_seconds.saturating_mul(500))
    }
}

/// One of `[s3.storage_class]`.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StorageClass {
    /// Copies of every chunk; it or a code is said.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) copies: Option<u8>,
    /// Fragments of data and of parity: `4+2`.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "code_text")]
    pub(crate) code: Option<Redundancy>,
}

impl StorageClass {
    /// Of objects that are kept so.
    pub(crate) fn of(redundancy: Redundancy) -> Self {
        match redundancy {
            Redundancy::Copies(copies) => Self { copies: Some(copies), code: None },
            code @ Redundancy::Code(_) => Self { copies: None, code: Some(code) },
        }
    }

    fn redundancy(self) -> anyhow::Result<Redundancy> {
        match self {
            Self { copies: Some(copies), code: None } => {
                Redundancy::copies(copies).with_context(|| format!("copies = {copies}: choose 1 to {}", limits::COPIES))
            }
            Self { copies: None, code: Some(code) } => Ok(code),
            _ => bail!("write copies = 2, or code = \"4+2\""),
        }
    }
}

/// A code as text.
mod code_text {
    use protocol::redundancy::Redundancy;
    use serde::{Deserialize, Deserializer, Serializer, de};

    #[expect(clippy::ref_option, reason = "serde's signature")]
    pub(super) fn serialize<S: Serializer>(code: &Option<Redundancy>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_str(&code.map(|code| code.to_string()).unwrap_or_default())
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Redundancy>, D::Error> {
        let text = String::deserialize(from)?;
        let code = text.parse().ok().filter(|read| matches!(read, Redundancy::Code(_)));
        code.map(Some).ok_or_else(|| de::Error::custom(format!("{text:?} is no code: write 4+2, for example")))
    }
}

/// Section `[s3]`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct S3File {
    /// Where the gateway listens for S3.
    pub(crate) listen: SocketAddr,
    /// The domain below which buckets are hosts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) domain: Option<String>,
    /// The database of the catalog, where several gateways share it; absent: a file beside `cluster.toml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) catalog: Option<String>,
    /// The file of users; absent: `users.toml` beside `cluster.toml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) users: Option<PathBuf>,
    /// The file of the keys that those of objects are encrypted with; absent: `keys.toml` beside `cluster.toml`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) keys: Option<PathBuf>,
    /// The certificate that connections are encrypted with, and those between it and its root: PEM. Paths count from this
    /// file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) certificate: Option<PathBuf>,
    /// Its private key: PEM.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<PathBuf>,
    /// Whether chunks of objects are compressed when that is worth it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) compress: bool,
    /// How objects may be kept other than as the cluster says, by the name of their storage class.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) storage_class: BTreeMap<String, StorageClass>,
    /// Seconds for which a client may be idle.
    #[serde(default = "S3File::patience", skip_serializing_if = "S3File::is_patience")]
    pub(crate) patience_seconds: NonZero<u64>,
    /// Seconds of a day of lifecycle rules, where that is to be shorter: to try rules out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lifecycle_day_seconds: Option<NonZero<u64>>,
    /// Bytes of chunks that all puts, and as many that all gets, may have on their way ahead, with a unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) ahead: Option<String>,
    /// Bytes of the largest object that rides in its manifest, with a unit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) inline: Option<String>,
}

impl S3File {
    const fn patience() -> NonZero<u64> {
        match NonZero::new(60) {
            Some(seconds) => seconds,
            None => NonZero::<u64>::MIN,
        }
    }

    fn is_patience(seconds: &NonZero<u64>) -> bool {
        *seconds == Self::patience()
    }

    /// An address with all else at its default.
    pub(crate) fn at(listen: SocketAddr) -> Self {
        Self {
            listen,
            domain: None,
            catalog: None,
            users: None,
            keys: None,
            certificate: None,
            key: None,
            compress: false,
            storage_class: BTreeMap::new(),
            patience_seconds: Self::patience(),
            lifecycle_day_seconds: None,
            ahead: None,
            inline: None,
        }
    }

    /// The address that clients use.
    pub(crate) fn endpoint(&self) -> String {
        format!("{}://{}", if self.certificate.is_some() { "https" } else { "http" }, self.listen)
    }

    /// How objects of the storage classes are kept.
    pub(crate) fn redundancies(&self) -> anyhow::Result<BTreeMap<String, Redundancy>> {
        let redundancy = |(name, class): (&String, &StorageClass)| {
            Ok((name.clone(), class.redundancy().with_context(|| in_class(name))?))
        };
        self.storage_class.iter().map(redundancy).collect()
    }

    /// The storage classes, which this map must have the failure domains for.
    pub(crate) fn storage_classes(&self, map: &ClusterMap) -> anyhow::Result<s3::StorageClasses> {
        let classes = self.redundancies()?;
        for (name, redundancy) in &classes {
            map.can_keep(*redundancy).with_context(|| in_class(name))?;
        }
        s3::StorageClasses::new(classes).map_err(|why| anyhow::anyhow!("gateway.toml: {why}"))
    }

    /// Bytes that puts, and gets, may have ahead.
    pub(crate) fn ahead(&self) -> anyhow::Result<usize> {
        size("ahead", self.ahead.as_deref(), object::objects::AHEAD, 1 << 40)
    }

    /// Bytes of the largest object that rides in its manifest.
    pub(crate) fn inline(&self) -> anyhow::Result<usize> {
        size("inline", self.inline.as_deref(), object::objects::INLINE, object::objects::MOST_INLINE)
    }

    /// The files of an encrypted endpoint, if it is one.
    pub(crate) fn certificate(&self, directory: &Path) -> anyhow::Result<Option<s3::Certificate>> {
        match (&self.certificate, &self.key) {
            (None, None) => Ok(None),
            (Some(chain), Some(key)) => {
                Ok(Some(s3::Certificate { chain: directory.join(chain), key: directory.join(key) }))
            }
            _ => bail!("[s3] in gateway.toml: a certificate needs a key and a key a certificate: set both, or neither"),
        }
    }
}

fn in_class(name: &str) -> String {
    format!("[s3.storage_class] {name} in gateway.toml")
}

/// A size in section `[s3]`.
fn size(name: &str, text: Option<&str>, default: usize, most: usize) -> anyhow::Result<usize> {
    let Some(text) = text else { return Ok(default) };
    let bytes = crate::units::parse_size(text).ok().and_then(|bytes| usize::try_from(bytes).ok());
    bytes.filter(|bytes| *bytes <= most).with_context(|| {
        let (most, example) = (crate::units::size(most as u64), crate::units::size(default as u64).replace(' ', ""));
        format!("[s3] in gateway.toml: {name} = \"{text}\" is no size up to {most}: write \"{example}\", for example")
    })
}

/// The HTTP address of the gateway of the cluster whose configuration is `config`.
pub(crate) fn address(config: &Path) -> anyhow::Result<String> {
    Ok(load(config)?.http.to_string())
}

/// What the gateway of the cluster whose configuration is `config` does.
pub(crate) fn load(config: &Path) -> anyhow::Result<GatewayFile> {
    load_from(config, &config.with_file_name("gateway.toml"))
}

/// The same, if there is one: where no gateway runs, there need not be.
pub(crate) fn load_if_there(config: &Path) -> anyhow::Result<Option<GatewayFile>> {
    let path = config.with_file_name("gateway.toml");
    match fs::symlink_metadata(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        _ => load_from(config, &path).map(Some),
    }
}

/// What the gateway does whose file is `path`.
pub(crate) fn load_from(config: &Path, path: &Path) -> anyhow::Result<GatewayFile> {
    let text = fs::read_to_string(path).map_err(|error| {
        if !config.exists() {
            let config = config.display();
            return anyhow::anyhow!(
                "there is no {config}: start a cluster with `{} up`, or name one with --config",
                program()
            );
        }
        let advice = "write http = \"ADDRESS:PORT\" into it: where the gateway listens";
        anyhow::anyhow!("cannot read {}: {error}; {advice}", path.display())
    })?;
    toml::from_str(&text).map_err(|error| {
        let is_http = ["`http`", "socket address"].iter().any(|word| error.message().contains(word));
        let advice = if is_http { ": write http = \"ADDRESS:PORT\"" } else { "" };
        anyhow::anyhow!("{}: {}{advice}", path.display(), problem(&text, &error))
    })
}

/// The database of the catalog: that of the command line or the environment, or else that of the file.
pub(crate) fn database(arg: Option<&str>, s3: Option<&S3File>) -> Option<String> {
    arg.filter(|url| !url.is_empty()).map(str::to_owned).or_else(|| s3.and_then(|s3| s3.catalog.clone()))
}

/// Lets objects up to this many bytes ride in their manifests.
pub(crate) fn set_inline(directory: &Path, bytes: u64) -> anyhow::Result<()> {
    let config = directory.join("cluster.toml");
    let mut file = load(&config)?;
    if let Some(s3) = &mut file.s3 {
        s3.inline = Some(bytes.to_string());
    }
    write(&directory.join("gateway.toml"), &file)
}

pub(crate) fn write(path: &Path, file: &GatewayFile) -> anyhow::Result<()> {
    let text = toml::to_string(file).with_context(|| format!("{} cannot be made", path.display()))?;
    atomic_file::write(path, &text).with_context(|| format!("{} cannot be written", path.display()))
}

/// The file of the users of S3.
pub(crate) fn users_file(config: &Path, s3: Option<&S3File>) -> PathBuf {
    let file = s3.and_then(|s3| s3.users.as_deref()).unwrap_or(Path::new("users.toml"));
    atomic_file::directory(config).join(file)
}

/// The users of S3.
pub(crate) fn users(config: &Path, s3: Option<&S3File>) -> s3::Users {
    s3::Users::at(&users_file(config, s3))
}

/// The file of the keys that those of objects are encrypted with.
pub(crate) fn keys_file(config: &Path, s3: Option<&S3File>) -> PathBuf {
    let file = s3.and_then(|s3| s3.keys.as_deref()).unwrap_or(Path::new("keys.toml"));
    atomic_file::directory(config).join(file)
}

/// The keys that those of objects are encrypted with.
pub(crate) fn keys(config: &Path, s3: Option<&S3File>) -> s3::Keyring {
    s3::Keyring::at(&keys_file(config, s3))
}
