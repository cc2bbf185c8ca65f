//! Access lists, who owns objects, and what a bucket keeps from the public.

use crate::client::{Answer, S3};
use crate::common::Cluster;

const EVERYBODY: &str = "http://acs.amazonaws.com/groups/global/AllUsers";

/// Asks without a signature.
fn unsigned(s3: &S3, method: &str, path: &str, body: &[u8]) -> Answer {
    s3.send(method, &format!("{}/{path}", s3.endpoint), &[], body).unwrap()
}

fn own(s3: &S3, bucket: &str, ownership: &str) -> Answer {
    let rule = format!("<Rule><ObjectOwnership>{ownership}</ObjectOwnership></Rule>");
    let xml = format!("<OwnershipControls>{rule}</OwnershipControls>");
    s3.ask("PUT", (bucket, ""), &[("ownershipControls", "")], &[], xml.as_bytes())
}

fn canned(s3: &S3, bucket: &str, key: &str, acl: &str) -> Answer {
    s3.ask("PUT", (bucket, key), &[("acl", "")], &[("x-amz-acl", acl)], b"")
}

fn list(s3: &S3, bucket: &str, key: &str) -> Answer {
    s3.ask("GET", (bucket, key), &[("acl", "")], &[], b"")
}

fn block(s3: &S3, bucket: &str, name: &str) -> Answer {
    let xml = format!("<PublicAccessBlockConfiguration><{name}>true</{name}></PublicAccessBlockConfiguration>");
    s3.ask("PUT", (bucket, ""), &[("publicAccessBlock", "")], &[], xml.as_bytes())
}

#[test]
fn lists_say_who_may_do_what_where_a_bucket_has_them() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
    let s3 = S3::of(&cluster);
    let [ann, carl] = ["ann", "carl"].map(|name| {
        let printed = String::from_utf8(cluster.run(&["user", "add", name])).unwrap();
        let value = |name: &str| printed.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
        S3::new(&s3.endpoint, &value("access key:"), &value("secret key:"))
    });
    without_lists(&s3, &ann);
    objects(&s3, &ann, &carl);
    buckets(&s3, &ann);
    blocked(&s3, &ann);
}

/// A bucket is its owner's, with all in it, unless that is said otherwise.
fn without_lists(s3: &S3, ann: &S3) {
    s3.put("box", "", b"").is(200);
    assert_eq!(s3.list("box", &[("ownershipControls", "")]).is(200).element("ObjectOwnership"), "BucketOwnerEnforced");
    s3.put("box", "k", b"x").is(200);
    canned(s3, "box", "k", "public-read").fails(400, "AccessControlListNotSupported");
    canned(s3, "box", "", "public-read").fails(400, "AccessControlListNotSupported");
    s3.ask("PUT", ("box", "k"), &[], &[("x-amz-acl", "public-read")], b"x").fails(400, "AccessControlListNotSupported");
    s3.ask("PUT", ("box", "k"), &[], &[("x-amz-acl", "bucket-owner-full-control")], b"x").is(200);
    s3.ask("PUT", ("public", ""), &[], &[("x-amz-acl", "public-read")], b"")
        .fails(400, "InvalidBucketAclWithObjectOwnership");
    for key in ["", "k"] {
        let told = list(s3, "box", key).is(200);
        assert_eq!(
            (told.element("ID"), told.elements("Permission")),
            ("admin".to_owned(), vec!["FULL_CONTROL".to_owned()])
        );
        list(ann, "box", key).fails(403, "AccessDenied");
    }
    own(s3, "box", "Anybody").fails(400, "MalformedXML");
    own(ann, "box", "ObjectWriter").fails(403, "AccessDenied");
}

fn objects(s3: &S3, ann: &S3, carl: &S3) {
    own(s3, "box", "ObjectWriter").is(200);
    assert_eq!(s3.list("box", &[("ownershipControls", "")]).is(200).element("ObjectOwnership"), "ObjectWriter");
    // What was there before stays its owner's.
    unsigned(s3, "GET", "box/k", b"").fails(403, "AccessDenied");
    canned(s3, "box", "k", "public-read").is(200);
    assert_eq!(unsigned(s3, "GET", "box/k", b"").is(200).body, b"x");
    unsigned(s3, "HEAD", "box/k", b"").is(200);
    for (method, path) in
        [("GET", "box/k?acl"), ("PUT", "box/k"), ("DELETE", "box/k"), ("GET", "box"), ("GET", "box/none")]
    {
        unsigned(s3, method, path, b"").fails(403, "AccessDenied");
    }
    let told = list(s3, "box", "k").is(200);
    assert_eq!((told.element("URI"), told.elements("Permission").len()), (EVERYBODY.to_owned(), 2));
    canned(s3, "box", "k", "authenticated-read").is(200);
    unsigned(s3, "GET", "box/k", b"").fails(403, "AccessDenied");
    carl.get("box", "k").is(200);
    canned(s3, "box", "k", "all").fails(400, "InvalidArgument");
    let grant =
        |name: &'static str, value: &'static str| s3.ask("PUT", ("box", "k"), &[("acl", "")], &[(name, value)], b"");
    grant("x-amz-grant-read", "id=\"nobody\"").fails(400, "InvalidArgument");
    grant("x-amz-grant-read", "id=\"ann\"").is(200);
    ann.get("box", "k").is(200);
    carl.get("box", "k").fails(403, "AccessDenied");
    // Its owner is granted nothing any more, but for the list.
    s3.get("box", "k").is(200);
    grant("x-amz-grant-full-control", "id=\"ann\", id=\"admin\"").is(200);
    let xml = list(ann, "box", "k").is(200).text();
    ann.ask("PUT", ("box", "k"), &[("acl", "")], &[], xml.replace(">ann<", ">carl<").as_bytes()).is(200);
    carl.get("box", "k").is(200);
    ann.get("box", "k").fails(403, "AccessDenied");
    carl.ask("PUT", ("box", "k"), &[("acl", "")], &[], xml.replace(">admin<", ">carl<").as_bytes())
        .fails(403, "AccessDenied");
    // A copy has no list of its source.
    canned(s3, "box", "k", "public-read").is(200);
    s3.ask("PUT", ("box", "copy"), &[], &[("x-amz-copy-source", "box/k")], b"").is(200);
    unsigned(s3, "GET", "box/copy", b"").fails(403, "AccessDenied");
    unsigned(s3, "GET", "box/k", b"").is(200);
    // Without lists they count for nothing, and are not forgotten.
    own(s3, "box", "BucketOwnerEnforced").is(200);
    unsigned(s3, "GET", "box/k", b"").fails(403, "AccessDenied");
    own(s3, "box", "ObjectWriter").is(200);
    unsigned(s3, "GET", "box/k", b"").is(200);
}

fn buckets(s3: &S3, ann: &S3) {
    let headers = [("x-amz-object-ownership", "BucketOwnerPreferred"), ("x-amz-acl", "public-read-write")];
    s3.ask("PUT", ("open", ""), &[], &headers, b"").is(200);
    unsigned(s3, "PUT", "open/nobodys", b"x").is(200);
    unsigned(s3, "GET", "open", b"").is(200);
    ann.put("open", "hers", b"hers").is(200);
    // It is hers: whose the bucket is may remove it, and not read it.
    s3.get("open", "hers").fails(403, "AccessDenied");
    assert_eq!(list(ann, "open", "hers").is(200).element("ID"), "ann");
    ann.get("open", "hers").is(200);
    unsigned(s3, "DELETE", "open/hers", b"").fails(403, "AccessDenied");
    ann.ask("PUT", ("open", "given"), &[], &[("x-amz-acl", "bucket-owner-full-control")], b"given").is(200);
    assert_eq!(s3.get("open", "given").is(200).body, b"given");
    assert_eq!(list(s3, "open", "given").is(200).element("ID"), "admin");
    let listed = s3.list("open", &[("list-type", "2"), ("fetch-owner", "true")]).is(200);
    assert_eq!(listed.elements("ID"), ["admin", "ann", "65a011a29cdf8ec533ec3d1ccaae921c"]);
    // A policy says nothing of what is not of the bucket's owner.
    let policy = r#"{"Statement":[{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::open/*"}]}"#;
    s3.ask("PUT", ("open", ""), &[("policy", "")], &[], policy.as_bytes()).is(204);
    unsigned(s3, "GET", "open/given", b"").is(200);
    unsigned(s3, "GET", "open/hers", b"").fails(403, "AccessDenied");
    s3.delete("open", "hers").is(204);
    own(s3, "open", "BucketOwnerEnforced").fails(400, "InvalidBucketAclWithObjectOwnership");
    canned(s3, "open", "", "private").is(200);
    own(s3, "open", "BucketOwnerEnforced").is(200);
    unsigned(s3, "PUT", "open/nobodys", b"x").fails(403, "AccessDenied");
    assert_eq!(s3.get("open", "nobodys").is(200).body, b"x");
    s3.ask("DELETE", ("open", ""), &[("ownershipControls", "")], &[], b"").is(204);
    s3.list("open", &[("ownershipControls", "")]).fails(404, "OwnershipControlsNotFoundError");
    s3.get("open", "nobodys").fails(403, "AccessDenied");
}

fn blocked(s3: &S3, ann: &S3) {
    let read = |action: &str, who: &str| {
        format!(
            r#"{{"Statement":[{{"Effect":"Allow","Principal":{who},"Action":"{action}","Resource":"arn:aws:s3:::box/*"}}]}}"#
        )
    };
    let policy = |text: &str| s3.ask("PUT", ("box", ""), &[("policy", "")], &[], text.as_bytes());
    s3.list("box", &[("publicAccessBlock", "")]).fails(404, "NoSuchPublicAccessBlockConfiguration");
    unsigned(s3, "GET", "box/k", b"").is(200);
    block(s3, "box", "IgnorePublicAcls").is(200);
    assert_eq!(s3.list("box", &[("publicAccessBlock", "")]).is(200).element("IgnorePublicAcls"), "true");
    assert_eq!(s3.list("box", &[("publicAccessBlock", "")]).is(200).element("BlockPublicAcls"), "false");
    unsigned(s3, "GET", "box/k", b"").fails(403, "AccessDenied");
    block(s3, "box", "BlockPublicAcls").is(200);
    unsigned(s3, "GET", "box/k", b"").is(200);
    canned(s3, "box", "k", "public-read").fails(403, "AccessDenied");
    s3.ask("PUT", ("box", "new"), &[], &[("x-amz-acl", "public-read")], b"x").fails(403, "AccessDenied");
    canned(s3, "box", "k", "private").is(200);
    block(s3, "box", "BlockPublicPolicy").is(200);
    policy(&read("s3:GetObject", "\"*\"")).fails(403, "AccessDenied");
    policy(&read("s3:GetObject", r#"{"AWS":"ann"}"#)).is(204);
    ann.get("box", "k").is(200);
    s3.ask("DELETE", ("box", ""), &[("publicAccessBlock", "")], &[], b"").is(204);
    policy(&read("s3:GetObject", "\"*\"")).is(204);
    unsigned(s3, "GET", "box/k", b"").is(200);
    block(s3, "box", "RestrictPublicBuckets").is(200);
    unsigned(s3, "GET", "box/k", b"").fails(403, "AccessDenied");
    ann.get("box", "k").fails(403, "AccessDenied");
    s3.get("box", "k").is(200);
    block(ann, "box", "IgnorePublicAcls").fails(403, "AccessDenied");
}
