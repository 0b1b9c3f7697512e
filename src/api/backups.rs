//! Backups and restores of an instance. Each is an object that its controller carries out: a POST creates it, and a GET shows how far
//! it is. A user needs the right to `get` the ClientApp, and the same rights on these objects as with kubectl.

mod dto;

use std::{fmt::Debug, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, StatusCode, header},
    response::{IntoResponse as _, Response},
    routing::get,
};
use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::OwnerReference};
use kube::{Api, Resource, ResourceExt as _, api::ListParams};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use self::dto::{BackupList, InstanceBackup, InstanceRestore, NewBackup, NewRestore, RestoreList};
use super::{
    body,
    create::reused,
    idempotency::{Match, RequestStamp},
    instances::Shown,
    problem::{InstanceRefusals, PostRefusals, Problem, Refusals},
    refusal::failed,
    routes::{InstanceName, InstanceNamespace, REPLAYED, RequestMeta, audit, json},
    shared::ApiState,
};
use crate::{
    crd::{
        BackupPhase, BackupSubject, BackupSubjectKind, ClientApp, ClientAppBackup, ClientAppBackupSpec,
        ClientAppRestore, ClientAppRestoreSpec, Guard,
    },
    platform::{api::create_if_absent, key::Key},
};

pub(crate) fn routes() -> Router<Arc<ApiState>> {
    Router::new()
        .route("/instances/{name}/backups", get(list_backups).post(make_backup))
        .route("/instances/{name}/backups/{backup}", get(show_backup))
        .route("/instances/{name}/restores", get(list_restores).post(make_restore))
        .route("/instances/{name}/restores/{restore}", get(show_restore))
}

/// List the backups of an instance
#[utoipa::path(
    get, path = "/instances/{name}/backups", tag = "backups",
    params(InstanceName, InstanceNamespace),
    responses(
        (status = 200, description = "Newest first", body = BackupList,
            headers(("Allow" = String, description = "Contains `POST` if the user may create one"))),
        Refusals, InstanceRefusals,
    )
)]
async fn list_backups(asked: RequestMeta) -> Result<Response, Problem> {
    let (backups, allow) = listed::<ClientAppBackup>(&asked).await?;
    let items = backups.into_iter().map(InstanceBackup::from).collect();
    Ok((allow, json(StatusCode::OK, &BackupList { items })).into_response())
}

/// Back an instance up
///
/// First the database, then the files, so that none that the database lists is missing. Follow its `phase` at the path in `Location`.
#[utoipa::path(
    post, path = "/instances/{name}/backups", tag = "backups", request_body = NewBackup,
    params(
        InstanceName, InstanceNamespace,
        ("Idempotency-Key" = Option<String>, Header,
            description = "1 to 255 visible ASCII characters. Repeating a request with its key creates no second backup."),
    ),
    responses(
        (status = 201, description = "The backup is requested", body = InstanceBackup,
            headers(("Location" = String, description = "Path of the backup"))),
        (status = 200, description = "An earlier attempt of this request has requested it", body = InstanceBackup,
            headers(("Idempotency-Replayed" = String, description = "`true`"))),
        Refusals, InstanceRefusals, PostRefusals,
    )
)]
async fn make_backup(asked: RequestMeta, headers: HeaderMap, body: Bytes) -> Result<Response, Problem> {
    make::<ClientAppBackup, InstanceBackup>(asked, headers, body).await
}

/// Show a backup
#[utoipa::path(
    get, path = "/instances/{name}/backups/{backup}", tag = "backups",
    params(InstanceName, InstanceNamespace, ("backup" = String, Path, description = "Name of the backup")),
    responses((status = 200, description = "The backup", body = InstanceBackup), Refusals, InstanceRefusals)
)]
async fn show_backup(asked: RequestMeta) -> Result<Response, Problem> {
    Ok(json(StatusCode::OK, &InstanceBackup::from(shown::<ClientAppBackup>(&asked).await?)))
}

/// List the restores of an instance
#[utoipa::path(
    get, path = "/instances/{name}/restores", tag = "backups",
    params(InstanceName, InstanceNamespace),
    responses(
        (status = 200, description = "Newest first", body = RestoreList,
            headers(("Allow" = String, description = "Contains `POST` if the user may create one"))),
        Refusals, InstanceRefusals,
    )
)]
async fn list_restores(asked: RequestMeta) -> Result<Response, Problem> {
    let (restores, allow) = listed::<ClientAppRestore>(&asked).await?;
    let items = restores.into_iter().map(InstanceRestore::from).collect();
    Ok((allow, json(StatusCode::OK, &RestoreList { items })).into_response())
}

/// Restore an instance
///
/// Replaces its database, its files or both by those of a backup. What was there before is set aside or, with Percona, backed up first.
/// Follow its `phase` at the path in `Location`.
#[utoipa::path(
    post, path = "/instances/{name}/restores", tag = "backups", request_body = NewRestore,
    params(
        InstanceName, InstanceNamespace,
        ("Idempotency-Key" = Option<String>, Header,
            description = "1 to 255 visible ASCII characters. Repeating a request with its key creates no second restore."),
    ),
    responses(
        (status = 201, description = "The restore is requested", body = InstanceRestore,
            headers(("Location" = String, description = "Path of the restore"))),
        (status = 200, description = "An earlier attempt of this request has requested it", body = InstanceRestore,
            headers(("Idempotency-Replayed" = String, description = "`true`"))),
        Refusals, InstanceRefusals, PostRefusals,
    )
)]
async fn make_restore(asked: RequestMeta, headers: HeaderMap, body: Bytes) -> Result<Response, Problem> {
    make::<ClientAppRestore, InstanceRestore>(asked, headers, body).await
}

/// Show a restore
#[utoipa::path(
    get, path = "/instances/{name}/restores/{restore}", tag = "backups",
    params(InstanceName, InstanceNamespace, ("restore" = String, Path, description = "Name of the restore")),
    responses((status = 200, description = "The restore", body = InstanceRestore), Refusals, InstanceRefusals)
)]
async fn show_restore(asked: RequestMeta) -> Result<Response, Problem> {
    Ok(json(StatusCode::OK, &InstanceRestore::from(shown::<ClientAppRestore>(&asked).await?)))
}

/// A kind whose objects are carried out once for an instance.
trait InstanceRun:
    Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + Debug + DeserializeOwned + Serialize + Send + Sync
{
    /// The body of a POST.
    type New: DeserializeOwned + Send + Sync;
    /// The word for one of them, in paths and in the log.
    const WORD: &'static str;

    fn requested(new: Self::New, of: BackupSubject) -> (Option<String>, Self);

    fn subject(&self) -> &BackupSubject;

    /// Returns the name of the backup that a request needs.
    fn source(new: &Self::New) -> Option<&str>;

    /// Returns true if the request creates another instance.
    fn creates_instance(_: &Self::New) -> bool {
        false
    }
}

impl InstanceRun for ClientAppBackup {
    type New = NewBackup;
    const WORD: &'static str = "backup";

    fn requested(new: NewBackup, of: BackupSubject) -> (Option<String>, Self) {
        let NewBackup { name, parts, quiesce, reclaim } = new;
        (name, ClientAppBackup::new("", ClientAppBackupSpec { of, parts, quiesce, reclaim }))
    }

    fn subject(&self) -> &BackupSubject {
        &self.spec.of
    }

    fn source(_: &NewBackup) -> Option<&str> {
        None
    }
}

impl InstanceRun for ClientAppRestore {
    type New = NewRestore;
    const WORD: &'static str = "restore";

    fn requested(new: NewRestore, of: BackupSubject) -> (Option<String>, Self) {
        let NewRestore { name, into, backup, parts, database, files, backup_first } = new;
        let backup_first = backup_first.unwrap_or(true);
        let spec = ClientAppRestoreSpec { of, into, backup, parts, database, files, backup_first };
        (name, ClientAppRestore::new("", spec))
    }

    fn subject(&self) -> &BackupSubject {
        &self.spec.of
    }

    fn source(new: &NewRestore) -> Option<&str> {
        new.backup.as_deref()
    }

    fn creates_instance(new: &NewRestore) -> bool {
        new.into.is_some()
    }
}

/// Returns all of an instance, newest first, and the methods that the user may send.
async fn listed<K: InstanceRun>(
    asked: &RequestMeta,
) -> Result<(Vec<K>, [(header::HeaderName, &'static str); 1]), Problem> {
    let (key, _) = instance::<K>(asked, "list").await?;
    let mut all = in_namespace::<K>(asked, &key).await?;
    all.retain(|found| *found.subject() == subject(&key));
    all.sort_by_key(|found| std::cmp::Reverse((found.creation_timestamp(), found.name_any())));
    let may_create = may::<K>(asked, "create", &key, None).await.is_ok();
    Ok((all, [(header::ALLOW, if may_create { "GET, HEAD, POST" } else { "GET, HEAD" })]))
}

async fn shown<K: InstanceRun>(asked: &RequestMeta) -> Result<K, Problem> {
    let (key, _) = instance::<K>(asked, "get").await?;
    of_instance(asked, &key, &asked.object).await?.ok_or_else(|| {
        let detail = format!("instance {key} has no {} {}", K::WORD, asked.object);
        Problem::new(StatusCode::NOT_FOUND, "NotFound", detail)
    })
}

async fn make<K: InstanceRun + 'static, D: From<K> + Serialize>(
    asked: RequestMeta,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let (shared, word) = (asked.shared.clone(), K::WORD);
    let creating = shared.to_the_end(async move {
        let found = instance::<K>(&asked, "create").await;
        let unknown = || {
            let query = asked.query(&[]).unwrap_or_default();
            Key::new(query.get("namespace").unwrap_or("-"), &asked.name)
        };
        let key = found.as_ref().map_or_else(|_| unknown(), |(key, _)| key.clone());
        let created = async { created::<K>(&asked, &key, &found?.1, &headers, &body).await };
        let result = created.await;
        audit(&asked.user, word, &key, result.as_ref().map(|(status, _)| *status));
        Ok((key, result?))
    });
    let (key, (status, created)) = creating.await?;
    let Key { namespace, name } = &key;
    let path = format!("/instances/{name}/{word}s/{}?namespace={namespace}", created.name_any());
    let replayed = (status == StatusCode::OK).then_some([(REPLAYED, "true")]);
    Ok(([(header::LOCATION, path)], replayed, json(status, &D::from(created))).into_response())
}

/// Creates the object, or finds the one that an earlier attempt of the request has created.
async fn created<K: InstanceRun>(
    asked: &RequestMeta,
    key: &Key,
    shown: &Shown,
    headers: &HeaderMap,
    body: &Bytes,
) -> Result<(StatusCode, K), Problem> {
    if shown.instance.deleting {
        let detail = format!("instance {key} is being deleted: choose another instance");
        return Err(Problem::new(StatusCode::CONFLICT, "Deleting", detail));
    }
    let (request, body) = body::read::<K::New>(headers, body)?;
    // A later instance of the name needs a backup of its own.
    let stamp = RequestStamp::of(headers, &asked.user, &json!([shown.uid, body]))?;
    if let Some(found) = earlier(asked, key, stamp.as_ref()).await? {
        return Ok((StatusCode::OK, found));
    }
    if K::creates_instance(&request) {
        let auth = &asked.shared.parts.auth;
        auth.allow::<ClientApp>(&asked.user, "create", Some(&key.namespace), None).await?;
    }
    if let Some(backup) = K::source(&request) {
        check_source(asked, key, backup).await?;
    }
    let (name, mut object) = K::requested(request, subject(key));
    let meta = object.meta_mut();
    // Repeated at the same moment, the request has the same name.
    meta.name = name.or_else(|| stamp.as_ref().map(|stamp| format!("{}-{}", key.name, &stamp.key[..10])));
    meta.generate_name = meta.name.is_none().then(|| format!("{}-", key.name));
    meta.annotations = stamp.as_ref().map(RequestStamp::annotations);
    // It goes with the instance, whose namespace would stay for its sake. What it has made stays.
    meta.owner_references = Some(vec![OwnerReference {
        api_version: ClientApp::api_version(&()).into_owned(),
        kind: ClientApp::kind(&()).into_owned(),
        name: key.name.clone(),
        uid: shown.uid.clone(),
        ..OwnerReference::default()
    }]);
    let operation = format!("create {} in namespace {}", K::kind(&()), key.namespace);
    if let Some(made) = create_if_absent(&api::<K>(asked, key), None, &object).await.map_err(failed(operation))? {
        return Ok((StatusCode::CREATED, made));
    }
    earlier(asked, key, stamp.as_ref()).await?.map(|found| (StatusCode::OK, found)).ok_or_else(|| {
        let detail = format!(
            "metadata.name: a {} {} already exists in namespace {}: choose another name, or omit the name",
            K::WORD,
            object.name_any(),
            key.namespace
        );
        Problem::new(StatusCode::CONFLICT, "NameTaken", detail).about("name")
    })
}

/// Returns what an earlier attempt of the request has created.
async fn earlier<K: InstanceRun>(
    asked: &RequestMeta,
    key: &Key,
    stamp: Option<&RequestStamp>,
) -> Result<Option<K>, Problem> {
    let Some(stamp) = stamp else { return Ok(None) };
    for found in in_namespace::<K>(asked, key).await? {
        match stamp.compare(RequestStamp::on(found.meta().annotations.as_ref()).as_ref()) {
            Match::Same => return Ok(Some(found)),
            Match::Reused => return Err(reused()),
            Match::Other => {}
        }
    }
    Ok(None)
}

/// Refuses a restore of a backup that can never be restored. One that has not ended is awaited by the restore.
async fn check_source(asked: &RequestMeta, key: &Key, backup: &str) -> Result<(), Problem> {
    may::<ClientAppBackup>(asked, "get", key, Some(backup)).await?;
    let found = of_instance::<ClientAppBackup>(asked, key, backup).await?;
    let problem = match found.map(|found| found.status.and_then(|status| status.phase)) {
        None => format!("instance {key} has no backup {backup}: choose one of its backups"),
        Some(Some(BackupPhase::Failed)) => format!("backup {backup} of instance {key} has failed: choose another"),
        Some(_) => return Ok(()),
    };
    Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "InvalidSpec", format!("spec.backup: {problem}"))
        .about("backup"))
}

/// Returns the instance, if the user may see it and do this with its objects.
async fn instance<K: InstanceRun>(asked: &RequestMeta, verb: &'static str) -> Result<(Key, Arc<Shown>), Problem> {
    let found = asked.find("get", &asked.query(&[])?).await?;
    let object = Some(asked.object.as_str()).filter(|object| !object.is_empty());
    may::<K>(asked, verb, &found.0, object).await?;
    Ok(found)
}

async fn may<K: InstanceRun>(
    asked: &RequestMeta,
    verb: &'static str,
    key: &Key,
    name: Option<&str>,
) -> Result<(), Problem> {
    asked.shared.parts.auth.allow::<K>(&asked.user, verb, Some(&key.namespace), name).await
}

/// Returns the objects of all instances of a namespace. What cannot be decoded is left out, because nothing tells whose it is.
async fn in_namespace<K: InstanceRun>(asked: &RequestMeta, key: &Key) -> Result<Vec<K>, Problem> {
    let found = api::<Guard<K>>(asked, key).list(&ListParams::default()).await;
    let found = found.map_err(failed(format!("list {} in namespace {}", K::plural(&()), key.namespace)))?;
    Ok(found.items.into_iter().filter_map(|found| found.object.ok()).collect())
}

async fn of_instance<K: InstanceRun>(asked: &RequestMeta, key: &Key, name: &str) -> Result<Option<K>, Problem> {
    // A name that the API server would refuse must not become part of a URL path.
    let allowed = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit() || b"-.".contains(&c);
    if !name.bytes().all(allowed) || name.split('.').any(str::is_empty) {
        return Ok(None);
    }
    let found = api::<Guard<K>>(asked, key).get_opt(name).await;
    let found = found.map_err(failed(format!("get {} {}/{name}", K::kind(&()), key.namespace)))?;
    Ok(found.and_then(|found| found.object.ok()).filter(|found| *found.subject() == subject(key)))
}

fn api<K: Resource<DynamicType = (), Scope = NamespaceResourceScope>>(asked: &RequestMeta, key: &Key) -> Api<K> {
    Api::namespaced(asked.shared.parts.client.clone(), &key.namespace)
}

fn subject(key: &Key) -> BackupSubject {
    BackupSubject { kind: BackupSubjectKind::ClientApp, name: key.name.clone() }
}
