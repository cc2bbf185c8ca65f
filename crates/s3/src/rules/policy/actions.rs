//! Which action each operation needs, and which there are.

/// Operations, the action that each needs, and the one that it needs with a version id.
const OPERATIONS: &[(&str, &str, &str)] = &[
    ("AbortMultipartUpload", "AbortMultipartUpload", ""),
    ("CompleteMultipartUpload", "PutObject", ""),
    ("CopyObject", "PutObject", ""),
    ("CreateMultipartUpload", "PutObject", ""),
    ("DeleteBucket", "DeleteBucket", ""),
    ("DeleteBucketCors", "PutBucketCORS", ""),
    ("DeleteBucketEncryption", "PutEncryptionConfiguration", ""),
    ("DeleteBucketLifecycle", "PutLifecycleConfiguration", ""),
    ("DeleteBucketOwnershipControls", "PutBucketOwnershipControls", ""),
    ("DeleteBucketPolicy", "DeleteBucketPolicy", ""),
    ("DeleteBucketTagging", "PutBucketTagging", ""),
    ("DeleteObject", "DeleteObject", "DeleteObjectVersion"),
    ("DeleteObjects", "DeleteObject", ""),
    ("DeletePublicAccessBlock", "PutBucketPublicAccessBlock", ""),
    ("DeleteObjectTagging", "DeleteObjectTagging", "DeleteObjectVersionTagging"),
    ("GetBucketAcl", "GetBucketAcl", ""),
    ("GetBucketCors", "GetBucketCORS", ""),
    ("GetBucketEncryption", "GetEncryptionConfiguration", ""),
    ("GetBucketLifecycleConfiguration", "GetLifecycleConfiguration", ""),
    ("GetBucketLocation", "GetBucketLocation", ""),
    ("GetBucketOwnershipControls", "GetBucketOwnershipControls", ""),
    ("GetBucketPolicy", "GetBucketPolicy", ""),
    ("GetBucketPolicyStatus", "GetBucketPolicyStatus", ""),
    ("GetBucketTagging", "GetBucketTagging", ""),
    ("GetBucketVersioning", "GetBucketVersioning", ""),
    ("GetObject", "GetObject", "GetObjectVersion"),
    ("GetObjectAcl", "GetObjectAcl", "GetObjectVersionAcl"),
    ("GetObjectAttributes", "GetObjectAttributes", "GetObjectVersionAttributes"),
    ("GetObjectLegalHold", "GetObjectLegalHold", ""),
    ("GetObjectLockConfiguration", "GetBucketObjectLockConfiguration", ""),
    ("GetObjectRetention", "GetObjectRetention", ""),
    ("GetObjectTagging", "GetObjectTagging", "GetObjectVersionTagging"),
    ("GetPublicAccessBlock", "GetBucketPublicAccessBlock", ""),
    ("HeadBucket", "ListBucket", ""),
    ("HeadObject", "GetObject", "GetObjectVersion"),
    ("ListMultipartUploads", "ListBucketMultipartUploads", ""),
    ("ListObjectVersions", "ListBucketVersions", ""),
    ("ListObjects", "ListBucket", ""),
    ("ListObjectsV2", "ListBucket", ""),
    ("ListParts", "ListMultipartUploadParts", ""),
    ("PostObject", "PutObject", ""),
    ("PutBucketAcl", "PutBucketAcl", ""),
    ("PutBucketCors", "PutBucketCORS", ""),
    ("PutBucketEncryption", "PutEncryptionConfiguration", ""),
    ("PutBucketLifecycleConfiguration", "PutLifecycleConfiguration", ""),
    ("PutBucketOwnershipControls", "PutBucketOwnershipControls", ""),
    ("PutBucketPolicy", "PutBucketPolicy", ""),
    ("PutBucketTagging", "PutBucketTagging", ""),
    ("PutBucketVersioning", "PutBucketVersioning", ""),
    ("PutObject", "PutObject", ""),
    ("PutObjectAcl", "PutObjectAcl", "PutObjectVersionAcl"),
    ("PutObjectLegalHold", "PutObjectLegalHold", ""),
    ("PutObjectLockConfiguration", "PutBucketObjectLockConfiguration", ""),
    ("PutObjectRetention", "PutObjectRetention", ""),
    ("PutObjectTagging", "PutObjectTagging", "PutObjectVersionTagging"),
    ("PutPublicAccessBlock", "PutBucketPublicAccessBlock", ""),
    ("UploadPart", "PutObject", ""),
    ("UploadPartCopy", "PutObject", ""),
];

/// An action that is needed in addition to that of an operation.
pub(crate) const BYPASS: &str = "BypassGovernanceRetention";

/// Actions of operations that are not supported. A policy may name them.
const IDLE: &[&str] = &[
    "GetObjectTorrent",
    "RestoreObject",
    "GetBucketLogging",
    "PutBucketLogging",
    "GetBucketNotification",
    "PutBucketNotification",
    "GetBucketWebsite",
    "PutBucketWebsite",
];

/// The action of S3 that an operation needs; none for those that need no bucket.
pub(crate) fn action(operation: &str, versioned: bool) -> &'static str {
    let found = OPERATIONS.iter().find(|(name, ..)| *name == operation);
    match found {
        Some((_, _, version)) if versioned && !version.is_empty() => version,
        Some((_, plain, _)) => plain,
        None => "",
    }
}

/// The action that is needed instead of this one with a version id.
pub(super) fn action_of_version(action: &str) -> &'static str {
    let found = OPERATIONS.iter().find(|(_, plain, version)| *plain == action && !version.is_empty());
    found.map_or("", |(_, _, version)| version)
}

/// All actions that a policy can name.
pub(super) fn actions() -> impl Iterator<Item = &'static str> {
    let needed = OPERATIONS.iter().flat_map(|(_, plain, version)| [*plain, *version]);
    needed.chain(IDLE.iter().copied()).chain([BYPASS]).filter(|name| !name.is_empty())
}

/// Whether an action is about objects, and not about their bucket.
pub(super) fn on_objects(action: &str) -> bool {
    !["Bucket", "Lifecycle", "Encryption"].iter().any(|word| action.contains(word))
}
