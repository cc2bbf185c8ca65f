//! Requests that browsers send for web pages of other origins.

use http::{HeaderMap, StatusCode};
use s3s::{Body, HttpResponse};

use super::address::Address;
use super::host::Domain;
use crate::ops::cors;
use crate::rules::cors::{BrowserRequest, Rule};
use crate::rules::error::{escaped, plain, with_element};
use crate::state::State;

/// The rule that allows the request of a page, if one does.
pub(crate) async fn rule_for(state: &State, bucket: Option<String>, page: &BrowserRequest) -> Option<Rule> {
    let bucket = bucket?;
    let rules = state.blocking(move |state| cors::rules_of(state, &bucket)).await.ok().flatten()?;
    rules.into_iter().find(|rule| rule.allows(page))
}

/// The answer to a preflight request.
pub(crate) async fn preflight(
    state: &State,
    address: &Address,
    domain: Option<&Domain>,
    headers: &HeaderMap,
) -> HttpResponse {
    let page = match BrowserRequest::of_preflight(headers) {
        Ok(page) => page,
        Err(why) => return plain(StatusCode::BAD_REQUEST, "BadRequest", &escaped(&why)),
    };
    let bucket = address.bucket(domain).unwrap_or_default();
    let why = match state.blocking(move |state| cors::rules_of(state, &bucket)).await {
        Ok(None) => "CORSResponse: Bucket not found",
        Ok(Some(rules)) if rules.is_empty() => "CORSResponse: CORS is not enabled for this bucket.",
        Ok(Some(rules)) => {
            if let Some(rule) = rules.into_iter().find(|rule| rule.allows(&page)) {
                let mut answer = HttpResponse::new(Body::empty());
                page.add_headers(&rule, answer.headers_mut());
                return answer;
            }
            "CORSResponse: This CORS request is not allowed. No rule of the bucket has this origin with this method and \
             these headers."
        }
        Err(_) => return plain(StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable", "the rules cannot be read now"),
    };
    let kind = address.kind(domain);
    let element = format!("<Method>{}</Method><ResourceType>{kind}</ResourceType>", page.method);
    with_element(StatusCode::FORBIDDEN, "AccessForbidden", why, &element)
}
