//! The oracles: what has to hold after each case, judged from the objects that are left, from the log of all writes and from
//! what the processes have left. Pure.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use jiff::{SignedDuration, Timestamp};
use serde_json::Value;

use super::audit::Entry;
use super::state::{Present, RELEASE, State, differences, named};
use super::{Condition, Oracle, Violation};

/// How many revisions a fault may cost.
const WASTED: i64 = 1;
/// After this long without its Lease an operator sends nothing more.
const TERM: SignedDuration = SignedDuration::from_secs(5);
/// Secrets shorter than this are found everywhere by chance.
const SECRET_LENGTH: usize = 8;
/// Plurals of the kinds that hold data, or whose objects open it.
const DATA: [&str; 5] = ["persistentvolumeclaims", "secrets", "postgresqls", "perconapgclusters", "perconapgbackups"];
/// Plurals of derived kinds, whose objects are made and deleted as Kubernetes sees fit.
const DERIVED: [&str; 6] = ["pods", "replicasets", "controllerrevisions", "endpointslices", "events", "endpoints"];

/// Everything that is known of a case once its operator has stopped.
#[derive(Clone, Debug, Default)]
pub struct Evidence {
    /// Says what is left in the namespace.
    pub state: State,
    /// All writes to it, in order.
    pub trace: Vec<Entry>,
    /// Says what the operators have logged.
    pub log: String,
    /// The command lines of all helm processes.
    pub arguments: Vec<String>,
    /// Runs of helm that began while another was at work on the release.
    pub overlaps: Vec<String>,
    /// Processes and files of the operators.
    pub leftovers: Vec<String>,
    /// When another holder took the Lease, and when an operator got it back.
    pub usurped: Option<(Timestamp, Timestamp)>,
    /// Says whether the API server was killed, so that its log may lack a write.
    pub has_gaps: bool,
    /// Says whether the scenario has ended before its time, so that less was made.
    pub is_cut_short: bool,
}

/// All violations of a case.
pub fn judge(undisturbed: &Evidence, case: &Evidence) -> Vec<Violation> {
    let found = [
        (Oracle::EndState, end_state(&undisturbed.state, &case.state)),
        (Oracle::Objects, [tallies(undisturbed, case), passwords(undisturbed, case)].concat()),
        (Oracle::OneWriter, [case.overlaps.clone(), usurped(case)].concat()),
        (Oracle::Secrecy, secrecy(case)),
        (Oracle::Truth, truth(case)),
        (Oracle::Orphans, case.leftovers.clone()),
    ];
    found.into_iter().flat_map(|(oracle, whys)| Violation::all(oracle, whys)).collect()
}

/// Returns how many revisions a release of the case has more than in the undisturbed run, at most.
pub fn wasted(undisturbed: &State, case: &State) -> i64 {
    let more = case.revisions.iter().map(|(name, revision)| revision - undisturbed.revisions.get(name).unwrap_or(&0));
    more.max().unwrap_or_default().max(0)
}

fn end_state(undisturbed: &State, case: &State) -> Vec<String> {
    let mut found = differences(undisturbed, case);
    if wasted(undisturbed, case) > WASTED {
        found.push(format!("the releases are at revisions {:?}, and not {:?}", case.revisions, undisturbed.revisions));
    }
    found
}

/// The uids of the objects that there were under a name. An object was made if it was ever seen, in the log or at the end, and
/// deleted if it is not there any more: a write whose client is killed, or gives up its lead, meanwhile is applied, and the log
/// calls it cancelled.
#[derive(Default)]
struct Tally {
    made: BTreeSet<String>,
    deleted: BTreeSet<String>,
    by: BTreeSet<String>,
}

fn tally(case: &Evidence) -> BTreeMap<(String, String), Tally> {
    let mut tallies: BTreeMap<_, Tally> = BTreeMap::new();
    let is_counted = |resource: &str, name: &str| {
        let of_helm = resource == "secrets" && name.starts_with("sh.helm.release.");
        !of_helm && !DERIVED.contains(&resource) && !resource.contains('/')
    };
    for Present { resource, name, uid } in &case.state.present {
        if is_counted(resource, name) {
            tallies.entry((resource.clone(), named(name))).or_default().made.insert(uid.clone());
        }
    }
    for entry in case.trace.iter().filter(|entry| !entry.uid.is_empty()) {
        if !is_counted(&entry.resource, &entry.name) {
            continue;
        }
        // That of the case.
        let name = if entry.resource == "namespaces" { String::new() } else { named(&entry.name) };
        let tally = tallies.entry((entry.resource.clone(), name)).or_default();
        tally.made.insert(entry.uid.clone());
        if !case.state.uids.contains(&entry.uid) {
            tally.deleted.insert(entry.uid.clone());
        }
        if entry.created {
            tally.by.insert(format!("made by {}", entry.actor));
        } else if entry.deletes() {
            tally.by.insert(format!("deleted by {}", entry.actor));
        }
    }
    tallies
}

/// How often the HTTP API has deleted the ClientApp of a request that had failed half way. The user has asked again, and all was
/// made once more.
fn undone(undisturbed: &Evidence, case: &Evidence) -> usize {
    let deleted = |case: &Evidence| {
        let apps = case.trace.iter().filter(|entry| entry.resource == "clientapps" && entry.deletes());
        apps.filter(|entry| entry.by_operator()).map(|entry| &entry.uid).collect::<BTreeSet<_>>().len()
    };
    deleted(case).saturating_sub(deleted(undisturbed))
}

fn tallies(undisturbed: &Evidence, case: &Evidence) -> Vec<String> {
    let (before, after) = (tally(undisturbed), tally(case));
    let (none, undone) = (Tally::default(), undone(undisturbed, case));
    let keys: BTreeSet<_> = before.keys().chain(after.keys()).collect();
    let mut found = Vec::new();
    for key in keys {
        let (before, after) = (before.get(key).unwrap_or(&none), after.get(key).unwrap_or(&none));
        let (resource, name) = key;
        let data = if DATA.contains(&resource.as_str()) { ", which holds or opens data," } else { "" };
        let by = after.by.iter().map(String::as_str).collect::<Vec<_>>().join(", ");
        for (word, before, after) in [("made", &before.made, &after.made), ("deleted", &before.deleted, &after.deleted)]
        {
            let (so_often, often) = (after.len(), before.len());
            let unlogged = (case.has_gaps || case.is_cut_short) && so_often < often;
            let again = often < so_often && so_often <= often + undone;
            if so_often != often && !unlogged && !again {
                found.push(format!("{resource} {name}{data} was {word} {so_often} times, and not {often} ({by})"));
            }
        }
    }
    found
}

/// The values of a Secret, decoded, under keys that tell of a password.
fn secret_values(secret: &Value) -> impl Iterator<Item = (&str, String)> {
    let data = secret["data"].as_object().into_iter().flatten();
    data.filter(|(key, _)| key.contains("password")).filter_map(|(key, value)| {
        let decoded = BASE64_STANDARD.decode(value.as_str()?).ok()?;
        Some((key.as_str(), String::from_utf8(decoded).ok()?))
    })
}

/// The Secrets in the log, in every version, except Helm's own.
fn secrets(case: &Evidence) -> impl Iterator<Item = (&Entry, &Value)> {
    let of_secrets = case.trace.iter().filter(|entry| entry.resource == "secrets");
    of_secrets.map(|entry| (entry, &entry.object)).filter(|(_, secret)| secret["type"] != RELEASE)
}

/// The different passwords that there were under each name and key.
fn passwords_of(case: &Evidence) -> BTreeMap<(String, String), BTreeSet<String>> {
    let mut found: BTreeMap<_, BTreeSet<String>> = BTreeMap::new();
    for (entry, secret) in secrets(case) {
        for (key, password) in secret_values(secret) {
            found.entry((entry.name.clone(), key.to_owned())).or_default().insert(password);
        }
    }
    found
}

fn passwords(undisturbed: &Evidence, case: &Evidence) -> Vec<String> {
    let (before, undone) = (passwords_of(undisturbed), undone(undisturbed, case));
    let more = passwords_of(case).into_iter().filter_map(|(place, passwords)| {
        let (had, has) = (before.get(&place).map_or(0, BTreeSet::len), passwords.len());
        let (name, key) = &place;
        (has > had.max(1) + undone).then(|| format!("Secret {name} had {has} different values of {key}, and not {had}"))
    });
    more.collect()
}

/// Writes after the end of the term, and before an operator had the Lease again.
fn usurped(case: &Evidence) -> Vec<String> {
    let Some((taken, got_back)) = case.usurped else { return Vec::new() };
    let late = case.trace.iter().filter(|entry| entry.by_operator() && taken + TERM < entry.at && entry.at < got_back);
    late.map(|entry| {
        let Entry { at, actor, verb, resource, name, .. } = entry;
        format!("{actor} sent {verb} {resource} {name} {} after the Lease was lost", at.duration_since(taken))
    })
    .collect()
}

fn secrecy(case: &Evidence) -> Vec<String> {
    let mut found = leaks(case);
    if canaries(case).is_empty() && !case.is_cut_short {
        found.push("no Secret with a password was seen, so that nothing was looked for".to_owned());
    }
    found
}

/// The passwords in all Secrets.
fn canaries(case: &Evidence) -> BTreeSet<String> {
    secrets(case).flat_map(|(_, secret)| passwords_in(secret)).collect()
}

/// The passwords in a Secret that are long enough to be looked for.
pub fn passwords_in(secret: &Value) -> Vec<String> {
    let long = secret_values(secret).map(|(_, value)| value).filter(|value| value.len() >= SECRET_LENGTH);
    long.collect()
}

/// Where a password is besides Secrets.
pub fn leaks(case: &Evidence) -> Vec<String> {
    let canaries = canaries(case);
    let mut found = exposed(&canaries, &case.log, &case.arguments);
    for (entry, line) in case.trace.iter().filter_map(|entry| Some((entry, entry.line.as_deref()?))) {
        if canaries.iter().any(|canary| is_in(line, canary)) {
            found.push(format!("a password is in {} {}, written by {}", entry.resource, entry.name, entry.actor));
        }
    }
    found
}

/// Where a password is in what operators and helm say.
pub fn exposed(canaries: &BTreeSet<String>, log: &str, arguments: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for canary in canaries {
        if is_in(log, canary) {
            found.push("a password is in the operator's log".to_owned());
        }
        if let Some(arguments) = arguments.iter().find(|arguments| is_in(arguments, canary)) {
            found.push(format!("a password is in helm's command line: {arguments}"));
        }
    }
    found
}

fn is_in(text: &str, canary: &str) -> bool {
    text.contains(canary) || text.contains(&BASE64_STANDARD.encode(canary))
}

/// A Deployment or StatefulSet that helm has made.
#[derive(Debug)]
struct Workload {
    /// The release that it belongs to.
    app: String,
    /// Its plural and its name.
    name: String,
    made: Timestamp,
    /// When it first had all its replicas.
    complete: Option<Timestamp>,
    gone: Option<Timestamp>,
}

/// The release's workloads, each by its uid. The times are those of the requests, which are in the order of cause and effect.
fn workloads(case: &Evidence) -> Vec<Workload> {
    let mut found: BTreeMap<&str, Workload> = BTreeMap::new();
    for entry in &case.trace {
        let plural = entry.resource.split('/').next().unwrap_or_default();
        let app = entry.object["metadata"]["annotations"]["meta.helm.sh/release-name"].as_str();
        if entry.uid.is_empty() || !["deployments", "statefulsets"].contains(&plural) {
            continue;
        }
        let workload = match (found.get_mut(entry.uid.as_str()), app) {
            (Some(workload), _) => workload,
            (None, Some(app)) => found.entry(&entry.uid).or_insert_with(|| Workload {
                app: app.to_owned(),
                name: format!("{plural} {}", entry.name),
                made: entry.at,
                complete: None,
                gone: None,
            }),
            (None, None) => continue,
        };
        let (wanted, status) = (entry.object["spec"]["replicas"].as_i64().unwrap_or(1), &entry.object["status"]);
        if entry.deletes() {
            workload.gone.get_or_insert(entry.at);
        } else if wanted == 0 || status["availableReplicas"].as_i64().is_some_and(|available| available >= wanted) {
            workload.complete.get_or_insert(entry.at);
        }
    }
    found.into_values().collect()
}

fn truth(case: &Evidence) -> Vec<String> {
    let (mut found, workloads) = (Vec::new(), workloads(case));
    // The revisions that Helm has called deployed so far.
    let mut deployed = BTreeSet::new();
    for entry in &case.trace {
        let object = &entry.object;
        let labels = &object["metadata"]["labels"];
        if object["type"] == RELEASE && labels["status"] == "deployed" {
            deployed.extend(labels["version"].as_str().and_then(|version| version.parse::<i64>().ok()));
        }
        let is_ready = Condition::holds(object, "Ready");
        if entry.resource == "clientapps/status" && is_ready && !case.has_gaps {
            let revision = object["status"]["release"]["revision"].as_i64();
            if revision.is_none_or(|revision| !deployed.contains(&revision)) {
                found.push(format!("{} was told Ready at revision {revision:?}, which was not deployed", entry.name));
            }
            for workload in workloads.iter().filter(|workload| workload.app == entry.name) {
                let is_its_own = workload.made < entry.at && workload.gone.is_none_or(|gone| entry.at < gone);
                if is_its_own && workload.complete.is_none_or(|complete| entry.at < complete) {
                    found.push(format!("{} was told Ready, and {} never was until then", entry.name, workload.name));
                }
            }
        }
    }
    for app in &case.state.apps {
        let name = app["metadata"]["name"].as_str().unwrap_or_default();
        let (told, is) = (&app["status"]["observedGeneration"], &app["metadata"]["generation"]);
        if told != is {
            found.push(format!("the status of {name} is of generation {told}, and the spec of {is}"));
        }
        let revision = app["status"]["release"]["revision"].as_i64().unwrap_or_default();
        let newest = case.state.revisions.get(name).copied().unwrap_or_default();
        if revision != newest {
            found.push(format!("the status of {name} tells revision {revision}, and Helm has {newest}"));
        }
    }
    found
}

#[cfg(test)]
mod tests;
