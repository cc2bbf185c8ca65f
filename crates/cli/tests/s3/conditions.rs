//! Conditions of writes, copies and deletes, the owner that a request expects, and what is asked of an object beside its
//! bytes, through the real binary.

use crate::answers::ann;
use crate::client::S3;
use crate::common::{Cluster, content};

const B: &str = "conditions";

#[test]
fn conditions_and_attributes_are_those_of_aws() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
    let s3 = S3::of(&cluster);
    s3.put(B, "", b"").is(200);
    deletes(&s3);
    versioned_deletes(&s3);
    copies(&s3);
    owners(&s3, &ann(&cluster, &s3));
    attributes(&s3);
    expirations(&s3);
    assert!(cluster.stop());
}

fn deletes(s3: &S3) {
    let delete = |key: &str, tag: &str| s3.ask("DELETE", (B, key), &[], &[("if-match", tag)], b"");
    let tag = s3.put(B, "k", b"x").is(200).header("etag").to_owned();
    delete("k", "\"other\"").fails(412, "PreconditionFailed");
    delete("none", &tag).fails(404, "NoSuchKey");
    delete("none", "*").fails(404, "NoSuchKey");
    s3.get(B, "k").is(200);
    delete("k", &tag).is(204);
    s3.get(B, "k").fails(404, "NoSuchKey");
    s3.put(B, "k", b"x").is(200);
    delete("k", "*").is(204);
    let time = [("x-amz-if-match-size", "1")];
    s3.ask("DELETE", (B, "k"), &[], &time, b"").fails(501, "NotImplemented");
    s3.put(B, "k", b"x").is(200);
    s3.put(B, "l", b"y").is(200);
    let object = |key: &str, tag: &str| format!("<Object><Key>{key}</Key><ETag>{tag}</ETag></Object>");
    let tag = tag.trim_matches('"');
    let xml = format!("<Delete>{}{}{}</Delete>", object("k", tag), object("l", tag), object("none", tag));
    let done = s3.ask("POST", (B, ""), &[("delete", "")], &[], xml.as_bytes()).is(200);
    assert_eq!((done.elements("Deleted").len(), done.elements("Error").len()), (1, 2), "{}", done.text());
    assert_eq!(done.elements("Code"), ["PreconditionFailed", "NoSuchKey"]);
    assert!(done.elements("Message").iter().all(|message| !message.is_empty()));
    s3.get(B, "k").fails(404, "NoSuchKey");
    s3.get(B, "l").is(200);
}

fn versioned_deletes(s3: &S3) {
    s3.put("conditions-v", "", b"").is(200);
    let xml = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    s3.ask("PUT", ("conditions-v", ""), &[("versioning", "")], &[], xml).is(200);
    let tag = s3.put("conditions-v", "k", b"x").is(200).header("etag").to_owned();
    let delete = |tag: &str| s3.ask("DELETE", ("conditions-v", "k"), &[], &[("if-match", tag)], b"");
    delete("\"other\"").fails(412, "PreconditionFailed");
    assert_eq!(delete(&tag).is(204).header("x-amz-delete-marker"), "true");
    delete(&tag).fails(404, "NoSuchKey");
}

fn copies(s3: &S3) {
    s3.put(B, "from", b"source").is(200);
    let tag = s3.put(B, "to", b"before").is(200).header("etag").to_owned();
    let copy = |key: &str, condition: (&str, &str)| {
        s3.ask("PUT", (B, key), &[], &[("x-amz-copy-source", "conditions/from"), condition], b"")
    };
    copy("to", ("if-none-match", "*")).fails(412, "PreconditionFailed");
    copy("to", ("if-match", "\"other\"")).fails(412, "PreconditionFailed");
    copy("none", ("if-match", &tag)).fails(404, "NoSuchKey");
    assert_eq!(s3.get(B, "to").is(200).body, b"before");
    let copied = copy("to", ("if-match", &tag)).is(200);
    assert_eq!(s3.get(B, "to").is(200).body, b"source");
    assert_eq!(copied.element("ChecksumType"), "FULL_OBJECT", "{}", copied.text());
    copy("fresh", ("if-none-match", "*")).is(200);
    copy("to", ("x-amz-metadata-directive", "MOVE")).fails(400, "InvalidArgument");
    copy("to", ("x-amz-tagging-directive", "MOVE")).fails(400, "InvalidArgument");
}

/// A bucket of another owner than the expected one is refused, whatever is asked of it.
fn owners(s3: &S3, ann: &S3) {
    s3.put(B, "k", b"x").is(200);
    ann.put("of-ann", "", b"").is(200);
    let with = |method: &str, place, query: &[(&str, &str)], owner, body: &[u8]| {
        s3.ask(method, place, query, &[("x-amz-expected-bucket-owner", owner)], body)
    };
    with("GET", (B, "k"), &[], "admin", b"").is(200);
    with("PUT", (B, "k"), &[], "admin", b"y").is(200);
    let delete = b"<Delete><Object><Key>k</Key></Object></Delete>";
    for (method, key, query, body) in [
        ("GET", "k", &[][..], &b""[..]),
        ("PUT", "k", &[], b"z"),
        ("DELETE", "k", &[], b""),
        ("GET", "", &[("list-type", "2")], b""),
        ("GET", "", &[("versioning", "")], b""),
        ("POST", "k", &[("uploads", "")], b""),
        ("POST", "", &[("delete", "")], delete),
        ("DELETE", "", &[], b""),
    ] {
        with(method, (B, key), query, "ann", body).fails(403, "AccessDenied");
    }
    with("HEAD", (B, ""), &[], "ann", b"").is(403);
    with("GET", ("no-such-bucket", "k"), &[], "ann", b"").fails(404, "NoSuchBucket");
    let copy = |owner| {
        let headers = [("x-amz-copy-source", "conditions/k"), ("x-amz-source-expected-bucket-owner", owner)];
        s3.ask("PUT", (B, "copy"), &[], &headers, b"")
    };
    copy("ann").fails(403, "AccessDenied");
    copy("admin").is(200);
    assert_eq!(s3.get(B, "k").is(200).body, b"y");
}

fn attributes(s3: &S3) {
    let ask = |key: &str, names: &str, more: &[(&str, &str)]| {
        s3.ask("GET", (B, key), &[("attributes", "")], &[&[("x-amz-object-attributes", names)], more].concat(), b"")
    };
    let put = s3.ask("PUT", (B, "tagged"), &[], &[("x-amz-tagging", "a=1&b=2")], b"0123456789").is(200);
    assert_eq!(s3.head(B, "tagged").is(200).header("x-amz-tagging-count"), "2");
    assert_eq!(s3.head(B, "k").is(200).header("x-amz-tagging-count"), "");
    let all = ask("tagged", "ETag,Checksum,ObjectParts,StorageClass,ObjectSize", &[]).is(200);
    assert_eq!(all.element("ETag"), put.header("etag").trim_matches('"'), "{}", all.text());
    assert_eq!((all.element("ObjectSize").as_str(), all.element("StorageClass").as_str()), ("10", "STANDARD"));
    assert_eq!(all.element("ChecksumType"), "FULL_OBJECT");
    assert!(all.text().contains("GetObjectAttributesResponse") && !all.text().contains("ObjectParts"));
    assert!(all.header("last-modified").ends_with("GMT"));
    let one = ask("tagged", "ObjectSize", &[]).is(200);
    assert!(!one.text().contains("ETag") && !one.text().contains("Checksum"), "{}", one.text());
    ask("tagged", "Colour", &[]).fails(400, "InvalidArgument");
    ask("none", "ETag", &[]).fails(404, "NoSuchKey");

    let upload = s3.ask("POST", (B, "parts"), &[("uploads", "")], &[], b"").is(200).element("UploadId");
    let mut list = String::new();
    for (number, bytes) in [("1", 5 << 20), ("2", 1_000)] {
        let query = [("partNumber", number), ("uploadId", upload.as_str())];
        let tag = s3.ask("PUT", (B, "parts"), &query, &[], &content(bytes, 1)).is(200).header("etag").to_owned();
        list += &format!("<Part><PartNumber>{number}</PartNumber><ETag>{tag}</ETag></Part>");
    }
    let xml = format!("<CompleteMultipartUpload>{list}</CompleteMultipartUpload>");
    s3.ask("POST", (B, "parts"), &[("uploadId", &upload)], &[], xml.as_bytes()).is(200);
    let page = ask("parts", "ObjectParts", &[("x-amz-max-parts", "1")]).is(200);
    assert_eq!(page.elements("PartNumber"), ["1"]);
    assert_eq!((page.element("PartsCount").as_str(), page.element("IsTruncated").as_str()), ("2", "true"));
    let page = ask("parts", "ObjectParts", &[("x-amz-part-number-marker", "1")]).is(200);
    assert_eq!((page.elements("Size"), page.element("IsTruncated")), (vec!["1000".to_owned()], "false".to_owned()));
    for (number, length) in [("1", "5242880"), ("2", "1000")] {
        for method in ["GET", "HEAD"] {
            let part = s3.ask(method, (B, "parts"), &[("partNumber", number)], &[], b"").is(206);
            assert_eq!((part.header("content-length"), part.header("x-amz-mp-parts-count")), (length, "2"));
        }
    }
    s3.ask("GET", (B, "parts"), &[("partNumber", "3")], &[], b"").fails(416, "InvalidPartNumber");
    let whole = s3.ask("GET", (B, "tagged"), &[("partNumber", "1")], &[], b"").is(206);
    assert_eq!((whole.body.len(), whole.header("x-amz-mp-parts-count")), (10, ""));
}

/// An object says when it expires, and by which rule: by the one that comes first.
fn expirations(s3: &S3) {
    let rule = |id: &str, prefix: &str, ends: &str| {
        format!(
            "<Rule><ID>{id}</ID><Filter><Prefix>{prefix}</Prefix></Filter><Status>Enabled</Status><Expiration>{ends}\
             </Expiration></Rule>"
        )
    };
    let date = "<Date>2199-01-01T00:00:00Z</Date>";
    let rules = [rule("all of it", "", date), rule("soon", "soon/", "<Days>2</Days>")].concat();
    let xml = format!("<LifecycleConfiguration>{rules}</LifecycleConfiguration>");
    s3.ask("PUT", (B, ""), &[("lifecycle", "")], &[], xml.as_bytes()).is(200);
    let late = "expiry-date=\"Tue, 01 Jan 2199 00:00:00 GMT\", rule-id=\"all%20of%20it\"";
    assert_eq!(s3.put(B, "late", b"x").is(200).header("x-amz-expiration"), late);
    assert_eq!(s3.head(B, "late").is(200).header("x-amz-expiration"), late);
    let soon = s3.put(B, "soon/k", b"x").is(200).header("x-amz-expiration").to_owned();
    assert!(soon.ends_with(" 00:00:00 GMT\", rule-id=\"soon\""), "{soon}");
    assert_eq!(s3.get(B, "soon/k").is(200).header("x-amz-expiration"), soon);
    let copied = s3.ask("PUT", (B, "copy"), &[], &[("x-amz-copy-source", "conditions/late")], b"").is(200);
    assert_eq!(copied.header("x-amz-expiration"), late);
    s3.ask("DELETE", (B, ""), &[("lifecycle", "")], &[], b"").is(204);
    assert_eq!(s3.head(B, "late").is(200).header("x-amz-expiration"), "");
}
