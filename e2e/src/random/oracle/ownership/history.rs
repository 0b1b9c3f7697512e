//! Everything that ever existed in the namespaces of the lives, as evidence for the oracle. Pure; filled by
//! [`super::recorder`].
//!
//! All times are resource versions, which order all writes of one control plane.

use std::collections::BTreeMap;

use jiff::Timestamp;
use serde_json::Value;

/// A resource version.
pub type Time = u64;

/// The recorded kinds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Kind {
    App,
    Postgresql,
    /// PerconaPGCluster.
    Cluster,
    /// PerconaPGBackup.
    Backup,
    /// PersistentVolumeClaim.
    Volume,
    Secret,
    /// Recorded because claims are created for it.
    StatefulSet,
    Event,
    /// Some are planted.
    EndpointSlice,
    /// VolumeSnapshot: a kind that the operator does not know.
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

    /// The object's `kind`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Kind::App => "ClientApp",
            Kind::Postgresql => "Postgresql",
            Kind::Cluster => "PerconaPGCluster",
            Kind::Backup => "PerconaPGBackup",
            Kind::Volume => "PersistentVolumeClaim",
            Kind::Secret => "Secret",
            Kind::StatefulSet => "StatefulSet",
            Kind::Event => "Event",
            Kind::EndpointSlice => "EndpointSlice",
            Kind::Snapshot => "VolumeSnapshot",
        }
    }

    /// The word in a path, and in the audit log.
    #[must_use]
    pub fn plural(self) -> &'static str {
        match self {
            Kind::App => "clientapps",
            Kind::Postgresql => "postgresqls",
            Kind::Cluster => "perconapgclusters",
            Kind::Backup => "perconapgbackups",
            Kind::Volume => "persistentvolumeclaims",
            Kind::Secret => "secrets",
            Kind::StatefulSet => "statefulsets",
            Kind::Event => "events",
            Kind::EndpointSlice => "endpointslices",
            Kind::Snapshot => "volumesnapshots",
        }
    }

    /// Whether it holds data or gives access to data.
    #[must_use]
    pub fn is_data(self) -> bool {
        match self {
            Kind::Postgresql | Kind::Cluster | Kind::Backup | Kind::Volume | Kind::Secret | Kind::Snapshot => true,
            Kind::App | Kind::StatefulSet | Kind::Event | Kind::EndpointSlice => false,
        }
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
    /// When its deletion was seen, in clock time, since the audit log has no resource versions.
    pub lost_at: Option<Timestamp>,
}

impl Seen {
    #[must_use]
    pub fn created(&self) -> Time {
        self.versions[0].0
    }

    /// The first version.
    #[must_use]
    pub fn first(&self) -> &Value {
        &self.versions[0].1
    }

    /// The latest version.
    #[must_use]
    pub fn last(&self) -> &Value {
        &self.versions[self.versions.len() - 1].1
    }

    /// The version at a time.
    #[must_use]
    pub fn at(&self, time: Time) -> &Value {
        let version = self.versions.iter().rev().find(|(version, _)| *version <= time);
        version.map_or(self.first(), |(_, value)| value)
    }

    /// When its deletion was requested, even if a finalizer still holds it.
    #[must_use]
    pub fn doomed(&self) -> Option<Time> {
        let terminating = self.versions.iter().find(|(_, value)| is_terminating(value)).map(|(time, _)| *time);
        terminating.or(self.gone)
    }

    /// The version with which its deletion began, which has the finalizers of the deletion.
    #[must_use]
    pub fn deletion(&self) -> Option<&Value> {
        self.versions.iter().map(|(_, value)| value).find(|value| is_terminating(value))
    }

    #[must_use]
    pub fn is_there_at(&self, time: Time) -> bool {
        self.created() <= time && self.gone.is_none_or(|gone| gone >= time)
    }

    /// Kind and name.
    #[must_use]
    pub fn what(&self) -> String {
        format!("{} {}", self.kind.word(), self.name)
    }
}

#[must_use]
pub fn is_terminating(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

#[must_use]
pub fn label<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["labels"][key].as_str()
}

#[must_use]
pub fn annotation<'a>(object: &'a Value, key: &str) -> Option<&'a str> {
    object["metadata"]["annotations"][key].as_str()
}

/// A condition of an object: status, reason and message.
#[must_use]
pub fn condition<'a>(object: &'a Value, kind: &str) -> Option<(&'a str, &'a str, &'a str)> {
    let conditions = object["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|condition| condition["type"] == kind)?;
    let word = |key: &str| found[key].as_str().unwrap_or_default();
    Some((word("status"), word("reason"), word("message")))
}

/// All objects seen, by uid.
#[derive(Clone, Debug, Default)]
pub struct Record {
    pub objects: BTreeMap<String, Seen>,
}

impl Record {
    /// An object that a watch reports as existing. Returns its namespace.
    pub fn apply(&mut self, kind: Kind, object: Value, now: Timestamp) -> Option<String> {
        let metadata = &object["metadata"];
        let word = |key: &str| metadata[key].as_str().map(str::to_owned);
        let time: Time = word("resourceVersion")?.parse().ok()?;
        let (namespace, name, uid) = (word("namespace").unwrap_or_default(), word("name")?, word("uid")?);
        let seen = self.objects.entry(uid.clone()).or_insert_with(|| Seen {
            kind,
            namespace: namespace.clone(),
            name,
            uid,
            versions: Vec::new(),
            gone: None,
            lost_at: None,
        });
        if is_terminating(&object) {
            seen.lost_at.get_or_insert(now);
        }
        if seen.versions.last().is_none_or(|(last, _)| *last < time) {
            seen.versions.push((time, object));
        }
        Some(namespace)
    }

    /// An object that a watch reports as deleted, in its last version and with the resource version of the deletion.
    pub fn delete(&mut self, kind: Kind, object: Value, now: Timestamp) -> Option<String> {
        let uid = object["metadata"]["uid"].as_str()?.to_owned();
        let time = object["metadata"]["resourceVersion"].as_str()?.parse().ok()?;
        let namespace = self.apply(kind, object, now)?;
        let seen = self.objects.get_mut(&uid)?;
        seen.gone = Some(time);
        seen.lost_at.get_or_insert(now);
        Some(namespace)
    }

    /// A new list after a watch broke: objects missing from it were deleted meanwhile.
    pub fn relisted(&mut self, kind: Kind, listed: &[String], time: Time, now: Timestamp) {
        for seen in self.objects.values_mut().filter(|seen| seen.kind == kind && seen.gone.is_none()) {
            if !listed.contains(&seen.uid) {
                seen.gone = Some(time);
                seen.lost_at.get_or_insert(now);
            }
        }
    }

    /// All objects ever seen in a namespace, in the order of their creation.
    #[must_use]
    pub fn of(&self, namespace: &str) -> Vec<&Seen> {
        let mut found: Vec<_> = self.objects.values().filter(|seen| seen.namespace == namespace).collect();
        found.sort_by_key(|seen| seen.created());
        found
    }

    /// The existing object of this kind and name.
    #[must_use]
    pub fn present(&self, namespace: &str, kind: Kind, name: &str) -> Option<&Seen> {
        self.objects
            .values()
            .find(|seen| seen.gone.is_none() && seen.kind == kind && seen.name == name && seen.namespace == namespace)
    }
}
