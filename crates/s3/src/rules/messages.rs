//! What S3 says of an error where nothing more is known.

/// The message of a code; `None` when S3 has no such code.
pub(crate) fn message(code: &str) -> Option<&'static str> {
    MESSAGES.iter().find(|(known, _)| *known == code).map(|(_, message)| *message)
}

const MESSAGES: &[(&str, &str)] = &[
    ("AccessDenied", "Access Denied"),
    ("BadDigest", "The Content-MD5 or checksum value that you specified did not match what the server received."),
    (
        "BucketAlreadyExists",
        "The requested bucket name is not available. The bucket namespace is shared by all users of the system. Please \
         select a different name and try again.",
    ),
    ("BucketAlreadyOwnedByYou", "Your previous request to create the named bucket succeeded and you already own it."),
    ("BucketNotEmpty", "The bucket you tried to delete is not empty"),
    ("EntityTooLarge", "Your proposed upload exceeds the maximum allowed size"),
    ("EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size"),
    ("IncompleteBody", "You did not provide the number of bytes specified by the Content-Length HTTP header."),
    ("InternalError", "We encountered an internal error. Please try again."),
    ("InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records."),
    ("InvalidArgument", "Invalid Argument"),
    ("InvalidBucketName", "The specified bucket is not valid."),
    ("InvalidBucketState", "The request is not valid with the current state of the bucket."),
    ("InvalidDigest", "The Content-MD5 you specified was invalid."),
    (
        "InvalidPart",
        "One or more of the specified parts could not be found. The part may not have been uploaded, or the specified \
         entity tag may not match the part's entity tag.",
    ),
    ("InvalidPartOrder", "The list of parts was not in ascending order. Parts must be ordered by part number."),
    ("InvalidRange", "The requested range is not satisfiable"),
    ("InvalidRequest", "Invalid Request"),
    ("InvalidStorageClass", "The storage class you specified is not valid"),
    ("InvalidTag", "The tag provided was not a valid tag."),
    ("InvalidURI", "Couldn't parse the specified URI."),
    ("KeyTooLongError", "Your key is too long"),
    ("MalformedACLError", "The XML you provided was not well-formed or did not validate against our published schema"),
    ("MalformedPOSTRequest", "The body of your POST request is not well-formed multipart/form-data."),
    ("MalformedPolicy", "This policy contains invalid Json"),
    ("MalformedXML", "The XML you provided was not well-formed or did not validate against our published schema"),
    ("MaxMessageLengthExceeded", "Your request was too large."),
    ("MetadataTooLarge", "Your metadata headers exceed the maximum allowed metadata size"),
    ("MethodNotAllowed", "The specified method is not allowed against this resource."),
    ("MissingContentLength", "You must provide the Content-Length HTTP header."),
    ("MissingRequestBodyError", "Request Body is empty"),
    ("NoSuchBucket", "The specified bucket does not exist"),
    ("NoSuchBucketPolicy", "The bucket policy does not exist"),
    ("NoSuchCORSConfiguration", "The CORS configuration does not exist"),
    ("NoSuchKey", "The specified key does not exist."),
    ("NoSuchLifecycleConfiguration", "The lifecycle configuration does not exist"),
    ("NoSuchObjectLockConfiguration", "The specified object does not have a ObjectLock configuration"),
    ("NoSuchTagSet", "The TagSet does not exist"),
    (
        "NoSuchUpload",
        "The specified upload does not exist. The upload ID may be invalid, or the upload may have been aborted or \
         completed.",
    ),
    ("NoSuchVersion", "The specified version does not exist."),
    ("NotImplemented", "A header you provided implies functionality that is not implemented"),
    ("ObjectLockConfigurationNotFoundError", "Object Lock configuration does not exist for this bucket"),
    (
        "OperationAborted",
        "A conflicting conditional operation is currently in progress against this resource. Please try again.",
    ),
    ("OwnershipControlsNotFoundError", "The bucket ownership controls were not found"),
    ("PreconditionFailed", "At least one of the pre-conditions you specified did not hold"),
    ("RequestTimeTooSkewed", "The difference between the request time and the current time is too large."),
    (
        "RequestTimeout",
        "Your socket connection to the server was not read from or written to within the timeout period. Idle \
         connections will be closed.",
    ),
    ("ServiceUnavailable", "Service is unable to handle request."),
    (
        "SignatureDoesNotMatch",
        "The request signature we calculated does not match the signature you provided. Check your key and signing \
         method.",
    ),
    ("SlowDown", "Please reduce your request rate."),
    ("TooManyBuckets", "You have attempted to create more buckets than allowed"),
];
