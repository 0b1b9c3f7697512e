use k8s_openapi::api::core::v1::Secret;
use serde_json::{Value, json};

use super::*;
use crate::{
    crd::Restore,
    platform::{fake::of, job::MAX_MESSAGE},
};

#[test]
fn owner_of_an_object() {
    let owned = |kind: &str| json!([{"apiVersion": "v1", "kind": kind, "name": "x", "uid": "u", "controller": true}]);
    for (metadata, expected) in [
        (json!({}), Err("no owner that the operator knows")),
        (json!({"ownerReferences": owned("Postgresql")}), Ok("u")),
        (json!({"ownerReferences": owned("ReplicaSet")}), Err("ReplicaSet x")),
        (json!({"labels": {label::RETAINED_FROM: "db"}}), Err("no owner, since it was retained from db,")),
        // Handed over.
        (json!({"labels": {label::RETAINED_FROM: "db", label::POSTGRESQL_UID: "v"}}), Ok("v")),
        (json!({"labels": {label::POSTGRESQL_UID: "v"}, "ownerReferences": owned("StatefulSet")}), Ok("v")),
    ] {
        let secret: Secret = of(json!({"metadata": metadata.clone()}));
        let found = whose(&secret);
        assert_eq!(found.as_deref().map_err(String::as_str), expected, "{metadata}");
    }
}

#[test]
fn reasons_of_pods_that_are_not_ready() {
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    let pulling = json!({"containerStatuses": [{
        "name": "postgres", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
        "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}},
    }]});
    let pulls = "container postgres cannot pull image x: see `kubectl describe pod -n ns db-0`";
    let unschedulable = json!({"conditions": [{"type": "PodScheduled", "status": "False", "message": "no node"}]});
    for (metadata, status, expected) in [
        (json!({}), ready.clone(), None),
        (json!({"deletionTimestamp": "2026-01-01T00:00:00Z"}), ready, Some("it is being deleted")),
        (json!({"name": "db-0", "namespace": "ns"}), pulling, Some(pulls)),
        (json!({}), unschedulable, Some("it is not scheduled: no node")),
        (json!({}), Value::Null, Some("it is not ready yet")),
    ] {
        let pod: Pod = of(json!({"metadata": metadata, "status": status}));
        assert_eq!(waiting(&pod).as_deref(), expected);
    }
}

/// A dump that was not fetched cannot be restored; a failure of any other init container is a different matter.
#[test]
fn a_failed_fetch_is_a_refused_dump() {
    for (init, code, expected) in [("fetch", 1, Some(ScriptRefusal::Dump)), ("fetch", 0, None), ("dump", 1, None)] {
        let state = json!({"terminated": {"exitCode": code, "message": "error: the storage refuses it\n"}});
        let container = |name: &str, state: Value| json!([{"name": name, "image": "x", "imageID": "", "ready": false, "restartCount": 0, "state": state}]);
        let status = json!({
            "initContainerStatuses": container(init, state),
            "containerStatuses": container("initialize", json!({"waiting": {"reason": "PodInitializing"}})),
        });
        let pod: Pod = of(json!({"metadata": {}, "status": status}));
        assert_eq!(refused(&pod), expected);
        assert_eq!(failure_line(&pod).as_deref(), (code != 0).then_some("the storage refuses it"));
    }
}

#[test]
fn script_refusals() {
    let ended = |code: i32| json!({"terminated": {"exitCode": code, "message": "as it is\n"}});
    let ready = json!([{"type": "Ready", "status": "True"}]);
    let killed = json!({"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "x"}});
    let looping = json!({"waiting": {"reason": "CrashLoopBackOff"}});
    let ends =
        |code: i32| format!("container postgres ends with exit code {code}: see `kubectl logs -n ns db-0 -c postgres`");
    let out_of_memory = "it was killed for using more memory than its limit (OOMKilled): see spec.resources.limits";
    for (conditions, state, last_state, expected, waiting) in [
        (json!([]), ended(71), json!({}), Some(ScriptRefusal::NoDatabase), Some("as it is")),
        (json!([]), looping.clone(), ended(72), Some(ScriptRefusal::OtherVersion), Some("as it is")),
        (json!([]), looping.clone(), ended(1), None, Some("it has ended with exit code 1: as it is")),
        // It was restarted and may succeed.
        (json!([]), json!({"running": {}}), ended(1), None, Some("it has ended with exit code 1: as it is")),
        (json!([]), looping.clone(), ended(0), None, Some(ends(0).as_str())),
        (json!([]), looping.clone(), json!({"terminated": {"exitCode": 2}}), None, Some(&ends(2))),
        (json!([]), looping, killed, None, Some(out_of_memory)),
        (ready, json!({"running": {}}), ended(71), None, None),
    ] {
        let container = json!({
            "name": "postgres", "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": state, "lastState": last_state,
        });
        let status = json!({"conditions": conditions, "containerStatuses": [container]});
        let metadata = json!({"name": "db-0", "namespace": "ns"});
        let pod: Pod = of(json!({"metadata": metadata, "status": status}));
        assert_eq!((refused(&pod), super::waiting(&pod).as_deref()), (expected, waiting));
    }
}

#[test]
fn termination_messages_of_a_jobs_pod() {
    let container = |name: &str, code: i32, message: &str| {
        json!({
            "name": name, "image": "x", "imageID": "", "ready": false, "restartCount": 0,
            "state": {"terminated": {"exitCode": code, "message": message}},
        })
    };
    let (long, stored) = ("x".repeat(3000), |message: &str| container("store", 0, message));
    let full = container("store", 1, "stored a\nerror: full, make room.\n");
    for (init, main, expected) in [
        (container("dump", 0, "a 1 2\nb 3 4\n"), stored("stored"), Ok(Some("a 1 2\nb 3 4"))),
        (container("dump", 0, ""), stored("stored"), Ok(Some("stored"))),
        (container("dump", 0, ""), stored(""), Ok(None)),
        (container("dump", 1, "first\npg_dump: error: no\n\n"), stored(""), Err(Some("pg_dump: error: no"))),
        (container("dump", 0, "dumped"), full, Err(Some("full, make room"))),
        (container("dump", 0, ""), container("store", 1, ""), Err(None)),
        (container("dump", 0, ""), container("store", 1, &long), Err(Some(&long[..MAX_MESSAGE]))),
    ] {
        let status = json!({"initContainerStatuses": [init], "containerStatuses": [main]});
        let pod: Pod = of(json!({"metadata": {}, "status": status}));
        let found = (termination_message(&pod), failure_line(&pod));
        let owned = |words: Option<&str>| words.map(str::to_owned);
        assert_eq!(found, (expected.ok().and_then(owned), expected.err().and_then(owned)));
    }
}

#[test]
fn a_stateful_set_has_replaced_its_pods() {
    let status = |seen: i64, current: &str| json!({"observedGeneration": seen, "currentRevision": current, "updateRevision": "2"});
    let on_delete = json!({"type": "OnDelete"});
    let rolling = |partition: i32| json!({"type": "RollingUpdate", "rollingUpdate": {"partition": partition}});
    for (what, strategy, status, expected) in [
        ("all of them", rolling(0), status(2, "2"), true),
        ("not all", rolling(0), status(2, "1"), false),
        ("it has not seen its spec", json!({}), status(1, "2"), false),
        ("a user replaces them", on_delete, status(2, "1"), true),
        ("a user has begun with some", rolling(1), status(2, "1"), true),
    ] {
        let set = json!({
            "metadata": {"generation": 2}, "status": status,
            "spec": {"selector": {}, "template": {}, "updateStrategy": strategy},
        });
        let Detail::StatefulSet(found) = stateful_set(&of(set)) else { panic!() };
        assert_eq!(found.is_rolled, expected, "{what}");
    }
}

#[test]
fn user_request_of_a_stateful_set() {
    for (annotations, of_pods, generation, mounted) in [
        (json!({}), json!({}), None, [None, None, None]),
        (json!({GENERATION_ANNOTATION: "3"}), json!({REPLICATION_ANNOTATION: "r"}), Some("3"), [Some("r"), None, None]),
        (
            json!({GENERATION_ANNOTATION: "3"}),
            json!({REPLICATION_ANNOTATION: "r", CERTIFICATE_ANNOTATION: "c", REPLACED_ANNOTATION: "go"}),
            Some("3"),
            [Some("r"), Some("c"), Some("go")],
        ),
    ] {
        let set = json!({
            "metadata": {"annotations": annotations},
            "spec": {"selector": {}, "template": {"metadata": {"annotations": of_pods}}},
        });
        let Detail::StatefulSet(found) = stateful_set(&of(set)) else { panic!() };
        let requested = UserRequest {
            generation: generation.map(str::to_owned),
            mounted: mounted.map(|uid: Option<&str>| uid.map(str::to_owned)),
        };
        assert_eq!(found.requested, requested);
    }
}

#[test]
fn view_of_a_job() {
    let (began, end) = ("2026-01-01T00:00:00Z", "2026-01-01T00:00:09Z");
    let time = |text: &str| serde_json::from_value(json!(text)).ok();
    for (types, succeeded) in [
        (&[][..], None),
        (&["FailureTarget"], None),
        (&["Failed"], Some(false)),
        (&["SuccessCriteriaMet", "Complete"], Some(true)),
    ] {
        let condition = |type_: &&str| json!({"type": type_, "status": "True", "lastTransitionTime": end});
        let conditions: Vec<_> = types.iter().map(condition).collect();
        let job = json!({
            "metadata": {
                "annotations": {
                    REQUEST_ANNOTATION: "one", RESTORE_ANNOTATION: r#"{"claim":"c"}"#, GENERATION_ANNOTATION: "3",
                },
                "labels": {label::ROLE: "drill"},
            },
            "status": {"startTime": began, "conditions": conditions},
        });
        let view = JobView {
            request: Some("one".to_owned()),
            deletion: None,
            restore: Some(Box::new(Restore::of_claim("latest", "c"))),
            generation: Some("3".to_owned()),
            is_drill: true,
            succeeded,
            started: time(began),
            ended: succeeded.and_then(|_| time(end)),
            waits_since: time(began).map(|began| began.0),
            ..JobView::default()
        };
        assert_eq!(super::job(&of(job)), Detail::Job(view), "{types:?}");
    }
}
