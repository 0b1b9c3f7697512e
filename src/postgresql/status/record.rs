//! Computes what has to be recorded before any step is taken, **pure**.

use crate::{
    crd::{Owned, PostgresqlStatus, RepositoryPassword, SecretRecord, VolumeRecord},
    deletion::recently_created,
    postgresql::{
        decide::{dumps, restore, volume},
        desired::{Desired, PasswordSource},
        names,
        observed::{GivenPassword, Kind, ObservedPostgresql, Ownership, SecretState},
    },
};

/// Returns what has to be recorded before any step is taken, as later passes depend on it: the volume with the database, the version of its
/// files, that a password is in use, what is deleted with the Postgresql, and the results of its dumps. Conditions stay as they are.
pub(crate) fn recorded(desired: &Desired, observed: &ObservedPostgresql) -> PostgresqlStatus {
    let volume = volume::record(desired, observed);
    let mut owned = observed.recorded.owned.clone();
    for entry in owned_now(desired, observed, volume.as_ref()) {
        recently_created::upsert(&mut owned, entry);
    }
    // The version of the files, which are created once, not of the present spec.
    let initialized = volume.as_ref().is_some_and(|volume| volume.initialized);
    let version = observed.recorded.version.clone().or_else(|| initialized.then(|| desired.version.clone()));
    let (restore, restored) = restore::record(desired, observed, volume::restored(desired, observed));
    PostgresqlStatus {
        volume,
        version,
        secret: secret(desired, observed),
        owned,
        restore,
        restored,
        backup: dumps::summary(desired, observed),
        repository_password: repository_password(desired, observed),
        ..observed.recorded.clone()
    }
}

/// Returns the volumes and Secrets that are labelled as this Postgresql's and have one of its names.
fn owned_now(desired: &Desired, observed: &ObservedPostgresql, volume: Option<&VolumeRecord>) -> Vec<Owned> {
    let name = &desired.key.name;
    let data = names::data(name);
    let claims = observed.objects.iter().filter(|((kind, claim), view)| {
        let known = *claim != data || volume.is_some_and(|volume| volume.uid == view.uid);
        *kind == Kind::PersistentVolumeClaim
            && view.owner == Ownership::Ours
            && !view.deleting
            && names::is_claim(name, claim)
            && known
    });
    let owned = |kind: &str, name: &str, uid: &str| Owned { kind: kind.into(), name: name.into(), uid: uid.into() };
    let claims = claims.map(|((_, claim), view)| owned("PersistentVolumeClaim", claim, &view.uid));
    claims.chain(observed.secrets.iter().map(|(secret, own)| owned("Secret", secret, &own.uid))).collect()
}

/// Records the Secret with the password of the repository of dumps.
fn repository_password(desired: &Desired, observed: &ObservedPostgresql) -> Option<RepositoryPassword> {
    let recorded = observed.recorded.repository_password.as_ref();
    match desired.backup.as_ref().and_then(|backup| backup.store.as_ref()) {
        Some(store) => store.bucket.password(recorded, observed.repository_password.as_deref()),
        None => recorded.cloned(),
    }
}

/// Records that a password is in use, and its source as far as known.
fn secret(desired: &Desired, observed: &ObservedPostgresql) -> Option<SecretRecord> {
    let recorded = observed.recorded.secret.clone();
    let name = names::client_secret(&desired.key.name);
    match (&observed.credentials.kept, &observed.credentials.given) {
        (SecretState::Ours { .. }, GivenPassword::Same(version)) => {
            Some(SecretRecord { name, from: desired.password.field().to_owned(), version: version.clone() })
        }
        (SecretState::Ours { .. }, _) => Some(recorded.unwrap_or_else(|| SecretRecord {
            name,
            from: PasswordSource::Generated.field().to_owned(),
            version: None,
        })),
        _ => recorded,
    }
}
