//! Takes the step that a decision asks for. An effect. Each makes one thing, by name, so that it is made once.

use kube::{
    Api, Client, ResourceExt as _,
    api::{ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    context::Restores,
    decide::{Step, is_untouched, mark},
};
use crate::{
    backup::{
        observe::{made_job, one},
        quiesce,
    },
    crd::{ClientApp, Postgresql},
    platform::{
        api::ignore_not_found,
        run_once::{Error, Run, RunContext, create, hold},
    },
};

pub(super) async fn act(ctx: &RunContext<Restores>, restore: &Run<'_, Restores>, step: &Step) -> Result<(), Error> {
    let (client, namespace) = (ctx.parts.client.clone(), restore.key.namespace.as_str());
    match step {
        Step::Stop(app) => {
            hold(ctx, restore).await?;
            quiesce::stop(&client, app, &mark(&restore.key.name)).await
        }
        Step::RequestRestore { postgresql, uid, request } => {
            hold(ctx, restore).await?;
            // The uid keeps it off a Postgresql that was recreated since. No field of an earlier request stays.
            let patch = json!([
                {"op": "test", "path": "/metadata/uid", "value": uid},
                {"op": "add", "path": "/spec/restoreRequest", "value": request},
            ]);
            let asked = patched(&client, namespace, postgresql, patch).await;
            asked.map_err(Error::api(format!("ask Postgresql {namespace}/{postgresql} for a restore")))
        }
        Step::CreateBackup(backup) => create(&client, namespace, &**backup).await,
        Step::CreateRestore(restore) => create(&client, namespace, &**restore).await,
        Step::CreateJob(job) => create(&client, namespace, &**job).await,
    }
}

/// Gives the app its pods back and withdraws the request for a dump. `Some`: files are being replaced, so the app has to wait.
pub(super) async fn release(ctx: &RunContext<Restores>, restore: &Run<'_, Restores>) -> Result<Option<String>, Error> {
    let (client, key) = (&ctx.parts.client, restore.key);
    let status = &restore.recorded_status;
    let spec = restore.object().ok().map(|restore| &restore.spec);
    if let Some((files, spec)) = status.files.as_ref().filter(|files| files.completed_at.is_none()).zip(spec) {
        let app = one::<ClientApp>(client, &key.namespace, &spec.of.name).await?;
        let job = match &app {
            Some(app) => made_job(client, app, &files.job).await?,
            None => None,
        };
        if let Some(job) = job.filter(|job| job.is_ours) {
            let name = &files.job;
            match job.progress.succeeded {
                None => return Ok(Some(format!("the app gets its pods back once Job {name} has ended"))),
                Some(false) if !is_untouched(&job) => {
                    return Ok(Some(format!(
                        "Job {name} may have moved files when it failed: the app stays without pods until the Job is deleted"
                    )));
                }
                Some(_) => {}
            }
        }
    }
    if let Some(database) = status.database.as_ref().filter(|_| spec.is_some()) {
        withdraw(ctx, restore, &database.name).await?;
    }
    quiesce::start(client, key, spec.map(|spec| spec.of.name.as_str()), &mark(&key.name)).await?;
    Ok(None)
}

/// Removes the request from the Postgresql, if there still is one.
async fn withdraw(ctx: &RunContext<Restores>, restore: &Run<'_, Restores>, request: &str) -> Result<(), Error> {
    let (client, namespace) = (ctx.parts.client.clone(), &restore.key.namespace);
    let found = Api::<Postgresql>::namespaced(client.clone(), namespace);
    let listed = found.list(&ListParams::default()).await;
    let listed = listed.map_err(Error::api(format!("list the Postgresqls of namespace {namespace}")))?;
    let has =
        |found: &&Postgresql| found.spec.restore_request.as_ref().is_some_and(|requested| requested.request == request);
    for found in listed.items.iter().filter(has) {
        let name = found.name_any();
        let patch = json!([
            {"op": "test", "path": "/spec/restoreRequest/request", "value": request},
            {"op": "remove", "path": "/spec/restoreRequest"},
        ]);
        let removed = patched(&client, namespace, &name, patch).await;
        removed.map_err(Error::api(format!("withdraw the restore of Postgresql {namespace}/{name}")))?;
    }
    Ok(())
}

/// Patches a Postgresql, unless it is gone.
async fn patched(client: &Client, namespace: &str, name: &str, patch: Value) -> kube::Result<()> {
    let patch = Patch::Json::<()>(serde_json::from_value(patch).map_err(kube::Error::SerdeError)?);
    let api = Api::<Postgresql>::namespaced(client.clone(), namespace);
    ignore_not_found(api.patch_metadata(name, &PatchParams::default(), &patch).await).map(drop)
}
