//! The keys of objects: made, wrapped and unwrapped. All of it blocks.

use catalog::Row;
use catalog::object_manifest::ObjectManifest;
use http::StatusCode;
use object::seal::DataKey;
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};

use super::State;
use super::keys::{KeyError, MASTER};
use crate::rules::encryption::{self, CustomerKey, Kept, Method, RequestedEncryption, Sealing};
use crate::rules::error;

impl State {
    /// What a new object or upload is encrypted with, as is asked for, or else as its bucket says. Its record says how. The
    /// key may be one that its bytes were encrypted with already.
    pub(crate) fn seal(
        &self,
        bucket: &Row,
        asked: RequestedEncryption,
        record: &mut ObjectManifest,
        known: Option<&DataKey>,
    ) -> S3Result<Option<Sealing>> {
        encryption::forget(&mut record.attributes);
        let Some(method) = asked.method(bucket)? else { return Ok(None) };
        let key = match known {
            Some(key) => key.clone(),
            None => DataKey::random().map_err(|failure| s3_error!(InternalError, "{failure}"))?,
        };
        encryption::keep(&mut record.attributes, &method);
        let about = encryption::about(record);
        let wrapped = match &method {
            Method::Service => self.keys.wrap(MASTER, &about, &key).map_err(key_error),
            Method::Named { key_id, .. } => self.keys.wrap(name_of(key_id)?, &about, &key).map_err(key_error),
            Method::Customer(customer) => {
                encryption::wrap(customer, &about, &key).map_err(|failure| s3_error!(InternalError, "{failure}"))
            }
        }?;
        encryption::keep_key(&mut record.attributes, wrapped);
        Ok(Some(Sealing { key, hides_tag: !matches!(method, Method::Service) }))
    }

    /// What the bytes of an object are read with, or those of an upload's parts are encrypted with, if they are.
    pub(crate) fn unseal(&self, record: &ObjectManifest, customer: Option<&CustomerKey>) -> S3Result<Option<Sealing>> {
        let Some(kept) = Kept::of(record) else {
            return match customer {
                None => Ok(None),
                Some(_) => Err(not_applicable()),
            };
        };
        let about = encryption::about(record);
        let key = match customer {
            None if kept.is_by_customer() => {
                return Err(s3_error!(
                    InvalidRequest,
                    "The object was stored using a form of Server Side Encryption. The correct parameters must be \
                     provided to retrieve the object."
                ));
            }
            Some(_) if !kept.is_by_customer() => return Err(not_applicable()),
            Some(customer) => encryption::unwrap(customer, &about, kept.wrapped).map_err(|_| {
                s3_error!(AccessDenied, "The provided encryption key is not that which the object was encrypted with.")
            })?,
            None => {
                let name = kept.key_id.map_or(Ok(MASTER), name_of)?;
                self.keys.unwrap(name, &about, kept.wrapped).map_err(key_error)?
            }
        };
        Ok(Some(Sealing { key, hides_tag: kept.hides_tag() }))
    }

    /// What a part of an upload is encrypted with. The upload says whether with a client's key, and each part needs the same.
    pub(crate) fn seal_part(
        &self,
        upload: &ObjectManifest,
        customer: Option<&CustomerKey>,
    ) -> S3Result<Option<Sealing>> {
        let by_customer = Kept::of(upload).is_some_and(|kept| kept.is_by_customer());
        match customer {
            None if by_customer => Err(s3_error!(
                InvalidRequest,
                "The multipart upload initiate requested encryption. Subsequent part requests must include the \
                 appropriate encryption parameters."
            )),
            Some(_) if !by_customer => Err(s3_error!(
                InvalidRequest,
                "The multipart upload initiate did not request encryption with a customer provided key."
            )),
            _ => self.unseal(upload, customer).map_err(|failure| match failure.code() {
                S3ErrorCode::AccessDenied => s3_error!(
                    InvalidRequest,
                    "The provided encryption parameters did not match the ones used originally."
                ),
                _ => failure,
            }),
        }
    }
}

fn not_applicable() -> S3Error {
    s3_error!(InvalidRequest, "The encryption parameters are not applicable to this object.")
}

/// The name in what a client calls a key: `NAME`, `alias/NAME`, or an ARN that ends with it.
fn name_of(id: &str) -> S3Result<&str> {
    let resource = match id.strip_prefix("arn:") {
        Some(arn) => arn.splitn(5, ':').last().unwrap_or_default(),
        None => id,
    };
    let name = ["key/", "alias/"].iter().find_map(|begin| resource.strip_prefix(begin)).unwrap_or(resource);
    if name == MASTER { Err(no_key(id)) } else { Ok(name) }
}

fn no_key(id: &str) -> S3Error {
    error::custom("KMS.NotFoundException", StatusCode::BAD_REQUEST, format!("Key '{id}' does not exist"))
}

fn key_error(failure: KeyError) -> S3Error {
    let named = |name: &String| name != MASTER;
    match &failure {
        KeyError::NoKey(name, _) if named(name) => no_key(name),
        KeyError::NoVersion(name, ..) if named(name) => {
            tracing::warn!("{failure}");
            error::custom("KMS.NotFoundException", StatusCode::BAD_REQUEST, failure.to_string())
        }
        KeyError::Wrong(name) if named(name) => {
            error::custom("KMS.InvalidCiphertextException", StatusCode::BAD_REQUEST, failure.to_string())
        }
        _ => {
            tracing::error!("{failure}");
            S3Error::with_message(S3ErrorCode::InternalError, failure.to_string())
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    #[test]
    fn a_key_has_several_names() {
        for id in ["mine", "alias/mine", "arn:aws:kms:us-east-1:1:key/mine", "arn:aws:kms:us-east-1:1:alias/mine"] {
            assert_eq!(name_of(id).unwrap(), "mine", "{id}");
        }
        assert_eq!(name_of("alias/aws/s3").unwrap(), "aws/s3");
        assert!(name_of("sse-s3").is_err() && name_of("alias/sse-s3").is_err());
    }
}
