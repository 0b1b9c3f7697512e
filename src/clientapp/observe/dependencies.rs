//! Observes the objects in `spec.dependsOn`.

use super::uncached;
use crate::{
    clientapp::{
        context::Ctx,
        observed::{dependencies, release::ReleaseView, types::UnreadyDependency},
        spec::{
            database::{self, DatabaseState},
            desired::Desired,
        },
    },
    crd::ReleaseObject,
    platform::{error::api_sentence, key::Key},
};

/// Returns the dependencies that are not Ready, if helm has to run for what the spec asks.
pub(super) async fn unready(ctx: &Ctx, desired: &Desired, release: Option<&ReleaseView>) -> Vec<UnreadyDependency> {
    let key = &desired.key;
    let is_settled = release.is_some_and(|release| release.is_deployed_as(&desired.target().digest));
    if is_settled || desired.rolled_back().is_some() || desired.suspend || desired.upgrade.depends_on.is_empty() {
        ctx.memory.drop(key, |app| app.dependencies.clear());
        return Vec::new();
    }
    // First of all, so that no change is missed after an app is looked at.
    let dependencies = dependencies::apps(&key.namespace, &desired.upgrade.depends_on);
    ctx.memory.put(key, |app| app.dependencies = dependencies);
    let depends = |app: &Key| {
        let found = ctx.watches.apps.get(app);
        let spec = found.as_ref().and_then(|found| found.object.as_ref().ok()).map(|app| &app.spec);
        spec.map(|spec| dependencies::apps(&app.namespace, &spec.depends_on)).unwrap_or_default()
    };
    let mut awaited = Vec::new();
    for dependency in &desired.upgrade.depends_on {
        let name = Key::new(&key.namespace, &dependency.name);
        let sentence = match (&dependency.api_version, dependency.kind.as_str()) {
            (None, _) if dependency.is_app() => {
                dependencies::app(&dependency.name, ctx.watches.apps.get(&name).as_deref())
            }
            (None, _) => {
                let database = ctx.watches.of(database::standalone()).objects.objects.get(&name);
                dependencies::database(dependency, database.as_ref().map(|found| found.state == DatabaseState::Ready))
            }
            (Some(api_version), kind) => {
                let object = ReleaseObject {
                    api_version: api_version.clone(),
                    kind: kind.to_owned(),
                    name: dependency.name.clone(),
                    ..ReleaseObject::default()
                };
                match uncached::any(ctx, key, &desired.account, &object).await {
                    Ok(found) => dependencies::object(dependency, found.as_ref()),
                    Err(error) => Some(format!("{kind} {}: {}", dependency.name, api_sentence(&error))),
                }
            }
        };
        awaited.extend(sentence.map(|sentence| UnreadyDependency {
            sentence,
            is_watched: dependency.is_app(),
            is_circle: dependency.is_app() && dependencies::is_circle(key, &name, depends),
        }));
    }
    awaited
}
