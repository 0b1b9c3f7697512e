//! Takes the step that a decision asks for. An effect. Each makes one thing, by name, so that it is made once.

use kube::{
    Api,
    api::{Patch, PatchParams},
};
use serde_json::json;

use super::{
    context::Backups,
    decide::{Step, mark},
    quiesce,
};
use crate::{
    crd::{Postgresql, RECLAIM_FINALIZER},
    platform::{
        api::ignore_not_found,
        idle_job,
        run_once::{Error, Run, RunContext, RunOnce as _, create, hold},
    },
};

pub(super) async fn act(ctx: &RunContext<Backups>, backup: &Run<'_, Backups>, step: &Step) -> Result<(), Error> {
    let (client, namespace) = (ctx.parts.client.clone(), backup.key.namespace.as_str());
    // Before anything is made. Its event triggers the next reconcile, which takes the step.
    if backup.object().is_ok_and(Backups::is_reclaimed) && !backup.has_finalizer(RECLAIM_FINALIZER) {
        backup.add_finalizer(&client, RECLAIM_FINALIZER).await?;
        return Ok(());
    }
    match step {
        Step::RequestDump { postgresql, uid, request } => {
            // The uid keeps it off a Postgresql that was recreated since.
            let patch = json!({"metadata": {"uid": uid}, "spec": {"backup": {"request": request}}});
            let api = Api::<Postgresql>::namespaced(client, namespace);
            let asked = ignore_not_found(api.patch(postgresql, &PatchParams::default(), &Patch::Merge(&patch)).await);
            asked.map(drop).map_err(Error::api(format!("ask Postgresql {namespace}/{postgresql} for a dump")))
        }
        Step::CreatePerconaBackup(backup) => create(&client, namespace, &**backup).await,
        Step::CreateCloudNativePgBackup(backup) => create(&client, namespace, &**backup).await,
        Step::Stop(app) => {
            hold(ctx, backup).await?;
            quiesce::stop(&client, app, &mark(&backup.key.name)).await
        }
        Step::EndJob { job, uid, why } => {
            let ended = idle_job::end(&client, namespace, (job, uid), why).await;
            ended.map_err(Error::api(format!("end Job {namespace}/{job}")))
        }
        Step::CreateJob(job) => create(&client, namespace, &**job).await,
    }
}
