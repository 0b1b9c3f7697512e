//! Acts, an **effect**: carries out a plan's steps in order and stops at the first error.

pub(crate) mod apply;
pub(crate) mod secrets;

use kube::Api;

use self::{
    apply::{apply, create_claim, delete, grow},
    secrets::{apply_client_secret, create, create_repository_password, keep_password, settle},
};
use super::{
    context::{PostgresqlContext, PostgresqlObject},
    decide::{PostgresqlPlan, PostgresqlStep},
    desired::Desired,
    error::Error,
    objects::{self, Object},
    observed::ObservedPostgresql,
};
use crate::{
    crd::{Guard, Postgresql},
    platform::{controller::ReconcileError as _, idle_job},
};

pub(crate) async fn act(
    ctx: &PostgresqlContext,
    postgres: &PostgresqlObject<'_>,
    desired: &Desired,
    observed: &ObservedPostgresql,
    plan: &PostgresqlPlan,
) -> Result<(), Error> {
    for step in &plan.steps {
        match step {
            PostgresqlStep::KeepPassword(origin) => keep_password(ctx, postgres, desired, *origin).await?,
            PostgresqlStep::CreateReplication => create(ctx, objects::secrets::replication(desired)).await?,
            PostgresqlStep::CreateCertificate => create(ctx, objects::secrets::certificate(desired)?).await?,
            PostgresqlStep::ApplyClientSecret => {
                apply_client_secret(ctx, desired, &observed.credentials.client).await?
            }
            PostgresqlStep::CreateRepositoryPassword(secret) => {
                create_repository_password(ctx, postgres, secret).await?;
            }
            PostgresqlStep::Settle { secret } => settle(ctx, desired, secret).await?,
            PostgresqlStep::CreateVolume(claim) => create_claim(ctx, desired, claim).await?,
            PostgresqlStep::Initialize(job) => initialize(ctx, desired, job).await?,
            PostgresqlStep::Grow { claim, to } => grow(ctx, &desired.key, claim, to).await?,
            PostgresqlStep::Apply(object) => {
                apply(ctx, desired, object, observed.objects.contains_key(&object.id)).await?
            }
            PostgresqlStep::CreateDue(job) => create_due(ctx, desired, job).await?,
            PostgresqlStep::Delete { id, uid } => delete(ctx, &desired.key, id, uid).await?,
            PostgresqlStep::EndJob { job, uid, why, pod } => {
                let ended = end_job(ctx, &desired.key.namespace, (job, uid), (why, pod.as_deref())).await;
                ended.map_err(Error::api(format!("end Job {}/{job}", desired.key.namespace)))?;
            }
        }
    }
    Ok(())
}

/// Ends a Job in which nothing runs. If its pod does not say why, an event may.
async fn end_job(
    ctx: &PostgresqlContext,
    namespace: &str,
    job: (&str, &str),
    (why, pod): (&str, Option<&str>),
) -> kube::Result<()> {
    let warning = match pod {
        Some(pod) => idle_job::newest_warning(&ctx.client, namespace, "Pod", pod).await?,
        None => None,
    };
    let why = warning.map_or_else(|| why.to_owned(), |warning| format!("{why}: {warning}"));
    idle_job::end(&ctx.client, namespace, job, &why).await
}

/// Creates a Job that is due. A refusal is reported, and tried again later.
async fn create_due(ctx: &PostgresqlContext, desired: &Desired, job: &Object) -> Result<(), Error> {
    match apply(ctx, desired, job, false).await {
        Err(error) if error.disposition().condition.is_some() && !error.is_unanswered() => {
            tracing::warn!(postgresql = %desired.key, "{error}");
            ctx.refused_due.put(desired.key.clone(), error.to_string());
            Ok(())
        }
        created => {
            ctx.refused_due.take(&desired.key);
            created
        }
    }
}

/// Creates the Job for the database, unless the API server has another record by now: the decision may be based on an outdated cache,
/// and this must not happen twice.
async fn initialize(ctx: &PostgresqlContext, desired: &Desired, job: &Object) -> Result<(), Error> {
    let key = &desired.key;
    let postgresqls: Api<Guard<Postgresql>> = Api::namespaced(ctx.client.clone(), &key.namespace);
    let found = postgresqls.get_opt(&key.name).await.map_err(Error::api(format!("get Postgresql {key}")))?;
    let none_yet = found.filter(|found| found.metadata.uid.as_ref() == Some(&desired.uid)).is_some_and(|found| {
        found.metadata.deletion_timestamp.is_none()
            && found.object.is_ok_and(|object| {
                object.status.and_then(|status| status.volume).is_some_and(|volume| !volume.initialized)
            })
    });
    if none_yet {
        apply(ctx, desired, job, false).await?;
    }
    Ok(())
}
