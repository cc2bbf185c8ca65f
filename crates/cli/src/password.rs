//! Addresses of databases, as they may be shown.

use anyhow::Context;

/// An address without its password, to be kept in a file that others may read.
pub(crate) fn without_password(url: &str) -> anyhow::Result<String> {
    let parts = url.split_once("://").filter(|_| !url.contains("password="));
    let (scheme, rest) =
        parts.context("a catalog is named postgres://USER@HOST/DATABASE, with the password in PGPASSWORD")?;
    let host = rest.split(['/', '?']).next().unwrap_or_default().len();
    let Some(at) = rest[..host].rfind('@') else { return Ok(url.to_owned()) };
    let user = rest[..at].split(':').next().unwrap_or_default();
    Ok(format!("{scheme}://{user}{}", &rest[at..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_kept_without_its_password() {
        let kept = |url| without_password(url).ok();
        let plain = Some("postgres://ann@h:5/d?sslmode=disable".to_owned());
        assert_eq!(kept("postgres://ann:hush@h:5/d?sslmode=disable"), plain);
        assert_eq!(kept("postgres://ann:hu@sh@h:5/d?sslmode=disable"), plain);
        assert_eq!(kept("postgres://ann@h:5/d?sslmode=disable"), plain);
        assert_eq!(kept("postgres://h/d"), Some("postgres://h/d".to_owned()));
        assert_eq!(kept("postgres://ann@h/d?password=hush"), None);
        assert_eq!(kept("ann:hush"), None);
    }
}
