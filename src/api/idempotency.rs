//! `Idempotency-Key`: a repeated POST creates no second instance. Keys are stored as annotations in the cluster, so they hold for all
//! replicas and across restarts. Pure.

use std::collections::BTreeMap;

use axum::http::{HeaderMap, StatusCode};

use super::{auth::User, names, problem::Problem};
use crate::platform::key::{digest, sha256};

const HEADER: &str = "idempotency-key";
/// On the created objects: digest of user and key.
const KEY: &str = "apps.bnerd-operator.local/idempotency-key";
/// On the created objects: digest of the body.
const REQUEST: &str = "apps.bnerd-operator.local/request";
const LENGTH: std::ops::RangeInclusive<usize> = 1..=255;

/// Identifies a request on the objects that it creates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestStamp {
    /// Distinguishes requests with this key from all others.
    pub(crate) key: String,
    request: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Match {
    /// Created by an earlier attempt of this request.
    Same,
    /// Created with the same key for a different request.
    Reused,
    /// Unrelated to this request.
    Other,
}

impl RequestStamp {
    /// The stamp of a request that has a key. `body` is parsed, so whitespace and the order of fields do not count.
    /// 422 for an invalid key.
    pub fn of(headers: &HeaderMap, user: &User, body: &serde_json::Value) -> Result<Option<RequestStamp>, Problem> {
        let mut given = headers.get_all(HEADER).iter();
        let Some(key) = given.next() else { return Ok(None) };
        let key = key.as_bytes();
        if given.next().is_some() || !LENGTH.contains(&key.len()) || !key.iter().all(u8::is_ascii_graphic) {
            let detail = "Idempotency-Key: must be given once, as 1 to 255 visible ASCII characters, such as a UUID";
            return Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "InvalidIdempotencyKey", detail)
                .about("Idempotency-Key"));
        }
        Ok(Some(RequestStamp {
            key: digest(&[user.name.as_bytes(), key]),
            request: digest(&[body.to_string().as_bytes()]),
        }))
    }

    pub(crate) fn on(annotations: Option<&BTreeMap<String, String>>) -> Option<RequestStamp> {
        let annotations = annotations?;
        Some(RequestStamp { key: annotations.get(KEY)?.clone(), request: annotations.get(REQUEST)?.clone() })
    }

    /// The annotations to set on created objects.
    pub fn annotations(&self) -> BTreeMap<String, String> {
        BTreeMap::from([(KEY.to_owned(), self.key.clone()), (REQUEST.to_owned(), self.request.clone())])
    }

    /// Relates this stamp to the one on an object.
    pub(crate) fn compare(&self, found: Option<&RequestStamp>) -> Match {
        match found {
            Some(found) if found == self => Match::Same,
            Some(found) if found.key == self.key => Match::Reused,
            _ => Match::Other,
        }
    }

    /// The instance's name if the request has none: the same on every replica, and different for each attempt.
    pub fn name(&self, attempt: u32) -> String {
        names::derived(&sha256(&[self.key.as_bytes(), &attempt.to_be_bytes()]))
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use serde_json::json;

    use super::*;

    fn stamp(user: &str, key: &str, body: &str) -> Result<Option<RequestStamp>, Problem> {
        let mut headers = HeaderMap::new();
        headers.insert(HEADER, HeaderValue::from_str(key).unwrap());
        let user = User { name: user.to_owned(), ..User::default() };
        RequestStamp::of(&headers, &user, &serde_json::from_str(body).unwrap())
    }

    #[test]
    fn a_stamp_is_of_user_key_and_body() {
        let body = r#"{"hostname": "a.example", "name": "a"}"#;
        let first = stamp("jo", "k", body).unwrap().unwrap();
        for (user, key, body, expected) in [
            ("jo", "k", r#"{"name":"a",   "hostname":"a.example"}"#, Match::Same),
            ("jo", "k", r#"{"hostname": "b.example"}"#, Match::Reused),
            ("jo", "l", body, Match::Other),
            ("mo", "k", body, Match::Other),
            ("j", "ok", body, Match::Other),
        ] {
            let other = stamp(user, key, body).unwrap().unwrap();
            assert_eq!(first.compare(Some(&other)), expected, "{user} {key} {body}");
            assert_eq!(first.name(0) == other.name(0), expected != Match::Other);
        }
        assert_ne!(first.name(0), first.name(1));
        assert_eq!(RequestStamp::on(Some(&first.annotations())), Some(first.clone()));
        assert_eq!(first.compare(None), Match::Other);
    }

    #[test]
    fn what_is_no_key_is_refused() {
        for key in ["", "a b", &"k".repeat(256)] {
            assert_eq!(stamp("jo", key, "{}").unwrap_err().status(), StatusCode::UNPROCESSABLE_ENTITY, "{key}");
        }
        assert!(stamp("jo", &"k".repeat(255), "{}").unwrap().is_some());
        let none = RequestStamp::of(&HeaderMap::new(), &User { name: "jo".into(), ..User::default() }, &json!({}));
        assert_eq!(none.unwrap(), None);
    }
}
