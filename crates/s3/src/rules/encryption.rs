//! Encryption of objects: what requests and buckets ask for, and what is kept of it.

use std::collections::BTreeMap;
use std::fmt;

use catalog::Row;
use catalog::object_manifest::ObjectManifest;
use http::header::HeaderMap;
use http::{HeaderName, HeaderValue};
use object::seal::{DataKey, KEY_BYTES, SealError};
use s3s::crypto::{Checksum as _, Md5};
use s3s::{S3Error, S3ErrorCode, S3Result, s3_error};
use serde::{Deserialize, Serialize};

use super::attributes::Attributes;
use super::envelope;

/// The attribute of a bucket with the encryption of its new objects.
pub(crate) const DEFAULT: &str = "encryption";
/// The attribute of an object or an upload that says how it is encrypted: [`AES256`], [`KMS`] or [`CUSTOMER`].
const METHOD: &str = "encryption";
/// Its key, encrypted with another one.
const WRAPPED: &str = "encryption-key";
/// The name of that one, as it was asked for, and what else it is bound to.
const KEY_ID: &str = "encryption-key-id";
const CONTEXT: &str = "encryption-context";
const BUCKET_KEY: &str = "encryption-bucket-key";
const ALL: [&str; 5] = [METHOD, WRAPPED, KEY_ID, CONTEXT, BUCKET_KEY];

/// Encrypted with a key of the gateway.
pub(crate) const AES256: &str = "AES256";
/// Encrypted with a named key.
pub(crate) const KMS: &str = "aws:kms";
/// Encrypted with a key that the client has.
const CUSTOMER: &str = "customer";
/// The named key that is used where none is named.
pub const KMS_DEFAULT_KEY: &str = "aws/s3";
/// Bytes of an encryption context, as it is sent.
const CONTEXT_BYTES: usize = 4_096;

const SSE: HeaderName = HeaderName::from_static("x-amz-server-side-encryption");
const SSE_KEY_ID: HeaderName = HeaderName::from_static("x-amz-server-side-encryption-aws-kms-key-id");
const SSE_CONTEXT: HeaderName = HeaderName::from_static("x-amz-server-side-encryption-context");
const SSE_BUCKET_KEY: HeaderName = HeaderName::from_static("x-amz-server-side-encryption-bucket-key-enabled");
const SSE_C: HeaderName = HeaderName::from_static("x-amz-server-side-encryption-customer-algorithm");
const SSE_C_MD5: HeaderName = HeaderName::from_static("x-amz-server-side-encryption-customer-key-md5");

/// A key that a client sent with its request. It is never stored.
#[derive(Clone)]
pub(crate) struct CustomerKey {
    key: [u8; KEY_BYTES],
    md5: String,
}

/// Keys are never printed.
impl fmt::Debug for CustomerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CustomerKey")
    }
}

impl CustomerKey {
    /// The key in the three headers that belong together.
    pub(crate) fn read(algorithm: Option<String>, key: Option<String>, md5: Option<String>) -> S3Result<Option<Self>> {
        let invalid = |why: &'static str| s3_error!(InvalidArgument, "{why}");
        let (algorithm, key, md5) = match (algorithm, key, md5) {
            (None, None, None) => return Ok(None),
            (None, ..) => {
                return Err(invalid(
                    "Requests specifying Server Side Encryption with Customer provided keys must provide a valid \
                     encryption algorithm.",
                ));
            }
            (Some(_), None, _) => {
                return Err(invalid(
                    "Requests specifying Server Side Encryption with Customer provided keys must provide an \
                     appropriate secret key.",
                ));
            }
            (Some(_), Some(_), None) => {
                return Err(invalid(
                    "Requests specifying Server Side Encryption with Customer provided keys must provide the client \
                     calculated MD5 of the secret key.",
                ));
            }
            (Some(algorithm), Some(key), Some(md5)) => (algorithm, key, md5),
        };
        if algorithm != AES256 {
            let why = "The Encryption request you specified is not valid. Supported value: AES256.";
            return Err(S3Error::with_message(S3ErrorCode::InvalidEncryptionAlgorithmError, why));
        }
        let bytes =
            base64_simd::STANDARD.decode_to_vec(&key).ok().and_then(|key| <[u8; KEY_BYTES]>::try_from(key).ok());
        let key = bytes.ok_or_else(|| invalid("The secret key was invalid for the specified algorithm."))?;
        let mut hash = Md5::new();
        hash.update(&key);
        if base64_simd::STANDARD.encode_to_string(hash.finalize()) != md5 {
            return Err(invalid("The calculated MD5 hash of the key did not match the hash that was provided."));
        }
        Ok(Some(Self { key, md5 }))
    }
}

/// The [`CustomerKey`] of a request, or of what it copies: every kind of request has these fields of its own.
macro_rules! customer_key {
    ($input:expr) => {
        $crate::rules::encryption::CustomerKey::read(
            $input.sse_customer_algorithm.take(),
            $input.sse_customer_key.take(),
            $input.sse_customer_key_md5.take(),
        )
    };
    (source of $input:expr) => {
        $crate::rules::encryption::CustomerKey::read(
            $input.copy_source_sse_customer_algorithm.take(),
            $input.copy_source_sse_customer_key.take(),
            $input.copy_source_sse_customer_key_md5.take(),
        )
    };
}
pub(crate) use customer_key;

/// The encryption that a request asks for.
#[derive(Debug, Default)]
pub(crate) struct RequestedEncryption {
    pub(crate) method: Option<String>,
    pub(crate) key_id: Option<String>,
    pub(crate) context: Option<String>,
    pub(crate) bucket_key: Option<bool>,
    pub(crate) customer: Option<CustomerKey>,
}

/// The [`RequestedEncryption`] of a request: every kind of request has these fields of its own.
macro_rules! asked_encryption {
    ($input:expr) => {
        $crate::rules::encryption::customer_key!($input).map(|customer| {
            $crate::rules::encryption::RequestedEncryption {
                method: $input.server_side_encryption.take().map(|method| method.as_str().to_owned()),
                key_id: $input.ssekms_key_id.take(),
                context: $input.ssekms_encryption_context.take(),
                bucket_key: $input.bucket_key_enabled.take(),
                customer,
            }
        })
    };
}
pub(crate) use asked_encryption;

/// The encryption of a bucket's new objects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct BucketDefault {
    pub(crate) method: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) key_id: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bucket_key: Option<bool>,
}

impl BucketDefault {
    /// That of a bucket, if it has one.
    pub(crate) fn of(bucket: &Row) -> S3Result<Option<Self>> {
        let text = bucket.record.attributes.get(DEFAULT);
        let read = |text: &String| serde_json::from_str(text);
        // What cannot be read must not leave objects plain.
        text.map(read).transpose().map_err(|_| s3_error!(InternalError, "the bucket's encryption cannot be read"))
    }

    /// Refuses what no request could ask for.
    pub(crate) fn check(&self) -> S3Result<()> {
        match self.method.as_str() {
            AES256 if self.key_id.is_some() => Err(s3_error!(
                InvalidArgument,
                "a KMSMasterKeyID is not applicable if the default sse algorithm is not aws:kms"
            )),
            AES256 | KMS => Ok(()),
            "aws:kms:dsse" => Err(s3_error!(NotImplemented, "aws:kms:dsse is not supported")),
            _ => Err(S3ErrorCode::MalformedXML.into()),
        }
    }
}

/// How an object is encrypted.
#[derive(Debug)]
pub(crate) enum Method {
    Service,
    Named { key_id: String, context: Option<String>, bucket_key: Option<bool> },
    Customer(CustomerKey),
}

impl RequestedEncryption {
    /// How an object of this bucket is to be encrypted, if at all.
    pub(crate) fn method(self, bucket: &Row) -> S3Result<Option<Method>> {
        let invalid = |why: &'static str| s3_error!(InvalidArgument, "{why}");
        let of_kms = self.key_id.is_some() || self.context.is_some();
        match (self.method.as_deref(), self.customer) {
            (None, Some(_)) if of_kms => {}
            (None, Some(key)) => return Ok(Some(Method::Customer(key))),
            (Some(_), Some(_)) => {
                return Err(invalid(
                    "Server Side Encryption with Customer provided key is incompatible with the encryption method \
                     specified",
                ));
            }
            (Some(AES256), None) if !of_kms => return Ok(Some(Method::Service)),
            (Some(KMS), None) => {
                let context = self.context.map(|text| check_context(&text).map(|()| text)).transpose()?;
                let key_id = self.key_id.unwrap_or_else(|| KMS_DEFAULT_KEY.to_owned());
                return Ok(Some(Method::Named { key_id, context, bucket_key: self.bucket_key }));
            }
            (Some("aws:kms:dsse"), None) => return Err(s3_error!(NotImplemented, "aws:kms:dsse is not supported")),
            (Some(AES256) | None, None) if of_kms => {}
            (Some(_), None) => return Err(invalid("The encryption method specified is not supported")),
            (None, None) => {
                return Ok(BucketDefault::of(bucket)?.map(|default| match default.method.as_str() {
                    AES256 => Method::Service,
                    _ => Method::Named {
                        key_id: default.key_id.unwrap_or_else(|| KMS_DEFAULT_KEY.to_owned()),
                        context: None,
                        bucket_key: self.bucket_key.or(default.bucket_key),
                    },
                }));
            }
        }
        Err(invalid(
            "Server Side Encryption with AWS KMS managed key requires HTTP header x-amz-server-side-encryption : aws:kms",
        ))
    }

    /// Whether anything is asked for.
    pub(crate) fn is_some(&self) -> bool {
        self.method.is_some() || self.customer.is_some()
    }
}

/// A context is JSON of texts by names, in base64.
fn check_context(text: &str) -> S3Result<()> {
    let bytes = base64_simd::STANDARD.decode_to_vec(text).unwrap_or_default();
    let fits = text.len() <= CONTEXT_BYTES && serde_json::from_slice::<BTreeMap<String, String>>(&bytes).is_ok();
    if fits {
        Ok(())
    } else {
        Err(s3_error!(InvalidArgument, "The header x-amz-server-side-encryption-context is no JSON of texts in base64"))
    }
}

/// What the bytes of an object are encrypted with.
#[derive(Clone, Debug)]
pub(crate) struct Sealing {
    pub(crate) key: DataKey,
    /// Whether the entity tag says nothing of the bytes, as in S3 where it is not the gateway that has the key.
    pub(crate) hides_tag: bool,
}

impl Sealing {
    /// The entity tag of bytes with this hash.
    pub(crate) fn tag(&self, md5: &[u8]) -> Vec<u8> {
        if self.hides_tag { self.key.derive(&[b"etag", md5].concat())[..16].to_vec() } else { md5.to_vec() }
    }
}

/// How an object or an upload is encrypted, as it is kept.
#[derive(Debug)]
pub(crate) struct Kept<'a> {
    method: &'a str,
    pub(crate) wrapped: &'a str,
    pub(crate) key_id: Option<&'a str>,
}

impl<'a> Kept<'a> {
    pub(crate) fn of(record: &'a ObjectManifest) -> Option<Self> {
        let attribute = |name: &str| record.attributes.get(name).map(String::as_str);
        let method = attribute(METHOD)?;
        Some(Self { method, wrapped: attribute(WRAPPED).unwrap_or_default(), key_id: attribute(KEY_ID) })
    }

    pub(crate) fn hides_tag(&self) -> bool {
        self.method != AES256
    }

    pub(crate) fn is_by_customer(&self) -> bool {
        self.method == CUSTOMER
    }
}

/// What the key of an object is bound to: it opens no other one.
pub(crate) fn about(record: &ObjectManifest) -> Vec<u8> {
    let attribute = |name: &str| record.attributes.get(name).map_or("", String::as_str);
    [record.bucket.as_str(), &record.key, attribute(METHOD), attribute(CONTEXT)].join("\0").into_bytes()
}

/// Keeps how an object is encrypted, but for its wrapped key.
pub(crate) fn keep(attributes: &mut Attributes, method: &Method) {
    forget(attributes);
    let mut set = |name: &str, value: String| attributes.insert(name.to_owned(), value);
    match method {
        Method::Service => drop(set(METHOD, AES256.to_owned())),
        Method::Customer(_) => drop(set(METHOD, CUSTOMER.to_owned())),
        Method::Named { key_id, context, bucket_key } => {
            set(METHOD, KMS.to_owned());
            set(KEY_ID, key_id.clone());
            context.iter().for_each(|context| drop(set(CONTEXT, context.clone())));
            bucket_key.iter().for_each(|enabled| drop(set(BUCKET_KEY, enabled.to_string())));
        }
    }
}

/// Keeps the key of an object, wrapped.
pub(crate) fn keep_key(attributes: &mut Attributes, wrapped: String) {
    attributes.insert(WRAPPED.to_owned(), wrapped);
}

/// Removes what is kept of encryption from attributes that were copied.
pub(crate) fn forget(attributes: &mut Attributes) {
    ALL.iter().for_each(|name| drop(attributes.remove(*name)));
}

/// A key that is wrapped with a client's own.
pub(crate) fn wrap(customer: &CustomerKey, about: &[u8], key: &DataKey) -> Result<String, SealError> {
    envelope::wrap(&customer.key, about, key)
}

/// The reverse of [`wrap`].
pub(crate) fn unwrap(customer: &CustomerKey, about: &[u8], wrapped: &str) -> Result<DataKey, SealError> {
    envelope::unwrap(&customer.key, about, wrapped)
}

/// What an answer says of the encryption of an object or an upload.
pub(crate) fn headers(record: &ObjectManifest, customer: Option<&CustomerKey>) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let Some(kept) = Kept::of(record) else { return headers };
    let mut set = |name: HeaderName, value: &str| {
        headers.extend(HeaderValue::from_str(value).ok().map(|value| (name, value)));
    };
    if kept.is_by_customer() {
        set(SSE_C, AES256);
        customer.iter().for_each(|key| set(SSE_C_MD5, &key.md5));
        return headers;
    }
    set(SSE, kept.method);
    for (name, attribute) in [(SSE_KEY_ID, KEY_ID), (SSE_BUCKET_KEY, BUCKET_KEY)] {
        record.attributes.get(attribute).iter().for_each(|value| set(name.clone(), value));
    }
    headers
}

/// The same for who puts, who is told the context as well.
pub(crate) fn headers_of_put(record: &ObjectManifest, customer: Option<&CustomerKey>) -> HeaderMap {
    let mut headers = headers(record, customer);
    let context = record.attributes.get(CONTEXT).and_then(|value| HeaderValue::from_str(value).ok());
    headers.extend(context.map(|value| (SSE_CONTEXT, value)));
    headers
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use catalog::object_manifest::{Kind, VersionId};

    use super::*;

    const KEY: &str = "MTIzNDU2Nzg5MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTI=";
    const KEY_MD5: &str = "ZJAZSqAXUJHHrDDZIb1YRQ==";

    fn key_md5(key: &[u8]) -> String {
        let mut hash = Md5::new();
        hash.update(key);
        base64_simd::STANDARD.encode_to_string(hash.finalize())
    }

    fn bucket(default: Option<&str>) -> Row {
        let mut record = ObjectManifest::new(Kind::Bucket, "b", "", VersionId::default());
        record.attributes.extend(default.map(|text| (DEFAULT.to_owned(), text.to_owned())));
        Row { manifest: record.chunk().0, record }
    }

    fn text(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn a_customers_key_is_taken_with_its_algorithm_and_hash_alone() {
        let md5 = key_md5(b"12345678901234567890123456789012");
        let read = |a: Option<&str>, k: Option<&str>, m: Option<&str>| {
            CustomerKey::read(a.map(Into::into), k.map(Into::into), m.map(Into::into))
        };
        assert!(read(None, None, None).unwrap().is_none());
        let key = read(Some(AES256), Some(KEY), Some(&md5)).unwrap().unwrap();
        assert_eq!((&key.key[..2], key.md5.as_str()), (&b"12"[..], md5.as_str()));
        assert!(!format!("{key:?}").contains("49"));
        for bad in [
            (None, Some(KEY), Some(md5.as_str())),
            (Some(AES256), None, Some(md5.as_str())),
            (Some(AES256), Some(KEY), None),
            (Some(AES256), Some(KEY), Some(KEY_MD5)),
            (Some(AES256), Some("c2hvcnQ="), Some(md5.as_str())),
            (Some(AES256), Some("%"), Some(md5.as_str())),
        ] {
            assert_eq!(read(bad.0, bad.1, bad.2).unwrap_err().code(), &S3ErrorCode::InvalidArgument, "{bad:?}");
        }
        let other = read(Some("AES128"), Some(KEY), Some(&md5)).unwrap_err();
        assert_eq!(other.code(), &S3ErrorCode::InvalidEncryptionAlgorithmError);
    }

    #[test]
    fn what_is_asked_for_counts_before_the_bucket() {
        let kms = bucket(Some(r#"{"method":"aws:kms","key_id":"mine","bucket_key":true}"#));
        let method = |asked: RequestedEncryption, bucket: &Row| match asked.method(bucket) {
            Ok(None) => "plain".to_owned(),
            Ok(Some(Method::Service)) => "service".to_owned(),
            Ok(Some(Method::Customer(_))) => "customer".to_owned(),
            Ok(Some(Method::Named { key_id, .. })) => key_id,
            Err(error) => error.code().as_str().to_owned(),
        };
        let md5 = key_md5(b"12345678901234567890123456789012");
        let customer = || CustomerKey::read(text(AES256), text(KEY), Some(md5.clone())).unwrap();
        let asked = || RequestedEncryption::default();
        assert_eq!(method(asked(), &bucket(None)), "plain");
        assert_eq!(method(asked(), &kms), "mine");
        assert_eq!(method(asked(), &bucket(Some("{}"))), "InternalError");
        assert_eq!(method(RequestedEncryption { method: text(AES256), ..asked() }, &kms), "service");
        assert_eq!(method(RequestedEncryption { method: text(KMS), ..asked() }, &bucket(None)), KMS_DEFAULT_KEY);
        assert_eq!(method(RequestedEncryption { method: text(KMS), key_id: text("k"), ..asked() }, &kms), "k");
        assert_eq!(method(RequestedEncryption { customer: customer(), ..asked() }, &kms), "customer");
        for bad in [
            RequestedEncryption { method: text("DES"), ..asked() },
            RequestedEncryption { key_id: text("k"), ..asked() },
            RequestedEncryption { method: text(AES256), key_id: text("k"), ..asked() },
            RequestedEncryption { method: text(AES256), customer: customer(), ..asked() },
            RequestedEncryption { key_id: text("k"), customer: customer(), ..asked() },
            RequestedEncryption { method: text(KMS), context: text("x"), ..asked() },
        ] {
            assert_eq!(method(bad, &kms), "InvalidArgument");
        }
        let context = base64_simd::STANDARD.encode_to_string(r#"{"a":"b"}"#);
        assert_eq!(
            method(RequestedEncryption { method: text(KMS), context: Some(context), ..asked() }, &kms),
            KMS_DEFAULT_KEY
        );
    }

    #[test]
    fn tags_say_nothing_of_bytes_that_the_gateway_has_no_key_for() {
        let key = DataKey::random().unwrap();
        let sealing = |hides_tag| Sealing { key: key.clone(), hides_tag };
        assert_eq!(sealing(false).tag(&[1; 16]), [1; 16]);
        let hidden = sealing(true).tag(&[1; 16]);
        assert_eq!((hidden.len(), hidden == sealing(true).tag(&[1; 16])), (16, true));
        assert!(hidden != [1; 16] && hidden != sealing(true).tag(&[2; 16]));
    }
}
