//! A user's rights: as granted by the cluster's Roles, in one namespace and not in another.

use e2e::lab::hostname;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::Api;
use kube::api::DeleteParams;

use super::*;
use crate::api::{idle, small, with};

/// Lets a user use the API in a namespace.
async fn bind(tenant: &Tenant, subject: Value) {
    let binding = serde_json::from_value(json!({
        "metadata": {"name": "api-users"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "clientapp-api-user"},
        "subjects": [subject],
    }));
    tenant.api::<RoleBinding>().create(&PostParams::default(), &binding.unwrap()).await.unwrap();
}

/// Waits until the API server itself has noticed.
async fn allowed(api: &Served, path: &str, token: &str) -> Answer {
    until("the right is granted", async || {
        Some(api.get_as(path, token).await).filter(|answer| ![403, 503].contains(&answer.status))
    })
    .await
}

#[tokio::test]
async fn a_role_in_one_namespace_is_none_in_another() {
    let lab = Lab::shared().await;
    let (here, there) = (lab.tenant("rights-here").await, lab.tenant("rights-there").await);
    account(&here, "jane").await;
    bind(&here, json!({"kind": "ServiceAccount", "name": "jane", "namespace": here.namespace})).await;
    let token = token(&here, "jane", AUDIENCE, None).await;
    let api = Served::start(lab.options(), &["--api-auth", "token"]).await;

    let listed = allowed(&api, "/instances?namespace=rights-here", &token).await;
    assert_eq!((listed.status, &listed.json["items"]), (200, &json!([])), "{listed:?}");
    let jane = "User \"system:serviceaccount:rights-here:jane\" cannot";
    let resource = "resource \"clientapps\" in API group \"apps.bnerd-operator.local\"";
    let refused = api.get_as("/instances?namespace=rights-there", &token).await;
    let expected = format!(
        "clientapps.apps.bnerd-operator.local is forbidden: {jane} list {resource} in the namespace \"rights-there\""
    );
    assert_eq!(refused.refused(403, "Forbidden"), expected);
    let everywhere = api.get_as("/instances", &token).await;
    assert!(everywhere.refused(403, "Forbidden").contains(&format!("{jane} list {resource} at the cluster scope")));

    let new = |namespace: &str, token: &str| {
        let body = with(with(idle(&hostname(&here, "acme")), "name", "acme"), "namespace", namespace);
        send(api.request(Method::POST, "/instances").json(&body).bearer_auth(token))
    };
    let refused = new("rights-there", &token).await;
    let sentence = refused.refused(403, "Forbidden");
    assert!(sentence.contains(&format!("{jane} create {resource}")), "{sentence}");
    assert!(there.kubectl(&["get", "clientapps,secrets", "--output", "name"]).unwrap().is_empty());
    // A missing namespace is not created for a user without the right.
    new("rights-nowhere", &token).await.refused(403, "Forbidden");
    let namespaces = Api::<Namespace>::all(here.client.clone());
    assert!(namespaces.get_opt("rights-nowhere").await.unwrap().is_none());
    // But it is for a user with the right in all namespaces.
    account(&here, "portal").await;
    let portal = format!("--serviceaccount={}:portal", here.namespace);
    here.kubectl(&["create", "clusterrolebinding", "rights-portal", "--clusterrole=clientapp-api-user", &portal])
        .unwrap();
    let portal = super::token(&here, "portal", AUDIENCE, None).await;
    allowed(&api, "/instances", &portal).await;
    let made = new("rights-nowhere", &portal).await;
    assert_eq!(made.status, 201, "{made:?}");

    // Everything is in the log, under the request's id, and no secret.
    let log = api.operator.log();
    let audit: Vec<Value> = log.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    for (answer, user, status, reason) in [(&refused, "jane", 403, "Forbidden"), (&made, "portal", 201, "Done")] {
        let id = answer.header("x-request-id");
        let of_request = |line: &&Value| line["target"] == "audit" && line["span"]["request_id"] == id;
        let lines: Vec<_> = audit.iter().filter(of_request).filter(|line| line["verb"] == "create").collect();
        let [line] = lines.as_slice() else { panic!("{id}: {lines:?}") };
        assert_eq!(line["user"], format!("system:serviceaccount:rights-here:{user}"), "{line}");
        assert_eq!(line["span"]["peer"], "127.0.0.1", "{line}");
        assert_eq!((&line["status"], &line["reason"]), (&json!(status), &json!(reason)), "{line}");
    }
    assert!(!log.contains(&made.word("adminPassword")), "a password is in the log");
    for token in [&token, &portal] {
        assert!(!log.contains(token.rsplit('.').next().unwrap()), "a token is in the log");
    }

    // A right may be a group's, and ends when it is taken.
    let tenant = lab.tenant("rights-taken").await;
    account(&tenant, "jane").await;
    let group = "system:serviceaccounts:rights-taken";
    bind(&tenant, json!({"kind": "Group", "apiGroup": "rbac.authorization.k8s.io", "name": group})).await;
    let token = super::token(&tenant, "jane", AUDIENCE, None).await;
    let path = "/instances?namespace=rights-taken";
    assert_eq!(allowed(&api, path, &token).await.status, 200);
    tenant.api::<RoleBinding>().delete("api-users", &DeleteParams::default()).await.unwrap();
    let refused = until("the right is revoked", async || {
        Some(api.get_as(path, &token).await).filter(|answer| answer.status != 200)
    });
    refused.await.refused(403, "Forbidden");
}

/// The right to see an instance is none to back it up, and that is none to restore it.
#[tokio::test]
async fn a_right_on_instances_is_none_on_their_backups() {
    let tenant = Lab::shared().await.tenant("rights-backups").await;
    account(&tenant, "jane").await;
    let token = token(&tenant, "jane", AUDIENCE, None).await;
    let may = |role: &str, verbs: &str, resource: &str| {
        let (verbs, resource) = (format!("--verb={verbs}"), format!("--resource={resource}.apps.bnerd-operator.local"));
        tenant.kubectl(&["create", "role", role, &verbs, &resource]).unwrap();
        let (role_flag, account) = (format!("--role={role}"), "--serviceaccount=rights-backups:jane");
        tenant.kubectl(&["create", "rolebinding", role, &role_flag, account]).unwrap();
    };
    let spec = with(small(&hostname(&tenant, "acme")), "suspend", true);
    tenant.create("acme", spec).await.unwrap();
    let api = Served::start(tenant.lab.options(), &["--api-auth", "token"]).await;
    let path = |rest: &str| format!("/instances/acme/{rest}?namespace=rights-backups");
    let post = async |rest: &str, body: Value| {
        send(api.request(Method::POST, &path(rest)).json(&body).bearer_auth(&token)).await
    };
    // Without any right, nobody is told whether there is an instance.
    let refused = until("the operator is in sync", async || {
        Some(post("backups", json!({})).await).filter(|answer| answer.status != 503)
    });
    assert!(refused.await.refused(403, "Forbidden").starts_with("clientapps.apps.bnerd-operator.local \"acme\""));

    may("see-apps", "get,list", "clientapps");
    allowed(&api, "/instances/acme?namespace=rights-backups", &token).await;
    let jane = "User \"system:serviceaccount:rights-backups:jane\" cannot";
    let cannot = |verb: &str, resource: &str| format!("{jane} {verb} resource \"{resource}\"");
    for (refused, sentence) in [
        (post("backups", json!({})).await, cannot("create", "clientappbackups")),
        (post("restores", json!({"files": {}})).await, cannot("create", "clientapprestores")),
        (api.get_as(&path("backups"), &token).await, cannot("list", "clientappbackups")),
        (api.get_as(&path("restores/x"), &token).await, cannot("get", "clientapprestores")),
    ] {
        let detail = refused.refused(403, "Forbidden");
        assert!(detail.contains(&sentence), "{detail}");
    }
    assert!(tenant.kubectl(&["get", "clientappbackups,clientapprestores", "--output", "name"]).unwrap().is_empty());

    may("see-backups", "get,list", "clientappbackups");
    let listed = allowed(&api, &path("backups"), &token).await;
    assert_eq!((listed.header("allow"), &listed.json), ("GET, HEAD", &json!({"items": []})), "{listed:?}");
    may("back-up", "create", "clientappbackups");
    let made = until("the right is granted", async || {
        Some(post("backups", json!({"name": "mine"})).await).filter(|answer| answer.status != 403)
    });
    assert_eq!(made.await.status, 201);
    assert_eq!(api.get_as(&path("backups"), &token).await.header("allow"), "GET, HEAD, POST");
    post("restores", json!({"backup": "mine"})).await.refused(403, "Forbidden");

    // Nor is a right to restore one to create instances.
    may("restore", "create", "clientapprestores");
    let into = json!({"backup": "mine", "into": {"name": "beside", "hostname": hostname(&tenant, "beside")}});
    let refused = until("the right is granted", async || {
        Some(post("restores", into.clone()).await).filter(|answer| !answer.text.contains("clientapprestores"))
    });
    let detail = refused.await.refused(403, "Forbidden");
    assert!(detail.contains(&cannot("create", "clientapps")), "{detail}");
}
