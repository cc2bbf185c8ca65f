//! Which requests a plain HTTP port allows. A browser on this machine reaches it for any page that it shows, and a page whose
//! name points here now is of the same origin for it; so a request has to name this gateway, and must not come from
//! another's page.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use axum::extract::{Request, State};
use axum::http::{HeaderMap, Method, StatusCode, Uri, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Failure;

/// What decides which requests are allowed.
#[derive(Debug)]
pub(crate) struct HostCheck {
    /// Hosts that are this gateway, beside addresses and `localhost`.
    pub(crate) names: Vec<String>,
    /// The file in which more of them can be written.
    pub(crate) names_in: Option<&'static str>,
}

/// Answers a request, or refuses it.
pub(super) async fn guard(State(check): State<Arc<HostCheck>>, request: Request, next: Next) -> Response {
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    if let Err(why) = check.check_host(uri, headers).and_then(|host| check_page(method, uri, headers, &host)) {
        return Failure(StatusCode::FORBIDDEN, why).into_response();
    }
    next.run(request).await
}

impl HostCheck {
    /// The host that a request names, which must be this gateway.
    fn check_host(&self, uri: &Uri, headers: &HeaderMap) -> Result<String, String> {
        let names = headers.get_all(header::HOST).iter().map(|host| host.to_str().unwrap_or_default());
        let mut hosts = names.chain(uri.authority().map(axum::http::uri::Authority::as_str));
        let host = hosts.next().ok_or("the request has no Host header: name the gateway in it")?.to_ascii_lowercase();
        if hosts.any(|other| !other.eq_ignore_ascii_case(&host)) {
            return Err("the request names several hosts: name the gateway alone".to_owned());
        }
        let name = s3::without_port(&host);
        let address = name.parse::<Ipv4Addr>().is_ok()
            || name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).is_some_and(is_ipv6);
        if address || name == "localhost" || self.names.iter().any(|known| known.eq_ignore_ascii_case(name)) {
            return Ok(host);
        }
        let or = match self.names_in {
            Some(file) => format!("write names = [{name:?}] into its {file} and start it again"),
            None => "by the name of its machine".to_owned(),
        };
        Err(format!("{name:?} is not known to be whom you ask: ask by the address, or {or}"))
    }
}

fn is_ipv6(text: &str) -> bool {
    text.parse::<Ipv6Addr>().is_ok()
}

/// Refuses what a page of another origin asks; `host` is the gateway's. A link to the status page may be followed.
fn check_page(method: &Method, uri: &Uri, headers: &HeaderMap, host: &str) -> Result<(), String> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let refuse = |origin: &str| {
        Err(format!(
            "a page of {origin} may not ask this gateway: open the gateway's own page; a proxy in front of it has to pass on \
             the Host header, with a name that is among names in gateway.toml"
        ))
    };
    if let Some(origin) = text("origin") {
        let from = origin.split_once("://").map(|(_, from)| from.to_ascii_lowercase());
        if from.is_none_or(|from| usual(&from) != usual(host)) {
            return refuse(&format!("{origin:?}"));
        }
    }
    let followed = *method == Method::GET
        && uri.path() == "/"
        && text("sec-fetch-mode") == Some("navigate")
        && text("sec-fetch-dest") == Some("document");
    match text("sec-fetch-site") {
        None | Some("same-origin" | "none") => Ok(()),
        Some(_) if followed => Ok(()),
        Some(_) => refuse("another origin"),
    }
}

/// A host without its port, where that is the default.
fn usual(host: &str) -> &str {
    host.strip_suffix(":80").or_else(|| host.strip_suffix(":443")).unwrap_or(host)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test that cannot go on should stop")]

    use super::*;

    fn check(method: &str, uri: &str, headers: &[(&'static str, &str)]) -> Result<(), String> {
        let check = HostCheck { names: vec!["gw.Example.org".to_owned()], names_in: Some("gateway.toml") };
        let headers: HeaderMap =
            headers.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect();
        let (method, uri) = (method.parse().unwrap(), uri.parse().unwrap());
        check.check_host(&uri, &headers).and_then(|host| check_page(&method, &uri, &headers, &host))
    }

    #[test]
    fn a_host_is_an_address_or_a_known_name() {
        for host in [
            "127.0.0.1:9000",
            "10.1.2.3",
            "[::1]:9000",
            "[::1]",
            "[FD00::1]:9000",
            "localhost:9000",
            "LocalHost",
            "GW.example.org:1",
        ] {
            check("GET", "/metrics", &[("host", host)]).unwrap();
        }
        for host in [
            "evil.example",
            "evil.example:9000",
            "127.0.0.1.evil.example",
            "localhost.evil.example",
            "",
            "::1",
            "1",
            "[::1",
            "[::1].evil.example",
            "[evil.example]:80",
        ] {
            let why = check("GET", "/", &[("host", host)]).unwrap_err();
            assert!(why.contains("names = "), "{host}: {why}");
        }
        assert!(check("GET", "/", &[]).is_err());
        check("GET", "http://127.0.0.1/", &[]).unwrap();
        assert!(check("GET", "http://evil.example/", &[("host", "127.0.0.1")]).is_err());
    }

    #[test]
    fn a_page_is_of_this_origin() {
        let host = ("host", "127.0.0.1:9000");
        check("GET", "/v1/live", &[host, ("origin", "http://127.0.0.1:9000"), ("sec-fetch-site", "same-origin")])
            .unwrap();
        check("GET", "/", &[("host", "gw.example.org"), ("origin", "https://gw.example.org:443")]).unwrap();
        check("GET", "/", &[host, ("sec-fetch-site", "none")]).unwrap();
        let link =
            [host, ("sec-fetch-site", "cross-site"), ("sec-fetch-mode", "navigate"), ("sec-fetch-dest", "document")];
        check("GET", "/", &link).unwrap();
        assert!(check("GET", "/v1/status", &link).is_err() && check("POST", "/", &link).is_err());
        for origin in ["http://evil.example", "null", "http://127.0.0.1:9001", "http://127.0.0.1", "127.0.0.1:9000"] {
            let why = check("GET", "/metrics", &[host, ("origin", origin)]).unwrap_err();
            assert!(why.contains("gateway.toml"), "{origin}: {why}");
        }
        let six = ("host", "[fd00::1]:9000");
        check("GET", "/", &[six, ("origin", "http://[FD00::1]:9000"), ("sec-fetch-site", "same-origin")]).unwrap();
        for origin in ["http://[fd00::1]:9001", "http://[fd00::2]:9000", "http://[fd00::1:9000]", "http://fd00::1:9000"]
        {
            check("GET", "/", &[six, ("origin", origin)]).unwrap_err();
        }
        // Its last group is no port.
        check("GET", "/", &[("host", "[fd00::80]"), ("origin", "http://[fd00::80]:80")]).unwrap();
        check("GET", "/", &[("host", "[fd00::80]"), ("origin", "http://[fd00:")]).unwrap_err();
        for site in ["cross-site", "same-site", "anything"] {
            check("GET", "/metrics", &[host, ("sec-fetch-site", site)]).unwrap_err();
        }
    }
}
