//! The optional parts of a chart, each as ClientApps that ask for it. **Pure.**

use serde_json::{Value, json};

/// The namespace of all ClientApps here.
pub const NAMESPACE: &str = "tenant-acme";
/// The name of a ClientApp, unless its case is about names.
pub const NAME: &str = "acme";
pub const HOSTNAME: &str = "acme.example.com";

/// What not all versions have of the variants with several parts, by its path in the values: the others are rendered without it.
pub const SINCE: &[&str] = &["httpRoute", "cronjob/type"];

/// The Secret of the user in the cases of an existing database.
const EXTERNAL: &str = "my-database";
const HEX: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

/// One optional part: a column of the table.
#[derive(Clone, Debug)]
pub struct Part {
    pub name: &'static str,
    /// The key in the chart's own values without which a chart version does not have the part.
    pub needs: &'static str,
    pub variants: Vec<Variant>,
}

/// One way to ask for a part.
#[derive(Clone, Debug)]
pub struct Variant {
    /// Tells it from the other variants of its part.
    pub name: String,
    /// The ClientApp's name.
    pub app: String,
    /// What the spec has beside hostname and chart version.
    pub spec: Value,
    /// True if the operator may refuse the spec.
    pub may_be_refused: bool,
}

impl Variant {
    fn new(name: &str, spec: Value) -> Variant {
        Variant { name: name.to_owned(), app: NAME.to_owned(), spec, may_be_refused: false }
    }

    fn named(name: &str, app: String, spec: Value) -> Variant {
        Variant { app, ..Variant::new(name, spec) }
    }

    /// Returns the ClientApp at a chart version.
    #[must_use]
    pub fn app(&self, version: &str) -> Value {
        let mut spec = json!({"hostname": HOSTNAME, "chartVersion": version});
        for (key, value) in self.spec.as_object().into_iter().flatten() {
            spec[key] = value.clone();
        }
        json!({
            "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp",
            "metadata": {"name": self.app, "namespace": NAMESPACE}, "spec": spec,
        })
    }

    /// Returns the Secrets that the user makes for this ClientApp, with their keys.
    #[must_use]
    pub fn secrets(&self) -> &'static [(&'static str, &'static [&'static str])] {
        if self.spec["postgres"]["provider"] == "external" {
            &[(EXTERNAL, &["host", "port", "user", "password", "dbname"])]
        } else {
            &[]
        }
    }
}

/// Returns all parts. `longest` is the longest name that the operator accepts.
#[must_use]
pub fn all(longest: &str) -> Vec<Part> {
    let part = |name, needs, variants| Part { name, needs, variants };
    let values = |name: &str, values: Value| Variant::new(name, json!({"values": values}));
    let mail = |smtp: Value| json!({"nextcloud": {"mail": {"enabled": true, "fromAddress": "cloud", "domain": "example.com", "smtp": smtp}}});
    let cron_job = json!({"enabled": true, "type": "cronjob"});
    let route = json!({"enabled": true, "parentRefs": [{"name": "gateway"}], "hostnames": [HOSTNAME]});
    let everything = json!({
        "ingressClassName": "traefik",
        "values": {"hpa": {"enabled": true}, "cronjob": cron_job, "metrics": {"enabled": true}, "httpRoute": route},
    });
    let image = |name: &str, image: &str| Variant::new(name, json!({"image": image}));
    let may_be_refused = |variant: Variant| Variant { may_be_refused: true, ..variant };
    let external = |name: &str, external: Value| {
        Variant::new(name, json!({"postgres": {"provider": "external", "external": external}}))
    };
    vec![
        part("plain", "", vec![Variant::new("", json!({}))]),
        part(
            "mail",
            "nextcloud/mail",
            vec![
                values(
                    "with password",
                    mail(
                        json!({"host": "smtp.example.com", "port": 465, "secure": "ssl", "name": "cloud", "password": "canary"}),
                    ),
                ),
                values(
                    "without password",
                    mail(json!({"host": "smtp.example.com", "port": 25, "secure": "", "authtype": "NONE"})),
                ),
            ],
        ),
        part("replicas", "", vec![Variant::new("", json!({"replicas": 3}))]),
        part(
            "autoscaler",
            "hpa",
            vec![
                values("", json!({"hpa": {"enabled": true, "minPods": 2, "maxPods": 4}})),
                Variant::new(
                    "beside replicas",
                    json!({"replicas": 3, "values": {"hpa": {"enabled": true, "minPods": 2, "maxPods": 4}}}),
                ),
            ],
        ),
        part("cron", "cronjob", vec![values("", json!({"cronjob": {"enabled": true}}))]),
        part("cron job", "cronjob/type", vec![values("", json!({"cronjob": cron_job}))]),
        part("metrics", "metrics", vec![values("", json!({"metrics": {"enabled": true}}))]),
        part(
            "image",
            "",
            vec![
                image("registry with port", "registry.example.com:5000/platform/nextcloud:34.0.1-apache"),
                image("registry", "registry.example.com/platform/nextcloud:34.0.1-apache"),
                image("localhost", "localhost:5000/nextcloud:dev"),
                image("organization", "platform/nextcloud:34"),
                image("official", "nextcloud:34.0.1-apache"),
                image("digest", &format!("registry.example.com/nextcloud@sha256:{HEX}")),
                image("digest, no registry", &format!("nextcloud@sha256:{HEX}")),
                may_be_refused(image(
                    "tag and digest",
                    &format!("registry.example.com:5000/nextcloud:34@sha256:{HEX}"),
                )),
                may_be_refused(Variant::new(
                    "with jobs",
                    json!({"image": "registry.example.com:5000/nextcloud:34", "values": {"cronjob": cron_job}}),
                )),
            ],
        ),
        part("ingress", "ingress", vec![Variant::new("", json!({"ingressClassName": "traefik"}))]),
        part("httpRoute", "httpRoute", vec![values("", json!({"httpRoute": route}))]),
        part("no redis", "", vec![Variant::new("", json!({"redis": {"enabled": false}}))]),
        part("standalone", "", vec![Variant::new("", json!({"postgres": {"provider": "standalone"}}))]),
        part(
            "external",
            "",
            vec![
                external(
                    "with host",
                    json!({"secretName": EXTERNAL, "host": "db.example.com:6432", "database": "cloud"}),
                ),
                external("by keys", json!({"secretName": EXTERNAL})),
            ],
        ),
        part(
            "own lists",
            "",
            vec![
                values(
                    "",
                    json!({"nextcloud": {"extraEnv": [{"name": "MINE", "value": "1"}], "hooks": {"post-installation": "#!/bin/sh\n"}}}),
                ),
                values(
                    "with an entry of the base values",
                    json!({"nextcloud": {"extraEnv": [{"name": "PGSSLCERT", "value": "/mine"}]}}),
                ),
            ],
        ),
        part("size", "", vec![Variant::new("", json!({"persistence": {"size": "20Gi", "storageClassName": "fast"}}))]),
        part(
            "names",
            "",
            vec![
                Variant::named("one letter", "a".to_owned(), json!({})),
                Variant::named("longest", longest.to_owned(), json!({})),
                Variant::named("longest, everything", longest.to_owned(), everything.clone()),
                Variant::named("the chart's name in it", "my-nextcloud-1".to_owned(), everything.clone()),
                Variant::named("redis in it", "redis-shop".to_owned(), everything),
            ],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_a_whole_client_app() {
        let parts = all("longest");
        let variant = &parts.iter().find(|part| part.name == "replicas").unwrap().variants[0];
        let app = variant.app("5.5.2");
        assert_eq!(app["spec"], json!({"hostname": HOSTNAME, "chartVersion": "5.5.2", "replicas": 3}));
    }
}
