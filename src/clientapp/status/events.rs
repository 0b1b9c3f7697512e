//! The events of a ClientApp. **Pure.**

use k8s_openapi::api::core::v1::ObjectReference;

use crate::{
    clientapp::{
        decide::plan::UpgradeCause,
        hold::join_sentences,
        observed::types::Observed,
        spec::{database::DesiredObject, deployer::DeployerPart},
    },
    crd::{
        ClientAppStatus, Credentials, DEPLOYER, Owned, Reason, ValuesDigest,
        conditions::{find, kind},
        reason,
    },
    deletion::permit::RetainedObject,
    platform::{events::Note, key::Key},
};

/// Returns the events for a change of status: transitions only. **Pure.**
pub(crate) fn transitions(before: &ClientAppStatus, after: &ClientAppStatus) -> Vec<Note> {
    let Some(now) = find(&after.conditions, kind::READY) else { return Vec::new() };
    let then = find(&before.conditions, kind::READY);
    let same = then.is_some_and(|then| then.status == now.status && then.reason == now.reason);
    let same_words = then.is_some_and(|then| then.message == now.message);
    let upgraded = after.release.as_ref().map(|release| release.revision)
        > before.release.as_ref().map(|release| release.revision);
    // A new revision is reported even if Ready stayed True.
    if same && (same_words || !upgraded || now.status != "True") {
        return Vec::new();
    }
    let revision = after.release.as_ref().map_or(0, |release| release.revision);
    let note = Note::normal(format!("ReconcileRevision{revision}"), &now.reason, now.message.clone());
    vec![Note { warning: reason::is_trouble(now), ..note }]
}

/// Returns the event that says why a release is upgraded although its spec did not change. **Pure.**
pub(crate) fn because(because: &UpgradeCause, key: &Key) -> Note {
    let name = &key.name;
    let (UpgradeCause::ChangedByOthers { revision } | UpgradeCause::Uninstalled { revision }) = because;
    let message = match because {
        UpgradeCause::ChangedByOthers { .. } => {
            format!(
                "revision {revision} of release {name} was made by another Helm client: upgrading the release to the spec"
            )
        }
        UpgradeCause::Uninstalled { .. } => format!(
            "release {name}, last at revision {revision}, was uninstalled by another Helm client: installing it again"
        ),
    };
    Note::warning(format!("PutRightRevision{revision}"), Reason::ReleaseDrifted, message)
}

/// Returns the event that says which credentials were changed, and that the release is upgraded because of it. **Pure.**
pub(super) fn rotated(before: &ClientAppStatus, after: &ClientAppStatus, key: &Key) -> Option<Note> {
    let is_new = |now: &&Credentials| {
        let same = |then: &Credentials| then.secret == now.secret && then.keys == now.keys;
        before.credentials.iter().any(|then| same(then) && then.digest != now.digest)
    };
    let changed: Vec<_> = after.credentials.iter().filter(is_new).map(|known| known.secret.as_str()).collect();
    let (secrets, name) = (changed.join(" and "), &key.name);
    let message = format!(
        "other credentials in Secret {secrets}: the pods that use them restart with the next revision of release {name}"
    );
    // Events with the same action are counted, and only the first message is kept.
    let revision = before.release.as_ref()?.revision;
    (!changed.is_empty())
        .then(|| Note::normal(format!("RestartAfterRevision{revision}"), Reason::CredentialsChanged, message))
}

/// Returns the event about a failed archive: no user waits for a scheduled one and sees that it failed. **Pure.**
pub(super) fn archive_failed(before: &ClientAppStatus, after: &ClientAppStatus) -> Option<Note> {
    let backup = |status: &ClientAppStatus| status.files.as_ref().and_then(|files| files.failed_backup.clone());
    let failed = backup(after).filter(|failed| backup(before).as_ref() != Some(failed))?;
    let message = find(&after.conditions, reason::FILES_BACKED_UP).map(|condition| condition.message.clone())?;
    Some(Note::warning(format!("Archive {failed}"), Reason::ArchiveFailed, message))
}

/// Returns the event that says which values from elsewhere have changed. **Pure.**
pub(super) fn other_values(before: &ClientAppStatus, after: &ClientAppStatus, key: &Key) -> Option<Note> {
    let is_new =
        |now: &&ValuesDigest| before.values_from.iter().any(|then| then.of == now.of && then.digest != now.digest);
    let changed: Vec<_> = after.values_from.iter().filter(is_new).map(|now| now.of.as_str()).collect();
    let message =
        format!("other values in {}: the next revision of release {} has them", changed.join(" and "), key.name);
    let revision = before.release.as_ref()?.revision;
    (!changed.is_empty())
        .then(|| Note::normal(format!("UpgradeAfterRevision{revision}"), Reason::ValuesChanged, message))
}

/// Returns the event about recreating the account that helm acts as. **Pure.**
pub(crate) fn deployer_replaced(part: DeployerPart, namespace: &str) -> Note {
    let message =
        format!("{} {DEPLOYER}, which helm needs in namespace {namespace}, was missing and is recreated", part.kind());
    Note::warning(format!("Creating{}", part.kind()), Reason::DeployerReplaced, message)
}

/// Returns the event about a database that the app has left for that of its spec. **Pure.**
pub(crate) fn database_left(object: &DesiredObject, former: &Key) -> Note {
    let (kind, left) = (object.provider.kind().as_str(), object.provider.left(former));
    let message =
        format!("the app has moved to {}; {kind} {} goes on running: {left}", object.described(), former.name);
    Note::normal(format!("Retain{kind}{}", former.name), Reason::DataKept, message)
}

/// Returns the event that names what a deletion kept. **Pure.**
pub(crate) fn data_kept(key: &Key, kept: &[RetainedObject]) -> Option<Note> {
    let named = join_sentences(kept.iter().map(ToString::to_string), 4);
    let message = format!("ClientApp {} is deleted, but these objects are kept: {named}", key.name);
    (!kept.is_empty()).then(|| Note::warning("Deleting", Reason::DataKept, message))
}

/// Returns the event about an app that was deleted with `--cascade=orphan`; `None`: possibly. **Pure.**
pub(crate) fn orphaned(key: &Key, orphaned: Option<bool>, owned: &[Owned]) -> Option<Note> {
    let how = match orphaned {
        Some(false) => return None,
        Some(true) => "with --cascade=orphan".to_owned(),
        None => format!(
            "and it is not known whether with --cascade=orphan, since Secret {}, which would show it, is gone or is not on record as its own",
            key.redis_secret()
        ),
    };
    // A Secret that is gone does not stay.
    let stays = |entry: &&Owned| orphaned.is_some() || entry.kind != "Secret" || entry.name != key.redis_secret();
    let owned: Vec<_> = owned.iter().filter(stays).map(|entry| format!("{} {}", entry.kind, entry.name)).collect();
    let (name, owned) = (&key.name, owned.join(", "));
    let message = format!("ClientApp {name} is deleted, {how}: Helm release {name} and all data stay ({owned})");
    let note = Note::normal("Deleting", Reason::DataKept, message);
    Some(Note { warning: orphaned.is_none(), ..note })
}

/// Adds to an event about drift the object that it is about. **Pure.**
pub(super) fn about(mut notes: Vec<Note>, observed: &Observed, key: &Key) -> Vec<Note> {
    let drifted = observed.objects.drifted.first().map(|missing| ObjectReference {
        api_version: Some(missing.object.api_version.clone()),
        kind: Some(missing.object.kind.clone()),
        name: Some(missing.object.name.clone()),
        namespace: Some(key.namespace.clone()),
        ..ObjectReference::default()
    });
    for note in notes.iter_mut().filter(|note| note.reason == Reason::Drifted) {
        note.related.clone_from(&drifted);
    }
    notes
}
