//! The keys of conditions that there are.

/// Keys that a request here may have, or that S3 knows and no request here has.
const KEYS: &[&str] = &[
    "aws:calledvia",
    "aws:calledviafirst",
    "aws:calledvialast",
    "aws:currenttime",
    "aws:ec2instancesourceprivateipv4",
    "aws:ec2instancesourcevpc",
    "aws:epochtime",
    "aws:federatedprovider",
    "aws:multifactorauthage",
    "aws:multifactorauthpresent",
    "aws:principalaccount",
    "aws:principalarn",
    "aws:principalisawsservice",
    "aws:principalorgid",
    "aws:principalorgpaths",
    "aws:principalservicename",
    "aws:principalservicenameslist",
    "aws:principaltype",
    "aws:referer",
    "aws:requestedregion",
    "aws:resourceaccount",
    "aws:resourceorgid",
    "aws:resourceorgpaths",
    "aws:securetransport",
    "aws:sourceaccount",
    "aws:sourcearn",
    "aws:sourceidentity",
    "aws:sourceip",
    "aws:sourceorgid",
    "aws:sourceorgpaths",
    "aws:sourceowner",
    "aws:sourcevpc",
    "aws:sourcevpcarn",
    "aws:sourcevpce",
    "aws:tagkeys",
    "aws:tokenissuetime",
    "aws:useragent",
    "aws:userid",
    "aws:username",
    "aws:viaawsservice",
    "aws:vpcsourceip",
    "s3:accessgrantsinstancearn",
    "s3:accesspointnetworkorigin",
    "s3:authtype",
    "s3:bucketkeyenabled",
    "s3:dataaccesspointaccount",
    "s3:dataaccesspointarn",
    "s3:delimiter",
    "s3:existingjoboperation",
    "s3:existingjobpriority",
    "s3:if-match",
    "s3:if-none-match",
    "s3:inventoryaccessibleoptionalfields",
    "s3:locationconstraint",
    "s3:max-keys",
    "s3:object-lock-legal-hold",
    "s3:object-lock-mode",
    "s3:object-lock-remaining-retention-days",
    "s3:object-lock-retain-until-date",
    "s3:objectcreationoperation",
    "s3:prefix",
    "s3:requestobjecttagkeys",
    "s3:resourceaccount",
    "s3:signatureage",
    "s3:signatureversion",
    "s3:tlsversion",
    "s3:versionid",
    "s3:x-amz-acl",
    "s3:x-amz-content-sha256",
    "s3:x-amz-copy-source",
    "s3:x-amz-grant-full-control",
    "s3:x-amz-grant-read",
    "s3:x-amz-grant-read-acp",
    "s3:x-amz-grant-write",
    "s3:x-amz-grant-write-acp",
    "s3:x-amz-metadata-directive",
    "s3:x-amz-object-ownership",
    "s3:x-amz-server-side-encryption",
    "s3:x-amz-server-side-encryption-aws-kms-key-id",
    "s3:x-amz-server-side-encryption-customer-algorithm",
    "s3:x-amz-storage-class",
    "s3:x-amz-website-redirect-location",
];

/// Beginnings of keys that end with the key of a tag.
const TAGS: &[&str] = &[
    "aws:principaltag/",
    "aws:requesttag/",
    "aws:resourcetag/",
    "s3:existingobjecttag/",
    "s3:requestobjecttag/",
    "s3:buckettag/",
];

/// Beginnings of keys, and those of the actions that have them.
const OF_ACTIONS: &[(&str, &[&str])] = &[
    ("s3:delimiter", &["ListBucket"]),
    ("s3:max-keys", &["ListBucket"]),
    ("s3:prefix", &["ListBucket"]),
    ("s3:x-amz-copy-source", &["PutObject"]),
    ("s3:x-amz-metadata-directive", &["PutObject"]),
    ("s3:x-amz-server-side-encryption", &["PutObject"]),
    ("s3:x-amz-storage-class", &["PutObject"]),
];

/// Keys that tell of a few who ask. A statement for everybody with such a condition is not public.
const NARROW: &[&str] = &[
    "aws:principalaccount",
    "aws:principalarn",
    "aws:principalorgid",
    "aws:principalorgpaths",
    "aws:sourceaccount",
    "aws:sourcearn",
    "aws:sourceowner",
    "aws:sourcevpc",
    "aws:sourcevpce",
    "aws:userid",
    "aws:username",
    "s3:accessgrantsinstancearn",
    "s3:dataaccesspointaccount",
    "s3:dataaccesspointarn",
    "s3:x-amz-server-side-encryption-aws-kms-key-id",
];

/// Whether there is such a key; it is a normal one.
pub(super) fn is_known(key: &str) -> bool {
    KEYS.contains(&key) || TAGS.iter().any(|begin| key.strip_prefix(begin).is_some_and(|tag| !tag.is_empty()))
}

/// Whether requests for this action can have the key.
pub(super) fn apply(key: &str, action: &str) -> bool {
    let found = OF_ACTIONS.iter().find(|(begin, _)| key.starts_with(begin));
    found.is_none_or(|(_, actions)| actions.iter().any(|begin| action.starts_with(begin)))
}

/// Whether one value of the key tells of a few.
pub(super) fn is_narrow(key: &str) -> bool {
    NARROW.contains(&key)
}
