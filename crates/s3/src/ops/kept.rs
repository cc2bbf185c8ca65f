//! What an answer says of an object that was stored with fewer copies than are wanted, as failure domains are down.

use http::{HeaderMap, HeaderValue};
use object::objects::Kept;
use s3s::S3Response;

/// So many copies of so many that are wanted, as `2/3`. Absent where none lacks.
const COPIES: &str = "x-reservoir-copies";

/// The answer, how well what it is about is kept so far, and what else is said of it.
pub(super) fn respond<T>((output, kept, headers): (T, Kept, HeaderMap)) -> S3Response<T> {
    let mut response = S3Response::new(output);
    response.headers = headers;
    let text = format!("{}/{}", kept.copies, kept.wanted);
    if let Some(value) = HeaderValue::from_str(&text).ok().filter(|_| kept.lacks_copies()) {
        response.headers.insert(COPIES, value);
    }
    response
}
