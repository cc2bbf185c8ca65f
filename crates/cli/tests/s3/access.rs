//! What may be done to what, by whom: object lock and bucket policies, through the real binary.

use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

use crate::client::{Answer, S3};
use crate::common::{Cluster, content, reservoir, signal};

/// How long anything may take.
const LIMIT: Duration = Duration::from_secs(60);

const GOVERNANCE: &str = "GOVERNANCE";
const COMPLIANCE: &str = "COMPLIANCE";
const BYPASS: (&str, &str) = ("x-amz-bypass-governance-retention", "true");

/// This many seconds from now, as S3 writes it.
fn later(seconds: i64) -> String {
    (Timestamp::now() + SignedDuration::from_secs(seconds)).strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn lockable(s3: &S3, bucket: &str) {
    s3.ask("PUT", (bucket, ""), &[], &[("x-amz-bucket-object-lock-enabled", "true")], b"").is(200);
}

fn put(s3: &S3, bucket: &str, headers: &[(&str, &str)]) -> String {
    s3.ask("PUT", (bucket, "k"), &[], headers, b"x").is(200).header("x-amz-version-id").to_owned()
}

fn remove(s3: &S3, bucket: &str, version: &str, headers: &[(&str, &str)]) -> Answer {
    s3.ask("DELETE", (bucket, "k"), &[("versionId", version)], headers, b"")
}

fn retain(s3: &S3, bucket: &str, version: &str, mode: &str, until: &str, headers: &[(&str, &str)]) -> Answer {
    let xml = format!("<Retention><Mode>{mode}</Mode><RetainUntilDate>{until}</RetainUntilDate></Retention>");
    s3.ask("PUT", (bucket, "k"), &[("retention", ""), ("versionId", version)], headers, xml.as_bytes())
}

fn hold(s3: &S3, bucket: &str, version: &str, status: &str) -> Answer {
    let xml = format!("<LegalHold><Status>{status}</Status></LegalHold>");
    s3.ask("PUT", (bucket, "k"), &[("legal-hold", ""), ("versionId", version)], &[], xml.as_bytes())
}

#[test]
fn locked_versions_stay() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
    let s3 = S3::of(&cluster);
    configurations(&s3);
    retentions(&s3);
    holds(&s3);
    defaults(&s3);
    restored(cluster, &s3);
}

fn configurations(s3: &S3) {
    lockable(s3, "locked");
    assert_eq!(s3.list("locked", &[("versioning", "")]).is(200).element("Status"), "Enabled");
    assert_eq!(s3.list("locked", &[("object-lock", "")]).is(200).element("ObjectLockEnabled"), "Enabled");
    let xml = b"<VersioningConfiguration><Status>Suspended</Status></VersioningConfiguration>";
    s3.ask("PUT", ("locked", ""), &[("versioning", "")], &[], xml).fails(409, "InvalidBucketState");
    s3.put("open", "", b"").is(200);
    s3.list("open", &[("object-lock", "")]).fails(404, "ObjectLockConfigurationNotFoundError");
    s3.put("open", "k", b"x").is(200);
    let until = later(3_600);
    let lock = [("x-amz-object-lock-mode", GOVERNANCE), ("x-amz-object-lock-retain-until-date", until.as_str())];
    s3.ask("PUT", ("open", "l"), &[], &lock, b"x").fails(400, "InvalidRequest");
    retain(s3, "open", "null", GOVERNANCE, &until, &[]).fails(400, "InvalidRequest");
    hold(s3, "open", "null", "ON").fails(400, "InvalidRequest");
    let ask = |xml: &str| s3.ask("PUT", ("open", ""), &[("object-lock", "")], &[], xml.as_bytes());
    let enabled = "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled></ObjectLockConfiguration>";
    ask(enabled).fails(409, "InvalidBucketState");
    let xml = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>";
    s3.ask("PUT", ("open", ""), &[("versioning", "")], &[], xml).is(200);
    ask("<ObjectLockConfiguration></ObjectLockConfiguration>").fails(400, "MalformedXML");
    ask(enabled).is(200);
    hold(s3, "open", "null", "ON").is(200);
    remove(s3, "open", "null", &[]).fails(403, "AccessDenied");
}

fn retentions(s3: &S3) {
    let until = later(3_600);
    let lock = |mode| [("x-amz-object-lock-mode", mode), ("x-amz-object-lock-retain-until-date", until.as_str())];
    let bad =
        |headers: &[(&str, &str)]| s3.ask("PUT", ("locked", "k"), &[], headers, b"x").fails(400, "InvalidArgument");
    bad(&lock(GOVERNANCE)[..1]);
    bad(&lock("FOREVER"));
    bad(&[lock(GOVERNANCE)[0], ("x-amz-object-lock-retain-until-date", "2020-01-01T00:00:00Z")]);
    let free = put(s3, "locked", &[]);
    s3.ask("GET", ("locked", "k"), &[("retention", "")], &[], b"").fails(404, "NoSuchObjectLockConfiguration");
    remove(s3, "locked", &free, &[]).is(204);
    let governed = put(s3, "locked", &lock(GOVERNANCE));
    let head = s3.head("locked", "k").is(200);
    assert_eq!(head.header("x-amz-object-lock-mode"), GOVERNANCE);
    assert!(head.header("x-amz-object-lock-retain-until-date").starts_with(&until[..19]));
    remove(s3, "locked", &governed, &[]).fails(403, "AccessDenied");
    let xml = format!("<Delete><Object><Key>k</Key><VersionId>{governed}</VersionId></Object></Delete>");
    let many = s3.ask("POST", ("locked", ""), &[("delete", "")], &[], xml.as_bytes()).is(200);
    assert_eq!((many.element("Code").as_str(), many.elements("Deleted").len()), ("AccessDenied", 0));
    // What only puts another version over it is no removal.
    let marker = s3.delete("locked", "k").is(204).header("x-amz-version-id").to_owned();
    remove(s3, "locked", &marker, &[]).is(204);
    s3.put("locked", "k", b"over").is(200);
    retain(s3, "locked", &governed, GOVERNANCE, &later(60), &[]).fails(403, "AccessDenied");
    retain(s3, "locked", &governed, GOVERNANCE, &later(7_200), &[]).is(200);
    // What is stricter cannot be taken back, and needs the bypass as well.
    retain(s3, "locked", &governed, COMPLIANCE, &later(9_000), &[]).fails(403, "AccessDenied");
    for mode in ["governance", "FOREVER", ""] {
        retain(s3, "locked", &governed, mode, &later(9_000), &[BYPASS]).fails(400, "MalformedXML");
    }
    retain(s3, "locked", &governed, GOVERNANCE, "2020-01-01T00:00:00Z", &[BYPASS]).fails(400, "InvalidArgument");
    retain(s3, "locked", &governed, GOVERNANCE, &later(1_800), &[BYPASS]).is(200);
    let query = [("retention", ""), ("versionId", governed.as_str())];
    assert_eq!(s3.ask("GET", ("locked", "k"), &query, &[], b"").is(200).element("Mode"), GOVERNANCE);
    remove(s3, "locked", &governed, &[BYPASS]).is(204);
    let strict = put(s3, "locked", &lock(COMPLIANCE));
    remove(s3, "locked", &strict, &[BYPASS]).fails(403, "AccessDenied");
    retain(s3, "locked", &strict, COMPLIANCE, &later(60), &[BYPASS]).fails(403, "AccessDenied");
    retain(s3, "locked", &strict, GOVERNANCE, &later(9_000), &[BYPASS]).fails(403, "AccessDenied");
    s3.ask("PUT", ("locked", "k"), &[("retention", "")], &[BYPASS], b"<Retention></Retention>")
        .fails(403, "AccessDenied");
    retain(s3, "locked", &strict, COMPLIANCE, &later(9_000), &[]).is(200);
    let turned = put(s3, "locked", &lock(GOVERNANCE));
    retain(s3, "locked", &turned, COMPLIANCE, &later(9_000), &[BYPASS]).is(200);
    retain(s3, "locked", &turned, GOVERNANCE, &later(9_000), &[BYPASS]).fails(403, "AccessDenied");
    // A copy does not inherit the lock, and tags are no way around it.
    let from = format!("locked/k?versionId={strict}");
    let copied = s3.ask("PUT", ("locked", "copy"), &[], &[("x-amz-copy-source", &from)], b"").is(200);
    let query = [("versionId", copied.header("x-amz-version-id"))];
    s3.ask("DELETE", ("locked", "copy"), &query, &[], b"").is(204);
    let query = [("tagging", ""), ("versionId", strict.as_str())];
    s3.ask("DELETE", ("locked", "k"), &query, &[], b"").is(204);
    remove(s3, "locked", &strict, &[]).fails(403, "AccessDenied");
}

fn holds(s3: &S3) {
    lockable(s3, "held");
    let version = put(s3, "held", &[("x-amz-object-lock-legal-hold", "ON")]);
    let query = [("legal-hold", "")];
    assert_eq!(s3.ask("GET", ("held", "k"), &query, &[], b"").is(200).element("Status"), "ON");
    remove(s3, "held", &version, &[BYPASS]).fails(403, "AccessDenied");
    hold(s3, "held", &version, "MAYBE").fails(400, "MalformedXML");
    hold(s3, "held", &version, "OFF").is(200);
    remove(s3, "held", &version, &[]).is(204);
    hold(s3, "held", &version, "ON").fails(404, "NoSuchVersion");
}

/// Versions that are put without a lock get that of their bucket, however they are put.
fn defaults(s3: &S3) {
    lockable(s3, "default");
    let ask = |retention: &str| {
        let xml = format!(
            "<ObjectLockConfiguration><ObjectLockEnabled>Enabled</ObjectLockEnabled><Rule><DefaultRetention>{retention}\
             </DefaultRetention></Rule></ObjectLockConfiguration>"
        );
        s3.ask("PUT", ("default", ""), &[("object-lock", "")], &[], xml.as_bytes())
    };
    ask("<Mode>GOVERNANCE</Mode>").fails(400, "MalformedXML");
    ask("<Mode>GOVERNANCE</Mode><Days>1</Days><Years>1</Years>").fails(400, "MalformedXML");
    for bad in ["<Days>0</Days>", "<Days>-1</Days>", "<Years>0</Years>", "<Days>36501</Days>"] {
        ask(&format!("<Mode>GOVERNANCE</Mode>{bad}")).fails(400, "InvalidRetentionPeriod");
    }
    ask("<Mode>governance</Mode><Days>3</Days>").fails(400, "MalformedXML");
    ask("<Mode>GOVERNANCE</Mode><Days>3</Days>").is(200);
    assert_eq!(s3.list("default", &[("object-lock", "")]).is(200).element("Days"), "3");
    let plain = put(s3, "default", &[]);
    let copied = s3.ask("PUT", ("default", "k"), &[], &[("x-amz-copy-source", "default/k")], b"").is(200);
    let created = s3.ask("POST", ("default", "k"), &[("uploads", "")], &[], b"").is(200);
    let id = created.element("UploadId");
    let query = [("partNumber", "1"), ("uploadId", id.as_str())];
    let tag = s3.ask("PUT", ("default", "k"), &query, &[], b"part").is(200).header("etag").to_owned();
    let xml = format!(
        "<CompleteMultipartUpload><Part><PartNumber>1</PartNumber><ETag>{tag}</ETag></Part></CompleteMultipartUpload>"
    );
    let joined = s3.ask("POST", ("default", "k"), &[("uploadId", &id)], &[], xml.as_bytes()).is(200);
    for version in [&plain, copied.header("x-amz-version-id"), joined.header("x-amz-version-id")] {
        remove(s3, "default", version, &[]).fails(403, "AccessDenied");
        let query = [("retention", ""), ("versionId", version)];
        let until = s3.ask("GET", ("default", "k"), &query, &[], b"").is(200).element("RetainUntilDate");
        assert!(until > later(3 * 86_400 - 600) && until < later(3 * 86_400 + 60), "{until}");
    }
}

/// A catalog that is made again knows all locks, and lifecycle rules respect them.
fn restored(cluster: Cluster, s3: &S3) {
    lockable(s3, "ends");
    let kept = put(s3, "ends", &[("x-amz-object-lock-legal-hold", "ON")]);
    let free = put(s3, "ends", &[]);
    put(s3, "ends", &[]);
    let xml = "<LifecycleConfiguration><Rule><ID>a</ID><Filter><Prefix></Prefix></Filter><Status>Enabled</Status>\
               <Expiration><Date>2020-01-01T00:00:00Z</Date></Expiration></Rule></LifecycleConfiguration>";
    s3.ask("PUT", ("ends", ""), &[("lifecycle", "")], &[], xml.as_bytes()).is(200);
    let (config, directory) = (cluster.config(), cluster.directory.clone());
    signal(cluster.children("gateway")[0], "-KILL");
    let rebuild = || reservoir(&["catalog", "rebuild", "--config", &config]).status.success();
    assert!((0..1_000).any(|_| rebuild()), "the killed gateway holds the catalog");
    assert!(cluster.stop());
    let cluster = Cluster::start(&directory, &[]);
    let s3 = S3::of(&cluster);
    let deadline = Instant::now() + LIMIT;
    while s3.get("ends", "k").status != 404 {
        assert!(Instant::now() < deadline, "the rule did nothing");
        std::thread::sleep(Duration::from_millis(20));
    }
    remove(&s3, "ends", &kept, &[]).fails(403, "AccessDenied");
    remove(&s3, "ends", &free, &[]).is(204);
    let versions = s3.list("locked", &[("versions", "")]).is(200).elements("VersionId");
    let locked = versions.iter().filter(|version| remove(&s3, "locked", version, &[BYPASS]).status == 403).count();
    assert_eq!(locked, 2, "those in compliance mode");
    assert_eq!(s3.list("default", &[("object-lock", "")]).is(200).element("Days"), "3");
}

fn policy(s3: &S3, bucket: &str, statements: &str) -> Answer {
    let text = format!("{{\"Version\":\"2012-10-17\",\"Statement\":{statements}}}");
    s3.ask("PUT", (bucket, ""), &[("policy", "")], &[], text.as_bytes())
}

#[test]
fn policies_say_who_may_do_what() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
    let s3 = S3::of(&cluster);
    let printed = String::from_utf8(cluster.run(&["user", "add", "ann"])).unwrap();
    let value = |name: &str| printed.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned();
    let ann = S3::new(&s3.endpoint, &value("access key:"), &value("secret key:"));
    s3.put("shared", "", b"").is(200);
    for key in ["public/k", "private/k", "ann/k"] {
        s3.put("shared", key, key.as_bytes()).is(200);
    }
    everybody(&s3, &ann);
    users(&s3, &ann);
    denials(&s3);
    tagged(&s3, &ann);
    homes(&s3, &ann);
    refusals(&s3);
}

/// Asks without a signature.
fn unsigned(s3: &S3, method: &str, path: &str, body: &[u8]) -> Answer {
    s3.send(method, &format!("{}/{path}", s3.endpoint), &[], body).unwrap()
}

fn everybody(s3: &S3, ann: &S3) {
    s3.list("shared", &[("policy", "")]).fails(404, "NoSuchBucketPolicy");
    s3.list("shared", &[("policyStatus", "")]).fails(404, "NoSuchBucketPolicy");
    unsigned(s3, "GET", "shared/public/k", b"").fails(403, "AccessDenied");
    let read =
        r#"{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::shared/public/*"}"#;
    policy(s3, "shared", read).is(204);
    assert!(s3.list("shared", &[("policy", "")]).is(200).text().ends_with(&format!("{read}}}")));
    assert_eq!(s3.list("shared", &[("policyStatus", "")]).is(200).element("IsPublic").to_ascii_lowercase(), "true");
    assert_eq!(unsigned(s3, "GET", "shared/public/k", b"").is(200).body, b"public/k");
    unsigned(s3, "HEAD", "shared/public/k", b"").is(200);
    assert_eq!(ann.get("shared", "public/k").is(200).body, b"public/k");
    for (method, path) in [
        ("GET", "shared/private/k"),
        ("PUT", "shared/public/k"),
        ("DELETE", "shared/public/k"),
        ("GET", "shared"),
        ("GET", "shared?policy"),
        ("PUT", "shared?policy"),
        ("GET", "shared/public/k?tagging"),
        ("POST", "shared/public/k?uploads"),
        ("GET", ""),
    ] {
        unsigned(s3, method, path, b"x").fails(403, "AccessDenied");
    }
    unsigned(s3, "PUT", "fresh", b"").fails(403, "AccessDenied");
    // A user that may not list does not learn what is missing.
    unsigned(s3, "GET", "shared/public/none", b"").fails(403, "AccessDenied");
    s3.get("shared", "public/none").fails(404, "NoSuchKey");
    unsigned(s3, "GET", "shared/public/k?response-content-type=text/html", b"").fails(400, "InvalidRequest");
    let xml = b"<Delete><Object><Key>public/k</Key></Object></Delete>";
    unsigned(s3, "POST", "shared?delete", xml).fails(403, "AccessDenied");
    let from = [("x-amz-copy-source", "shared/private/k")];
    ann.put("anns", "", b"").is(200);
    ann.ask("PUT", ("anns", "stolen"), &[], &from, b"").fails(403, "AccessDenied");
    ann.ask("PUT", ("anns", "copied"), &[], &[("x-amz-copy-source", "shared/public/k")], b"").is(200);
    let drop_box = r#"{"Effect":"Allow","Principal":"*","Action":["s3:PutObject","s3:DeleteObject"],
                       "Resource":"arn:aws:s3:::shared/box/*"}"#;
    policy(s3, "shared", drop_box).is(204);
    unsigned(s3, "PUT", "shared/box/k", b"x").is(200);
    unsigned(s3, "PUT", "shared/public/k", b"x").fails(403, "AccessDenied");
    for (key, status) in [("box/form", 204), ("public/form", 403)] {
        let part = |name: &str, value: &str| {
            format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"; filename=\"f\"\r\n\r\n{value}\r\n")
        };
        let form = part("key", key) + &part("file", "x") + "--b--\r\n";
        let kind = [("content-type", "multipart/form-data; boundary=b")];
        s3.send("POST", &format!("{}/shared", s3.endpoint), &kind, form.as_bytes()).unwrap().is(status);
    }
    let xml = "<Delete><Object><Key>box/k</Key></Object><Object><Key>public/k</Key></Object></Delete>";
    let many = unsigned(s3, "POST", "shared?delete", xml.as_bytes()).is(200);
    assert_eq!((many.element("Code").as_str(), many.elements("Deleted").len()), ("AccessDenied", 1));
    s3.head("shared", "box/form").is(200);
    s3.ask("DELETE", ("shared", ""), &[("policy", "")], &[], b"").is(204);
    unsigned(s3, "GET", "shared/public/k", b"").fails(403, "AccessDenied");
}

fn users(s3: &S3, ann: &S3) {
    let statements = r#"[
        {"Sid":"own","Effect":"Allow","Principal":{"AWS":"arn:aws:iam::000000000000:user/ann"},
         "Action":["s3:*Object","s3:AbortMultipartUpload"],"Resource":"arn:aws:s3:::shared/ann/*"},
        {"Sid":"list","Effect":"Allow","Principal":{"AWS":["ann"]},"Action":"s3:ListBucket",
         "Resource":"arn:aws:s3:::shared","Condition":{"StringLike":{"s3:prefix":"ann/*"}}}]"#;
    policy(s3, "shared", statements).is(204);
    assert_eq!(s3.list("shared", &[("policyStatus", "")]).is(200).element("IsPublic").to_ascii_lowercase(), "false");
    ann.put("shared", "ann/new", b"hers").is(200);
    assert_eq!(s3.get("shared", "ann/new").is(200).body, b"hers");
    assert_eq!(ann.list("shared", &[("list-type", "2"), ("prefix", "ann/")]).is(200).elements("Key").len(), 2);
    ann.list("shared", &[("list-type", "2"), ("prefix", "private/")]).fails(403, "AccessDenied");
    ann.list("shared", &[("list-type", "2")]).fails(403, "AccessDenied");
    ann.get("shared", "private/k").fails(403, "AccessDenied");
    ann.ask("PUT", ("shared", "ann/t"), &[], &[("x-amz-tagging", "a=1")], b"x").fails(403, "AccessDenied");
    unsigned(s3, "GET", "shared/ann/new", b"").fails(403, "AccessDenied");
    let created = ann.ask("POST", ("shared", "ann/parts"), &[("uploads", "")], &[], b"").is(200);
    let id = created.element("UploadId");
    let query = [("partNumber", "1"), ("uploadId", id.as_str())];
    ann.ask("PUT", ("shared", "ann/parts"), &query, &[], &content(70_000, 1)).is(200);
    ann.ask("GET", ("shared", "ann/parts"), &[("uploadId", &id)], &[], b"").fails(403, "AccessDenied");
    ann.ask("DELETE", ("shared", "ann/parts"), &[("uploadId", &id)], &[], b"").is(204);
    ann.delete("shared", "ann/new").is(204);
    ann.ask("DELETE", ("shared", "ann/k"), &[("versionId", "null")], &[], b"").fails(403, "AccessDenied");
    ann.ask("PUT", ("shared", ""), &[("policy", "")], &[], b"{}").fails(403, "AccessDenied");
}

fn denials(s3: &S3) {
    let statements = r#"[
        {"Effect":"Allow","Principal":"*","Action":"s3:*","Resource":["arn:aws:s3:::shared","arn:aws:s3:::shared/*"]},
        {"Effect":"Deny","Principal":"*","Action":"s3:PutObject","Resource":"arn:aws:s3:::shared/*",
         "Condition":{"Bool":{"aws:SecureTransport":"false"}}},
        {"Effect":"Deny","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::shared/*",
         "Condition":{"NotIpAddress":{"aws:SourceIp":"10.0.0.0/8"}}}]"#;
    policy(s3, "shared", statements).is(204);
    unsigned(s3, "GET", "shared", b"").is(200);
    unsigned(s3, "GET", "shared/public/k", b"").fails(403, "AccessDenied");
    unsigned(s3, "PUT", "shared/public/k", b"x").fails(403, "AccessDenied");
    // The owner as well.
    s3.get("shared", "public/k").fails(403, "AccessDenied");
    s3.put("shared", "public/k", b"x").fails(403, "AccessDenied");
    let all =
        r#"{"Effect":"Deny","Principal":"*","Action":"*","Resource":["arn:aws:s3:::shared","arn:aws:s3:::shared/*"]}"#;
    policy(s3, "shared", all).is(204);
    s3.list("shared", &[]).fails(403, "AccessDenied");
    s3.list("shared", &[("versioning", "")]).fails(403, "AccessDenied");
    s3.list("shared", &[("policy", "")]).is(200);
    s3.ask("DELETE", ("shared", ""), &[("policy", "")], &[], b"").is(204);
    s3.list("shared", &[]).is(200);
    let here = r#"{"Effect":"Allow","Principal":"*","Action":"s3:GetObject","Resource":"arn:aws:s3:::shared/*",
                   "Condition":{"IpAddress":{"aws:SourceIp":["127.0.0.0/8","::1"]}}}"#;
    policy(s3, "shared", here).is(204);
    unsigned(s3, "GET", "shared/private/k", b"").is(200);
    assert_eq!(s3.list("shared", &[("policyStatus", "")]).is(200).element("IsPublic").to_ascii_lowercase(), "false");
}

/// What requests and objects are tagged with decides.
fn tagged(s3: &S3, ann: &S3) {
    let statements = r#"[
        {"Effect":"Allow","Principal":{"AWS":"ann"},"Action":["s3:GetObject","s3:DeleteObject"],
         "Resource":"arn:aws:s3:::shared/*","Condition":{"StringEquals":{"s3:ExistingObjectTag/for":"${aws:username}"}}},
        {"Effect":"Allow","Principal":{"AWS":"ann"},"Action":["s3:PutObject","s3:PutObjectTagging"],
         "Resource":"arn:aws:s3:::shared/*","Condition":{
            "StringEquals":{"s3:RequestObjectTag/for":"ann"},
            "ForAllValues:StringLike":{"s3:RequestObjectTagKeys":["for","more*"]}}},
        {"Effect":"Deny","NotPrincipal":{"AWS":"ann"},"Action":"s3:PutObject","Resource":"arn:aws:s3:::shared/*",
         "Condition":{"StringLike":{"s3:x-amz-copy-source":"shared/private/*"},
                      "StringNotEquals":{"s3:x-amz-metadata-directive":"REPLACE"}}}]"#;
    policy(s3, "shared", statements).is(204);
    let put = |s3: &S3, tags: &str| s3.ask("PUT", ("shared", "t"), &[], &[("x-amz-tagging", tags)], b"x");
    put(ann, "for=bob").fails(403, "AccessDenied");
    put(ann, "for=ann&other=1").fails(403, "AccessDenied");
    put(ann, "for=ann&more1=1").is(200);
    assert_eq!(ann.get("shared", "t").is(200).body, b"x");
    assert_eq!(ann.ask("GET", ("shared", "t"), &[], &[("range", "bytes=0-0")], b"").is(206).body, b"x");
    let tag = |value: &str| {
        let xml = format!("<Tagging><TagSet><Tag><Key>for</Key><Value>{value}</Value></Tag></TagSet></Tagging>");
        ann.ask("PUT", ("shared", "t"), &[("tagging", "")], &[], xml.as_bytes())
    };
    tag("bob").fails(403, "AccessDenied");
    tag("ann").is(200);
    put(s3, "for=bob").is(200);
    ann.get("shared", "t").fails(403, "AccessDenied");
    ann.delete("shared", "t").fails(403, "AccessDenied");
    ann.get("shared", "none").fails(403, "AccessDenied");
    let copy = |more: &[(&str, &str)]| {
        let headers = [&[("x-amz-copy-source", "/shared/private/k")], more].concat();
        s3.ask("PUT", ("shared", "copy"), &[], &headers, b"")
    };
    copy(&[]).fails(403, "AccessDenied");
    copy(&[("x-amz-metadata-directive", "REPLACE")]).is(200);
}

/// Each user has a home.
fn homes(s3: &S3, ann: &S3) {
    let statements = r#"[
        {"Effect":"Allow","Principal":"*","Action":["s3:GetObject","s3:PutObject"],
         "Resource":"arn:aws:s3:::shared/home/${aws:username}/*"},
        {"Effect":"Allow","Principal":"*","Action":"s3:ListBucket","Resource":"arn:aws:s3:::shared",
         "Condition":{"StringLike":{"s3:prefix":"home/${aws:username}/*"},"NumericLessThanEquals":{"s3:max-keys":"10"}}}]"#;
    policy(s3, "shared", statements).is(204);
    ann.put("shared", "home/ann/k", b"hers").is(200);
    ann.put("shared", "home/bob/k", b"his").fails(403, "AccessDenied");
    unsigned(s3, "PUT", "shared/home//k", b"x").fails(403, "AccessDenied");
    ann.list("shared", &[("prefix", "home/ann/"), ("max-keys", "10")]).is(200);
    ann.list("shared", &[("prefix", "home/ann/"), ("max-keys", "11")]).fails(403, "AccessDenied");
    ann.list("shared", &[("prefix", "home/ann/")]).fails(403, "AccessDenied");
    ann.list("shared", &[("prefix", "home/"), ("max-keys", "1")]).fails(403, "AccessDenied");
}

fn refusals(s3: &S3) {
    let get = r#""Action":"s3:GetObject","Resource":"arn:aws:s3:::shared/*""#;
    let allow = |rest: &str| policy(s3, "shared", &format!("{{\"Effect\":\"Allow\",{rest}}}"));
    allow(get).fails(400, "MalformedPolicy");
    allow(&format!(r#""Principal":{{"AWS":"nobody"}},{get}"#)).fails(400, "MalformedPolicy");
    allow(&format!(r#""Principal":{{"Service":"x"}},{get}"#)).fails(400, "MalformedPolicy");
    allow(&format!(r#""NotPrincipal":"*",{get}"#)).fails(400, "MalformedPolicy");
    allow(&format!(r#""Principal":"*",{get},"Condition":{{"DateLessThan":{{"aws:CurrentTime":"x"}}}}"#))
        .fails(400, "MalformedPolicy");
    policy(s3, "shared", &format!("\"{}\"", "x".repeat(21 << 10))).fails(400, "MalformedPolicy");
    // What was there before still is.
    s3.list("shared", &[("policyStatus", "")]).is(200);
}
