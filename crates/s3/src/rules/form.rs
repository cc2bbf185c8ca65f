//! What the fields of a form ask for, beside what `s3s` reads of them.

use s3s::dto::{ObjectCannedACL, PutObjectInput, Tagging};
use s3s::xml::{Deserialize, Deserializer};
use s3s::{S3ErrorCode, S3Result};

use super::context::Context;
use super::tags::{self, Tags};

/// Stands in a key for the name of the file that the browser chose.
const FILENAME: &str = "${filename}";
/// Fields that conditions of policies examine under `s3:` and their own names, as headers.
const EXAMINED: &[&str] = &[
    "x-amz-server-side-encryption",
    "x-amz-server-side-encryption-aws-kms-key-id",
    "x-amz-server-side-encryption-customer-algorithm",
    "x-amz-storage-class",
    "x-amz-grant-full-control",
    "x-amz-grant-read",
    "x-amz-grant-read-acp",
    "x-amz-grant-write-acp",
];

/// The fields of a form.
#[derive(Clone, Debug, Default)]
pub(crate) struct FormFields {
    /// The name of the file.
    filename: String,
    acl: Option<String>,
    tags: Option<Tags>,
    examined: Vec<(String, String)>,
}

impl FormFields {
    /// Notes a field before the file, by its name in small letters.
    pub(crate) fn note(&mut self, name: &str, value: &str) -> S3Result<()> {
        match name {
            "acl" => self.acl = Some(value.to_owned()),
            "tagging" => {
                let mut xml = Deserializer::new(value.as_bytes());
                let tagging = Tagging::deserialize(&mut xml).map_err(|_| S3ErrorCode::MalformedXML)?;
                self.tags = Some(tags::check(tags::from_dto(tagging)?, tags::MOST)?);
            }
            _ if EXAMINED.contains(&name) => self.examined.push((format!("s3:{name}"), value.to_owned())),
            _ => {}
        }
        Ok(())
    }

    /// The name of the file, without the folders that some browsers send.
    pub(crate) fn set_filename(&mut self, name: &str) {
        self.filename = name.rsplit(['/', '\\']).next().unwrap_or_default().to_owned();
    }

    /// Puts the name of the file where a text has its place.
    pub(crate) fn with_filename(&self, text: &str) -> String {
        text.replace(FILENAME, &self.filename)
    }

    /// The same in an answer, in which both were changed by `encode`.
    pub(crate) fn in_answer(&self, text: &str, encode: fn(&str) -> String) -> String {
        text.replace(&encode(FILENAME), &encode(&self.filename))
    }

    /// Gives the request what `s3s` does not.
    pub(crate) fn apply(&self, input: &mut PutObjectInput) {
        input.key = self.with_filename(&input.key);
        input.acl = input.acl.take().or_else(|| self.acl.clone().map(ObjectCannedACL::from));
        input.tagging = input.tagging.take().or_else(|| tags::text(self.tags.as_ref()?));
    }

    /// What conditions of policies examine.
    pub(crate) fn examine(&self, context: &mut Context) {
        self.tags.iter().for_each(|tags| context.add_request_tags(tags));
        self.acl.iter().for_each(|acl| context.add("s3:x-amz-acl", acl.clone()));
        self.examined.iter().for_each(|(key, value)| context.add(key.clone(), value.clone()));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn fields_become_what_headers_would_be() {
        let mut fields = FormFields::default();
        let xml = "<Tagging><TagSet><Tag><Key>a b</Key><Value>1</Value></Tag></TagSet></Tagging>";
        for (name, value) in [("acl", "public-read"), ("tagging", xml), ("x-amz-storage-class", "STANDARD")] {
            fields.note(name, value).unwrap();
        }
        fields.set_filename("C:\\home\\a & b.txt");
        let mut input = PutObjectInput { key: "up/${filename}".to_owned(), ..PutObjectInput::default() };
        fields.apply(&mut input);
        assert_eq!(input.key, "up/a & b.txt");
        assert_eq!(input.acl.unwrap().as_str(), "public-read");
        assert_eq!(input.tagging.as_deref(), Some("a%20b=1"));
        let mut context = Context::new(None, std::net::IpAddr::from([10, 1, 2, 3]), true);
        fields.examine(&mut context);
        assert_eq!(context.values("s3:x-amz-acl"), ["public-read"]);
        assert_eq!(context.values("s3:requestobjecttag/a b"), ["1"]);
        assert_eq!(context.values("s3:x-amz-storage-class"), ["STANDARD"]);
        assert_eq!(
            fields.in_answer("<Key>up/${filename}</Key>", super::super::error::escaped),
            "<Key>up/a &amp; b.txt</Key>"
        );
        for bad in ["<Tagging>", "", "<Tagging><TagSet><Tag><Key></Key><Value></Value></Tag></TagSet></Tagging>"] {
            assert!(fields.note("tagging", bad).is_err(), "{bad}");
        }
    }
}
