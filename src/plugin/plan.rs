//! `plan`: what helm would change for a ClientApp. helm runs here, with the rights of the user's kubeconfig, and can only read.

mod diff;

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::ListParams};
use semver::Version;
use serde::Deserialize;
use serde_json::{Map, Value};
use tokio_util::sync::CancellationToken;

use self::diff::{Change, What, changes, hooks};
use super::{
    args,
    connection::Flags,
    error::Error,
    session::{Printer, Session, document},
    text::{BAD, FAINT, GOOD, PLAIN, STRONG, Style, UNSURE, harmless, paint},
};
use crate::{
    clientapp::{
        decide::{approval, upgrade},
        error::with_causes,
        observe::sources,
        observed::{installed_chart, types::CachedChart, volumes},
        spec::{
            credentials::placeholders,
            desired::{Desired, StoredProfile, desired},
            values_from::{Salt, Sources, merge},
        },
    },
    config::{Config, settings_of_plans},
    crd::{Approval, ClientApp, Profile},
    helm::{
        self, ChartCache, Helm, Redactor, ReleaseLabels, Upgrade,
        gateway::Gateway,
        storage::{self, Stored},
    },
    leadership::Leadership,
    platform::key::Key,
    secrets,
};

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Plan) -> Result<(), Error> {
    let name = &args.name;
    let stored = match session.app(name).await {
        Ok(stored) => Some(stored.app),
        // A file may describe one that does not exist yet.
        Err(Error::NotFound { .. }) if args.file.is_some() => None,
        Err(error) => return Err(error),
    };
    let app = asked(session, args, stored.as_ref())?;
    let config = Config::new(&args.install.chart).map_err(|error| Error::Usage(error.to_string()))?;
    let sources = values_from(session, &app).await?;
    let profile = profile(session, args, &app).await?;
    let desired = desired(&app, profile.as_ref(), (&sources, &placeholders(&app, &config)), &config)
        .map_err(|error| Error::Missing(error.to_string()))?;
    if let Some(hold) = &desired.values.awaits {
        return Err(Error::Missing(hold.message.clone()));
    }
    let before = deployed(session, &desired.key).await?;
    let (target, values, after) = rendered(session, args, &desired).await?;
    let status = app.status.clone().unwrap_or_default();
    let hidden = match status.secret_values {
        Some(false) => desired.values.redactor.clone(),
        _ => hidden(&before, &values, &desired.values.redactor)?,
    };
    // What cannot be read may be quoted.
    let found = changes(&before, &after, &hidden).map_err(|problem| Error::Missing(hidden.redact(&problem)))?;
    let hooks = hooks(&after, desired.upgrade.test.is_some(), &hidden);

    let values_stored = stored.as_ref().map(|stored| &stored.spec.values);
    if args.file.is_some()
        && let Some(note) = lost(&lost_nulls("spec.values", &app.spec.values, values_stored))
    {
        printer.note(&format!("{} {}", paint(UNSURE, "note:"), harmless(&note)));
    }
    printer.out(&shown(&found))?;
    let from = installed_chart::installed(&status).map(|chart| chart.version);
    printer.out(&summary(&found, &hooks, from.as_deref(), &target))?;
    if let Some(hold) = upgrade::refusal(&desired, &target, &status) {
        printer.note(&format!("{} the operator would refuse it: {}", paint(UNSURE, "note:"), harmless(&hold.message)));
    }
    for sentence in &desired.values.replaced {
        printer.note(&format!("{} {}", paint(UNSURE, "note:"), harmless(sentence)));
    }
    let dropped = volumes::review(&desired, status.inventory.as_ref(), &status.owned).map(|review| review(&after));
    if let Some(Err(refusal)) = dropped {
        printer.note(&format!(
            "{} the operator would refuse it: {}",
            paint(UNSURE, "note:"),
            harmless(&hidden.redact(&refusal))
        ));
    }
    let is_of_cluster = args.file.is_none() && args.profile.is_none() && args.version.is_none();
    if let Some(told) = told(&desired, &app, &target, &session.flags).filter(|_| is_of_cluster) {
        printer.note(&told);
    }
    Ok(())
}

/// The ClientApp that is planned: as stored, or as the user's file or version would make it.
fn asked(session: &Session, args: &args::Plan, stored: Option<&ClientApp>) -> Result<ClientApp, Error> {
    let mut app = match (&args.file, stored) {
        (Some(path), _) => {
            let failed = Error::file(path);
            let app: ClientApp = crate::crd::read(&document(path)?).map_err(&failed)?;
            fits(&app, &args.name, &session.namespace).map_err(&failed)?;
            app
        }
        (None, Some(stored)) => stored.clone(),
        (None, None) => return Err(Error::Missing(format!("there is no ClientApp {}", args.name))),
    };
    app.metadata.namespace = Some(session.namespace.clone());
    app.status = stored.and_then(|stored| stored.status.clone());
    if let Some(version) = &args.version {
        app.spec.chart_version = Some(version.to_string());
    }
    Ok(app)
}

/// Returns the paths that a file sets to null and the stored ClientApp does not have: without `--server-side`, `kubectl apply` leaves
/// null out of what it creates, and in the patch that it sends otherwise null means absent. **Pure.**
fn lost_nulls(at: &str, file: &Map<String, Value>, stored: Option<&Map<String, Value>>) -> Vec<String> {
    let lost = |(key, value): (&String, &Value)| {
        let (path, stored) = (format!("{at}.{key}"), stored.and_then(|stored| stored.get(key)));
        match value {
            Value::Null if stored.is_none() => vec![path],
            Value::Object(file) => lost_nulls(&path, file, stored.and_then(Value::as_object)),
            _ => Vec::new(),
        }
    };
    file.iter().flat_map(lost).collect()
}

fn lost(paths: &[String]) -> Option<String> {
    let first = paths.first()?;
    let more = paths.len().checked_sub(2).map(|more| format!(" and {} more", more + 1)).unwrap_or_default();
    Some(format!(
        "`kubectl apply` loses null in {first}{more}: use its --server-side and --force-conflicts, or set it in an object of spec.valuesFrom"
    ))
}

/// Returns why a file does not have the ClientApp that is asked for; without a namespace, it fits any. **Pure.**
fn fits(app: &ClientApp, name: &str, namespace: &str) -> Result<(), String> {
    if app.metadata.name.as_deref() != Some(name) {
        return Err(format!("it has another ClientApp than {name}"));
    }
    match app.metadata.namespace.as_deref() {
        Some(other) if !["", namespace].contains(&other) => Err(format!(
            "the namespace from the file \"{other}\" does not match the namespace \"{namespace}\": pass --namespace={other}"
        )),
        _ => Ok(()),
    }
}

/// Returns the Profile of the ClientApp: as stored, or as the user's file would make it.
async fn profile(session: &Session, args: &args::Plan, app: &ClientApp) -> Result<Option<StoredProfile>, Error> {
    let Some(name) = &app.spec.profile else {
        let of_none = |path| Error::file(path)(format!("ClientApp {} has no Profile", args.name));
        return args.profile.as_deref().map_or(Ok(None), |path| Err(of_none(path)));
    };
    if let Some(path) = &args.profile {
        let failed = Error::file(path);
        let profile: Profile = crate::crd::read(&document(path)?).map_err(&failed)?;
        return match profile.metadata.name.as_ref() == Some(name) {
            true => Ok(Some(Ok(profile.spec))),
            false => Err(failed(format!("it has another Profile than {name}, which ClientApp {} has", args.name))),
        };
    }
    let found = Api::<Profile>::all(session.client.clone()).get_opt(name).await;
    Ok(found.map_err(Error::api(format!("read Profile {name}")))?.map(|profile| Ok(profile.spec)))
}

/// The values from elsewhere, read as the user.
async fn values_from(session: &Session, app: &ClientApp) -> Result<Sources, Error> {
    let mut found = Vec::new();
    for of in &app.spec.values_from {
        let what = format!("read {} {}, which spec.valuesFrom names", of.kind, of.name);
        let source = sources::source(&session.client, &session.namespace, of).await;
        found.push((of, source.map_err(Error::api(what))?));
    }
    let key = Key::new(&session.namespace, app.metadata.name.clone().unwrap_or_default());
    Ok(merge(&key, found.iter().map(|(of, source)| (*of, source.as_ref())), Salt::default()))
}

/// The newest deployed revision, as Helm stored it; nothing if there is none.
async fn deployed(session: &Session, key: &Key) -> Result<Stored, Error> {
    let api = session.api::<Secret>();
    let of = ListParams::default().labels(&format!("owner=helm,status=deployed,name={}", key.name));
    let what = format!("read the Helm release {}", key.name);
    let found = api.list_metadata(&of).await.map_err(Error::api(what.clone()))?;
    let newest = found.items.iter().filter_map(secrets::revision).map(|found| found.revision).max();
    let Some(newest) = newest else { return Ok(Stored::default()) };
    let secret = api.get(&storage::secret(&key.name, newest)).await.map_err(Error::api(what.clone()))?;
    let payload = secret.data.and_then(|mut data| data.remove("release")).unwrap_or_default();
    storage::read(&payload.0).map_err(|problem| Error::Missing(format!("{what}: revision {newest}: {problem}")))
}

/// The chart, the values as it reads them, and what helm makes of both.
async fn rendered(
    session: &Session,
    args: &args::Plan,
    desired: &Desired,
) -> Result<(CachedChart, Value, Stored), Error> {
    let failed = |what: &str, error: &dyn std::error::Error| Error::Missing(format!("{what}: {}", with_causes(error)));
    let prepare = |error: std::io::Error| Error::Missing(format!("prepare a directory for helm: {error}"));
    let helm =
        Helm::new(settings_of_plans(&args.install)).map_err(|error| failed("prepare a directory for helm", &error))?;
    helm.check().await.map_err(|error| failed("helm cannot be used", &error))?;
    let directory = tempfile::tempdir().map_err(prepare)?;
    let (repository, chart) = (args.install.chart_repository.clone(), args.install.chart.chart.clone());
    let stop = CancellationToken::new();
    let charts = ChartCache::new(helm.clone(), repository, chart, directory.path().to_owned(), stop.clone());
    let chart =
        charts.get(&desired.target().chart_version).await.map_err(|error| Error::Missing(with_causes(&*error)))?;
    let gateway = Gateway::open(session.client.clone(), Leadership::unconditional()).await.map_err(prepare)?;
    let parsed = |error: helm::cli::command::InvalidArgument| Error::Usage(error.to_string());
    let values = chart.values(desired.values.merged.0.clone());
    let request = Upgrade {
        release: desired.key.name.parse().map_err(parsed)?,
        namespace: desired.key.namespace.parse().map_err(parsed)?,
        account: desired.account.clone(),
        chart: chart.path.clone(),
        values: helm::values::document(&values),
        redactor: desired.values.redactor.clone(),
        // None of them is in what is rendered.
        labels: ReleaseLabels {
            digest: "plan".parse().map_err(parsed)?,
            holder: "plan".parse().map_err(parsed)?,
            operation: "plan".parse().map_err(parsed)?,
            revision: 0,
        },
    };
    let finished = helm.plan(&gateway, &request, &stop).await.map_err(|error| failed("helm", &error))?;
    let target = CachedChart::from(chart.as_ref());
    // Warnings may stand before it.
    let json = finished.stdout.find('{').map_or("", |start| &finished.stdout[start..]);
    let after = Stored::deserialize(&mut serde_json::Deserializer::from_str(json))
        .map_err(|error| Error::Missing(format!("helm's output is not a release: {error}")))?;
    Ok((target, values, after))
}

/// Returns what must not be shown: the values from Secrets, and those that may have been, if the deployed revision may have any: its spec is
/// not known any more. **Pure.**
///
/// # Errors
/// They are too many, or the former ones cannot be read: showing nothing is better then.
fn hidden(before: &Stored, values: &Value, hidden: &Redactor) -> Result<Redactor, Error> {
    let Some(config) = &before.config else { return Ok(hidden.clone()) };
    let config: Option<Value> = serde_json::from_str(config.get()).ok();
    config.and_then(|config| Redactor::for_previous_values(&config, values, hidden)).ok_or_else(|| {
        Error::Missing("nothing is shown: the values of the deployed revision cannot be kept out of it".to_owned())
    })
}

/// The changes as a unified diff for each object. **Pure.**
fn shown(found: &[Change]) -> String {
    let mut text = String::new();
    for Change { what, object, diff } in found {
        let (sign, style) = match what {
            What::Added => ("+", GOOD),
            What::Changed => ("~", UNSURE),
            What::Removed | What::Left => ("-", BAD),
        };
        let left = if *what == What::Left { ", which stays in the cluster" } else { "" };
        let _ = writeln!(text, "{}", paint(style, format!("{sign} {}{left}", harmless(object))));
        for line in diff.lines() {
            let style = match line.as_bytes().first() {
                Some(b'+') => GOOD,
                Some(b'-') => BAD,
                Some(b'@') => FAINT,
                _ => PLAIN,
            };
            let _ = writeln!(text, "  {}", painted(style, &harmless(line)));
        }
    }
    text
}

fn painted(style: Style, line: &str) -> String {
    if style == PLAIN { line.to_owned() } else { paint(style, line) }
}

/// How much changes, and what runs: hooks run even if nothing changes. **Pure.**
fn summary(found: &[Change], hooks: &[String], from: Option<&str>, target: &CachedChart) -> String {
    let count = |wanted: &[What]| found.iter().filter(|change| wanted.contains(&change.what)).count();
    let CachedChart { chart, version, .. } = target;
    let version = match from {
        Some(from) if from.parse::<Version>().ok().as_ref() != Some(version) => format!("{from} -> {version}"),
        _ => version.to_string(),
    };
    let (added, changed, removed) =
        (count(&[What::Added]), count(&[What::Changed]), count(&[What::Removed, What::Left]));
    let counts = format!("{added} to add, {changed} to change, {removed} to remove");
    let hooks = match hooks {
        [] => String::new(),
        hooks => format!("{} {}\n", paint(STRONG, "Hooks that run:"), harmless(&hooks.join(", "))),
    };
    format!("{} {chart} {version}: {counts}\n{hooks}", paint(STRONG, "Plan:"))
}

/// Says if this is what the operator has in mind, and what to do about it; `None`: nothing waits for approval. **Pure.**
fn told(desired: &Desired, app: &ClientApp, target: &CachedChart, flags: &Flags) -> Option<String> {
    let name = &desired.key.name;
    let status = app.status.as_ref();
    let waits =
        status.and_then(|status| status.plan.as_ref()).filter(|_| desired.upgrade.approval == Approval::Manual)?;
    if status.and_then(|status| status.observed_generation) != app.metadata.generation {
        return Some("the operator has not looked at the present spec yet: run this again in a moment".to_owned());
    }
    let approve = flags.command(format!("kubectl clientapp approve {name} {}", waits.digest));
    let approve = format!("{approve} lets helm run");
    Some(match (app.spec.values_from.is_empty(), approval::planned(desired, target).digest == waits.digest) {
        (true, true) => format!("it waits for approval: {approve}"),
        (true, false) => format!(
            "the operator has another plan, {}: give its settings here, such as --base-values and --chart-repository, and this shows what it would install",
            waits.digest
        ),
        // The digest is salted.
        (false, _) => format!(
            "it waits for approval: {approve}; whether this is its plan cannot be verified, because of spec.valuesFrom"
        ),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_file_has_the_app_that_is_asked_for() {
        let mismatch =
            r#"the namespace from the file "other" does not match the namespace "tenants": pass --namespace=other"#;
        for (metadata, problem) in [
            (json!({"name": "acme"}), None),
            (json!({"name": "acme", "namespace": ""}), None),
            (json!({"name": "acme", "namespace": "tenants"}), None),
            (json!({"name": "acme", "namespace": "other"}), Some(mismatch)),
            (json!({"name": "beta", "namespace": "tenants"}), Some("it has another ClientApp than acme")),
            (json!({}), Some("it has another ClientApp than acme")),
        ] {
            let app = json!({
                "apiVersion": "apps.bnerd-operator.local/v1alpha1", "kind": "ClientApp", "metadata": metadata,
                "spec": {"hostname": "acme.example.com"},
            });
            let app: ClientApp = serde_json::from_value(app).unwrap();
            assert_eq!(fits(&app, "acme", "tenants").err().as_deref(), problem);
        }
    }

    #[test]
    fn a_null_that_kubectl_apply_would_lose_is_named() {
        let map = |value: Value| value.as_object().unwrap().clone();
        let file = map(json!({"a": {"b": null, "c": 1}, "d": {"e": {"f": null}}, "g": [null], "h": null}));
        let rows: [(Value, &[&str]); 3] = [
            (json!({"a": {"b": 2}, "d": {"e": {"f": null}}, "h": null}), &[]),
            (json!({"a": {"c": 1}, "d": {}, "h": 1}), &["v.a.b", "v.d.e.f"]),
            (json!({}), &["v.a.b", "v.d.e.f", "v.h"]),
        ];
        for (stored, expected) in rows {
            assert_eq!(lost_nulls("v", &file, Some(&map(stored))), expected);
        }
        assert_eq!(lost(&[]), None);
        let told = |paths: &[&str]| lost(&paths.iter().map(ToString::to_string).collect::<Vec<_>>()).unwrap();
        assert!(told(&["v.a"]).starts_with("`kubectl apply` loses null in v.a: use"), "{}", told(&["v.a"]));
        assert!(told(&["v.a", "v.b", "v.c"]).contains("null in v.a and 2 more: use"));
    }

    #[test]
    fn former_values_are_hidden_whatever_the_present_spec_has() {
        let stored = |config: &str| serde_json::from_str::<Stored>(&format!(r#"{{"config": {config}}}"#)).unwrap();
        let now = json!({"token": "plain", "level": "debug"});
        let message = "canary-former canary-present plain debug";
        let present = Redactor::from_values([&json!("canary-present")]).unwrap();
        for (config, present, expected) in [
            (r#"{"token": "canary-former", "level": "debug"}"#, Redactor::default(), "*** canary-present plain debug"),
            (r#"{"token": "canary-former", "level": "debug"}"#, present.clone(), "*** *** plain debug"),
            ("null", present, "canary-former *** plain debug"),
        ] {
            assert_eq!(hidden(&stored(config), &now, &present).unwrap().redact(message), expected);
        }
        let many = json!((0..=Redactor::MAX_TEXTS).map(|at| format!("text {at}")).collect::<Vec<_>>()).to_string();
        let problem = hidden(&stored(&many), &now, &Redactor::default()).unwrap_err();
        assert!(problem.to_string().starts_with("nothing is shown"), "{problem}");
    }

    #[test]
    fn the_summary_names_the_hooks_that_run() {
        let target = CachedChart {
            chart: "app".to_owned(),
            version: Version::new(1, 2, 3),
            app_version: None,
            digest: String::new(),
        };
        let told = |hooks: &[&str], from| {
            let hooks: Vec<_> = hooks.iter().map(ToString::to_string).collect();
            anstream::adapter::strip_str(&summary(&[], &hooks, from, &target)).to_string()
        };
        assert_eq!(told(&[], None), "Plan: app 1.2.3: 0 to add, 0 to change, 0 to remove\n");
        assert_eq!(
            told(&["Job prepare (pre-upgrade)", "Job a\u{202e}b (test)"], Some("1.2.2")),
            "Plan: app 1.2.2 -> 1.2.3: 0 to add, 0 to change, 0 to remove\n\
             Hooks that run: Job prepare (pre-upgrade), Job a b (test)\n"
        );
    }
}
