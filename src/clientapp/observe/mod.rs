//! The stage `observe`, an **effect**: reads the caches, and from the API server only what no cache may hold (the keys of a Secret that
//! another client wrote) or where a cache seems late (a revision this operator has seen). It writes nothing but `memory`, which spares
//! the next pass the same reads.

pub(crate) mod retained;
pub(crate) mod sources;
pub(crate) mod uncached;
pub(crate) mod values_in_effect;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference, Time};
use kube::{Resource as _, api::ListParams};
use std::{
    borrow::Borrow,
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use super::{
    context::{App, Ctx},
    error::Error,
    helm_runs::{HelmRun, TestRun, Upgraded, Upgrading, Work},
    hold::SAFETY_NET,
    observed::{
        dependencies, drift,
        field_edits::{self, EditCheck, EditTracker},
        file_backup::FilesView,
        helm_tests, installed_chart, inventory,
        owned::{self, OwnershipEvidence},
        pods::{self, NAMED_WORKLOADS, PodsView},
        release::{Phase, ReleaseView, is_stored, release_view},
        repair_backoff::WATCH_LAG,
        types::{
            BackupView, Busy, CachedChart, DatabaseView, DriftedObject, LiveState, Observed, ObservedObjects,
            ObservedRun, Prerequisites, SecretView, UnreadyDependency, Workload,
        },
        upgrade_backup,
    },
    spec::{
        database::{self, DatabaseCaches, DatabaseObject, DatabaseState, DesiredDatabase, DesiredObject},
        desired::{Desired, SecretSource},
        file_backup::Volume,
        secrets::SMTP,
        values::Tls,
    },
};
use crate::{
    crd::{
        BackupRecord, ClientApp, ClientAppStatus, Drift, Inventory, Owned, Reason, ReleaseObject, Tested, annotation,
        conditions::{find, kind::READY},
    },
    deletion::permit::DataKind,
    helm::gateway::record::WrittenObject,
    platform::{error::api_sentence, key::Key, pods::why as pods_why, warnings},
    secrets::SecretMeta,
};

/// A helm run that takes longer is reported while it goes on: its hooks may wait for workloads that never become ready.
const LONG: SignedDuration = SignedDuration::from_secs(5);

/// Returns what is known while helm works on the release, or while the watch does not show yet what helm wrote: both count as
/// busy. **Pure.**
fn busy(run: &HelmRun, cached: Option<&ReleaseView>, now: Timestamp) -> Option<Busy> {
    match run {
        HelmRun::Upgrading(upgrading) => {
            let Upgrading { digest, sentence, since } = upgrading.as_ref();
            let until = Some(*since + LONG).filter(|until| now < *until);
            Some(Busy { digest: Some(digest.clone()), sentence: sentence.clone(), until })
        }
        HelmRun::Upgraded(upgraded) => {
            let until = Some(wait_for_cache(upgraded, cached, now)?);
            let digest = Some(upgraded.attempt.digest.clone());
            Some(Busy { digest, sentence: String::new(), until })
        }
        HelmRun::OfPredecessor => {
            let sentence =
                "helm is still running for a deleted ClientApp of this name, and is being stopped".to_owned();
            Some(Busy { digest: None, sentence, until: None })
        }
        // A test changes nothing of the release.
        HelmRun::Idle
        | HelmRun::FetchingChart(_)
        | HelmRun::Testing(_)
        | HelmRun::Tested(_)
        | HelmRun::Uninstalling
        | HelmRun::Uninstalled(_) => None,
    }
}

/// Returns true if this shows the revision of a run that has ended, and its end: after helm has ended, the revision is not
/// pending, even if a late watch shows it so.
fn cache_has(upgraded: &Upgraded, release: Option<&ReleaseView>) -> bool {
    upgraded.revision.is_none_or(|revision| {
        release.is_some_and(|release| release.revision >= revision && release.phase != Phase::Pending)
    })
}

/// Returns until when to wait for a watch that does not show the revision yet; `None`: it shows it, or is too late.
fn wait_for_cache(upgraded: &Upgraded, release: Option<&ReleaseView>, now: Timestamp) -> Option<Timestamp> {
    let until = upgraded.at + WATCH_LAG;
    (upgraded.succeeded && !cache_has(upgraded, release) && now < until).then_some(until)
}

/// Observes everything that decisions about this app depend on; without a valid spec, only what needs no spec.
pub(crate) async fn observe(
    ctx: &Ctx,
    app: &App<'_>,
    desired: Option<&Desired>,
    now: Timestamp,
) -> Result<Observed, Error> {
    let key = app.key;
    let run = ctx.helm_runs.state(key, app.uid());
    let mut recorded = app.recorded_status.clone();
    let revisions = ctx.watches.revisions(key);
    let cached = release_view(&revisions);
    if let Some(at_work) = busy(&run, cached.as_ref(), now) {
        // helm may be changing everything else right now.
        let is_long = at_work.until.is_none() && at_work.digest.is_some();
        let workloads = if is_long { ctx.watches.workloads(key) } else { Vec::new() };
        let mut observed = Observed {
            run: ObservedRun { state: run, busy: Some(at_work), ..ObservedRun::default() },
            release: cached,
            objects: ObservedObjects { workloads, ..ObservedObjects::default() },
            recorded,
            ..Observed::default()
        };
        if let Some(desired) = desired.filter(|_| is_long) {
            with_reasons(ctx, desired, &mut observed, now).await;
            with_refused_hook(ctx, key, &mut observed);
            redact(desired, &mut observed);
        }
        return Ok(observed);
    }
    let (release, run_is_shown) = release(ctx, key, cached, &recorded, &run).await?;
    if let HelmRun::Upgraded(upgraded) = &run {
        recorded.last_attempt = Some(upgraded.attempt.clone());
    }
    if let HelmRun::Tested(test_run) = &run {
        recorded.test = Some(test_record(ctx, (key, desired), test_run, recorded.test.as_ref()).await?);
    }
    recorded.installed = installed_chart::installed_now(release.as_ref(), &recorded);
    let inventory = inventory(ctx, key, release.as_ref(), &recorded).await?;
    let workloads = workloads(ctx, key, (release.as_ref(), inventory.as_ref()), &run);
    let mut repairs = ctx.memory.read(key, |app| app.repairs.clone());
    if let HelmRun::Upgraded(upgraded) = &run {
        repairs = repairs.after_helm(upgraded.at);
        ctx.memory.put(key, |app| app.repairs = repairs.clone());
    }
    let owned = recorded.owned.clone();
    let last_ready_is_stored = recorded.last_ready.as_ref().is_some_and(|ready| is_stored(ready, &revisions));
    let observed = Observed {
        last_ready_is_stored,
        run: ObservedRun { state: run, is_in_cache: run_is_shown, ..ObservedRun::default() },
        release,
        objects: ObservedObjects { inventory, workloads, repairs, ..ObservedObjects::default() },
        owned,
        recorded,
        ..Observed::default()
    };
    match desired {
        Some(desired) => {
            let mut observed = with_spec(ctx, app, desired, observed, now).await?;
            with_reasons(ctx, desired, &mut observed, now).await;
            with_drift(ctx, desired, &mut observed, now).await;
            redact(desired, &mut observed);
            Ok(observed)
        }
        None => Ok(observed),
    }
}

/// Returns the release's workloads. After helm has run, it is known what it wrote, whether or not it succeeded, so that a late
/// watch does not report the revision ready because of a workload's former state, or because of the workloads of a former app
/// of this name.
fn workloads(
    ctx: &Ctx,
    key: &Key,
    (release, inventory): (Option<&ReleaseView>, Option<&Inventory>),
    run: &HelmRun,
) -> Vec<Workload> {
    let mut workloads = inventory::with_missing(inventory, key, ctx.watches.workloads(key));
    let mut known = ctx.memory.read(key, |app| app.last_applied.clone());
    if let (HelmRun::Upgraded(upgraded), Some(release)) = (run, release)
        && known.as_ref().is_none_or(|(secret, _)| *secret != release.secret_uid)
    {
        let newest = (release.secret_uid.clone(), Arc::from(upgraded.wrote.workloads()));
        ctx.memory.put(key, |app| app.last_applied = Some(newest.clone()));
        known = Some(newest);
    }
    // Of another revision, this says nothing: the history may even have been set back.
    let of_release = |(secret, _): &(String, _)| release.is_some_and(|release| release.secret_uid == *secret);
    let Some((_, wrote)) = known.filter(of_release) else { return workloads };
    for workload in &mut workloads {
        if wrote.iter().any(|written| predates_write(workload, written)) {
            workload.waiting = Some("its newest version is not seen yet".to_owned());
            workload.stuck = false;
            workload.refused = None;
        }
    }
    workloads
}

/// Returns true if a workload is seen as it was before helm wrote it, or is the former object of its name. **Pure.**
fn predates_write(seen: &Workload, WrittenObject { kind, metadata, .. }: &WrittenObject) -> bool {
    let wrote = metadata.resource_version.parse().ok();
    (seen.kind, &seen.name) == (kind.as_str(), &metadata.name)
        && seen.version.zip(wrote).is_some_and(|(seen, wrote): (u64, u64)| seen < wrote)
}

/// Adds why the pods of workloads are not ready, which the workloads themselves do not say. The API server is asked only about
/// workloads that have waited for a while, and not in each pass; if it cannot answer, the reason is left out.
async fn with_reasons(ctx: &Ctx, desired: &Desired, observed: &mut Observed, now: Timestamp) {
    for workload in &mut observed.objects.workloads {
        if let (Some(waiting), Some(why)) = (&mut workload.waiting, workload.refused.take()) {
            waiting.push_str(": ");
            waiting.push_str(&why);
        }
    }
    let key = &desired.key;
    let since = pods::not_ready_since(&observed.recorded);
    let is_settled = observed.release.as_ref().is_some_and(|release| release.phase == Phase::Deployed);
    let is_asked_for = is_settled || observed.run.busy.is_some();
    let Some(since) = since.filter(|since| is_asked_for && now.duration_since(*since) >= pods::GRACE) else {
        ctx.memory.drop(key, |app| app.pods = None);
        return;
    };
    let mut look = ctx
        .memory
        .read(key, |app| app.pods.clone())
        .filter(|look| now < look.until)
        .unwrap_or_else(|| pods::PodReasons { until: pods::next_look(since, now), reasons: BTreeMap::new() });
    let waiting = observed.objects.workloads.iter_mut().filter(|workload| workload.waiting.is_some());
    for workload in waiting.take(NAMED_WORKLOADS) {
        let Some(selector) = &workload.selector else { continue };
        // Each generation has its own pods.
        let template = (workload.uid.clone(), workload.generation);
        if !look.reasons.contains_key(&template) {
            let found = uncached::pods(ctx, key, &desired.account, ListParams::default().labels(selector)).await;
            let found = found.inspect_err(|error| tracing::debug!(app = %key, "{error}")).unwrap_or_default();
            look.reasons.insert(template.clone(), PodsView::of(workload, &found, &key.namespace));
        }
        let PodsView { there, why, stuck } = look.reasons.get(&template).cloned().unwrap_or_default();
        observed.objects.stuck_pods.extend(stuck);
        // A Deployment has a condition that says so. What was refused before the pods were there says nothing.
        let refusal = || {
            let wants = usize::try_from(workload.replicas).is_ok_and(|replicas| there < replicas);
            let refusal = ctx.watches.refusal(&key.namespace, (workload.kind, &workload.name), Some(since));
            refusal.filter(|_| wants)
        };
        if let (Some(waiting), Some(why)) = (&mut workload.waiting, why.or_else(refusal)) {
            waiting.push_str(": ");
            waiting.push_str(&why);
        }
    }
    ctx.memory.put(key, |app| app.pods = Some(look));
}

/// Adds why a hook's Job, for which helm waits, has no pod.
fn with_refused_hook(ctx: &Ctx, key: &Key, observed: &mut Observed) {
    if let (HelmRun::Upgrading(upgrading), Some(at_work)) = (&observed.run.state, &mut observed.run.busy)
        && let Some(refusal) = ctx.watches.refused_job(key, upgrading.since)
    {
        at_work.sentence.push_str("; ");
        at_work.sentence.push_str(&refusal);
    }
}

/// Redacts what kubelet, webhooks and the database's operator say: they may quote values from Secrets.
fn redact(desired: &Desired, observed: &mut Observed) {
    let database = &mut observed.prerequisites.database;
    let state = database.object.as_mut().and_then(|object| match &mut object.state {
        DatabaseState::Waiting(words) | DatabaseState::Stalled(words) => Some(words),
        DatabaseState::NotReported | DatabaseState::Restoring(_) | DatabaseState::Ready => None,
    });
    for words in database.warnings.iter_mut().chain(state) {
        *words = desired.values.redactor.redact(words);
    }
    let sentence = observed.run.busy.iter_mut().map(|at_work| &mut at_work.sentence);
    let waiting = observed.objects.workloads.iter_mut().filter_map(|workload| workload.waiting.as_mut());
    for waiting in sentence.chain(waiting) {
        *waiting = desired.values.redactor.redact(waiting);
    }
}

/// Adds missing objects of the release, if nothing else is to be done about the release. The API server is asked about each
/// object that no watch shows: a watch may be late, and a missing object makes the app not ready.
async fn with_drift(ctx: &Ctx, desired: &Desired, observed: &mut Observed, now: Timestamp) {
    let (key, release, inventory) = (&desired.key, &observed.release, &observed.objects.inventory);
    let is_asked_for = desired.drift.policy != Drift::Ignore && !desired.suspend;
    // Whatever the spec asks by now: helm may have to wait for long, for approval or for a dependency.
    let release = release.as_ref().filter(|release| is_asked_for && release.deployed().is_some());
    let (Some(release), Some(inventory)) = (release, inventory) else { return };
    let unseen = drift::unseen(inventory, release, key, |kind, name| ctx.watches.has(key, kind, name));
    if let Some(shown) = observed.objects.repairs.shown(now).filter(|_| !unseen.is_empty()) {
        observed.look_again = Some(shown);
        return;
    }
    for object in unseen {
        match uncached::found(ctx, key, &desired.account, &object).await {
            Some(found) => observed.objects.drifted.push(DriftedObject { object, state: found }),
            None => observed.look_again = Some(now + SAFETY_NET),
        }
    }
    with_edits(ctx, desired, observed, now).await;
}

/// Adds objects of the release that another client has edited.
async fn with_edits(ctx: &Ctx, desired: &Desired, observed: &mut Observed, now: Timestamp) {
    let key = &desired.key;
    let (Some(release), Some(inventory)) = (&observed.release, &observed.objects.inventory) else { return };
    if inventory.secret != release.secret_uid {
        return;
    }
    let (managed, ignored) = (ctx.watches.managed(key), &desired.drift.ignore);
    let shown = observed.objects.repairs.shown(now);
    let known = match &observed.run.state {
        // Exactly what helm wrote, so that an edit right after it is noticed as well.
        HelmRun::Upgraded(upgraded) if upgraded.revision == Some(release.revision) => {
            let wrote = upgraded.wrote.managed();
            let known = managed.keys().filter_map(|id| Some((id.clone(), *wrote.get(&(id.0, id.1.as_str()))?)));
            Some(EditTracker::of(inventory, known.collect()).with(ignored))
        }
        // An operator that has just started looks at everything if the one before it had found edits.
        _ => ctx.memory.read(key, |app| app.edits.clone()).map(|known| known.ignoring(ignored)).or_else(|| {
            let ready =
                find(&observed.recorded.conditions, READY).filter(|ready| ready.reason == Reason::Drifted.as_str());
            ready.map(|_| EditTracker::of(inventory, BTreeMap::new()).with(ignored))
        }),
    };
    if let Some(known) = &known {
        ctx.memory.put(key, |app| app.edits = Some(known.clone()));
    }
    let found = match field_edits::check(known, inventory, &managed, shown, now) {
        EditCheck::Unchanged(edits) => return ctx.memory.put(key, |app| app.edits = Some(edits.with(ignored))),
        EditCheck::StillEdited(found, until) => {
            observed.look_again = observed.look_again.into_iter().chain([until]).min();
            found
        }
        EditCheck::Compare(edits, objects) => {
            match uncached::edited(ctx, key, (desired, &release.secret), objects).await {
                Some(found) => {
                    ctx.memory.put(key, |app| app.edits = Some(edits.after(managed, &found, now)));
                    found
                }
                None => {
                    observed.look_again = Some(now + SAFETY_NET);
                    return;
                }
            }
        }
    };
    observed.objects.drifted.extend(found.into_iter().map(|mut missing| {
        if let LiveState::Uncompared(problem) = &mut missing.state {
            *problem = desired.values.redactor.redact(problem);
        }
        missing
    }));
}

/// Returns what has become of tests that have ended: helm's words say little, and its storage says which tests have failed.
async fn test_record(
    ctx: &Ctx,
    (key, desired): (&Key, Option<&Desired>),
    test_run: &TestRun,
    before: Option<&Tested>,
) -> Result<Tested, Error> {
    let TestRun { secret, account, failed, started_at: began, .. } = test_run;
    let tests = uncached::tests(ctx, key, secret).await?;
    let mut pods = None;
    // Without a valid spec, nothing says which values are secret, and kubelet may quote them.
    if let (Some(_), Ok(tests), Some(desired)) = (failed, &tests, desired)
        && let Some((kind, name)) = tests.failed.first()
    {
        let found = uncached::pods(ctx, key, account, helm_tests::pods_of(kind, name)).await;
        let mut found = found.inspect_err(|error| tracing::debug!(app = %key, "{error}")).unwrap_or_default();
        // The pod of an earlier test says nothing about this one. Its time has no fractions.
        let is_new = |created: &Time| created.0.as_second() >= began.as_second();
        found.retain(|pod| pod.metadata.creation_timestamp.as_ref().is_some_and(is_new));
        pods = pods_why(&found, None).map(|why| desired.values.redactor.redact(&why));
    }
    Ok(helm_tests::record(before, test_run, tests, pods))
}

/// Observes what depends on the spec.
async fn with_spec(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    observed: Observed,
    now: Timestamp,
) -> Result<Observed, Error> {
    let (key, uid) = (app.key, app.uid());
    let Observed { release, objects: ObservedObjects { inventory, .. }, recorded, .. } = &observed;
    let admin_secret = match &desired.secrets.admin {
        SecretSource::Generated(name) => {
            let (view, secret) = (admin_secret(ctx, app, name, &observed).await?, Key::new(&key.namespace, name));
            match (with_keys(ctx, view, &secret).await?, &*desired.secrets.more_admin_keys) {
                (SecretView::Own { uid, .. }, [_, ..]) => match secret_keys(ctx, &secret).await? {
                    SecretView::Present { keys } => SecretView::Own { uid, keys },
                    view => view,
                },
                (view, _) => view,
            }
        }
        SecretSource::Given(name) => {
            // The user names this Secret, so its owner does not matter.
            secret_keys(ctx, &Key::new(&key.namespace, name)).await?
        }
    };
    let redis = Key::new(&key.namespace, key.redis_secret());
    let claims = ctx.watches.claims(&key.namespace);
    let owned = owned(ctx, app, inventory.as_ref(), &claims);
    let redis_secret = with_keys(ctx, own_secret(ctx.watches.secrets.get(&redis), app), &redis).await?;
    let chart = ctx.charts.cached(&desired.target().chart_version).await.map(|chart| CachedChart::from(chart.as_ref()));
    let installed = installed_chart::installed(recorded);
    let prerequisites = Prerequisites {
        hostname_holder: ctx.hostnames.holder(&desired.hostname, uid, key),
        certificate: match &desired.tls {
            Some(Tls::Secret { name, .. }) => sources::certificate(ctx, key, &Key::new(&key.namespace, name)).await?,
            Some(Tls::Elsewhere) | None => None,
        },
        admin_secret,
        redis_secret,
        database: database(ctx, desired, uid, &recorded.owned).await?,
        deployer: ctx.watches.deployer(&key.namespace),
        retained: retained::find(ctx, desired, uid, recorded).await?,
        dependencies: dependencies(ctx, desired, release.as_ref()).await,
        chart: chart.filter(|chart| installed_chart::digest_changed(installed.as_ref(), chart).is_none()),
        backup: upgrade_backup::backup(desired, app.meta(), release.as_ref(), recorded, now)
            .map(|record| backup(ctx, desired, record)),
    };
    let hook = hook(ctx, app, desired, &observed).await?;
    let files = files(ctx, app, desired, (inventory.as_ref(), &claims)).await?;
    let slots = [Work::Change, Work::Test].map(|work| ctx.helm_runs.may_run(work, key));
    let Observed { run, objects, .. } = observed;
    Ok(Observed {
        run: ObservedRun { has_slot: slots[0], has_test_slot: slots[1], ..run },
        objects: ObservedObjects { hook, claims, ..objects },
        prerequisites,
        files,
        owned,
        retry: app.annotation(annotation::RETRY).cloned(),
        ..observed
    })
}

/// Returns what archives the app's files. The API server is asked only for a CronJob that is to be created: another of its name
/// has no label.
async fn files(
    ctx: &Ctx,
    app: &App<'_>,
    desired: &Desired,
    (inventory, exist): (Option<&Inventory>, &[Arc<ObjectMeta>]),
) -> Result<FilesView, Error> {
    let key = app.key;
    let mut cron_job = ctx.watches.cron_job(key);
    if desired.data.files.is_some() && cron_job.is_none() && inventory.is_some() {
        cron_job = uncached::cron_job(ctx, app).await?;
    }
    let volume = |claim: &str| {
        let found = exist.iter().find(|found| found.name.as_deref() == Some(claim))?;
        let uid = found.uid.clone().filter(|_| found.deletion_timestamp.is_none())?;
        Some(Volume { claim: claim.to_owned(), uid })
    };
    let volumes = inventory.and_then(|inventory| inventory::claims(inventory, &key.namespace).map(volume).collect());
    Ok(FilesView {
        image: ctx.image.clone(),
        app_uid: app.uid().to_owned(),
        volumes,
        cron_job,
        refused: ctx.memory.read(key, |app| app.refused_archives.clone()),
        is_restoring: app.annotation(annotation::RESTORING_FILES).is_some(),
        archives: ctx.watches.archives(key),
    })
}

/// Returns the dependencies that are not Ready, if helm has to run for what the spec asks.
async fn dependencies(ctx: &Ctx, desired: &Desired, release: Option<&ReleaseView>) -> Vec<UnreadyDependency> {
    let key = &desired.key;
    let is_settled = release.is_some_and(|release| release.is_deployed_as(&desired.target().digest));
    if is_settled || desired.rolled_back().is_some() || desired.suspend || desired.upgrade.depends_on.is_empty() {
        ctx.memory.drop(key, |app| app.dependencies.clear());
        return Vec::new();
    }
    // First of all, so that no change is missed after an app is looked at.
    let dependencies = dependencies::apps(&key.namespace, &desired.upgrade.depends_on);
    ctx.memory.put(key, |app| app.dependencies = dependencies);
    let depends = |app: &Key| {
        let found = ctx.watches.apps.get(app);
        let spec = found.as_ref().and_then(|found| found.object.as_ref().ok()).map(|app| &app.spec);
        spec.map(|spec| dependencies::apps(&app.namespace, &spec.depends_on)).unwrap_or_default()
    };
    let mut awaited = Vec::new();
    for dependency in &desired.upgrade.depends_on {
        let name = Key::new(&key.namespace, &dependency.name);
        let sentence = match (&dependency.api_version, dependency.kind.as_str()) {
            (None, _) if dependency.is_app() => {
                dependencies::app(&dependency.name, ctx.watches.apps.get(&name).as_deref())
            }
            (None, _) => {
                let database = ctx.watches.of(database::standalone()).objects.objects.get(&name);
                dependencies::database(dependency, database.as_ref().map(|found| found.state == DatabaseState::Ready))
            }
            (Some(api_version), kind) => {
                let object = ReleaseObject {
                    api_version: api_version.clone(),
                    kind: kind.to_owned(),
                    name: dependency.name.clone(),
                    ..ReleaseObject::default()
                };
                match uncached::any(ctx, key, &desired.account, &object).await {
                    Ok(found) => dependencies::object(dependency, found.as_ref()),
                    Err(error) => Some(format!("{kind} {}: {}", dependency.name, api_sentence(&error))),
                }
            }
        };
        awaited.extend(sentence.map(|sentence| UnreadyDependency {
            sentence,
            is_watched: dependency.is_app(),
            is_circle: dependency.is_app() && dependencies::is_circle(key, &name, depends),
        }));
    }
    awaited
}

/// Returns a hook's Job that still runs, of a revision that an operator's helm left pending.
async fn hook(ctx: &Ctx, app: &App<'_>, desired: &Desired, observed: &Observed) -> Result<Option<String>, Error> {
    let Some(release) = observed.release.as_ref().filter(|release| release.is_stale_lock()) else { return Ok(None) };
    let inventory = observed.objects.inventory.as_ref().filter(|inventory| inventory.secret == release.secret_uid);
    for job in inventory.iter().flat_map(|inventory| &inventory.hook_jobs) {
        if uncached::job_runs(ctx, app.key, &desired.account, job).await? {
            return Ok(Some(job.clone()));
        }
    }
    Ok(None)
}

/// Returns what holds data or gives access to it and is owned by the app: what is recorded, and what is observed, with these
/// volumes of the namespace.
pub(crate) fn owned(
    ctx: &Ctx,
    app: &App<'_>,
    inventory: Option<&Inventory>,
    claims: &[impl Borrow<ObjectMeta>],
) -> Vec<Owned> {
    let seen = OwnershipEvidence {
        app: app.meta(),
        inventory,
        claims: &claims.iter().map(Borrow::borrow).collect::<Vec<_>>(),
        made: ctx.memory.recently_created.created_for(app.key, app.uid()),
        named: &named(ctx, app.key),
    };
    owned::merge_owned(&app.recorded_status.owned, &seen)
}

/// Returns the objects that the operator creates for an app, as the caches show them: uid, creation time, and the app in their
/// stamp or ownerReference.
fn named(ctx: &Ctx, key: &Key) -> Vec<(DataKind, ObjectMeta)> {
    let meta = |name: String, uid: String, created: Option<Timestamp>, stamp: Option<String>, owner: Option<String>| {
        let owner = owner.map(|uid| OwnerReference { uid, ..OwnerReference::default() });
        ObjectMeta {
            name: Some(name),
            uid: Some(uid),
            creation_timestamp: created.map(Time),
            annotations: stamp.map(|stamp| [(annotation::OWNER_UID.to_owned(), stamp)].into()),
            owner_references: owner.map(|owner| vec![owner]),
            ..ObjectMeta::default()
        }
    };
    let secrets = [key.admin_secret(), key.redis_secret()].into_iter().filter_map(|name| {
        let SecretMeta { uid, created, stamp, owner, deleting, retained_from, .. } =
            ctx.watches.secrets.get(&Key::new(&key.namespace, &name))?;
        let stays = !deleting && retained_from.is_none();
        stays.then(|| (DataKind::Secret, meta(name, uid, created, stamp, owner.map(|(_, _, uid)| uid))))
    });
    let databases = database::all().filter_map(|provider| {
        let DatabaseObject { uid, created, stamp, owner_uid, deleting, retained_from, .. } =
            ctx.watches.database(provider, key)?;
        let stays = !deleting && retained_from.is_none();
        stays.then(|| (provider.kind(), meta(key.database(), uid, created, stamp, owner_uid)))
    });
    secrets.chain(databases).collect()
}

/// Returns the objects of the release: as recorded for this revision, otherwise read from Helm's storage.
pub(crate) async fn inventory(
    ctx: &Ctx,
    key: &Key,
    release: Option<&ReleaseView>,
    recorded: &ClientAppStatus,
) -> Result<Option<Inventory>, Error> {
    let Some(release) = release.filter(|release| release.ever_managed) else { return Ok(recorded.inventory.clone()) };
    if let Some(inventory) = recorded.inventory.as_ref().filter(|inventory| inventory.secret == release.secret_uid) {
        return Ok(Some(inventory.clone()));
    }
    if ctx.memory.read(key, |app| app.unreadable.as_ref() == Some(&release.secret_uid)) {
        return Ok(recorded.inventory.clone());
    }
    match uncached::stored(ctx, key, &release.secret).await? {
        Ok(found) => Ok(Some(inventory::with_former_hooks(found, recorded.inventory.as_ref()))),
        Err(problem) => {
            tracing::warn!(release = %key, secret = release.secret, "what revision {} consists of is not known: {problem}", release.revision);
            ctx.memory.put(key, |app| app.unreadable = Some(release.secret_uid.clone()));
            Ok(recorded.inventory.clone())
        }
    }
}

async fn database(ctx: &Ctx, desired: &Desired, uid: &str, owned: &[Owned]) -> Result<DatabaseView, Error> {
    let key = &desired.key;
    let Some(DesiredDatabase { address, object }) = &desired.database else { return Ok(DatabaseView::default()) };
    // The user names this Secret, so its owner does not matter.
    let secret = secret_keys(ctx, &Key::new(&key.namespace, &address.secret)).await?;
    let Some(DesiredObject { provider, name, .. }) = object else {
        return Ok(DatabaseView { secret, ..DatabaseView::default() });
    };
    let service = Key::new(&key.namespace, provider.service(key));
    let DatabaseCaches { objects, endpoints, warnings, .. } = ctx.watches.of(*provider);
    let found = ctx.watches.database(*provider, key);
    let warnings = warnings.as_ref().zip(found.as_ref()).and_then(|((kind, warnings), found)| {
        let about = warnings::group(&key.namespace, kind, name);
        warnings::quoted(warnings, &about, found.progressed)
    });
    Ok(DatabaseView {
        kind: objects.availability(),
        app_uid: uid.to_owned(),
        recorded_uid: owned::uid(owned, provider.kind(), name).map(str::to_owned),
        object: found,
        secret,
        warnings,
        reachable: endpoints.as_ref().is_none_or(|slices| slices.group(&service).iter().any(|(_, ready)| *ready)),
    })
}

fn backup(ctx: &Ctx, desired: &Desired, record: BackupRecord) -> BackupView {
    let key = &desired.key;
    let seen =
        desired.database_object().and_then(|DesiredObject { provider, .. }| match &ctx.watches.of(*provider).backups {
            Some(backups) => backups.objects.get(&Key::new(&key.namespace, &record.name)),
            None => {
                let (word, progress) = ctx.watches.database(*provider, key)?.last_backup?;
                (word == record.name).then_some(progress)
            }
        });
    let state = seen.as_ref().map_or(record.state, |(state, _)| *state);
    BackupView { record: BackupRecord { state, ..record }, seen }
}

/// Returns the newest revision of the release, and whether it shows the outcome of the run. The cache is asked first. If it
/// knows less than the operator has recorded, or has seen helm write, then either it is late or another Helm client removed
/// revisions, and only the API server can tell which.
async fn release(
    ctx: &Ctx,
    key: &Key,
    cached: Option<ReleaseView>,
    recorded: &ClientAppStatus,
    run: &HelmRun,
) -> Result<(Option<ReleaseView>, bool), Error> {
    let newest = |release: &Option<ReleaseView>| release.as_ref().map(|release| release.revision);
    let known = recorded.release.as_ref().map(|release| release.revision);
    let upgraded = match run {
        HelmRun::Upgraded(upgraded) => Some(upgraded),
        _ => None,
    };
    let is_shown = upgraded.is_none_or(|upgraded| cache_has(upgraded, cached.as_ref()));
    if is_shown && newest(&cached) >= known {
        return Ok((cached, is_shown));
    }
    let live = release_view(&uncached::revisions(ctx, key).await?);
    // helm did not get as far as writing it, or another Helm client removed it.
    let is_none = upgraded.is_some_and(|upgraded| newest(&live) < upgraded.revision);
    Ok((live, is_shown || is_none))
}

/// Returns the generated administrator credentials. If they are in use and the watch does not show them, the API server is
/// asked: the watch may be late, and without them the app cannot continue.
async fn admin_secret(ctx: &Ctx, app: &App<'_>, name: &str, observed: &Observed) -> Result<SecretView, Error> {
    let name = Key::new(&app.key.namespace, name);
    let found = match ctx.watches.secrets.get(&name) {
        None if owned::is_in_use(&name.name, &observed.recorded, observed.release.as_ref()) => {
            uncached::secret(ctx, &name).await?
        }
        seen => seen,
    };
    Ok(own_secret(found, app))
}

/// Returns a Secret under a generated name: this app's own, another object's, or created by a user.
fn own_secret(found: Option<SecretMeta>, app: &App<'_>) -> SecretView {
    let Some(SecretMeta { uid: own, owner, stamp, deleting, .. }) = found else { return SecretView::Absent };
    match (owner, stamp) {
        _ if deleting => SecretView::NotOurs { owner: "an object that is gone".to_owned(), is_being_deleted: true },
        (Some((_, _, whose)), _) if whose == app.uid() => SecretView::Own { uid: own, keys: BTreeSet::new() },
        // An earlier ClientApp's, which the garbage collector has yet to delete.
        (Some((kind, owner, _)), _) => {
            let goes = kind == ClientApp::kind(&()) && owner == app.key.name;
            SecretView::NotOurs { owner: format!("{kind} {owner}"), is_being_deleted: goes }
        }
        (None, Some(whose)) if whose == app.uid() => SecretView::Own { uid: own, keys: BTreeSet::new() },
        (None, Some(whose)) => {
            SecretView::NotOurs { owner: format!("an earlier ClientApp, with uid {whose}"), is_being_deleted: false }
        }
        (None, None) => SecretView::Present { keys: BTreeSet::new() },
    }
}

/// Reads the keys of a Secret under a generated name, if a user created it: in place of a lost one, or from the beginning.
async fn with_keys(ctx: &Ctx, view: SecretView, secret: &Key) -> Result<SecretView, Error> {
    match view {
        SecretView::Present { .. } => secret_keys(ctx, secret).await,
        view => Ok(view),
    }
}

/// Returns a Secret that a user or a database's operator writes: which of its keys have a value.
async fn secret_keys(ctx: &Ctx, secret: &Key) -> Result<SecretView, Error> {
    Ok(match sources::contents(ctx, secret).await? {
        Some((_, contents)) => {
            let has_value =
                |(key, digest): &(&String, &String)| !digest.is_empty() || SMTP[1..].contains(&key.as_str());
            SecretView::Present { keys: contents.iter().filter(has_value).map(|(key, _)| key.clone()).collect() }
        }
        None => SecretView::Absent,
    })
}

#[cfg(test)]
mod tests {
    use jiff::SignedDuration;

    use super::*;
    use crate::{
        clientapp::fixtures::{attempt, now, release},
        helm::gateway::record::{Meta, Recorded},
    };

    #[test]
    fn a_late_cache_is_waited_for() {
        for (what, revision, succeeded, seen, seconds, waits, shown) in [
            ("nothing yet", Some(4), true, None, 1, true, false),
            ("the one before", Some(4), true, Some((3, Phase::Deployed)), 1, true, false),
            ("its lock", Some(4), true, Some((4, Phase::Pending)), 1, true, false),
            ("its lock, too long", Some(4), true, Some((4, Phase::Pending)), 6, false, false),
            ("its end", Some(4), true, Some((4, Phase::Deployed)), 1, false, true),
            ("another client's next", Some(4), true, Some((5, Phase::Deployed)), 1, false, true),
            ("a failure", Some(4), false, Some((3, Phase::Deployed)), 1, false, false),
            ("no run", None, false, None, 1, false, true),
        ] {
            let at = now() - SignedDuration::from_secs(seconds);
            let upgraded = Upgraded { attempt: attempt("d"), revision, succeeded, at, wrote: Recorded::default() };
            let seen = seen.map(|(revision, phase)| ReleaseView { revision, phase, ..release("d") });
            assert_eq!(wait_for_cache(&upgraded, seen.as_ref(), now()).is_some(), waits, "{what}");
            assert_eq!(cache_has(&upgraded, seen.as_ref()), shown, "{what}");
        }
    }

    #[test]
    fn workloads_older_than_the_write_are_detected() {
        let metadata = Meta { name: "acme".to_owned(), resource_version: "20".to_owned(), ..Meta::default() };
        let written = WrittenObject { kind: "Deployment".to_owned(), metadata, ..WrittenObject::default() };
        for (what, kind, name, version, former) in [
            ("as it was written", "Deployment", "acme", Some(20), false),
            ("later, or made anew by another client", "Deployment", "acme", Some(100), false),
            ("before, or that of a former app", "Deployment", "acme", Some(9), true),
            ("missing", "Deployment", "acme", None, false),
            ("another", "Deployment", "other", Some(9), false),
            ("of another kind", "StatefulSet", "acme", Some(9), false),
        ] {
            let seen = Workload { kind, name: name.to_owned(), version, ..Workload::default() };
            assert_eq!(predates_write(&seen, &written), former, "{what}");
        }
        let unversioned =
            WrittenObject { metadata: Meta { resource_version: String::new(), ..written.metadata }, ..written };
        let seen = Workload { kind: "Deployment", name: "acme".to_owned(), version: Some(1), ..Workload::default() };
        assert!(!predates_write(&seen, &unversioned));
    }
}
