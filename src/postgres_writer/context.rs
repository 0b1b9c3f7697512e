//! Holds what all reconciles of PostgresWriters share, and the start of the controller. An **effect**.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, api::WatchParams};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::{Settings, database::Database, error::Error};
use crate::{
    crd::{Guard, PostgresWriter, PostgresWriterStatus},
    platform::{
        cache::Memo,
        controller::{ControllerContext, Objects, control},
        reconciled::Reconciled,
        status::Statuses,
    },
};

/// The PostgresWriter of one reconcile.
pub(super) type Writer<'a> = Reconciled<'a, PostgresWriter, PostgresWriterStatus>;

pub(super) struct WriterContext {
    pub(super) parts: ControllerContext,
    settings: Option<Settings>,
    database: OnceCell<Database>,
    pub(super) objects: Objects<PostgresWriter>,
    pub(super) statuses: Statuses<PostgresWriterStatus>,
    /// Ids of rows that the comparison found to differ.
    pub(super) drifted: Memo<String, ()>,
}

impl WriterContext {
    pub(super) fn settings(&self) -> Result<&Settings, Error> {
        self.settings.as_ref().ok_or(Error::NotConfigured)
    }

    /// Returns the database. It identifies this cluster by the uid of `kube-system`, which is as old as the cluster.
    pub(super) async fn database(&self) -> Result<&Database, Error> {
        let settings = self.settings()?;
        let open = async || {
            let found = Api::<Namespace>::all(self.parts.client.clone()).get("kube-system").await;
            let found = found.map_err(Error::api("look up the uid of namespace kube-system"))?;
            let cluster = found.metadata.uid.unwrap_or_default();
            Ok(Database::new(settings.clone(), self.parts.lead.clone(), cluster))
        };
        self.database.get_or_try_init(open).await
    }
}

/// Runs the controller until `stop`, and returns when its last reconcile has ended.
pub(crate) async fn run(parts: ControllerContext, settings: Option<Settings>, stop: CancellationToken) {
    match &settings {
        Some(settings) => tracing::info!(database = %settings.place, "serving PostgresWriters"),
        None => {
            tracing::info!("no PSQL_ variables are set: PostgresWriters get no rows, and their status says so");
            // An operator without a database does not need the right to watch PostgresWriters.
            let objects = Api::<Guard<PostgresWriter>>::all(parts.client.clone());
            let brief = WatchParams::default().timeout(1);
            if let Some(Err(kube::Error::Api(status))) = stop.run_until_cancelled(objects.watch(&brief, "0")).await
                && status.code == 403
            {
                tracing::info!("PostgresWriters are not watched, and their status does not say so: {}", status.message);
                return;
            }
        }
    }
    let (objects, feed) = Objects::new();
    let ctx = WriterContext {
        parts: parts.clone(),
        settings,
        database: OnceCell::new(),
        objects: objects.clone(),
        statuses: Statuses::default(),
        drifted: Memo::default(),
    };
    control(Arc::new(ctx), parts, (objects, feed), stop).await;
}
