//! Computes the verdict on each condition, **pure**.

use jiff::Timestamp;

use crate::{
    clientapp::{
        context::Invalid,
        decide::{
            database_backups, file_backup, helm_tests,
            plan::{Plan, Step},
            tls,
        },
        hold::{Hold, NAMED, join_sentences},
        observed::{
            release::ReleasePhase,
            types::{FormerDatabase, Observed},
        },
        spec::{database::DesiredObject, desired::Desired},
    },
    crd::{
        FilesSummary, Reason,
        conditions::{State, Verdict, find, kind},
        reason,
    },
    platform::key::Key,
};

pub(super) type Verdicts = Vec<(&'static str, Verdict)>;

/// Returns the verdict on each condition, for a pass that begins no run. `files`: what is to be recorded of the archives.
pub(super) fn all(
    desired: Result<&Desired, &Invalid>,
    observed: &Observed,
    plan: &Plan,
    files: Option<&FilesSummary>,
    now: Timestamp,
) -> Verdicts {
    // Neither the database nor the archives nor the certificate are observed without a valid spec.
    let kept = |type_| {
        let condition = desired.is_err().then(|| find(&observed.recorded.conditions, type_)).flatten()?;
        Some((type_, Verdict::of(condition)))
    };
    let archived = match desired {
        Ok(desired) => file_backup::verdict(desired, observed, files, now),
        Err(_) => file_backup::kept(observed, now),
    };
    let archived = archived.map(|verdict| (reason::FILES_BACKED_UP, verdict));
    let backed_up = database_backups::verdict(observed, now);
    let verdicts = match desired {
        Err(Invalid { reason, message }) => invalid(*reason, message, observed),
        Ok(desired) => valid(desired, observed, plan, now),
    };
    verdicts
        .into_iter()
        .chain(backed_up.map(|verdict| (reason::BACKED_UP, verdict)).or_else(|| kept(reason::BACKED_UP)))
        .chain(archived)
        .chain(kept(kind::CERTIFICATE_READY))
        .collect()
}

fn invalid(reason: Reason, problem: &str, observed: &Observed) -> Verdicts {
    vec![
        (kind::READY, Verdict::no(reason, problem)),
        (kind::POSTGRES_READY, kept(observed, kind::POSTGRES_READY)),
        (kind::RELEASED, kept(observed, kind::RELEASED)),
        (kind::WORKLOADS_READY, workloads(observed)),
        (kind::RECONCILING, Verdict::no(reason, problem)),
        (kind::STALLED, Verdict::yes(reason, problem)),
    ]
}

/// Returns the verdict on each condition with a valid spec, except on backups and archives.
pub(super) fn valid(desired: &Desired, observed: &Observed, plan: &Plan, now: Timestamp) -> Verdicts {
    let hold = plan.hold.as_ref();
    let postgres = postgres(desired, observed, hold);
    let released = held(hold, kind::RELEASED).unwrap_or_else(|| released(desired, observed, hold));
    let workloads = held(hold, kind::WORKLOADS_READY).unwrap_or_else(|| workloads(observed));
    let tested = helm_tests::verdict(desired, observed, hold);
    let certified = tls::verdict(desired, observed, now);

    let missing = [&postgres, &released, &workloads]
        .into_iter()
        .chain(&tested)
        .find(|verdict| verdict.state != State::True)
        .or_else(|| certified.as_ref().filter(|certified| !tls::serves(certified)));
    let ready = not_ready(plan, missing).unwrap_or_else(|| {
        let url = tls::url(desired, observed, now);
        Verdict::yes(Reason::Ready, format!("{}, serving {url}", released.message))
    });
    let (reconciling, stalled) = (reconciling(plan, &workloads), stalled(hold, observed, &workloads, &ready));
    let mut verdicts = vec![
        (kind::READY, ready),
        (kind::POSTGRES_READY, postgres),
        (kind::RELEASED, released),
        (kind::WORKLOADS_READY, workloads),
    ];
    verdicts.extend(tested.map(|tested| (kind::TESTED, tested)));
    verdicts.extend(certified.map(|certified| (kind::CERTIFICATE_READY, certified)));
    verdicts.extend([(kind::RECONCILING, reconciling), (kind::STALLED, stalled)]);
    verdicts
}

/// Returns the verdict of the hold on the condition that it is about.
fn held(hold: Option<&Hold>, type_: &str) -> Option<Verdict> {
    let hold = hold.filter(|hold| hold.condition == type_)?;
    let state = if hold.reason == Reason::ExternalOperationInProgress { State::Unknown } else { State::False };
    Some(Verdict { state, reason: hold.reason.into(), message: hold.message.clone() })
}

fn postgres(desired: &Desired, observed: &Observed, hold: Option<&Hold>) -> Verdict {
    let Some(database) = &desired.database else { return Verdict::yes(Reason::Disabled, "no database is asked for") };
    held(hold, kind::POSTGRES_READY).unwrap_or_else(|| match hold {
        Some(hold) if hold.unjudged.contains(&kind::POSTGRES_READY) => kept(observed, kind::POSTGRES_READY),
        _ => Verdict::yes(
            Reason::Ready,
            match &database.object {
                Some(object) => format!("{} is ready{}", object.described(), former(desired, observed, object)),
                None => {
                    format!("Secret {} has the credentials of a database that exists already", database.address.secret)
                }
            },
        ),
    })
}

/// Names the databases that the app has left, and how they are stopped or deleted.
fn former(desired: &Desired, observed: &Observed, object: &DesiredObject) -> String {
    let provider = object.provider;
    let retained = observed.prerequisites.database.former.iter().filter(|former| former.is_retained);
    let words = retained.map(|FormerDatabase { name, .. }| {
        let left = provider.left(&Key::new(&desired.key.namespace, name));
        format!("; the former {} {name} goes on running: {left}", provider.kind().as_str())
    });
    words.collect()
}

/// Returns why the app is not Ready; `missing` is the first condition that has to be True and is not.
fn not_ready(plan: &Plan, missing: Option<&Verdict>) -> Option<Verdict> {
    let without_credentials =
        |step: &Step| matches!(step, Step::CreateAdminSecret | Step::CreateRedisSecret | Step::Adopt(_));
    match &plan.hold {
        Some(hold) if hold.stalled => Some(Verdict::no(hold.reason, &hold.message)),
        None if plan.steps.iter().any(without_credentials) => {
            Some(Verdict::no(Reason::Pending, "credentials and data are being made or adopted"))
        }
        // Whatever is missing, this is why it is not created.
        Some(hold) if hold.reason == Reason::Suspended => missing.map(|_| Verdict::no(hold.reason, &hold.message)),
        _ => missing.cloned(),
    }
}

fn reconciling(plan: &Plan, workloads: &Verdict) -> Verdict {
    match &plan.hold {
        None if !plan.steps.is_empty() => Verdict::yes(Reason::Pending, "there are steps left to take"),
        None if workloads.state == State::False => Verdict::no(
            Reason::Settled,
            "helm has nothing left to do; see WorkloadsReady for what the workloads wait for",
        ),
        None => Verdict::no(Reason::Settled, "the operator has nothing left to do"),
        Some(hold) if hold.stalled || hold.reason == Reason::Suspended => Verdict::no(hold.reason, &hold.message),
        Some(hold) => Verdict::yes(hold.reason, &hold.message),
    }
}

fn stalled(hold: Option<&Hold>, observed: &Observed, workloads: &Verdict, ready: &Verdict) -> Verdict {
    match hold {
        Some(hold) if hold.stalled => Verdict::yes(hold.reason, &hold.message),
        // The workload's controller has reported no progress within its deadline. Later progress is still noticed.
        _ if hold.is_none_or(|hold| hold.reason == Reason::Drifted) && is_stuck(observed) => {
            Verdict::yes(Reason::ProgressDeadlineExceeded, &workloads.message)
        }
        _ => Verdict::not_stalled(ready),
    }
}

fn released(desired: &Desired, observed: &Observed, hold: Option<&Hold>) -> Verdict {
    let chart = format!("chart version {}", desired.target().chart_version);
    if let Some(release) = observed.deployed_as(desired) {
        let attempt = desired.attempt(&observed.recorded);
        // What helm left as it was, although the spec asks for something else.
        let note = attempt.filter(|attempt| attempt.failures == 0).and_then(|attempt| attempt.message.as_ref());
        let note = note.map(|note| format!("; {note}")).unwrap_or_default();
        return Verdict::yes(Reason::Deployed, format!("revision {} with {chart} is deployed{note}", release.revision));
    }
    let waits = hold.map_or_else(|| "helm has to run".to_owned(), |hold| hold.message.clone());
    let reason = hold.map_or(Reason::Pending, |hold| {
        if hold.reason == Reason::Suspended { Reason::Suspended } else { Reason::Waiting }
    });
    match &observed.release {
        Some(release) if release.phase == ReleasePhase::Deployed => Verdict::no(
            reason,
            format!("revision {} is deployed, but not yet as the spec asks: {waits}", release.revision),
        ),
        _ => Verdict::no(reason, format!("nothing is released yet: {waits}")),
    }
}

pub(super) fn workloads(observed: &Observed) -> Verdict {
    if observed.release.is_none() {
        return Verdict::no(Reason::NoRelease, "there is no release yet");
    }
    let waiting: Vec<_> = observed
        .objects
        .workloads
        .iter()
        .filter_map(|workload| {
            let why = workload.waiting.as_ref()?;
            Some(format!("{} {}: {why}", workload.kind, workload.name))
        })
        .collect();
    if waiting.is_empty() && observed.objects.inventory.is_none() {
        return Verdict::unknown(
            Reason::InventoryUnknown,
            "the objects of the release cannot be read from Helm's storage",
        );
    }
    if waiting.is_empty() {
        return Verdict::yes(Reason::Ready, format!("{} workloads are ready", observed.objects.workloads.len()));
    }
    let reason = if is_stuck(observed) { Reason::ProgressDeadlineExceeded } else { Reason::NotReady };
    Verdict::no(reason, join_sentences(waiting, NAMED))
}

fn is_stuck(observed: &Observed) -> bool {
    observed.objects.workloads.iter().any(|workload| workload.stuck)
}

/// Returns the last verdict of a condition that this pass did not check.
fn kept(observed: &Observed, type_: &str) -> Verdict {
    let condition = find(&observed.recorded.conditions, type_);
    condition.map_or_else(|| Verdict::unknown(Reason::NotChecked, "not checked yet"), Verdict::of)
}
