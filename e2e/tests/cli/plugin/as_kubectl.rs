//! Holds the plugin to what users of kubectl expect: its flags of the connection, its forms of output, several names, and a check.

use std::sync::{Arc, Mutex};

use k8s_openapi::ByteString;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use super::*;

fn on_path(tenant: &Tenant, arguments: &[&str]) -> Answer {
    let path = std::env::join_paths([installed(), tenant.lab.tools.kubectl.parent().unwrap()]).unwrap();
    let kubeconfig = tenant.lab.plane.kubeconfig();
    command(&tenant.lab.tools.kubectl, Some(&kubeconfig), arguments).env("PATH", &path).output().unwrap().into()
}

#[tokio::test]
async fn the_flags_of_the_connection() {
    let tenant = Lab::shared().await.tenant("plugin-flags").await;
    make(&tenant, "acme", &["--chart-version", charts::PATCH]).await.done();
    let little = little_user(&tenant).await;
    let namespace = ["-n", &tenant.namespace];
    let admin = tenant.lab.plane.kubeconfig();
    let run = |kubeconfig: Option<&Path>, line: &[&str]| plugin(kubeconfig, &[line, &namespace].concat());
    let kubectl = |line: &[&str]| on_path(&tenant, &[&["clientapp"], line, &namespace].concat());
    let completed = |line: &[&str]| on_path(&tenant, &[&["__complete", "clientapp"], line].concat()).done();

    let status = ["status", "acme"];
    let stored = kubectl(&["status", "acme", "-o", "json"]).json();
    assert_eq!(stored["spec"]["chartVersion"], charts::PATCH);
    kubectl(&["status", "acmee"]).failed(5, "did you mean acme?");
    assert!(completed(&["status", "-n", &tenant.namespace, "a"]).starts_with("acme\n"));
    let words = ["suspend", "--request-timeout", "9s", "-n", &tenant.namespace, "b", "a"];
    assert!(completed(&words).starts_with("acme\n"));

    // As another user, through kubectl as well.
    let account = format!("system:serviceaccount:{}:little", tenant.namespace);
    let as_little = ["--as", &account];
    run(Some(&admin), &[&status[..], &as_little].concat()).prints(&["acme"]);
    let password = [&["password", "acme"][..], &as_little].concat();
    run(Some(&admin), &password).failed(1, "cannot get resource \"secrets\"");
    kubectl(&password).failed(1, "cannot get resource \"secrets\"");
    let with = |flags: &[&str]| run(Some(&admin), &[&status[..], flags].concat());
    with(&["--as", "ada"]).failed(1, "User \"ada\" cannot get");
    with(&["--as", "ada", "--as-uid", "7", "--as-group", "a", "--as-group", "system:masters"]).done();

    // Other entries of the kubeconfig.
    with(&["--cluster", "plane", "--user", "plane"]).done();
    with(&["--cluster", "other"]).failed(1, "has no cluster other; it has plane");
    with(&["--user", "other"]).failed(1, "has no user other; it has plane");
    with(&["--request-timeout", "20"]).done();
    with(&["--request-timeout", "0"]).done();
    with(&["--tls-server-name", "elsewhere.example.com"]).failed(1, "the cluster does not respond");

    // Without a kubeconfig.
    let config: Value = serde_yaml::from_str(&fs::read_to_string(&little).unwrap()).unwrap();
    let cluster = &config["clusters"][0]["cluster"];
    let authority: ByteString = serde_json::from_value(cluster["certificate-authority-data"].clone()).unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), authority.0).unwrap();
    let (server, token) = (cluster["server"].as_str().unwrap(), config["users"][0]["user"]["token"].as_str().unwrap());
    let verified = ["-s", server, "--certificate-authority", file.path().to_str().unwrap()];
    let with = |token: &str, flags: &[&str]| run(None, &[&status, &["--token", token], flags].concat());
    with(token, &verified).prints(&["acme"]);
    with(token, &["-s", server, "--insecure-skip-tls-verify"]).prints(&["acme"]);
    with(token, &["-s", server]).failed(1, "error: ");
    with(token, &["-s", server, "--certificate-authority", "/nonexistent"]).failed(1, "cannot connect as asked");
    for wrong in ["canary", "can\nary"] {
        let refused = with(wrong, &verified);
        assert!(refused.code == 1 && !refused.stderr.contains("ary"), "{refused:#?}");
    }
    with("canary", &verified).failed(1, "the cluster rejects your credentials");
    // The token counts, and not the administrator's certificate.
    run(Some(&admin), &["password", "acme", "--token", token]).failed(1, "cannot get resource \"secrets\"");
}

async fn tunnel(mut client: TcpStream, asked: Arc<Mutex<Vec<String>>>) -> std::io::Result<()> {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n") {
        request.push(client.read_u8().await?);
    }
    let request = String::from_utf8(request).unwrap();
    let address = request.strip_prefix("CONNECT ").unwrap().split(' ').next().unwrap().to_owned();
    asked.lock().unwrap().push(address.clone());
    let mut server = TcpStream::connect(address).await?;
    client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    tokio::io::copy_bidirectional(&mut client, &mut server).await.map(drop)
}

/// A proxy that only tunnels, and the addresses that it was asked for.
async fn proxy() -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let record = asked.clone();
    tokio::spawn(async move {
        while let Ok((client, _)) = listener.accept().await {
            tokio::spawn(tunnel(client, record.clone()));
        }
    });
    (url, asked)
}

#[tokio::test]
async fn through_a_proxy() {
    let tenant = Lab::shared().await.tenant("plugin-proxy").await;
    make(&tenant, "acme", &[]).await.done();
    let (url, asked) = proxy().await;
    let admin = tenant.lab.plane.kubeconfig();
    let mut config: Value = serde_yaml::from_str(&fs::read_to_string(&admin).unwrap()).unwrap();
    let server = config["clusters"][0]["cluster"]["server"].as_str().unwrap().replace("https://", "");
    config["clusters"][0]["cluster"]["proxy-url"] = json!(url);
    let proxied = tempfile::NamedTempFile::new().unwrap();
    fs::write(proxied.path(), config.to_string()).unwrap();
    let run = async |kubeconfig: &Path, environment: &[(&str, &str)], flags: &[&str]| {
        let line = [&["status", "acme", "-n", &tenant.namespace], flags].concat();
        let mut command = command(&installed().join(PLUGIN), Some(kubeconfig), &line);
        command.envs(environment.iter().copied());
        let answer = tokio::task::spawn_blocking(move || Answer::from(command.output().unwrap())).await.unwrap();
        let mut asked = std::mem::take(&mut *asked.lock().unwrap());
        asked.dedup();
        (answer, asked)
    };

    let (answer, asked) = run(proxied.path(), &[("NO_PROXY", "*")], &[]).await;
    answer.prints(&["acme"]);
    assert_eq!(asked, [server]);
    // A proxy of the environment is not for addresses of this machine, nor for what NO_PROXY names.
    let (answer, asked) = run(&admin, &[("HTTPS_PROXY", &url)], &[]).await;
    answer.prints(&["acme"]);
    assert!(asked.is_empty(), "{asked:?}");
    let elsewhere = ["--server", "https://cluster.invalid:6443"];
    let (answer, asked) = run(&admin, &[("HTTPS_PROXY", &url)], &elsewhere).await;
    answer.failed(1, "the cluster does not respond");
    assert_eq!(asked, ["cluster.invalid:6443"]);
    let (answer, asked) = run(&admin, &[("HTTPS_PROXY", &url), ("NO_PROXY", ".invalid")], &elsewhere).await;
    answer.failed(1, "the cluster does not respond");
    assert!(asked.is_empty(), "{asked:?}");
}

#[tokio::test]
async fn forms_of_output() {
    let tenant = Lab::shared().await.tenant("plugin-forms").await;
    make(&tenant, "acme", &["--wait"]).await.done();
    let name = tenant.kubectl(&["get", "clientapps", "-o", "name"]).unwrap();
    for line in [["status", "acme"], ["suspend", "acme"], ["resume", "acme"], ["wait", "acme"]] {
        assert_eq!(typed(&tenant, &[line, ["-o", "name"]].concat()).await.done(), name, "{line:?}");
    }

    let (_, screen) = on_terminal(&tenant, &["status", "acme", "-o", "wide", "--color", "never"], "", &[]).await;
    assert!(!screen.contains('…'), "{screen}");
    let (_, screen) = on_terminal(&tenant, &["status", "acme", "--color", "never"], "", &[]).await;
    assert!(screen.contains('…') && screen.lines().all(|line| line.chars().count() <= COLUMNS.into()), "{screen}");
    assert!(!typed(&tenant, &["status", "acme"]).await.done().contains('…'));

    typed(&tenant, &["suspend", "acme", "-o", "wide"]).await.failed(2, "-o wide is not possible here");
    assert!(!tenant.api::<ClientApp>().get("acme").await.unwrap().spec.suspend);
    // A reader may leave early.
    for arguments in [&["status", "acme"][..], &["status", "acme", "-o", "json"], &["completion", "bash"]] {
        let arguments = [arguments, &["-n", &tenant.namespace]].concat();
        let mut command = command(&installed().join(PLUGIN), Some(&tenant.lab.plane.kubeconfig()), &arguments);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let answer = Answer::from(child.wait_with_output().unwrap());
        assert_eq!((answer.code, answer.stderr.as_str()), (0, ""), "{arguments:?}");
    }
    assert_eq!(typed(&tenant, &["delete", "acme", "--yes", "-o", "name"]).await.done(), name);
}

#[tokio::test]
async fn several_at_once() {
    let tenant = Lab::shared().await.tenant("plugin-several").await;
    for name in ["acme", "globex"] {
        make(&tenant, name, &[]).await.done();
    }
    typed(&tenant, &["wait", "acme", "globex"]).await.prints(&["acme: revision 1", "globex: revision 1"]);

    // One that is missing is reported, and does not keep the others from being changed.
    let suspended = typed(&tenant, &["suspend", "nope", "acme", "globex"]).await;
    assert!(suspended.stdout.contains("acme suspended") && suspended.stdout.contains("globex suspended"));
    assert_eq!(suspended.failed(5, "there is no ClientApp nope").lines().count(), 1);
    for name in ["acme", "globex"] {
        assert!(tenant.api::<ClientApp>().get(name).await.unwrap().spec.suspend);
    }
    for name in ["acme", "globex"] {
        let app = tenant.patch(name, json!({"chartVersion": "5.5.3"})).await.unwrap();
        let seen = app.metadata.generation;
        tenant.status(name, "seen", |status| status.observed_generation == seen).await;
    }
    // The worst exit code: a wrong name is worse than an app that is stalled.
    let stalled = typed(&tenant, &["wait", "acme", "nope", "globex"]).await.failed(5, "spec.suspend is true");
    assert_eq!(stalled.matches("error: ").count(), 3, "{stalled}");
    typed(&tenant, &["wait", "--all"]).await.failed(4, "error: globex: ");

    tenant.kubectl(&["label", "clientapp", "globex", "tier=gold"]).unwrap();
    let resumed = typed(&tenant, &["resume", "-l", "tier=gold", "-o", "name"]).await.done();
    assert_eq!(resumed, "clientapp.apps.bnerd-operator.local/globex\n");
    typed(&tenant, &["resume", "-l", "tier=silver"]).await.failed(5, "there is no ClientApp with tier=silver");
    typed(&tenant, &["resume", "acme", "--all"]).await.failed(2, "cannot be used with");
    typed(&tenant, &["suspend"]).await.failed(2, "required");
    typed(&tenant, &["resume", "--all"]).await.done();
    let retried = typed(&tenant, &["retry", "--all", "--wait"]).await.done();
    assert_eq!(retried.lines().count(), 2, "{retried}");
    let both = typed(&tenant, &["status", "acme", "globex", "-o", "yaml"]).await.done();
    assert_eq!(both.split("---\n").map(|app| app.matches("kind: ClientApp").count()).collect::<Vec<_>>(), [1, 1]);

    // All consequences come before the question.
    let names = ["delete", "acme", "globex"];
    let (code, screen) = on_terminal(&tenant, &names, "acme\n", &[]).await;
    assert!(code == 2 && screen.contains("the names do not match: nothing deleted"), "{screen}");
    let at = |part: &str| screen.find(part).unwrap_or_else(|| panic!("{part} is not in {screen}"));
    assert!(at("deletes ClientApp plugin-several/globex") < at("Type the names acme globex"), "{screen}");
    assert_eq!(screen.matches("Type the names").count(), 1, "{screen}");
    let (code, screen) = on_terminal(&tenant, &names, "acme globex\n", &[]).await;
    assert!(code == 0 && screen.contains("acme: deleted") && screen.contains("globex: deleted"), "{screen}");
    typed(&tenant, &["wait", "--all", "--for", "deleted"]).await.done();
    typed(&tenant, &["wait", "--all"]).await.failed(5, "there is no ClientApp in namespace plugin-several");
}

#[tokio::test]
async fn what_a_check_finds() {
    // A plane of its own, since it loses the definitions.
    let (lab, _ends) = Lab::own().await;
    let tenant = lab.tenant("plugin-check").await;
    let found = |answer: &Answer, sign: &str, subject: &str, sentence: &str| {
        let mut lines = answer.stdout.lines();
        let it_is = |line: &str| line.starts_with(&format!("{sign}  {subject} ")) && line.contains(sentence);
        assert!(lines.any(it_is), "{sign} {subject} {sentence}: {answer:#?}");
    };
    let check = async || typed(&tenant, &["check"]).await;

    let before = check().await;
    for kind in ["ClientApp", "ClientAppBackup", "ClientAppRestore", "Profile", "PostgresWriter", "Postgresql"] {
        found(&before, "✔", &format!("Kind {kind}"), "is installed");
    }
    found(&before, "✗", "Operator", "there is no Deployment clientapp-operator/clientapp-operator");
    found(&before, "✗", "Leader", "no operator leads");
    found(&before, "✔", "You", "may create ClientApps in namespace plugin-check");
    found(&before, "-", "Kind PerconaPGCluster", "is not installed");
    before.failed(1, "2 checks have failed");

    // Without the definitions.
    tenant.kubectl(&["delete", "-k", concat!(env!("CARGO_MANIFEST_DIR"), "/../crds")]).unwrap();
    for line in [
        &["approve-deletions"][..],
        &["approve-deletions", "-A"],
        &["status", "acme"],
        &["wait", "acme"],
        &["suspend", "acme"],
    ] {
        let answer = plugin(Some(&lab.plane.kubeconfig()), line);
        let sentence = answer.failed(1, "clientapp-operator crds | kubectl apply -f -");
        assert_eq!(sentence.lines().count(), 1, "{sentence}");
    }
    let without = check().await;
    assert_eq!(without.stdout.matches("is not installed: run `clientapp-operator crds").count(), 6, "{without:#?}");
    without.failed(1, "8 checks have failed");

    e2e::manifests::apply(&lab.plane, &lab.tools, &e2e::manifests::directory()).unwrap();
    let rollout = ["rollout", "status", "deployment/clientapp-operator", "--namespace", e2e::manifests::NAMESPACE];
    e2e::manifests::kubectl(&lab.plane, &lab.tools, &rollout).unwrap();
    let options = lab.options();
    let operator = e2e::lab::leading(&options).await;
    let after = check().await;
    found(&after, "✔", "Operator", "2/2 pods are ready");
    found(&after, "✔", "Leader", " leads, confirmed ");
    after.done();

    // A user who sees little learns what may be seen, and changes nothing.
    let little = little_user(&tenant).await;
    let seen = typed_as(&tenant, little.clone(), &["check"]).await;
    found(&seen, "?", "Kind ClientApp", "you have no permission to read its definition");
    found(&seen, "?", "Operator", "you have no permission to read Deployments there");
    found(&seen, "✔", "You", "may create ClientApps");
    seen.done();
    let elsewhere = plugin(Some(&little), &["check", "-n", "default"]);
    found(&elsewhere, "✗", "You", "may not create ClientApps in namespace default");
    elsewhere.failed(1, "a check has failed");

    // A definition of another version.
    let definitions = kube::Api::<CustomResourceDefinition>::all(tenant.client.clone());
    let description = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/description/maxLength";
    let patch = serde_json::from_value(json!([{"op": "replace", "path": description, "value": 7}])).unwrap();
    let patch = Patch::<()>::Json(patch);
    definitions.patch("profiles.apps.bnerd-operator.local", &PatchParams::default(), &patch).await.unwrap();
    let older = check().await;
    found(&older, "✗", "Kind Profile", "the definition of Profile is from another version: apply crds/");
    older.failed(1, "a check has failed");
    drop(operator);
}
