//! `plan`: what helm would change for a ClientApp. helm runs here, with the rights of the user's kubeconfig, and can only read.

mod diff;

use std::fmt::Write as _;

use k8s_openapi::api::core::v1::Secret;
use kube::{Api, api::ListParams};
use semver::Version;
use serde::Deserialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use self::diff::{Change, What, changes};
use super::{
    args,
    error::Error,
    session::{Printer, Session, document},
    text::{BAD, FAINT, GOOD, PLAIN, STRONG, Style, UNSURE, harmless, paint},
};
use crate::{
    clientapp::{
        approval,
        credentials::placeholders,
        desired::{Desired, StoredProfile, desired},
        error::with_causes,
        observed::Target,
        sources, upgrade,
        values_from::{Salt, Sources, combined},
    },
    config::{Config, settings_of_plans},
    crd::{Approval, ClientApp, Profile, ValuesKind},
    helm::{
        self, ChartCache, Helm, Hidden, ReleaseLabels, Upgrade,
        gateway::Gateway,
        storage::{self, Stored},
    },
    lead::Lead,
    runtime::key::Key,
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
    let profile = profile(session, &app).await?;
    let desired = desired(&app, profile.as_ref(), (&sources, &placeholders(&app, &config)), &config)
        .map_err(|error| Error::Missing(error.to_string()))?;
    if let Some(hold) = &desired.awaits {
        return Err(Error::Missing(hold.message.clone()));
    }
    let before = deployed(session, &desired.key).await?;
    let (target, after) = rendered(session, args, &desired).await?;
    let hidden = hidden(&desired, &before, &app)?;
    let found = changes(&before, &after, &hidden).map_err(Error::Missing)?;

    printer.out(&shown(&found))?;
    let status = app.status.clone().unwrap_or_default();
    let from = upgrade::installed(&status).map(|chart| chart.version);
    printer.out(&summary(&found, from.as_deref(), &target))?;
    if let Some(hold) = upgrade::refusal(&desired, &target, &status) {
        printer.note(&format!("{} the operator would refuse it: {}", paint(UNSURE, "note:"), harmless(&hold.message)));
    }
    let is_of_cluster = args.file.is_none() && args.version.is_none();
    if let Some(told) = told(&desired, &app, &target).filter(|_| is_of_cluster) {
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
            if app.metadata.name.as_ref() != Some(&args.name) {
                return Err(failed(format!("it has another ClientApp than {}", args.name)));
            }
            app
        }
        (None, Some(stored)) => stored.clone(),
        (None, None) => return Err(Error::Missing(format!("there is no ClientApp {}", args.name))),
    };
    app.metadata.namespace = Some(session.namespace.clone());
    app.status = stored.and_then(|stored| stored.status.clone());
    if let Some(version) = &args.version {
        app.spec.chart_version = version.to_string();
    }
    Ok(app)
}

async fn profile(session: &Session, app: &ClientApp) -> Result<Option<StoredProfile>, Error> {
    let Some(name) = &app.spec.profile else { return Ok(None) };
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
    Ok(combined(&key, found.iter().map(|(of, source)| (*of, source.as_ref())), Salt::default()))
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

/// The chart, and what helm makes of it.
async fn rendered(session: &Session, args: &args::Plan, desired: &Desired) -> Result<(Target, Stored), Error> {
    let failed = |what: &str, error: &dyn std::error::Error| Error::Missing(format!("{what}: {}", with_causes(error)));
    let prepare = |error: std::io::Error| Error::Missing(format!("prepare a directory for helm: {error}"));
    let helm =
        Helm::new(settings_of_plans(&args.install)).map_err(|error| failed("prepare a directory for helm", &error))?;
    helm.check().await.map_err(|error| failed("helm cannot be used", &error))?;
    let directory = tempfile::tempdir().map_err(prepare)?;
    let (repository, chart) = (args.install.chart_repository.clone(), args.install.chart.chart.clone());
    let stop = CancellationToken::new();
    let charts = ChartCache::new(helm.clone(), repository, chart, directory.path().to_owned(), stop.clone());
    let chart = charts.get(&desired.chart_version).await.map_err(|error| Error::Missing(with_causes(&*error)))?;
    let gateway = Gateway::open(session.client.clone(), Lead::assured()).await.map_err(prepare)?;
    let parsed = |error: helm::command::InvalidArgument| Error::Usage(error.to_string());
    let request = Upgrade {
        release: desired.key.name.parse().map_err(parsed)?,
        namespace: desired.key.namespace.parse().map_err(parsed)?,
        account: desired.account.clone(),
        chart: chart.path.clone(),
        values: helm::values::document(&desired.values.0),
        hidden: desired.hidden.clone(),
        // None of them is in what is rendered.
        labels: ReleaseLabels {
            digest: "plan".parse().map_err(parsed)?,
            holder: "plan".parse().map_err(parsed)?,
            operation: "plan".parse().map_err(parsed)?,
            revision: 0,
        },
    };
    let finished = helm.plan(&gateway, &request, &stop).await.map_err(|error| failed("helm", &error))?;
    let target = Target::from(chart.as_ref());
    // Warnings may stand before it.
    let json = finished.stdout.find('{').map_or("", |start| &finished.stdout[start..]);
    let after = Stored::deserialize(&mut serde_json::Deserializer::from_str(json))
        .map_err(|error| Error::Missing(format!("helm's output is not a release: {error}")))?;
    Ok((target, after))
}

/// What must not be shown: the values from Secrets, and those that may have been.
///
/// # Errors
/// They are too many, or the former ones cannot be read: showing nothing is better then.
fn hidden(desired: &Desired, before: &Stored, app: &ClientApp) -> Result<Hidden, Error> {
    let from_secrets = app.spec.values_from.iter().any(|of| of.kind == ValuesKind::Secret);
    let Some(config) = before.config.as_ref().filter(|_| from_secrets) else { return Ok(desired.hidden.clone()) };
    let config: Option<Value> = serde_json::from_str(config.get()).ok();
    let hidden = config.and_then(|config| Hidden::formerly(&config, &desired.values.0, &desired.hidden));
    hidden.ok_or_else(|| {
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

fn summary(found: &[Change], from: Option<&str>, target: &Target) -> String {
    let count = |wanted: &[What]| found.iter().filter(|change| wanted.contains(&change.what)).count();
    let Target { chart, version, .. } = target;
    let version = match from {
        Some(from) if from.parse::<Version>().ok().as_ref() != Some(version) => format!("{from} -> {version}"),
        _ => version.to_string(),
    };
    let (added, changed, removed) =
        (count(&[What::Added]), count(&[What::Changed]), count(&[What::Removed, What::Left]));
    let counts = format!("{added} to add, {changed} to change, {removed} to remove");
    format!("{} {chart} {version}: {counts}\n", paint(STRONG, "Plan:"))
}

/// Whether this is what the operator has in mind, and what to do about it. **Pure.**
fn told(desired: &Desired, app: &ClientApp, target: &Target) -> Option<String> {
    let name = &desired.key.name;
    let status = app.status.as_ref();
    let waits = status.and_then(|status| status.plan.as_ref()).filter(|_| desired.approval == Approval::Manual)?;
    if status.and_then(|status| status.observed_generation) != app.metadata.generation {
        return Some("the operator has not looked at the present spec yet: run this again in a moment".to_owned());
    }
    let approve = format!("`kubectl clientapp approve {name} {}` lets helm run", waits.digest);
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
