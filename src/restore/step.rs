//! Names the steps of a restore. Pure.

use k8s_openapi::api::batch::v1::Job;

use super::permission::Permission;
use crate::crd::{
    ClientApp, RestoreRequest,
    percona::{PerconaPGBackup, PerconaPGRestore},
};

/// Makes one object, or asks for it.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Takes the app's pods away.
    Stop(Box<ClientApp>),
    RequestRestore {
        postgresql: String,
        uid: Option<String>,
        request: Box<RestoreRequest>,
    },
    CreateBackup(Box<PerconaPGBackup>),
    CreateRestore(Box<PerconaPGRestore>),
    CreateJob(Box<Job>),
    CreateApp(Box<ClientApp>),
    /// Creates the Secret with another app's administrator, who is that of the first.
    CopyAdministrator {
        of: Box<ClientApp>,
        to: Box<ClientApp>,
    },
    /// Lets an app that was created suspended go on.
    Resume(Box<ClientApp>),
    /// Lets a Postgresql read dumps.
    Permit(Permission),
}

/// The restore itself.
#[derive(Clone, Copy, Debug)]
pub(super) struct Me<'a> {
    pub uid: &'a str,
    pub name: &'a str,
}
