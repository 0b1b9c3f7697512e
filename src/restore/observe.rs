//! Reads what exists of a restore and of what it restores. An effect that reads.

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Secret};
use kube::{
    Api, Client, ResourceExt,
    api::{ApiResource, ListParams},
};

use super::{
    cloudnativepg::SeenCluster,
    context::Restores,
    observed::{Copy, Database, Observed},
    percona::Seen,
    permission::{administrator_of, holder, needed_by},
};
use crate::{
    backup::{
        observe::{app, files, listed, metadata, one},
        observed::Subject,
    },
    clientapp::spec::database,
    crd::{
        BackupSubjectKind, ClientApp, ClientAppBackup, ClientAppRestoreSpec, FilesBackup, FilesSource,
        PostgresProvider, Postgresql, RestoreInto, annotation,
        cloudnativepg::{BarmanObjectStore, CloudNativePgBackup, CloudNativePgCluster},
        label,
        percona::{PerconaPGBackup, PerconaPGCluster, PerconaPGRestore},
    },
    platform::{
        api::ignore_not_found,
        key::Key,
        run_once::{Error, Run, RunContext, running},
    },
    postgresql::names,
};

/// Returns what exists. Only what the next step depends on is read.
pub(super) async fn observe(
    ctx: &RunContext<Restores>,
    restore: &Run<'_, Restores>,
    spec: &ClientAppRestoreSpec,
) -> Result<Observed, Error> {
    let (client, status) = (&ctx.parts.client, &restore.recorded_status);
    let (namespace, name) = (&restore.key.namespace, &spec.of.name);
    let has_begun = status.started_at.is_some();
    let source = match &spec.backup {
        Some(backup) if !has_begun => one::<ClientAppBackup>(client, namespace, backup).await?.map(Box::new),
        _ => None,
    };
    let backup = match has_begun {
        true => None,
        false => {
            let backups = Api::namespaced(client.clone(), namespace);
            running(backups, |backup: &ClientAppBackup| backup.spec.of == spec.of).await?
        }
    };
    if spec.of.kind == BackupSubjectKind::Postgresql {
        let database = Database::Standalone(one::<Postgresql>(client, namespace, name).await?.map(Box::new));
        let volume_of_dumps = volume_of_dumps(client, namespace, name).await?;
        let subject = Subject::Postgresql;
        return Ok(Observed { subject, database, volume_of_dumps, source, backup, ..Observed::default() });
    }
    let has_database = status.has_database();
    let copy = spec.into.as_ref().filter(|_| !has_database);
    // Once it has its database, its files are restored as those of any app.
    let name = spec.into.as_ref().filter(|_| has_database).map_or(name, |into| &into.name);
    let found = match copy {
        // Another app gets its spec.
        Some(_) => one::<ClientApp>(client, namespace, name).await?,
        None => app(&ctx.shared, client, namespace, name).await?,
    };
    let Some(app) = found else { return Ok(Observed::default()) };
    let key = Key::new(namespace, name);
    let copy = match copy {
        Some(into) => Some(seen_of(client, namespace, spec, (&app, into)).await?),
        None => None,
    };
    let postgres = &app.spec.postgres;
    let database = match postgres.provider {
        _ if !postgres.enabled || (spec.into.is_some() && has_database) => Database::None,
        PostgresProvider::External => Database::None,
        PostgresProvider::CloudNativePg => {
            let name = database::name_in_use(&app);
            Database::CloudNativePg(seen_cluster(client, namespace, &name).await?.map(Box::new))
        }
        PostgresProvider::Standalone => {
            Database::Standalone(one::<Postgresql>(client, namespace, &key.database()).await?.map(Box::new))
        }
        PostgresProvider::Percona => {
            let first = status.database.as_ref().and_then(|database| database.backup.as_ref());
            let first = match first {
                Some(first) => listed::<PerconaPGBackup>(client, namespace, first).await?.map(Box::new),
                None => None,
            };
            Database::Percona { seen: seen(client, namespace, &key.database()).await?.map(Box::new), first }
        }
    };
    let volume_of_dumps = match &database {
        Database::Standalone(Some(_)) => volume_of_dumps(client, namespace, &key.database()).await?,
        _ => None,
    };
    let mut observed = Observed { database, volume_of_dumps, source, backup, ..Observed::default() };
    if copy.is_none() && (app.spec.persistence.backup.is_some() || status.files.is_some()) {
        let recorded = status.files.as_ref().map(|files| files.job.as_str());
        observed.files = files(&ctx.parts, &app, recorded).await?;
        observed.not_permitted = not_permitted(client, &key, &app, spec.files.as_ref()).await?;
    }
    Ok(Observed { subject: Subject::App(Box::new(app)), copy, ..observed })
}

/// Returns what exists of another app that is created from a backup.
async fn seen_of(
    client: &Client,
    namespace: &str,
    spec: &ClientAppRestoreSpec,
    (first, into): (&ClientApp, &RestoreInto),
) -> Result<Copy, Error> {
    let key = Key::new(namespace, &into.name);
    let Some(app) = one::<ClientApp>(client, namespace, &into.name).await? else {
        let names = format!("{} in ({},{})", label::RETAINED_FROM, key.name, key.database());
        let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
        let left = claims.list_metadata(&ListParams::default().labels(&names)).await;
        let left = left.map_err(Error::api(format!("list the PersistentVolumeClaims of namespace {namespace}")))?;
        let claim = left.items.first().map(|claim| format!("PersistentVolumeClaim {}", claim.name_any()));
        let secret = metadata(client, namespace, &ApiResource::erase::<Secret>(&()), &key.admin_secret()).await?;
        let database = metadata(client, namespace, &ApiResource::erase::<Postgresql>(&()), &key.database()).await?;
        let cluster = listed::<PerconaPGCluster>(client, namespace, &key.database()).await?;
        // The rights on a kind that no app uses may have been taken away.
        let of_cnpg = match first.spec.postgres.provider {
            PostgresProvider::CloudNativePg => {
                listed::<CloudNativePgCluster>(client, namespace, &key.database()).await?
            }
            PostgresProvider::Percona | PostgresProvider::Standalone | PostgresProvider::External => None,
        };
        let left = claim
            .or(secret.map(|secret| format!("Secret {}", secret.name_any())))
            .or(database.map(|database| format!("Postgresql {}", database.name_any())))
            .or(cluster.map(|cluster| format!("PerconaPGCluster {}", cluster.name_any())))
            .or(of_cnpg.map(|cluster| format!("Cluster {}", cluster.name_any())));
        return Ok(Copy { left, ..Copy::default() });
    };
    let mut copy = Copy { app: Some(Box::new(app)), ..Copy::default() };
    copy.has_first_administrator =
        metadata(client, namespace, &ApiResource::erase::<Secret>(&()), &administrator_of(first)).await?.is_some();
    let secret = key.admin_secret();
    let found = metadata(client, namespace, &ApiResource::erase::<Secret>(&()), &secret).await?;
    copy.administrator = found.map(|found| found.annotations().get(annotation::OWNER_UID).cloned());
    let Some(database) = one::<Postgresql>(client, namespace, &key.database()).await? else { return Ok(copy) };
    let opens = database.spec.restore.as_ref().and_then(|restore| holder(spec, namespace, restore));
    let found = match opens {
        Some((resource, name)) => metadata(client, namespace, &resource, name).await?,
        None => None,
    };
    copy.has_dumps = found.is_some();
    let labels = found.and_then(|found| found.metadata.labels).unwrap_or_default();
    copy.is_permitted = labels.get(label::RESTORE_TO) == database.metadata.name.as_ref();
    if let Some(label) = labels.get(label::RESTORE_TO_UID) {
        copy.is_permitted |= database.uid().as_ref() == Some(label);
        let all = Api::<Postgresql>::namespaced(client.clone(), namespace).list(&ListParams::default()).await;
        let all = all.map_err(Error::api(format!("list the Postgresqls of namespace {namespace}")))?;
        copy.label_needed_by = needed_by(label, &all.items);
    }
    copy.database = Some(Box::new(database));
    Ok(copy)
}

/// Returns the uid of the claim with the dumps of a Postgresql.
async fn volume_of_dumps(client: &Client, namespace: &str, postgresql: &str) -> Result<Option<String>, Error> {
    let name = names::backup(postgresql);
    let found = metadata(client, namespace, &ApiResource::erase::<PersistentVolumeClaim>(&()), &name).await?;
    Ok(found.filter(|found| found.metadata.deletion_timestamp.is_none()).and_then(|found| found.uid()))
}

/// Returns the Secret with the credentials of a bucket if archives of another app are to be read with it, and no label permits that.
async fn not_permitted(
    client: &Client,
    key: &Key,
    app: &ClientApp,
    source: Option<&FilesSource>,
) -> Result<Option<String>, Error> {
    let backup = app.spec.persistence.backup.as_ref();
    let Some((backup, path)) = backup.zip(source.and_then(|source| source.path.as_ref())) else { return Ok(None) };
    // A repository of an earlier app of this namespace and name, whatever its prefix.
    if FilesBackup::is_path_of(path, &key.namespace, &key.name) {
        return Ok(None);
    }
    let secret = &backup.store.bucket.credentials_secret.name;
    let found = metadata(client, &key.namespace, &ApiResource::erase::<Secret>(&()), secret).await?;
    let to = found.and_then(|found| found.labels().get(label::RESTORE_TO).cloned());
    let is_permitted = to.is_some_and(|to| to == key.name || to == key.database());
    Ok((!is_permitted).then(|| secret.clone()))
}

/// Returns a cluster with its backups and restores.
async fn seen(client: &Client, namespace: &str, name: &str) -> Result<Option<Seen>, Error> {
    let Some(cluster) = listed::<PerconaPGCluster>(client, namespace, name).await? else { return Ok(None) };
    let all = ListParams::default();
    let listing = |what: &str| Error::api(format!("list the {what} of namespace {namespace}"));
    let backups = Api::<PerconaPGBackup>::namespaced(client.clone(), namespace).list(&all).await;
    let backups = backups.map_err(listing("PerconaPGBackups"))?;
    let restores = Api::<PerconaPGRestore>::namespaced(client.clone(), namespace).list(&all).await;
    let restores = restores.map_err(listing("PerconaPGRestores"))?;
    Ok(Some(Seen::of(cluster, backups.items, restores.items)))
}

/// Returns a Cluster of CloudNativePG with its backups.
async fn seen_cluster(client: &Client, namespace: &str, name: &str) -> Result<Option<SeenCluster>, Error> {
    let Some(cluster) = listed::<CloudNativePgCluster>(client, namespace, name).await? else { return Ok(None) };
    let all = ListParams::default();
    let listing = |what: &str| Error::api(format!("list the {what} of namespace {namespace}"));
    let backups = Api::<CloudNativePgBackup>::namespaced(client.clone(), namespace).list(&all).await;
    let backups = backups.map_err(listing("Backups"))?;
    // The plugin may have been removed.
    let stores = ignore_not_found(Api::<BarmanObjectStore>::namespaced(client.clone(), namespace).list(&all).await);
    let stores = stores.map_err(listing("ObjectStores"))?.map(|stores| stores.items).unwrap_or_default();
    Ok(Some(SeenCluster { cluster, backups: backups.items, stores }))
}
