//! Decides what follows for a restore into another ClientApp, until that has its database. Its files follow as in a restore of itself.
//! Pure.
//!
//! The other app is created suspended, since it must not get an administrator of its own: the restored database knows the first's.
//! The creator of a ClientAppRestore chooses neither what is copied nor a path in the bucket.

mod spec;

use std::convert::Infallible;

use jiff::Timestamp;
use kube::{Resource as _, ResourceExt as _};

use self::spec::{Names, Source, copied};
use super::source::{awaited, dump, sources, state_of};
use crate::{
    backup::{archive_job, decide::short, observed::Subject},
    clientapp::spec::database,
    crd::{
        ClientApp, ClientAppRestoreSpec, ClientAppRestoreStatus, DatabaseRestore, DatabaseSource, FilesRestore,
        PerconaDataSource, PostgresProvider, Postgresql, RestoreInto, annotation,
        cloudnativepg::CloudNativePgCluster,
        conditions::{find, kind},
        percona::PerconaPGCluster,
    },
    platform::{
        key::{Key, key_of},
        run_once::Progress,
    },
    restore::{
        cloudnativepg::data_source,
        history::SUCCEEDED,
        observed::{Database, Observed},
        percona::{FAILED, LATEST, Seen, may_restore, state},
        permission::{administrator_of, permission, restore_failed},
        step::{Me, Step},
    },
};

/// Decides what follows until the other app has its database.
pub(super) fn database_of_copy(
    me: Me<'_>,
    spec: &ClientAppRestoreSpec,
    into: &RestoreInto,
    status: ClientAppRestoreStatus,
    observed: &Observed,
    now: Timestamp,
) -> Progress<ClientAppRestoreStatus, Step> {
    let other = &into.name;
    let Subject::App(first) = &observed.subject else {
        return Progress::Failed(format!("ClientApp {} does not exist in this namespace", spec.of.name));
    };
    let copy = observed.copy.as_ref();
    let Some(app) = copy.and_then(|copy| copy.app.as_deref()) else {
        if status.into_uid.is_some() {
            return Progress::Failed(format!("ClientApp {other} was deleted meanwhile"));
        }
        return create(me, spec, into, status, (first, observed), now);
    };
    if app.annotations().get(annotation::CREATED_BY).map(String::as_str) != Some(me.uid) {
        return Progress::Failed(format!("ClientApp {other} exists already: choose another name in spec.into"));
    }
    if status.into_uid.is_some() && status.into_uid != app.uid() || app.metadata.deletion_timestamp.is_some() {
        return Progress::Failed(format!("ClientApp {other} was deleted meanwhile"));
    }
    let status = ClientAppRestoreStatus { into_uid: app.uid(), ..status };
    let creates = || format!("creates ClientApp {other}");
    // A user who changes it takes it over.
    let is_new = app.metadata.generation == Some(1);
    if app.spec.suspend && is_new {
        if first.spec.admin_secret.is_none() {
            let stamp = copy.and_then(|copy| copy.administrator.as_ref());
            match stamp {
                None if copy.is_some_and(|copy| !copy.has_first_administrator) => {
                    let (name, first) = (administrator_of(first), first.name_any());
                    return Progress::Waits(format!("Secret {name} with the administrator of {first} does not exist"));
                }
                None => {
                    let step = Step::CopyAdministrator { of: first.clone(), to: Box::new(app.clone()) };
                    return Progress::Runs(status, Some(step), creates());
                }
                Some(stamp) if stamp.as_ref() != app.metadata.uid.as_ref() => {
                    let name = key_of(app).admin_secret();
                    return Progress::Failed(format!(
                        "Secret {name} exists already, and is not of this ClientApp {other}: delete both, and restore again"
                    ));
                }
                Some(_) => {}
            }
        }
        return Progress::Runs(status, Some(Step::Resume(Box::new(app.clone()))), creates());
    }
    if let Some(database) = copy.and_then(|copy| copy.database.as_deref()) {
        match permission(spec, app, database) {
            Some(_) if copy.is_some_and(|copy| copy.is_permitted) => {}
            Some(permission) if copy.is_some_and(|copy| !copy.has_dumps) => {
                return Progress::Waits(format!("{} {} does not exist", permission.resource.kind, permission.name));
            }
            Some(permission) => {
                if let Some(name) = copy.and_then(|copy| copy.label_needed_by.as_ref()) {
                    return Progress::Waits(format!(
                        "{} {} is labelled for Postgresql {name}, which is not restored yet",
                        permission.resource.kind, permission.name
                    ));
                }
                let message = format!("lets Postgresql {} read the dumps", database.name_any());
                return Progress::Runs(status, Some(Step::Permit(permission)), message);
            }
            None => {}
        }
        if let Some(why) = restore_failed(database) {
            return Progress::Failed(format!(
                "Postgresql {}: {why}. Delete ClientApp {other}, and restore again",
                database.name_any()
            ));
        }
    }
    let Some(made) = status.database.clone() else { return Progress::Failed("there is no database".to_owned()) };
    let conditions = app.status.as_ref().map_or(&[][..], |status| &status.conditions);
    let has_database = find(conditions, kind::POSTGRES_READY)
        .is_some_and(|found| found.status == "True" && found.observed_generation == app.metadata.generation);
    if has_database {
        let restored = copy.and_then(|copy| copy.database.as_ref()?.status.as_ref()?.restored.clone());
        let administrator = copy.and_then(|copy| copy.administrator.clone().flatten());
        let has_administrator = first.spec.admin_secret.is_some() || administrator == app.metadata.uid;
        if !has_administrator || (restored.is_none() && made.kind == Postgresql::kind(&())) {
            return Progress::Failed(format!(
                "ClientApp {other} was changed meanwhile, and has not what was restored: delete it, and restore again"
            ));
        }
        let from = restored.map_or(made.from.clone(), |restored| restored.dump);
        return Progress::Completed(ClientAppRestoreStatus {
            database: Some(DatabaseRestore { from, ..made }),
            ..status
        });
    }
    let says = find(conditions, kind::READY).map_or("waiting for the operator", |ready| &ready.message);
    Progress::Runs(status, None, format!("ClientApp {other}: {says}"))
}

/// Creates the other app, once everything is there that it is created from.
fn create(
    me: Me<'_>,
    spec: &ClientAppRestoreSpec,
    into: &RestoreInto,
    status: ClientAppRestoreStatus,
    (first, observed): (&ClientApp, &Observed),
    now: Timestamp,
) -> Progress<ClientAppRestoreStatus, Step> {
    let of = first.name_any();
    if first.spec.hostname == into.hostname {
        return Progress::Failed(format!("{} is the hostname of {of}: choose another in spec.into", into.hostname));
    }
    if let Some(left) = observed.copy.as_ref().and_then(|copy| copy.left.as_ref()) {
        return Progress::Failed(format!("{left} exists already: choose another name than {} in spec.into", into.name));
    }
    // What is on record was found when the restore began.
    let (from, archive) = match &status.database {
        Some(made) => (Some(made.from.clone()), status.files.as_ref().map(|made| made.archive.clone())),
        None => {
            if let Some(why) = awaited(spec, observed) {
                return Progress::Waits(why);
            }
            match sources(spec, observed) {
                Ok(sources) => sources,
                Err(why) => return Progress::Failed(why),
            }
        }
    };
    let Some(from) = from else {
        return Progress::Failed(format!("there is no database in the backup to create ClientApp {} from", into.name));
    };
    let source = match source(spec, &from, (first, observed), now) {
        Progress::Completed(source) => source,
        other => return other.map(|_| status, |never: Infallible| match never {}),
    };
    let kind = match source {
        Source::Dump(_) => Postgresql::kind(&()),
        Source::Cluster(_) => PerconaPGCluster::kind(&()),
        Source::CloudNativePg(_) => CloudNativePgCluster::kind(&()),
    };
    let namespace = first.namespace().unwrap_or_default();
    let name = Key::new(&namespace, &into.name).database();
    let database =
        DatabaseRestore { kind: kind.into_owned(), name, from, backup: None, requested_at: None, completed_at: None };
    let copied = copied(first.spec.clone(), Names { first: &of, other: &into.name }, &into.hostname, &source);
    let mut app = ClientApp::new(&into.name, copied);
    app.metadata.namespace = Some(namespace);
    app.annotations_mut().insert(annotation::CREATED_BY.to_owned(), me.uid.to_owned());
    let files = match archive {
        None => None,
        Some(_) if archive_job::settings(first).is_err() => {
            return Progress::Failed(archive_job::settings(first).err().unwrap_or_default());
        }
        Some(archive) => {
            let job = archive_job::name(&app.name_any(), &format!("r{}", short(me.uid)));
            Some(FilesRestore { job, archive, completed_at: None })
        }
    };
    let status = ClientAppRestoreStatus { database: Some(database), files, ..status };
    Progress::Runs(status, Some(Step::CreateApp(Box::new(app))), format!("creates ClientApp {}", into.name))
}

/// Returns what the new database is created from.
fn source(
    spec: &ClientAppRestoreSpec,
    from: &str,
    (first, observed): (&ClientApp, &Observed),
    now: Timestamp,
) -> Progress<Source, Infallible> {
    let of = first.name_any();
    let wanted = spec.database.as_ref();
    let found = match &observed.database {
        Database::None if first.spec.postgres.enabled && first.spec.postgres.provider == PostgresProvider::External => {
            Err(format!("the operator makes no backups of the database of {of}, which it has not created"))
        }
        Database::None => Err(format!("{of} has no database, and so no backup to create another ClientApp from")),
        Database::Standalone(None) | Database::Percona { seen: None, .. } | Database::CloudNativePg(None) => {
            return Progress::Waits(format!("{of} has no database yet: its condition PostgresReady says why"));
        }
        Database::Standalone(Some(found)) => {
            dump(wanted, from, (found, observed.volume_of_dumps.as_deref())).map(Source::Dump)
        }
        Database::Percona { seen: Some(seen), first: _ } => {
            cluster(&of, seen, (from, wanted), now).map(Source::Cluster)
        }
        Database::CloudNativePg(Some(_)) if wanted.is_some_and(|wanted| wanted.store.is_some()) => {
            Err("spec.database.store is for dumps: a Cluster is created from its own bucket".to_owned())
        }
        Database::CloudNativePg(Some(seen)) => {
            let time = wanted.and_then(|wanted| wanted.time.as_ref());
            data_source(&of, seen, (from, time), now).map(Source::CloudNativePg)
        }
    };
    found.map_or_else(Progress::Failed, Progress::Completed)
}

/// Returns the backups of a PerconaPGCluster to create another from, or why there are none: what can be restored into this cluster can be
/// restored into another one, as far as the field tells Percona which backup to begin with.
fn cluster(
    app: &str,
    seen: &Seen,
    (from, wanted): (&str, Option<&DatabaseSource>),
    now: Timestamp,
) -> Result<PerconaDataSource, String> {
    let name = seen.cluster.name_any();
    if wanted.is_some_and(|wanted| wanted.store.is_some()) {
        return Err("spec.database.store is for dumps: Percona restores from the cluster's own repository".to_owned());
    }
    // Percona would choose the backup to begin with, and may choose one that an earlier restore has undone.
    if from == LATEST && !seen.restores.is_empty() {
        return Err(format!(
            "PerconaPGCluster {name} was restored before, so another cluster might miss the state: name a backup in spec.database.from"
        ));
    }
    let mut ended = seen.clone();
    // One that still runs is not disturbed: this cluster is only read.
    ended.backups.retain(|backup| matches!(state(backup), SUCCEEDED | FAILED));
    let time = wanted.and_then(|wanted| wanted.time.clone());
    let restore = may_restore(app, &ended, (from, time.as_ref().map(|time| time.0)), false, now)?;
    let first = seen.cluster.spec.backups.repositories().first().map(ToString::to_string);
    if restore.repo_name != first {
        return Err(format!(
            "the backup is in {} of PerconaPGCluster {name}, and another cluster is created from its first repository: create the ClientApp yourself, with postgres.percona.dataSource.repository",
            restore.repo_name.unwrap_or_default()
        ));
    }
    let backup = seen.backups.iter().find(|backup| from != LATEST && backup.name_any() == from);
    let backup = backup.and_then(|backup| backup.status.as_ref()?.result.backup_name.clone());
    Ok(PerconaDataSource { cluster: Some(name), repository: None, backup, time })
}

/// Says what the other app has, and what is still to be done before it is of use.
pub(super) fn told(spec: &ClientAppRestoreSpec, status: &ClientAppRestoreStatus, app: &ClientApp) -> String {
    let (other, key) = (app.name_any(), key_of(app));
    let state = state_of(spec, status.database.as_ref().map_or("", |made| &made.from));
    let postgres = &app.spec.postgres;
    let host = database::provider(postgres.provider)
        .map(|provider| provider.service(postgres, &database::name(&key, postgres)));
    let host = host.unwrap_or_default();
    let (has, copy) = match &status.files {
        Some(files) => (format!(" and the files of archive {}", files.archive), String::new()),
        None => (String::new(), format!("copy the files of {}, ", spec.of.name)),
    };
    format!(
        "ClientApp {other} has the database {state}{has}, the administrator of {}, and no pods: {copy}unless spec.values replace nextcloud.hooks, which do so, set dbhost to {host} in config.php, then set spec.replicas: `kubectl patch clientapp {other} -n {} --type=merge -p '{{\"spec\": {{\"replicas\": null}}}}'`",
        spec.of.name, key.namespace
    )
}
