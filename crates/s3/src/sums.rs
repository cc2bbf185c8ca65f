//! The checksum of an object from those of its parts.

use crc_fast::{CrcAlgorithm, checksum_combine};
use object::catalog::Part;
use s3s::crypto::{Crc32, Crc32c, Sha1, Sha256};
use s3s::{S3Result, s3_error};

use crate::attributes::{Attributes, CHECKSUM_TYPE};
use crate::multipart::part_sums;

/// The checksum of a whole object, as attributes.
pub(crate) struct Total {
    pub(crate) attributes: Attributes,
}

impl Total {
    /// From the parts, by the algorithm that the upload named; CRC-64/NVME when it named none. `kind` says whether the
    /// sum is that of all bytes, or that of the parts' sums.
    pub(crate) fn of(parts: &[Part], algorithm: Option<&str>, kind: Option<&str>) -> S3Result<Self> {
        let algorithm = algorithm.unwrap_or("CRC64NVME").to_ascii_lowercase();
        let name = format!("x-amz-checksum-{algorithm}");
        let default = if algorithm == "crc64nvme" { "FULL_OBJECT" } else { "COMPOSITE" };
        let kind = kind.unwrap_or(default).to_owned();
        let mut values = vec![];
        for part in parts {
            let Some(value) = part_sums(part).remove(&name) else {
                // A part that was put with another checksum: then there is none for the whole.
                return Ok(Self { attributes: Attributes::new() });
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
        Ok(Self { attributes: pairs.into_iter().collect() })
    }
}

/// The sum of all bytes.
fn combined(values: &[(Vec<u8>, u64)], algorithm: CrcAlgorithm, width: usize) -> String {
    let number = |bytes: &[u8]| bytes.iter().fold(0_u64, |sum, byte| sum << 8 | u64::from(*byte));
    let mut sums = values.iter().map(|(bytes, size)| (number(bytes), *size));
    let first = sums.next().map_or(0, |(sum, _)| sum);
    let total = sums.fold(first, |total, (sum, size)| checksum_combine(algorithm, total, sum, size));
    base64_simd::STANDARD.encode_to_string(&total.to_be_bytes()[8 - width..])
}

/// The sum of the parts' sums, and how many there are.
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
    fn the_sum_of_all_bytes_follows_from_the_parts() {
        let all: Vec<u8> = (0..100_000_u32).map(|n| (n.wrapping_mul(n) >> 3) as u8).collect();
        let parts = [part(1, &all[..70_001]), part(2, &all[70_001..70_002]), part(3, &all[70_002..])];
        let total = Total::of(&parts, None, None).unwrap().attributes;
        let expected = base64_simd::STANDARD.encode_to_string(Crc64Nvme::checksum(&all));
        assert_eq!(total.get("x-amz-checksum-crc64nvme"), Some(&expected));
        let total = Total::of(&parts, Some("CRC32"), Some("FULL_OBJECT")).unwrap().attributes;
        let expected = base64_simd::STANDARD.encode_to_string(Crc32::checksum(&all));
        assert_eq!(total.get("x-amz-checksum-crc32"), Some(&expected));
        let total = Total::of(&parts, Some("CRC32"), None).unwrap().attributes;
        assert!(total["x-amz-checksum-crc32"].ends_with("-3"));
        assert!(Total::of(&parts, Some("CRC64NVME"), Some("COMPOSITE")).is_err());
        assert!(Total::of(&parts, Some("SHA256"), None).unwrap().attributes.is_empty());
    }
}
