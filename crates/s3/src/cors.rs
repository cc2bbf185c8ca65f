//! CORS: what a browser's page of another origin may do with a bucket.

use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE, ACCESS_CONTROL_REQUEST_HEADERS,
    ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use s3s::dto::*;
use s3s::{Body, HttpResponse, S3ErrorCode, S3Result, s3_error};
use serde::{Deserialize, Serialize};

use crate::error;
use crate::face::Face;
use crate::who::Who;

/// The attribute of a bucket that has its rules.
const CORS: &str = "cors";
/// Rules of a bucket, as in S3.
const MOST: usize = 100;
const METHODS: [&str; 5] = ["GET", "PUT", "POST", "DELETE", "HEAD"];

/// One rule, as it is kept.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rule {
    id: Option<String>,
    origins: Vec<String>,
    methods: Vec<String>,
    headers: Vec<String>,
    expose: Vec<String>,
    max_age: Option<i32>,
}

/// Whether `text` is what `pattern` says, which may have one `*`.
fn fits(pattern: &str, text: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == text,
        Some((begin, end)) => text.len() >= begin.len() + end.len() && text.starts_with(begin) && text.ends_with(end),
    }
}

impl Rule {
    fn allows(&self, origin: &str, method: &str, headers: &[String]) -> bool {
        let header = |name: &String| self.headers.iter().any(|pattern| fits(&pattern.to_ascii_lowercase(), name));
        self.origins.iter().any(|pattern| fits(pattern, origin))
            && self.methods.iter().any(|allowed| allowed == method)
            && headers.iter().all(header)
    }

    /// What an answer to a page of this origin says.
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

/// What a browser said of the page that asks.
#[derive(Clone, Debug)]
pub(crate) struct Page {
    origin: String,
    method: String,
    headers: Vec<String>,
    /// Whether it only asks what it may.
    pub(crate) preflight: bool,
}

impl Page {
    /// The page behind a request, if a browser says that there is one.
    pub(crate) fn of(method: &Method, headers: &HeaderMap) -> Option<Self> {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
        let origin = text(ORIGIN)?.to_owned();
        let preflight = method == Method::OPTIONS;
        let method = if preflight { text(ACCESS_CONTROL_REQUEST_METHOD)? } else { method.as_str() }.to_owned();
        let asked = text(ACCESS_CONTROL_REQUEST_HEADERS).filter(|_| preflight).unwrap_or_default();
        let headers = asked.split(',').map(|name| name.trim().to_ascii_lowercase()).filter(|name| !name.is_empty());
        Some(Self { origin, method, headers: headers.collect(), preflight })
    }

    /// Tells the page what it may do with the answer.
    pub(crate) fn tell(&self, rule: Option<&Rule>, answer: &mut HeaderMap) {
        if let Some(rule) = rule {
            rule.answer(&self.origin, answer);
            if self.preflight
                && !self.headers.is_empty()
                && let Ok(value) = HeaderValue::from_str(&self.headers.join(", "))
            {
                answer.insert(ACCESS_CONTROL_ALLOW_HEADERS, value);
            }
        }
    }

    /// The answer to a page that only asks.
    pub(crate) fn preflight(&self, rule: Option<&Rule>) -> HttpResponse {
        let mut answer = HttpResponse::new(Body::empty());
        if rule.is_none() {
            *answer.status_mut() = StatusCode::FORBIDDEN;
        }
        self.tell(rule, answer.headers_mut());
        answer
    }
}

impl Face {
    /// The first rule of a bucket that lets the page do what it asks for. Blocks.
    pub(crate) fn cors_rule(&self, bucket: &str, page: &Page) -> S3Result<Option<Rule>> {
        let Some(row) = self.objects.catalog().bucket(bucket).map_err(error::catalog)? else { return Ok(None) };
        let rules = rules(row.record.attributes.get(CORS))?;
        Ok(rules.into_iter().find(|rule| rule.allows(&page.origin, &page.method, &page.headers)))
    }

    pub(crate) fn do_put_bucket_cors(&self, who: &Who, input: PutBucketCorsInput) -> S3Result<PutBucketCorsOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        let given = input.cors_configuration.cors_rules;
        if given.is_empty() || given.len() > MOST {
            return Err(S3ErrorCode::MalformedXML.into());
        }
        let rules: Vec<Rule> = given
            .into_iter()
            .map(|rule| Rule {
                id: rule.id,
                origins: rule.allowed_origins,
                methods: rule.allowed_methods,
                headers: rule.allowed_headers.unwrap_or_default(),
                expose: rule.expose_headers.unwrap_or_default(),
                max_age: rule.max_age_seconds,
            })
            .collect();
        for rule in &rules {
            if let Some(method) = rule.methods.iter().find(|method| !METHODS.contains(&method.as_str())) {
                return Err(s3_error!(InvalidRequest, "{method:?} is no method that a rule can allow"));
            }
            if rule.origins.iter().chain(&rule.headers).any(|pattern| pattern.matches('*').count() > 1) {
                return Err(s3_error!(InvalidRequest, "an origin or a header can have one *"));
            }
        }
        let text = serde_json::to_string(&rules).map_err(|e| s3_error!(InternalError, "{e}"))?;
        self.set_bucket(&bucket, CORS, Some(text))?;
        Ok(PutBucketCorsOutput::default())
    }

    pub(crate) fn do_get_bucket_cors(&self, who: &Who, input: GetBucketCorsInput) -> S3Result<GetBucketCorsOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        let rules = rules(bucket.record.attributes.get(CORS))?;
        if rules.is_empty() {
            return Err(S3ErrorCode::NoSuchCORSConfiguration.into());
        }
        let some = |list: Vec<String>| (!list.is_empty()).then_some(list);
        let rules = rules.into_iter().map(|rule| CORSRule {
            id: rule.id,
            allowed_origins: rule.origins,
            allowed_methods: rule.methods,
            allowed_headers: some(rule.headers),
            expose_headers: some(rule.expose),
            max_age_seconds: rule.max_age,
        });
        Ok(GetBucketCorsOutput { cors_rules: Some(rules.collect()) })
    }

    pub(crate) fn do_delete_bucket_cors(
        &self,
        who: &Who,
        input: DeleteBucketCorsInput,
    ) -> S3Result<DeleteBucketCorsOutput> {
        let bucket = self.bucket(&input.bucket, who, "")?;
        self.set_bucket(&bucket, CORS, None)?;
        Ok(DeleteBucketCorsOutput::default())
    }
}

fn rules(kept: Option<&String>) -> S3Result<Vec<Rule>> {
    kept.map_or(Ok(vec![]), |text| serde_json::from_str(text).map_err(|e| s3_error!(InternalError, "{e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

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
