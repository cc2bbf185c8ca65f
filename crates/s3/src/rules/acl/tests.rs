#![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

use catalog::object_manifest::{Kind, VersionId};
use s3s::dto::Owner;

use super::super::ownership::{BLOCK, OWNERSHIP};
use super::*;

fn record(kind: Kind, attributes: &[(&str, &str)]) -> ObjectManifest {
    let key = if kind == Kind::Bucket { "" } else { "k" };
    let mut record = ObjectManifest::new(kind, "b", key, VersionId::default());
    record.attributes.extend(attributes.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())));
    record
}

/// A bucket of Ann, with lists.
fn bucket(attributes: &[(&str, &str)]) -> Row {
    let record = record(Kind::Bucket, &[&[("owner", "ann"), (OWNERSHIP, "ObjectWriter")], attributes].concat());
    Row { manifest: record.chunk().0, record }
}

fn canned(name: &str) -> RequestedAcl {
    RequestedAcl { canned: Some(name.to_owned()), ..RequestedAcl::default() }
}

/// An object that Bob put with this list.
fn object(bucket: &Row, asked: &RequestedAcl) -> ObjectManifest {
    let list = of_new_object(bucket, Some("bob"), asked).unwrap();
    let text = list.map(|list| list.text().unwrap());
    record(Kind::Object, &text.iter().map(|text| (ACL, text.as_str())).collect::<Vec<_>>())
}

/// Who of Ann, Bob, Carl and everybody may do this with Bob's object.
fn may(bucket: &Row, object: &ObjectManifest, action: &str) -> [bool; 4] {
    [Some("ann"), Some("bob"), Some("carl"), None].map(|user| allow(bucket, Some(object), user, action).unwrap())
}

#[test]
fn each_canned_list_lets_those_in_whom_it_names() {
    let bucket = bucket(&[]);
    let reads = |name| may(&bucket, &object(&bucket, &canned(name)), "GetObject");
    assert_eq!(reads("private"), [false, true, false, false]);
    assert_eq!(reads("public-read"), [true; 4]);
    assert_eq!(reads("authenticated-read"), [true, true, true, false]);
    assert_eq!(reads("bucket-owner-read"), [true, true, false, false]);
    assert_eq!(reads("bucket-owner-full-control"), [true, true, false, false]);
    let lists = |name| may(&bucket, &object(&bucket, &canned(name)), "GetObjectAcl");
    assert_eq!(lists("bucket-owner-read"), [false, true, false, false]);
    assert_eq!(lists("bucket-owner-full-control"), [true, true, false, false]);
    assert!(of_new_object(&bucket, Some("bob"), &canned("all")).is_err());
    // No list lets anybody do what is not in it.
    assert_eq!(may(&bucket, &object(&bucket, &canned("public-read-write")), "PutObjectTagging"), [false; 4]);
}

#[test]
fn grants_in_headers_and_documents_are_read_alike() {
    let bucket = bucket(&[]);
    let header = |permission, text: &str| RequestedAcl {
        grants: vec![(permission, text.to_owned())],
        ..RequestedAcl::default()
    };
    let text = format!("id=\"carl\", uri={SIGNED}");
    let by_header = of_new_object(&bucket, Some("bob"), &header(Permission::Read, &text)).unwrap().unwrap();
    let document = |owner: &str| RequestedAcl {
        document: Some(AccessControlPolicy {
            owner: Some(Owner { display_name: None, id: Some(owner.to_owned()) }),
            grants: Some(by_header.to_dto()),
        }),
        ..RequestedAcl::default()
    };
    let kept = object(&bucket, &header(Permission::Read, &text));
    assert_eq!(replaced(&bucket, &kept, &document("bob")).unwrap(), by_header);
    assert_eq!(replaced(&bucket, &kept, &document("carl")).unwrap_err().code(), &S3ErrorCode::AccessDenied);
    assert_eq!(may(&bucket, &kept, "GetObject"), [true, true, true, false]);
    // The owner may see and change the list, though nobody is granted that.
    assert_eq!(may(&bucket, &kept, "PutObjectAcl"), [false, true, false, false]);
    for (bad, code) in [
        ("carl", S3ErrorCode::InvalidArgument),
        ("id=\"\"", S3ErrorCode::InvalidArgument),
        ("uri=\"nowhere\"", S3ErrorCode::InvalidArgument),
        ("emailAddress=\"a@b\"", S3ErrorCode::UnresolvableGrantByEmailAddress),
    ] {
        let refused = of_new_object(&bucket, Some("bob"), &header(Permission::Read, bad));
        assert_eq!(refused.unwrap_err().code(), &code, "{bad}");
    }
    let both = RequestedAcl { canned: Some("private".to_owned()), ..header(Permission::Read, "id=carl") };
    assert_eq!(of_new_object(&bucket, None, &both).unwrap_err().code(), &S3ErrorCode::InvalidRequest);
    assert_eq!(
        replaced(&bucket, &kept, &RequestedAcl::default()).unwrap_err().code(),
        &S3ErrorCode::MissingSecurityHeader
    );
}

#[test]
fn who_owns_a_bucket_owns_what_is_put_into_it_where_that_is_said() {
    let enforced = bucket(&[(OWNERSHIP, "BucketOwnerEnforced")]);
    for fine in [RequestedAcl::default(), canned("bucket-owner-full-control"), canned("private")] {
        assert_eq!(of_new_object(&enforced, Some("bob"), &fine).unwrap(), None);
    }
    let refused = of_new_object(&enforced, Some("bob"), &canned("public-read")).unwrap_err();
    assert_eq!(refused.code(), &S3ErrorCode::AccessControlListNotSupported);
    let preferred = bucket(&[(OWNERSHIP, "BucketOwnerPreferred")]);
    let put = |asked: &RequestedAcl| object_owner(&object(&preferred, asked), &preferred.record).id.unwrap();
    assert_eq!(put(&canned("bucket-owner-full-control")), "ann");
    assert_eq!(put(&RequestedAcl::default()), "bob");
    assert_eq!(Ownership::of(&record(Kind::Bucket, &[])), Ownership::Enforced);
    let made = |ownership, name| of_new_bucket("ann", ownership, &canned(name));
    assert_eq!(made(Ownership::Writer, "private").unwrap(), None);
    assert!(made(Ownership::Writer, "public-read").unwrap().unwrap().is_public());
    assert_eq!(
        made(Ownership::Enforced, "public-read").unwrap_err().code(),
        &S3ErrorCode::InvalidBucketAclWithObjectOwnership
    );
}

#[test]
fn a_bucket_keeps_the_public_out() {
    let open = bucket(&[]);
    let public = object(&open, &canned("public-read"));
    let ignores = bucket(&[(BLOCK, r#"{"lists":true}"#)]);
    assert_eq!(may(&ignores, &public, "GetObject"), [false, true, false, false]);
    let refuses = bucket(&[(BLOCK, r#"{"new_lists":true}"#)]);
    assert_eq!(may(&refuses, &public, "GetObject"), [true; 4]);
    let asked = of_new_object(&refuses, Some("bob"), &canned("public-read")).unwrap_err();
    assert_eq!(asked.code(), &S3ErrorCode::AccessDenied);
    assert!(of_new_object(&refuses, Some("bob"), &canned("bucket-owner-read")).is_ok());
    let broken = bucket(&[(BLOCK, "{")]);
    assert!(allow(&broken, Some(&public), None, "GetObject").is_err());
}

#[test]
fn the_list_of_a_bucket_says_who_lists_and_puts() {
    let list = Acl::canned("public-read-write", "ann", "ann").unwrap().text().unwrap();
    let open = bucket(&[(ACL, list.as_str())]);
    let of_bob = object(&open, &RequestedAcl::default());
    assert!(allow(&open, None, None, "ListBucket").unwrap() && allow(&open, None, None, "PutObject").unwrap());
    assert_eq!(may(&open, &of_bob, "DeleteObject"), [false, true, false, false]);
    assert!(!allow(&open, None, Some("bob"), "PutBucketAcl").unwrap());
    // Who may list learns that something is not there.
    assert!(allow(&open, None, None, "GetObject").unwrap());
    assert!(!allow(&bucket(&[]), None, None, "GetObject").unwrap());
}
