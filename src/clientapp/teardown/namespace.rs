//! The namespace that was created for an app, and is deleted with it. An **effect**, with a pure rule.
//!
//! Deleting a namespace deletes everything in it. So it is deleted only if it is labelled as created for an app
//! ([`label::INSTANCE`]) and holds nothing that could be a user's.

pub(crate) mod contents;

use std::{collections::BTreeSet, time::Duration};

use futures::{FutureExt as _, StreamExt as _};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams},
};

use self::contents::{Kinds, describe};
pub(crate) use self::contents::{POLICY, QUOTA};
use crate::{
    clientapp::{Ctx, error::Error, spec::deployer::Deployer},
    crd::{ClientApp, Reason, label},
    deletion::{self, Vacant},
    leadership::Leadership,
    platform::{clock, error::api_sentence, events::Note},
};

/// Objects in one page; most namespaces have fewer of each kind.
const PAGE: u32 = 100;
/// How many kinds are listed at a time.
const AT_ONCE: usize = 4;
/// Within this time, the app of a new namespace may still be on its way.
const YOUNG: jiff::SignedDuration = jiff::SignedDuration::from_mins(10);

#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NamespaceOutcome {
    /// It was not created for an app, or is already gone.
    NotOurs,
    Deleting,
    /// It stays, because it holds this object.
    RetainedObject(String),
    /// It stays, because its content is not fully known.
    Unclear(String),
}

impl NamespaceOutcome {
    /// Returns the event about the deleted app.
    pub(crate) fn note(self, namespace: &str) -> Option<Note> {
        let because = match self {
            NamespaceOutcome::NotOurs | NamespaceOutcome::Deleting => return None,
            NamespaceOutcome::RetainedObject(object) => format!("{object} is in it"),
            NamespaceOutcome::Unclear(problem) => format!("it is not clear what else is in it: {problem}"),
        };
        let message = format!("namespace {namespace} was created for this ClientApp and stays, since {because}");
        Some(Note::normal("Deleting", Reason::NamespaceKept, message))
    }
}

/// Deletes the namespace of an app whose teardown is complete except for the finalizer. The app keeps its finalizer until the
/// namespace is handled, so that neither is lost in a crash between the two. `app` has the names of its databases, and its uid.
pub(crate) async fn release(ctx: &Ctx, name: &str, app: (&BTreeSet<String>, &str)) -> Result<NamespaceOutcome, Error> {
    let namespaces: Api<Namespace> = Api::all(ctx.client.clone());
    match namespaces.get_opt(name).await.map_err(Error::api(format!("look at namespace {name}")))? {
        Some(namespace) => {
            let owner = (Some(app), ctx.watches.deployer(name));
            delete_if_empty(&ctx.client, &namespace, owner, Some(&ctx.lead)).await
        }
        None => Ok(NamespaceOutcome::NotOurs),
    }
}

/// Deletes a namespace that was just created for an app, after the app was rejected.
pub(crate) async fn undo(client: &Client, name: &str, uid: &str) -> Result<NamespaceOutcome, Error> {
    let found = Api::<Namespace>::all(client.clone()).get_opt(name).await;
    match found.map_err(Error::api(format!("look at namespace {name}")))? {
        Some(namespace) if namespace.uid().as_deref() == Some(uid) => {
            delete_if_empty(client, &namespace, (None, Deployer::default()), None).await
        }
        _ => Ok(NamespaceOutcome::NotOurs),
    }
}

/// Deletes the namespaces whose app was never created, because an operator ended in between. Runs at the start, and again when
/// the namespaces that are too young then are old enough.
pub(crate) async fn sweep(ctx: &Ctx) {
    ctx.watches.apps.listed().await;
    ctx.watches.synced().await;
    loop {
        match sweep_once(ctx).await {
            Ok(None) => return,
            Ok(Some(wait)) => tokio::time::sleep(wait).await,
            Err(error) => {
                tracing::warn!(%error, "namespaces that were made for a ClientApp which was never created are not looked for until the next start");
                return;
            }
        }
    }
}

/// Sweeps once, and returns how long until the last namespace that is too young will be old enough.
async fn sweep_once(ctx: &Ctx) -> Result<Option<Duration>, Error> {
    let namespaces: Api<Namespace> = Api::all(ctx.client.clone());
    let made = ListParams::default().labels(&format!("{},{}={}", label::INSTANCE, label::MANAGED_BY, label::OPERATOR));
    let made = namespaces.list(&made).await.map_err(Error::api("list the namespaces made for ClientApps"))?;
    let apps = ctx.watches.apps.store.state();
    let with_app = apps.iter().filter_map(|app| app.metadata.namespace.as_deref()).collect();
    let (abandoned, wait) = abandoned(&made.items, &with_app, clock::now());
    for namespace in abandoned {
        let owner = (None, ctx.watches.deployer(&namespace.name_any()));
        if delete_if_empty(&ctx.client, namespace, owner, Some(&ctx.lead)).await? == NamespaceOutcome::Deleting {
            tracing::warn!(
                namespace = namespace.name_any(),
                "was made for a ClientApp that was never created: deleted"
            );
        }
    }
    Ok(wait)
}

/// Returns the namespaces that were created for an app but have none and are old enough, and how long until the youngest of the
/// others is. **Pure.**
fn abandoned<'a>(
    made: &'a [Namespace],
    with_app: &BTreeSet<&str>,
    now: Timestamp,
) -> (Vec<&'a Namespace>, Option<Duration>) {
    let (mut old, mut wait) = (Vec::new(), None);
    for namespace in made {
        if with_app.contains(namespace.name_any().as_str()) {
            continue;
        }
        let created = namespace.creation_timestamp().map_or(now, |created| created.0);
        match Duration::try_from((created + YOUNG).duration_since(now)) {
            Ok(young) if !young.is_zero() => wait = wait.max(Some(young)),
            _ => old.push(namespace),
        }
    }
    (old, wait)
}

/// `lead` is the controller's; a caller that has just created the namespace needs none.
async fn delete_if_empty(
    client: &Client,
    namespace: &Namespace,
    owner: (Option<(&BTreeSet<String>, &str)>, Deployer),
    lead: Option<&Leadership>,
) -> Result<NamespaceOutcome, Error> {
    let labels = namespace.labels();
    let ours = labels.contains_key(label::INSTANCE)
        && labels.get(label::MANAGED_BY).map(String::as_str) == Some(label::OPERATOR);
    if !ours {
        return Ok(NamespaceOutcome::NotOurs);
    }
    if namespace.metadata.deletion_timestamp.is_some() {
        return Ok(NamespaceOutcome::Deleting);
    }
    if let Some(kept) = kept(client, &namespace.name_any(), owner).await? {
        return Ok(kept);
    }
    match deletion::namespace(client, lead, Vacant(namespace)).await? {
        true => Ok(NamespaceOutcome::Deleting),
        false => Ok(NamespaceOutcome::NotOurs),
    }
}

/// Returns why a namespace stays: an object of any kind in it that is not the app's own.
async fn kept(
    client: &Client,
    namespace: &str,
    (app, deployer): (Option<(&BTreeSet<String>, &str)>, Deployer),
) -> Result<Option<NamespaceOutcome>, Error> {
    let discover = || Error::api("ask the API server for its kinds");
    let core = client.list_core_api_versions_aggregated().await.map_err(discover())?;
    let groups = client.list_api_groups_aggregated().await.map_err(discover())?;
    let kinds = match Kinds::of(&core.items, &groups.items, deployer) {
        Ok(kinds) => kinds,
        Err(unclear) => return Ok(Some(NamespaceOutcome::Unclear(unclear))),
    };
    let looks: Vec<_> = kinds.stored.iter().map(|kind| look(client, namespace, app, &kinds, kind).boxed()).collect();
    let mut looks = futures::stream::iter(looks).buffered(AT_ONCE);
    let mut unclear = None;
    while let Some(found) = looks.next().await {
        match found? {
            kept @ Some(NamespaceOutcome::RetainedObject(_)) => return Ok(kept),
            found => unclear = unclear.or(found),
        }
    }
    if unclear.is_some() {
        return Ok(unclear);
    }
    // The lists take time, and an app may have been created in the namespace meanwhile, so ClientApps are listed once more. A
    // request to create an app checks whether its namespace is being deleted.
    let apps = ApiResource::erase::<ClientApp>(&());
    look(client, namespace, app, &kinds, &apps).await
}

/// Returns why a namespace stays, judged by the objects of one kind.
async fn look(
    client: &Client,
    namespace: &str,
    app: Option<(&BTreeSet<String>, &str)>,
    kinds: &Kinds,
    kind: &ApiResource,
) -> Result<Option<NamespaceOutcome>, Error> {
    match first(client, namespace, app, kinds, kind).await {
        Ok(found) => Ok(found.map(|name| NamespaceOutcome::RetainedObject(format!("{} {name}", kind.kind)))),
        // The kind's definition has just been deleted, with all its objects.
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error @ kube::Error::Api(_)) => Ok(Some(NamespaceOutcome::Unclear(format!(
            "{} cannot be listed: {}",
            describe(kind),
            api_sentence(&error)
        )))),
        Err(error) => Err(Error::api(format!("list {} in namespace {namespace}", describe(kind)))(error)),
    }
}

/// Returns the first object of a kind that would be missed.
async fn first(
    client: &Client,
    namespace: &str,
    app: Option<(&BTreeSet<String>, &str)>,
    kinds: &Kinds,
    kind: &ApiResource,
) -> kube::Result<Option<String>> {
    let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), namespace, kind);
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let objects = api.list_metadata(&page).await?;
        if let Some(found) = objects.items.iter().find(|object| kinds.counts(kind, &object.metadata, app)) {
            return Ok(Some(found.name_any()));
        }
        match objects.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn namespaces_without_an_app() {
        let now: Timestamp = "2026-01-01T12:00:00Z".parse().unwrap();
        let made = |name: &str, created: &str| -> Namespace {
            serde_json::from_value(json!({"metadata": {"name": name, "creationTimestamp": created}})).unwrap()
        };
        let namespaces = [
            made("old", "2026-01-01T11:49:00Z"),
            made("just-old-enough", "2026-01-01T11:50:00Z"),
            made("young", "2026-01-01T11:52:00Z"),
            made("younger", "2026-01-01T11:59:00Z"),
            made("used", "2026-01-01T11:00:00Z"),
        ];
        let (old, wait) = abandoned(&namespaces, &BTreeSet::from(["used"]), now);
        assert_eq!(old.iter().map(|namespace| namespace.name_any()).collect::<Vec<_>>(), ["old", "just-old-enough"]);
        assert_eq!(wait, Some(Duration::from_secs(9 * 60)));
        assert_eq!(abandoned(&namespaces[..2], &BTreeSet::new(), now).1, None);
    }

    #[test]
    fn only_kept_namespaces_are_reported() {
        assert!(NamespaceOutcome::Deleting.note("acme").is_none());
        let note = NamespaceOutcome::RetainedObject("Secret keys".to_owned()).note("acme").unwrap();
        assert_eq!(note.message, "namespace acme was created for this ClientApp and stays, since Secret keys is in it");
        let note = NamespaceOutcome::Unclear("things.example.com cannot be listed".to_owned()).note("acme").unwrap();
        assert!(note.message.ends_with("not clear what else is in it: things.example.com cannot be listed"));
    }
}
