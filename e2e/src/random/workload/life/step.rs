//! The steps of a life. Pure.

use std::fmt;

use clientapp_crd::PostgresProvider;
use serde_json::{Value, json};

use crate::charts;

/// Of an app, or of a standalone database. There are only a few, so that names are reused.
pub type Name = &'static str;

/// The ClientApps of a life.
pub const APPS: [Name; 2] = ["acme", "beta"];
/// The Postgresql that serves no ClientApp.
pub const SOLO: Name = "solo";

/// One step, and what the next one waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    pub step: Step,
    pub then: Then,
}

/// What happens before the next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Nothing: the operator is still busy with this one.
    AtOnce,
    /// The operator has seen it.
    Seen,
    /// The operator has nothing more to do.
    Settled,
}

/// An action of a user, a cluster admin or another client.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Creates a ClientApp, like `kubectl create`.
    Create(Name, Spec),
    /// Creates an instance with the HTTP API.
    Post(Name, Spec, Hostname),
    Edit(Name, Edit),
    Delete(Name, Cascade),
    /// Deletes an instance with the HTTP API.
    HttpDelete(Name),
    /// Deletes a ClientApp and removes its finalizers by hand.
    EditOutFinalizers(Name),
    /// Deletes an object of a ClientApp by hand.
    Hand(Name, Part),
    /// Runs helm, as another client of the release.
    Helm(Name, Helm),
    /// Creates an object that looks like the operator's, or has the name of one.
    Plant(Name, Plant),
    /// Writes the uids of all planted volumes and Secrets into the status of a ClientApp.
    ForgeStatus(Name),
    /// Marks all planted volumes and Secrets with the uid of a ClientApp.
    ForgeMarks(Name),
    /// Creates a Postgresql that serves no ClientApp.
    CreateSolo(Solo),
    /// Changes the deletionPolicy of that Postgresql.
    FlipSolo(Policy),
    DeleteSolo(Cascade),
    /// Deletes the namespace with everything in it, waits, and recreates it.
    DeleteNamespace,
}

/// `spec.deletionPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub redis: bool,
    /// Whether the administrator's Secret is created by hand before.
    pub given_secret: bool,
    /// Whether the chart's claim has `helm.sh/resource-policy: keep`.
    pub keep: bool,
    /// Whether it adopts the data of an earlier ClientApp.
    pub adopt: bool,
    /// Whether the database is backed up before an upgrade.
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
    /// Whether a last dump is taken.
    pub last_dump: bool,
    /// The number of servers.
    pub replicas: u8,
}

impl Spec {
    /// The `spec` of a ClientApp.
    #[must_use]
    pub fn document(&self, name: Name, hostname: &str) -> Value {
        let mut spec = json!({
            "hostname": hostname,
            "deletionPolicy": self.policy.word(),
            "redis": {"enabled": self.redis},
            "persistence": {"enabled": true},
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
    #[must_use]
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
    #[must_use]
    pub fn document(&self) -> Value {
        let mut spec = json!({"deletionPolicy": self.policy.word(), "replicas": self.replicas});
        if self.last_dump {
            spec["backup"] = json!({"onDelete": true});
        }
        spec
    }
}

impl Policy {
    /// As in a spec.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Policy::Delete => "Delete",
            Policy::Retain => "Retain",
        }
    }
}

impl Edit {
    /// The merge patch of the spec.
    #[must_use]
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
            Edit::Suspend(suspend) => json!({"suspend": suspend}),
            Edit::Policy(policy) => json!({"deletionPolicy": policy.word()}),
            Edit::Adopt => json!({"postgres": {"adopt": true}}),
        }
    }
}

/// The administrator's Secret for [`Spec::given_secret`].
#[must_use]
pub fn given_secret(app: &str) -> String {
    format!("given-{app}")
}

/// The Secret with the database's credentials for the provider `external`.
#[must_use]
pub fn external_secret(app: &str) -> String {
    format!("theirs-{app}")
}

impl fmt::Display for Move {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let then = match self.then {
            Then::AtOnce => "",
            Then::Seen => "; until seen",
            Then::Settled => "; until settled",
        };
        write!(f, "{}{then}", self.step)
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Create(name, spec) => write!(f, "create ClientApp {name}: {spec}"),
            Step::Post(name, spec, Hostname::Own) => write!(f, "POST /instances {name}: {spec}"),
            Step::Post(name, spec, Hostname::Taken) => {
                write!(f, "POST /instances {name} with a taken hostname: {spec}")
            }
            Step::Edit(name, edit) => write!(f, "edit ClientApp {name}: {edit:?}"),
            Step::Delete(name, cascade) => write!(f, "delete ClientApp {name}, {cascade:?}"),
            Step::HttpDelete(name) => write!(f, "DELETE /instances/{name}"),
            Step::EditOutFinalizers(name) => write!(f, "delete ClientApp {name} and remove its finalizers"),
            Step::Hand(name, part) => write!(f, "delete the {part:?} of {name} by hand"),
            Step::Helm(name, helm) => write!(f, "another client: helm {helm:?} {name}"),
            Step::Plant(name, plant) => write!(f, "plant a foreign {plant:?} beside {name}"),
            Step::ForgeStatus(name) => write!(f, "write the planted objects into the status of ClientApp {name}"),
            Step::ForgeMarks(name) => write!(f, "mark the planted objects with the uid of ClientApp {name}"),
            Step::CreateSolo(solo) => write!(
                f,
                "create Postgresql {SOLO}: {:?}, {} servers{}",
                solo.policy,
                solo.replicas,
                if solo.last_dump { ", a last dump" } else { "" }
            ),
            Step::FlipSolo(policy) => write!(f, "edit Postgresql {SOLO}: {policy:?}"),
            Step::DeleteSolo(cascade) => write!(f, "delete Postgresql {SOLO}, {cascade:?}"),
            Step::DeleteNamespace => f.write_str("delete the namespace, wait, and recreate it"),
        }
    }
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let provider = match self.provider {
            None => "no database",
            Some(PostgresProvider::Percona) => "percona",
            Some(PostgresProvider::Standalone) => "standalone",
            Some(PostgresProvider::External) => "external",
        };
        write!(f, "{provider}, {:?}", self.policy)?;
        for (set, word) in [
            (self.redis, "redis"),
            (self.given_secret, "a given admin Secret"),
            (!self.keep, "a claim that helm does not keep"),
            (self.adopt, "adopt"),
            (self.backup, "backup before upgrades"),
        ] {
            if set {
                write!(f, ", {word}")?;
            }
        }
        Ok(())
    }
}
