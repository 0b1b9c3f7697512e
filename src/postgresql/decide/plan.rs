//! The steps to take now, and what the remaining steps wait for. **Pure.**

use crate::{
    crd::{PostgresqlRollout, Reason, StorePasswordSecret},
    postgresql::{objects::Object, observed::ObjectId},
};

/// The source of the password that is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PasswordOrigin {
    Generated,
    Spec,
    /// The Secret for clients, which still exists while the Secret it was made from is gone.
    ClientSecret,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum PostgresqlStep {
    /// Create the Secret with the password in use, unless it exists.
    KeepPassword(PasswordOrigin),
    /// Create the Secret with the standbys' password, unless it exists.
    CreateReplication,
    /// Create the Secret with the servers' certificate, unless it exists.
    CreateCertificate,
    ApplyClientSecret,
    /// Create this Secret with the password of the repository of dumps, unless it exists.
    CreateRepositoryPassword(StorePasswordSecret),
    /// Remove the owner references and the labels of a retained object from a Secret.
    Settle {
        secret: String,
    },
    /// Create the claim for the database, unless it exists.
    CreateVolume(Object),
    /// Create the database, unless one is recorded by then.
    Initialize(Object),
    Grow {
        claim: String,
        to: String,
    },
    Apply(Object),
    /// Create a Job that is due. The database is no less ready if it is refused.
    CreateDue(Object),
    Delete {
        id: ObjectId,
        uid: String,
    },
    /// End a Job in which nothing runs.
    EndJob {
        job: String,
        uid: String,
        why: String,
        /// A pod that does not say why itself.
        pod: Option<String>,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PostgresqlHold {
    pub reason: Reason,
    /// One sentence: what is missing, on which object, what to do.
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct PostgresqlPlan {
    /// In order; the first failure ends them.
    pub steps: Vec<PostgresqlStep>,
    pub hold: Option<PostgresqlHold>,
    /// A restart that only another version of the operator asks for waits for the rollout slot, or for the standbys before it.
    pub awaits_turn: bool,
    /// Such restarts that begin now, or have begun. On record before any step.
    pub rollout: Option<PostgresqlRollout>,
}

impl PostgresqlHold {
    pub(crate) fn new(reason: Reason, message: impl Into<String>) -> PostgresqlHold {
        PostgresqlHold { reason, message: message.into() }
    }
}

impl PostgresqlPlan {
    pub(super) fn hold(&mut self, reason: Reason, message: String) {
        self.hold.get_or_insert(PostgresqlHold { reason, message });
    }

    pub(super) fn not_ours(&mut self, what: &str, owner: &str) {
        self.hold(
            Reason::NotOurs,
            format!(
                "{what} belongs to {owner} and is not touched: rename this Postgresql, or delete that object or hand it over"
            ),
        );
    }
}
