//! Principals of statements: whom they are about.

use s3s::{S3Result, s3_error};

/// The principals of a statement.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Principals {
    Everybody,
    /// These users. Services of AWS are nobody here.
    Users(Vec<String>),
}

impl Principals {
    /// Whether it is about whoever signed a request, if anybody did.
    pub(super) fn include(&self, user: Option<&str>) -> bool {
        match self {
            Self::Everybody => true,
            Self::Users(names) => user.is_some_and(|user| names.iter().any(|name| name == user)),
        }
    }

    /// The principals in lists by their kinds.
    pub(super) fn of(kinds: &[(String, Vec<String>)]) -> S3Result<Self> {
        let mut users = vec![];
        let mut any = false;
        for (kind, names) in kinds {
            for name in names {
                any = true;
                match kind.as_str() {
                    "AWS" if name == "*" => return Ok(Self::Everybody),
                    "AWS" => users.push(user_of(name)?.to_owned()),
                    "CanonicalUser" if !name.is_empty() => users.push(name.clone()),
                    "Service" if name.contains('.') => {}
                    _ => return Err(invalid(name)),
                }
            }
        }
        if any { Ok(Self::Users(users)) } else { Err(invalid("it is empty")) }
    }
}

fn invalid(name: &str) -> s3s::S3Error {
    s3_error!(MalformedPolicy, "Invalid principal in policy: {name}")
}

/// The user that a name stands for: `NAME`, `arn:aws:iam::ANY:user/NAME`, or `arn:aws:iam::NAME:root`,
/// as every user has an account of its own.
fn user_of(name: &str) -> S3Result<&str> {
    let user = match name.strip_prefix("arn:aws:iam::") {
        None => Some(name),
        Some(rest) => match rest.split_once(':') {
            Some((account, "root")) => Some(account),
            Some((_, entity)) => entity.strip_prefix("user/"),
            None => None,
        },
    };
    let possible = |user: &&str| !user.contains(['*', '?', ':', '$']) && !user.is_empty();
    user.filter(possible).ok_or_else(|| invalid(name))
}
