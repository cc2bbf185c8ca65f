//! Hostile manifests and index chunks: no panic, no memory that the bytes do not bear out, and what decodes is canonical.

#![no_main]

use catalog::object_manifest::{self, ObjectManifest};
use libfuzzer_sys::fuzz_target;
use object::manifest::{FILE_ENTRIES, Manifest, NAME_BYTES, decode_index, encode_index};

fuzz_target!(|data: &[u8]| {
    if let Ok(manifest) = Manifest::decode(data) {
        assert_eq!(manifest.encode(), data);
        assert!(manifest.name.len() <= NAME_BYTES && manifest.entries.len() <= FILE_ENTRIES);
        let _ = manifest.chunks();
    }
    if let Ok(record) = ObjectManifest::decode(data) {
        assert_eq!(record.encode(), data);
        let _ = record.row();
    }
    if let Ok(entries) = object_manifest::decode_entries(data) {
        assert_eq!(object_manifest::encode_entries(&entries), data);
    }
    if let Ok(entries) = decode_index(data) {
        let mut canonical = data.to_vec();
        canonical[5..8].fill(0);
        assert_eq!(encode_index(&entries), canonical);
    }
});
