//! What every reconcile of a Postgresql shares, and the controller's start. An **effect**.

use std::sync::Arc;

use kube::{Client, CustomResourceExt as _};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{
    observed::{Basis, CredentialsView},
    watches::Watches,
};
use crate::{
    crd::{Guard, Postgresql, PostgresqlStatus},
    lead::Lead,
    runtime::{
        cache::Memo,
        controller::{Objects, Parts, control},
        definition::Definition,
        events::Recorder,
        key::Key,
        status::Statuses,
        subject::Subject,
    },
};

/// The Postgresql of one reconcile.
pub type Database<'a> = Subject<'a, Postgresql, PostgresqlStatus>;

pub struct Ctx {
    pub client: Client,
    pub recorder: Recorder,
    pub watches: Arc<Watches>,
    pub lead: Lead,
    pub statuses: Statuses<PostgresqlStatus>,
    pub credentials: Memo<Key, (Basis, CredentialsView)>,
}

impl Ctx {
    pub fn database<'a>(&self, key: &'a Key, guard: &'a Guard<Postgresql>) -> Database<'a> {
        self.statuses.subject(key, guard, guard.status(|object| &object.status))
    }

    pub fn forget(&self, key: &Key) {
        self.statuses.forget(key);
        self.credentials.take(key);
    }
}

/// Runs the controller while the cluster knows the kind, until `stop`. Returns when its last reconcile has ended.
pub async fn run(parts: Parts, stop: CancellationToken) {
    // While the kind is on its way out its objects still are, and have to be let go.
    let definition = Definition::until_gone(Postgresql::crd_name());
    let controller = async |stop: CancellationToken| {
        let (postgresqls, feed) = Objects::new();
        let tasks = TaskTracker::new();
        let ctx = Ctx {
            client: parts.client.clone(),
            recorder: parts.recorder.clone(),
            watches: Watches::start(&parts.watch_client, postgresqls.clone(), &tasks, &stop),
            lead: parts.lead.clone(),
            statuses: Statuses::default(),
            credentials: Memo::default(),
        };
        control(Arc::new(ctx), parts.clone(), (postgresqls, feed), stop).await;
        tasks.close();
        tasks.wait().await;
    };
    definition.control(parts.watch_client.clone(), &stop, controller).await;
}
