//! The controller of objects that are carried out once, such as backups: **observe → decide → report → act**.
//!
//! Each records what it is going to make, by name, before that is made: so whichever process is killed, it is made once. Of several
//! with the same subject, the oldest runs, and is looked at every few seconds; the others wait for its end without a request. One that
//! has ended is never read again.

use std::{
    fmt::{Debug, Display},
    ops::RangeInclusive,
    sync::Arc,
    time::Duration,
};

use jiff::Timestamp;
use k8s_openapi::{
    NamespaceResourceScope,
    apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta, Time},
};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams},
    core::object::HasStatus,
    runtime::{controller::Action, watcher::Event},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::{
    api::{create_if_absent, ignore_not_found},
    clock,
    controller::{
        ControllerContext, Objects, RECHECK_GONE, ReconcileError, ReconciledObject, Reconciler, after_write, control,
    },
    error::{Disposition, ReconcileFailure, RetryPolicy},
    events::{publish_by, ready_transition},
    key::{Key, key_of},
    panic::caught,
    reconciled::Reconciled,
    status::Statuses,
};
use crate::crd::{
    BackupPhase, BackupSubject, ClientAppBackupStatus, ClientAppRestoreStatus, Guard, RECLAIM_FINALIZER, RUN_FINALIZER,
    Reason,
    conditions::{State, Verdict, kind},
};

/// Limits how often one that runs is looked at: after a tenth of the time that it has taken so far, within these limits.
const LOOKS: RangeInclusive<Duration> = Duration::from_secs(3)..=Duration::from_secs(30);
/// The same of one that is deleted and stays, perhaps for ever: each look lists the restores of all namespaces.
const LOOKS_AT_DELETED: RangeInclusive<Duration> = Duration::from_secs(3)..=Duration::from_secs(600);

/// A kind of objects that are carried out once.
pub(crate) trait RunOnce: Clone + Debug + Sized + Send + Sync + 'static {
    type Object: ReconciledObject + HasStatus<Status = Self::Status>;
    type Status: RunStatus;
    /// Holds what it reads of other controllers.
    type Shared: Send + Sync + 'static;
    /// The next thing to do.
    type Step: Clone + Debug + Send + Sync;

    /// The action in its events.
    const ACTION: &'static str;
    /// The reasons of `Ready`.
    const REASONS: RunReasons;

    /// Returns what it is carried out for.
    fn subject(object: &Self::Object) -> BackupSubject;

    /// Reads what exists and decides what follows.
    fn decided(
        ctx: &RunContext<Self>,
        object: &Run<'_, Self>,
    ) -> impl Future<Output = Result<Outcome<Self>, Error>> + Send;

    /// Tells whether one waits for another of the same subject, neither of which has ended; `None`: the one that has begun, or is older,
    /// comes first.
    fn waits(_object: &Self::Object, _other: &Self::Object) -> Option<bool> {
        None
    }

    /// Takes a step.
    fn act(
        ctx: &RunContext<Self>,
        object: &Run<'_, Self>,
        step: &Self::Step,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Undoes what must not outlive a run that has the finalizer, once it has ended or its object is deleted. `Some`: why that waits.
    fn release(
        ctx: &RunContext<Self>,
        object: &Run<'_, Self>,
    ) -> impl Future<Output = Result<Option<String>, Error>> + Send;

    /// Deletes what a run has made, once its object is deleted with the finalizer for that. `Some`: why the object has to stay.
    fn reclaim(
        _ctx: &RunContext<Self>,
        _object: &Run<'_, Self>,
    ) -> impl Future<Output = Result<Option<Verdict>, Error>> + Send {
        std::future::ready(Ok(None))
    }

    /// Returns true if what it makes is deleted with it.
    fn is_reclaimed(_object: &Self::Object) -> bool {
        false
    }
}

/// The reasons of `Ready` in each phase.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RunReasons {
    pub pending: Reason,
    pub running: Reason,
    pub failed: Reason,
    pub completed: Reason,
}

/// The status of such an object.
pub(crate) trait RunStatus:
    Clone + Default + PartialEq + Serialize + DeserializeOwned + Send + Sync + 'static
{
    fn phase(&self) -> Option<BackupPhase>;
    fn started_at(&self) -> Option<&Time>;
    fn conditions(&self) -> &[Condition];
    /// Returns true if everything that its steps make is in the other one, too.
    fn makes_the_same(&self, recorded: &Self) -> bool;
    /// Returns it with this progress.
    fn at(self, phase: BackupPhase, started_at: Option<Time>, completed_at: Option<Time>) -> Self;
    /// Returns it with these conditions.
    fn with(self, generation: Option<i64>, conditions: Vec<Condition>) -> Self;
}

macro_rules! run_status {
    ($($status:ident),*) => {$(
        impl RunStatus for $status {
            fn phase(&self) -> Option<BackupPhase> {
                self.phase
            }

            fn started_at(&self) -> Option<&Time> {
                self.started_at.as_ref()
            }

            fn conditions(&self) -> &[Condition] {
                &self.conditions
            }

            fn makes_the_same(&self, recorded: &Self) -> bool {
                self.database == recorded.database && self.files == recorded.files
            }

            fn at(self, phase: BackupPhase, started_at: Option<Time>, completed_at: Option<Time>) -> Self {
                $status { phase: Some(phase), started_at, completed_at, ..self }
            }

            fn with(self, generation: Option<i64>, conditions: Vec<Condition>) -> Self {
                $status { observed_generation: generation, conditions, ..self }
            }
        }
    )*};
}
run_status!(ClientAppBackupStatus, ClientAppRestoreStatus);

/// The object of one reconcile.
pub(crate) type Run<'a, K> = Reconciled<'a, <K as RunOnce>::Object, <K as RunOnce>::Status>;

/// Holds what follows.
#[derive(Clone, Debug)]
pub(crate) struct Outcome<K: RunOnce> {
    /// Its conditions are those of before.
    pub status: K::Status,
    /// The condition `Ready`.
    pub ready: Verdict,
    /// Is taken once what it makes is recorded.
    pub step: Option<K::Step>,
}

impl<K: RunOnce> Outcome<K> {
    /// It waits to begin or, if a part is complete already, to go on.
    pub(crate) fn pending(status: K::Status, reason: impl Display) -> Self {
        let started_at = status.started_at().cloned();
        let phase = if started_at.is_some() { BackupPhase::Running } else { BackupPhase::Pending };
        let ready = Verdict::no(K::REASONS.pending, format!("waiting: {reason}"));
        Outcome { status: status.at(phase, started_at, None), ready, step: None }
    }

    pub(crate) fn running(status: K::Status, message: String, step: Option<K::Step>, now: Timestamp) -> Self {
        let started_at = status.started_at().cloned().unwrap_or(Time(now));
        let status = status.at(BackupPhase::Running, Some(started_at), None);
        Outcome { status, ready: Verdict::no(K::REASONS.running, message), step }
    }

    pub(crate) fn failed(status: K::Status, problem: impl Into<String>) -> Self {
        let started_at = status.started_at().cloned();
        let status = status.at(BackupPhase::Failed, started_at, None);
        Outcome { status, ready: Verdict::no(K::REASONS.failed, problem), step: None }
    }

    pub(crate) fn completed(status: K::Status, message: String, now: Timestamp) -> Self {
        let started_at = status.started_at().cloned();
        let status = status.at(BackupPhase::Completed, started_at, Some(Time(now)));
        Outcome { status, ready: Verdict::yes(K::REASONS.completed, message), step: None }
    }
}

/// Tells how far a part is.
pub(crate) enum Progress<T, S> {
    /// It cannot begin or continue yet.
    Waits(String),
    /// It is recorded, and made by this step unless it exists. The message says what happens.
    Runs(T, Option<S>, String),
    Completed(T),
    Failed(String),
}

impl<T, S> Progress<T, S> {
    /// Replaces what is made, and the step that makes it.
    pub(crate) fn map<U, R>(self, made: impl FnOnce(T) -> U, step: impl FnOnce(S) -> R) -> Progress<U, R> {
        match self {
            Progress::Waits(why) => Progress::Waits(why),
            Progress::Runs(it, next, message) => Progress::Runs(made(it), next.map(step), message),
            Progress::Completed(it) => Progress::Completed(made(it)),
            Progress::Failed(why) => Progress::Failed(why),
        }
    }
}

pub(crate) struct RunContext<K: RunOnce> {
    pub parts: ControllerContext,
    pub shared: Arc<K::Shared>,
    objects: Objects<K::Object>,
    statuses: Statuses<K::Status>,
}

/// Runs the controller until `stop`, and returns when its last reconcile has ended.
pub(crate) async fn run<K: RunOnce>(parts: ControllerContext, shared: Arc<K::Shared>, stop: CancellationToken) {
    let (objects, feed) = Objects::new();
    let statuses = Statuses::default();
    let ctx = RunContext::<K> { parts: parts.clone(), shared, objects: objects.clone(), statuses };
    control(Arc::new(ctx), parts, (objects, feed), stop).await;
}

impl<K: RunOnce> Reconciler for RunContext<K> {
    type Object = K::Object;
    type Error = Error;

    fn on_deleted(&self, key: &Key) {
        self.statuses.forget(key);
    }

    fn on_event(&self, event: &Event<Guard<K::Object>>) {
        let (Event::Apply(object) | Event::Delete(object)) = event else { return };
        // The next one of its subject may run. One that waits lets none run.
        let phase = object.status().and_then(|status| status.phase());
        if matches!(event, Event::Delete(_)) || !matches!(phase, None | Some(BackupPhase::Pending)) {
            let of = subject::<K>(object);
            let waits = |other: &Guard<K::Object>| {
                other.metadata.uid != object.metadata.uid && !is_over::<K>(other) && subject::<K>(other) == of
            };
            self.objects.trigger_in(object.metadata.namespace.as_deref().unwrap_or_default(), waits);
        }
    }

    fn is_own_write(&self, object: &Guard<K::Object>) -> bool {
        self.statuses.is_own_write(&object.metadata, &key_of(object))
    }

    async fn reconcile(&self, key: &Key, guard: &Guard<K::Object>) -> Result<Action, Error> {
        let run = &self.statuses.reconciled(key, guard);
        if run.is_deleted() || run.recorded_status.phase().is_some_and(BackupPhase::is_final) {
            return released(self, run).await;
        }
        let waits = comes_later(self, guard);
        let outcome = match waits {
            true => Ok(waiting(&run.recorded_status)),
            false => caught(K::decided(self, run), Error::panicked).await,
        };
        let is_recorded = outcome.as_ref().is_ok_and(|outcome| outcome.status.makes_the_same(&run.recorded_status));
        let outcome = match outcome {
            // What a successor would make as well, so that a refusal is all that the status tells.
            Ok(outcome) if is_recorded => taken(self, run, &outcome).await.map(|()| outcome),
            outcome => outcome,
        };
        if !write(self, run, outcome.as_ref()).await? {
            self.on_deleted(key);
            return Ok(Action::requeue(RECHECK_GONE));
        }
        let outcome = outcome?;
        if !is_recorded && let Err(error) = taken(self, run, &outcome).await {
            let written = self.statuses.reconciled(key, guard);
            write(self, &written, Err(&error)).await?;
            return Err(error);
        }
        let is_over = outcome.status.phase().is_some_and(BackupPhase::is_final);
        Ok(match is_over {
            // No event follows the write.
            true if run.has_finalizer(RUN_FINALIZER) => Action::requeue(Duration::ZERO),
            true => Action::await_change(),
            false if waits => Action::await_change(),
            false => next_look(run.meta()),
        })
    }
}

impl<K: RunOnce> RunContext<K> {
    /// Returns the objects of all namespaces that match, and are neither over nor being deleted.
    pub(crate) fn unfinished(&self, matches: impl Fn(&Guard<K::Object>) -> bool) -> Vec<Arc<Guard<K::Object>>> {
        let is_unfinished = |other: &Guard<K::Object>| {
            matches(other) && !is_over::<K>(other) && other.metadata.deletion_timestamp.is_none()
        };
        self.objects.store.state_filter(is_unfinished)
    }
}

/// Returns when a run that is not over is looked at again.
fn next_look(run: &ObjectMeta) -> Action {
    Action::requeue(look_in(LOOKS, run.creation_timestamp.as_ref().map(|at| at.0), clock::now()))
}

/// Releases what a run holds, and removes its finalizer.
async fn released<K: RunOnce>(ctx: &RunContext<K>, run: &Run<'_, K>) -> Result<Action, Error> {
    if !run.has_finalizer(RUN_FINALIZER) {
        return reclaimed(ctx, run).await;
    }
    if let Some(why) = K::release(ctx, run).await? {
        // What has ended keeps saying how.
        if !run.recorded_status.phase().is_some_and(BackupPhase::is_final) {
            let status = run.recorded_status.clone();
            write(ctx, run, Ok(&Outcome { status, ready: Verdict::no(K::REASONS.running, why), step: None })).await?;
        }
        return Ok(next_look(run.meta()));
    }
    Ok(after_write(run.remove_finalizer(&ctx.parts.client, RUN_FINALIZER).await?))
}

/// Deletes what a deleted run has made, if its spec asks for that, and removes the finalizer.
async fn reclaimed<K: RunOnce>(ctx: &RunContext<K>, run: &Run<'_, K>) -> Result<Action, Error> {
    let is_asked = run.object().is_ok_and(K::is_reclaimed);
    if !run.has_finalizer(RECLAIM_FINALIZER) || is_asked && !run.is_deleted() {
        return Ok(Action::await_change());
    }
    if is_asked {
        match caught(K::reclaim(ctx, run), Error::panicked).await {
            Ok(None) => {}
            Ok(Some(ready)) => {
                write(ctx, run, Ok(&Outcome { status: run.recorded_status.clone(), ready, step: None })).await?;
                let deleted = run.meta().deletion_timestamp.as_ref();
                return Ok(Action::requeue(look_in(LOOKS_AT_DELETED, deleted.map(|at| at.0), clock::now())));
            }
            Err(error) => {
                write(ctx, run, Err(&error)).await?;
                return Err(error);
            }
        }
    }
    Ok(after_write(run.remove_finalizer(&ctx.parts.client, RECLAIM_FINALIZER).await?))
}

/// Adds the finalizer, so that what a step leaves does not outlive the object.
pub(crate) async fn hold<K: RunOnce>(ctx: &RunContext<K>, run: &Run<'_, K>) -> Result<(), Error> {
    if !run.has_finalizer(RUN_FINALIZER) {
        run.add_finalizer(&ctx.parts.client, RUN_FINALIZER).await?;
    }
    Ok(())
}

/// Returns an object of another kind that has begun and not ended.
pub(crate) async fn running<O>(api: Api<O>, is_of: impl Fn(&O) -> bool) -> Result<Option<String>, Error>
where
    O: ReconciledObject + Resource<Scope = NamespaceResourceScope> + HasStatus<Status: RunStatus>,
{
    let listed = api.list(&ListParams::default()).await;
    let listed = listed.map_err(Error::api(format!("list {}", O::plural(&()))))?;
    let runs = |object: &&O| is_of(object) && object.status().and_then(RunStatus::phase) == Some(BackupPhase::Running);
    Ok(listed.items.iter().find(runs).map(|object| key_of(object).to_string()))
}

/// Creates an object, unless one of its name exists.
pub(crate) async fn create<O>(client: &Client, namespace: &str, object: &O) -> Result<(), Error>
where
    O: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize,
{
    let created = create_if_absent(&Api::<O>::namespaced(client.clone(), namespace), None, object).await;
    let what = format!("create {} {namespace}/{}", O::kind(&()), object.name_any());
    created.map(drop).map_err(Error::api(what))
}

/// Changes an object as it was read: the uid keeps the patch off one that was recreated since, and the version off one that another
/// client has changed. One that is gone stays so.
pub(crate) async fn change(
    client: &Client,
    resource: &ApiResource,
    read: &ObjectMeta,
    mut patch: Value,
) -> Result<(), Error> {
    let (namespace, name) = (read.namespace.as_deref().unwrap_or_default(), read.name.as_deref().unwrap_or_default());
    patch["metadata"]["uid"] = json!(read.uid);
    patch["metadata"]["resourceVersion"] = json!(read.resource_version);
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), namespace, resource);
    let changed = ignore_not_found(api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch)).await);
    changed.map(drop).map_err(Error::api(format!("change {} {namespace}/{name}", resource.kind)))
}

/// Takes the step of a decision, if there is one.
async fn taken<K: RunOnce>(ctx: &RunContext<K>, run: &Run<'_, K>, outcome: &Outcome<K>) -> Result<(), Error> {
    match &outcome.step {
        Some(step) => K::act(ctx, run, step).await,
        None => Ok(()),
    }
}

/// Decides while another of the same subject comes first. Without its name: with each that ends, every one that waits would be written anew.
fn waiting<K: RunOnce>(recorded: &K::Status) -> Outcome<K> {
    let first = format!("another {} of the same object comes first", K::Object::kind(&()));
    Outcome::pending(recorded.clone(), first)
}

fn is_over<K: RunOnce>(object: &Guard<K::Object>) -> bool {
    object.status().and_then(|status| status.phase()).is_some_and(BackupPhase::is_final)
}

/// Returns what an object is carried out for; `None` if it does not decode, and so is carried out for nothing.
fn subject<K: RunOnce>(object: &Guard<K::Object>) -> Option<BackupSubject> {
    object.object.as_ref().ok().map(K::subject)
}

/// Returns true if one of the same subject that has begun, or is older, has not ended.
fn comes_later<K: RunOnce>(ctx: &RunContext<K>, object: &Guard<K::Object>) -> bool {
    let Some(of) = subject::<K>(object) else { return false };
    let age = |object: &Guard<K::Object>| {
        let phase = object.status().and_then(|status| status.phase());
        // Of two that were created in the same second, the first to begin goes on.
        let is_waiting = phase != Some(BackupPhase::Running);
        (is_waiting, object.metadata.creation_timestamp.clone(), object.metadata.name.clone())
    };
    let waits = |other: &Guard<K::Object>| {
        let pair = object.object.as_ref().ok().zip(other.object.as_ref().ok());
        pair.and_then(|(object, other)| K::waits(object, other)).unwrap_or_else(|| age(other) < age(object))
    };
    let comes_first = |other: &Guard<K::Object>| {
        other.metadata.namespace == object.metadata.namespace
            && subject::<K>(other).as_ref() == Some(&of)
            && waits(other)
    };
    !ctx.unfinished(comes_first).is_empty()
}

/// Returns when one that was created then is looked at again.
fn look_in(looks: RangeInclusive<Duration>, since: Option<Timestamp>, now: Timestamp) -> Duration {
    let age = since.and_then(|since| Duration::try_from(now.duration_since(since)).ok()).unwrap_or_default();
    (age / 10).clamp(*looks.start(), *looks.end())
}

/// Writes the status unless it is unchanged, and publishes an event when the object has ended. `false`: the object is gone.
async fn write<K: RunOnce>(
    ctx: &RunContext<K>,
    run: &Run<'_, K>,
    outcome: Result<&Outcome<K>, &Error>,
) -> Result<bool, Error> {
    let recorded = &run.recorded_status;
    let status = status(recorded, run.meta().generation, outcome, clock::now());
    if !ctx.statuses.record(&ctx.parts.client, run, &status).await? {
        return Ok(false);
    }
    let turn = ready_transition(K::ACTION, recorded.conditions(), status.conditions());
    publish_by(&ctx.parts.recorder, &run.reference(), turn.as_slice()).await;
    Ok(true)
}

/// Computes the status. **Pure.**
fn status<K: RunOnce>(
    recorded: &K::Status,
    generation: Option<i64>,
    outcome: Result<&Outcome<K>, &Error>,
    now: Timestamp,
) -> K::Status {
    let (status, ready, is_stalled) = match outcome.map_err(|error| (error, error.disposition())) {
        Ok(Outcome { status, ready, step: _ }) => {
            (status.clone(), ready.clone(), Reason::parse(&ready.reason).is_some_and(Reason::stalled))
        }
        Err((_, disposition)) if disposition.condition.is_none() => return recorded.clone(),
        Err((error, disposition)) => (recorded.clone(), disposition.verdict(error), disposition.stalled),
    };
    status.with(generation, ready.ready_and_stalled(is_stalled, recorded.conditions(), generation, now))
}

/// Tells what can go wrong, and what follows from it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Failed(#[from] ReconcileFailure),
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    pub(crate) fn api(operation: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        |source| ReconcileFailure::api(operation)(source).into()
    }
}

impl ReconcileError for Error {
    fn disposition(&self) -> Disposition {
        match self {
            Error::Failed(failure) => failure.disposition(),
            Error::Invalid(_) => Disposition {
                condition: Some(kind::READY),
                state: State::False,
                reason: Reason::InvalidSpec,
                stalled: Reason::InvalidSpec.stalled(),
                retry: RetryPolicy::OnChange,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_takes_long_is_looked_at_less_often() {
        let created: Timestamp = "2026-01-31T04:00:00Z".parse().unwrap();
        for (later, expected) in [(0, 3), (20, 3), (100, 10), (400, 30), (100_000, 30), (-50, 3)] {
            let now = created + jiff::SignedDuration::from_secs(later);
            assert_eq!(look_in(LOOKS, Some(created), now), Duration::from_secs(expected), "{later}");
        }
        assert_eq!(look_in(LOOKS, None, created), Duration::from_secs(3));
    }
}
