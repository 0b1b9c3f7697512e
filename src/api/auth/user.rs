//! Who makes requests. **Pure.**

use std::collections::BTreeMap;

/// The user who makes a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    /// As the cluster names them; `anonymous` without authentication.
    pub name: String,
    /// Their groups.
    pub groups: Vec<String>,
    /// The cluster's id of them.
    pub uid: Option<String>,
    /// What else the cluster knows of them, such as the pod that a token is bound to.
    pub extra: BTreeMap<String, Vec<String>>,
}
