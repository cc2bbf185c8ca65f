//! `rewrite`: the objects of a bucket get another storage class, in the background, and those that are put from now on as well.

use std::collections::BTreeMap;

use anyhow::ensure;
use rusty_s3::Method;
use serde::Serialize;

use crate::args::RewriteArgs;
use crate::client::{S3, is_refused};
use crate::objects;
use crate::output::{self, json, line};
use crate::units;

/// The tag of a bucket that says which class objects have that do not say it themselves.
const TAG: &str = "reservoir:storage-class";
/// The lifecycle rule that is set, beside those that there are.
const RULE: &str = "reservoir-rewrite";
/// Before anything was put.
const LONG_AGO: &str = "2000-01-01T00:00:00Z";

/// What there is of a storage class.
#[derive(Debug, Default, Serialize)]
struct InClass {
    objects: u64,
    bytes: u64,
}

#[derive(Debug, Serialize)]
struct Report {
    bucket: String,
    /// The newest versions of objects, by their storage classes.
    classes: BTreeMap<String, InClass>,
}

/// Runs `reservoir rewrite`.
pub(crate) fn run(args: &RewriteArgs) -> anyhow::Result<()> {
    let (at, s3) = (&args.bucket, objects::s3(&args.with)?);
    if let Some(class) = &args.class {
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        ensure!(
            !class.is_empty() && class.chars().all(is_name),
            "--class {class:?} is no storage class: write STANDARD, for example"
        );
        // The rule is refused when there is no such class: nothing is changed then.
        let rules = others(&s3, &at.bucket, "lifecycle", "NoSuchLifecycleConfiguration", ("Rule", "ID", RULE))?;
        let body = format!("<LifecycleConfiguration>{rules}{}</LifecycleConfiguration>", rule(class));
        s3.document(Method::Put, (&at.bucket, ""), &[("lifecycle", "")], &[], body.as_bytes())?;
        let tags = others(&s3, &at.bucket, "tagging", "NoSuchTagSet", ("Tag", "Key", TAG))?;
        let body =
            format!("<Tagging><TagSet>{tags}<Tag><Key>{TAG}</Key><Value>{class}</Value></Tag></TagSet></Tagging>");
        s3.document(Method::Put, (&at.bucket, ""), &[("tagging", "")], &[], body.as_bytes())?;
    }
    let mut classes: BTreeMap<String, InClass> = BTreeMap::new();
    for object in s3.objects(at) {
        let object = object?;
        let kept = classes.entry(object.storage_class).or_default();
        kept.objects += 1;
        kept.bytes += object.size;
    }
    if args.with.table.json {
        return json(&Report { bucket: at.bucket.clone(), classes });
    }
    if let Some(class) = &args.class {
        line(&format!(
            "what is put in {at} is of class {class} from now on, and what is there is rewritten by the gateway within an hour, older versions within \
             a day more; `{} rewrite {at}` shows how far that is",
            output::program()
        ))?;
    }
    let row = |(class, kept): (String, InClass)| vec![class, kept.objects.to_string(), units::size(kept.bytes)];
    output::table(&["class", "objects", "size"], classes.into_iter().map(row).collect())
}

/// Moves everything to a class.
fn rule(class: &str) -> String {
    format!(
        "<Rule><ID>{RULE}</ID><Filter></Filter><Status>Enabled</Status>\
         <Transition><Date>{LONG_AGO}</Date><StorageClass>{class}</StorageClass></Transition>\
         <NoncurrentVersionTransition><NoncurrentDays>0</NoncurrentDays><StorageClass>{class}</StorageClass></NoncurrentVersionTransition></Rule>"
    )
}

/// The elements of a setting of a bucket as they are, without the one of this name; `none` is what the gateway answers where there is no such
/// setting.
fn others(
    s3: &S3,
    bucket: &str,
    setting: &str,
    none: &str,
    (element, field, name): (&str, &str, &str),
) -> anyhow::Result<String> {
    let text = match s3.document(Method::Get, (bucket, ""), &[(setting, "")], &[], b"") {
        Err(error) if is_refused(&error, none) => return Ok(String::new()),
        text => text?,
    };
    let (begin, end, own) = (format!("<{element}>"), format!("</{element}>"), format!("<{field}>{name}</{field}>"));
    let each = text.split(&*begin).skip(1).filter_map(|rest| rest.split_once(&*end)).map(|(inner, _)| inner);
    Ok(each.filter(|inner| !inner.contains(&*own)).map(|inner| format!("{begin}{inner}{end}")).collect())
}
