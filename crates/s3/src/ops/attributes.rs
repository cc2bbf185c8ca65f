//! GetObjectAttributes.

use catalog::object_manifest::ObjectManifest;
use s3s::dto::*;
use s3s::{S3ErrorCode, S3Response, S3Result, s3_error};

use super::list::page_length;
use crate::rules::attributes::{self, CHECKSUM_TYPE, etag, modified, version_header};
use crate::rules::caller::Caller;
use crate::rules::checksums::set_checksums;
use crate::rules::encryption::customer_key;
use crate::rules::{policy, storage_class};
use crate::state::State;

/// In the extensions of an answer: S3 writes the entity tag in it without quotes.
#[derive(Clone, Copy)]
pub(crate) struct BareTag;

const KNOWN: [&str; 5] = [
    ObjectAttributes::CHECKSUM,
    ObjectAttributes::ETAG,
    ObjectAttributes::OBJECT_PARTS,
    ObjectAttributes::OBJECT_SIZE,
    ObjectAttributes::STORAGE_CLASS,
];

pub(crate) fn respond(output: GetObjectAttributesOutput) -> S3Response<GetObjectAttributesOutput> {
    let mut response = S3Response::new(output);
    response.extensions.insert(BareTag);
    response
}

pub(crate) fn get_object_attributes(
    state: &State,
    caller: &Caller,
    mut input: GetObjectAttributesInput,
) -> S3Result<GetObjectAttributesOutput> {
    let customer = customer_key!(input)?;
    let bucket = state.bucket(&input.bucket, caller, &input.key)?;
    let version = input.version_id.as_deref();
    state.allow(&bucket, caller, policy::action("GetObject", version.is_some()), &input.key, version)?;
    // A header has several, with commas between them.
    let names: Vec<&str> =
        input.object_attributes.iter().flat_map(|list| list.as_str().split(',')).map(str::trim).collect();
    if names.iter().any(|name| !KNOWN.contains(name)) {
        return Err(s3_error!(InvalidArgument, "Invalid attribute name specified."));
    }
    let row = state.find_for(caller, &bucket, &input.key, input.version_id.as_deref())?;
    let record = &row.record;
    state.unseal(record, customer.as_ref())?;
    let asked = |name: &str| names.contains(&name);
    let parts = if asked(ObjectAttributes::OBJECT_PARTS) {
        parts(record, input.max_parts, input.part_number_marker)?
    } else {
        None
    };
    Ok(GetObjectAttributesOutput {
        checksum: asked(ObjectAttributes::CHECKSUM).then(|| checksum(record)).flatten(),
        e_tag: etag(record).filter(|_| asked(ObjectAttributes::ETAG)),
        last_modified: Some(modified(record)),
        object_parts: parts,
        object_size: i64::try_from(record.size).ok().filter(|_| asked(ObjectAttributes::OBJECT_SIZE)),
        storage_class: asked(ObjectAttributes::STORAGE_CLASS).then(|| storage_class::of(record).into()),
        version_id: version_header(record),
        ..GetObjectAttributesOutput::default()
    })
}

fn checksum(record: &ObjectManifest) -> Option<Checksum> {
    let kind = attributes::get(record, CHECKSUM_TYPE)?;
    let mut checksum = Checksum { checksum_type: Some(kind.into()), ..Checksum::default() };
    set_checksums!(checksum, |name| attributes::get(record, name));
    Some(checksum)
}

/// A page of the parts that an object was put in. Checksums of parts are not kept beyond their upload.
fn parts(
    record: &ObjectManifest,
    most: Option<i32>,
    marker: Option<i32>,
) -> S3Result<Option<GetObjectAttributesParts>> {
    if record.parts.is_empty() {
        return Ok(None);
    }
    let most = page_length("max-parts", most)?;
    let marker = marker.unwrap_or(0);
    let after = usize::try_from(marker).map_err(|_| S3ErrorCode::InvalidArgument)?;
    let sizes = record.parts.iter().zip(1..).skip(after).take(most);
    let page: Vec<ObjectPart> = sizes
        .map(|(size, number)| ObjectPart {
            part_number: Some(number),
            size: i64::try_from(*size).ok(),
            ..ObjectPart::default()
        })
        .collect();
    Ok(Some(GetObjectAttributesParts {
        is_truncated: Some(after + page.len() < record.parts.len()),
        max_parts: Some(most as i32),
        next_part_number_marker: page.last().and_then(|part| part.part_number).or(Some(0)),
        part_number_marker: Some(marker),
        parts: Some(page),
        total_parts_count: i32::try_from(record.parts.len()).ok(),
    }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use catalog::object_manifest::{Kind, VersionId};

    use super::*;

    #[test]
    fn parts_come_in_pages() {
        let mut record = ObjectManifest::new(Kind::Object, "b", "k", VersionId::default());
        assert_eq!(parts(&record, None, None).unwrap(), None);
        record.parts = vec![7, 8, 9];
        let page = |most, marker| {
            let page = parts(&record, most, marker).unwrap().unwrap();
            let sizes: Vec<i64> = page.parts.unwrap().iter().map(|part| part.size.unwrap()).collect();
            (sizes, page.is_truncated.unwrap(), page.next_part_number_marker.unwrap(), page.total_parts_count.unwrap())
        };
        assert_eq!(page(None, None), (vec![7, 8, 9], false, 3, 3));
        assert_eq!(page(Some(2), None), (vec![7, 8], true, 2, 3));
        assert_eq!(page(Some(2), Some(2)), (vec![9], false, 3, 3));
        assert_eq!(page(None, Some(9)), (vec![], false, 0, 3));
        assert!(parts(&record, Some(-1), None).is_err() && parts(&record, None, Some(-1)).is_err());
    }
}
