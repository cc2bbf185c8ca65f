//! Checksums: those that a request gives, and that of an object from those of its parts.

use catalog::Part;
use crc_fast::{CrcAlgorithm, checksum_combine};
use s3s::crypto::{Crc32, Crc32c, Sha1, Sha256};
use s3s::dto::Checksum;
use s3s::{S3Result, TrailingHeaders, s3_error};

use super::attributes::{Attributes, CHECKSUM_TYPE};
use super::error;

/// The checksums of S3, and the headers that carry them.
pub(crate) const CHECKSUMS: [&str; 5] = [
    "x-amz-checksum-crc32",
    "x-amz-checksum-crc32c",
    "x-amz-checksum-crc64nvme",
    "x-amz-checksum-sha1",
    "x-amz-checksum-sha256",
];

/// Checksums by header, in base64.
pub(crate) type Checksums = Vec<(&'static str, String)>;

/// The values of a set of checksums.
pub(crate) fn from_dto(checksum: Checksum) -> Checksums {
    let values = [
        checksum.checksum_crc32,
        checksum.checksum_crc32c,
        checksum.checksum_crc64nvme,
        checksum.checksum_sha1,
        checksum.checksum_sha256,
    ];
    CHECKSUMS.into_iter().zip(values).filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Takes the checksums that a request gives: every kind of request has these fields of its own.
macro_rules! take_checksums {
    ($input:expr) => {
        $crate::rules::checksums::from_dto(s3s::dto::Checksum {
            checksum_crc32: $input.checksum_crc32.take(),
            checksum_crc32c: $input.checksum_crc32c.take(),
            checksum_crc64nvme: $input.checksum_crc64nvme.take(),
            checksum_sha1: $input.checksum_sha1.take(),
            checksum_sha256: $input.checksum_sha256.take(),
            ..s3s::dto::Checksum::default()
        })
    };
}
pub(crate) use take_checksums;

/// Sets the checksums of an answer to what `$value` gives for each header: every kind of answer has these fields of its own.
macro_rules! set_checksums {
    ($output:expr, $value:expr) => {
        [
            $output.checksum_crc32,
            $output.checksum_crc32c,
            $output.checksum_crc64nvme,
            $output.checksum_sha1,
            $output.checksum_sha256,
        ] = $crate::rules::checksums::CHECKSUMS.map($value)
    };
}
pub(crate) use set_checksums;

/// Refuses checksums that are none, whatever the body is.
pub(crate) fn check(given: &Checksums) -> S3Result<()> {
    let length = |name: &str| match name {
        "x-amz-checksum-crc64nvme" => 8,
        "x-amz-checksum-sha1" => 20,
        "x-amz-checksum-sha256" => 32,
        _ => 4,
    };
    for (name, value) in given {
        let bytes = base64_simd::STANDARD.decode_to_vec(value);
        if bytes.map_or(0, |bytes| bytes.len()) != length(name) {
            return Err(s3_error!(InvalidRequest, "Value for {name} header is invalid."));
        }
    }
    if given.len() > 1 {
        return Err(s3_error!(
            InvalidRequest,
            "Expecting a single x-amz-checksum- header. Multiple checksum Types are not allowed."
        ));
    }
    Ok(())
}

/// Refuses what is no algorithm of a checksum.
pub(crate) fn check_algorithm(name: &str) -> S3Result<()> {
    let known = |header: &&str| header.trim_start_matches("x-amz-checksum-").eq_ignore_ascii_case(name);
    if CHECKSUMS.iter().any(known) {
        return Ok(());
    }
    let why = "Checksum algorithm provided is unsupported. Please try again with any of the valid types: [CRC32, CRC32C, \
               CRC64NVME, SHA1, SHA256]";
    Err(s3_error!(InvalidRequest, "{why}"))
}

/// The type of a checksum by this algorithm, for an upload that asks for none.
pub(crate) fn default_kind(algorithm: &str) -> &'static str {
    if algorithm.eq_ignore_ascii_case("crc64nvme") { "FULL_OBJECT" } else { "COMPOSITE" }
}

/// Refuses a type of checksum that an algorithm does not have.
pub(crate) fn check_kind(algorithm: Option<&str>, kind: Option<&str>) -> S3Result<()> {
    let Some(kind) = kind else { return Ok(()) };
    let Some(algorithm) = algorithm.map(str::to_ascii_lowercase) else {
        let why = "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.";
        return Err(s3_error!(InvalidRequest, "{why}"));
    };
    match (kind, algorithm.as_str()) {
        ("FULL_OBJECT", "crc32" | "crc32c" | "crc64nvme") | ("COMPOSITE", "crc32" | "crc32c" | "sha1" | "sha256") => {
            Ok(())
        }
        ("FULL_OBJECT" | "COMPOSITE", _) => Err(s3_error!(
            InvalidRequest,
            "The {kind} checksum type cannot be used with the {algorithm} checksum algorithm."
        )),
        _ => Err(s3_error!(InvalidRequest, "Value for x-amz-checksum-type header is invalid.")),
    }
}

/// The checksums that a trailer is to have.
pub(crate) fn announced(trailer: Option<&str>) -> S3Result<Vec<&'static str>> {
    let names = trailer.unwrap_or_default().split(',').map(str::trim).filter(|name| !name.is_empty());
    let known = |name: &str| {
        let found = CHECKSUMS.into_iter().find(|known| known.eq_ignore_ascii_case(name));
        found.ok_or_else(|| {
            s3_error!(InvalidRequest, "The value specified in the x-amz-trailer header is not supported")
        })
    };
    names.map(known).collect()
}

/// The checksums in a body's trailer, which has to be as it was announced.
pub(crate) fn trailer(trailer: Option<&str>, trailers: Option<TrailingHeaders>) -> S3Result<Checksums> {
    let requested = trailers.and_then(|trailers| trailers.take()).unwrap_or_default();
    let announced = announced(trailer)?;
    let value = |name: &&str| requested.get(*name).and_then(|value| value.to_str().ok());
    if requested.keys().any(|name| !announced.contains(&name.as_str()))
        || announced.iter().any(|name| value(name).is_none())
    {
        let why = "the trailer of the body is not what x-amz-trailer announced";
        return Err(error::custom("MalformedTrailerError", http::StatusCode::BAD_REQUEST, why));
    }
    Ok(CHECKSUMS.iter().filter_map(|name| Some((*name, value(name)?.to_owned()))).collect())
}

/// The checksums of a part by header.
pub(crate) fn of_part(part: &catalog::Part) -> Attributes {
    let pairs = part.checksums.lines().filter_map(|line| line.split_once('='));
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

/// The checksum of a whole object from those of its parts, as attributes, by the algorithm that the upload named;
/// CRC-64/NVME when it named none. `kind` says whether the checksum is that of all bytes, or that of the parts' checksums.
pub(crate) fn of_object(parts: &[Part], algorithm: Option<&str>, kind: Option<&str>) -> S3Result<Attributes> {
    let algorithm = algorithm.unwrap_or("CRC64NVME").to_ascii_lowercase();
    let name = format!("x-amz-checksum-{algorithm}");
    let kind = kind.unwrap_or(default_kind(&algorithm)).to_owned();
    let mut values = vec![];
    for part in parts {
        let Some(value) = of_part(part).remove(&name) else {
            // A part that was put with another checksum: then there is none for the whole.
            return Ok(Attributes::new());
        };
        let bytes = base64_simd::STANDARD.decode_to_vec(&value);
        values.push((bytes.map_err(|_| s3_error!(InternalError, "a part's checksum is not base64"))?, part.size));
    }
    let value = match (kind.as_str(), algorithm.as_str()) {
        ("FULL_OBJECT", "crc32") => combined(&values, CrcAlgorithm::Crc32IsoHdlc, 4),
        ("FULL_OBJECT", "crc32c") => combined(&values, CrcAlgorithm::Crc32Iscsi, 4),
        ("FULL_OBJECT", "crc64nvme") => combined(&values, CrcAlgorithm::Crc64Nvme, 8),
        ("COMPOSITE", "crc32") => composed::<Crc32>(&values),
        ("COMPOSITE", "crc32c") => composed::<Crc32c>(&values),
        ("COMPOSITE", "sha1") => composed::<Sha1>(&values),
        ("COMPOSITE", "sha256") => composed::<Sha256>(&values),
        _ => return Err(s3_error!(InvalidRequest, "{algorithm} cannot be had as {kind}")),
    };
    let pairs = [(name, value), (CHECKSUM_TYPE.to_owned(), kind)];
    Ok(pairs.into_iter().collect())
}

/// The sum of all bytes.
fn combined(values: &[(Vec<u8>, u64)], algorithm: CrcAlgorithm, width: usize) -> String {
    let number = |bytes: &[u8]| bytes.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let mut checksums = values.iter().map(|(bytes, size)| (number(bytes), *size));
    let first = checksums.next().map_or(0, |(sum, _)| sum);
    let total = checksums.fold(first, |total, (sum, size)| checksum_combine(algorithm, total, sum, size));
    base64_simd::STANDARD.encode_to_string(&total.to_be_bytes()[8 - width..])
}

/// The checksum of the parts' checksums, and how many there are.
fn composed<C: s3s::crypto::Checksum>(values: &[(Vec<u8>, u64)]) -> String {
    let mut sum = C::new();
    values.iter().for_each(|(bytes, _)| sum.update(bytes));
    format!("{}-{}", base64_simd::STANDARD.encode_to_string(sum.finalize().as_ref()), values.len())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use s3s::crypto::{Checksum as _, Crc64Nvme};

    use super::*;

    fn part(number: u32, bytes: &[u8]) -> Part {
        let crc32 = base64_simd::STANDARD.encode_to_string(Crc32::checksum(bytes));
        let crc64 = base64_simd::STANDARD.encode_to_string(Crc64Nvme::checksum(bytes));
        let checksums = format!("x-amz-checksum-crc32={crc32}\nx-amz-checksum-crc64nvme={crc64}\n");
        let size = bytes.len() as u64;
        Part { number, size, etag: String::new(), micros: 0, checksums, entries: vec![] }
    }

    #[test]
    fn what_can_be_no_checksum_is_refused() {
        let given = |name: &'static str, value: &str| (name, value.to_owned());
        let (good, short) = (given(CHECKSUMS[0], "AAAAAA=="), given(CHECKSUMS[0], "AAAA"));
        assert!(check(&vec![]).is_ok() && check(&vec![good.clone()]).is_ok());
        assert!(check(&vec![short]).is_err() && check(&vec![given(CHECKSUMS[4], "AAAAAA==")]).is_err());
        assert!(check(&vec![good, given(CHECKSUMS[1], "AAAAAA==")]).is_err());
        assert!(check_kind(None, None).is_ok() && check_kind(None, Some("COMPOSITE")).is_err());
        assert!(check_kind(Some("SHA256"), Some("FULL_OBJECT")).is_err());
        assert!(check_kind(Some("CRC64NVME"), Some("COMPOSITE")).is_err());
        assert!(
            check_kind(Some("CRC32"), Some("FULL_OBJECT")).is_ok() && check_kind(Some("CRC32"), Some("x")).is_err()
        );
        assert!(check_algorithm("crc32c").is_ok() && check_algorithm("MD4").is_err());
        assert_eq!(announced(Some("X-Amz-Checksum-CRC32 ,")).unwrap(), [CHECKSUMS[0]]);
        assert!(announced(Some("x-amz-meta-a")).is_err() && announced(None).unwrap().is_empty());
    }

    #[test]
    fn the_sum_of_all_bytes_follows_from_the_parts() {
        let all: Vec<u8> = (0..100_000_u32).map(|n| (n.wrapping_mul(n) >> 3) as u8).collect();
        let parts = [part(1, &all[..70_001]), part(2, &all[70_001..70_002]), part(3, &all[70_002..])];
        let total = of_object(&parts, None, None).unwrap();
        let expected = base64_simd::STANDARD.encode_to_string(Crc64Nvme::checksum(&all));
        assert_eq!(total.get("x-amz-checksum-crc64nvme"), Some(&expected));
        let total = of_object(&parts, Some("CRC32"), Some("FULL_OBJECT")).unwrap();
        let expected = base64_simd::STANDARD.encode_to_string(Crc32::checksum(&all));
        assert_eq!(total.get("x-amz-checksum-crc32"), Some(&expected));
        let total = of_object(&parts, Some("CRC32"), None).unwrap();
        assert!(total["x-amz-checksum-crc32"].ends_with("-3"));
        assert!(of_object(&parts, Some("CRC64NVME"), Some("COMPOSITE")).is_err());
        assert!(of_object(&parts, Some("SHA256"), None).unwrap().is_empty());
    }
}
