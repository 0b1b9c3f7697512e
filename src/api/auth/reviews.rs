//! TokenReviews identify the user of a token; SubjectAccessReviews decide what the user may do.

use std::{borrow::Cow, net::IpAddr, sync::Arc, time::Duration};

use axum::http::StatusCode;
use k8s_openapi::api::{
    authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus},
    authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec},
};
use kube::{Api, Client, Resource, api::PostParams};
use moka::future::Cache;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};

use super::user::User;
use crate::{
    api::{
        limits::{Limit, for_unauthenticated, network},
        problem::Problem,
    },
    crd::ClientApp,
};

/// How long a positive answer is cached: the longest that a revoked right lasts, and short enough to still spare the API server.
const KEEP: Duration = Duration::from_secs(10);
/// More users and questions than come up within that time.
const CAPACITY: u64 = 4096;
/// Timeout of a review.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Retry-After in seconds when the cluster did not respond.
const RETRY: u64 = 5;

/// Caches positive answers for a short time, and negative ones not at all. Concurrent requests with the same question share one
/// review.
pub(crate) struct Reviews {
    client: Client,
    audience: String,
    /// By SHA-256 of the token, so that no token is kept in memory.
    users: Cache<[u8; 32], User>,
    rights: Cache<ReviewKey, ()>,
    /// Limits requests without a known user, so that tokens cannot be guessed quickly.
    unauthenticated: Limit<IpAddr>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct ReviewKey {
    user: User,
    verb: &'static str,
    /// Of the operator's own group.
    resource: Cow<'static, str>,
    namespace: Option<String>,
    name: Option<String>,
}

impl Reviews {
    pub(super) fn new(client: Client, audience: String) -> Reviews {
        let users = Cache::builder().time_to_live(KEEP).max_capacity(CAPACITY).build();
        let rights = Cache::builder().time_to_live(KEEP).max_capacity(CAPACITY).build();
        Reviews { client, audience, users, rights, unauthenticated: for_unauthenticated() }
    }

    pub(super) async fn user(&self, token: Option<&str>, peer: IpAddr) -> Result<User, Problem> {
        let Some(token) = token else {
            self.unauthenticated.check(&network(peer))?;
            return Err(unauthorized("This request has no token.", &self.audience));
        };
        let ask = async {
            self.unauthenticated.check(&network(peer))?;
            let spec = TokenReviewSpec { token: Some(token.to_owned()), audiences: Some(vec![self.audience.clone()]) };
            let review = TokenReview { spec, ..TokenReview::default() };
            identified(self.asked(&review).await?.status, &self.audience)
        };
        self.users.try_get_with(Sha256::digest(token).into(), ask).await.map_err(Arc::unwrap_or_clone)
    }

    pub(super) async fn allow<K: Resource<DynamicType = ()>>(
        &self,
        user: &User,
        verb: &'static str,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> Result<(), Problem> {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        let (resource, namespace, name) = (K::plural(&()), owned(namespace), owned(name));
        let question = ReviewKey { user: user.clone(), verb, resource, namespace, name };
        let ask = async {
            let review = SubjectAccessReview { spec: question.spec(), ..SubjectAccessReview::default() };
            let status = self.asked(&review).await?.status.unwrap_or_default();
            let permits = status.allowed && status.denied != Some(true);
            if permits { Ok(()) } else { Err(question.forbidden()) }
        };
        self.rights.try_get_with_by_ref(&question, ask).await.map_err(Arc::unwrap_or_clone)
    }

    /// Creates a review and returns the answer.
    async fn asked<K>(&self, review: &K) -> Result<K, Problem>
    where
        K: Resource<DynamicType = ()> + Clone + Serialize + DeserializeOwned + std::fmt::Debug,
    {
        let (reviews, options) = (Api::<K>::all(self.client.clone()), PostParams::default());
        let error = match tokio::time::timeout(TIMEOUT, reviews.create(&options, review)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(kube::Error::Api(status))) if status.code == 403 => {
                format!("{}; manifests/components/api grants it", status.message)
            }
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no answer within {TIMEOUT:?}"),
        };
        let kind = K::kind(&());
        tracing::warn!("no user can be authorized without a {kind}: {error}");
        let detail = format!(
            "The cluster's API server does not answer a {kind}, so the request cannot be authorized. Try again."
        );
        Err(Problem::new(StatusCode::SERVICE_UNAVAILABLE, "ApiUnavailable", detail).retry_after(RETRY))
    }
}

impl ReviewKey {
    fn spec(&self) -> SubjectAccessReviewSpec {
        let User { name, groups, uid, extra } = self.user.clone();
        SubjectAccessReviewSpec {
            user: Some(name),
            groups: Some(groups),
            uid,
            extra: Some(extra),
            resource_attributes: Some(ResourceAttributes {
                verb: Some(self.verb.to_owned()),
                group: Some(ClientApp::group(&()).into_owned()),
                version: Some(ClientApp::version(&()).into_owned()),
                resource: Some(self.resource.to_string()),
                namespace: self.namespace.clone(),
                name: self.name.clone(),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        }
    }

    /// In the words of `kubectl`.
    fn forbidden(&self) -> Problem {
        let (resource, group) = (&self.resource, ClientApp::group(&()));
        let object = self.name.as_ref().map(|name| format!(" \"{name}\"")).unwrap_or_default();
        let place = match &self.namespace {
            Some(namespace) => format!("in the namespace \"{namespace}\""),
            None => "at the cluster scope".to_owned(),
        };
        let detail = format!(
            "{resource}.{group}{object} is forbidden: User \"{}\" cannot {} resource \"{resource}\" in API group \
             \"{group}\" {place}",
            self.user.name, self.verb
        );
        Problem::new(StatusCode::FORBIDDEN, "Forbidden", detail)
    }
}

/// The user of a token. Only a server that supports audiences reports which ones it has checked.
fn identified(status: Option<TokenReviewStatus>, audience: &str) -> Result<User, Problem> {
    let status = status.unwrap_or_default();
    let user = status.user.unwrap_or_default();
    let name = user.username.unwrap_or_default();
    let ours = status.audiences.is_some_and(|audiences| audiences.iter().any(|found| found == audience));
    if status.authenticated != Some(true) || !ours || name.is_empty() {
        tracing::info!(error = status.error, "a token was rejected");
        let problem = "The cluster does not accept this token: it is invalid, expired, or for another audience.";
        return Err(unauthorized(problem, audience));
    }
    let (groups, extra) = (user.groups.unwrap_or_default(), user.extra.unwrap_or_default());
    Ok(User { name, groups, uid: user.uid.filter(|uid| !uid.is_empty()), extra })
}

fn unauthorized(problem: &str, audience: &str) -> Problem {
    let detail = format!(
        "{problem} Send `Authorization: Bearer TOKEN` with the output of `kubectl create token SERVICEACCOUNT --namespace \
         NAMESPACE --audience {audience}`."
    );
    Problem::new(StatusCode::UNAUTHORIZED, "Unauthorized", detail)
}

#[cfg(test)]
mod tests;
