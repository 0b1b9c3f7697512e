//! Whose everything is, and what may become of it. Pure.
//!
//! Known from who made an object and when, by the API server's own word, and from what the steps of the life asked for; never
//! from what the operator has on record or has written on the object: that is what is on trial.

use std::collections::{BTreeMap, BTreeSet};

use clientapp_operator::crd::label::RETAINED_FROM;
use serde_json::Value;

use super::audit::{Actor, Request};
use super::history::{Kind, Record, Seen, Time, label};
use super::recorder::RELEASE;
use super::step::SOLO;

/// The end of all times.
pub const NOW: Time = Time::MAX;

/// What the steps of a life have asked for themselves.
#[derive(Clone, Debug, Default)]
pub struct Asked {
    /// The uids of what was planted, and when it was written to last by a step.
    pub planted: BTreeMap<String, Time>,
    /// The uids of what was deleted by hand. A ClientApp is not deleted by hand: its policy says what goes with it.
    pub deleted: BTreeSet<String>,
    /// The uids of the ClientApps and Postgresqls whose deletion was asked for.
    pub ended: BTreeSet<String>,
    /// The uids of those whose finalizers were taken off.
    pub cut: BTreeSet<String>,
    /// The uids of what was written into the status of a ClientApp.
    pub on_record: BTreeSet<String>,
    /// The uids of what was marked with the uid of one.
    pub marked: BTreeSet<String>,
    /// When the namespace was deleted.
    pub namespaces: Vec<Time>,
}

/// All that is known of a life.
pub struct Facts<'a> {
    /// What was ever there, in the order in which it was made.
    pub objects: Vec<&'a Seen>,
    /// What its steps have asked for.
    pub asked: &'a Asked,
    /// Who made each object, by uid.
    makers: BTreeMap<&'a str, &'a Actor>,
    requests: &'a [Request],
}

/// Whose an object is.
#[derive(Clone, Copy, Debug)]
pub enum Owner<'a> {
    /// Of the life: it was planted.
    Foreign,
    /// Of a release of another Helm client.
    OtherRelease,
    /// Of this ClientApp.
    App(&'a Seen),
    /// Of this Postgresql, which serves no ClientApp.
    Solo(&'a Seen),
    /// Not known. Nothing is said about it.
    Unknown,
}

/// What may become of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Expectation {
    /// It has to be there, and why.
    Stays(String),
    /// It may be there or not.
    MayGo,
    /// It has to go, or to be named as kept; and why.
    Goes(String),
}

impl<'a> Facts<'a> {
    /// Puts together what is known of a namespace.
    #[must_use]
    pub fn new(record: &'a Record, namespace: &str, requests: &'a [Request], asked: &'a Asked) -> Facts<'a> {
        let objects = record.of(namespace);
        let mut made: BTreeMap<(&str, &str), std::vec::IntoIter<&Actor>> = BTreeMap::new();
        let mut by_name: BTreeMap<(&str, &str), Vec<&Actor>> = BTreeMap::new();
        for request in requests.iter().filter(|request| request.created) {
            by_name.entry((&request.resource, &request.name)).or_default().push(&request.actor);
        }
        made.extend(by_name.into_iter().map(|(name, actors)| (name, actors.into_iter())));
        // One after the other: an object is made only when the one before it of its name is gone.
        let makers = objects
            .iter()
            .filter_map(|seen| {
                let maker = made.get_mut(&(seen.kind.plural(), seen.name.as_str()))?.next()?;
                Some((seen.uid.as_str(), maker))
            })
            .collect();
        Facts { objects, asked, makers, requests }
    }

    /// The objects of a kind.
    pub fn of_kind(&self, kind: Kind) -> impl DoubleEndedIterator<Item = &'a Seen> + '_ {
        self.objects.iter().copied().filter(move |seen| seen.kind == kind)
    }

    /// Who made an object.
    #[must_use]
    pub fn maker(&self, seen: &Seen) -> Option<&'a Actor> {
        self.makers.get(seen.uid.as_str()).copied()
    }

    /// The request by which an object was deleted.
    #[must_use]
    pub fn deleter(&self, seen: &Seen) -> Option<&'a Request> {
        let lost = seen.lost_at?;
        self.requests.iter().rfind(|request| {
            let named = request.name == seen.name || (request.verb == "deletecollection" && request.name.is_empty());
            request.verb.starts_with("delete") && request.resource == seen.kind.plural() && named && request.at <= lost
        })
    }

    /// Whether an object holds data or opens some. Helm's own records do not, nor do Percona's certificates.
    #[must_use]
    pub fn is_data(&self, seen: &Seen) -> bool {
        let certificate = self.maker(seen) == Some(&Actor::Percona)
            && seen.kind == Kind::Secret
            && label(seen.first(), "postgres-operator.crunchydata.com/role") != Some("pguser");
        seen.kind.is_data() && seen.first()["type"] != RELEASE && !certificate
    }

    /// Who made the object that has a name now.
    #[must_use]
    pub fn maker_of(&self, resource: &str, name: &str) -> Option<&'a Actor> {
        let made = |request: &&Request| request.created && request.resource == resource && request.name == name;
        self.requests.iter().rfind(made).map(|request| &request.actor)
    }

    /// The object of a name that was there at a time; or else the last one before.
    fn named_at(&self, kind: Kind, name: &str, time: Time) -> Option<&'a Seen> {
        let mut named: Vec<_> = self.of_kind(kind).filter(|seen| seen.name == name && seen.created() <= time).collect();
        let there = named.iter().rposition(|seen| seen.is_there_at(time));
        there.map(|index| named[index]).or(named.pop())
    }

    fn app_at(&self, name: &str, time: Time) -> Owner<'a> {
        self.named_at(Kind::App, name, time).map_or(Owner::Unknown, Owner::App)
    }

    /// The object out of a set of names that another name is made of: `acme-pg-app` is of `acme-pg`.
    fn part_of(&self, kind: Kind, time: Time, made_of: impl Fn(&str) -> bool) -> Option<&'a Seen> {
        let parents = self.of_kind(kind).filter(|seen| seen.is_there_at(time) && made_of(&seen.name));
        parents.max_by_key(|seen| seen.name.len())
    }

    /// The Postgresql that an object was made for.
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

    /// The StatefulSet that a claim was made for.
    fn set_of(&self, claim: &Seen) -> Option<&'a Seen> {
        self.part_of(Kind::StatefulSet, claim.created(), |name| claim.name.contains(&format!("-{name}-")))
    }

    /// Whose an object is since it was made.
    #[must_use]
    pub fn owner(&self, seen: &'a Seen) -> Owner<'a> {
        let time = seen.created();
        // A backup is its cluster's, even one that a user has asked for.
        if self.asked.planted.contains_key(&seen.uid) && seen.kind != Kind::Backup {
            return Owner::Foreign;
        }
        let of_cluster = |cluster: Option<&str>| {
            let cluster = cluster.and_then(|name| self.named_at(Kind::Cluster, name, time));
            cluster.map_or(Owner::Unknown, |cluster| self.owner(cluster))
        };
        match self.maker(seen) {
            Some(Actor::Life) if seen.kind == Kind::Backup => of_cluster(seen.first()["spec"]["pgCluster"].as_str()),
            Some(Actor::Life) if seen.kind == Kind::Postgresql && seen.name == SOLO => Owner::Solo(seen),
            Some(Actor::OtherHelm) => Owner::OtherRelease,
            Some(Actor::OperatorHelm) => {
                let release = seen.first()["metadata"]["annotations"]["meta.helm.sh/release-name"].as_str();
                let release = release.or(label(seen.first(), "name"));
                release.map_or(Owner::Unknown, |release| self.app_at(release, time))
            }
            Some(Actor::Percona) => {
                let of = label(seen.first(), "postgres-operator.crunchydata.com/cluster");
                of_cluster(of.or(seen.first()["spec"]["pgCluster"].as_str()))
            }
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

    /// Whose that is which a Postgresql has made: one that is foreign goes by its own policy.
    fn of_postgresql(&self, database: &'a Seen) -> Owner<'a> {
        match self.owner(database) {
            Owner::Foreign => Owner::Solo(database),
            owner => owner,
        }
    }

    /// Whether the operator has run a release for this ClientApp before a time.
    #[must_use]
    pub fn was_released(&self, app: &Seen, before: Time) -> bool {
        let until = app.gone.unwrap_or(NOW).min(before);
        self.of_kind(Kind::Secret).any(|seen| {
            seen.first()["type"] == RELEASE
                && label(seen.first(), "name") == Some(&app.name)
                && self.maker(seen) == Some(&Actor::OperatorHelm)
                && (app.created()..=until).contains(&seen.created())
        })
    }

    /// What may have become of an object by a time.
    #[must_use]
    pub fn expectation(&self, seen: &'a Seen, by: Time) -> Expectation {
        match self.expectation_of_its_owners(seen, by) {
            // A backup that a user has asked for goes with its cluster, if Percona has come to know of it in time.
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
                // Credentials that were never used open nothing, whatever the policy.
                match self.with_app(seen, app, by) {
                    Expectation::Stays(_) if self.is_unused(seen, app, by) => Expectation::MayGo,
                    expectation => expectation,
                }
            }
            Owner::OtherRelease => {
                let app = label(seen.first(), "app.kubernetes.io/instance");
                let app = app.and_then(|name| self.named_at(Kind::App, name, by));
                match app.filter(|app| app.created() <= seen.created() && self.was_released(app, seen.created())) {
                    // Another client has changed the release of a ClientApp: it may be said to be of either.
                    Some(app) if app.doomed().is_some_and(|doomed| doomed <= by) => Expectation::MayGo,
                    _ => Expectation::Stays("it is of a release that another Helm client has made".to_owned()),
                }
            }
            // Who may write both sides can hand anything over.
            Owner::Foreign if self.asked.on_record.contains(&seen.uid) && self.asked.marked.contains(&seen.uid) => {
                Expectation::MayGo
            }
            Owner::Foreign => {
                // Who may label it may hand it over so, and an adoption asks for just that.
                let left_by = label(seen.first(), RETAINED_FROM).unwrap_or_default();
                let mut adopters = self.of_kind(Kind::App).filter(|app| app.name == left_by && adopts(app, by));
                match adopters.next_back().map(|app| with(app, seen, by, self.asked)) {
                    Some(Expectation::Goes(_) | Expectation::MayGo) => Expectation::MayGo,
                    _ => Expectation::Stays("it is foreign".to_owned()),
                }
            }
        }
    }

    /// The expectation of what was made for a ClientApp, and for those that have adopted it since.
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
                // It may have got as far as this object, or not.
                (Expectation::Stays(_), Expectation::Stays(why)) => Expectation::Stays(why),
                _ => Expectation::MayGo,
            };
        }
        expectation
    }

    /// Whether these are credentials of a deleted ClientApp that has never had any data.
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

    /// Whether an object is adopted by a ClientApp with this provider: a database is by its own alone.
    fn is_of_provider(&self, seen: &Seen, provider: Option<&str>) -> bool {
        let of_percona = matches!(seen.kind, Kind::Cluster | Kind::Backup) || self.maker(seen) == Some(&Actor::Percona);
        let of_standalone = seen.kind == Kind::Postgresql || self.postgresql_of(seen).is_some();
        match (of_percona, of_standalone) {
            (true, _) => provider == Some("percona"),
            (_, true) => provider == Some("standalone"),
            _ => true,
        }
    }

    /// The expectation of what was made for a Postgresql that serves no ClientApp, itself included.
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

/// A deleted object as it was when its deletion began.
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

/// What is recreated without loss, or is a copy.
fn is_auxiliary(seen: &Seen, database: &Seen) -> bool {
    let name = &database.name;
    match seen.kind {
        Kind::Secret => [format!("{name}-app"), format!("{name}-replication")].contains(&seen.name),
        Kind::Volume => seen.name.starts_with(&format!("data-{name}-standby-")),
        _ => false,
    }
}

/// What the deletion of an owner means for an object of its own.
fn with(owner: &Seen, seen: &Seen, by: Time, asked: &Asked) -> Expectation {
    let what = owner.what();
    let Some(ending) = ending(owner, by) else { return Expectation::Stays(format!("{what} is alive")) };
    // Its loss is none: nothing is kept by it.
    let redis = seen.kind == Kind::Secret && seen.name.ends_with("-redis-secret");
    let stays = |why: String| if redis { Expectation::MayGo } else { Expectation::Stays(why) };
    if !asked.ended.contains(&owner.uid) && !asked.deleted.contains(&owner.uid) {
        return match seen.created() >= owner.created() {
            true => Expectation::MayGo,
            false => Expectation::Stays(format!("a request that failed has made {what}, and did not make this")),
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
    // Changed when the deletion had begun: either is right.
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
