//! The owner of each object, and its permitted fate. Pure.
//!
//! Derived from the API server's record of which client created an object and when, and from the requests of the life's
//! steps; never from the operator's own records or its marks on the object, since the operator is under test.

use std::collections::{BTreeMap, BTreeSet};

use clientapp_crd::label::RETAINED_FROM;
use serde_json::Value;

use super::history::{Kind, Record, Seen, Time, label};
use super::recorder::RELEASE;
use crate::random::oracle::audit::{Actor, Entry};
use crate::random::workload::life::step::SOLO;

/// Later than every version.
pub const NOW: Time = Time::MAX;

/// The requests of a life's steps.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The uids of planted objects, with the time of the last write by a step.
    pub planted: BTreeMap<String, Time>,
    /// The uids of objects deleted by hand, except ClientApps: their policy says what is deleted with them.
    pub deleted: BTreeSet<String>,
    /// The uids of ClientApps and Postgresqls that were deleted.
    pub ended: BTreeSet<String>,
    /// The uids of those whose finalizers were removed.
    pub cut: BTreeSet<String>,
    /// The uids written into the status of a ClientApp.
    pub on_record: BTreeSet<String>,
    /// The uids of objects marked with the uid of a ClientApp.
    pub marked: BTreeSet<String>,
    /// When the namespace was deleted.
    pub namespaces: Vec<Time>,
}

/// The known facts of a life.
pub struct Facts<'a> {
    /// All objects ever seen, in the order of their creation.
    pub objects: Vec<&'a Seen>,
    pub asked: &'a Asked,
    /// The client that created each object, by uid.
    makers: BTreeMap<&'a str, &'a Actor>,
    trace: &'a [Entry],
}

/// The owner of an object.
#[derive(Clone, Copy, Debug)]
pub enum Owner<'a> {
    /// The life: the object was planted.
    Foreign,
    /// A release of another Helm client.
    OtherRelease,
    App(&'a Seen),
    /// This Postgresql, which serves no ClientApp.
    Solo(&'a Seen),
    /// Unknown, so no expectation.
    Unknown,
}

/// The permitted fate of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// It must exist, for this reason.
    Stays(String),
    /// It may exist or not.
    MayGo,
    /// It must be deleted, or be named as kept, for this reason.
    Goes(String),
}

impl<'a> Facts<'a> {
    /// The facts of a namespace.
    pub fn new(record: &'a Record, namespace: &str, trace: &'a [Entry], asked: &'a Asked) -> Facts<'a> {
        let made = trace.iter().filter(|entry| entry.created);
        let makers = made.map(|entry| (entry.uid.as_str(), &entry.actor)).collect();
        Facts { objects: record.of(namespace), asked, makers, trace }
    }

    pub fn of_kind(&self, kind: Kind) -> impl DoubleEndedIterator<Item = &'a Seen> + '_ {
        self.objects.iter().copied().filter(move |seen| seen.kind == kind)
    }

    /// The client that created an object.
    pub fn maker(&self, seen: &Seen) -> Option<&'a Actor> {
        self.maker_of(&seen.uid)
    }

    /// The client that created the object with this uid.
    pub fn maker_of(&self, uid: &str) -> Option<&'a Actor> {
        self.makers.get(uid).copied()
    }

    /// The request that began the deletion of an object.
    pub fn deleter(&self, seen: &Seen) -> Option<&'a Entry> {
        self.trace.iter().find(|entry| entry.deletes() && entry.uid == seen.uid)
    }

    /// Returns whether an object holds data or gives access to data. Helm's own records do not, nor do Percona's certificates.
    pub fn is_data(&self, seen: &Seen) -> bool {
        let certificate = self.maker(seen) == Some(&Actor::Percona)
            && seen.kind == Kind::Secret
            && label(seen.first(), "postgres-operator.crunchydata.com/role") != Some("pguser");
        seen.kind.is_data() && seen.first()["type"] != RELEASE && !certificate
    }

    /// The object of a name that existed at a time, or else the last one before.
    fn named_at(&self, kind: Kind, name: &str, time: Time) -> Option<&'a Seen> {
        let mut named: Vec<_> = self.of_kind(kind).filter(|seen| seen.name == name && seen.created() <= time).collect();
        let there = named.iter().rposition(|seen| seen.is_there_at(time));
        there.map(|index| named[index]).or(named.pop())
    }

    fn app_at(&self, name: &str, time: Time) -> Owner<'a> {
        self.named_at(Kind::App, name, time).map_or(Owner::Unknown, Owner::App)
    }

    /// The object whose name is part of another: `acme-pg-app` belongs to `acme-pg`.
    fn part_of(&self, kind: Kind, time: Time, made_of: impl Fn(&str) -> bool) -> Option<&'a Seen> {
        let parents = self.of_kind(kind).filter(|seen| seen.is_there_at(time) && made_of(&seen.name));
        parents.max_by_key(|seen| seen.name.len())
    }

    /// The Postgresql that an object was created for.
    fn postgresql_of(&self, seen: &Seen) -> Option<&'a Seen> {
        match self.maker(seen)? {
            Actor::Operator if seen.kind != Kind::Postgresql => {
                let made_of = |name: &str| seen.name.starts_with(&format!("{name}-")) || seen.name == name;
                self.part_of(Kind::Postgresql, seen.created(), made_of)
            }
            Actor::Other(user) if user.ends_with(":statefulset-controller") => self.postgresql_of(self.set_of(seen)?),
            _ => None,
        }
    }

    /// The database that an object was created for.
    pub(crate) fn database_of(&self, seen: &Seen) -> Option<&'a Seen> {
        match self.maker(seen)? {
            Actor::Percona => self.named_at(Kind::Cluster, cluster_of(seen.first())?, seen.created()),
            _ => self.postgresql_of(seen),
        }
    }

    /// The StatefulSet that a claim was created for.
    fn set_of(&self, claim: &Seen) -> Option<&'a Seen> {
        self.part_of(Kind::StatefulSet, claim.created(), |name| claim.name.contains(&format!("-{name}-")))
    }

    /// The owner of an object since its creation.
    pub fn owner(&self, seen: &'a Seen) -> Owner<'a> {
        let time = seen.created();
        // A backup belongs to its cluster, even if a user requested it.
        if self.asked.planted.contains_key(&seen.uid) && seen.kind != Kind::Backup {
            return Owner::Foreign;
        }
        let of_cluster = |cluster: Option<&str>| {
            let cluster = cluster.and_then(|name| self.named_at(Kind::Cluster, name, time));
            cluster.map_or(Owner::Unknown, |cluster| self.owner(cluster))
        };
        match self.maker(seen) {
            Some(Actor::User) if seen.kind == Kind::Backup => of_cluster(seen.first()["spec"]["pgCluster"].as_str()),
            Some(Actor::User) if seen.kind == Kind::Postgresql && seen.name == SOLO => Owner::Solo(seen),
            Some(Actor::OtherHelm) => Owner::OtherRelease,
            Some(Actor::OperatorHelm) => {
                let release = seen.first()["metadata"]["annotations"]["meta.helm.sh/release-name"].as_str();
                let release = release.or(label(seen.first(), "name"));
                release.map_or(Owner::Unknown, |release| self.app_at(release, time))
            }
            Some(Actor::Percona) => of_cluster(cluster_of(seen.first())),
            Some(Actor::Operator) => {
                let suffix = match seen.kind {
                    Kind::Cluster | Kind::Postgresql => "-pg",
                    Kind::Backup => return of_cluster(seen.first()["spec"]["pgCluster"].as_str()),
                    Kind::Secret if seen.name.ends_with("-redis-secret") => "-redis-secret",
                    Kind::Secret if seen.name.ends_with("-admin-secret") => "-admin-secret",
                    _ => return self.postgresql_of(seen).map_or(Owner::Unknown, |of| self.of_postgresql(of)),
                };
                seen.name.strip_suffix(suffix).map_or(Owner::Unknown, |app| self.app_at(app, time))
            }
            Some(Actor::Other(user)) if user.ends_with(":statefulset-controller") => {
                self.set_of(seen).map_or(Owner::Unknown, |set| self.owner(set))
            }
            _ => Owner::Unknown,
        }
    }

    /// The owner of a Postgresql's objects. A foreign Postgresql follows its own policy.
    fn of_postgresql(&self, database: &'a Seen) -> Owner<'a> {
        match self.owner(database) {
            Owner::Foreign => Owner::Solo(database),
            owner => owner,
        }
    }

    /// Returns whether the operator has installed a release for this ClientApp before a time.
    pub fn was_released(&self, app: &Seen, before: Time) -> bool {
        let until = app.gone.unwrap_or(NOW).min(before);
        self.of_kind(Kind::Secret).any(|seen| {
            seen.first()["type"] == RELEASE
                && label(seen.first(), "name") == Some(&app.name)
                && self.maker(seen) == Some(&Actor::OperatorHelm)
                && (app.created()..=until).contains(&seen.created())
        })
    }

    /// The permitted fate of an object by a time.
    pub fn expectation(&self, seen: &'a Seen, by: Time) -> Expectation {
        match self.expectation_of_its_owners(seen, by) {
            // A backup that a user requested is deleted with its cluster, if Percona noticed it in time.
            Expectation::Goes(_) if seen.kind == Kind::Backup && self.asked.planted.contains_key(&seen.uid) => {
                Expectation::MayGo
            }
            expectation => expectation,
        }
    }

    fn expectation_of_its_owners(&self, seen: &'a Seen, by: Time) -> Expectation {
        if self.asked.deleted.contains(&seen.uid) {
            return Expectation::MayGo;
        }
        if self.deleter(seen).is_some_and(|request| request.actor == Actor::OtherHelm) {
            return Expectation::MayGo;
        }
        if self.asked.namespaces.iter().any(|time| (seen.created()..=by).contains(time)) {
            return Expectation::MayGo;
        }
        match self.owner(seen) {
            Owner::Unknown => Expectation::MayGo,
            Owner::Solo(database) => self.with_postgresql(seen, database, by),
            Owner::App(app) => {
                if let Some(database) = self.postgresql_of(seen)
                    && self.asked.deleted.contains(&database.uid)
                    && database.doomed().is_some_and(|doomed| doomed <= by)
                    && is_auxiliary(seen, database)
                {
                    return Expectation::MayGo;
                }
                // Credentials that were never used give access to nothing, whatever the policy.
                match self.with_app(seen, app, by) {
                    Expectation::Stays(_) if self.is_unused(seen, app, by) => Expectation::MayGo,
                    expectation => expectation,
                }
            }
            Owner::OtherRelease => {
                let app = label(seen.first(), "app.kubernetes.io/instance");
                let app = app.and_then(|name| self.named_at(Kind::App, name, by));
                match app.filter(|app| app.created() <= seen.created() && self.was_released(app, seen.created())) {
                    // Another client has changed the release of a ClientApp: it may count as either's.
                    Some(app) if app.doomed().is_some_and(|doomed| doomed <= by) => Expectation::MayGo,
                    _ => Expectation::Stays("it belongs to a release that another Helm client created".to_owned()),
                }
            }
            // A user who may write both sides can hand over anything.
            Owner::Foreign if self.asked.on_record.contains(&seen.uid) && self.asked.marked.contains(&seen.uid) => {
                Expectation::MayGo
            }
            Owner::Foreign => {
                // A user who may label an object can hand it over, and an adoption asks for exactly that.
                let left_by = label(seen.first(), RETAINED_FROM).unwrap_or_default();
                let mut adopters = self.of_kind(Kind::App).filter(|app| app.name == left_by && adopts(app, by));
                match adopters.next_back().map(|app| with(app, seen, by, self.asked)) {
                    Some(Expectation::Goes(_) | Expectation::MayGo) => Expectation::MayGo,
                    _ => Expectation::Stays("it is foreign".to_owned()),
                }
            }
        }
    }

    /// The expectation for an object created for a ClientApp, taking later adoptions into account.
    fn with_app(&self, seen: &'a Seen, app: &'a Seen, by: Time) -> Expectation {
        let mut expectation = with(app, seen, by, self.asked);
        let after = app.doomed().unwrap_or(NOW);
        let later = self.of_kind(Kind::App).filter(|other| other.name == app.name && other.created() > after);
        for adopter in later.filter(|other| other.created() <= by && adopts(other, by)) {
            let adopted = with(adopter, seen, by, self.asked);
            expectation = match (expectation, adopted) {
                (_, adopted) if self.was_released(adopter, by) && self.is_of_provider(seen, provider(adopter)) => {
                    adopted
                }
                // The deletion may have reached this object or not.
                (Expectation::Stays(_), Expectation::Stays(why)) => Expectation::Stays(why),
                _ => Expectation::MayGo,
            };
        }
        expectation
    }

    /// Returns whether these are the credentials of a deleted ClientApp that never had any data.
    fn is_unused(&self, seen: &Seen, app: &Seen, by: Time) -> bool {
        let has_data = || {
            let of_app = |seen: &'a Seen| {
                let holds = matches!(seen.kind, Kind::Volume | Kind::Cluster | Kind::Postgresql);
                holds && matches!(self.owner(seen), Owner::App(owner) if owner.uid == app.uid)
            };
            let released = self.of_kind(Kind::App).any(|before| {
                before.name == app.name && (before.uid == app.uid || adopts(app, by)) && self.was_released(before, by)
            });
            released || self.objects.iter().copied().any(of_app)
        };
        let deleted = ending(app, by).is_some_and(|ending| !has_finalizer(ending, "orphan"));
        let suspended = app.at(by)["spec"]["suspend"] == true;
        seen.kind == Kind::Secret && deleted && !suspended && !has_data()
    }

    /// Returns whether a ClientApp with this provider adopts an object: a database is adopted only with its own provider.
    fn is_of_provider(&self, seen: &Seen, provider: Option<&str>) -> bool {
        let of_percona = matches!(seen.kind, Kind::Cluster | Kind::Backup) || self.maker(seen) == Some(&Actor::Percona);
        let of_standalone = seen.kind == Kind::Postgresql || self.postgresql_of(seen).is_some();
        match (of_percona, of_standalone) {
            (true, _) => provider == Some("percona"),
            (_, true) => provider == Some("standalone"),
            _ => true,
        }
    }

    /// The expectation for the objects of a Postgresql that serves no ClientApp, including itself.
    fn with_postgresql(&self, seen: &Seen, database: &Seen, by: Time) -> Expectation {
        let expectation = with(database, seen, by, self.asked);
        let ending = ending(database, by);
        match expectation {
            Expectation::Stays(_)
                if ending.is_some_and(|spec| policy(spec) == "Retain") && is_auxiliary(seen, database) =>
            {
                Expectation::MayGo
            }
            Expectation::Stays(_) if seen.uid == database.uid && ending.is_some() => Expectation::MayGo,
            Expectation::Goes(_) | Expectation::MayGo
                if seen.name == format!("{}-backup", database.name)
                    && ending.is_some_and(|object| object["spec"]["backup"]["onDelete"] == true) =>
            {
                Expectation::Stays(format!("the last dump of Postgresql {} is on it", database.name))
            }
            expectation => expectation,
        }
    }
}

/// A deleted object at the time when its deletion began.
fn ending(owner: &Seen, by: Time) -> Option<&Value> {
    owner.doomed().filter(|doomed| *doomed <= by).map(|_| owner.deletion().unwrap_or(owner.last()))
}

fn policy(owner: &Value) -> &str {
    owner["spec"]["deletionPolicy"].as_str().unwrap_or("Delete")
}

fn provider(app: &Seen) -> Option<&str> {
    let postgres = &app.last()["spec"]["postgres"];
    (postgres["enabled"] != false).then(|| postgres["provider"].as_str()).flatten()
}

fn has_finalizer(object: &Value, finalizer: &str) -> bool {
    object["metadata"]["finalizers"].as_array().is_some_and(|all| all.iter().any(|found| found == finalizer))
}

fn adopts(app: &Seen, by: Time) -> bool {
    app.versions.iter().any(|(time, object)| *time <= by && object["spec"]["postgres"]["adopt"] == true)
}

/// An object that is recreated without loss, or is a copy.
fn is_auxiliary(seen: &Seen, database: &Seen) -> bool {
    let name = &database.name;
    match seen.kind {
        Kind::Secret => [format!("{name}-app"), format!("{name}-replication")].contains(&seen.name),
        Kind::Volume => seen.name.starts_with(&format!("data-{name}-standby-")),
        _ => false,
    }
}

/// The consequence of an owner's deletion for one of its objects.
fn with(owner: &Seen, seen: &Seen, by: Time, asked: &Asked) -> Expectation {
    let what = owner.what();
    let Some(ending) = ending(owner, by) else { return Expectation::Stays(format!("{what} is alive")) };
    // Losing it is no loss, since it protects no data.
    let redis = seen.kind == Kind::Secret && seen.name.ends_with("-redis-secret");
    let stays = |why: String| if redis { Expectation::MayGo } else { Expectation::Stays(why) };
    if !asked.ended.contains(&owner.uid) && !asked.deleted.contains(&owner.uid) {
        return match seen.created() >= owner.created() {
            true => Expectation::MayGo,
            false => Expectation::Stays(format!("a request that failed created {what}, but not this object")),
        };
    }
    if has_finalizer(ending, "orphan") {
        return Expectation::Stays(format!("{what} was deleted with --cascade=orphan"));
    }
    if ending["undecodable"].is_string() {
        return stays(format!("{what} did not decode when it was deleted"));
    }
    let then = owner.at(by);
    if then["spec"]["suspend"] == true {
        return stays(format!("{what} is suspended"));
    }
    // Changed after the deletion began: both outcomes are right.
    if policy(then) != policy(ending) {
        return Expectation::MayGo;
    }
    if policy(ending) == "Retain" {
        return stays(format!("{what} was deleted with the policy Retain"));
    }
    match owner.gone.is_some_and(|gone| gone <= by) && !asked.cut.contains(&owner.uid) {
        true => Expectation::Goes(format!("{what} was deleted with the policy Delete")),
        false => Expectation::MayGo,
    }
}

/// The PerconaPGCluster that Percona created an object for.
fn cluster_of(object: &Value) -> Option<&str> {
    label(object, "postgres-operator.crunchydata.com/cluster").or(object["spec"]["pgCluster"].as_str())
}
