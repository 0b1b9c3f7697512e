//! What every reconcile of a PostgresWriter shares, and the controller's start. An **effect**.

use std::sync::Arc;

use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, CustomResourceExt as _, api::WatchParams};
use tokio::sync::OnceCell;
use tokio_util::sync::CancellationToken;

use super::{Settings, database::Database, error::Error};
use crate::{
    crd::{Guard, PostgresWriter, PostgresWriterStatus, ROW_FINALIZER},
    runtime::{
        cache::Memo,
        controller::{Objects, Parts, control},
        definition::Definition,
        finalizer,
        key::Key,
        status::Statuses,
        subject::Subject,
    },
};

/// The PostgresWriter of one reconcile.
pub(super) type Writer<'a> = Subject<'a, PostgresWriter, PostgresWriterStatus>;

pub(super) struct Ctx {
    pub(super) parts: Parts,
    database: Option<Arc<Database>>,
    pub(super) objects: Objects<PostgresWriter>,
    pub(super) statuses: Statuses<PostgresWriterStatus>,
    /// Objects whose row was seen to differ.
    pub(super) drifted: Memo<Key, ()>,
    cluster: OnceCell<String>,
}

impl Ctx {
    pub(super) fn forget(&self, key: &Key) {
        self.statuses.forget(key);
        self.drifted.take(key);
    }

    pub(super) fn database(&self) -> Result<&Database, Error> {
        self.database.as_deref().ok_or(Error::NotConfigured)
    }

    /// What the ledger calls this cluster: the one uid that is as old as it is.
    pub(super) async fn cluster(&self) -> Result<&str, Error> {
        let ask = async || {
            let found = Api::<Namespace>::all(self.parts.client.clone()).get("kube-system").await;
            let found = found.map_err(Error::api("look up the uid of namespace kube-system"))?;
            Ok(found.metadata.uid.unwrap_or_default())
        };
        self.cluster.get_or_try_init(ask).await.map(String::as_str)
    }

    /// Before each write: a leader that was frozen may have a successor since.
    pub(super) fn leading(&self) -> Result<(), Error> {
        if self.parts.lead.holds() { Ok(()) } else { Err(Error::NotLeading) }
    }

    /// Puts the finalizer on, or takes it off. `false`: the object is gone.
    pub(super) async fn seal(&self, of: &Writer<'_>, on: bool) -> Result<bool, Error> {
        self.leading()?;
        let client = &self.parts.client;
        let sealed = finalizer::write::<PostgresWriter>(client, of.key, of.meta(), ROW_FINALIZER, on).await;
        let what = if on { "add the finalizer to" } else { "take the finalizer off" };
        sealed.map_err(Error::api(format!("{what} PostgresWriter {}", of.key)))
    }
}

/// Runs the controller until `stop`, and returns when its last reconcile has ended.
pub(crate) async fn run(parts: Parts, settings: Option<Settings>, stop: CancellationToken) {
    match &settings {
        Some(settings) => tracing::info!(database = %settings.place, "serving PostgresWriters"),
        None => {
            tracing::info!("no PSQL_ variables are set: PostgresWriters get no rows, and are told so");
            // An operator without a database does well without this right.
            let objects = Api::<Guard<PostgresWriter>>::all(parts.client.clone());
            let brief = WatchParams::default().timeout(1);
            if let Some(Err(kube::Error::Api(status))) = stop.run_until_cancelled(objects.watch(&brief, "0")).await
                && status.code == 403
            {
                tracing::info!("PostgresWriters are not even told so: {}", status.message);
                return;
            }
        }
    }
    let database = settings.map(|settings| Arc::new(Database::new(settings)));
    // While the kind is on its way out its objects still are, and have to be let go.
    let definition = Definition::until_gone(PostgresWriter::crd_name());
    let controller = async |stop: CancellationToken| {
        let (objects, feed) = Objects::new();
        let ctx = Ctx {
            parts: parts.clone(),
            database: database.clone(),
            objects: objects.clone(),
            statuses: Statuses::default(),
            drifted: Memo::default(),
            cluster: OnceCell::new(),
        };
        control(Arc::new(ctx), parts.clone(), (objects, feed), stop).await;
    };
    definition.control(parts.watch_client.clone(), &stop, controller).await;
}
