//! Everything that ever existed in the namespaces of the lives, as evidence for the oracle. Pure; filled by
//! [`super::recorder`].
//!
//! All times are resource versions, which order all writes of one control plane.

use std::collections::BTreeMap;

use derive_more::Display;
use serde_json::Value;

/// A resource version.
pub type Time = u64;

/// The recorded kinds.
#[derive(Clone, Copy, Debug, Display, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    #[display("ClientApp")]
    App,
    Postgresql,
    #[display("PerconaPGCluster")]
    Cluster,
    #[display("PerconaPGBackup")]
    Backup,
    #[display("PersistentVolumeClaim")]
    Volume,
    Secret,
    /// Recorded because claims are created for it.
    StatefulSet,
    Event,
    /// Some are planted.
    EndpointSlice,
    /// A kind that the operator does not know.
    #[display("VolumeSnapshot")]
    Snapshot,
}

impl Kind {
    pub const ALL: [Kind; 10] = [
        Kind::App,
        Kind::Postgresql,
        Kind::Cluster,
        Kind::Backup,
        Kind::Volume,
        Kind::Secret,
        Kind::StatefulSet,
        Kind::Event,
        Kind::EndpointSlice,
        Kind::Snapshot,
    ];

    /// Returns whether it holds data or gives access to data.
    pub fn is_data(self) -> bool {
        !matches!(self, Kind::App | Kind::StatefulSet | Kind::Event | Kind::EndpointSlice)
    }
}

/// An object that exists or existed.
#[derive(Clone, Debug)]
pub struct Seen {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    /// All versions, without managed fields. A ClientApp that cannot be decoded has the reason under `undecodable`, and
    /// neither spec nor status.
    pub versions: Vec<(Time, Value)>,
    /// When it was gone.
    pub gone: Option<Time>,
}

impl Seen {
    pub fn created(&self) -> Time {
        self.versions[0].0
    }

    /// The first version.
    pub fn first(&self) -> &Value {
        &self.versions[0].1
    }

    /// The latest version.
    pub fn last(&self) -> &Value {
        &self.versions[self.versions.len() - 1].1
    }

    /// The version at a time.
    pub fn at(&self, time: Time) -> &Value {
        let version = self.versions.iter().rev().find(|(version, _)| *version <= time);
        version.map_or(self.first(), |(_, value)| value)
    }

    /// When its deletion was requested, even if a finalizer still holds it.
    pub fn doomed(&self) -> Option<Time> {
        let terminating = self.versions.iter().find(|(_, value)| is_terminating(value)).map(|(time, _)| *time);
        terminating.or(self.gone)
    }

    /// The version with which its deletion began, which has the finalizers of the deletion.
    pub fn deletion(&self) -> Option<&Value> {
        self.versions.iter().map(|(_, value)| value).find(|value| is_terminating(value))
    }

    pub fn is_there_at(&self, time: Time) -> bool {
        self.created() <= time && self.gone.is_none_or(|gone| gone >= time)
    }

    /// Kind and name.
    pub fn what(&self) -> String {
        format!("{} {}", self.kind, self.name)
    }
}

pub fn is_terminating(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["labels"][key].as_str()
}

/// All objects seen, by uid.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub objects: BTreeMap<String, Seen>,
    /// The uid of the newest object of each kind, namespace and name.
    newest: BTreeMap<(Kind, String, String), String>,
    /// Says whether only the last version of each object is kept.
    is_brief: bool,
}

impl Record {
    pub fn new(is_brief: bool) -> Record {
        Record { is_brief, ..Record::default() }
    }

    /// Takes an object that a watch reports as existing.
    pub fn apply(&mut self, kind: Kind, object: Value) -> Option<&mut Seen> {
        let word = |key: &str| object["metadata"][key].as_str().map(str::to_owned);
        let time: Time = word("resourceVersion")?.parse().ok()?;
        let (namespace, name, uid) = (word("namespace").unwrap_or_default(), word("name")?, word("uid")?);
        let new = Seen { kind, namespace, name, uid: uid.clone(), versions: Vec::new(), gone: None };
        let seen = self.objects.entry(uid).or_insert_with(|| {
            self.newest.insert((kind, new.namespace.clone(), new.name.clone()), new.uid.clone());
            new
        });
        if seen.versions.last().is_none_or(|(last, _)| *last < time) {
            if self.is_brief {
                seen.versions.clear();
            }
            seen.versions.push((time, object));
        }
        Some(seen)
    }

    /// Takes an object that a watch reports as deleted, in its last version and with the resource version of the deletion.
    pub fn delete(&mut self, kind: Kind, object: Value) {
        let time = object["metadata"]["resourceVersion"].as_str().and_then(|version| version.parse().ok());
        if let Some(seen) = self.apply(kind, object) {
            seen.gone = time;
        }
    }

    /// Takes a new list after a watch broke: objects missing from it were deleted meanwhile.
    pub fn relisted(&mut self, kind: Kind, listed: &[String], time: Time) {
        for seen in self.objects.values_mut().filter(|seen| seen.kind == kind && seen.gone.is_none()) {
            if !listed.contains(&seen.uid) {
                seen.gone = Some(time);
            }
        }
    }

    /// Forgets what is gone.
    pub fn forget(&mut self) {
        self.objects.retain(|_, seen| seen.gone.is_none());
    }

    /// Returns all objects ever seen in a namespace, in the order of their creation.
    pub fn of(&self, namespace: &str) -> Vec<&Seen> {
        let mut found: Vec<_> = self.objects.values().filter(|seen| seen.namespace == namespace).collect();
        found.sort_by_key(|seen| seen.created());
        found
    }

    pub fn of_kind(&self, kind: Kind) -> impl Iterator<Item = &Seen> {
        self.objects.values().filter(move |seen| seen.kind == kind)
    }

    /// Returns the existing object of this kind and name.
    pub fn present(&self, namespace: &str, kind: Kind, name: &str) -> Option<&Seen> {
        let uid = self.newest.get(&(kind, namespace.to_owned(), name.to_owned()))?;
        self.objects.get(uid).filter(|seen| seen.gone.is_none())
    }
}
