//! The password, **pure**: stored once, and copied to the Secret for clients.

use super::{
    commands::{change_password, hand_all_over, hand_over, label_command},
    plan::{PasswordOrigin, Plan, Step},
};
use crate::{
    crd::Reason,
    postgresql::{
        desired::{Desired, PasswordSource},
        names,
        observed::{ClientSecret, Given, Kind, Observed, Ownership, SecretView},
    },
};

/// Stores the password once, and copies it to the Secret for clients. Returns true if servers can be started with it.
pub(super) fn password(plan: &mut Plan, desired: &Desired, observed: &Observed) -> bool {
    let name = &desired.key.name;
    let credentials = &observed.credentials;
    match &credentials.kept {
        SecretView::NotOurs(owner) => {
            let message = format!(
                "Secret {secret} belongs to {owner} and is not touched: rename this Postgresql, or hand it over with {}; to hand over all that an earlier one has left at once, use {}",
                label_command(desired, "secret", &names::credentials(name)),
                hand_all_over(desired),
                secret = names::credentials(name),
            );
            plan.hold(Reason::NotOurs, message);
            false
        }
        SecretView::Absent => forgotten(plan, desired, observed),
        SecretView::Ours { .. } if credentials.broken.is_some() => {
            let problem = credentials.broken.unwrap_or_default();
            let message = format!(
                "the value under password in Secret {} {problem}: {}",
                names::credentials(name),
                hand_over(desired)
            );
            plan.hold(Reason::CredentialsInvalid, message);
            false
        }
        SecretView::Ours { .. } => {
            match &credentials.client {
                ClientSecret::Absent | ClientSecret::Stale { .. } => plan.steps.push(Step::ApplyClientSecret),
                ClientSecret::NotOurs(owner) => {
                    plan.not_ours(&format!("Secret {}", names::client_secret(name)), owner);
                }
                ClientSecret::Current => {}
            }
            if credentials.given == Given::Differs {
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
fn forgotten(plan: &mut Plan, desired: &Desired, observed: &Observed) -> bool {
    let name = &desired.key.name;
    let credentials = &observed.credentials;
    let volume = (Kind::PersistentVolumeClaim, names::data(name));
    let in_use = observed.recorded.secret.is_some()
        || observed.objects.get(&volume).is_some_and(|volume| volume.owner == Ownership::Ours);
    let from_spec = match (&desired.password, &credentials.given) {
        (PasswordSource::Generated, _) => Some(PasswordOrigin::Generated).filter(|_| !in_use),
        (_, Given::Usable(version)) => {
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
        plan.steps.push(Step::KeepPassword(origin));
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
    } else if let Given::Unusable(reason, message) = &credentials.given {
        plan.hold(*reason, message.clone());
    }
    in_use
}
