//! Creates an instance: its namespace with initial objects, the ClientApp, and its Secret, in this order, and all of them or none.
//!
//! Each create is an atomic decision of the API server, so requests and replicas can compete for the same names: the request that
//! creates the ClientApp has created the instance, and all others learn that the name is taken. Reasons for a refusal are checked
//! first, and a request undoes only what it has created itself. With adoption, the ClientApp completes the instance: the Secret is the
//! retained one, which the controller adopts.

mod surroundings;

use std::time::Duration;

use axum::http::StatusCode;
use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::{
    Api, ResourceExt as _,
    api::{DeleteParams, Preconditions},
};

use super::{
    dto::{Created, Instance, NewInstance},
    idempotency::{Match, RequestStamp},
    names,
    problem::Problem,
    refusal::{SOON, failed, of_request, refused},
    shared::ApiState,
};
use crate::{
    clientapp::{
        error::InvalidSpec,
        spec::{
            desired::{StoredProfile, desired},
            secrets::{self, ADMIN_PASSWORD},
            values_from::Sources,
        },
        teardown::namespace::{self, NamespaceOutcome},
    },
    crd::{ClientApp, Guard, Profile, ProfileNamespace, annotation, label},
    platform::{
        api::create_if_absent,
        key::{Key, is_label},
    },
};

/// Generated names to try; the chance that one is taken is one in billions.
const ATTEMPTS: u32 = 8;
/// The watch shows a new object within milliseconds. A client that is answered after this timeout may not find it in a list yet.
const SEEN_WITHIN: Duration = Duration::from_secs(2);

pub(crate) struct Request {
    pub(crate) instance: NewInstance,
    /// Present if the request has an Idempotency-Key.
    pub(crate) stamp: Option<RequestStamp>,
}

/// 201 for a new instance, 200 if an earlier attempt of the same request has created it.
pub(crate) type Creation = (StatusCode, Created);

/// Says why an attempt with one name failed.
#[derive(derive_more::From)]
enum CreateError {
    /// Another object has the name; a generated name is replaced by another.
    NameTaken(Problem),
    /// No other name would help.
    #[from]
    Refused(Problem),
}

/// Refuses a request that can never be met. Returns its Profile.
pub(crate) async fn check(shared: &ApiState, request: &Request) -> Result<Option<StoredProfile>, Problem> {
    let Request { instance, .. } = request;
    shared.instances.synced()?;
    check_places(shared, instance)?;
    let profile = profile(shared, instance.profile.as_deref()).await?;
    check_spec(shared, instance, &request.key(0), profile.as_ref())?;
    Ok(profile)
}

/// Creates an instance, or finds the one that an earlier attempt of the request has created. The request was [`check`]ed.
/// If it fails, nothing is left in the cluster, or the log says what.
pub(crate) async fn create(
    shared: &ApiState,
    request: &Request,
    profile: Option<StoredProfile>,
) -> Result<Creation, Problem> {
    let Request { instance, stamp } = request;
    let in_progress = || {
        let detail = "a request with this Idempotency-Key is in progress; repeat it to get its result";
        Problem::new(StatusCode::CONFLICT, "InProgress", detail).retry_after(1)
    };
    let of_key = stamp.as_ref().map(|stamp| shared.reservations.take(format!("key {}", stamp.key)));
    let _key = of_key.map(|taken| taken.ok_or_else(in_progress)).transpose()?;
    if let Some(stamp) = stamp
        && let Some(shown) = shared.instances.stamped(stamp)
    {
        return replay(stamp, shown.stamp.as_ref(), &shown.instance);
    }
    let conflict = || {
        let detail = format!(
            "spec.hostname: hostname {} belongs to another instance: choose another, or delete that instance and wait until it is gone",
            instance.hostname
        );
        Problem::new(StatusCode::CONFLICT, "HostnameConflict", detail).about("hostname")
    };
    // Held until the watch shows the instance, so the hostname never looks free in between.
    let _hostname = shared.reservations.take(format!("hostname {}", instance.hostname)).ok_or_else(conflict)?;
    if let Some((_, holder)) = shared.instances.with_hostname(&instance.hostname).first() {
        return match stamp {
            // Another replica has created it since the check above.
            Some(stamp) if stamp.compare(holder.stamp.as_ref()) == Match::Same => {
                replay(stamp, holder.stamp.as_ref(), &holder.instance)
            }
            _ => Err(conflict()),
        };
    }

    let asked = profile.and_then(Result::ok).map(|profile| profile.namespace).unwrap_or_default();
    for attempt in 0..ATTEMPTS {
        match make(shared, request, &request.key(attempt), &asked).await {
            Ok(answer) => return Ok(answer),
            Err(CreateError::NameTaken(_)) if instance.name.is_none() => {}
            Err(CreateError::NameTaken(problem) | CreateError::Refused(problem)) => return Err(problem),
        }
    }
    let detail = "no free name was found; try again, or choose a name";
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "NoFreeName", detail).retry_after(SOON))
}

impl Request {
    /// Returns true if it adopts data that an earlier instance of its name has left.
    fn adopts(&self) -> bool {
        self.instance.postgres.as_ref().is_some_and(|postgres| postgres.adopt)
    }

    fn key(&self, attempt: u32) -> Key {
        let name = match (&self.instance.name, &self.stamp) {
            (Some(name), _) => name.clone(),
            (None, Some(stamp)) => stamp.name(attempt),
            (None, None) => names::random(),
        };
        Key::new(self.instance.namespace.clone().unwrap_or_else(|| name.clone()), name)
    }
}

/// Namespaces in which no instance may be created.
fn check_places(shared: &ApiState, instance: &NewInstance) -> Result<(), Problem> {
    let (field, namespace) = match (&instance.namespace, &instance.name) {
        (Some(namespace), _) => ("namespace", namespace),
        (None, Some(name)) => ("name", name),
        (None, None) => return Ok(()),
    };
    let refused = |reason, problem: &str| {
        let detail = format!("metadata.{field}: {problem}");
        Err(Problem::new(StatusCode::UNPROCESSABLE_ENTITY, reason, detail).about(field))
    };
    if field == "namespace" && !is_label(namespace) {
        let problem = "must be a DNS label: lower-case letters, digits and '-', at most 63 characters";
        return refused("InvalidSpec", problem);
    }
    if namespace == "default" || namespace.starts_with("kube-") || *namespace == shared.parts.namespace {
        let problem = format!("namespace {namespace} is reserved, so no instance can be created in it: choose another");
        return refused("NamespaceReserved", &problem);
    }
    Ok(())
}

async fn profile(shared: &ApiState, name: Option<&str>) -> Result<Option<StoredProfile>, Problem> {
    let Some(name) = name else { return Ok(None) };
    // A name that the API server would refuse must not become part of a URL path.
    if !name.split('.').all(is_label) {
        return Ok(None);
    }
    let found = Api::<Guard<Profile>>::all(shared.parts.client.clone()).get_opt(name).await;
    let found = found.map_err(|error| refused(&format!("get Profile {name}"), &error))?;
    Ok(found.map(|profile| profile.object.map(|profile| profile.spec)))
}

/// The controller's own validation, with its messages.
fn check_spec(
    shared: &ApiState,
    instance: &NewInstance,
    key: &Key,
    profile: Option<&StoredProfile>,
) -> Result<(), Problem> {
    let app = app(instance, key)?;
    desired(&app, profile, (&Sources::default(), &[]), &shared.parts.config).map(|_| ()).map_err(
        |error: InvalidSpec| {
            Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error.reason.as_str(), error.to_string())
                .about(of_request(error.field))
        },
    )
}

fn app(instance: &NewInstance, key: &Key) -> Result<ClientApp, Problem> {
    let unfit = |error| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "InvalidSpec", format!("{error}"));
    instance.app(key).map_err(unfit)
}

fn replay(stamp: &RequestStamp, found: Option<&RequestStamp>, instance: &Instance) -> Result<Creation, Problem> {
    if stamp.compare(found) != Match::Same {
        return Err(reused());
    }
    if instance.deleting {
        let detail = format!(
            "instance {}/{}, which this request has created, is being deleted: repeat the request once it is gone",
            instance.namespace, instance.name
        );
        return Err(Problem::new(StatusCode::CONFLICT, "InProgress", detail).retry_after(SOON));
    }
    Ok((StatusCode::OK, Created::of(instance, None)))
}

pub(crate) fn reused() -> Problem {
    let detail = "Idempotency-Key: was already used for a different request: use a new key for a new request";
    Problem::new(StatusCode::CONFLICT, "IdempotencyKeyReused", detail).about("Idempotency-Key")
}

async fn make(
    shared: &ApiState,
    request: &Request,
    key: &Key,
    asked: &ProfileNamespace,
) -> Result<Creation, CreateError> {
    match space(shared, request, key, asked).await? {
        Space::Made { uid } => {
            let made = async {
                surroundings::make(shared, key, asked).await?;
                make_in(shared, request, key).await
            };
            let made = made.await;
            if made.is_err() {
                undo_namespace(shared, &key.namespace, &uid).await;
            }
            made
        }
        Space::Found { by_api } => {
            if let Some(answer) = in_the_way(shared, request, key).await? {
                return Ok(answer);
            }
            // An earlier attempt may have ended before this step.
            if by_api {
                surroundings::make(shared, key, asked).await?;
            }
            let answer = make_in(shared, request, key).await?;
            is_not_going(shared, &key.namespace).await?;
            Ok(answer)
        }
    }
}

/// The namespace of an instance.
enum Space {
    /// Created by this request.
    Made { uid: String },
    /// It existed. `by_api` if it was created for an instance of this name, such as by an earlier attempt of the request; otherwise it
    /// was created for another instance, or its owner has labelled it for the operator.
    Found { by_api: bool },
}

/// Checks an existing namespace for objects of this name: returns the instance if this request has created it, or refuses.
async fn in_the_way(shared: &ApiState, request: &Request, key: &Key) -> Result<Option<Creation>, CreateError> {
    // Read before the ClientApp: a Secret is created after its ClientApp, so the Secret of an instance always has one by then.
    let name = key.admin_secret();
    let secrets = Api::<Secret>::namespaced(shared.parts.client.clone(), &key.namespace);
    let secret = secrets.get_metadata_opt(&name).await;
    let secret = secret.map_err(failed(format!("get Secret {}/{name}", key.namespace)))?;
    let apps = Api::<Guard<ClientApp>>::namespaced(shared.parts.client.clone(), &key.namespace);
    if let Some(app) = apps.get_opt(&key.name).await.map_err(failed(format!("get ClientApp {key}")))? {
        return earlier(request, key, &app).map(Some);
    }
    match secret.map(|secret| secret.labels().get(label::RETAINED_FROM) == Some(&key.name)) {
        None => Ok(None),
        Some(true) if request.adopts() => Ok(None),
        Some(true) => Err(data_retained(key).into()),
        Some(false) => Err(secret_not_ours(key).into()),
    }
}

fn data_retained(key: &Key) -> Problem {
    let detail = format!(
        "metadata.name: an earlier instance {key} has left its data: set postgres.adopt to true to adopt it, or choose another name"
    );
    Problem::new(StatusCode::CONFLICT, "DataRetained", detail).about("name")
}

fn secret_not_ours(key: &Key) -> Problem {
    let detail = format!(
        "metadata.name: Secret {}/{} belongs to another object: choose another name, or remove the Secret",
        key.namespace,
        key.admin_secret()
    );
    Problem::new(StatusCode::CONFLICT, "SecretNotOurs", detail).about("name")
}

/// Creates the namespace, or finds an existing one that the operator may use.
async fn space(
    shared: &ApiState,
    request: &Request,
    key: &Key,
    asked: &ProfileNamespace,
) -> Result<Space, CreateError> {
    let namespaces = Api::<Namespace>::all(shared.parts.client.clone());
    let name = key.namespace.as_str();
    let fresh = surroundings::namespace(request.stamp.as_ref(), key, asked);
    let made = create_if_absent(&namespaces, None, &fresh).await;
    if let Some(made) = made.map_err(failed(format!("create Namespace {name}")))? {
        return Ok(Space::Made { uid: made.uid().unwrap_or_default() });
    }
    let found = namespaces.get(name).await.map_err(failed(format!("get Namespace {name}")))?;
    let stamped = RequestStamp::on(found.metadata.annotations.as_ref());
    let ours = found.labels().get(label::MANAGED_BY).is_some_and(|by| by == label::OPERATOR);
    let generated = request.instance.name.is_none() && request.instance.namespace.is_none();
    let earlier = request.stamp.as_ref().map_or(Match::Other, |stamp| stamp.compare(stamped.as_ref()));
    if !ours || (generated && earlier == Match::Other) {
        let detail = format!(
            "metadata.namespace: namespace {name} was not made by this operator: choose another, or have its owner label it {}={}",
            label::MANAGED_BY,
            label::OPERATOR
        );
        let problem = Problem::new(StatusCode::CONFLICT, "NamespaceNotOurs", detail).about("namespace");
        // A namespace that the user has chosen is not replaced by another.
        return Err(if generated { CreateError::NameTaken(problem) } else { CreateError::Refused(problem) });
    }
    if found.metadata.deletion_timestamp.is_some() {
        return Err(terminating(name).into());
    }
    if earlier == Match::Reused && generated {
        return Err(reused().into());
    }
    Ok(Space::Found { by_api: found.labels().get(label::INSTANCE) == Some(&key.name) })
}

async fn make_in(shared: &ApiState, request: &Request, key: &Key) -> Result<Creation, CreateError> {
    let mut app = app(&request.instance, key)?;
    app.metadata.annotations = request.stamp.as_ref().map(RequestStamp::annotations);
    let apps = Api::<ClientApp>::namespaced(shared.parts.client.clone(), &key.namespace);
    let made = create_if_absent(&apps, None, &app).await;
    let Some(made) = made.map_err(failed(format!("create ClientApp {key}")))? else {
        let apps = Api::<Guard<ClientApp>>::namespaced(shared.parts.client.clone(), &key.namespace);
        let found = apps.get(&key.name).await.map_err(failed(format!("get ClientApp {key}")))?;
        return earlier(request, key, &found);
    };
    let uid = made.uid().unwrap_or_default();
    let admin_password = match request.adopts() {
        // Retained data does not depend on this request, so a later failure needs no undo.
        true => None,
        false => match password(shared, key, &uid).await {
            Ok(password) => Some(password),
            Err(problem) => {
                undo_app(shared, key, &uid, &problem).await;
                return Err(problem.into());
            }
        },
    };
    shared.instances.wait_for(key, &uid, SEEN_WITHIN).await;
    Ok((StatusCode::CREATED, Created::of(&Instance::of_app(&made.metadata, &made), admin_password)))
}

/// The namespace was empty when another request, or the teardown of an earlier instance, looked at it, and may have been deleted since.
async fn is_not_going(shared: &ApiState, name: &str) -> Result<(), Problem> {
    let found = Api::<Namespace>::all(shared.parts.client.clone()).get(name).await;
    match found.map_err(failed(format!("get Namespace {name}")))?.metadata.deletion_timestamp {
        None => Ok(()),
        Some(_) => Err(terminating(name)),
    }
}

fn terminating(namespace: &str) -> Problem {
    let detail = format!("metadata.namespace: namespace {namespace} is being deleted: wait until it is gone");
    Problem::new(StatusCode::CONFLICT, "NamespaceTerminating", detail).about("namespace").retry_after(SOON)
}

/// Deletes a ClientApp that this request has created and that adopts nothing, so no existing data belongs to it.
async fn undo_app(shared: &ApiState, key: &Key, uid: &str, problem: &Problem) {
    let apps = Api::<Guard<ClientApp>>::namespaced(shared.parts.client.clone(), &key.namespace);
    #[expect(clippy::disallowed_methods, reason = "made by this very call; what it has is deleted by its controller")]
    let deleted = apps.delete(&key.name, &only(uid)).await;
    match deleted {
        Ok(_) => {
            tracing::info!(clientapp = %key, reason = problem.reason, "deleted the ClientApp that this request had created")
        }
        Err(error) => {
            tracing::warn!(clientapp = %key, %error, "could not delete the ClientApp that this request had created")
        }
    }
}

fn earlier(request: &Request, key: &Key, found: &Guard<ClientApp>) -> Result<Creation, CreateError> {
    let stamped = RequestStamp::on(found.metadata.annotations.as_ref());
    match &request.stamp {
        Some(stamp) if stamp.compare(stamped.as_ref()) != Match::Other => {
            Ok(replay(stamp, stamped.as_ref(), &Instance::of(found))?)
        }
        _ => {
            let detail = format!("metadata.name: instance {key} already exists: choose another name, or omit the name");
            Err(CreateError::NameTaken(Problem::new(StatusCode::CONFLICT, "NameTaken", detail).about("name")))
        }
    }
}

/// The administrator's password as stored in the cluster: the controller may have created the Secret first.
async fn password(shared: &ApiState, key: &Key, uid: &str) -> Result<String, Problem> {
    let name = key.admin_secret();
    let secrets = Api::<Secret>::namespaced(shared.parts.client.clone(), &key.namespace);
    let secret = secrets::admin(key, uid);
    let failed = |verb: &str, error| refused(&format!("{verb} Secret {}/{name}", key.namespace), &error);
    let made = create_if_absent(&secrets, None, &secret).await;
    let stored = match made.map_err(|error| failed("create", error))? {
        Some(_) => secret,
        None => {
            let found = secrets.get(&name).await.map_err(|error| failed("get", error))?;
            if found.annotations().get(annotation::OWNER_UID).map(String::as_str) != Some(uid) {
                return Err(secret_not_ours(key));
            }
            found
        }
    };
    let value = stored.data.and_then(|mut data| data.remove(ADMIN_PASSWORD));
    let text = value.and_then(|value| String::from_utf8(value.0).ok());
    text.ok_or_else(|| {
        let detail = format!("Secret {}/{name} has no readable key {ADMIN_PASSWORD}", key.namespace);
        Problem::new(StatusCode::CONFLICT, "AdminSecretKeyMissing", detail)
    })
}

/// Deletes a namespace that this request has created for an instance that failed, unless the namespace contains objects.
async fn undo_namespace(shared: &ApiState, name: &str, uid: &str) {
    match namespace::undo(&shared.parts.client, name, uid).await {
        Ok(NamespaceOutcome::Deleting) => {
            tracing::info!(namespace = name, "deleted the namespace that this request had created")
        }
        Ok(outcome) => tracing::info!(namespace = name, ?outcome, "the namespace is kept"),
        Err(error) => {
            tracing::warn!(namespace = name, %error, "could not delete the namespace that this request had created")
        }
    }
}

/// Deletes this object, and no later one of the same name.
pub(crate) fn only(uid: &str) -> DeleteParams {
    let uid = Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() };
    DeleteParams::default().preconditions(uid)
}

#[cfg(test)]
mod tests;
