//! The steps of a life. Pure.

use std::fmt;

use clientapp_crd::PostgresProvider;
use derive_more::Display;
use serde_json::{Value, json};

use crate::charts;

/// Of an app, or of a standalone database. There are only a few, so that names are reused.
pub type Name = &'static str;

/// The ClientApps of a life.
pub const APPS: [Name; 2] = ["acme", "beta"];
/// The Postgresql that serves no ClientApp.
pub const SOLO: Name = "solo";

/// One step, and what the next one waits for.
#[derive(Clone, Debug, Display, PartialEq)]
#[display("{step}{then}")]
pub struct Move {
    pub step: Step,
    pub then: Then,
}

/// Says what happens before the next step.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq)]
pub enum Then {
    /// Nothing: the operator is still busy with this one.
    #[display("")]
    AtOnce,
    /// The operator has seen it.
    #[display("; until seen")]
    Seen,
    /// The operator has nothing more to do.
    #[display("; until settled")]
    Settled,
}

/// An action of a user, a cluster admin or another client.
#[derive(Clone, Debug, Display, PartialEq)]
pub enum Step {
    /// Creates a ClientApp, like `kubectl create`.
    #[display("create ClientApp {_0}: {_1}")]
    Create(Name, Spec),
    /// Creates an instance with the HTTP API.
    #[display("POST /instances {_0} with its {_2:?} hostname: {_1}")]
    Post(Name, Spec, Hostname),
    #[display("edit ClientApp {_0}: {_1:?}")]
    Edit(Name, Edit),
    #[display("delete ClientApp {_0}, {_1:?}")]
    Delete(Name, Cascade),
    /// Deletes an instance with the HTTP API.
    #[display("DELETE /instances/{_0}")]
    HttpDelete(Name),
    /// Deletes a ClientApp and removes its finalizers by hand.
    #[display("delete ClientApp {_0} and remove its finalizers")]
    EditOutFinalizers(Name),
    /// Deletes an object of a ClientApp by hand.
    #[display("delete the {_1:?} of {_0} by hand")]
    Hand(Name, Part),
    /// Runs helm, as another client of the release.
    #[display("another client: helm {_1:?} {_0}")]
    Helm(Name, Helm),
    /// Creates an object that looks like the operator's, or has the name of one.
    #[display("plant a foreign {_1:?} beside {_0}")]
    Plant(Name, Plant),
    /// Writes the uids of all planted volumes and Secrets into the status of a ClientApp.
    #[display("write the planted objects into the status of ClientApp {_0}")]
    ForgeStatus(Name),
    /// Marks all planted volumes and Secrets with the uid of a ClientApp.
    #[display("mark the planted objects with the uid of ClientApp {_0}")]
    ForgeMarks(Name),
    /// Creates a Postgresql that serves no ClientApp.
    #[display("create Postgresql {SOLO}: {_0:?}")]
    CreateSolo(Solo),
    /// Changes the deletionPolicy of that Postgresql.
    #[display("edit Postgresql {SOLO}: {_0:?}")]
    FlipSolo(Policy),
    #[display("delete Postgresql {SOLO}, {_0:?}")]
    DeleteSolo(Cascade),
    /// Deletes the namespace with everything in it, waits, and recreates it.
    #[display("delete the namespace, wait, and recreate it")]
    DeleteNamespace,
}

/// `spec.deletionPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize)]
pub enum Policy {
    Delete,
    Retain,
}

/// The parts of a ClientApp's spec that matter here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// `None`: no database.
    pub provider: Option<PostgresProvider>,
    pub policy: Policy,
    /// Says whether it has the next patch version.
    pub is_upgraded: bool,
    pub is_persistent: bool,
    pub redis: bool,
    /// Says whether the administrator's Secret is created by hand before.
    pub given_secret: bool,
    /// Says whether the chart's claim has `helm.sh/resource-policy: keep`.
    pub keep: bool,
    /// Says whether it adopts the data of an earlier ClientApp.
    pub adopt: bool,
    /// Says whether the database is backed up before an upgrade.
    pub backup: bool,
}

/// The hostname in a request for an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostname {
    Own,
    /// The hostname of another ClientApp.
    Taken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// A value for the chart.
    Value(u32),
    /// The next patch version.
    Version,
    /// A larger database and a larger volume.
    Grow,
    /// So many pods.
    Scale(u8),
    /// Redis on or off.
    Redis(bool),
    /// No volume for files.
    NoPersistence,
    /// Another name for all objects of the release.
    Rename,
    /// A key that the operator computes.
    ReservedKey,
    /// A version that is not published.
    UnknownVersion,
    /// A version that does not render.
    Unrenderable,
    /// Values that are nested too deeply to be decoded.
    Undecodable,
    /// Reverts the four edits above.
    Mend,
    /// `spec.suspend`.
    Suspend(bool),
    /// `spec.deletionPolicy`.
    Policy(Policy),
    /// `spec.postgres.adopt`.
    Adopt,
}

/// The propagation policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cascade {
    Background,
    Foreground,
    Orphan,
}

/// An object of a ClientApp to delete by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    AdminSecret,
    RedisSecret,
    /// The PerconaPGCluster or Postgresql.
    Database,
    DatabaseVolume,
    /// The Secret with the database's credentials.
    DatabaseSecret,
    /// The volume with the app's files.
    Files,
    /// Helm's Secret of the latest revision.
    ReleaseSecret,
    Deployment,
}

/// An action of another client of a release.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helm {
    Install,
    /// With other values.
    Upgrade,
    Uninstall,
    UninstallKeepHistory,
}

/// An object of another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A claim with Helm's own marks of the release.
    ReleaseVolume,
    /// A claim with only the instance's label.
    InstanceVolume,
    /// A claim with the label that a ClientApp of this name retained it.
    RetainedVolume,
    /// A claim with the database's labels, of either provider.
    DatabaseVolume,
    /// A Secret with the operator's labels.
    LabelledSecret,
    /// A Secret with the name of the administrator's.
    AdminSecret,
    /// A PerconaPGCluster with the name of the app's; Percona creates its volumes and Secrets.
    Cluster,
    /// A Postgresql with the name of the app's.
    Postgresql,
    /// A backup of the PerconaPGCluster.
    Backup,
    /// An EndpointSlice that claims to belong to the database.
    EndpointSlice,
    /// An object of a kind that the operator does not know.
    Snapshot,
}

/// A Postgresql that serves no ClientApp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solo {
    pub policy: Policy,
    /// Says whether a last dump is taken.
    pub last_dump: bool,
    /// The number of servers.
    pub replicas: u8,
}

impl Spec {
    /// The `spec` of a ClientApp.
    pub fn document(&self, name: Name, hostname: &str) -> Value {
        let mut spec = json!({
            "hostname": hostname,
            "chartVersion": if self.is_upgraded { charts::PATCH } else { charts::DEFAULT },
            "deletionPolicy": self.policy,
            "redis": {"enabled": self.redis},
            "persistence": {"enabled": self.is_persistent},
            "postgres": self.postgres(name),
        });
        if self.given_secret {
            spec["adminSecret"] = json!(given_secret(name));
        }
        if !self.keep {
            spec["values"] = json!({"persistence": {"keep": false}});
        }
        if self.backup {
            spec["upgrade"] = json!({"backup": true});
        }
        spec
    }

    /// The body of a request to the HTTP API, which has no `deletionPolicy`.
    pub fn request(&self, name: Name, namespace: &str, hostname: &str) -> Value {
        json!({
            "name": name,
            "namespace": namespace,
            "hostname": hostname,
            "redis": {"enabled": self.redis},
            "persistence": {"enabled": true},
            "postgres": self.postgres(name),
        })
    }

    fn postgres(&self, name: Name) -> Value {
        let mut postgres = match self.provider {
            None => json!({"enabled": false}),
            Some(PostgresProvider::Percona) => json!({"provider": "percona"}),
            Some(PostgresProvider::Standalone) => json!({"provider": "standalone", "version": "17"}),
            Some(PostgresProvider::CloudNativePg) => json!({"provider": "cloudnativepg", "version": "17"}),
            Some(PostgresProvider::External) => {
                json!({"provider": "external", "external": {"secretName": external_secret(name)}})
            }
        };
        if self.adopt {
            postgres["adopt"] = json!(true);
        }
        postgres
    }
}

impl Solo {
    /// The `spec` of a Postgresql.
    pub fn document(&self) -> Value {
        let mut spec = json!({"deletionPolicy": self.policy, "replicas": self.replicas});
        if self.last_dump {
            spec["backup"] = json!({"onDelete": true});
        }
        spec
    }
}

impl Step {
    /// Returns the ClientApp that it is about.
    pub fn app(&self) -> Option<Name> {
        match *self {
            Step::Create(name, _) | Step::Post(name, ..) | Step::Edit(name, _) | Step::Delete(name, _) => Some(name),
            Step::HttpDelete(name) | Step::EditOutFinalizers(name) | Step::Hand(name, _) | Step::Helm(name, _) => {
                Some(name)
            }
            Step::Plant(name, _) | Step::ForgeStatus(name) | Step::ForgeMarks(name) => Some(name),
            Step::CreateSolo(_) | Step::FlipSolo(_) | Step::DeleteSolo(_) | Step::DeleteNamespace => None,
        }
    }
}

impl Edit {
    /// Returns whether an app cannot be as its spec says any more.
    pub fn breaks(self) -> bool {
        matches!(self, Edit::ReservedKey | Edit::UnknownVersion | Edit::Unrenderable | Edit::Undecodable)
    }

    /// The merge patch of the spec.
    pub fn patch(self) -> Value {
        match self {
            Edit::Value(number) => json!({"values": {"podAnnotations": {"lives/value": number.to_string()}}}),
            Edit::Version => json!({"chartVersion": charts::PATCH}),
            Edit::Grow => json!({"persistence": {"size": "9Gi"}, "postgres": {"storageSize": "2Gi"}}),
            Edit::Redis(enabled) => json!({"redis": {"enabled": enabled}}),
            Edit::NoPersistence => json!({"persistence": {"enabled": false}}),
            Edit::Rename => json!({"values": {"nameOverride": "files"}}),
            Edit::ReservedKey => json!({"values": {"nextcloud": {"host": "elsewhere.example.com"}}}),
            Edit::UnknownVersion => json!({"chartVersion": "5.5.99"}),
            Edit::Unrenderable => json!({"chartVersion": charts::UNRENDERABLE}),
            // Written as text, since serde_json does not nest this deeply.
            Edit::Undecodable => json!(null),
            Edit::Mend => json!({
                "chartVersion": charts::PATCH,
                "values": {"nextcloud": null, "deep": null},
            }),
            Edit::Scale(replicas) => json!({"replicas": replicas}),
            Edit::Suspend(suspend) => json!({"suspend": suspend}),
            Edit::Policy(policy) => json!({"deletionPolicy": policy}),
            Edit::Adopt => json!({"postgres": {"adopt": true}}),
        }
    }
}

/// The administrator's Secret for [`Spec::given_secret`].
pub fn given_secret(app: &str) -> String {
    format!("given-{app}")
}

/// The Secret with the database's credentials for the provider `external`.
pub fn external_secret(app: &str) -> String {
    format!("theirs-{app}")
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}, {:?}", self.provider, self.policy)?;
        let words = [
            (self.is_upgraded, "the next version"),
            (!self.is_persistent, "no volume"),
            (self.redis, "redis"),
            (self.given_secret, "a given admin Secret"),
            (!self.keep, "a claim that helm does not keep"),
            (self.adopt, "adopt"),
            (self.backup, "backup before upgrades"),
        ];
        words.iter().filter(|(is_set, _)| *is_set).try_for_each(|(_, word)| write!(f, ", {word}"))
    }
}
