//! `restore --to`: creates another ClientApp from a backup of the first, which stays as it is.
//!
//! The API server is asked first, with dry runs, whether it would accept each step, so that a refusal leaves nothing behind.

mod rules;
mod spec;

use std::{collections::BTreeMap, fmt::Debug};

use k8s_openapi::{
    ByteString,
    api::core::v1::{PersistentVolumeClaim, Secret},
};
use kube::{
    Api, Resource, ResourceExt as _,
    api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams, PostParams},
    core::NamespaceResourceScope,
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::json;

use self::{
    rules::{Database, Holder, has_dump, what_remains},
    spec::{Names, Source, copied},
};
use super::{
    args,
    change::patch,
    dumps,
    error::{Error, described},
    files,
    password::Administrator,
    percona,
    restore::{has_database, there_are_dumps, wanted},
    session::{FIELD_MANAGER, Printer, Session, Stored, patching},
    wait,
};
use crate::{
    clientapp::spec::{
        database,
        secrets::{self, ADMIN_PASSWORD, ADMIN_USERNAME},
    },
    crd::{ClientApp, ClientAppSpec, PostgresProvider, Postgresql, Restore, decode_strictly, label},
    platform::key::Key,
};

pub(crate) async fn run(
    session: &Session,
    printer: &mut Printer,
    args: &args::Restore,
    other: &str,
) -> Result<(), Error> {
    let args::Restore { name, hostname, waiting, .. } = args;
    let hostname = hostname.as_deref().unwrap_or_default();
    if other == name {
        return Err(Error::Usage(format!("--to {other} is the same ClientApp: to replace its database, omit --to")));
    }
    let stored = session.app(name).await?;
    if stored.app.metadata.deletion_timestamp.is_some() {
        return Err(Error::Stalled(format!("{name} is being deleted: nothing is created from its backups")));
    }
    if stored.app.spec.hostname == hostname {
        return Err(Error::Usage(format!("{hostname} is the hostname of {name}: choose another one for {other}")));
    }
    let source = source(session, args, &stored.app, other).await?;
    let archive = files::source(session, args, &stored.app).await?;
    let first = spec(session, &stored)?;
    let key = Key::new(&session.namespace, other);
    let names = Names { first: name, other };
    let replicas = first.replicas;
    // A user's own Secret serves both. The generated one vanishes with the first app, so the other gets a copy, because the restored
    // database knows no other password; it is made like a generated one, so that it is deleted or retained with its app.
    let credentials = match &first.admin_secret {
        Some(_) => None,
        None => Some(credentials(session, &stored.app).await?),
    };
    let secret = |uid: &str| {
        let data = credentials.clone()?;
        Some(Secret { data: Some(data), ..secrets::admin(&key, uid) })
    };
    let app = DynamicObject::new(other, &ApiResource::erase::<ClientApp>(&()))
        .within(&session.namespace)
        .data(json!({"spec": copied(first, names, hostname, &source)}));

    create_app(session, &app, true).await?;
    nothing_is_left(session, &key).await?;
    create_secret(session, secret(""), true).await?;
    for dry_run in [true, false] {
        permit(session, &source, archive.as_ref(), &key.database(), dry_run).await?;
    }
    let made = create_app(session, &app, false).await?;
    create_secret(session, secret(&made.object.uid().unwrap_or_default()), false).await?;
    let object = patch(session, &made, json!({"spec": {"suspend": false}})).await?;
    let from = match &source {
        Source::Dump(dump) => format!("from dump {} of {}", dump.from, dump.place()),
        Source::Cluster(_) => format!("from the backups of {name}, restored {}", state_of(args)),
    };
    let sentence = format!("clientapp/{other} gets its database {from}; {name} stays as it is");
    let filled = match &archive {
        Some(archive) => {
            printer.note(&sentence);
            files::fill(session, printer, other, archive, &args::Waiting { wait: true, ..waiting.clone() }).await
        }
        None => Ok(()),
    };
    let files = archive.as_ref().filter(|_| filled.is_ok()).map(files::Source::archive);
    let sentence = match files {
        Some(archive) => format!("clientapp/{other} has the files of archive {archive}"),
        None => sentence,
    };
    let ended = match filled {
        Ok(()) => wait::asked(session, printer, &object, &sentence, waiting, None).await,
        failed => failed,
    };
    let provider = database::provider(stored.app.spec.postgres.provider);
    let service = provider.map(|provider| provider.service(&key)).unwrap_or_default();
    let secret = credentials.is_some().then(|| key.admin_secret());
    let by_hooks = stored.app.spec.postgres.provider == PostgresProvider::Standalone;
    let database = Database { service: &service, by_hooks };
    printer.note(&what_remains(names, &session.flags, database, replicas, secret.as_deref(), files));
    ended
}

/// Returns the state to restore, worded as the end of a sentence.
fn state_of(args: &args::Restore) -> String {
    match (args.time, args.from.as_str()) {
        (Some(time), _) => format!("to its state at {time}"),
        (None, args::LATEST) => "to the newest archived state".to_owned(),
        (None, from) => format!("to its state in backup {from}"),
    }
}

/// What the new database is created from, or why there is nothing.
async fn source(session: &Session, args: &args::Restore, app: &ClientApp, other: &str) -> Result<Source, Error> {
    let name = &args.name;
    match (app.spec.postgres.enabled, app.spec.postgres.provider) {
        (false, _) => Err(Error::Missing(format!("{name} has no database, and so no backup to create {other} from"))),
        (true, PostgresProvider::External) => Err(Error::Missing(format!(
            "the operator makes no backups of the database of {name}, which it has not created: copy the database with its own tools, and create {other} with a Secret for the copy: {}",
            session.flags.command(format!(
                "kubectl clientapp create {other} --hostname {} --postgres-secret NAME",
                args.hostname.as_deref().unwrap_or("HOST")
            ))
        ))),
        (true, PostgresProvider::CloudNativePg) => Err(Error::Missing(format!(
            "the operator makes no backups of Clusters yet: create {other}, and copy the database of {name} with pg_dump, or CloudNativePG's own means"
        ))),
        (true, PostgresProvider::Percona) => percona::source(session, args).await.map(Source::Cluster),
        (true, PostgresProvider::Standalone) => {
            let wanted = wanted(session, args, app)?;
            let database = dumps::database(session, name).await?;
            has_dump(app, database.as_ref(), &wanted, &session.flags).map_err(Error::Stalled)?;
            there_are_dumps(session, name, database.as_ref(), &wanted).await?;
            Ok(Source::Dump(wanted))
        }
    }
}

/// The whole spec, as it is stored: a field that this version does not know would be missing in the other app.
fn spec(session: &Session, stored: &Stored) -> Result<ClientAppSpec, Error> {
    let what = described(&session.namespace, &stored.object.name_any());
    let (spec, unknown) = decode_strictly(&stored.object.data["spec"].to_string())
        .map_err(|problem| Error::Missing(format!("{what} does not decode: {problem}")))?;
    match unknown.is_empty() {
        true => Ok(spec),
        false => Err(Error::Missing(format!(
            "{what} has fields that this version of kubectl-clientapp does not know ({}): use the version of the operator",
            unknown.join(", ")
        ))),
    }
}

async fn credentials(session: &Session, app: &ClientApp) -> Result<BTreeMap<String, ByteString>, Error> {
    let administrator = Administrator::of(session, app).await?;
    let mut credentials = BTreeMap::new();
    for key in [ADMIN_USERNAME, ADMIN_PASSWORD] {
        credentials.insert(key.to_owned(), administrator.value(key)?.clone());
    }
    Ok(credentials)
}

async fn create_app(session: &Session, app: &DynamicObject, dry_run: bool) -> Result<Stored, Error> {
    let what = format!("create {}", described(&session.namespace, &app.name_any()));
    let made = create(&session.apps(), app, &what, dry_run).await?;
    Stored::read(made).map_err(|problem| Error::Missing(format!("{what}: {problem}")))
}

async fn create_secret(session: &Session, secret: Option<Secret>, dry_run: bool) -> Result<(), Error> {
    let Some(secret) = secret else { return Ok(()) };
    let what = format!("create Secret {}/{}", session.namespace, secret.name_any());
    create(&session.api(), &secret, &what, dry_run).await.map(drop)
}

async fn create<K>(api: &Api<K>, object: &K, what: &str, dry_run: bool) -> Result<K, Error>
where
    K: Clone + Debug + Serialize + DeserializeOwned,
{
    let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), dry_run };
    api.create(&params, object).await.map_err(Error::api(what))
}

/// Volumes of an earlier app of that name, which the operator would not touch.
async fn nothing_is_left(session: &Session, other: &Key) -> Result<(), Error> {
    let names = format!("{} in ({},{})", label::RETAINED_FROM, other.name, other.database());
    let left = session.api::<PersistentVolumeClaim>().list_metadata(&ListParams::default().labels(&names)).await;
    // A user who may not list volumes learns of them from the operator.
    match left.ok().and_then(|left| left.items.into_iter().next()) {
        None => Ok(()),
        Some(left) => Err(Error::Stalled(format!(
            "PersistentVolumeClaim {}/{} has data of an earlier ClientApp {}: choose another name, or delete that data",
            session.namespace,
            left.name_any(),
            other.name
        ))),
    }
}

/// Lets a Postgresql be created from the dumps. With `dry_run`, the API server is only asked whether the user may do so.
async fn permit(
    session: &Session,
    source: &Source,
    archive: Option<&files::Source>,
    postgresql: &str,
    dry_run: bool,
) -> Result<(), Error> {
    if let Some(archive) = archive {
        mark::<Secret>(session, ("secret", &archive.credentials), postgresql, dry_run).await?;
    }
    match source {
        Source::Dump(Restore { claim: Some(claim), .. }) => {
            mark::<PersistentVolumeClaim>(session, ("pvc", claim), postgresql, dry_run).await
        }
        Source::Dump(Restore { store: Some(store), .. }) => {
            mark::<Secret>(session, ("secret", &store.bucket.credentials_secret.name), postgresql, dry_run).await
        }
        // Percona's clusters are read without permission.
        Source::Dump(_) | Source::Cluster(_) => Ok(()),
    }
}

async fn mark<K>(
    session: &Session,
    (resource, name): (&str, &str),
    postgresql: &str,
    dry_run: bool,
) -> Result<(), Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let (api, namespace) = (session.api::<K>(), &session.namespace);
    let what = format!("label {} {namespace}/{name}", K::kind(&()));
    let found = api.get_metadata(name).await.map_err(Error::api(&what))?;
    let label = found.labels().get(label::RESTORE_TO).map(String::as_str);
    let marked = match label {
        None => None,
        Some(marked) => {
            let marked = session.api::<Postgresql>().get_opt(marked).await;
            marked.map_err(Error::api(format!("read the Postgresql for which {name} is labelled")))?
        }
    };
    let is_spent = marked.as_ref().is_some_and(has_database);
    let holder = Holder { resource, namespace, name, label, is_spent };
    if !holder.is_to_be_labelled(postgresql, &session.flags).map_err(Error::Stalled)? {
        return Ok(());
    }
    // Refused if another user has labelled it since.
    let patch = json!({"metadata": {
        "uid": found.uid(), "resourceVersion": found.resource_version(), "labels": {label::RESTORE_TO: postgresql},
    }});
    let params = PatchParams { dry_run, ..patching() };
    api.patch_metadata(name, &params, &Patch::Merge(&patch)).await.map(drop).map_err(Error::api(what))
}
