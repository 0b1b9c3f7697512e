//! Parses the body of a POST strictly. Pure. Values from it are never repeated in an answer.

use axum::{
    body::Bytes,
    http::{HeaderMap, StatusCode, header},
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::problem::Problem;
use crate::crd::decode_strictly;

/// The request, and its body as JSON.
/// 415 if it is not declared as JSON, 400 if it is not JSON, 422 with the field if it does not fit.
pub(crate) fn read<T: DeserializeOwned>(headers: &HeaderMap, body: &Bytes) -> Result<(T, Value), Problem> {
    if !is_json(headers) {
        let detail = "send the request as JSON, with the header Content-Type: application/json";
        return Err(Problem::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "UnsupportedMediaType", detail));
    }
    let malformed = |problem: String| {
        Problem::new(StatusCode::BAD_REQUEST, "Malformed", format!("the body is not valid JSON: {problem}"))
    };
    let text = std::str::from_utf8(body)
        .map_err(|error| malformed(format!("not UTF-8 from byte {} on", error.valid_up_to() + 1)))?;
    let json: Value = serde_json::from_str(text).map_err(|error| malformed(error.to_string()))?;
    if !json.is_object() {
        return Err(malformed("an object such as {} or {\"name\": \"acme\"} is expected".to_owned()));
    }
    let (request, unknown) = decode_strictly::<T>(text).map_err(|problem| unfit(&problem))?;
    // The type accepts both, because Kubernetes objects have them; a request has not.
    let of_objects = ["apiVersion", "kind"].into_iter().filter(|field| json.get(field).is_some());
    match unknown.iter().map(String::as_str).chain(of_objects).next() {
        // The path marks optional fields with a question mark.
        Some(field) => {
            Err(invalid(&field.replace(".?", ""), "there is no such field; the fields are listed at /openapi.json"))
        }
        None => Ok((request, json)),
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let declared = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
    declared.split(';').next().unwrap_or_default().trim().eq_ignore_ascii_case("application/json")
}

/// A field of the wrong type, from a sentence `field: problem`.
fn unfit(sentence: &str) -> Problem {
    match sentence.split_once(": ") {
        Some((field, problem)) if !field.contains(' ') => invalid(field, &without_value(problem)),
        // An error of the top level has no path, and names a field.
        _ => invalid(sentence.split('`').nth(1).unwrap_or_default(), &without_value(sentence)),
    }
}

fn invalid(field: &str, problem: &str) -> Problem {
    Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "InvalidRequest", format!("{field}: {problem}")).about(field)
}

/// serde quotes strings of the wrong type.
fn without_value(problem: &str) -> String {
    let quoted = problem.split_once("string \"").zip(problem.rsplit_once("\", expected "));
    match quoted {
        Some(((before, _), (_, expected))) => format!("{before}a string, expected {expected}"),
        None => problem.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;
    use crate::api::dto::NewInstance;

    fn refusal(content_type: Option<&'static str>, body: &'static [u8]) -> Option<(u16, Option<String>, String)> {
        let headers = content_type.map(|value| (header::CONTENT_TYPE, HeaderValue::from_static(value)));
        let headers = headers.into_iter().collect();
        let problem = read::<NewInstance>(&headers, &Bytes::from_static(body)).err()?;
        let field = serde_json::to_value(&problem).unwrap()["field"].as_str().map(str::to_owned);
        Some((problem.status().as_u16(), field, problem.detail.to_owned()))
    }

    #[test]
    fn bodies() {
        const JSON: Option<&str> = Some("application/json");
        for (content_type, body, expected) in [
            (JSON, &br#"{"hostname":"a.example"}"#[..], None),
            (Some("Application/JSON; charset=utf-8"), br#"{"hostname":"a.example"}"#, None),
            (JSON, br#"{"hostname":"a.example","name":null,"postgres":{"version":"16"}}"#, None),
            (None, br#"{"hostname":"a.example"}"#, Some((415, None, "Content-Type: application/json"))),
            (Some("text/plain"), b"{}", Some((415, None, "Content-Type"))),
            (JSON, b"", Some((400, None, "line 1 column 0"))),
            (JSON, b"{\"hostname\":\n nope}", Some((400, None, "line 2 column 3"))),
            (JSON, b"\xff{}", Some((400, None, "UTF-8 from byte 1"))),
            (JSON, b"[]", Some((400, None, "an object"))),
            (JSON, b"{}", Some((422, Some("hostname"), "missing field `hostname`"))),
            (JSON, br#"{"hostname":7}"#, Some((422, Some("hostname"), "expected a string"))),
            (JSON, br#"{"hostname":"a","hostnaem":1}"#, Some((422, Some("hostnaem"), "no such field"))),
            (JSON, br#"{"hostname":"a","redis":{"enabld":true}}"#, Some((422, Some("redis.enabld"), "no such field"))),
            (
                JSON,
                br#"{"hostname":"a","postgres":{"instances":"s3cret"}}"#,
                Some((422, Some("postgres.instances"), "invalid type: a string, expected i32")),
            ),
            (JSON, br#"{"hostname":"a","kind":"ClientApp"}"#, Some((422, Some("kind"), "no such field"))),
            (JSON, br#"{"hostname":"a","hostname":"b"}"#, Some((422, Some("hostname"), "duplicate field"))),
        ] {
            let shown = String::from_utf8_lossy(body).into_owned();
            let found = refusal(content_type, body);
            match (found, expected) {
                (None, None) => {}
                (Some((status, field, detail)), Some((wanted, wanted_field, sentence))) => {
                    assert_eq!((status, field.as_deref()), (wanted, wanted_field), "{shown}: {detail}");
                    assert!(detail.contains(sentence) && !detail.contains("s3cret"), "{shown}: {detail}");
                }
                (found, expected) => panic!("{shown}: {found:?}, not {expected:?}"),
            }
        }
    }
}
