//! Decides when the apps that have a Profile's revision are asked for their health, and what their answers say. **Pure**, except for
//! [`request`].

mod request;

use std::{
    collections::BTreeMap,
    net::{IpAddr, SocketAddr},
};

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::core::v1::{Service, ServicePort},
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::ResourceExt as _;
use parking_lot::Mutex;
use serde_json::Value;

pub(super) use self::request::ask;
use super::waves::{AppView, Health};
use crate::{
    crd::{ClientApp, HealthCheck},
    platform::key::Key,
};

/// Default of `periodSeconds`.
const PERIOD: i32 = 10;
/// Default of `failureThreshold`.
const THRESHOLD: i32 = 12;
/// A text of an answer that is longer is not quoted.
const QUOTED: usize = 32;
/// Limit for the name of an object that a chart makes of its release's, as in `helm create`.
const NAME: usize = 63;

/// What an answer is about: it says nothing about another revision, another time of being Ready, or another question.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Subject {
    /// Name of the revision.
    revision: String,
    /// Since when the app is Ready with it.
    ready_since: Timestamp,
    pub(super) check: HealthCheck,
}

/// An app that is to be asked.
#[derive(Clone, Debug)]
pub(super) struct Question {
    /// Name and uid of the Profile.
    pub(super) profile: (String, String),
    pub(super) app: Key,
    /// uid of the app.
    uid: String,
    pub(super) subject: Subject,
}

/// Says what came of asking an app.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The answer is as it should be.
    Right,
    /// It is not, for this reason.
    Wrong(String),
    /// The app could not be asked, for a reason that is not its own.
    Unknown(String),
}

/// Holds what is known of an app.
#[derive(Clone, Debug)]
struct Checked {
    subject: Subject,
    /// True while it is being asked.
    is_asked: bool,
    /// When it was last asked.
    at: Option<Timestamp>,
    /// What was wrong then.
    problem: Option<String>,
    /// How often in a row its answer was wrong.
    failures: i32,
    /// Since when its answers are right, if they were wrong before.
    right_since: Option<Timestamp>,
}

/// Remembers the answers of apps while a rollout waits for them, by uid of the Profile and of the app. After a restart all of them are
/// asked again.
#[derive(Default)]
pub(super) struct Checks(Mutex<BTreeMap<String, BTreeMap<String, Checked>>>);

/// The revision that is judged, how, and for how long.
#[derive(Clone, Copy, Debug)]
pub(super) struct Judged<'a> {
    /// Number and name of the revision.
    pub(super) revision: (i64, &'a str),
    pub(super) check: &'a HealthCheck,
    pub(super) soak: SignedDuration,
}

impl Checks {
    /// Judges the apps that are Ready with the revision by their answers. Returns those that are to be asked now, and when another one is.
    ///
    /// An app that was not asked yet waits. It is asked once it is Ready and once its soak has ended, and while its answers are wrong.
    pub(super) fn judge(
        &self,
        profile: (&str, &str),
        Judged { revision: (number, name), check, soak }: Judged<'_>,
        apps: &mut [AppView],
        now: Timestamp,
    ) -> (Vec<Question>, Option<Timestamp>) {
        let mut all = self.0.lock();
        let mut former = all.remove(profile.1).unwrap_or_default();
        let (mut known, mut due, mut next) = (BTreeMap::new(), Vec::new(), None);
        for app in apps.iter_mut().filter(|app| app.revision == Some(number) && !app.is_out) {
            let Health::Ready(ready_since) = app.health else { continue };
            let subject = Subject { revision: name.to_owned(), ready_since, check: check.clone() };
            let of_it = former.remove(&app.uid).filter(|checked| checked.subject == subject);
            let mut checked = of_it.unwrap_or_else(|| Checked::new(subject));
            let (health, again) = checked.verdict(soak, now);
            (app.health, app.unhealthy) = (health, checked.problem.clone());
            match again {
                Some(_) if checked.is_asked => {}
                Some(at) if at <= now => {
                    checked.is_asked = true;
                    let profile = (profile.0.to_owned(), profile.1.to_owned());
                    let (uid, subject) = (app.uid.clone(), checked.subject.clone());
                    due.push(Question { profile, app: app.key.clone(), uid, subject });
                }
                Some(at) => next = Some(next.map_or(at, |next: Timestamp| next.min(at))),
                None => {}
            }
            known.insert(app.uid.clone(), checked);
        }
        all.insert(profile.1.to_owned(), known);
        (due, next)
    }

    /// Forgets the answers of a Profile's apps: its rollout is over.
    pub(super) fn forget(&self, profile: &str) {
        self.0.lock().remove(profile);
    }

    /// Records what came of a question, unless the app has changed meanwhile.
    pub(super) fn record(&self, Question { profile, uid, subject, .. }: &Question, outcome: Outcome, now: Timestamp) {
        let mut all = self.0.lock();
        let known = all.get_mut(&profile.1).and_then(|known| known.get_mut(uid));
        let Some(checked) = known.filter(|checked| checked.subject == *subject) else { return };
        (checked.is_asked, checked.at) = (false, Some(now));
        checked.problem = match outcome {
            Outcome::Right => {
                if checked.failures > 0 {
                    (checked.failures, checked.right_since) = (0, Some(now));
                }
                None
            }
            Outcome::Wrong(problem) => {
                checked.failures = checked.failures.saturating_add(1);
                Some(problem)
            }
            Outcome::Unknown(problem) => Some(problem),
        };
    }
}

impl Checked {
    fn new(subject: Subject) -> Checked {
        Checked { subject, is_asked: false, at: None, problem: None, failures: 0, right_since: None }
    }

    /// Returns how the app does, and when it is to be asked again.
    fn verdict(&self, soak: SignedDuration, now: Timestamp) -> (Health, Option<Timestamp>) {
        let Subject { check, ready_since, .. } = &self.subject;
        let Some(at) = self.at else { return (Health::Waits, Some(now)) };
        if self.problem.is_some() {
            let has_failed = self.failures >= check.failure_threshold.unwrap_or(THRESHOLD);
            let period = SignedDuration::from_secs(check.period_seconds.unwrap_or(PERIOD).into());
            // Of a clock that was set back, a time may be far ahead.
            return (if has_failed { Health::Failed } else { Health::Waits }, Some(at.min(now) + period));
        }
        let since = self.right_since.map_or(*ready_since, |since| since.max(*ready_since));
        let end = since + soak;
        match () {
            () if at >= end => (Health::Ready(since), None),
            () if now < end => (Health::Ready(since), Some(end)),
            () => (Health::Waits, Some(now)),
        }
    }
}

/// Returns the name of the Service that the chart makes for the app itself, by Helm's convention. No values change it, except for
/// `nameOverride`.
///
/// # Errors
/// The release has no such Service.
pub(super) fn service(app: &ClientApp, chart: &str) -> Result<String, String> {
    let release = app.name_any();
    let full = if release.contains(chart) { release } else { format!("{release}-{chart}") };
    let name = full.get(..NAME).unwrap_or(&full).trim_end_matches('-');
    let inventory = app.status.as_ref().and_then(|status| status.inventory.as_ref());
    let mut objects = inventory.into_iter().flat_map(|inventory| &inventory.objects);
    let is_it = objects.any(|object| {
        let is_here = object.namespace.is_none() || object.namespace == app.metadata.namespace;
        (object.api_version.as_str(), object.kind.as_str(), object.name.as_str()) == ("v1", "Service", name) && is_here
    });
    let missing = || format!("its release has no Service {name} (nameOverride?)");
    is_it.then(|| name.to_owned()).ok_or_else(missing)
}

/// Returns the address of a Service inside the cluster. Only one that Kubernetes itself sends on to pods of the Service's namespace is
/// asked: with another, whoever may write Services could let the operator ask any host.
///
/// # Errors
/// It has none.
pub(super) fn address(service: &Service, wanted: Option<&IntOrString>) -> Result<SocketAddr, String> {
    let name = service.name_any();
    let spec = service.spec.clone().unwrap_or_default();
    let type_ = spec.type_.as_deref().unwrap_or("ClusterIP");
    if !["ClusterIP", "NodePort", "LoadBalancer"].contains(&type_) {
        return Err(format!("Service {name} is of type {type_}"));
    }
    if spec.selector.unwrap_or_default().is_empty() {
        return Err(format!("Service {name} selects no pods"));
    }
    let address = spec.cluster_ip.as_deref().and_then(|address| address.parse::<IpAddr>().ok());
    let address = address.ok_or_else(|| format!("Service {name} has no address inside the cluster"))?;
    let ports: Vec<_> =
        spec.ports.iter().flatten().filter(|port| port.protocol.as_deref().is_none_or(|it| it == "TCP")).collect();
    let named = |name: &str| ports.iter().find(|port| port.name.as_deref() == Some(name));
    let port: Option<&&ServicePort> = match wanted {
        None => named("http").or(ports.first()),
        Some(IntOrString::Int(number)) => ports.iter().find(|port| port.port == *number),
        Some(IntOrString::String(name)) => named(name),
    };
    let port = port.and_then(|port| u16::try_from(port.port).ok());
    let missing = || match wanted {
        None => format!("Service {name} has no port"),
        Some(IntOrString::Int(number)) => format!("Service {name} has no port {number}"),
        Some(IntOrString::String(wanted)) => format!("Service {name} has no port {wanted}"),
    };
    Ok(SocketAddr::new(address, port.ok_or_else(missing)?))
}

/// Judges the status of an answer.
///
/// # Errors
/// It is another than it should be.
fn status_is_right(check: &HealthCheck, status: u16) -> Result<(), String> {
    let path = &check.path;
    match status {
        200..300 => Ok(()),
        300..400 => Err(format!("{path} answers {status}, a redirect, which is not followed")),
        _ => Err(format!("{path} answers {status}, expected 200 to 299")),
    }
}

/// Judges what an answer says. Of that, only a short value at a pointer is quoted.
///
/// # Errors
/// It says something else than it should.
fn content_is_right(check: &HealthCheck, content: &[u8]) -> Result<(), String> {
    let path = &check.path;
    let document: Value = serde_json::from_slice(content).map_err(|_| format!("{path} does not answer JSON"))?;
    check.json.iter().try_for_each(|expected| {
        let (pointer, value) = (&expected.pointer, shown(&expected.value));
        match document.pointer(pointer) {
            Some(found) if *found == expected.value => Ok(()),
            Some(found) => Err(format!("{path} says {pointer} {}, expected {value}", shown(found))),
            None => Err(format!("{path} says nothing about {pointer}, expected {value}")),
        }
    })
}

fn shown(value: &Value) -> String {
    let is_short = |text: &str| text.len() <= QUOTED && text.chars().all(|c| c == ' ' || c.is_ascii_graphic());
    match value {
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
        Value::String(text) if is_short(text) => value.to_string(),
        Value::String(_) => "a long text".to_owned(),
        Value::Array(_) => "a list".to_owned(),
        Value::Object(_) => "an object".to_owned(),
    }
}

#[cfg(test)]
mod tests;
