//! `status`: a ClientApp and everything that belongs to it, as far as the user may see it.

use jiff::Timestamp;
use k8s_openapi::api::{
    apps::v1::{Deployment, StatefulSet},
    core::v1::PersistentVolumeClaim,
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams},
};
use serde_json::Value;

use super::{
    args,
    connection::Flags,
    error::{self, Error},
    session::{Printer, Session},
    several::Tally,
    text::{BAD, FAINT, GOOD, Node, STRONG, UNSURE, age, fitted, harmless, node, paint, span, tamed, verdict},
};
use crate::{
    clientapp::spec::database::{self, Provider, Summary},
    crd::{
        BackupRecord, ClientApp, ClientAppStatus, Release,
        conditions::{find, kind},
    },
};

/// What was read, or in parentheses the reason why it was not.
pub(crate) type Look<T> = Result<T, String>;

pub(crate) struct Belongings {
    /// The resource that provides the database; `None` if there is none.
    pub(crate) database: Option<(String, Look<DynamicObject>)>,
    pub(crate) deployments: Look<Vec<DynamicObject>>,
    pub(crate) stateful_sets: Look<Vec<DynamicObject>>,
    pub(crate) volumes: Look<Vec<DynamicObject>>,
}

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Names) -> Result<(), Error> {
    let mut tally = Tally::of(args.names.len());
    for name in &args.names {
        let shown = match session.app(name).await {
            Ok(stored) if printer.is_for_humans() => {
                let tree = tree(session, &stored.app, printer.width()).await;
                printer.out(&tree)
            }
            Ok(stored) => printer.object(&stored.object, ""),
            Err(error) => Err(error),
        };
        tally.keep(shown, printer)?;
    }
    tally.end()
}

/// Everything that belongs to it, as far as the user may see it, without control characters for the terminal.
pub(crate) async fn tree(session: &Session, app: &ClientApp, width: Option<usize>) -> String {
    let name = app.metadata.name.as_deref().unwrap_or_default();
    let database = app.status.as_ref().and_then(|status| status.postgres_cluster_name.clone()).zip(provider(app));
    let of_release = format!("app.kubernetes.io/instance={name},app.kubernetes.io/managed-by=Helm");
    let of_database = database.as_ref().map(|(name, provider)| format!("{}={name}", provider.info().volume_label));
    let (database, deployments, stateful_sets, volumes, more_volumes) = tokio::join!(
        async {
            let (name, provider) = database?;
            let kind = (provider.info().kind.resource)();
            let api: Api<DynamicObject> = Api::namespaced_with(session.client.clone(), &session.namespace, &kind);
            let found = api.get(&name).await.map_err(|error| unseen("read", &kind.plural, &error));
            Some((name, found.and_then(|found| tamed(&found).map_err(undecodable))))
        },
        belonging::<Deployment>(session, Some(&of_release)),
        belonging::<StatefulSet>(session, Some(&of_release)),
        belonging::<PersistentVolumeClaim>(session, Some(&of_release)),
        belonging::<PersistentVolumeClaim>(session, of_database.as_deref()),
    );
    let volumes = volumes.and_then(|volumes| Ok([volumes, more_volumes?].concat()));
    let seen = Belongings { database, deployments, stateful_sets, volumes };
    render(app, &seen, (&session.flags, width), Session::now())
}

async fn belonging<K: Resource<DynamicType = ()>>(session: &Session, labels: Option<&str>) -> Look<Vec<DynamicObject>> {
    let Some(labels) = labels else { return Ok(Vec::new()) };
    let api: Api<DynamicObject> =
        Api::namespaced_with(session.client.clone(), &session.namespace, &ApiResource::erase::<K>(&()));
    let found = api.list(&ListParams::default().labels(labels)).await;
    let found = found.map_err(|error| unseen("list", &K::plural(&()), &error))?;
    found.items.iter().map(tamed).collect::<Result<_, _>>().map_err(undecodable)
}

fn undecodable(error: serde_json::Error) -> String {
    format!("(does not decode: {error})")
}

fn unseen(verb: &str, resource: &str, error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.code == 403 => format!("(no permission to {verb} {resource})"),
        kube::Error::Api(status) if error::kind_is_missing(status) => format!("(this cluster has no {resource})"),
        kube::Error::Api(status) if status.code == 404 => "(does not exist)".to_owned(),
        other => format!("({})", harmless(&error::sentence(other))),
    }
}

/// On a terminal of this width, each condition takes one line: the message of `Ready` is shown in full above.
pub(crate) fn render(
    app: &ClientApp,
    seen: &Belongings,
    (flags, width): (&Flags, Option<usize>),
    now: Timestamp,
) -> String {
    let status = app.status.clone().unwrap_or_default();
    let (namespace, name) = (app.metadata.namespace.as_deref(), app.metadata.name.as_deref());
    let title = error::described(namespace.unwrap_or_default(), name.unwrap_or_default());
    let served = status.url.clone().unwrap_or_else(|| format!("{} (not served yet)", app.spec.hostname));
    let mut below = vec![];
    let holds = |type_| find(&status.conditions, type_).is_some_and(|condition| condition.status == "True");
    if !holds(kind::READY) || status.observed_generation != app.metadata.generation {
        let (style, word) = if holds(kind::STALLED) { (BAD, "stalled:") } else { (UNSURE, "waiting:") };
        below.push(Node::new(format!("{} {}", paint(style, word), sentence(app))));
    }
    if app.spec.suspend {
        below.push(Node::new(paint(UNSURE, "suspended: the operator changes nothing until it is resumed")));
    }
    below.extend([
        node(paint(STRONG, "Conditions"), conditions(&status, width, now)),
        release(app, &status, flags, now),
        database(app, seen),
        group("Workloads", workloads(seen)),
        group("Volumes", volumes(seen)),
    ]);
    let created = age(app.metadata.creation_timestamp.as_ref().map(|time| time.0), now);
    let head = format!("{}  {served}  {}", paint(STRONG, &title), paint(FAINT, format!("age {created}")));
    node(head, below).to_string()
}

/// The state of an app in one sentence: the reason why it is not ready, or that it is. **Pure.**
pub(crate) fn sentence(app: &ClientApp) -> String {
    let status = app.status.clone().unwrap_or_default();
    let Some(ready) = find(&status.conditions, kind::READY) else {
        return "the operator has not processed it yet".to_owned();
    };
    let seen = |generation: Option<i64>| generation >= app.metadata.generation;
    if !seen(status.observed_generation) && !seen(ready.observed_generation) {
        return "the operator has not processed the latest change yet".to_owned();
    }
    let working = find(&status.conditions, kind::RECONCILING).filter(|working| working.status == "True");
    match working {
        _ if ready.status != "True" => ready.message.clone(),
        // During an upgrade the app keeps serving, so it stays ready.
        Some(working) => working.message.clone(),
        None => ready.reason.clone(),
    }
}

fn group(title: &str, below: Vec<Node>) -> Node {
    let title = paint(STRONG, title);
    if below.is_empty() { Node::new(format!("{title} none")) } else { node(title, below) }
}

/// The column of conditions that is cut.
const MESSAGE: usize = 4;
/// Characters before a line of the second level of a tree.
const INDENT: usize = 6;

fn conditions(status: &ClientAppStatus, width: Option<usize>, now: Timestamp) -> Vec<Node> {
    let rows: Vec<_> = status
        .conditions
        .iter()
        .map(|condition| {
            let good = if condition.type_ == kind::STALLED { "False" } else { "True" };
            let style = match condition.type_.as_str() {
                kind::RECONCILING if condition.status == "True" => UNSURE,
                kind::RECONCILING => FAINT,
                _ => verdict(&condition.status, good),
            };
            vec![
                condition.type_.clone(),
                paint(style, &condition.status),
                condition.reason.clone(),
                paint(FAINT, age(Some(condition.last_transition_time.0), now)),
                condition.message.clone(),
            ]
        })
        .collect();
    let width = width.map(|width| width.saturating_sub(INDENT));
    fitted(&[], &rows, &[MESSAGE], width).lines().map(|line| Node::new(line.to_owned())).collect()
}

fn release(app: &ClientApp, status: &ClientAppStatus, flags: &Flags, now: Timestamp) -> Node {
    let title = paint(STRONG, "Release");
    let mut below = Vec::new();
    let head = match &status.release {
        None => format!("{title} none yet"),
        Some(release) => {
            below.push(Node::new(chart(app, release)));
            if let Some(digest) = &release.digest {
                below.push(Node::new(format!("digest {digest}")));
            }
            let style = if release.status == "deployed" { GOOD } else { BAD };
            let deployed = age(release.deployed_at.as_ref().map(|time| time.0), now);
            let deployed = paint(FAINT, format!("{deployed} ago"));
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
        below.push(Node::new(format!("backup {kind} {name} {state:?}, before {from} -> {to}{after}")));
    }
    if let Some(attempt) = &status.last_attempt {
        let began = age(Some(attempt.started_at.0), now);
        let mut line = format!("last attempt {began} ago");
        if attempt.failures > 0 {
            let times = if attempt.failures == 1 { "failure" } else { "failures" };
            line += &format!(", {}", paint(BAD, format!("{} {times} in a row", attempt.failures)));
        }
        if let Some(retry_at) = &attempt.retry_at {
            let left = retry_at.0.duration_since(now);
            let next = if left.is_positive() { format!("next in {}", span(left)) } else { "retry is due".to_owned() };
            let retry = flags.command(format!("kubectl clientapp retry {}", app.name_any()));
            line += &format!(", {next} ({retry} tries now)");
        }
        let why = match (&attempt.reason, &attempt.message) {
            (Some(reason), Some(message)) => vec![Node::new(format!("{reason}: {message}"))],
            _ => Vec::new(),
        };
        below.push(node(line, why));
    }
    node(head, below)
}

fn chart(app: &ClientApp, release: &Release) -> String {
    let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "?".to_owned());
    let mut line = format!("chart {} {}", known(&release.chart), known(&release.chart_version));
    if let Some(version) = &release.app_version {
        line += &format!(", app {version}");
    }
    if let Some(pinned) =
        app.spec.chart_version.as_ref().filter(|pinned| release.chart_version.as_ref() != Some(*pinned))
    {
        line += &format!(", {}", paint(UNSURE, format!("the spec asks for {pinned}")));
    }
    line
}

/// `None` for an external database.
fn provider(app: &ClientApp) -> Option<&'static dyn Provider> {
    database::provider(app.spec.postgres.provider)
}

fn database(app: &ClientApp, seen: &Belongings) -> Node {
    let title = paint(STRONG, "Database");
    let postgres = &app.spec.postgres;
    match (&seen.database, provider(app), &postgres.external) {
        (Some((name, object)), Some(provider), _) => {
            let title = format!("{title} {} {name}", provider.kind().as_str());
            match object {
                Ok(object) => summary(&title, provider.summary(object)),
                Err(why) => Node::new(format!("{title} {}", paint(FAINT, why))),
            }
        }
        _ if !postgres.enabled => Node::new(format!("{title} disabled")),
        (_, _, Some(external)) => {
            Node::new(format!("{title} external, with the credentials in Secret {}", external.secret_name))
        }
        _ => Node::new(format!("{title} none yet")),
    }
}

fn summary(title: &str, Summary { state, is_ready, version, parts }: Summary) -> Node {
    let state = paint(if is_ready { GOOD } else { UNSURE }, state.as_deref().unwrap_or("has no status yet"));
    let version = version.map_or_else(String::new, |version| format!(", PostgreSQL {version}"));
    let parts = parts.into_iter().map(|(part, count)| match count {
        Some((have, want)) => Node::new(format!("{part} {}", ready(have, want))),
        None => Node::new(part),
    });
    node(format!("{title} {state}{version}"), parts.collect())
}

fn ready(ready: i64, wanted: i64) -> String {
    paint(if ready >= wanted { GOOD } else { UNSURE }, format!("{ready}/{wanted}"))
}

fn workloads(seen: &Belongings) -> Vec<Node> {
    let line = |kind: &'static str| {
        move |found: &DynamicObject| {
            let count = |path: &str| found.data.pointer(path).and_then(Value::as_i64);
            let (have, want) = (count("/status/readyReplicas"), count("/spec/replicas"));
            let count = ready(have.unwrap_or_default(), want.unwrap_or(1));
            Node::new(format!("{kind} {} {count}", found.name_any()))
        }
    };
    [shown(&seen.deployments, line("Deployment")), shown(&seen.stateful_sets, line("StatefulSet"))].concat()
}

fn volumes(seen: &Belongings) -> Vec<Node> {
    shown(&seen.volumes, |volume| {
        let text = |path: &str| volume.data.pointer(path).and_then(Value::as_str);
        let phase = text("/status/phase").unwrap_or_default();
        let size = text("/spec/resources/requests/storage").unwrap_or("?");
        let style = if phase == "Bound" { GOOD } else { UNSURE };
        Node::new(format!("{} {size} {}", volume.name_any(), paint(style, phase)))
    })
}

fn shown(seen: &Look<Vec<DynamicObject>>, line: impl Fn(&DynamicObject) -> Node) -> Vec<Node> {
    match seen {
        Ok(objects) => objects.iter().map(line).collect(),
        Err(why) => vec![Node::new(paint(FAINT, why))],
    }
}
