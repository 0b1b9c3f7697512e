//! `status`: a ClientApp and everything that belongs to it, as far as the user may see it.

use std::fmt::Debug;

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::PersistentVolumeClaim,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams},
    core::NamespaceResourceScope,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{
    error,
    error::Error,
    list::sentence,
    session::{Printer, Session},
    text::{BAD, FAINT, GOOD, Node, STRONG, UNSURE, age, cell, lines, paint, span, styled, verdict},
};
use crate::{
    clientapp::names::Maker,
    crd::{
        BackupRecord, ClientApp, ClientAppStatus, PostgresProvider, Postgresql, Release,
        conditions::{find, kind},
        label,
        percona::{CLUSTER_LABEL, PerconaPGCluster},
    },
};

/// What was seen, or in parentheses why it was not.
pub type Look<T> = Result<T, String>;

/// What belongs to an app.
pub struct Belongings {
    /// Its PerconaPGCluster or Postgresql; `None`: it has none.
    pub database: Option<(String, Look<DynamicObject>)>,
    /// Its Deployments.
    pub deployments: Look<Vec<Deployment>>,
    /// Its StatefulSets.
    pub stateful_sets: Look<Vec<StatefulSet>>,
    /// Its volumes.
    pub volumes: Look<Vec<PersistentVolumeClaim>>,
}

/// Shows it.
///
/// # Errors
/// There is no such ClientApp, or it may not be read.
pub async fn run(session: &Session, printer: &mut Printer, name: &str) -> Result<(), Error> {
    let stored = session.app(name).await?;
    if printer.output != super::args::Output::Table {
        return printer.object(&stored.object, "");
    }
    let server = stored.app.status.as_ref().and_then(|status| status.postgres_cluster_name.clone());
    let maker = maker(&stored.app);
    let of_release = format!("app.kubernetes.io/instance={name},app.kubernetes.io/managed-by=Helm");
    let of_server = server.as_ref().map(|server| match maker {
        Maker::Percona => format!("{CLUSTER_LABEL}={server}"),
        Maker::Standalone => format!("{}={server}", label::POSTGRESQL),
    });
    let (database, deployments, stateful_sets, volumes, more_volumes) = tokio::join!(
        async {
            let name = server.clone()?;
            let kind = match maker {
                Maker::Percona => ApiResource::erase::<PerconaPGCluster>(&()),
                Maker::Standalone => ApiResource::erase::<Postgresql>(&()),
            };
            let api: Api<DynamicObject> = Api::namespaced_with(session.client.clone(), &session.namespace, &kind);
            let found = api.get(&name).await.map_err(|error| unseen("read", &kind.plural, &error));
            Some((name, found))
        },
        belonging::<Deployment>(session, Some(&of_release)),
        belonging::<StatefulSet>(session, Some(&of_release)),
        belonging::<PersistentVolumeClaim>(session, Some(&of_release)),
        belonging::<PersistentVolumeClaim>(session, of_server.as_deref()),
    );
    let volumes = volumes.and_then(|volumes| Ok([volumes, more_volumes?].concat()));
    let seen = Belongings { database, deployments, stateful_sets, volumes };
    printer.out(&render(&stored.app, &seen, Session::now()))
}

async fn belonging<K>(session: &Session, labels: Option<&str>) -> Look<Vec<K>>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + DeserializeOwned + Debug,
{
    let Some(labels) = labels else { return Ok(Vec::new()) };
    let found = session.api::<K>().list(&ListParams::default().labels(labels)).await;
    found.map(|found| found.items).map_err(|error| unseen("list", &K::plural(&()), &error))
}

fn unseen(verb: &str, resource: &str, error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => format!("(no permission to {verb} {resource})"),
        kube::Error::Api(status) if error::kind_is_missing(status) => format!("(this cluster has no {resource})"),
        kube::Error::Api(status) if status.code == 404 => "(does not exist)".to_owned(),
        other => format!("({})", error::sentence(other)),
    }
}

/// The tree. **Pure.**
#[must_use]
pub fn render(app: &ClientApp, seen: &Belongings, now: Timestamp) -> String {
    let status = app.status.clone().unwrap_or_default();
    let (namespace, name) = (app.metadata.namespace.as_deref(), app.metadata.name.as_deref());
    let title = error::described(namespace.unwrap_or_default(), name.unwrap_or_default());
    let served = status.url.clone().unwrap_or_else(|| format!("{} (not served yet)", app.spec.hostname));
    let mut below = vec![];
    let holds = |type_| find(&status.conditions, type_).is_some_and(|condition| condition.status == "True");
    if !holds(kind::READY) || status.observed_generation != app.metadata.generation {
        let (style, word) = if holds(kind::STALLED) { (BAD, "stalled:") } else { (UNSURE, "waits:") };
        below.push(Node::leaf(format!("{} {}", paint(style, word), sentence(app))));
    }
    if app.spec.suspend {
        below.push(Node::leaf(paint(UNSURE, "suspended: nothing is changed until it is resumed")));
    }
    below.extend([
        Node::new(paint(STRONG, "Conditions"), conditions(&status, now)),
        release(app, &status, now),
        database(app, seen),
        group("Workloads", workloads(seen)),
        group("Volumes", volumes(seen)),
    ]);
    let head = format!("{}  {served}  {}", paint(STRONG, &title), paint(FAINT, &format!("age {}", created(app, now))));
    Node::new(head, below).draw()
}

fn created(app: &ClientApp, now: Timestamp) -> String {
    age(app.metadata.creation_timestamp.as_ref().map(|time| time.0), now)
}

fn group(title: &str, below: Vec<Node>) -> Node {
    let title = paint(STRONG, title);
    if below.is_empty() { Node::leaf(format!("{title} none")) } else { Node::new(title, below) }
}

fn conditions(status: &ClientAppStatus, now: Timestamp) -> Vec<Node> {
    let rows: Vec<_> = status
        .conditions
        .iter()
        .map(|condition| {
            let good = if condition.type_ == kind::STALLED { "False" } else { "True" };
            let style = match condition.type_.as_str() {
                kind::RECONCILING => {
                    if condition.status == "True" {
                        UNSURE
                    } else {
                        FAINT
                    }
                }
                _ => verdict(&condition.status, good),
            };
            vec![
                cell(condition.type_.clone()),
                styled(condition.status.clone(), style),
                cell(condition.reason.clone()),
                styled(age(Some(condition.last_transition_time.0), now), FAINT),
                cell(condition.message.clone()),
            ]
        })
        .collect();
    lines(&rows, 2).into_iter().map(Node::leaf).collect()
}

fn release(app: &ClientApp, status: &ClientAppStatus, now: Timestamp) -> Node {
    let title = paint(STRONG, "Release");
    let mut below = Vec::new();
    let head = match &status.release {
        None => format!("{title} none yet"),
        Some(release) => {
            below.push(Node::leaf(chart(app, release)));
            if let Some(digest) = &release.digest {
                below.push(Node::leaf(format!("digest {digest}")));
            }
            let style = if release.status == "deployed" { GOOD } else { BAD };
            let deployed = age(release.deployed_at.as_ref().map(|time| time.0), now);
            let deployed = paint(FAINT, &format!("{deployed} ago"));
            format!(
                "{title} {} revision {} {} {deployed}",
                release.name,
                release.revision,
                paint(style, &release.status)
            )
        }
    };
    if let Some(backup) = &status.backup {
        let BackupRecord { kind, name, from, to, state, revision, at_revision: _, as_of: _ } = backup;
        let after = revision.map_or_else(String::new, |revision| format!(", then revision {revision}"));
        below.push(Node::leaf(format!("backup {kind} {name} {state:?}, before {from} -> {to}{after}")));
    }
    if let Some(attempt) = &status.last_attempt {
        let began = age(Some(attempt.started_at.0), now);
        let mut line = format!("last attempt {began} ago");
        if attempt.failures > 0 {
            let times = if attempt.failures == 1 { "failure" } else { "failures" };
            line += &format!(", {}", paint(BAD, &format!("{} {times} in a row", attempt.failures)));
        }
        if let Some(retry_at) = &attempt.retry_at {
            let left = retry_at.0.duration_since(now);
            let next =
                if left.is_positive() { format!("next in {}", span(left)) } else { "next try is due".to_owned() };
            line += &format!(", {next} (`kubectl clientapp retry` for now)");
        }
        let why = match (&attempt.reason, &attempt.message) {
            (Some(reason), Some(message)) => vec![Node::leaf(format!("{reason}: {message}"))],
            _ => Vec::new(),
        };
        below.push(Node::new(line, why));
    }
    Node::new(head, below)
}

fn chart(app: &ClientApp, release: &Release) -> String {
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "?".to_owned());
    let mut line = format!("chart {} {}", known(&release.chart), known(&release.chart_version));
    if let Some(version) = &release.app_version {
        line += &format!(", app {version}");
    }
    if release.chart_version.as_ref() != Some(&app.spec.chart_version) {
        line += &format!(", {}", paint(UNSURE, &format!("{} is asked for", app.spec.chart_version)));
    }
    line
}

/// Who makes the database, where one is made.
fn maker(app: &ClientApp) -> Maker {
    match app.spec.postgres.provider {
        PostgresProvider::Standalone => Maker::Standalone,
        PostgresProvider::Percona | PostgresProvider::External => Maker::Percona,
    }
}

fn database(app: &ClientApp, seen: &Belongings) -> Node {
    let title = paint(STRONG, "Database");
    let maker = maker(app);
    let kind = maker.kind();
    match (&seen.database, &app.spec.postgres.external) {
        (None, _) if !app.spec.postgres.enabled => Node::leaf(format!("{title} none is asked for")),
        (None, Some(external)) => Node::leaf(format!("{title} external, opened by Secret {}", external.secret_name)),
        (None, None) => Node::leaf(format!("{title} none yet")),
        (Some((name, Err(why))), _) => Node::leaf(format!("{title} {kind} {name} {}", paint(FAINT, why))),
        (Some((name, Ok(server))), _) => match maker {
            Maker::Percona => cluster(&title, name, server),
            Maker::Standalone => postgresql(&title, name, server),
        },
    }
}

fn cluster(title: &str, name: &str, cluster: &DynamicObject) -> Node {
    let at = |path: &str| cluster.data.pointer(path);
    let state = at("/status/state").and_then(Value::as_str).unwrap_or("without a status");
    let count = |path: &str| at(path).and_then(Value::as_i64).unwrap_or_default();
    let version = at("/spec/postgresVersion").map_or_else(String::new, |version| format!(", PostgreSQL {version}"));
    let style = if state == "ready" { GOOD } else { UNSURE };
    let state = paint(style, state);
    let below = [("instances", "postgres"), ("PgBouncer", "pgbouncer")].map(|(title, part)| {
        let path = format!("/status/{part}");
        Node::leaf(format!("{title} {}", ready(count(&format!("{path}/ready")), count(&format!("{path}/size")))))
    });
    Node::new(format!("{title} PerconaPGCluster {name} {state}{version}"), below.into())
}

fn postgresql(title: &str, name: &str, postgresql: &DynamicObject) -> Node {
    let at = |path: &str| postgresql.data.pointer(path).and_then(Value::as_str);
    let phase = at("/status/phase").unwrap_or("without a status");
    let style = if phase == "Up" { GOOD } else { UNSURE };
    let version = at("/status/version").map_or_else(String::new, |version| format!(", PostgreSQL {version}"));
    let pod = at("/status/active/name").map(|pod| Node::leaf(format!("pod {pod}")));
    Node::new(format!("{title} Postgresql {name} {}{version}", paint(style, phase)), pod.into_iter().collect())
}

fn ready(ready: i64, wanted: i64) -> String {
    paint(if ready >= wanted { GOOD } else { UNSURE }, &format!("{ready}/{wanted}"))
}

fn workloads(seen: &Belongings) -> Vec<Node> {
    let line = |kind: &str, name: String, have: Option<i32>, want: Option<i32>| {
        let count = ready(have.unwrap_or_default().into(), want.unwrap_or(1).into());
        Node::leaf(format!("{kind} {name} {count}"))
    };
    let deployment = |found: &Deployment| {
        let have = found.status.as_ref().and_then(|status| status.ready_replicas);
        line("Deployment", found.name_any(), have, found.spec.as_ref().and_then(|spec| spec.replicas))
    };
    let stateful_set = |found: &StatefulSet| {
        let have = found.status.as_ref().and_then(|status| status.ready_replicas);
        line("StatefulSet", found.name_any(), have, found.spec.as_ref().and_then(|spec| spec.replicas))
    };
    [shown(&seen.deployments, deployment), shown(&seen.stateful_sets, stateful_set)].concat()
}

fn volumes(seen: &Belongings) -> Vec<Node> {
    shown(&seen.volumes, |volume| {
        let phase = volume.status.as_ref().and_then(|status| status.phase.clone()).unwrap_or_default();
        let requests = volume.spec.as_ref().and_then(|spec| spec.resources.as_ref()?.requests.as_ref());
        let size = requests.and_then(|requests| requests.get("storage")).map_or("?", |size| size.0.as_str());
        let style = if phase == "Bound" { GOOD } else { UNSURE };
        Node::leaf(format!("{} {size} {}", volume.name_any(), paint(style, &phase)))
    })
}

fn shown<T>(seen: &Look<Vec<T>>, line: impl Fn(&T) -> Node) -> Vec<Node> {
    match seen {
        Ok(objects) => objects.iter().map(line).collect(),
        Err(why) => vec![Node::leaf(paint(FAINT, why))],
    }
}
