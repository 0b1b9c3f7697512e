//! The Secrets with the app's credentials: generated, given by users, or lost.

use super::plan::Step;
use crate::{
    clientapp::{
        hold::Hold,
        observed::{
            owned,
            types::{Observed, Prerequisites, SecretView},
        },
        spec::{
            desired::{Desired, DesiredSecrets, SecretSource},
            secrets,
        },
    },
    crd::Reason,
};

/// The app's data know the generated administrator credentials once they are in use, so no new ones are generated.
pub(super) fn lost(desired: &Desired, observed: &Observed) -> Option<Hold> {
    let Observed { prerequisites: Prerequisites { admin_secret: view, .. }, recorded, release, .. } = observed;
    let SecretSource::Generated(name) = &desired.secrets.admin else { return None };
    (*view == SecretView::Absent && owned::is_in_use(name, recorded, release.as_ref())).then(|| {
        let message = format!(
            "Secret {name} with the administrator's password is gone, and the app knows no other: restore it, or recreate it with the app's credentials: `kubectl create secret generic {name} -n {} --from-literal={}=… --from-literal={}=…`",
            desired.key.namespace,
            secrets::ADMIN_USERNAME,
            secrets::ADMIN_PASSWORD,
        );
        Hold::new(Reason::AdminSecretLost, message)
    })
}

/// Creates a generated Secret that is absent, and waits for one that is still being deleted with its former owner: if the app
/// used it now, it would vanish while in use.
pub(super) fn generated(source: &SecretSource, view: &SecretView, create: Step) -> Result<Option<Step>, Hold> {
    match (source, view) {
        (SecretSource::Generated(_), SecretView::Absent) => Ok(Some(create)),
        (SecretSource::Generated(name), SecretView::NotOurs { owner, .. }) => Err(Hold::new(
            Reason::SecretNotOurs,
            format!(
                "Secret {name} belongs to {owner} and is not used: a new one is created once it is gone; to adopt the data that it opens, set spec.postgres.adopt to true"
            ),
        )),
        _ => Ok(None),
    }
}

/// Returns the Secret with the administrator's credentials, and what else the chart reads of it: the one that the spec names,
/// one that a user created under the generated name, or the generated one.
pub(super) fn given(desired: &Desired, view: &SecretView) -> Option<Hold> {
    let DesiredSecrets { admin, more_admin_keys, .. } = &desired.secrets;
    let (name, named) = match (admin, view) {
        (SecretSource::Given(name), _) => (name, "named in spec.adminSecret"),
        (SecretSource::Generated(name), SecretView::Own { .. }) => (name, "which this operator generated"),
        (SecretSource::Generated(name), _) => (name, "which this operator did not create"),
    };
    let of_administrator: &[&str] = match view {
        SecretView::Own { .. } => &[],
        _ => &[secrets::ADMIN_USERNAME, secrets::ADMIN_PASSWORD],
    };
    let keys = [of_administrator, more_admin_keys.as_slice()].concat();
    let (reason, problem) = match (view, admin) {
        (SecretView::Absent, SecretSource::Given(_)) => (Reason::AdminSecretMissing, "does not exist".to_owned()),
        _ => (Reason::AdminSecretKeyMissing, view.lacks(&keys)?),
    };
    let or = match admin {
        SecretSource::Generated(_) if more_admin_keys.contains(&secrets::SMTP[0]) => {
            ", or set nextcloud.mail.smtp.host, name and password in the values"
        }
        _ => "",
    };
    let message = format!("Secret {name}, {named}, {problem}: it needs the keys {}{or}", keys.join(" and "));
    Some(Hold::new(reason, message))
}

/// Returns a Secret that a user created in place of the generated one for Redis.
pub(super) fn given_for_redis(desired: &Desired, view: &SecretView) -> Option<Hold> {
    let name = desired.secrets.redis.as_ref().filter(|_| !matches!(view, SecretView::Own { .. }))?;
    let problem = view.lacks(&[secrets::REDIS_PASSWORD])?;
    let message = format!(
        "Secret {name}, which this operator did not create, {problem}: complete it, or delete it to have one generated"
    );
    Some(Hold::new(Reason::RedisSecretKeyMissing, message))
}
