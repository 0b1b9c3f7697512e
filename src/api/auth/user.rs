//! The users who send requests. **Pure.**

use std::collections::BTreeMap;

/// The user who sends a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    /// As known to the cluster; `anonymous` without authentication.
    pub name: String,
    /// Their groups in the cluster.
    pub groups: Vec<String>,
    /// Their uid in the cluster.
    pub uid: Option<String>,
    /// Other attributes known to the cluster, such as the pod that a token is bound to.
    pub extra: BTreeMap<String, Vec<String>>,
}
