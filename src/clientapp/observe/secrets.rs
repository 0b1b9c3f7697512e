//! Observes the Secrets with the app's credentials: whose they are, and which keys they have.

use std::collections::BTreeSet;

use kube::Resource as _;

use super::{sources, uncached};
use crate::{
    clientapp::{
        context::{App, Ctx},
        error::Error,
        observed::{
            owned,
            types::{Observed, SecretView},
        },
        spec::{
            credentials::KnownSecret,
            desired::{Desired, SecretSource},
            secrets::SMTP,
        },
    },
    crd::ClientApp,
    platform::key::Key,
    secrets::SecretMeta,
};

/// Returns the Secret with the administrator's credentials.
pub(super) async fn admin(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    observed: &Observed,
) -> Result<SecretView, Error> {
    let key = app.key;
    match &desired.secrets.admin {
        SecretSource::Generated(name) => {
            let (view, secret) = (generated_admin(ctx, app, name, observed).await?, Key::new(&key.namespace, name));
            match (with_keys(ctx, app, view, &secret).await?, &*desired.secrets.more_admin_keys) {
                (SecretView::Own { uid, .. }, [_, ..]) => Ok(match keys(ctx, app, &secret).await? {
                    SecretView::Present { keys } => SecretView::Own { uid, keys },
                    view => view,
                }),
                (view, _) => Ok(view),
            }
        }
        // The user names this Secret, so its owner does not matter.
        SecretSource::Given(name) => keys(ctx, app, &Key::new(&key.namespace, name)).await,
    }
}

/// Returns the generated Secret with the Redis password; without Redis, only whose it is.
pub(super) async fn redis(ctx: &Ctx, app: &App<'_>, desired: &Desired) -> Result<SecretView, Error> {
    let secret = Key::new(&app.key.namespace, app.key.redis_secret());
    let view = own_secret(ctx.watches.secrets.get(&secret), app);
    if desired.secrets.redis.is_some() { with_keys(ctx, app, view, &secret).await } else { Ok(view) }
}

/// Returns the generated administrator credentials. If they are in use and the watch does not show them, the API server is
/// asked: the watch may be late, and without them the app cannot continue.
async fn generated_admin(ctx: &Ctx, app: &App<'_>, name: &str, observed: &Observed) -> Result<SecretView, Error> {
    let name = Key::new(&app.key.namespace, name);
    let found = match ctx.watches.secrets.get(&name) {
        None if owned::is_in_use(&name.name, &observed.recorded, observed.release.as_ref()) => {
            uncached::secret(ctx, &name).await?
        }
        seen => seen,
    };
    Ok(own_secret(found, app))
}

/// Returns a Secret under a generated name: this app's own, another object's, or created by a user.
fn own_secret(found: Option<SecretMeta>, app: &App<'_>) -> SecretView {
    let Some(SecretMeta { uid: own, owner, stamp, deleting, .. }) = found else { return SecretView::Absent };
    match (owner, stamp) {
        _ if deleting => SecretView::NotOurs { owner: "an object that is gone".to_owned(), is_being_deleted: true },
        (Some((_, _, whose)), _) if whose == app.uid() => SecretView::Own { uid: own, keys: BTreeSet::new() },
        // An earlier ClientApp's, which the garbage collector has yet to delete.
        (Some((kind, owner, _)), _) => {
            let goes = kind == ClientApp::kind(&()) && owner == app.key.name;
            SecretView::NotOurs { owner: format!("{kind} {owner}"), is_being_deleted: goes }
        }
        (None, Some(whose)) if whose == app.uid() => SecretView::Own { uid: own, keys: BTreeSet::new() },
        (None, Some(whose)) => {
            SecretView::NotOurs { owner: format!("an earlier ClientApp, with uid {whose}"), is_being_deleted: false }
        }
        (None, None) => SecretView::Present { keys: BTreeSet::new() },
    }
}

/// Reads the keys of a Secret under a generated name, if a user created it: in place of a lost one, or from the beginning.
async fn with_keys(ctx: &Ctx, app: &App<'_>, view: SecretView, secret: &Key) -> Result<SecretView, Error> {
    match view {
        SecretView::Present { .. } => keys(ctx, app, secret).await,
        view => Ok(view),
    }
}

/// Returns a Secret that a user or a database's operator writes: which of its keys have a value.
pub(super) async fn keys(ctx: &Ctx, app: &App<'_>, secret: &Key) -> Result<SecretView, Error> {
    Ok(match sources::contents(ctx, app, secret).await? {
        Some(KnownSecret { contents, .. }) => {
            let has_value =
                |(key, digest): &(&String, &String)| !digest.is_empty() || SMTP[1..].contains(&key.as_str());
            SecretView::Present { keys: contents.iter().filter(has_value).map(|(key, _)| key.clone()).collect() }
        }
        None => SecretView::Absent,
    })
}
