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
    },
    crd::{annotation, label},
    deletion::recreatable,
    platform::watch::controller_uid,
};

/// Deletes the Jobs that belong to this app, and in the background their pods.
pub(super) async fn delete(ctx: &Ctx, app: &App<'_>) -> Result<(), Error> {
    let has_none = app.recorded_status.files.is_none()
        && app.annotation(annotation::STOPPED_FOR).is_none()
        && ctx.watches.backups(app.key).is_empty();
    if has_none {
        return Ok(());
    }
    let namespace = &app.key.namespace;
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
