//! The controller of `Postgresql`: **observe → desired → decide → act → report**, and teardown, as for a `ClientApp`.
//!
//! | stage | module | |
//! |---|---|---|
//! | what is there | [`observe`] → [`observed`] | effect, reads only |
//! | what shall be | [`mod@desired`], with [`build`] and [`names`] | pure |
//! | what to do now | [`mod@decide`] | pure |
//! | do it | [`act`] | effect |
//! | say so | [`report`] | pure, then one write |
//! | deletion | [`teardown`] | effect |

pub mod act;
pub mod build;
pub mod decide;
pub mod desired;
pub mod error;
pub mod names;
pub mod observe;
pub mod observed;
pub mod report;
pub mod teardown;
pub mod watches;

use std::{sync::Arc, time::Duration};

use jiff::Timestamp;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Client, Resource as _,
    runtime::{controller::Action, events::Recorder},
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::{
    decide::{Hold, decide},
    desired::desired,
    error::Error,
    observe::Basis,
    observed::CredentialsView,
    teardown::Leaving,
    watches::Watches,
};
use crate::{
    crd::{Guard, POSTGRESQL_FINALIZER, Postgresql, PostgresqlStatus, Reason},
    lease::Lead,
    runtime::{
        cache::Memo,
        controller::{Kind, Objects, Parts, control},
        definition::Definition,
        events::publish_by,
        finalizer,
        key::{Key, key_of},
        panic::caught,
        status::Statuses,
    },
};

const DEFINITION: &str = "postgresqls.apps.bnerd-operator.local";
/// A deletion is carried on by a watch; this is the net under it.
const SAFETY_NET: Duration = Duration::from_secs(60);

pub struct Ctx {
    pub client: Client,
    pub recorder: Recorder,
    pub watches: Arc<Watches>,
    pub lead: Lead,
    statuses: Statuses<PostgresqlStatus>,
    credentials: Memo<Key, (Basis, CredentialsView)>,
}

impl Ctx {
    #[expect(clippy::disallowed_methods, reason = "the one clock of this controller")]
    fn now(&self) -> Timestamp {
        Timestamp::now()
    }

    fn forget(&self, key: &Key) {
        self.statuses.forget(key);
        self.credentials.take(key);
    }
}

/// Runs the controller while the cluster knows the kind, until `stop`. Returns when its last reconcile has ended.
pub async fn run(parts: Parts, stop: CancellationToken) {
    // While the kind is on its way out its objects still are, and have to be let go.
    let definition = Definition::until_gone(DEFINITION);
    let controller = |stop| run_while_installed(parts.clone(), stop);
    definition.control(parts.watch_client.clone(), &stop, controller).await;
}

async fn run_while_installed(parts: Parts, stop: CancellationToken) {
    let (postgresqls, feed) = Objects::new();
    let tasks = TaskTracker::new();
    let watches = Watches::start(&parts.watch_client, postgresqls.clone(), &tasks, &stop);
    let ctx = Ctx {
        client: parts.client.clone(),
        recorder: parts.recorder.clone(),
        watches,
        lead: parts.lead.clone(),
        statuses: Statuses::default(),
        credentials: Memo::default(),
    };
    control(Arc::new(ctx), parts, (postgresqls, feed), stop).await;
    tasks.close();
    tasks.wait().await;
}

impl Kind for Ctx {
    type Object = Postgresql;
    type Error = Error;

    fn wrote(&self, object: &Guard<Postgresql>) -> bool {
        self.statuses.wrote(&object.metadata, &key_of(object))
    }

    async fn synced(&self) {
        self.watches.synced().await;
    }

    async fn reconcile(&self, key: &Key, guard: &Guard<Postgresql>) -> Result<Action, Error> {
        drive(self, key, guard).await
    }
}

async fn drive(ctx: &Ctx, key: &Key, guard: &Guard<Postgresql>) -> Result<Action, Error> {
    let meta = &guard.metadata;
    let pass = Pass {
        ctx,
        key,
        guard,
        uid: meta.uid.as_deref().unwrap_or_default(),
        reference: guard.object_ref(&()),
        before: ctx.statuses.get(key, meta, guard.status(|object| &object.status)),
    };
    match pass.run().await {
        Err(Error::Gone(_)) => teardown::abandoned(ctx, &pass.leaving()).await.map(|()| Action::await_change()),
        result => result,
    }
}

struct Pass<'a> {
    ctx: &'a Ctx,
    key: &'a Key,
    guard: &'a Guard<Postgresql>,
    uid: &'a str,
    reference: ObjectReference,
    before: PostgresqlStatus,
}

impl Pass<'_> {
    async fn run(&self) -> Result<Action, Error> {
        let Pass { ctx, key, guard, .. } = self;
        let meta = &guard.metadata;
        let result = match (meta.deletion_timestamp.is_some(), finalizer::carries(meta, POSTGRESQL_FINALIZER)) {
            (true, false) => {
                ctx.forget(key);
                return Ok(Action::await_change());
            }
            (true, true) => caught(self.take_down(), Error::Panicked).await,
            // The change itself brings the next reconcile. What does not decode is not acted for, and needs no teardown.
            (false, false) if guard.object.is_ok() => self.finalizer(true).await,
            (false, _) => caught(self.bring_up(), Error::Panicked).await,
        };
        if let Err(error) = &result {
            // As it was put on record since.
            let before = ctx.statuses.get(key, meta, guard.status(|object| &object.status));
            self.say(&report::failed(&before, meta.generation, error, ctx.now())).await?;
        }
        result
    }

    async fn finalizer(&self, there: bool) -> Result<Action, Error> {
        let Pass { ctx, key, guard, .. } = self;
        finalizer::write::<Postgresql>(&ctx.client, key, &guard.metadata, POSTGRESQL_FINALIZER, there)
            .await
            .map_err(Error::api(format!("write the finalizer of Postgresql {key}")))?;
        Ok(Action::await_change())
    }

    async fn bring_up(&self) -> Result<Action, Error> {
        let Pass { ctx, guard, reference, before, .. } = self;
        let generation = guard.metadata.generation;
        let desired = guard
            .object
            .as_ref()
            .map_err(|problem| format!("the stored object does not decode: {problem}"))
            .and_then(desired);
        let desired = match desired {
            Ok(desired) => desired,
            Err(message) => {
                let hold = Hold { reason: Reason::InvalidSpec, message };
                self.say(&report::only_said(before, generation, &hold, ctx.now())).await?;
                return Ok(Action::await_change());
            }
        };
        let observed = observe::observe(ctx, &desired, before.clone()).await?;
        let recorded = report::recorded(&desired, &observed);
        if recorded != observed.recorded {
            // Nothing is done on what is not on record.
            self.say(&recorded).await?;
            return Ok(Action::requeue(Duration::ZERO));
        }
        let plan = decide(&desired, &observed);
        act::act(ctx, reference, &desired, &observed, &plan).await?;
        // What was done shows in the watches, and brings the next reconcile.
        self.say(&report::build_status(generation, &desired, &observed, &plan, ctx.now())).await?;
        Ok(Action::await_change())
    }

    async fn take_down(&self) -> Result<Action, Error> {
        let Pass { ctx, key, guard, before, .. } = self;
        if let Some(hold) = teardown::teardown(ctx, &self.leaving()).await? {
            self.say(&report::only_said(before, guard.metadata.generation, &hold, ctx.now())).await?;
            return Ok(if hold.reason.stalled() { Action::await_change() } else { Action::requeue(SAFETY_NET) });
        }
        self.finalizer(false).await?;
        ctx.forget(key);
        Ok(Action::await_change())
    }

    fn leaving(&self) -> Leaving<'_> {
        let Pass { key, guard, uid, before, reference, .. } = self;
        let object = guard.object.as_ref().map_err(String::as_str);
        Leaving { key, meta: &guard.metadata, uid, object, before, reference }
    }

    /// Writes the status, and publishes what in it is new.
    async fn say(&self, status: &PostgresqlStatus) -> Result<(), Error> {
        let Pass { ctx, key, guard, uid, reference, .. } = self;
        let before = ctx.statuses.get(key, &guard.metadata, guard.status(|object| &object.status));
        report::write(ctx, key, uid, &before, status).await?;
        publish_by(&ctx.recorder, reference, &report::transitions(&before, status)).await;
        Ok(())
    }
}
