//! The gate before helm, **pure**: whether the app's database can be used, whoever makes it.
//!
//! For what is made for the app: it is this app's, as its spec asks, ready, opened by a Secret with the keys that the app
//! reads, and its Service has an address (contracts of Percona, section 4: the Secret is written before PostgreSQL runs, so
//! that alone proves nothing). For a database that exists already: the Secret.

use jiff::Timestamp;

use super::{
    desired::{Desired, DesiredDatabase, DesiredServer},
    names::Maker,
    plan::{Hold, SAFETY_NET, SILENT_AFTER},
    world::{Availability, DatabaseView, SecretView, ServerState, ServerView, World},
};
use crate::crd::{conditions, label};

/// How a database is applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Apply {
    /// With room for backups or without.
    pub backups: bool,
    /// uid of the one that is there; `None`: it is made.
    pub uid: Option<String>,
}

/// What the gate says.
#[derive(Default)]
pub struct Gate {
    /// The object has to be applied.
    pub apply: Option<Apply>,
    /// Why it is closed.
    pub hold: Option<Hold>,
}

fn closed(reason: &'static str, message: String, stalled: bool, until: Option<Timestamp>) -> Hold {
    Hold { condition: conditions::kind::POSTGRES_READY, reason, message, stalled, until }
}

fn stalled(reason: &'static str, message: String) -> Gate {
    Gate { apply: None, hold: Some(closed(reason, message, true, None)) }
}

/// Looks whether the database can be used.
#[must_use]
pub fn gate(desired: &Desired, world: &World, now: Timestamp) -> Gate {
    let Some(DesiredDatabase { address, server }) = &desired.database else { return Gate::default() };
    let DatabaseView { kind, app_uid, on_record, server: found, secret, reachable } = &world.database;
    let Some(server) = server else {
        let name = &address.secret;
        return match secret_problem(secret, &address.keys()) {
            None => Gate::default(),
            Some((reason, problem)) => stalled(
                reason,
                format!(
                    "Secret {name}, named in spec.postgres.external, {problem}: it needs the keys {}",
                    address.keys().join(", ")
                ),
            ),
        };
    };
    let DesiredServer { maker, name, .. } = server;
    let what = format!("{} {name}", maker.kind());
    match kind {
        Availability::Installed => {}
        Availability::Missing => {
            let missing = match maker {
                Maker::Percona => "install the Percona Operator for PostgreSQL",
                Maker::Standalone => "apply the operator's crds/",
            };
            let message = format!("this cluster has no kind {}: {missing}, and {name} is made at once", maker.kind());
            return stalled("DependencyMissing", message);
        }
        Availability::Refused(sentence) => {
            return stalled("AccessDenied", format!("{what} cannot be looked for: {sentence}"));
        }
    }
    let Some(found) = found else {
        let hold = closed("Provisioning", format!("{what} is being made"), false, Some(now + SAFETY_NET));
        let apply = Apply { backups: desired.upgrade.backup, uid: None };
        return Gate { apply: Some(apply), hold: Some(hold) };
    };
    if let Some(gate) = unusable(desired, server, found, &what, (app_uid, on_record.as_deref()), now) {
        return gate;
    }
    let backups = desired.upgrade.backup || found.backups;
    let apply = (found.digest.as_ref() != Some(&server.document(backups).digest))
        .then(|| Apply { backups, uid: Some(found.uid.clone()) });
    let silent_at = found.created.map(|created| created + SILENT_AFTER);
    let name = &address.secret;
    let (reason, message) = match &found.state {
        ServerState::Stalled(why) => {
            let hold = closed("DatabaseStalled", format!("{what}{why}"), true, None);
            return Gate { apply, hold: Some(hold) };
        }
        ServerState::Silent if silent_at.is_some_and(|at| at <= now) => {
            ("NotReporting", unreported(desired, *maker, &what))
        }
        ServerState::Silent => ("Provisioning", format!("{what} was made and has no status yet")),
        ServerState::Waiting(why) => ("Provisioning", format!("{what}{why}")),
        ServerState::Ready => match secret_problem(secret, &address.keys()) {
            Some(("SecretMissing", problem)) => {
                ("SecretMissing", format!("{what} is ready, but Secret {name} {problem}"))
            }
            Some((reason, problem)) => (reason, format!("Secret {name} {problem}")),
            None if !reachable => {
                ("Provisioning", format!("Service {} has no ready address", maker.service(&desired.key)))
            }
            None => return Gate { apply, hold: None },
        },
    };
    let until = match silent_at {
        Some(at) if found.state == ServerState::Silent && at > now => at,
        _ => now + SAFETY_NET,
    };
    Gate { apply, hold: Some(closed(reason, message, false, Some(until))) }
}

/// Reasons for which the object is not even applied: it is not this app's, or not what this app may ask for.
fn unusable(
    desired: &Desired,
    server: &DesiredServer,
    found: &ServerView,
    what: &str,
    (app_uid, on_record): (&str, Option<&str>),
    now: Timestamp,
) -> Option<Gate> {
    let app = Some(&desired.key.name);
    // Its uid is on record, or will be: it was made for this very app a moment ago. A label alone proves nothing.
    let made = |uid: &Option<String>| uid.as_deref() == Some(app_uid);
    let ours = found.app.as_ref() == app
        && (on_record == Some(&found.uid) || made(&found.stamp) || made(&found.owner_uid))
        && found.retained_from.is_none();
    // Adopting is the first step then.
    let left = desired.adopt && found.is_left(&desired.key.name, app_uid);
    if !(ours || left) {
        let message = format!(
            "{what} exists and is not this ClientApp's: it is not taken over; rename the ClientApp, or remove that, or hand it over by the label {}={} and spec.postgres.adopt",
            label::RETAINED_FROM,
            desired.key.name
        );
        return Some(stalled("DatabaseNotOurs", message));
    }
    if found.deleting {
        let message = format!("{what} is being deleted; it is made anew once it is gone");
        return Some(Gate { apply: None, hold: Some(closed("Deleting", message, false, Some(now + SAFETY_NET))) });
    }
    let wanted = server.postgres_version;
    if let Some(running) = found.postgres_version.filter(|running| *running != wanted) {
        let instead = match server.maker {
            Maker::Percona => "upgrade it with a PerconaPGUpgrade, or set the field back",
            Maker::Standalone => {
                "another major version cannot read its files; set the field back, or restore a dump into a new ClientApp"
            }
        };
        let message =
            format!("{what} runs PostgreSQL {running} and spec.postgres.version asks for {wanted}: {instead}");
        return Some(stalled("VersionMismatch", message));
    }
    found.storage_bytes.is_some_and(|applied| server.storage_bytes < applied).then(|| {
        let message = format!(
            "spec.postgres.storageSize is smaller than the volume of {what}: a volume never shrinks; set the field back"
        );
        stalled("StorageShrink", message)
    })
}

fn unreported(desired: &Desired, maker: Maker, what: &str) -> String {
    match maker {
        Maker::Percona => format!(
            "{what} has no status: see that the Percona operator runs and watches namespace {} (watchAllNamespaces)",
            desired.key.namespace
        ),
        Maker::Standalone => format!("{what} has no status: see this operator's log for what its controller lacks"),
    }
}

/// Reason, and what follows on the Secret's name in a sentence.
fn secret_problem(secret: &SecretView, keys: &[&str]) -> Option<(&'static str, String)> {
    match secret {
        SecretView::Absent => Some(("SecretMissing", "does not exist".to_owned())),
        SecretView::NotOurs { owner } => Some(("SecretNotOurs", format!("belongs to {owner}: it is not used"))),
        SecretView::Own { .. } => None,
        SecretView::Present { keys: present } => {
            let missing: Vec<_> = keys.iter().copied().filter(|key| !present.contains(*key)).collect();
            (!missing.is_empty()).then(|| ("SecretKeyMissing", format!("has no value under {}", missing.join(" and "))))
        }
    }
}
