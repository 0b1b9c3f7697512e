//! Which user may do what, as decided by the cluster.

mod reviews;
mod user;

use std::{net::IpAddr, sync::Arc};

use axum::http::{HeaderMap, header};
use kube::{Client, Resource};

use self::reviews::Reviews;
pub use self::user::User;
use super::problem::Problem;

/// How users are authenticated and authorized.
#[derive(Clone)]
pub(crate) enum Auth {
    /// Every client that can reach the API has all rights; only for loopback addresses.
    None,
    /// TokenReviews identify users, SubjectAccessReviews decide their rights.
    Token(Arc<Reviews>),
}

impl Auth {
    /// For tokens with this audience. The client needs the right to `create` TokenReviews and SubjectAccessReviews.
    pub(crate) fn by_token(client: Client, audience: String) -> Auth {
        Auth::Token(Arc::new(Reviews::new(client, audience)))
    }

    /// The user who sends a request from the address `peer`.
    /// 401 without a token that the cluster accepts, 429 after too many attempts from one address, 503 if the cluster does not respond.
    pub(crate) async fn authenticate(&self, headers: &HeaderMap, peer: IpAddr) -> Result<User, Problem> {
        match self {
            Auth::None => Ok(User { name: "anonymous".to_owned(), ..User::default() }),
            Auth::Token(reviews) => reviews.user(bearer(headers), peer).await,
        }
    }

    /// Asks whether the user may do this with objects of a kind: `verb` as in RBAC, in one namespace or (`None`) in all, on one object or
    /// (`None`) on any.
    /// 403 if not, 503 if the cluster does not respond.
    pub(crate) async fn allow<K: Resource<DynamicType = ()>>(
        &self,
        user: &User,
        verb: &'static str,
        namespace: Option<&str>,
        name: Option<&str>,
    ) -> Result<(), Problem> {
        match self {
            Auth::None => Ok(()),
            Auth::Token(reviews) => reviews.allow::<K>(user, verb, namespace, name).await,
        }
    }
}

/// The token of a request with exactly one Authorization header.
fn bearer(headers: &HeaderMap) -> Option<&str> {
    let mut values = headers.get_all(header::AUTHORIZATION).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let (scheme, token) = value.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_one_bearer_token() {
        let cases: &[(&[&str], Option<&str>)] = &[
            (&[], None),
            (&["Bearer a.b.c"], Some("a.b.c")),
            (&["bearer  a.b.c "], Some("a.b.c")),
            (&["Bearer"], None),
            (&["Bearer "], None),
            (&["Basic YTpi"], None),
            (&["a.b.c"], None),
            (&["Bearer a", "Bearer b"], None),
        ];
        for (values, token) in cases {
            let headers = values.iter().map(|value| (header::AUTHORIZATION, value.parse().unwrap())).collect();
            assert_eq!(bearer(&headers), *token, "{values:?}");
        }
    }
}
