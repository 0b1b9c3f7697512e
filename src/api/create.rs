//! How an instance is made: namespace and what is in it from the beginning, ClientApp, Secret, in this order, and all of them or none.
//!
//! Every object's creation is an atomic decision of the API server, so that any number of requests and replicas may meet at
//! the same names: the request that creates the ClientApp has made the instance, and all others are told so. Whatever can be refused is
//! looked at before, and undone is only what this very request has made. What adopts data has made the instance with its
//! ClientApp: the Secret is the retained one, and the controller's to adopt.

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
    idempotency::{Match, Stamp},
    names,
    problem::Problem,
    refusal::{SOON, of_request, refused},
    shared::Shared,
};
use crate::{
    clientapp::{
        build::secrets::{self, ADMIN_PASSWORD},
        desired::{StoredProfile, desired},
        error::InvalidSpec,
        namespace::{self, Outcome},
    },
    crd::{ClientApp, Guard, Profile, ProfileNamespace, annotation, label},
    runtime::{
        api::create_if_absent,
        key::{Key, is_label},
    },
};

/// Generated names that are tried before giving up; each one is taken with a chance of one in billions.
const ATTEMPTS: u32 = 8;
/// The watch shows a new object within milliseconds; a client that is answered later than this may not see it in a list yet.
const SEEN_WITHIN: Duration = Duration::from_secs(2);

pub(crate) struct Request {
    pub(crate) instance: NewInstance,
    /// Where it may be repeated.
    pub(crate) stamp: Option<Stamp>,
}

/// 201 for what is made now, 200 for what an earlier attempt of the same request has made.
pub(crate) type Answer = (StatusCode, Created);

/// Why one attempt at a name made nothing.
#[derive(derive_more::From)]
enum Failure {
    /// Another object has the name: where it was generated, another name may do.
    NameTaken(Problem),
    /// No other name would help.
    #[from]
    Refused(Problem),
}

/// Makes an instance, or finds the one that an earlier attempt of the request made.
/// Every reason why there is none; then nothing of it is left in the cluster, or the log says what.
pub(crate) async fn create(shared: &Shared, request: &Request) -> Result<Answer, Problem> {
    let Request { instance, stamp } = request;
    shared.instances.synced()?;
    check_places(shared, instance)?;
    let profile = profile(shared, instance.profile.as_deref()).await?;
    check_spec(shared, instance, &request.key(0), profile.as_ref())?;

    let in_progress = || {
        let detail = "a request with this Idempotency-Key is being carried out; repeat it to see what came of it";
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
            "spec.hostname: hostname {} belongs to another instance: choose another, or delete that one and wait until it is gone",
            instance.hostname
        );
        Problem::new(StatusCode::CONFLICT, "HostnameConflict", detail).about("hostname")
    };
    // Held until the watch shows the instance, so that there is no moment at which the hostname looks free.
    let _hostname = shared.reservations.take(format!("hostname {}", instance.hostname)).ok_or_else(conflict)?;
    if let Some((_, holder)) = shared.instances.with_hostname(&instance.hostname).first() {
        return match stamp {
            // Another replica has made it since the question above.
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
            Err(Failure::NameTaken(_)) if instance.name.is_none() => {}
            Err(Failure::NameTaken(problem) | Failure::Refused(problem)) => return Err(problem),
        }
    }
    let detail = "no free name was found; try again, or choose one";
    Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "NoFreeName", detail).retry_after(SOON))
}

impl Request {
    /// Whether it goes on with what an earlier instance of its name has left.
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

fn failed(operation: String) -> impl FnOnce(kube::Error) -> Problem {
    move |error| refused(&operation, &error)
}

/// Namespaces in which no instance is made.
fn check_places(shared: &Shared, instance: &NewInstance) -> Result<(), Problem> {
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
        let problem = format!("no instance is made in namespace {namespace}, which the cluster needs: choose another");
        return refused("NamespaceReserved", &problem);
    }
    Ok(())
}

async fn profile(shared: &Shared, name: Option<&str>) -> Result<Option<StoredProfile>, Problem> {
    let Some(name) = name else { return Ok(None) };
    // What cannot be a name is not stored under it either, and must not become part of a path.
    if !name.split('.').all(is_label) {
        return Ok(None);
    }
    let found = Api::<Guard<Profile>>::all(shared.parts.client.clone()).get_opt(name).await;
    let found = found.map_err(|error| refused(&format!("get Profile {name}"), &error))?;
    Ok(found.map(|profile| profile.object.map(|profile| profile.spec)))
}

/// The controller's own judgement, in its own words.
fn check_spec(
    shared: &Shared,
    instance: &NewInstance,
    key: &Key,
    profile: Option<&StoredProfile>,
) -> Result<(), Problem> {
    let app = app(instance, key)?;
    desired(&app, profile, &shared.parts.config).map(|_| ()).map_err(|error: InvalidSpec| {
        Problem::new(StatusCode::UNPROCESSABLE_ENTITY, error.reason.as_str(), error.to_string())
            .about(of_request(error.field))
    })
}

fn app(instance: &NewInstance, key: &Key) -> Result<ClientApp, Problem> {
    let unfit = |error| Problem::new(StatusCode::UNPROCESSABLE_ENTITY, "InvalidSpec", format!("{error}"));
    instance.app(key).map_err(unfit)
}

fn replay(stamp: &Stamp, found: Option<&Stamp>, instance: &Instance) -> Result<Answer, Problem> {
    if stamp.compare(found) != Match::Same {
        return Err(reused());
    }
    if instance.deleting {
        let detail = format!(
            "instance {}/{}, which this request has made, is being deleted: repeat it when that is gone",
            instance.namespace, instance.name
        );
        return Err(Problem::new(StatusCode::CONFLICT, "InProgress", detail).retry_after(SOON));
    }
    Ok((StatusCode::OK, Created::of(instance, None)))
}

fn reused() -> Problem {
    let detail = "Idempotency-Key: was used for another request already: take a new key for a new request";
    Problem::new(StatusCode::CONFLICT, "IdempotencyKeyReused", detail).about("Idempotency-Key")
}

async fn make(shared: &Shared, request: &Request, key: &Key, asked: &ProfileNamespace) -> Result<Answer, Failure> {
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
            // An earlier attempt may have ended before it came to this.
            if by_api {
                surroundings::make(shared, key, asked).await?;
            }
            let answer = make_in(shared, request, key).await?;
            is_not_going(shared, &key.namespace).await?;
            Ok(answer)
        }
    }
}

/// The namespace that an instance is made in.
enum Space {
    /// By this very request.
    Made { uid: String },
    /// It was there: made for an instance of this name, such as by an earlier attempt of the request; or for another, or given to
    /// the operator by its owner.
    Found { by_api: bool },
}

/// What a namespace that was there has of this name already: an instance that is the answer, or a reason against one.
async fn in_the_way(shared: &Shared, request: &Request, key: &Key) -> Result<Option<Answer>, Failure> {
    // The Secret is made after its ClientApp: what is there now, and is of an instance, has one by the next question.
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
        "metadata.name: an earlier instance {key} has left its data: set postgres.adopt to true to go on with them, or choose another name"
    );
    Problem::new(StatusCode::CONFLICT, "DataRetained", detail).about("name")
}

fn secret_not_ours(key: &Key) -> Problem {
    let detail = format!(
        "metadata.name: Secret {}/{} belongs to something else: choose another name, or remove it",
        key.namespace,
        key.admin_secret()
    );
    Problem::new(StatusCode::CONFLICT, "SecretNotOurs", detail).about("name")
}

/// Makes the namespace, or finds one of ours there.
async fn space(shared: &Shared, request: &Request, key: &Key, asked: &ProfileNamespace) -> Result<Space, Failure> {
    let namespaces = Api::<Namespace>::all(shared.parts.client.clone());
    let name = key.namespace.as_str();
    let fresh = surroundings::namespace(request, key, asked);
    let made = create_if_absent(&namespaces, None, &fresh).await;
    if let Some(made) = made.map_err(failed(format!("create Namespace {name}")))? {
        return Ok(Space::Made { uid: made.uid().unwrap_or_default() });
    }
    let found = namespaces.get(name).await.map_err(failed(format!("get Namespace {name}")))?;
    let stamped = Stamp::on(found.metadata.annotations.as_ref());
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
        // A namespace that was asked for stays the one that was asked for.
        return Err(if generated { Failure::NameTaken(problem) } else { Failure::Refused(problem) });
    }
    if found.metadata.deletion_timestamp.is_some() {
        return Err(terminating(name).into());
    }
    if earlier == Match::Reused && generated {
        return Err(reused().into());
    }
    Ok(Space::Found { by_api: found.labels().get(label::INSTANCE) == Some(&key.name) })
}

async fn make_in(shared: &Shared, request: &Request, key: &Key) -> Result<Answer, Failure> {
    let mut app = app(&request.instance, key)?;
    app.metadata.annotations = request.stamp.as_ref().map(Stamp::annotations);
    let apps = Api::<ClientApp>::namespaced(shared.parts.client.clone(), &key.namespace);
    let made = create_if_absent(&apps, None, &app).await;
    let Some(made) = made.map_err(failed(format!("create ClientApp {key}")))? else {
        let apps = Api::<Guard<ClientApp>>::namespaced(shared.parts.client.clone(), &key.namespace);
        let found = apps.get(&key.name).await.map_err(failed(format!("get ClientApp {key}")))?;
        return earlier(request, key, &found);
    };
    let uid = made.uid().unwrap_or_default();
    let admin_password = match request.adopts() {
        // Whatever a request may do to it later, nothing that was retained depends on it: there is nothing to be undone.
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

/// Another request that has made the namespace, or the end of the instance before, may have deleted it, since there was nothing in it
/// when it looked.
async fn is_not_going(shared: &Shared, name: &str) -> Result<(), Problem> {
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

/// Takes a ClientApp away that this call has made and that adopts nothing: nothing that was there before is its own.
async fn undo_app(shared: &Shared, key: &Key, uid: &str, problem: &Problem) {
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

fn earlier(request: &Request, key: &Key, found: &Guard<ClientApp>) -> Result<Answer, Failure> {
    let stamped = Stamp::on(found.metadata.annotations.as_ref());
    match &request.stamp {
        Some(stamp) if stamp.compare(stamped.as_ref()) != Match::Other => {
            Ok(replay(stamp, stamped.as_ref(), &Instance::of(found))?)
        }
        _ => {
            let detail = format!("metadata.name: there is an instance {key} already: choose another name, or none");
            Err(Failure::NameTaken(Problem::new(StatusCode::CONFLICT, "NameTaken", detail).about("name")))
        }
    }
}

/// The administrator's password as it is in the cluster: the controller may have been faster in making one.
async fn password(shared: &Shared, key: &Key, uid: &str) -> Result<String, Problem> {
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
        let detail = format!("Secret {}/{name} has no readable {ADMIN_PASSWORD}", key.namespace);
        Problem::new(StatusCode::CONFLICT, "AdminSecretKeyMissing", detail)
    })
}

/// Takes a namespace away that this call has made for an instance which was not, unless there is something in it.
async fn undo_namespace(shared: &Shared, name: &str, uid: &str) {
    match namespace::undo(&shared.parts.client, name, uid).await {
        Ok(Outcome::Deleting) => {
            tracing::info!(namespace = name, "deleted the namespace that this request had created")
        }
        Ok(outcome) => tracing::info!(namespace = name, ?outcome, "the namespace stays"),
        Err(error) => {
            tracing::warn!(namespace = name, %error, "could not delete the namespace that this request had created")
        }
    }
}

/// Deletes this object and no successor of its name.
pub(crate) fn only(uid: &str) -> DeleteParams {
    let uid = Preconditions { uid: Some(uid.to_owned()), ..Preconditions::default() };
    DeleteParams::default().preconditions(uid)
}

#[cfg(test)]
mod tests;
