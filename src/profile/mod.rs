//! The controller of `Profile`: **revision → waves → status → turns**.
//!
//! | stage | module | |
//! |---|---|---|
//! | what the Profile gives, as a revision | [`revision`] | pure |
//! | how its ClientApps do | [`app`] | pure |
//! | and what they answer, while a wave waits for that | [`health`] | pure, then one request each |
//! | which of them get the newest revision next | [`waves`] | pure |
//! | report it | [`status`] | pure, then one write |
//! | let them take it | [`registry`] | in memory |
//!
//! A ClientApp records the revision that it has in its own status, before helm runs. So a restart of the operator loses turns that
//! no ClientApp has taken, and what apps have answered, for which they are asked again. At rest, nothing is read, written or asked.

mod app;
mod health;
mod registry;
mod revision;
mod status;
mod waves;
mod window;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use futures::{StreamExt as _, channel::mpsc, stream::FuturesUnordered};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::ControllerRevision;
use kube::{
    Api,
    runtime::{controller::Action, watcher, watcher::Event},
};
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use self::{
    health::{Checks, Judged, Outcome, Question},
    registry::Turns,
    waves::{AppView, Decision, Passed, Rollout, Wait},
    window::Window,
};
pub(crate) use self::{
    registry::{Found, Profiles},
    revision::ProfileRevision,
};
use crate::{
    config::Config,
    crd::{ClientApp, Guard, Profile, ProfileStatus, Reason, conditions::Verdict, label},
    deletion,
    platform::{
        api::create_if_absent,
        cache::{CacheEntry, Change},
        clock,
        controller::{
            ControllerContext, Feed, Objects, RECHECK_GONE, ReconcileError, Reconciler, after_write, control,
        },
        error::ReconcileFailure,
        events::{publish_by, ready_transition},
        key::{Key, key_of},
        panic::caught,
        reconciled::Reconciled,
        status::Statuses,
        watch::{feed_cache, in_pages},
    },
};

/// This many apps are asked for their health at the same time.
const ASKED_AT_ONCE: usize = 8;

struct ProfileContext {
    parts: ControllerContext,
    config: Arc<Config>,
    /// The operator's namespace, which has the revisions.
    namespace: String,
    apps: Objects<ClientApp>,
    profiles: Arc<Profiles>,
    statuses: Statuses<ProfileStatus>,
    checks: Checks,
    /// The apps to ask, for the task that asks them.
    questions: mpsc::UnboundedSender<Question>,
    asked: Mutex<mpsc::UnboundedReceiver<Question>>,
}

/// Runs the controller until `stop`, and returns when its last reconcile has ended.
pub(crate) async fn run(
    parts: ControllerContext,
    (config, namespace): (Arc<Config>, String),
    apps: Objects<ClientApp>,
    (profiles, feed): (Arc<Profiles>, Feed<Profile>),
    stop: CancellationToken,
) {
    let objects = profiles.objects.clone();
    let (questions, asked) = mpsc::unbounded();
    let ctx = ProfileContext {
        parts: parts.clone(),
        config,
        namespace,
        apps,
        profiles,
        statuses: Statuses::default(),
        checks: Checks::default(),
        questions,
        asked: Mutex::new(asked),
    };
    let (counted, metrics) = (objects.clone(), parts.metrics.clone());
    let profiles = move || counted.store.state().iter().flat_map(|profile| status::samples(profile)).collect();
    let _measured = metrics.measure("Profile", profiles);
    control(Arc::new(ctx), parts, (objects, feed), stop).await;
}

impl Reconciler for ProfileContext {
    type Object = Profile;
    type Error = ReconcileFailure;

    fn on_deleted(&self, key: &Key) {
        self.statuses.forget(key);
    }

    fn on_event(&self, event: &Event<Guard<Profile>>) {
        if let Event::Delete(profile) = event {
            let uid = profile.metadata.uid.as_deref().unwrap_or_default();
            self.profiles.set_turns(uid, None);
            self.checks.forget(uid);
            self.trigger_apps(&key_of(profile).name);
        }
    }

    fn is_own_write(&self, profile: &Guard<Profile>) -> bool {
        let observed = profile.status().and_then(|status| status.observed_generation);
        observed == profile.metadata.generation && self.statuses.is_own_write(&profile.metadata, &key_of(profile))
    }

    async fn synced(&self) {
        self.profiles.revisions.synced().await;
        self.apps.listed().await;
    }

    /// Watches the revisions, and asks apps for their health.
    async fn background(&self) {
        let api: Api<Guard<ControllerRevision>> = Api::namespaced(self.parts.watch_client.clone(), &self.namespace);
        let ours = watcher::Config::default().labels(label::PROFILE_UID);
        let entry = |found: Guard<ControllerRevision>| entry(found.metadata.name.clone(), found.object.ok().as_ref());
        // The controller itself makes the revisions; but one may have been deleted by hand.
        let changed = |change| {
            if !matches!(change, Change::Nothing) {
                self.profiles.objects.trigger_where(|_| true);
            }
        };
        let stream = watcher(api, in_pages(ours));
        let fed = feed_cache("controllerrevisions", stream, &self.profiles.revisions, entry, changed);
        tokio::join!(fed, self.ask_all());
    }

    async fn reconcile(&self, key: &Key, guard: &Guard<Profile>) -> Result<Action, ReconcileFailure> {
        let profile = &self.statuses.reconciled(key, guard);
        let reconciled = caught(reconcile(self, profile), ReconcileFailure::Panicked).await;
        if let Err(error) = &reconciled
            && let disposition = error.disposition()
            && disposition.condition.is_some()
        {
            self.report(profile, &failed(profile, disposition.verdict(error))).await?;
        }
        reconciled
    }
}

/// One that does not decode counts as absent.
fn entry(name: Option<String>, object: Option<&ControllerRevision>) -> CacheEntry<Arc<ProfileRevision>> {
    let key = Key::new("", name.unwrap_or_default());
    let revision = object.and_then(revision::read).map(Arc::new);
    CacheEntry { key, group: revision.as_ref().map(|revision| Key::new("", &revision.profile_uid)), value: revision }
}

type Reconciling<'a> = Reconciled<'a, Profile, ProfileStatus>;

async fn reconcile(ctx: &ProfileContext, profile: &Reconciling<'_>) -> Result<Action, ReconcileFailure> {
    if profile.is_deleted() {
        return Ok(Action::await_change());
    }
    let now = clock::now();
    let spec = match profile.object() {
        Ok(object) => &object.spec,
        Err(problem) => return ctx.refuse(profile, format!("the stored Profile does not decode: {problem}")).await,
    };
    let rollout = spec.rollout.clone().unwrap_or_default();
    let canaries = match app::canaries(rollout.canary.as_ref()) {
        Ok(canaries) => canaries,
        Err(problem) => return ctx.refuse(profile, problem).await,
    };
    let revisions = ctx.with_newest(profile, &revision::content(spec, &ctx.config.base_values)).await?;
    let newest = revisions.last().map_or(1, |revision| revision.number);
    let named = |number: i64| revisions.iter().find(|revision| revision.number == number);
    let target = rollout.revision.unwrap_or(newest);
    let Some(target_revision) = named(target) else {
        let problem = format!("spec.rollout.revision: there is no revision {target}; the newest is {newest}");
        return ctx.refuse(profile, problem).await;
    };
    // Otherwise all its ClientApps would take the target at once.
    let recorded_current = profile.recorded_status.current_revision;
    if let Some(lost) = recorded_current.filter(|number| named(*number).is_none())
        && rollout.revision.is_none()
    {
        let problem = format!(
            "the ControllerRevision of revision {lost}, which ClientApps have, is gone: set spec.rollout.revision, which all then take at once; the newest is {newest}"
        );
        return ctx.refuse(profile, problem).await;
    }
    let current = recorded_current.filter(|number| named(*number).is_some()).unwrap_or(target);
    let window = match Window::at(now, rollout.window.as_ref()) {
        Ok(window) => window,
        // The way back waits for no window, nor for one that is valid.
        Err(_) if rollout.revision.is_some() && target <= current => Window::Open(None),
        Err(problem) => return ctx.refuse(profile, problem).await,
    };
    let name = &profile.key.name;
    let view = |app: &Arc<Guard<ClientApp>>| app::view(app, (name, &revisions), canaries.as_ref(), now);
    let mut apps: Vec<AppView> = ctx.apps.store.state().iter().filter_map(view).collect();
    let turns = ctx.profiles.turns_of(profile.uid());
    let none = BTreeSet::new();
    let is_same = turns.target == target_revision.name;
    let (permitted, passed) = if is_same { (&turns.permitted, turns.passed) } else { (&none, Passed::default()) };
    let is_under_way = target > current && apps.iter().any(|app| app.revision.unwrap_or(current) != target);
    let mut next_check = None;
    match &rollout.health {
        // On the way back nothing waits for an app's health, nor while it is paused.
        Some(check) if is_under_way && !rollout.paused => {
            let (revision, check) = ((target, target_revision.name.as_str()), &Arc::new(check.clone()));
            let judged = Judged { revision, check, soak: waves::soak(&rollout) };
            next_check = ctx.judge(profile, judged, &mut apps, now);
        }
        _ => ctx.checks.forget(profile.uid()),
    }
    let apps = apps;
    let decision =
        waves::decide(&Rollout { current, target, spec: &rollout, apps: &apps, permitted, passed, window }, now);
    let current = if decision.rollout.is_none() { target } else { current };
    let (generation, recorded) = (profile.meta().generation, &profile.recorded_status);
    let status = status::status(recorded, generation, (current, target, apps.len()), &decision, now);
    ctx.take_back(profile, &target_revision.name, &decision.permitted);
    // On record before anything follows it: new ClientApps begin with the current revision.
    if !ctx.report(profile, &status).await? {
        return Ok(Action::requeue(RECHECK_GONE));
    }
    ctx.let_go(
        profile,
        &apps,
        Turns {
            current: named(current).map(|revision| revision.name.clone()).unwrap_or_default(),
            target: target_revision.name.clone(),
            permitted: decision.permitted.clone(),
            passed: decision.passed,
        },
    );
    ctx.forget_outdated(&revisions, |number| {
        [current, target].contains(&number) || apps.iter().any(|app| app.revision == Some(number))
    })
    .await?;
    Ok(look_again(&decision, next_check.into_iter().chain(window.changes()).min(), now))
}

/// Returns when a wave may begin without any change. `next`: when an app is to be asked, or the window changes.
fn look_again(decision: &Decision, next: Option<Timestamp>, now: Timestamp) -> Action {
    let after = |until: Timestamp| until.duration_since(now).unsigned_abs() + Duration::from_millis(10);
    let next = next.map_or(Duration::MAX, after);
    // In case a watch has lost a change, or the clock was set forward; this takes no request.
    let latest = Duration::from_secs(60);
    match decision.wait {
        Wait::Soak(until) => Action::requeue(after(until).min(next).min(latest)),
        _ if decision.rollout.is_some() => Action::requeue(next.min(latest)),
        _ => Action::await_change(),
    }
}

fn failed(profile: &Reconciling<'_>, ready: Verdict) -> ProfileStatus {
    status::failed(&profile.recorded_status, profile.meta().generation, ready, clock::now())
}

impl ProfileContext {
    /// Writes the status, and publishes an event about a change of Ready. `false`: the Profile is gone.
    async fn report(&self, profile: &Reconciling<'_>, status: &ProfileStatus) -> Result<bool, ReconcileFailure> {
        let exists = self.statuses.record(&self.parts.client, profile, status).await?;
        if exists {
            let note = ready_transition("RollOut", &profile.recorded_status.conditions, &status.conditions);
            publish_by(&self.parts.recorder, &profile.reference(), note.as_slice()).await;
        }
        Ok(exists)
    }

    /// Judges the apps with a revision by what they have answered, and lets those be asked that are due. Returns when the next one is.
    fn judge(
        &self,
        profile: &Reconciling<'_>,
        judged: Judged<'_>,
        apps: &mut [AppView],
        now: Timestamp,
    ) -> Option<Timestamp> {
        let (due, next) = self.checks.judge((&profile.key.name, profile.uid()), judged, apps, now);
        for question in due {
            // The receiver ends with the controller.
            let _ = self.questions.unbounded_send(question);
        }
        next
    }

    /// Asks the apps that are to be asked, some of them at the same time.
    async fn ask_all(&self) {
        let (mut asked, mut under_way) = (self.asked.lock().await, FuturesUnordered::new());
        loop {
            tokio::select! {
                Some(question) = asked.next(), if under_way.len() < ASKED_AT_ONCE => under_way.push(self.ask(question)),
                Some(()) = under_way.next() => {}
                else => return,
            }
        }
    }

    /// Asks an app, and lets its Profile be reconciled with the answer.
    async fn ask(&self, question: Question) {
        if !self.checks.awaits(&question) {
            return;
        }
        let outcome = caught(async { Ok(self.answer(&question).await) }, ReconcileFailure::Panicked).await;
        let outcome = outcome.unwrap_or_else(|error| Outcome::Unknown(error.to_string()));
        self.checks.record(&question, outcome, clock::now());
        self.profiles.trigger(&question.profile.0);
    }

    async fn answer(&self, Question { app, subject, .. }: &Question) -> Outcome {
        let Some(found) = self.apps.get(app) else { return Outcome::Unknown("it is gone".to_owned()) };
        let Ok(object) = &found.object else { return Outcome::Unknown("it does not decode".to_owned()) };
        match health::service(object, &self.config.chart) {
            Ok(service) => {
                let place = (app, object.spec.hostname.as_str(), service.as_str());
                health::ask(&self.parts.client, place, &subject.check, self.config.health_checks_to).await
            }
            Err(problem) => Outcome::Wrong(problem),
        }
    }

    /// Reports what is wrong with a Profile, and lets no further ClientApp take a revision.
    async fn refuse(&self, profile: &Reconciling<'_>, problem: String) -> Result<Action, ReconcileFailure> {
        self.checks.forget(profile.uid());
        self.take_back(profile, "", &BTreeSet::new());
        let refused = failed(profile, Verdict::no(Reason::ProfileInvalid, problem));
        Ok(after_write(self.report(profile, &refused).await?))
    }

    /// Takes back all turns but those of these ClientApps for this revision. Those that are new begin with the current revision.
    fn take_back(&self, profile: &Reconciling<'_>, target: &str, but: &BTreeSet<String>) {
        let mut turns = self.profiles.turns_of(profile.uid());
        turns.permitted.retain(|app| turns.target == target && but.contains(app));
        let revisions = self.profiles.revisions_of(profile.uid());
        let recorded = profile.recorded_status.current_revision;
        let current = revisions.iter().find(|revision| Some(revision.number) == recorded);
        turns.current = current.map(|revision| revision.name.clone()).unwrap_or_default();
        self.profiles.set_turns(profile.uid(), Some(turns));
    }

    /// Returns the revisions of a Profile, in ascending order, of which the last has this content.
    async fn with_newest(
        &self,
        profile: &Reconciling<'_>,
        content: &serde_json::Value,
    ) -> Result<Vec<Arc<ProfileRevision>>, ReconcileFailure> {
        let mut revisions = self.profiles.revisions_of(profile.uid());
        let newest = revisions.last();
        let ProfileStatus { current_revision, update_revision, .. } = profile.recorded_status;
        // Its name tells what it contains, however the API server stores that.
        let name = |number| revision::name(profile.guard, number, content);
        let lost = app::lost(&self.apps.store.state(), &profile.key.name, &revisions);
        let number =
            revision::number(newest.map(|newest| &**newest), current_revision.max(update_revision), &lost, name);
        if newest.is_none_or(|newest| newest.number != number) {
            let object = revision::object(profile.guard, &self.namespace, number, content);
            let api = Api::namespaced(self.parts.client.clone(), &self.namespace);
            let made = create_if_absent(&api, None, &object).await;
            made.map_err(ReconcileFailure::api(format!("create revision {number} of Profile {}", profile.key)))?;
            revisions.extend(revision::read(&object).map(Arc::new));
            // Before the watch shows it, so that it can be taken.
            let name = object.metadata.name.clone();
            self.profiles.revisions.apply(Event::Apply(object), |object| entry(name.clone(), Some(&object)));
        }
        Ok(revisions)
    }

    /// Lets ClientApps take their revision, and triggers those for which that is new.
    fn let_go(&self, profile: &Reconciling<'_>, apps: &[AppView], turns: Turns) {
        let before = self.profiles.turns_of(profile.uid());
        let concerned = |app: &&AppView| match app.revision {
            None if before.current != turns.current => true,
            _ => turns.permitted.contains(&app.uid) && !before.permits(&turns.target, &app.uid),
        };
        self.profiles.set_turns(profile.uid(), Some(turns.clone()));
        apps.iter().filter(concerned).for_each(|app| self.apps.trigger(&app.key));
    }

    fn trigger_apps(&self, profile: &str) {
        self.apps
            .trigger_where(|app| app.object.as_ref().is_ok_and(|app| app.spec.profile.as_deref() == Some(profile)));
    }

    async fn forget_outdated(
        &self,
        revisions: &[Arc<ProfileRevision>],
        is_used: impl Fn(i64) -> bool,
    ) -> Result<(), ReconcileFailure> {
        for name in revision::outdated(revisions, is_used) {
            let deleted = deletion::profile_revision(&self.parts.client, &self.namespace, name).await;
            deleted.map_err(ReconcileFailure::api(format!("delete ControllerRevision {}/{name}", self.namespace)))?;
        }
        Ok(())
    }
}
