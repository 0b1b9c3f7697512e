//! Decides what happens to each piece of a deleted ClientApp, **pure**: what the teardown does, and what the user is told before.

use crate::{
    clientapp::spec::database,
    crd::{ClientApp, DeletionPolicy, label},
    platform::key::key_of,
};

/// Says what happens to a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// It is deleted.
    Deleted,
    /// The app owned it, and it stays, to be found and adopted.
    Retained,
    /// The app never owned it.
    Untouched,
}

/// A piece of a ClientApp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// The Helm release with all its objects except volumes.
    Release,
    /// The volumes of app and Redis.
    Volumes,
    /// The database that was created for it, with its volumes, its backups, and the Secrets with its credentials.
    Database,
    /// A database that existed before, and the Secret with its credentials.
    ExternalDatabase,
    /// The generated Secret with the administrator's credentials.
    AdminSecret,
    /// The Secret with the administrator's credentials that the user created.
    GivenSecret,
    /// The generated Secret with the Redis password.
    RedisSecret,
    /// A namespace that was created for it, if it holds nothing else.
    Namespace,
}

/// The user's choices for a deletion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deletion {
    /// `spec.deletionPolicy`; Retain if it cannot be read.
    pub policy: DeletionPolicy,
    /// The deletion orphans (`--cascade=orphan`).
    pub orphans: bool,
}

impl Piece {
    /// Returns what happens to it once the deletion is carried out; for a suspended ClientApp, that is after it is resumed.
    #[must_use]
    pub fn outcome(self, Deletion { policy, orphans }: Deletion) -> Outcome {
        match (self, policy) {
            (Piece::ExternalDatabase | Piece::GivenSecret, _) => Outcome::Untouched,
            _ if orphans => Outcome::Retained,
            (Piece::Release | Piece::RedisSecret, _) => Outcome::Deleted,
            (Piece::Volumes | Piece::Database | Piece::AdminSecret | Piece::Namespace, policy) => match policy {
                DeletionPolicy::Delete => Outcome::Deleted,
                DeletionPolicy::Retain => Outcome::Retained,
            },
        }
    }
}

/// Holds what happens to one piece of one ClientApp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Told {
    /// The piece.
    pub piece: Piece,
    /// Holds what happens to it.
    pub outcome: Outcome,
    /// Kind and name of the piece, and what the outcome means for its content.
    pub sentence: String,
}

/// Each piece that a ClientApp has according to its spec. The spec does not show whether its namespace was created for it;
/// `None`: the caller does not know either.
#[must_use]
pub fn pieces(app: &ClientApp, orphans: bool, namespace_made: Option<bool>) -> Vec<Told> {
    let key = key_of(app);
    let spec = &app.spec;
    let deletion = Deletion { policy: spec.deletion_policy, orphans };
    let adopted = if spec.postgres.adopt { ", what it has adopted included" } else { "" };
    let retained = format!("; labelled {}={}", label::RETAINED_FROM, key.name);
    let data = move |piece: Piece, what: String| match piece.outcome(deletion) {
        Outcome::Deleted => format!("{what}, and all data in them{adopted}"),
        Outcome::Retained if !orphans => format!("{what}{adopted}{retained}"),
        Outcome::Retained | Outcome::Untouched => what,
    };
    let mut pieces = vec![
        (Piece::Release, format!("Helm release {} with its workloads and Services", key.name)),
        (Piece::Volumes, data(Piece::Volumes, "the volumes of app and Redis".to_owned())),
    ];
    let provider = database::provider(spec.postgres.provider);
    let database = |what: &str, before: &str| {
        let its = format!("{what} {}{before} with its volumes, backups and Secrets", key.database());
        let elsewhere = provider.and_then(|provider| provider.lasting_backups(&spec.postgres));
        let elsewhere = elsewhere.map(|place| format!("; its backups in {place} stay"));
        (Piece::Database, data(Piece::Database, its) + &elsewhere.unwrap_or_default())
    };
    pieces.push(match (spec.postgres.enabled, provider) {
        (true, Some(provider)) => database(provider.kind().as_str(), ""),
        (true, None) => {
            let secret = spec.postgres.external.as_ref().map_or("", |external| &external.secret_name);
            (Piece::ExternalDatabase, format!("the database that Secret {secret} opens, and that Secret"))
        }
        (false, _) => database("the database", ", if it had one before,"),
    });
    pieces.push(match &spec.admin_secret {
        Some(given) => (Piece::GivenSecret, format!("Secret {given}")),
        None => (Piece::AdminSecret, format!("Secret {} with the administrator's password", key.admin_secret())),
    });
    pieces.push((Piece::RedisSecret, format!("Secret {}", key.redis_secret())));
    let namespace = |condition: &str| (Piece::Namespace, format!("namespace {}, {condition}", key.namespace));
    match (namespace_made, Piece::Namespace.outcome(deletion)) {
        (Some(true), Outcome::Deleted) => pieces.push(namespace("made for it, when nothing else is in it")),
        (None, Outcome::Deleted) => pieces.push(namespace("if it was made for it, when nothing else is in it")),
        (Some(true), _) => pieces.push(namespace("made for it, with what stays in it")),
        (Some(false) | None, _) => {}
    }
    pieces.into_iter().map(|(piece, sentence)| Told { piece, outcome: piece.outcome(deletion), sentence }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::clientapp::fixtures::app;

    #[test]
    fn what_becomes_of_each_piece() {
        let [delete, retain] =
            [DeletionPolicy::Delete, DeletionPolicy::Retain].map(|policy| Deletion { policy, orphans: false });
        let orphan = Deletion { orphans: true, ..delete };
        let (gone, kept, untouched) = (Outcome::Deleted, Outcome::Retained, Outcome::Untouched);
        for (piece, outcomes) in [
            (Piece::Release, [gone, gone, kept]),
            (Piece::Volumes, [gone, kept, kept]),
            (Piece::Database, [gone, kept, kept]),
            (Piece::ExternalDatabase, [untouched, untouched, untouched]),
            (Piece::AdminSecret, [gone, kept, kept]),
            (Piece::GivenSecret, [untouched, untouched, untouched]),
            (Piece::RedisSecret, [gone, gone, kept]),
            (Piece::Namespace, [gone, kept, kept]),
        ] {
            assert_eq!([delete, retain, orphan].map(|deletion| piece.outcome(deletion)), outcomes, "{piece:?}");
        }
    }

    #[test]
    fn what_a_person_is_told() {
        let told = |what: &str, spec: Value, orphans: bool, namespace_made: Option<bool>| {
            let pieces = pieces(&app(&spec), orphans, namespace_made);
            let lines = pieces.iter().map(|Told { outcome, sentence, .. }| format!("  {outcome:?}: {sentence}\n"));
            format!("{what}\n{}", lines.collect::<String>())
        };
        let external = json!({"provider": "external", "external": {"secretName": "theirs"}});
        let repository = json!({"gcs": {"bucket": "backups"}, "secretName": "s"});
        insta::assert_snapshot!(
            [
                told("everything is its own", json!({}), false, Some(true)),
                told("retained", json!({"deletionPolicy": "Retain", "postgres": {"adopt": true}}), false, Some(true)),
                told("adopted before", json!({"postgres": {"adopt": true, "provider": "standalone"}}), false, None),
                told(
                    "with what is another's",
                    json!({"postgres": external, "adminSecret": "mine", "redis": {"enabled": false}}),
                    false,
                    Some(false)
                ),
                told("without a database", json!({"postgres": {"enabled": false}}), false, Some(false)),
                told("orphaned", json!({}), true, Some(true)),
                told(
                    "with backups elsewhere",
                    json!({"postgres": {"percona": {"repository": repository}}}),
                    false,
                    Some(false)
                ),
            ]
            .concat()
        );
    }
}
