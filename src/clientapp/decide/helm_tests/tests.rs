use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde_json::json;

use crate::clientapp::fixtures::{now, settled, want};

use super::*;

#[test]
fn how_long_an_app_has_waited_for_its_tests() {
    let before = |seconds| now() - SignedDuration::from_secs(seconds);
    let failed = |secret: &str, ended: i64, due: Option<i64>| {
        let time = |seconds| Time(before(seconds));
        let (secret, retry_at) = (secret.to_owned(), due.map(time));
        Some(Tested { secret, ended_at: Some(time(ended)), retry_at, ..Tested::default() })
    };
    for (what, written, test, expected) in [
        ("a new revision", Some(60), None, 60),
        ("the tests of the one before", Some(60), failed("revision-2", 40, None), 60),
        ("tests that are due again", Some(600), failed("revision-3", 40, Some(10)), 10),
        ("tests that a user repeats", Some(600), failed("revision-3", 40, None), 40),
        ("nothing is known", None, None, 0),
    ] {
        let mut observed = settled(&want(&json!({"hostname": "acme.example"})));
        observed.recorded.test = test;
        observed.release.as_mut().unwrap().created_at = written.map(before);
        assert_eq!(queued_for(&observed, now()), SignedDuration::from_secs(expected), "{what}");
    }
}
