//! Deletes the Jobs that archive or restore the app's files. An **effect**.

use k8s_openapi::api::batch::v1::Job;
use kube::{
    Api, Resource as _,
    api::{ListParams, TypeMeta},
};

use crate::{
    clientapp::{
        context::{App, Ctx},
        error::Error,
        observed::inventory,
    },
    crd::label,
    deletion::recreatable,
    platform::watch::controller_uid,
};

/// Deletes the Jobs that belong to this app, and in the background their pods.
pub(super) async fn delete(ctx: &Ctx, app: &App<'_>) -> Result<(), Error> {
    let namespace = &app.key.namespace;
    let inventory = app.recorded_status.inventory.as_ref();
    if inventory.is_none_or(|inventory| inventory::claims(inventory, namespace).next().is_none()) {
        return Ok(());
    }
    let jobs: Api<Job> = Api::namespaced(ctx.client.clone(), namespace);
    let labelled = ListParams::default().labels(&format!("{}={}", label::FILES_OF, app.key.name));
    let listed = jobs.list_metadata(&labelled).await;
    let listed = listed.map_err(Error::api(format!("list the Jobs for the files of ClientApp {}", app.key)))?;
    let kind = TypeMeta { api_version: Job::api_version(&()).into_owned(), kind: Job::kind(&()).into_owned() };
    // Any user can give a Job our labels.
    for job in listed.items.iter().filter(|job| controller_uid(*job).as_deref() == Some(app.uid())) {
        let deleted = recreatable::delete(&jobs, &kind, &job.metadata).await;
        let name = job.metadata.name.as_deref().unwrap_or_default();
        deleted.map_err(Error::api(format!("delete Job {namespace}/{name}")))?;
    }
    Ok(())
}
