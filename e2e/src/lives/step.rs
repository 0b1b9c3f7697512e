//! What happens in a life, one step after the other. Pure.

use std::fmt;

use clientapp_operator::crd::PostgresProvider;
use serde_json::{Value, json};

use crate::charts;

/// Of an app, or of a database of its own. There are few of them, so that names are used again.
pub type Name = &'static str;

/// The ClientApps of a life.
pub const APPS: [Name; 2] = ["acme", "beta"];
/// The Postgresql that serves no ClientApp.
pub const SOLO: Name = "solo";

/// One step, and what the next one waits for.
#[derive(Clone, Debug, PartialEq)]
pub struct Move {
    /// What is done.
    pub step: Step,
    /// What the next step waits for.
    pub then: Then,
}

/// What a step waits for before the next one is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// For nothing: the operator is in the middle of it.
    AtOnce,
    /// Until the operator has seen it.
    Seen,
    /// Until the operator has nothing more to do.
    Settled,
}

/// What a user, a cluster admin or another client does.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// Creates a ClientApp, as `kubectl create` does.
    Create(Name, Spec),
    /// Asks the HTTP API for an instance.
    Post(Name, Spec, Hostname),
    /// Changes a ClientApp.
    Edit(Name, Edit),
    /// Deletes a ClientApp.
    Delete(Name, Cascade),
    /// Deletes an instance by the HTTP API.
    HttpDelete(Name),
    /// Deletes a ClientApp and takes its finalizers off by hand.
    EditOutFinalizers(Name),
    /// Deletes by hand what belongs to a ClientApp.
    Hand(Name, Part),
    /// Runs helm, as another client of the release.
    Helm(Name, Helm),
    /// Makes an object that looks like the operator's, or stands where it would make one.
    Plant(Name, Plant),
    /// Writes every planted volume and Secret into the status of a ClientApp, wherever that keeps uids.
    ForgeStatus(Name),
    /// Marks every planted volume and Secret with the uid of a ClientApp, on the object's own side.
    ForgeMarks(Name),
    /// Creates a Postgresql that serves no ClientApp.
    CreateSolo(Solo),
    /// Changes the deletionPolicy of a Postgresql.
    FlipSolo(Policy),
    /// Deletes that Postgresql.
    DeleteSolo(Cascade),
    /// Deletes the namespace with everything in it, waits, and makes it anew.
    DeleteNamespace,
}

/// `spec.deletionPolicy`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The data go too.
    Delete,
    /// They stay.
    Retain,
}

/// What of a ClientApp's spec makes a difference here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Spec {
    /// `None`: no database.
    pub provider: Option<PostgresProvider>,
    /// What becomes of its data.
    pub policy: Policy,
    /// Whether it has a Redis.
    pub redis: bool,
    /// Whether its administrator's Secret is made by hand before.
    pub given_secret: bool,
    /// Whether the chart's claim has `helm.sh/resource-policy: keep`.
    pub keep: bool,
    /// Whether it takes over what an earlier one has left.
    pub adopt: bool,
    /// Whether the database is backed up before an upgrade.
    pub backup: bool,
}

/// Whose hostname an instance is asked for with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hostname {
    /// Its own.
    Own,
    /// That of another ClientApp.
    Taken,
}

/// A change of a ClientApp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Edit {
    /// A value for the chart.
    Value(u32),
    /// The next patch version.
    Version,
    /// A larger database and a larger volume.
    Grow,
    /// With a Redis or without.
    Redis(bool),
    /// Without a volume for files.
    NoPersistence,
    /// Another name for all objects of the release.
    Rename,
    /// A key that the operator computes.
    ReservedKey,
    /// A version that is not published.
    UnknownVersion,
    /// A version that does not render.
    Unrenderable,
    /// Values that nest too deep to be decoded.
    Undecodable,
    /// Takes the four above back.
    Mend,
    /// `spec.suspend`.
    Suspend(bool),
    /// `spec.deletionPolicy`.
    Policy(Policy),
    /// `spec.postgres.adopt`.
    Adopt,
}

/// How dependents are deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cascade {
    /// After it.
    Background,
    /// Before it.
    Foreground,
    /// Not at all.
    Orphan,
}

/// What belongs to a ClientApp and is deleted by hand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The administrator's Secret.
    AdminSecret,
    /// The Redis password.
    RedisSecret,
    /// The PerconaPGCluster or Postgresql.
    Database,
    /// The database's volume.
    DatabaseVolume,
    /// The Secret that opens the database.
    DatabaseSecret,
    /// The volume with the app's files.
    Files,
    /// Helm's Secret of the newest revision.
    ReleaseSecret,
    /// The app's Deployment.
    Deployment,
}

/// What another client of a release does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Helm {
    /// Installs a release.
    Install,
    /// Upgrades it, with other values.
    Upgrade,
    /// Uninstalls it.
    Uninstall,
    /// Uninstalls it, and keeps its history.
    UninstallKeepHistory,
}

/// An object of another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plant {
    /// A claim with Helm's own marks of the release.
    ReleaseVolume,
    /// A claim with the instance's label alone.
    InstanceVolume,
    /// A claim that says a ClientApp of this name has left it.
    RetainedVolume,
    /// A claim with the database's labels, of either provider.
    DatabaseVolume,
    /// A Secret with the operator's labels.
    LabelledSecret,
    /// A Secret where the operator would make the administrator's.
    AdminSecret,
    /// A PerconaPGCluster where the operator would make one; Percona makes its volumes and Secrets.
    Cluster,
    /// A Postgresql where the operator would make one.
    Postgresql,
    /// A backup of the PerconaPGCluster.
    Backup,
    /// An EndpointSlice that claims to be the database's.
    EndpointSlice,
    /// An object of a kind that the operator does not know.
    Snapshot,
}

/// A Postgresql that serves no ClientApp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Solo {
    /// What becomes of its data.
    pub policy: Policy,
    /// Whether a last dump is taken.
    pub last_dump: bool,
    /// How many servers.
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
            // Written as text, since serde_json goes no deeper.
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

/// The administrator's Secret that is made by hand.
#[must_use]
pub fn given_secret(app: &str) -> String {
    format!("given-{app}")
}

/// The Secret that opens the database of the provider `external`.
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
                write!(f, "POST /instances {name} with a hostname that is taken: {spec}")
            }
            Step::Edit(name, edit) => write!(f, "edit ClientApp {name}: {edit:?}"),
            Step::Delete(name, cascade) => write!(f, "delete ClientApp {name}, {cascade:?}"),
            Step::HttpDelete(name) => write!(f, "DELETE /instances/{name}"),
            Step::EditOutFinalizers(name) => write!(f, "delete ClientApp {name} and edit its finalizers out"),
            Step::Hand(name, part) => write!(f, "delete the {part:?} of {name} by hand"),
            Step::Helm(name, helm) => write!(f, "another client: helm {helm:?} {name}"),
            Step::Plant(name, plant) => write!(f, "plant a foreign {plant:?} beside {name}"),
            Step::ForgeStatus(name) => write!(f, "write what is planted into the status of ClientApp {name}"),
            Step::ForgeMarks(name) => write!(f, "mark what is planted with the uid of ClientApp {name}"),
            Step::CreateSolo(solo) => write!(
                f,
                "create Postgresql {SOLO}: {:?}, {} servers{}",
                solo.policy,
                solo.replicas,
                if solo.last_dump { ", a last dump" } else { "" }
            ),
            Step::FlipSolo(policy) => write!(f, "edit Postgresql {SOLO}: {policy:?}"),
            Step::DeleteSolo(cascade) => write!(f, "delete Postgresql {SOLO}, {cascade:?}"),
            Step::DeleteNamespace => f.write_str("delete the namespace, wait, and make it anew"),
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
