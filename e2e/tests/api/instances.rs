//! Creating, showing, listing and deleting instances.

use clientapp_crd::ClientApp;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::api::PostParams;
use kube::{Api, ResourceExt as _};
use reqwest::Method;
use serde_json::{Value, json};

use crate::api::{Http, idle, is_gone, make_namespace, ours, send, small, stored_password, until, with, with_hostname};

#[tokio::test]
async fn the_request_of_the_documents_word_for_word() {
    let (lab, http) = Http::shared().await;
    let client = lab.plane.client().await.unwrap();
    let body =
        r#"{"hostname": "my-instance.local", "ingressClassName": "traefik", "tls": {"terminatedElsewhere": true}}"#;
    let request = http.request(Method::POST, "/instances").header("Content-Type", "application/json").body(body);
    let answer = send(request).await;
    let (namespace, name) = answer.made();

    let words: Vec<_> = name.split('-').collect();
    assert!(words.len() == 4 && words[0] == "ca" && words[3].len() == 6, "{name}");
    assert_eq!(namespace, name);
    assert_eq!(answer.header("location"), format!("/instances/{name}?namespace={namespace}"));
    assert_eq!(answer.header("cache-control"), "no-store");
    let password = answer.word("adminPassword");
    assert_eq!(
        answer.json,
        json!({"name": name, "namespace": name, "hostname": "my-instance.local", "chartVersion": "5.5.2",
            "adminSecret": format!("{name}-admin-secret"), "adminPassword": password})
    );
    assert_eq!(stored_password(&client, &namespace, &answer.word("adminSecret")).await, password);
    assert!(password.len() == 32 && password.bytes().all(|c| c.is_ascii_alphanumeric()));

    let made = Api::<Namespace>::all(client.clone()).get(&namespace).await.unwrap();
    assert_eq!(made.labels()["app.kubernetes.io/managed-by"], "clientapp-operator");
    assert_eq!(made.labels()["apps.bnerd-operator.local/instance"], name);
    assert_eq!(made.labels()["pod-security.kubernetes.io/enforce"], "baseline");
    let policies = Api::<NetworkPolicy>::namespaced(client.clone(), &namespace);
    let policy = policies.get("clientapp-isolation").await.unwrap();
    let but =
        |key: &str, value: &str| json!({"matchExpressions": [{"key": key, "operator": "NotIn", "values": [value]}]});
    let others = but("app.kubernetes.io/managed-by", "clientapp-operator");
    let expected = json!({
        "podSelector": but("app.kubernetes.io/name", "nextcloud"), "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": {}}, {"namespaceSelector": others}]}],
    });
    assert_eq!(serde_json::to_value(policy.spec).unwrap(), expected);
    let app = Api::<ClientApp>::namespaced(client.clone(), &namespace).get(&name).await.unwrap();
    assert_eq!(app.spec.ingress_class_name.as_deref(), Some("traefik"));
    let secret = Api::<Secret>::namespaced(client.clone(), &namespace).get(&answer.word("adminSecret")).await.unwrap();
    assert_eq!(secret.annotations()["apps.bnerd-operator.local/clientapp-uid"], app.uid().unwrap());
    assert!(secret.owner_references().is_empty(), "the garbage collector must not delete it");

    // It is visible at once, and becomes Ready; and only this one response has the password.
    let shown = http.get(answer.header("location")).await;
    assert_eq!((shown.status, shown.word("hostname")), (200, "my-instance.local".to_owned()));
    let ready = until("it is Ready", async || {
        let shown = http.get(&format!("/instances/{name}")).await;
        (shown.json["ready"] == "True").then_some(shown)
    })
    .await;
    assert_eq!(ready.json["release"]["status"], "deployed");
    assert_eq!(ready.json["url"], "https://my-instance.local");
    assert_eq!(ready.json["database"]["ready"], "True");
    assert_eq!(stored_password(&client, &namespace, &answer.word("adminSecret")).await, password);
    let list = http.get(&format!("/instances?namespace={namespace}")).await;
    assert_eq!(list.json["items"][0], ready.json);
    for text in [ready.text, list.text, lab.operator_log()] {
        assert!(!text.contains(&password), "{text}");
    }
    let line = format!("\"clientapp\":\"{namespace}/{name}\"");
    let log = lab.operator_log();
    let audited = log.lines().filter(|told| told.contains("\"audit\"") && told.contains(&line));
    assert_eq!(audited.filter(|told| told.contains("\"create\"") && told.contains("201")).count(), 1, "{log}");
}

#[tokio::test]
async fn what_is_given_is_what_is_made() {
    let (lab, http) = Http::shared().await;
    let client = lab.plane.client().await.unwrap();
    make_namespace(&client, "api-given", json!({"labels": ours()})).await;
    let mut body = with(with(idle("given.api.example"), "name", "acme"), "namespace", "api-given");
    body["chartVersion"] = json!("5.5.3");
    body["persistence"] = json!({"size": "9Gi"});
    body["postgres"]["storageSize"] = json!("2Gi");
    let answer = http.post(&body).await;
    assert_eq!(answer.made(), ("api-given".to_owned(), "acme".to_owned()));
    assert_eq!(answer.word("chartVersion"), "5.5.3");
    let app = Api::<ClientApp>::namespaced(client, "api-given").get("acme").await.unwrap();
    assert_eq!((app.spec.redis.enabled, app.spec.postgres.storage_size.as_str()), (false, "2Gi"));
    assert_eq!((app.spec.postgres.version.as_str(), app.spec.persistence.size.as_deref()), ("15", Some("9Gi")));
}

#[tokio::test]
async fn pages_and_filters_cost_no_request() {
    let (lab, http) = Http::shared().await;
    let tenants = [lab.tenant("api-list-a").await, lab.tenant("api-list-b").await];
    let mut expected = Vec::new();
    for tenant in &tenants {
        for (index, tier) in ["gold", "tin", "gold"].iter().enumerate() {
            let name = format!("app-{index}");
            let hostname = format!("{name}.{}.example", tenant.namespace);
            let object = json!({"apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp",
                "metadata": {"name": name, "labels": {"tier": tier, "list": "api"}},
                "spec": with(small(&hostname), "suspend", true)});
            let object: ClientApp = serde_json::from_value(object).unwrap();
            tenant.api::<ClientApp>().create(&PostParams::default(), &object).await.unwrap();
            expected.push(format!("{}/{name}", tenant.namespace));
        }
    }
    let names = |page: &Value| -> Vec<String> {
        let word = |item: &Value, field: &str| item[field].as_str().unwrap().to_owned();
        let items = page["items"].as_array().unwrap().iter();
        items.map(|item| format!("{}/{}", word(item, "namespace"), word(item, "name"))).collect()
    };
    until("all are known", async || {
        (names(&http.get("/instances?labelSelector=list%3Dapi").await.json) == expected).then_some(())
    })
    .await;
    let before = tenants[0].requests().await;
    let before = before.iter().filter(|request| request.contains("list clientapps")).count();

    let (mut all, mut next) = (Vec::new(), String::new());
    loop {
        let page = http.get(&format!("/instances?labelSelector=list%3Dapi&limit=4&continue={next}")).await;
        all.push(names(&page.json));
        match page.json["continue"].as_str() {
            Some(token) => next = token.to_owned(),
            None => break,
        }
    }
    assert_eq!(all, [&expected[..4], &expected[4..]]);
    let page = http.get("/instances?namespace=api-list-b&labelSelector=tier%20notin%20(gold),list").await;
    assert_eq!(names(&page.json), expected[4..5]);
    assert!(page.json.get("continue").is_none(), "{page:?}");
    let after = tenants[0].requests().await;
    assert_eq!(after.iter().filter(|request| request.contains("list clientapps")).count(), before, "{after:?}");
    http.get("/instances?limit=1001").await.is_problem(400, "InvalidParameter", Some("limit"), "limit");
    http.get("/instances?continue=x").await.is_problem(400, "InvalidParameter", Some("continue"), "continue");
}

#[tokio::test]
async fn one_name_in_two_namespaces_and_none() {
    let (lab, http) = Http::shared().await;
    for namespace in ["api-twice-a", "api-twice-b"] {
        let tenant = lab.tenant(namespace).await;
        let spec = with(small(&format!("{namespace}.example")), "suspend", true);
        tenant.create("twice", spec).await.unwrap();
    }
    until("both are known", async || (http.get("/instances/twice").await.status == 409).then_some(())).await;
    http.get("/instances/twice").await.is_problem(409, "Ambiguous", Some("namespace"), "api-twice-a, api-twice-b");
    http.delete("/instances/twice").await.is_problem(409, "Ambiguous", Some("namespace"), "api-twice-a, api-twice-b");
    let shown = http.get("/instances/twice?namespace=api-twice-b").await;
    assert_eq!((shown.status, shown.word("namespace")), (200, "api-twice-b".to_owned()));
    assert_eq!(shown.json["suspended"], true);
    for path in ["/instances/nobody", "/instances/twice?namespace=api-twice-c", "/instances/nobody/events"] {
        http.get(path).await.is_problem(404, "NotFound", None, "there is no instance");
    }
    http.delete("/instances/nobody").await.is_problem(404, "NotFound", None, "there is no instance nobody");
}

#[tokio::test]
async fn deleted_and_waited_for() {
    let (lab, http) = Http::shared().await;
    let client = lab.plane.client().await.unwrap();
    let (namespace, name) = http.post(&small("deleted.api.example")).await.made();
    let path = format!("/instances/{name}?namespace={namespace}");
    // The response comes at once: the deletion is still in progress.
    let answer = http.delete(&path).await;
    assert!(answer.status == 204 || (answer.status == 202 && answer.json["deleting"] == true), "{answer:?}");
    let answer = http.delete(&format!("{path}&wait=120")).await;
    // A second DELETE may find it gone.
    assert!([204, 404].contains(&answer.status), "{answer:?}");
    http.get(&path).await.is_problem(404, "NotFound", None, &name);
    assert!(with_hostname(&client, "deleted.api.example").await.is_empty());

    let (_, name) = http.post(&idle("deleted.api.example")).await.made();
    assert_eq!(http.delete(&format!("/instances/{name}?wait=120")).await.status, 204);
    // The namespace that was created for it is deleted as well.
    until("the namespace is gone", async || is_gone(&client, &name).await.then_some(())).await;
    let answer = http.delete(&format!("/instances/{name}?wait=301")).await;
    answer.is_problem(400, "InvalidParameter", Some("wait"), "0 to 300");
}

#[tokio::test]
async fn the_document_lists_every_route() {
    let (_, http) = Http::shared().await;
    let document = http.get("/openapi.json").await.json;
    assert!(document["openapi"].as_str().unwrap().starts_with("3."), "{document}");
    let paths = document["paths"].as_object().unwrap();
    let mut listed: Vec<String> = paths
        .iter()
        .flat_map(|(path, methods)| methods.as_object().unwrap().keys().map(move |method| format!("{method} {path}")))
        .collect();
    listed.sort_by_key(|route| route.split_once(' ').map(|(method, path)| (path.to_owned(), method.to_owned())));
    assert_eq!(
        listed,
        [
            "get /instances",
            "post /instances",
            "delete /instances/{name}",
            "get /instances/{name}",
            "get /instances/{name}/backups",
            "post /instances/{name}/backups",
            "get /instances/{name}/backups/{backup}",
            "get /instances/{name}/events",
            "get /instances/{name}/restores",
            "post /instances/{name}/restores",
            "get /instances/{name}/restores/{restore}",
            "get /openapi.json",
        ]
    );
    for route in &listed {
        let (method, path) = route.split_once(' ').unwrap();
        let method = Method::from_bytes(method.to_uppercase().as_bytes()).unwrap();
        let answer = send(http.request(method, &path.replace(['{', '}'], ""))).await;
        assert!(answer.json["reason"] != "MethodNotAllowed", "{route}: {answer:?}");
        assert!(!answer.text.contains("there is nothing at"), "{route}: {answer:?}");
    }
    assert_eq!(document["components"]["securitySchemes"]["token"]["scheme"], "bearer");
    let made = &paths["/instances"]["post"]["responses"]["201"]["content"]["application/json"]["schema"]["$ref"];
    assert_eq!(made, "#/components/schemas/Created");
    let created = document["components"]["schemas"]["Created"]["properties"].as_object().unwrap();
    let mut fields: Vec<_> = created.keys().map(String::as_str).collect();
    fields.sort_unstable();
    assert_eq!(fields, ["adminPassword", "adminSecret", "chartVersion", "hostname", "name", "namespace"]);
    let asked = document["components"]["schemas"]["NewInstance"]["properties"].as_object().unwrap();
    let mut fields: Vec<_> = asked.keys().map(String::as_str).collect();
    fields.sort_unstable();
    let all = "chartVersion hostname ingressClassName name namespace persistence postgres profile redis tls";
    assert_eq!(fields.join(" "), all);
}
