//! Charts from sources that are not open to everybody, and charts that have to be signed.

use std::fs;
use std::path::Path;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use e2e::charts::Key;
use e2e::front::Front;
use e2e::plane::certs::Authority;
use e2e::registry::{self, Registry};
use e2e::shim::Shim;
use k8s_openapi::api::events::v1::Event;

use super::*;

/// No part of a uid, a digest or a name looks like it.
const CANARY: &str = "whistling \"9d";

/// A mounted Secret, as a directory.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(files: &[(&str, &str)]) -> Self {
        let mounted = Mounted(tempfile::tempdir().unwrap());
        files.iter().for_each(|(name, content)| mounted.put(name, content));
        mounted
    }

    fn put(&self, name: &str, content: &str) {
        fs::write(self.0.path().join(name), content).unwrap();
    }

    fn remove(&self, name: &str) {
        fs::remove_file(self.0.path().join(name)).unwrap();
    }
}

/// The options of an operator that logs all it can, and has these credentials for this source.
fn options(options: Options, source: String, credentials: &Mounted) -> Options {
    Options {
        chart_repository: source,
        arguments: vec!["--chart-repository-credentials".to_owned(), credentials.0.path().display().to_string()],
        environment: vec![("RUST_LOG".to_owned(), "debug".to_owned())],
        ..options
    }
}

/// Has an app try again, and waits until it is told why it cannot have its chart.
async fn unavailable(tenant: &Tenant, name: &str, words: &[&str]) {
    time_passes(tenant, name).await;
    tenant.condition_with(name, ("Released", "ChartUnavailable"), words).await;
    tenant.status(name, "not stalled", |status| has(status, "Stalled", "False", "NotStalled")).await;
}

async fn installed(tenant: &Tenant, name: &str, version: &str) {
    tenant.create(name, small(tenant, name, version)).await.unwrap();
    tenant.ready(name, 1).await;
}

/// Checks that no log, event or object has a secret.
async fn is_untold(tenant: &Tenant, secret: &str, (operator, shim): (&Operator, &Shim)) {
    let everything = ListParams::default();
    let apps = tenant.api::<ClientApp>().list(&everything).await.unwrap().items;
    let events = tenant.api::<Event>().list(&everything).await.unwrap().items;
    assert!(!events.is_empty() && operator.log().contains("helm starts"));
    for (place, text) in [
        ("the log", operator.log()),
        ("an argv", format!("{:?}", shim.runs())),
        ("the objects", serde_json::to_string(&apps).unwrap()),
        ("the events", serde_json::to_string(&events).unwrap()),
    ] {
        for form in [secret.to_owned(), STANDARD.encode(secret)] {
            assert!(!text.contains(&form[..form.len() - 4]), "the secret is in {place}: {text}");
        }
    }
}

#[tokio::test]
async fn a_repository_with_a_password_and_certificates() {
    let (apart, repository) = with_repository("private-repository").await;
    let [authority, other] = ["authority", "other"].map(|name| Authority::new(name).unwrap());
    let client = authority.client("tenant", None).unwrap();
    let front = Front::start(repository.address(), &authority).unwrap();
    repository.demand("tenant", CANARY);
    let secret = Mounted::new(&[("username", "tenant"), ("password", "wrong"), ("ca.crt", &other.pem())]);
    let Apart { tenant, proxy: _proxy, .. } = apart;
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let options = options(Options { helm: shim.path(), ..apart.options }, front.url(), &secret);
    let operator = leading(&options).await;

    // Whatever is wrong is said, and put right by another Secret, without a restart.
    tenant.create("acme", small(&tenant, "acme", charts::DEFAULT)).await.unwrap();
    tenant.condition_with("acme", ("Released", "ChartUnavailable"), &["of an unknown authority", "ca.crt"]).await;
    secret.put("ca.crt", &authority.pem());
    unavailable(&tenant, "acme", &["refuses the user or password", "401 Unauthorized"]).await;
    front.demand(&authority).unwrap();
    unavailable(&tenant, "acme", &["demands a client certificate", "tls.crt"]).await;
    secret.put("tls.key", &client.key);
    unavailable(&tenant, "acme", &["has tls.key, but no tls.crt: put both into the Secret"]).await;
    secret.put("tls.crt", &client.certificate);
    unavailable(&tenant, "acme", &["refuses the user or password"]).await;
    secret.remove("password");
    unavailable(&tenant, "acme", &["has username, but no password"]).await;
    secret.put("password", &format!("{CANARY}\n"));
    front.show_expired(&authority).unwrap();
    unavailable(&tenant, "acme", &["certificate of the chart repository has expired"]).await;
    assert_eq!(tenant.listed("acme"), None);
    front.demand(&authority).unwrap();
    time_passes(&tenant, "acme").await;
    tenant.ready("acme", 1).await;

    // Another host is told nothing, whether it is that of a redirect or of the index.
    let elsewhere = Repository::start_on([127, 0, 0, 2]).unwrap();
    for (name, version, fault) in [
        ("redirected", charts::PATCH, Fault::Redirect(elsewhere.address())),
        ("listed", charts::MAJOR, Fault::Elsewhere(elsewhere.address())),
    ] {
        repository.set(fault).unwrap();
        installed(&tenant, name, version).await;
        assert_eq!(elsewhere.requests(&format!("/{}", charts::file_name(version))), 1);
    }
    assert_eq!(elsewhere.authorizations(), Vec::<String>::new());

    // What was pulled is there without credentials.
    secret.remove("username");
    installed(&tenant, "cached", charts::DEFAULT).await;
    is_untold(&tenant, CANARY, (&operator, &shim)).await;
    assert!(operator.stop().unwrap());
    // An operator that starts with half of them would pull nothing.
    let refused = tokio::task::spawn_blocking(move || Operator::leading(&options)).await.unwrap().unwrap_err();
    assert!(format!("{refused:#}").contains("has password, but no username"), "{refused:#}");
}

#[tokio::test]
async fn a_registry_with_a_login_and_a_certificate() {
    let Apart { tenant, proxy: _proxy, options: apart } = Lab::unattended().await.apart("private-registry").await;
    let authority = Authority::new("authority").unwrap();
    let registry = Registry::with_login().unwrap();
    registry.push_all(&tenant.lab.tools.helm).unwrap();
    let front = Front::start(registry.address(), &authority).unwrap();
    let address = front.url().replace("https://", "");
    let config = |password: &str| {
        let auth = STANDARD.encode(format!("{}:{password}", registry::USERNAME));
        json!({"auths": {&address: {"auth": auth}}}).to_string()
    };
    let secret = Mounted::new(&[("ca.crt", &authority.pem())]);
    let shim = Shim::around(&tenant.lab.tools.helm).unwrap();
    let apart = Options { helm: shim.path(), ..apart };
    let operator = leading(&options(apart, format!("oci://{address}/charts"), &secret)).await;
    tenant.create("acme", small(&tenant, "acme", charts::DEFAULT)).await.unwrap();
    tenant.condition_with("acme", ("Released", "ChartUnavailable"), &["the registry demands credentials"]).await;
    secret.put(".dockerconfigjson", &config("wrong"));
    unavailable(&tenant, "acme", &["refuses the user or password", "authentication required"]).await;
    secret.put(".dockerconfigjson", "{\"auths\": {}}");
    unavailable(&tenant, "acme", &[&format!("credentials of {address} in `auths`")]).await;
    secret.put(".dockerconfigjson", &config(registry::PASSWORD));
    time_passes(&tenant, "acme").await;
    tenant.ready("acme", 1).await;
    front.demand(&authority).unwrap();
    let client = authority.client("tenant", None).unwrap();
    secret.put("tls.crt", &client.certificate);
    secret.put("tls.key", &client.key);
    installed(&tenant, "certified", charts::PATCH).await;
    is_untold(&tenant, registry::PASSWORD, (&operator, &shim)).await;
    assert!(operator.stop().unwrap());
}

/// Publishes versions in a directory: signed, without a signature, signed with another key, and changed since.
fn publish(helm: &Path, directory: &Path) {
    charts::package_signed(helm, directory, charts::DEFAULT, Key::Signer).unwrap();
    charts::package(directory, charts::PATCH, Content::Genuine).unwrap();
    charts::package_signed(helm, directory, charts::MAJOR, Key::Other).unwrap();
    charts::package_signed(helm, directory, charts::CURRENT, Key::Signer).unwrap();
    charts::package(directory, charts::CURRENT, Content::Tampered).unwrap();
}

#[tokio::test]
async fn only_signed_charts_are_installed() {
    let (Apart { tenant, proxy: _proxy, options }, repository) = with_repository("signed-charts").await;
    let (directory, registry) = (tempfile::tempdir().unwrap(), Registry::start().unwrap());
    publish(&tenant.lab.tools.helm, directory.path());
    repository.publish(directory.path()).unwrap();
    for version in [charts::DEFAULT, charts::PATCH, charts::MAJOR] {
        registry.push(&tenant.lab.tools.helm, &directory.path().join(charts::file_name(version))).unwrap();
    }
    // What was pulled before there was a keyring does not count as verified.
    let cache = tempfile::tempdir().unwrap();
    let options = Options { chart_cache: Some(cache.path().to_owned()), ..options };
    let operator = leading(&options).await;
    installed(&tenant, "before", charts::PATCH).await;
    assert!(operator.stop().unwrap());

    let arguments = vec!["--chart-keyring".to_owned(), Key::Signer.keyring().display().to_string()];
    for (kind, source) in [
        ("repository", options.chart_repository.clone()),
        ("directory", directory.path().display().to_string()),
        ("registry", registry.repository()),
    ] {
        let options = Options { chart_repository: source, arguments: arguments.clone(), ..options.clone() };
        let operator = leading(&options).await;
        let name = |what: &str| format!("{kind}-{what}");
        for (what, version, words) in [
            ("unsigned", charts::PATCH, "the chart has no signature"),
            ("other-key", charts::MAJOR, "signed with a key that is not in --chart-keyring"),
            ("changed", charts::CURRENT, "the archive is not the one that was signed"),
        ] {
            if (kind, what) == ("registry", "changed") {
                continue; // helm refuses to push it.
            }
            tenant.create(&name(what), small(&tenant, &name(what), version)).await.unwrap();
            tenant.condition_with(&name(what), ("Released", "ChartSignatureInvalid"), &[words]).await;
            tenant.condition(&name(what), "Stalled", "True", "ChartSignatureInvalid").await;
            assert_eq!(tenant.listed(&name(what)), None);
            tenant.delete(&name(what)).await;
        }
        installed(&tenant, &name("signed"), charts::DEFAULT).await;
        tenant.delete(&name("signed")).await;
        let before = nudge(&tenant, "before", if kind == "directory" { "Delete" } else { "Retain" }).await;
        assert!(has(&before, "WorkloadsReady", "True", "Ready"), "{before:#?}");
        assert!(operator.stop().unwrap());
    }
}
