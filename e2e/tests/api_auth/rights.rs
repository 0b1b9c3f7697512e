//! What a user may do: what the cluster's Roles say, in one namespace and not in another.
