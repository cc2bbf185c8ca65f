//! The cluster map as nodes hand it to each other: the part of their files that is the same on all of them.

use std::io::Read;
use std::path::{Path, PathBuf};

use protocol::limits;
use protocol::map::{ClusterMap, MapDocument};
use protocol::proposer::Proposed;

use super::{ClusterConfig, ConfigError};

/// First byte of a document: TOML follows, compressed.
const VERSION: u8 = 1;
/// Level of compression: a map is compressed once, and sent to thousands.
const LEVEL: i32 = 9;
/// Most bytes of the text in a document.
const TEXT_BYTES: u64 = 16 * limits::MAP_BYTES as u64;

impl Proposed for ClusterConfig {
    fn is_same(&self, other: &Self) -> bool {
        let documents = (self.document(), other.document());
        self.epoch == other.epoch && matches!(documents, (Some(one), Some(other)) if one.digest() == other.digest())
    }
}

impl ClusterConfig {
    /// The map as it is handed to other nodes: without where this machine keeps its key, and which interface it uses. `None` when it
    /// is longer than [`limits::MAP_BYTES`].
    #[must_use]
    pub fn document(&self) -> Option<MapDocument> {
        let mut shared = self.clone();
        (shared.key_file, shared.network.interface) = (PathBuf::new(), None);
        let text = toml::to_string(&shared).ok()?;
        // In one piece: what compresses a stream of unknown length clears tables of many megabytes first.
        let compressed = zstd::bulk::compress(text.as_bytes(), LEVEL).ok()?;
        MapDocument::new([&[VERSION], &compressed[..]].concat().into())
    }

    /// The map that another node has handed on, where this one's is.
    ///
    /// # Errors
    /// When it is none, or cannot serve here.
    pub fn received(document: &MapDocument, local: &Self) -> Result<Self, ConfigError> {
        let mut shared = Self::from_document(document, &local.path)?;
        (shared.key_file, shared.network.interface) = (local.key_file.clone(), local.network.interface);
        Ok(shared)
    }

    /// The map that a node has handed on to one that has none yet, and is going to have it at `path`.
    ///
    /// # Errors
    /// When it is none, or cannot serve here.
    pub fn from_document(document: &MapDocument, path: &Path) -> Result<Self, ConfigError> {
        let wrong = |problem: &str| ConfigError::Value { path: path.to_owned(), problem: problem.to_owned() };
        let compressed = match document.bytes().split_first() {
            Some((&VERSION, compressed)) => compressed,
            _ => return Err(wrong("the map that others use is of a newer version: update this node")),
        };
        let mut text = String::new();
        let read = zstd::Decoder::new(compressed)
            .and_then(|decoder| decoder.take(TEXT_BYTES + 1).read_to_string(&mut text))
            .map_err(|error| wrong(&format!("the map that others use cannot be read ({error}): update this node")))?;
        if read as u64 > TEXT_BYTES {
            return Err(wrong("the map that others use is too long"));
        }
        Self::parse(&text, path)
    }

    /// The map for the protocol, as it is handed on.
    pub(crate) fn map_to_hand_on(&self) -> Result<ClusterMap, ConfigError> {
        let document = self.document();
        if document.is_none() {
            tracing::warn!("the cluster map is too long for other nodes to have it from this one: copy it to them");
        }
        Ok(self.map()?.with_document(document))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(targets: u32, local: &str) -> ClusterConfig {
        let target = |n: u32| {
            let [high, low] = [n >> 8, n & 255];
            format!(
                "[[target]]\nid = {n}\ndomain = \"rack-{}\"\naddress = \"10.7.{high}.{low}:7000\"\ndata = \"disk\"\n\
                 capacity = \"16TiB\"\n",
                n % 400
            )
        };
        let targets: String = (1..=targets).map(target).collect();
        let text = format!("cluster = \"c\"\nepoch = 4\n{local}\n{targets}");
        let config = ClusterConfig::parse(&text, Path::new("here/cluster.toml")).expect("a good map");
        config.with_first_layout().expect("a good map")
    }

    #[test]
    fn a_map_is_the_same_wherever_it_comes_from_and_keeps_what_is_of_its_machine() {
        let here = map(12, "key_file = \"k\"\n[network]\ninterface = \"10.7.0.1\"");
        let there = map(12, "key_file = \"/etc/key\"\n[network]\ninterface = \"10.7.0.2\"");
        let document = there.document().expect("a short one");
        assert_eq!(here.document().as_ref(), Some(&document));
        let received = ClusterConfig::received(&document, &here).expect("a good one");
        assert_eq!(toml::to_string(&received).ok(), toml::to_string(&here).ok());
        assert_eq!(received.path, here.path);
        assert_eq!(received.document().as_ref(), Some(&document), "it is handed on as it came");
    }

    /// It is on the wire and in the catalogs of clusters: what was handed on by the first version is read. (The bytes that compression
    /// makes may be others.)
    #[test]
    fn a_document_of_the_first_version_is_read() {
        let own = map(3, "key_file = \"k\"");
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/map-document-v1.bin");
        if std::env::var_os("RESERVOIR_FREEZE").is_some() {
            let document = own.document().expect("a short one");
            std::fs::write(&fixture, document.bytes()).expect("the fixture can be written");
        }
        let frozen = std::fs::read(&fixture).expect("the fixture is there");
        let document = MapDocument::new(frozen.into()).expect("a short one");
        assert_eq!(document.bytes()[0], 1, "the version");
        let received = ClusterConfig::received(&document, &own).expect("a good one");
        assert_eq!(toml::to_string(&received).ok(), toml::to_string(&own).ok());
    }

    #[test]
    fn thirteen_thousand_targets_fit_into_a_document() {
        let large = map(13_000, "key_file = \"k\"");
        let document = large.document().expect("it fits");
        assert!(document.bytes().len() < limits::MAP_BYTES / 8, "{} bytes", document.bytes().len());
        assert!(ClusterConfig::received(&document, &large).is_ok_and(|map| map.targets.len() == 13_000));
    }

    #[test]
    fn what_is_no_map_is_refused_in_one_line() {
        let here = map(9, "key_file = \"k\"");
        let refused = |bytes: Vec<u8>, why: &str| {
            let document = MapDocument::new(bytes.into()).expect("a short one");
            let error = ClusterConfig::received(&document, &here).expect_err("it is no map").to_string();
            assert!(error.contains(why) && error.lines().count() == 1, "{error}");
        };
        refused(vec![2, 0, 0], "of a newer version");
        refused(vec![1, 0, 0], "cannot be read");
        let packed = |text: &[u8]| [&[1], &zstd::encode_all(text, 1).expect("it can be compressed")[..]].concat();
        refused(packed(b"epoch = 3"), "missing field");
        refused(packed(&[0xff, 0xfe]), "cannot be read");
        refused(packed(&vec![b'#'; TEXT_BYTES as usize + 1]), "too long");
    }
}
