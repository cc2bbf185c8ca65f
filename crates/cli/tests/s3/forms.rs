//! Forms of browsers: their fields ask for what headers ask for elsewhere.

use crate::client::{Answer, S3};
use crate::common::Cluster;

const TAGGING: &str = "<Tagging><TagSet><Tag><Key>kind</Key><Value>photo</Value></Tag></TagSet></Tagging>";

/// Sends a form with these fields and a file of this name.
fn send(s3: &S3, fields: &[(&str, &str)], filename: &str) -> Answer {
    let part = |name: &str, more: &str, value: &str| {
        format!("--b\r\nContent-Disposition: form-data; name=\"{name}\"{more}\r\n\r\n{value}\r\n")
    };
    let before: String = fields.iter().map(|(name, value)| part(name, "", value)).collect();
    let form = before + &part("file", &format!("; filename=\"{filename}\""), "content") + "--b--\r\n";
    // A redirect is looked at, and not followed.
    let head = format!(
        "POST /forms HTTP/1.1\r\nHost: {}\r\nConnection: close\r\nContent-Type: multipart/form-data; boundary=b\r\n\
         Content-Length: {}\r\n\r\n",
        s3.host(),
        form.len()
    );
    let answer = s3.exchange((head + &form).as_bytes(), false);
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let header = |line: &str| line.split_once(": ").map(|(name, value)| (name.to_lowercase(), value.to_owned()));
    Answer {
        status: head.split(' ').nth(1).unwrap().parse().unwrap(),
        headers: head.lines().filter_map(header).collect(),
        body: body.as_bytes().to_vec(),
    }
}

#[test]
fn the_fields_of_a_form_ask_as_headers_do() {
    let place = tempfile::tempdir().unwrap();
    let cluster = Cluster::start(&place.path().join("data"), &["--targets", "3"]);
    let s3 = S3::of(&cluster);
    s3.ask("PUT", ("forms", ""), &[], &[("x-amz-object-ownership", "ObjectWriter")], b"").is(200);
    let policy = r#"{"Version":"2012-10-17","Statement":[
        {"Effect":"Allow","Principal":"*","Action":["s3:PutObject","s3:PutObjectTagging"],"Resource":"arn:aws:s3:::forms/up/*",
         "Condition":{"StringEquals":{"s3:RequestObjectTag/kind":"photo"}}}]}"#;
    s3.ask("PUT", ("forms", ""), &[("policy", "")], &[], policy.as_bytes()).is(204);
    let key = ("Key", "up/${filename}");
    let tagging = ("Tagging", TAGGING);
    let sse = ("x-amz-server-side-encryption", "AES256");
    let acl = ("ACL", "bucket-owner-full-control");
    let made = send(&s3, &[key, tagging, sse, acl, ("success_action_status", "201")], "C:\\a b&c.txt").is(201);
    assert_eq!(made.element("Key"), "up/a b&amp;c.txt");
    let stored = s3.get("forms", "up/a b&c.txt").is(200);
    assert_eq!((stored.text().as_str(), stored.header("x-amz-server-side-encryption")), ("content", "AES256"));
    let tags = s3.ask("GET", ("forms", "up/a b&c.txt"), &[("tagging", "")], &[], b"").is(200);
    assert_eq!((tags.element("Key"), tags.element("Value")), ("kind".to_owned(), "photo".to_owned()));
    let to = ("success_action_redirect", "http://example.org/done");
    let redirected = send(&s3, &[key, tagging, acl, to], "d e").is(303);
    assert!(redirected.header("location").contains("key=up%2Fd%20e&"), "{}", redirected.header("location"));
    s3.head("forms", "up/d e").is(200);
    // What nobody gave the bucket's owner is not the owner's.
    send(&s3, &[key, tagging], "others").is(204);
    s3.get("forms", "up/others").fails(403, "AccessDenied");
    send(&s3, &[key], "untagged").fails(403, "AccessDenied");
    send(&s3, &[key, ("tagging", "<Tagging>")], "broken").fails(400, "MalformedXML");
    send(&s3, &[("key", "elsewhere/${filename}"), tagging], "x").fails(403, "AccessDenied");
    send(&s3, &[key, tagging, ("x-amz-storage-class", "NOWHERE")], "x").fails(400, "InvalidStorageClass");
    send(&s3, &[key, tagging, ("more", "x")], "x").fails(501, "NotImplemented");
}
