//! ListObjects, both versions.

use catalog::object_manifest::ObjectManifest;
use catalog::{CatalogError, Row, Start};
use s3s::dto::*;
use s3s::{S3Result, s3_error};

use crate::rules::acl::object_owner;
use crate::rules::attributes::{etag, modified};
use crate::rules::caller::Caller;
use crate::rules::error;
use crate::rules::query::encode_key;
use crate::rules::storage_class;
use crate::state::State;

/// Keys on a page at most.
pub(crate) const PAGE: usize = 1_000;
/// Keys that are read at once at first, and after a common prefix was found, as the keys below it are not needed. Doubled
/// each time that none was found.
const FEW: usize = 2;
/// Greater than any byte of UTF-8: what is after all keys with a prefix.
const AFTER_ALL: u8 = 0xff;

/// Which keys of a bucket to list.
#[derive(Debug, Default)]
pub(crate) struct Query {
    pub(crate) prefix: String,
    pub(crate) delimiter: String,
    /// The last key or common prefix on the page before; empty at the beginning.
    pub(crate) after: String,
    pub(crate) most: usize,
}

/// Something that is listed by key: an object, a version or an upload.
pub(crate) trait Listed {
    fn key(&self) -> &str;
    /// Where the list goes on after this one, and its id among those of its key, if there can be several.
    fn mark(&self) -> (Start, Option<String>);
}

impl Listed for Row {
    fn key(&self) -> &str {
        &self.record.key
    }

    fn mark(&self) -> (Start, Option<String>) {
        (Start::After(self.record.key.clone().into_bytes()), None)
    }
}

/// A page of keys.
#[derive(Debug)]
pub(crate) struct Page<R> {
    pub(crate) rows: Vec<R>,
    pub(crate) prefixes: Vec<String>,
    /// The last key or common prefix on this page and the id of its row, when there are more pages.
    pub(crate) next: Option<(String, Option<String>)>,
}

impl Query {
    pub(crate) fn new(prefix: Option<&str>, delimiter: Option<&str>, after: Option<&str>, most: usize) -> Self {
        let [prefix, delimiter, after] = [prefix, delimiter, after].map(|text| text.unwrap_or_default().to_owned());
        Self { prefix, delimiter, after, most }
    }

    /// The part of a key up to the delimiter after the prefix.
    fn common_prefix<'a>(&self, key: &'a str) -> Option<&'a str> {
        let rest = key.strip_prefix(&self.prefix)?;
        let at = rest.find(self.delimiter.as_str()).filter(|_| !self.delimiter.is_empty())?;
        Some(&key[..self.prefix.len() + at + self.delimiter.len()])
    }

    /// Where the list begins.
    pub(crate) fn start(&self) -> Start {
        if self.after.as_bytes() < self.prefix.as_bytes() {
            Start::Key(self.prefix.clone().into_bytes())
        } else if self.common_prefix(&self.after) == Some(self.after.as_str()) {
            Start::Key(past(&self.after))
        } else if self.after.is_empty() {
            Start::Key(vec![])
        } else {
            Start::After(self.after.clone().into_bytes())
        }
    }
}

/// The first key after all that begin with `prefix`.
fn past(prefix: &str) -> Vec<u8> {
    let mut key = prefix.as_bytes().to_vec();
    key.push(AFTER_ALL);
    key
}

/// A page of what `read` yields from a place on, in the order of the keys. Blocks.
pub(crate) fn page<R: Listed>(
    query: &Query,
    mut start: Start,
    read: impl Fn(&Start, usize) -> Result<Vec<R>, CatalogError>,
) -> S3Result<Page<R>> {
    let mut page = Page { rows: vec![], prefixes: vec![], next: None };
    if query.most == 0 {
        return Ok(page);
    }
    let (mut last, mut few) = (None, FEW);
    loop {
        let left = query.most - page.rows.len() - page.prefixes.len() + 1;
        let limit = if query.delimiter.is_empty() { left } else { left.min(few) };
        let rows = read(&start, limit).map_err(error::catalog)?;
        let ended = rows.len() < limit;
        let mut folded = false;
        for row in rows {
            let key = row.key();
            if !key.starts_with(&query.prefix) {
                return Ok(page);
            }
            if page.rows.len() + page.prefixes.len() == query.most {
                page.next = last;
                return Ok(page);
            }
            if let Some(prefix) = query.common_prefix(key) {
                start = Start::Key(past(prefix));
                last = Some((prefix.to_owned(), None));
                page.prefixes.push(prefix.to_owned());
                folded = true;
                break;
            }
            let (after, mark) = row.mark();
            start = after;
            last = Some((key.to_owned(), mark));
            page.rows.push(row);
        }
        if ended && !folded {
            return Ok(page);
        }
        few = if folded { FEW } else { 2 * few };
    }
}

fn page_of_objects(state: &State, bucket: &Row, query: &Query) -> S3Result<Page<Row>> {
    let name = &bucket.record.bucket;
    page(query, query.start(), |start, limit| state.objects.catalog().objects(name, start, limit))
}

pub(crate) fn list_objects(state: &State, caller: &Caller, input: ListObjectsInput) -> S3Result<ListObjectsOutput> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let most = page_length("max-keys", input.max_keys)?;
    let encode = encoding(input.encoding_type.as_ref())?;
    let query = Query::new(input.prefix.as_deref(), input.delimiter.as_deref(), input.marker.as_deref(), most);
    let page = page_of_objects(state, &bucket, &query)?;
    Ok(ListObjectsOutput {
        name: Some(input.bucket),
        prefix: Some(encode(input.prefix.unwrap_or_default())),
        marker: Some(encode(input.marker.unwrap_or_default())),
        max_keys: Some(most as i32),
        is_truncated: Some(page.next.is_some()),
        // Without a delimiter the last key is the marker, and S3 does not repeat it.
        next_marker: page.next.filter(|_| !query.delimiter.is_empty()).map(|(key, _)| encode(key)),
        contents: Some(contents(page.rows, Some(&bucket.record), encode)),
        common_prefixes: Some(common_prefixes(page.prefixes, encode)),
        delimiter: echoed(input.delimiter, encode),
        encoding_type: input.encoding_type,
        ..ListObjectsOutput::default()
    })
}

pub(crate) fn list_objects_v2(
    state: &State,
    caller: &Caller,
    input: ListObjectsV2Input,
) -> S3Result<ListObjectsV2Output> {
    let bucket = state.bucket(&input.bucket, caller, "")?;
    let most = page_length("max-keys", input.max_keys)?;
    let encode = encoding(input.encoding_type.as_ref())?;
    let after = match &input.continuation_token {
        Some(token) => read_token(token)
            .ok_or_else(|| s3_error!(InvalidArgument, "The continuation token provided is incorrect"))?,
        None => input.start_after.clone().unwrap_or_default(),
    };
    let query = Query::new(input.prefix.as_deref(), input.delimiter.as_deref(), Some(&after), most);
    let page = page_of_objects(state, &bucket, &query)?;
    let owner = (input.fetch_owner == Some(true)).then_some(&bucket.record);
    Ok(ListObjectsV2Output {
        name: Some(input.bucket),
        prefix: Some(encode(input.prefix.unwrap_or_default())),
        max_keys: Some(most as i32),
        key_count: Some((page.rows.len() + page.prefixes.len()) as i32),
        continuation_token: input.continuation_token,
        is_truncated: Some(page.next.is_some()),
        next_continuation_token: page.next.map(|(key, _)| token(&key)),
        contents: Some(contents(page.rows, owner, encode)),
        common_prefixes: Some(common_prefixes(page.prefixes, encode)),
        delimiter: echoed(input.delimiter, encode),
        encoding_type: input.encoding_type,
        start_after: input.start_after.map(encode),
        ..ListObjectsV2Output::default()
    })
}

/// The length of a page for which a request asks by this name.
pub(crate) fn page_length(name: &str, asked: Option<i32>) -> S3Result<usize> {
    let Some(asked) = asked else { return Ok(PAGE) };
    let asked = usize::try_from(asked)
        .map_err(|_| s3_error!(InvalidArgument, "Argument {name} must be an integer between 0 and 2147483647"))?;
    Ok(asked.min(PAGE))
}

/// The function that encodes keys for the answer.
pub(crate) fn encoding(asked: Option<&EncodingType>) -> S3Result<fn(String) -> String> {
    match asked.map(EncodingType::as_str) {
        None => Ok(|key| key),
        Some(EncodingType::URL) => Ok(|key| encode_key(&key)),
        Some(_) => Err(s3_error!(InvalidArgument, "Invalid Encoding Method specified in Request")),
    }
}

/// The delimiter in an answer, which says nothing of an empty one.
pub(crate) fn echoed(delimiter: Option<String>, encode: fn(String) -> String) -> Option<String> {
    delimiter.filter(|text| !text.is_empty()).map(encode)
}

/// The token for the next page. It does not look like a key, so that no client takes it for one.
pub(crate) fn token(last: &str) -> String {
    base64_simd::URL_SAFE_NO_PAD.encode_to_string(last.as_bytes())
}

fn read_token(token: &str) -> Option<String> {
    String::from_utf8(base64_simd::URL_SAFE_NO_PAD.decode_to_vec(token).ok()?).ok()
}

pub(crate) fn common_prefixes(prefixes: Vec<String>, encode: fn(String) -> String) -> Vec<CommonPrefix> {
    prefixes.into_iter().map(|prefix| CommonPrefix { prefix: Some(encode(prefix)) }).collect()
}

/// The objects of a page, with their owners if their bucket is given.
fn contents(rows: Vec<Row>, bucket: Option<&ObjectManifest>, encode: fn(String) -> String) -> Vec<Object> {
    rows.into_iter()
        .map(|row| Object {
            e_tag: etag(&row.record),
            last_modified: Some(modified(&row.record)),
            owner: bucket.map(|bucket| object_owner(&row.record, bucket)),
            size: i64::try_from(row.record.size).ok(),
            storage_class: Some(storage_class::of(&row.record).into()),
            key: Some(encode(row.record.key)),
            ..Object::default()
        })
        .collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn a_page_begins_where_the_one_before_ended() {
        let query = |prefix, after| Query::new(Some(prefix), Some("/"), Some(after), 1);
        assert_eq!(query("", "").start(), Start::Key(vec![]));
        assert_eq!(query("b/", "a").start(), Start::Key(b"b/".to_vec()));
        assert_eq!(query("", "a/").start(), Start::Key(b"a/\xff".to_vec()));
        assert_eq!(query("", "a/b").start(), Start::After(b"a/b".to_vec()));
        assert_eq!(query("a/", "a/b/").start(), Start::Key(b"a/b/\xff".to_vec()));
        assert_eq!(query("a/", "a/").start(), Start::After(b"a/".to_vec()));
    }

    #[test]
    fn a_page_of_prefixes_reads_few_keys_beside_them() {
        struct Key(String);
        impl Listed for Key {
            fn key(&self) -> &str {
                &self.0
            }

            fn mark(&self) -> (Start, Option<String>) {
                (Start::After(self.0.clone().into_bytes()), None)
            }
        }
        let mut keys: Vec<String> = (0..300).flat_map(|n| (0..20).map(move |m| format!("d{n:03}/{m:02}"))).collect();
        keys.extend((0..300).map(|n| format!("e{n:03}")));
        for (most, prefixes, rows) in [(200, 200, 0), (1_000, 300, 300)] {
            let read = std::cell::Cell::new(0);
            let from = |start: &Start, limit: usize| {
                let after = |key: &str| match start {
                    Start::Key(from) => key.as_bytes() >= &from[..],
                    Start::After(from) | Start::Version(from, _) => key.as_bytes() > &from[..],
                };
                let found: Vec<Key> = keys.iter().filter(|key| after(key)).take(limit).cloned().map(Key).collect();
                read.set(read.get() + found.len());
                Ok(found)
            };
            let query = Query { delimiter: "/".to_owned(), most, ..Query::default() };
            let page = page(&query, query.start(), from).unwrap();
            assert_eq!((page.prefixes.len(), page.rows.len()), (prefixes, rows));
            assert!(read.get() <= 2 * (prefixes + rows) + 2, "{} keys are read", read.get());
        }
    }

    #[test]
    fn a_token_is_read_back() {
        assert_eq!(read_token(&token("a/ü")).as_deref(), Some("a/ü"));
        assert_eq!(read_token("not a token"), None);
    }
}
