#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use proptest::prelude::*;
use protocol::id::coded;

use super::*;

fn entry(length: u32) -> Entry {
    Entry::new(ChunkId::of_payload(&length.to_le_bytes()), length)
}

fn sample(body: Body) -> ObjectManifest {
    let mut record = ObjectManifest::new(Kind::Object, "bucket", "a/key", VersionId::new(1_700_000_000_000_000, 7));
    record.size = match &body {
        Body::Inline(bytes) => bytes.len() as u64,
        Body::Chunks(entries) => entries.iter().map(|e| u64::from(e.plain)).sum(),
        Body::Indexed(indexes) => indexes.iter().map(|(_, covers)| covers).sum(),
        Body::InManifest => 99,
    };
    record.etag = "d41d8cd98f00b204e9800998ecf8427e".to_owned();
    record.attributes.insert("content-type".to_owned(), "text/plain".to_owned());
    record.parts = vec![5, 6];
    record.body = body;
    record
}

fn samples() -> Vec<ObjectManifest> {
    [
        Body::Inline(Bytes::from_static(b"hello")),
        Body::Chunks(vec![entry(1 << 20), entry(5)]),
        Body::Indexed(vec![(entry(100), 1 << 30)]),
        Body::InManifest,
    ]
    .map(sample)
    .to_vec()
}

#[test]
fn encodes_and_decodes() {
    for record in samples() {
        assert_eq!(ObjectManifest::decode(&record.encode()), Ok(record));
    }
}

#[test]
fn the_format_is_frozen() {
    let all: Vec<u8> = samples().iter().flat_map(ObjectManifest::encode).collect();
    assert_eq!(&samples()[0].encode()[..8], b"RSVO\x01\x00\x00\x00");
    assert_eq!(
        blake3::hash(&all).to_hex().as_str(),
        "1bffbe88d9f49e2978322d1862f57f43ba66c11d026b2388a2fa1e6108985ea6"
    );
}

#[test]
fn the_format_with_compressed_chunks_is_frozen() {
    let packed = Entry { plain: 1 << 20, ..entry(700_000) };
    let record = sample(Body::Chunks(vec![packed, entry(5)]));
    let bytes = record.encode();
    assert_eq!(ObjectManifest::decode(&bytes), Ok(record.clone()));
    assert_eq!(&bytes[..8], b"RSVO\x02\x00\x00\x00");
    assert_eq!(
        blake3::hash(&bytes).to_hex().as_str(),
        "e3576e2ae4dcc0e4b57ffdf52641fdbfd1531ae3d9b13fb6682406f8ecbb6376"
    );
    let mut old = bytes.clone();
    old[4] = 1;
    assert!(ObjectManifest::decode(&old).is_err());
    let mut new = sample(Body::Chunks(vec![entry(5)])).encode();
    new[4] = 2;
    assert!(ObjectManifest::decode(&new).is_err());
    let Body::Chunks(entries) = record.body else { return };
    for entries in [&entries[..], &entries[1..], &[]] {
        assert_eq!(decode_entries(&encode_entries(entries)).as_deref(), Ok(entries));
    }
    assert_eq!(encode_entries(&entries).len(), 1 + 2 * 42);
    assert_eq!(decode_entries(&[2]), Err(Malformed::Packing));
}

/// The kind of a coded chunk is the same byte as a format.
#[test]
fn entries_of_coded_chunks_are_not_taken_for_a_format() {
    let code = "2+1".parse().expect("a code");
    let coded = Entry { id: coded::cut(code, b"x").expect("short").id, ..entry(9) };
    let (packed, sealed) = (Entry { plain: 1 << 20, ..entry(700_000) }, Entry { plain: 5, ..entry(37) });
    for entries in [vec![coded], vec![coded, packed], vec![packed, coded], vec![coded, sealed], vec![entry(5), coded]] {
        assert_eq!(decode_entries(&encode_entries(&entries)), Ok(entries.clone()));
        let record = sample(Body::Chunks(entries));
        assert_eq!(ObjectManifest::decode(&record.encode()), Ok(record));
    }
    assert_eq!(decode_entries(&[1]), Err(Malformed::Packing));
}

#[test]
fn the_format_with_encrypted_bytes_is_frozen() {
    let sealed = Entry { plain: 5, ..entry(37) };
    let chunks = sample(Body::Chunks(vec![sealed, Entry { plain: 1 << 17, ..entry((1 << 17) + 48) }]));
    let inline = ObjectManifest { size: 5, ..sample(Body::Inline(Bytes::from_static(&[7; 37]))) };
    let mut all = vec![];
    for record in [&chunks, &inline] {
        let bytes = record.encode();
        assert_eq!(&bytes[..8], b"RSVO\x03\x00\x00\x00");
        assert_eq!(ObjectManifest::decode(&bytes).as_ref(), Ok(record));
        for format in [1, 2] {
            let mut old = bytes.clone();
            old[4] = format;
            assert!(ObjectManifest::decode(&old).is_err(), "{format}");
        }
        all.extend(bytes);
    }
    assert_eq!(
        blake3::hash(&all).to_hex().as_str(),
        "67dfb506ee74d2c9518f810522e7f0d4a63f13c295ab91dfcd82f6f88ea85c2c"
    );
    let Body::Chunks(entries) = chunks.body else { return };
    assert_eq!(decode_entries(&encode_entries(&entries)).as_deref(), Ok(&entries[..]));
    assert_eq!(encode_entries(&entries)[0], 3);
    // As many bytes as no encryption makes of five.
    let odd = ObjectManifest { size: 5, ..sample(Body::Inline(Bytes::from_static(&[7; 36]))) };
    assert_eq!(ObjectManifest::decode(&odd.encode()), Err(Malformed::Size));
}

#[test]
fn refuses_with_the_reason() {
    let good = samples()[0].encode();
    let with = |at: usize, byte: u8| {
        let mut bad = good.clone();
        bad[at] = byte;
        ObjectManifest::decode(&bad)
    };
    assert_eq!(with(0, b'X'), Err(Malformed::Magic));
    assert_eq!(with(4, 9), Err(Malformed::Format(9)));
    assert_eq!(with(5, 9), Err(Malformed::Kind));
    assert_eq!(with(32, 9), Err(Malformed::Size));
    assert_eq!(ObjectManifest::decode(&good[..good.len() - 1]), Err(Malformed::Length));
    assert_eq!(ObjectManifest::decode(&[&good[..], b"x"].concat()), Err(Malformed::Length));
}

/// The manifest of an object of no bytes, kept as this attribute says.
fn kept_as(redundancy: &str) -> Vec<u8> {
    let head = b"RSVO\x01\0\0\0\
        \0\x06\x0a\x24\x18\x1e\x40\0\0\0\0\0\0\0\0\x07\
        \0\x40\x1e\x18\x24\x0a\x06\0\
        \0\0\0\0\0\0\0\0\
        \0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\
        \x06\0\0\0bucket\x05\0\0\0a/key\0\0\0\0\
        \x01\0\0\0\x0a\0\0\0redundancy";
    let rest = b"\0\0\0\0\0\0\0\0\0";
    [&head[..], &(redundancy.len() as u32).to_le_bytes(), redundancy.as_bytes(), rest].concat()
}

#[test]
fn a_redundancy_of_a_later_version_is_refused_and_not_read_as_the_default() {
    let two = ObjectManifest::decode(&kept_as("2")).unwrap();
    assert_eq!((two.redundancy(), two.encode()), (Some(Redundancy::Copies(2)), kept_as("2")));
    let code = ObjectManifest::decode(&kept_as("4+2")).unwrap();
    assert_eq!((code.redundancy().map(Redundancy::pieces), code.encode()), (Some(6), kept_as("4+2")));
    // Other pieces than those of a code, more copies than there can be, or none.
    for unknown in ["4+2+1", "2x", "9", "0", "", "02"] {
        let refused = ObjectManifest::decode(&kept_as(unknown));
        assert_eq!(refused, Err(Malformed::Redundancy), "{unknown:?}");
    }
    let why = "its chunks are kept in a way that this program does not know: use a newer reservoir";
    assert_eq!(Malformed::Redundancy.to_string(), why);
}

#[test]
fn version_ids_are_read_back_and_sort_by_time() {
    let (old, new) = (VersionId::new(5, u64::MAX), VersionId::new(6, 0));
    assert!(old < new);
    assert_eq!(new.to_string().parse(), Ok(new));
    for bad in ["", "null", "00000000000000060000000000000000 ", "+0000000000000060000000000000000"] {
        assert_eq!(bad.parse::<VersionId>(), Err(()), "{bad}");
    }
}

proptest! {
    #[test]
    fn random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let _ = ObjectManifest::decode(&bytes);
        let _ = ObjectManifest::decode(&[&b"RSVO\x01\x00\x00\x00"[..], &bytes].concat());
        let _ = decode_entries(&[&[2], &bytes[..]].concat());
        let _ = decode_entries(&bytes);
    }

    #[test]
    fn a_changed_byte_never_panics(at in 0_usize..150, byte in any::<u8>(), which in 0_usize..4) {
        let mut bytes = samples()[which].encode();
        bytes[at] = byte;
        let _ = ObjectManifest::decode(&bytes);
    }
}
