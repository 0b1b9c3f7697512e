//! Takes the step that a decision asks for. An effect. Each makes one thing, by name, so that it is made once.

use k8s_openapi::api::core::v1::Secret;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};

use super::{
    context::Restores,
    decide::{is_untouched, mark},
    permission::{Permission, administrator_of},
    step::Step,
};
use crate::{
    backup::{
        observe::{made_job, metadata, one},
        quiesce,
    },
    clientapp::spec::secrets,
    crd::{ClientApp, ClientAppRestoreSpec, Postgresql, label},
    platform::{
        api::ignore_not_found,
        key::key_of,
        run_once::{Error, Run, RunContext, change, create, hold},
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
        Step::CreateApp(app) => create(&client, namespace, &**app).await,
        Step::CopyAdministrator { of, to } => copy_administrator(&client, of, to).await,
        Step::Resume(app) => {
            let resource = ApiResource::erase::<ClientApp>(&());
            change(&client, &resource, &app.metadata, json!({"spec": {"suspend": false}})).await
        }
        Step::Permit(permission) => permit(&client, namespace, permission).await,
    }
}

/// Creates the Secret with the administrator of another app, which the restored database knows. It is made like a generated one, so that it
/// is deleted or retained with its app.
async fn copy_administrator(client: &Client, of: &ClientApp, to: &ClientApp) -> Result<(), Error> {
    let (first, key) = (key_of(of), key_of(to));
    let name = administrator_of(of);
    let Some(found) = one::<Secret>(client, &first.namespace, &name).await? else { return Ok(()) };
    let mut data = found.data.unwrap_or_default();
    data.retain(|key, _| [secrets::ADMIN_USERNAME, secrets::ADMIN_PASSWORD].contains(&key.as_str()));
    let secret = Secret { data: Some(data), ..secrets::admin(&key, &to.uid().unwrap_or_default()) };
    create(client, &key.namespace, &secret).await
}

/// Labels what opens dumps. What is gone meanwhile is waited for at the next look.
async fn permit(client: &Client, namespace: &str, permission: &Permission) -> Result<(), Error> {
    let Permission { resource, name, postgresql } = permission;
    let Some(found) = metadata(client, namespace, resource, name).await? else { return Ok(()) };
    let labels = json!({"metadata": {"labels": {label::RESTORE_TO_UID: postgresql}}});
    change(client, resource, &found.metadata, labels).await
}

/// Gives the app its pods back and withdraws the request for a dump. `Some`: files are being replaced, so the app has to wait.
pub(super) async fn release(ctx: &RunContext<Restores>, restore: &Run<'_, Restores>) -> Result<Option<String>, Error> {
    let (client, key) = (&ctx.parts.client, restore.key);
    let status = &restore.recorded_status;
    let spec = restore.object().ok().map(|restore| &restore.spec);
    if let Some((files, spec)) = status.files.as_ref().filter(|files| files.completed_at.is_none()).zip(spec) {
        let app = one::<ClientApp>(client, &key.namespace, spec.target()).await?;
        let job = match &app {
            Some(app) => made_job(client, &key.namespace, app.metadata.uid.as_deref(), &files.job).await?,
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
    if let Some(database) = status.database.as_ref().filter(|_| spec.is_some_and(|spec| spec.into.is_none())) {
        withdraw(ctx, restore, &database.name).await?;
    }
    quiesce::start(client, key, spec.map(ClientAppRestoreSpec::target), &mark(&key.name)).await?;
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
