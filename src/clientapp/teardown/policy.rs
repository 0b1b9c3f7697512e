//! Decides what happens to each resource of a deleted ClientApp, **pure**: what the teardown does, and what the user is told before.

use crate::{
    clientapp::spec::database,
    crd::{ClientApp, DeletionPolicy, label},
    platform::key::key_of,
};

/// Says what happens to a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeletionOutcome {
    /// It is deleted.
    Deleted,
    /// The app owned it, and it stays, to be found and adopted.
    Retained,
    /// The app never owned it.
    Untouched,
}

/// A resource of a ClientApp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AppResource {
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
pub struct DeletionOptions {
    /// `spec.deletionPolicy`; Retain if it cannot be read.
    pub policy: DeletionPolicy,
    /// The deletion orphans (`--cascade=orphan`).
    pub orphans: bool,
}

impl AppResource {
    /// Returns what happens to it once the deletion is carried out; for a suspended ClientApp, that is after it is resumed.
    pub fn outcome(self, DeletionOptions { policy, orphans }: DeletionOptions) -> DeletionOutcome {
        match (self, policy) {
            (AppResource::ExternalDatabase | AppResource::GivenSecret, _) => DeletionOutcome::Untouched,
            _ if orphans => DeletionOutcome::Retained,
            (AppResource::Release | AppResource::RedisSecret, _) => DeletionOutcome::Deleted,
            (
                AppResource::Volumes | AppResource::Database | AppResource::AdminSecret | AppResource::Namespace,
                policy,
            ) => match policy {
                DeletionPolicy::Delete => DeletionOutcome::Deleted,
                DeletionPolicy::Retain => DeletionOutcome::Retained,
            },
        }
    }
}

/// Says what a deletion does to one resource of one ClientApp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DeletionEffect {
    pub resource: AppResource,
    pub outcome: DeletionOutcome,
    /// Kind and name of the resource, and what the outcome means for its content.
    pub sentence: String,
}

/// Returns the effect on each resource that a ClientApp has according to its spec. The spec does not show whether its namespace was created for it;
/// `None`: the caller does not know either.
pub(crate) fn deletion_effects(app: &ClientApp, orphans: bool, namespace_made: Option<bool>) -> Vec<DeletionEffect> {
    let key = key_of(app);
    let spec = &app.spec;
    let deletion = DeletionOptions { policy: spec.deletion_policy, orphans };
    let adopted = if spec.postgres.adopt { ", what it has adopted included" } else { "" };
    let retained = format!("; labelled {}={}", label::RETAINED_FROM, key.name);
    let data = move |resource: AppResource, what: String| match resource.outcome(deletion) {
        DeletionOutcome::Deleted => format!("{what}, and all data in them{adopted}"),
        DeletionOutcome::Retained if !orphans => format!("{what}{adopted}{retained}"),
        DeletionOutcome::Retained | DeletionOutcome::Untouched => what,
    };
    let mut resources = vec![
        (AppResource::Release, format!("Helm release {} with its workloads and Services", key.name)),
        (AppResource::Volumes, data(AppResource::Volumes, "the volumes of app and Redis".to_owned())),
    ];
    let provider = database::provider(spec.postgres.provider);
    let in_use = app.status.as_ref().and_then(|status| status.postgres_cluster_name.clone());
    let of_spec = database::name(&key, &spec.postgres);
    // While it moves, it has both.
    let names: Vec<_> = in_use.filter(|name| *name != of_spec).into_iter().chain([of_spec]).collect();
    let database = |what: &str, before: &str| {
        let backups = match provider {
            Some(provider) if !provider.backs_up(&spec.postgres) => "volumes",
            _ => "volumes, backups",
        };
        let its = format!("{what} {}{before} with its {backups} and Secrets", names.join(" and "));
        let elsewhere = provider.and_then(|provider| provider.lasting_backups(&spec.postgres));
        let elsewhere = elsewhere.map(|place| format!("; its backups in {place} stay"));
        (AppResource::Database, data(AppResource::Database, its) + &elsewhere.unwrap_or_default())
    };
    resources.push(match (spec.postgres.enabled, provider) {
        (true, Some(provider)) => database(provider.kind().as_str(), ""),
        (true, None) => {
            let secret = spec.postgres.external.as_ref().map_or("", |external| &external.secret_name);
            (AppResource::ExternalDatabase, format!("the database that Secret {secret} opens, and that Secret"))
        }
        (false, _) => database("the database", ", if it had one before,"),
    });
    resources.push(match &spec.admin_secret {
        Some(given) => (AppResource::GivenSecret, format!("Secret {given}")),
        None => (AppResource::AdminSecret, format!("Secret {} with the administrator's password", key.admin_secret())),
    });
    resources.push((AppResource::RedisSecret, format!("Secret {}", key.redis_secret())));
    let namespace = |condition: &str| (AppResource::Namespace, format!("namespace {}, {condition}", key.namespace));
    match (namespace_made, AppResource::Namespace.outcome(deletion)) {
        (Some(true), DeletionOutcome::Deleted) => resources.push(namespace("made for it, when nothing else is in it")),
        (None, DeletionOutcome::Deleted) => {
            resources.push(namespace("if it was made for it, when nothing else is in it"))
        }
        (Some(true), _) => resources.push(namespace("made for it, with what stays in it")),
        (Some(false) | None, _) => {}
    }
    resources
        .into_iter()
        .map(|(resource, sentence)| DeletionEffect { resource, outcome: resource.outcome(deletion), sentence })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::clientapp::fixtures::app;

    #[test]
    fn deletion_outcomes() {
        let [delete, retain] =
            [DeletionPolicy::Delete, DeletionPolicy::Retain].map(|policy| DeletionOptions { policy, orphans: false });
        let orphan = DeletionOptions { orphans: true, ..delete };
        let (gone, kept, untouched) = (DeletionOutcome::Deleted, DeletionOutcome::Retained, DeletionOutcome::Untouched);
        for (resource, outcomes) in [
            (AppResource::Release, [gone, gone, kept]),
            (AppResource::Volumes, [gone, kept, kept]),
            (AppResource::Database, [gone, kept, kept]),
            (AppResource::ExternalDatabase, [untouched, untouched, untouched]),
            (AppResource::AdminSecret, [gone, kept, kept]),
            (AppResource::GivenSecret, [untouched, untouched, untouched]),
            (AppResource::RedisSecret, [gone, gone, kept]),
            (AppResource::Namespace, [gone, kept, kept]),
        ] {
            assert_eq!([delete, retain, orphan].map(|deletion| resource.outcome(deletion)), outcomes, "{resource:?}");
        }
    }

    #[test]
    fn deletion_effects_in_sentences() {
        let told = |what: &str, spec: Value, orphans: bool, namespace_made: Option<bool>| {
            let resources = deletion_effects(&app(&spec), orphans, namespace_made);
            let lines =
                resources.iter().map(|DeletionEffect { outcome, sentence, .. }| format!("  {outcome:?}: {sentence}\n"));
            format!("{what}\n{}", lines.collect::<String>())
        };
        let external = json!({"provider": "external", "external": {"secretName": "theirs"}});
        let repository = json!({"gcs": {"bucket": "backups"}, "secretName": "s"});
        let bucket = json!({"endpoint": "https://s3", "bucket": "backups", "credentialsSecret": {"name": "s3"}});
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
                told("of CloudNativePG", json!({"postgres": {"provider": "cloudnativepg"}}), false, Some(false)),
                told(
                    "of CloudNativePG, with a bucket",
                    json!({"postgres": {"provider": "cloudnativepg", "backup": {"schedule": "@daily", "store": bucket}}}),
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
