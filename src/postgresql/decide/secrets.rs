//! The Secrets that come before the servers, **pure**: their certificate, the password, which is stored once and copied to the Secret
//! for clients, and the standbys' password.

use super::{
    commands::{change_password, hand_all_over, hand_over, label_command},
    plan::{PasswordOrigin, PostgresqlPlan, PostgresqlStep},
};
use crate::{
    crd::Reason,
    postgresql::{
        desired::{Desired, PasswordSource},
        names,
        objects::Mounted,
        observed::{ClientSecret, GivenPassword, Kind, ObservedPostgresql, Ownership, SecretState},
    },
};

/// Creates the Secrets that the servers mount, one after the other, and the password. Returns them once all exist.
pub(super) fn mounted<'a>(
    plan: &mut PostgresqlPlan,
    desired: &Desired,
    observed: &'a ObservedPostgresql,
) -> Option<Mounted<'a>> {
    let name = &desired.key.name;
    // Before the Secret for clients, which contains the certificate of its authority.
    let certificate = match (desired.tls, &observed.certificate) {
        (None, _) => None,
        (Some(_), SecretState::Ours { uid }) => Some(uid.as_str()),
        (Some(_), SecretState::Absent) => {
            plan.steps.push(PostgresqlStep::CreateCertificate);
            return None;
        }
        (Some(_), SecretState::NotOurs(owner)) => {
            let message = format!(
                "Secret {} belongs to {owner} and is not touched: rename this Postgresql or that Secret, or hand over all that an earlier one has left with {}",
                names::certificate(name),
                hand_all_over(desired),
            );
            plan.hold(Reason::NotOurs, message);
            return None;
        }
    };
    if !password(plan, desired, observed) {
        return None;
    }
    match &observed.replication {
        SecretState::Ours { uid } => {
            let replaced = observed.recorded.restored.as_ref().and_then(|restored| restored.request.as_deref());
            Some(Mounted { replication: uid, certificate, replaced })
        }
        SecretState::Absent => {
            plan.steps.push(PostgresqlStep::CreateReplication);
            None
        }
        SecretState::NotOurs(owner) => {
            plan.not_ours(&format!("Secret {}", names::replication(name)), owner);
            None
        }
    }
}

/// Stores the password once, and copies it to the Secret for clients. Returns true if servers can be started with it.
fn password(plan: &mut PostgresqlPlan, desired: &Desired, observed: &ObservedPostgresql) -> bool {
    let name = &desired.key.name;
    let credentials = &observed.credentials;
    match &credentials.kept {
        SecretState::NotOurs(owner) => {
            let message = format!(
                "Secret {secret} belongs to {owner} and is not touched: rename this Postgresql, or hand it over with {}; to hand over all that an earlier one has left at once, use {}",
                label_command(desired, "secret", &names::credentials(name)),
                hand_all_over(desired),
                secret = names::credentials(name),
            );
            plan.hold(Reason::NotOurs, message);
            false
        }
        SecretState::Absent => forgotten(plan, desired, observed),
        SecretState::Ours { .. } if credentials.broken.is_some() => {
            let problem = credentials.broken.unwrap_or_default();
            let message = format!(
                "the value under password in Secret {} {problem}: {}",
                names::credentials(name),
                hand_over(desired)
            );
            plan.hold(Reason::CredentialsInvalid, message);
            false
        }
        SecretState::Ours { .. } => {
            match &credentials.client {
                ClientSecret::Absent | ClientSecret::Stale { .. } => plan.steps.push(PostgresqlStep::ApplyClientSecret),
                ClientSecret::NotOurs(owner) => {
                    plan.not_ours(&format!("Secret {}", names::client_secret(name)), owner);
                }
                ClientSecret::Current => {}
            }
            if credentials.given == GivenPassword::Differs {
                let message = format!(
                    "{} does not give the password in use: set it back; to change it, do so in the database ({}), delete the Secrets {} and {}, and follow the next message",
                    desired.password.field(),
                    change_password(desired),
                    names::credentials(name),
                    names::client_secret(name),
                );
                plan.hold(Reason::PasswordChanged, message);
            }
            true
        }
    }
}

/// Restores the missing Secret with the password in use. Generates a new password only if no database exists with another one.
fn forgotten(plan: &mut PostgresqlPlan, desired: &Desired, observed: &ObservedPostgresql) -> bool {
    let name = &desired.key.name;
    let credentials = &observed.credentials;
    let volume = (Kind::PersistentVolumeClaim, names::data(name));
    let in_use = observed.recorded.secret.is_some()
        || observed.objects.get(&volume).is_some_and(|volume| volume.owner == Ownership::Ours);
    let from_spec = match (&desired.password, &credentials.given) {
        (PasswordSource::Generated, _) => Some(PasswordOrigin::Generated).filter(|_| !in_use),
        (_, GivenPassword::Usable(version)) => {
            // Unchanged since it was last seen to be the password in use.
            let unchanged = observed
                .recorded
                .secret
                .as_ref()
                .is_some_and(|recorded| recorded.from == desired.password.field() && recorded.version == *version);
            Some(PasswordOrigin::Spec).filter(|_| !in_use || unchanged)
        }
        _ => None,
    };
    let client = in_use && credentials.client == ClientSecret::Stale { password: true };
    if let Some(origin) = client.then_some(PasswordOrigin::ClientSecret).or(from_spec) {
        plan.steps.push(PostgresqlStep::KeepPassword(origin));
        // Running servers do not need the Secret, and new servers wait for it.
        return in_use;
    }
    if in_use {
        let message = format!(
            "the Secrets {} and {} are gone, and no other Secret has the password of user {}: {}, then make it the database's ({})",
            names::credentials(name),
            names::client_secret(name),
            desired.user,
            hand_over(desired),
            change_password(desired),
        );
        plan.hold(Reason::SecretLost, message);
    } else if let GivenPassword::Unusable(reason, message) = &credentials.given {
        plan.hold(*reason, message.clone());
    }
    in_use
}
