//! CORS rules: what web pages of another origin may do with a bucket.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderName, HeaderValue, Method};
use s3s::dto::CORSRule;
use s3s::{S3ErrorCode, S3Result, s3_error};
use serde::{Deserialize, Serialize};

/// The attribute of a bucket that has its rules.
pub(crate) const CORS: &str = "cors";
/// Rules of a bucket, as in S3.
const MOST: usize = 100;
const METHODS: [&str; 5] = ["GET", "PUT", "POST", "DELETE", "HEAD"];

/// One rule, as it is stored.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rule {
    id: Option<String>,
    origins: Vec<String>,
    methods: Vec<String>,
    headers: Vec<String>,
    expose: Vec<String>,
    max_age: Option<i32>,
}

/// Whether `text` matches `pattern`, which may have one `*`.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((begin, end)) => text.len() >= begin.len() + end.len() && text.starts_with(begin) && text.ends_with(end),
    }
}

impl Rule {
    /// Whether it allows the request.
    pub(crate) fn allows(&self, page: &BrowserRequest) -> bool {
        let header = |name: &String| self.headers.iter().any(|pattern| fits(&pattern.to_ascii_lowercase(), name));
        self.origins.iter().any(|pattern| fits(pattern, &page.origin))
            && self.methods.contains(&page.method)
            && page.headers.iter().all(header)
    }

    /// For an answer.
    pub(crate) fn into_dto(self) -> CORSRule {
        let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
        CORSRule {
            id: self.id,
            allowed_origins: self.origins,
            allowed_methods: self.methods,
            allowed_headers: some(self.headers),
            expose_headers: some(self.expose),
            max_age_seconds: self.max_age,
        }
    }

    /// Sets the headers of an answer to a page of this origin.
    fn answer(&self, origin: &str, answer: &mut HeaderMap) {
        let any = self.origins.iter().any(|pattern| pattern == "*");
        let value = |text: &str| HeaderValue::from_str(text).ok();
        let mut set = |name, text: Option<HeaderValue>| {
            if let Some(text) = text {
                answer.insert(name, text);
            }
        };
        set(ACCESS_CONTROL_ALLOW_ORIGIN, value(if any { "*" } else { origin }));
        set(ACCESS_CONTROL_ALLOW_METHODS, value(&self.methods.join(", ")));
        if !any {
            set(ACCESS_CONTROL_ALLOW_CREDENTIALS, value("true"));
        }
        if !self.expose.is_empty() {
            set(ACCESS_CONTROL_EXPOSE_HEADERS, value(&self.expose.join(", ")));
        }
        set(ACCESS_CONTROL_MAX_AGE, self.max_age.and_then(|age| value(&age.to_string())));
        set(VARY, value("Origin, Access-Control-Request-Headers, Access-Control-Request-Method"));
    }
}

/// What a browser says of the page behind a request.
#[derive(Clone, Debug)]
pub(crate) struct BrowserRequest {
    origin: String,
    pub(crate) method: String,
    headers: Vec<String>,
}

impl BrowserRequest {
    /// From the headers of a request, if a browser sent it for a page.
    pub(crate) fn of(method: &Method, headers: &HeaderMap) -> Option<Self> {
        let origin = text(headers, &ORIGIN)?.to_owned();
        let method = text(headers, &ACCESS_CONTROL_REQUEST_METHOD).unwrap_or(method.as_str()).to_owned();
        Some(Self { origin, method, headers: vec![] })
    }

    /// From the headers of a preflight request, which only asks what is allowed.
    ///
    /// # Errors
    /// What is missing.
    pub(crate) fn of_preflight(headers: &HeaderMap) -> Result<Self, String> {
        let origin = text(headers, &ORIGIN).ok_or("Insufficient information. Origin request header needed.")?;
        let method = text(headers, &ACCESS_CONTROL_REQUEST_METHOD).filter(|method| METHODS.contains(method));
        let method = method.ok_or_else(|| {
            let given = text(headers, &ACCESS_CONTROL_REQUEST_METHOD).unwrap_or("null");
            format!("Invalid Access-Control-Request-Method: {given}")
        })?;
        let names = text(headers, &ACCESS_CONTROL_REQUEST_HEADERS).unwrap_or_default().split(',');
        let names = names.map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty());
        Ok(Self { origin: origin.to_owned(), method: method.to_owned(), headers: names.collect() })
    }

    /// Adds what the page may do by this rule to an answer.
    pub(crate) fn add_headers(&self, rule: &Rule, answer: &mut HeaderMap) {
        rule.answer(&self.origin, answer);
        if !self.headers.is_empty()
            && let Ok(value) = HeaderValue::from_str(&self.headers.join(", "))
        {
            answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, value);
        }
    }
}

fn text<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Option<&'a str> {
    headers.get(name).and_then(|value| value.to_str().ok())
}

/// The rules in a request, when they are valid.
pub(crate) fn from_dto(asked: Vec<CORSRule>) -> S3Result<Vec<Rule>> {
    if asked.is_empty() || asked.len() > MOST {
        return Err(S3ErrorCode::MalformedXML.into());
    }
    let rules = asked.into_iter().map(|rule| Rule {
        id: rule.id,
        origins: rule.allowed_origins,
        methods: rule.allowed_methods,
        headers: rule.allowed_headers.unwrap_or_default(),
        expose: rule.expose_headers.unwrap_or_default(),
        max_age: rule.max_age_seconds,
    });
    let rules: Vec<Rule> = rules.collect();
    for rule in &rules {
        if let Some(method) = rule.methods.iter().find(|method| !METHODS.contains(&method.as_str())) {
            return Err(s3_error!(InvalidRequest, "{method:?} is no method that a rule can allow"));
        }
        if rule.origins.iter().chain(&rule.headers).any(|pattern| pattern.matches('*').count() > 1) {
            return Err(s3_error!(InvalidRequest, "an origin or a header can have one *"));
        }
    }
    Ok(rules)
}

/// The rules that are stored.
pub(crate) fn rules(kept: Option<&String>) -> S3Result<Vec<Rule>> {
    kept.map_or(Ok(vec![]), |text| serde_json::from_str(text).map_err(|e| s3_error!(InternalError, "{e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_preflight_names_its_origin_and_a_method() {
        let asks = |pairs: &[(HeaderName, &'static str)]| {
            let headers = pairs.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value)));
            BrowserRequest::of_preflight(&headers.collect()).map(|page| (page.method, page.headers))
        };
        let (origin, method) = (ORIGIN, ACCESS_CONTROL_REQUEST_METHOD);
        assert!(asks(&[]).is_err_and(|why| why.contains("Origin request header needed")));
        assert!(asks(&[(origin.clone(), "a")]).is_err_and(|why| why.ends_with("null")));
        assert!(asks(&[(origin.clone(), "a"), (method.clone(), "get")]).is_err_and(|why| why.ends_with("get")));
        let names = vec!["x-a".to_owned(), "x-b".to_owned()];
        let full = [(origin, "a"), (method, "PUT"), (ACCESS_CONTROL_REQUEST_HEADERS, "X-A, x-b,")];
        assert_eq!(asks(&full), Ok(("PUT".to_owned(), names)));
    }

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, text) in [("*", ""), ("*", "http://a"), ("http://*.a", "http://x.a"), ("a", "a"), ("a*", "a")] {
            assert!(fits(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in [("a", "b"), ("http://*.a", "http://x.b"), ("ab*ba", "aba"), ("", "a")] {
            assert!(!fits(pattern, text), "{pattern} {text}");
        }
    }
}
