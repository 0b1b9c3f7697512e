//! Applies and deletes the CronJob that archives the app's files. An **effect**.

use jiff::SignedDuration;
use k8s_openapi::{api::batch::v1::CronJob, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{
    Api, Resource as _,
    api::{Patch, PatchParams, TypeMeta},
};
use serde_json::{Value, json};

use crate::{
    clientapp::{
        context::{App, Ctx, owner_reference},
        error::Error,
        observed::file_backup::RefusedArchives,
        spec::file_backup::cron_job_spec,
    },
    crd::annotation::SPEC_DIGEST,
    deletion::recreatable,
    platform::{clock, error::api_sentence},
};

const MANAGER: &str = "clientapp-operator/files";

fn api(ctx: &Ctx, app: &App<'_>) -> Api<CronJob> {
    Api::namespaced(ctx.client.clone(), &app.key.namespace)
}

/// When a refused CronJob is tried again.
const RETRY: SignedDuration = SignedDuration::from_mins(5);

/// Applies the CronJob. By force: its fields are the operator's, and users change it through the spec. `uid`: of the present one.
/// A refusal is reported by the next pass, and does not make the app less ready.
pub(crate) async fn apply(ctx: &Ctx, app: &App<'_>, document: &Value, uid: Option<&str>) -> Result<(), Error> {
    let (api, name) = (api(ctx, app), app.key.files());
    let what = format!("CronJob {}/{name}", app.key.namespace);
    // An apply would take over an object that the cache does not show yet. The next pass finds out who owns it.
    if uid.is_none() && api.get_metadata_opt(&name).await.map_err(Error::api(format!("look for {what}")))?.is_some() {
        return Ok(());
    }
    let mut document = document.clone();
    let digest = cron_job_spec::digest(&document);
    let meta = &mut document["metadata"];
    meta["annotations"] = json!({SPEC_DIGEST: digest});
    meta["ownerReferences"] = json!([owner_reference(app)]);
    if let Some(uid) = uid {
        meta["uid"] = json!(uid);
    }
    match api.patch(&name, &PatchParams::apply(MANAGER).force(), &Patch::Apply(&document)).await {
        Ok(_) => ctx.memory.drop(app.key, |app| app.refused_archives = None),
        Err(error @ kube::Error::Api(_)) => {
            let message = format!("apply {what}: {}", api_sentence(&error));
            tracing::warn!(app = %app.key, "{message}");
            let refused = RefusedArchives { digest, message, until: clock::now() + RETRY };
            ctx.memory.put(app.key, |app| app.refused_archives = Some(refused));
            ctx.watches.apps.trigger(app.key);
        }
        Err(error) => return Err(Error::api(format!("apply {what}"))(error)),
    }
    Ok(())
}

/// Deletes the CronJob with this uid, and in the background its Jobs and their pods. The archives in the bucket stay.
pub(crate) async fn delete(ctx: &Ctx, app: &App<'_>, uid: &str) -> Result<(), Error> {
    let cron_job_type =
        TypeMeta { api_version: CronJob::api_version(&()).into_owned(), kind: CronJob::kind(&()).into_owned() };
    let name = app.key.files();
    let meta = ObjectMeta { name: Some(name.clone()), uid: Some(uid.to_owned()), ..ObjectMeta::default() };
    let deleted = recreatable::delete(&api(ctx, app), &cron_job_type, &meta).await;
    deleted.map(|_| ()).map_err(Error::api(format!("delete CronJob {}/{name}", app.key.namespace)))
}
