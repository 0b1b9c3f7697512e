//! Who may do what: the cluster's own answer.

use axum::http::HeaderMap;

use super::problem::Problem;

/// Who asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// As the cluster names them; `anonymous` without authentication.
    pub name: String,
    /// Their groups.
    pub groups: Vec<String>,
}

/// How users are known, and what they may do.
#[derive(Clone, Debug)]
pub enum Auth {
    /// Everybody who can reach the API may do everything; on a loopback address only.
    None,
}

impl Auth {
    /// Who asks.
    ///
    /// # Errors
    /// 401 without a token that the cluster accepts.
    pub async fn authenticate(&self, _headers: &HeaderMap) -> Result<User, Problem> {
        match self {
            Auth::None => Ok(User { name: "anonymous".to_owned(), groups: Vec::new() }),
        }
    }

    /// Whether the user may do this to ClientApps: `verb` as in RBAC, in one namespace or (`None`) in all, to one object
    /// or (`None`) to any.
    ///
    /// # Errors
    /// 403 where not.
    pub async fn allow(
        &self,
        _user: &User,
        _verb: &'static str,
        _namespace: Option<&str>,
        _name: Option<&str>,
    ) -> Result<(), Problem> {
        match self {
            Auth::None => Ok(()),
        }
    }
}
