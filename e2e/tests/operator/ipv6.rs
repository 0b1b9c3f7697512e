//! A cluster whose API server, Services and pods have addresses of IPv6, and none of IPv4.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::OnceLock;

use anyhow::Result;
use e2e::lab::{Lab, TIMEOUT, hostname};
use e2e::operator::Options;
use e2e::plane::{self, ControlPlane};
use e2e::scenario::secret;
use e2e::wait::until;
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use k8s_openapi::api::networking::v1::NetworkPolicy;
use kube::ResourceExt as _;
use kube::api::ListParams;
use serde_json::{Value, json};

/// The cluster and its operator, which listens on `::1`. `None`: this machine has no such address.
async fn lab() -> Option<&'static Lab> {
    static LAB: OnceLock<Lab> = OnceLock::new();
    fn start() -> Result<Lab> {
        let lab = Lab::start_on(ControlPlane::builder().ipv6(), false)?;
        let listens = ["CLIENTAPP_HEALTH_LISTEN", "CLIENTAPP_API_LISTEN"].map(|name| (name.into(), "[::1]:0".into()));
        lab.start_operator(&Options { environment: listens.into(), ..lab.options() })?;
        Ok(lab)
    }
    match plane::has_ipv6() {
        true => Some(Lab::once(&LAB, start).await),
        false => None,
    }
}

#[tokio::test]
async fn the_operator_reaches_the_api_server_over_ipv6_and_is_reached_over_it() {
    let Some(lab) = lab().await else { return };
    assert!(lab.plane.server_url().starts_with("https://[::1]:"), "{}", lab.plane.server_url());
    let urls = |operator: &mut e2e::operator::Operator| [operator.health_url(), operator.api_url()].map(Result::unwrap);
    let [health, api] = urls(lab.operator().as_mut().unwrap());
    let http = reqwest::Client::builder().timeout(TIMEOUT).build().unwrap();
    for url in [format!("{health}/readyz"), format!("{health}/metrics"), format!("{api}/instances")] {
        assert!(url.starts_with("http://[::1]:"), "{url}");
        let answers = async || http.get(&url).send().await.is_ok_and(|answer| answer.status() == 200);
        until(&format!("{url} answers"), answers).await;
    }

    // An instance, in whose namespace helm works through the gateway.
    let body = json!({"hostname": "made.ipv6.example.com", "name": "made", "postgres": {"provider": "standalone"}});
    let made = http.post(format!("{api}/instances")).json(&body).send().await.unwrap();
    assert_eq!(made.status(), 201, "{:?}", made.text().await);
    until("the instance is ready", async || {
        let shown = http.get(format!("{api}/instances/made")).send().await.unwrap().text().await.unwrap();
        let shown: Value = serde_json::from_str(&shown).unwrap();
        if shown["ready"] == "True" { Ok(()) } else { Err(shown.to_string()) }
    })
    .await;
}

/// Returns whether the address is one of this range: the first 32 bits.
fn is_in(address: &str, range: [u16; 2]) -> bool {
    address.parse::<Ipv6Addr>().is_ok_and(|address| address.segments()[..2] == range)
}

/// Returns the addresses in a document.
fn addresses(value: &Value) -> Vec<&str> {
    match value {
        Value::String(text) => text.parse::<IpAddr>().map(|_| text.as_str()).into_iter().collect(),
        Value::Array(items) => items.iter().flat_map(addresses).collect(),
        Value::Object(fields) => fields.values().flat_map(addresses).collect(),
        _ => Vec::new(),
    }
}

#[tokio::test]
async fn what_is_written_has_names_in_place_of_addresses() {
    let Some(lab) = lab().await else { return };
    let tenant = lab.tenant("ipv6").await;
    let hostname = hostname(&tenant, "acme");
    tenant.create("acme", json!({"hostname": hostname, "postgres": {"provider": "standalone"}})).await.unwrap();
    assert_eq!(tenant.ready("acme", 1).await.url.unwrap(), format!("http://{hostname}"));
    let values = tenant.helm(&["get", "values", "acme", "-o", "json"]).stdout;
    let values: Value = serde_json::from_str(&values).unwrap();
    assert_eq!(addresses(&values), [""; 0], "{values}");
    assert_eq!(secret(&tenant, "acme-pg-app", "host").await, "acme-pg.ipv6.svc");

    let list = ListParams::default();
    let services = tenant.api::<Service>().list(&list).await.unwrap().items;
    let names: BTreeSet<_> = services.iter().map(|service| service.name_any()).collect();
    for name in ["acme-nextcloud", "acme-pg", "acme-pg-headless", "acme-redis-master"] {
        assert!(names.contains(name), "{name} is not in {names:?}");
    }
    for service in &services {
        let spec = service.spec.as_ref().unwrap();
        assert_eq!(spec.ip_families.as_deref(), Some(&["IPv6".to_owned()][..]), "{service:#?}");
        let headless = spec.cluster_ip.as_deref() == Some("None");
        let addresses = spec.cluster_ips.iter().flatten();
        assert!(headless || addresses.clone().all(|address| is_in(address, [0xfd00, 0x10])), "{service:#?}");
    }
    for name in ["acme-nextcloud", "acme-pg"] {
        let of_service = list.clone().labels(&format!("kubernetes.io/service-name={name}"));
        let slices = tenant.api::<EndpointSlice>().list(&of_service).await.unwrap().items;
        assert!(slices.iter().any(|slice| !slice.endpoints.is_empty()), "{slices:#?}");
        for slice in slices {
            let mut addresses = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
            let fit = slice.address_type == "IPv6" && addresses.all(|address| is_in(address, [0xfd00, 0x128]));
            assert!(fit, "{slice:#?}");
        }
    }
    for policy in tenant.api::<NetworkPolicy>().list(&list).await.unwrap() {
        let spec = json!(policy.spec);
        assert!(!spec.to_string().contains("ipBlock"), "{spec}");
    }
    for pod in tenant.api::<Pod>().list(&list).await.unwrap() {
        assert_eq!(addresses(&json!(pod.spec)), [""; 0], "{pod:#?}");
    }
}
