//! `create`: builds a ClientApp from flags.

use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{DynamicObject, PostParams},
};
use serde_json::{Map, Value, json};

use super::{
    args,
    error::{Error, described},
    output::Output,
    session::{FIELD_MANAGER, Printer, Session, document},
    wait,
};
use crate::crd::{ClientApp, IssuerKind};

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Create) -> Result<(), Error> {
    let values = args.values.as_deref().map(values).transpose()?;
    let object = object(args, &session.namespace, values);
    let what = format!("create {}", described(&session.namespace, &args.name));
    let typed: DynamicObject =
        serde_json::from_value(object.clone()).map_err(|error| Error::Usage(format!("{what}: {error}")))?;
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), dry_run: args.dry_run };
    if args.dry_run {
        match session.apps().create(&params, &typed).await {
            Ok(_) => {}
            Err(error) if args.create_namespace && lacks_namespace(&error) => printer.note(&format!(
                "namespace {} does not exist yet, so the API server could not check the ClientApp",
                session.namespace
            )),
            Err(error) => return Err(refused(session, &what, error)),
        }
        if printer.is_for_humans() {
            printer.output = Output::Yaml;
        }
        // As requested: defaults set by the API server do not belong in the user's file.
        return printer.object(&object, "");
    }
    if args.create_namespace {
        let namespace = Namespace {
            metadata: kube::api::ObjectMeta { name: Some(session.namespace.clone()), ..Default::default() },
            ..Namespace::default()
        };
        match Api::<Namespace>::all(session.client.clone()).create(&params, &namespace).await {
            Ok(_) => printer.note(&format!("namespace/{} created", session.namespace)),
            Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
            Err(error) => return Err(Error::api(format!("create Namespace {}", session.namespace))(error)),
        }
    }
    let made = session.apps().create(&params, &typed).await.map_err(|error| refused(session, &what, error))?;
    let name = made.name_any();
    let sentence = format!("clientapp/{name} created in namespace {}", session.namespace);
    wait::asked(session, printer, &made, &sentence, &args.waiting, None).await?;
    if !args.waiting.wait && printer.is_for_humans() {
        let wait = session.flags.command(format!("kubectl clientapp wait {name}"));
        printer.note(&format!("{wait} waits until it is ready"));
    }
    Ok(())
}

fn refused(session: &Session, what: &str, error: kube::Error) -> Error {
    if lacks_namespace(&error) {
        let namespace = &session.namespace;
        return Error::Missing(format!("{what}: namespace {namespace} does not exist: add --create-namespace"));
    }
    Error::api(what)(error)
}

fn lacks_namespace(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else { return false };
    status.code == 404 && status.details.as_ref().is_some_and(|details| details.kind == "namespaces")
}

/// The object with the given fields only: the others follow the CRD's defaults and the Profile. **Pure.**
pub(crate) fn object(args: &args::Create, namespace: &str, values: Option<Map<String, Value>>) -> Value {
    let part = |fields: &[(&str, Option<Value>)]| {
        let given = fields.iter().filter_map(|(key, value)| Some(((*key).to_owned(), value.clone()?)));
        Some(given.collect::<Map<_, _>>()).filter(|part| !part.is_empty()).map(Value::Object)
    };
    let text = |text: &Option<String>| text.clone().map(Value::from);
    let off = |off: bool| off.then_some(Value::Bool(false));
    let provider = match (args.standalone, args.cloudnativepg, &args.postgres_secret) {
        (true, ..) => Some("standalone"),
        (false, true, _) => Some("cloudnativepg"),
        (false, false, Some(_)) => Some("external"),
        (false, false, None) => None,
    };
    let issuer = match (&args.tls_issuer, &args.tls_cluster_issuer) {
        (Some(name), _) => Some(json!({"name": name})),
        (None, Some(name)) => Some(json!({"name": name, "kind": IssuerKind::ClusterIssuer})),
        (None, None) => None,
    };
    let spec = part(&[
        ("hostname", Some(args.hostname.clone().into())),
        ("chartVersion", text(&args.chart_version)),
        ("ingressClassName", text(&args.ingress_class)),
        (
            "tls",
            part(&[
                ("issuer", issuer),
                ("secretName", text(&args.tls_secret)),
                ("terminatedElsewhere", args.tls_elsewhere.then_some(Value::Bool(true))),
            ]),
        ),
        ("profile", text(&args.profile)),
        ("image", text(&args.image)),
        ("replicas", args.replicas.map(Value::from)),
        ("redis", part(&[("enabled", off(args.no_redis))])),
        (
            "postgres",
            part(&[
                ("enabled", off(args.no_postgres)),
                ("provider", provider.map(Value::from)),
                ("external", part(&[("secretName", text(&args.postgres_secret))])),
                ("version", text(&args.postgres_version)),
                ("storageSize", text(&args.storage)),
                ("adopt", args.adopt.then_some(Value::Bool(true))),
            ]),
        ),
        ("persistence", part(&[("size", text(&args.size))])),
        ("values", values.filter(|values| !values.is_empty()).map(Value::Object)),
        ("deletionPolicy", args.deletion_policy.map(|policy| json!(policy))),
    ]);
    json!({
        "apiVersion": ClientApp::api_version(&()),
        "kind": ClientApp::kind(&()),
        "metadata": {"name": args.name, "namespace": namespace},
        "spec": spec,
    })
}

fn values(path: &std::path::Path) -> Result<Map<String, Value>, Error> {
    match document(path)? {
        Value::Null => Ok(Map::new()),
        Value::Object(values) => Ok(values),
        _ => Err(Error::file(path)("values must be a YAML mapping, as for `helm install --values`".to_owned())),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::plugin::args::{Cli, Command};

    fn made(flags: &[&str], values: Option<Map<String, Value>>) -> String {
        let line = ["kubectl-clientapp", "create", "acme", "--hostname", "acme.example.com"];
        let cli = Cli::try_parse_from(line.iter().chain(flags)).unwrap();
        let Command::Create(args) = cli.command else { panic!("not create") };
        serde_yaml::to_string(&object(&args, "tenant-acme", values)).unwrap()
    }

    #[test]
    fn only_what_is_asked_for() {
        insta::assert_snapshot!(made(&[], None));
        let flags = [
            "--ingress-class=traefik",
            "--chart-version=5.5.3",
            "--profile=gold",
            "--image=a:b",
            "--replicas=2",
            "--no-redis",
            "--postgres-version=16",
            "--storage=2Gi",
            "--size=20Gi",
            "--deletion-policy=retain",
        ];
        let values = json!({"cronjob": {"enabled": true}});
        insta::assert_snapshot!(made(&flags, values.as_object().cloned()));
        insta::assert_snapshot!(made(&["--no-postgres"], None));
        insta::assert_snapshot!(made(&["--standalone", "--adopt"], None));
        insta::assert_snapshot!(made(&["--postgres-secret=theirs"], None));
        let made_by_cloudnativepg: Value = serde_yaml::from_str(&made(&["--cloudnativepg"], None)).unwrap();
        assert_eq!(made_by_cloudnativepg["spec"]["postgres"], json!({"provider": "cloudnativepg"}));
        for (flag, tls) in [
            ("--tls-issuer=own", json!({"issuer": {"name": "own"}})),
            ("--tls-cluster-issuer=acme", json!({"issuer": {"name": "acme", "kind": "ClusterIssuer"}})),
            ("--tls-secret=wildcard", json!({"secretName": "wildcard"})),
            ("--tls-elsewhere", json!({"terminatedElsewhere": true})),
        ] {
            let made: Value = serde_yaml::from_str(&made(&["--ingress-class=traefik", flag], None)).unwrap();
            assert_eq!(made["spec"]["tls"], tls, "{flag}");
        }
    }
}
