//! The operator's metrics, in Prometheus' text format under `/metrics`.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use parking_lot::Mutex;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use crate::{
    crd::{
        Reason,
        conditions::{find, kind},
    },
    leadership::Leadership,
};

pub(crate) type Labels = Vec<(&'static str, String)>;
/// One object's share in a gauge. Shares with the same labels are added up.
pub(crate) type Sample = (Measure, Labels, i64);
type Source = Box<dyn Fn() -> Vec<Sample> + Send + Sync>;
type Histograms = Family<Labels, Histogram, fn() -> Histogram>;

/// A gauge that the leader computes from its caches at each scrape.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Measure {
    Apps,
    AppsInstalled,
    CertificateNotAfter,
    CertificateNotBefore,
    FilesBackup,
    FilesBackupOverdue,
    HelmQueue,
    PostgresqlBackup,
    PostgresqlBackupOverdue,
    Profiles,
    RolloutWave,
    RolloutWaves,
}

/// Only times are labelled by object, because without a name they are useless; a thousand apps would be a thousand series.
const MEASURES: [(Measure, &str, &str); 12] = [
    (Measure::Apps, "apps", "ClientApps by status and reason of Ready"),
    (Measure::AppsInstalled, "apps_installed", "ClientApps by what they have: chart version, Profile and its revision"),
    (Measure::CertificateNotAfter, "certificate_not_after_timestamp_seconds", "When a ClientApp's certificate expires"),
    (Measure::CertificateNotBefore, "certificate_not_before_timestamp_seconds", "Since when it is valid"),
    (
        Measure::FilesBackup,
        "files_last_successful_backup_timestamp_seconds",
        "When the last archive of a ClientApp's files was complete, 0 if none was, of those with a schedule",
    ),
    (
        Measure::FilesBackupOverdue,
        "files_backup_overdue_timestamp_seconds",
        "When two archives in a row by the schedule of a ClientApp's files are missing",
    ),
    (Measure::HelmQueue, "helm_queue_depth", "ClientApps that wait for a slot in which helm may run"),
    (
        Measure::PostgresqlBackup,
        "postgresql_last_successful_backup_timestamp_seconds",
        "When the last dump of a Postgresql with a schedule was complete, 0 if none was",
    ),
    (
        Measure::PostgresqlBackupOverdue,
        "postgresql_backup_overdue_timestamp_seconds",
        "When two dumps or drills in a row by the schedule of a Postgresql are missing",
    ),
    (Measure::Profiles, "profiles", "Profiles with status and reason of Ready"),
    (Measure::RolloutWave, "rollout_wave", "The wave that a Profile's rollout is in"),
    (Measure::RolloutWaves, "rollout_waves", "How many waves that rollout has"),
];

/// Returns status and reason of `Ready` as labels.
pub(crate) fn ready_labels(conditions: &[Condition]) -> Labels {
    let ready = find(conditions, kind::READY);
    let (state, reason) = ready.map_or(("Unknown", ""), |ready| (ready.status.as_str(), ready.reason.as_str()));
    vec![("state", state.to_owned()), ("reason", reason.to_owned())]
}

/// Returns the times of an object that it has, as samples with its namespace and name.
pub(crate) fn times<const N: usize>(
    namespace: &str,
    name: &str,
    times: [(Measure, Option<Timestamp>); N],
) -> impl Iterator<Item = Sample> + use<N> {
    let labels = vec![("namespace", namespace.to_owned()), ("name", name.to_owned())];
    times.into_iter().filter_map(move |(measure, time)| Some((measure, labels.clone(), time?.as_second())))
}

/// Cheap to update.
pub(crate) struct Metrics {
    registry: Registry,
    reconciles: Histograms,
    failures: Family<Labels, Counter>,
    helm_runs: Histograms,
    leader: Gauge,
    lead: Mutex<Option<Leadership>>,
    gauges: BTreeMap<Measure, Family<Labels, Gauge>>,
    /// By kind, while this operator runs its controller.
    sources: Mutex<BTreeMap<&'static str, Source>>,
}

/// Ends the samples of a kind when it is dropped.
pub(crate) struct Measuring(Arc<Metrics>, &'static str);

impl Drop for Measuring {
    fn drop(&mut self) {
        self.0.sources.lock().remove(self.1);
    }
}

impl Default for Metrics {
    fn default() -> Self {
        let reconciles =
            Histograms::new_with_constructor(|| Histogram::new([0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0]));
        let helm_runs =
            Histograms::new_with_constructor(|| Histogram::new([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 30.0, 120.0, 600.0]));
        let (failures, leader) = (Family::default(), Gauge::default());
        let mut registry = Registry::with_prefix("clientapp_operator");
        registry.register_with_unit("reconcile", "Duration of reconciles by kind", Unit::Seconds, reconciles.clone());
        registry.register("reconcile_failures", "Failed reconciles by kind and reason", failures.clone());
        registry.register_with_unit("helm", "Duration of helm processes", Unit::Seconds, helm_runs.clone());
        registry.register("leader", "1 if this operator is the leader", leader.clone());
        let mut gauges = BTreeMap::new();
        for (measure, name, help) in MEASURES {
            let (gauge, help) = (Family::<Labels, Gauge>::default(), format!("{help}, on the leader only"));
            match name.strip_suffix("_seconds") {
                Some(name) => registry.register_with_unit(name, help, Unit::Seconds, gauge.clone()),
                None => registry.register(name, help, gauge.clone()),
            }
            gauges.insert(measure, gauge);
        }
        let (lead, sources) = (Mutex::default(), Mutex::default());
        Metrics { registry, reconciles, failures, helm_runs, leader, lead, gauges, sources }
    }
}

impl Metrics {
    /// Measures a reconcile of an object of this kind until the guard is dropped.
    pub(crate) fn reconcile(&self, kind: &str) -> impl Drop + use<> {
        struct Timer(Instant, Histogram);
        impl Drop for Timer {
            fn drop(&mut self) {
                self.1.observe(self.0.elapsed().as_secs_f64());
            }
        }
        let histogram = self.reconciles.get_or_create(&vec![("kind", kind.to_owned())]).clone();
        Timer(Instant::now(), histogram)
    }

    pub(crate) fn reconcile_failed(&self, kind: &str, reason: Reason) {
        self.failures.get_or_create(&vec![("kind", kind.to_owned()), ("reason", reason.to_string())]).inc();
    }

    pub(crate) fn helm_run(&self, command: &'static str, succeeded: bool, took: Duration) {
        let result = if succeeded { "success" } else { "failure" };
        let labels = vec![("command", command.to_owned()), ("result", result.to_owned())];
        self.helm_runs.get_or_create(&labels).observe(took.as_secs_f64());
    }

    /// The newest lead of this operator; whether it holds is checked at each scrape.
    pub(crate) fn leads(&self, lead: Leadership) {
        *self.lead.lock() = Some(lead);
    }

    /// Takes the samples of a kind from `source` at each scrape, until the guard is dropped.
    pub(crate) fn measure(
        self: &Arc<Self>,
        kind: &'static str,
        source: impl Fn() -> Vec<Sample> + Send + Sync + 'static,
    ) -> Measuring {
        self.sources.lock().insert(kind, Box::new(source));
        Measuring(self.clone(), kind)
    }

    /// All metrics, in the OpenMetrics text format.
    pub(crate) fn render(&self) -> String {
        let lead = self.lead.lock().clone();
        self.leader.set(lead.is_some_and(|lead| lead.is_held()).into());
        // Held to the end: another scrape would empty the gauges meanwhile, or fill them twice.
        let sources = self.sources.lock();
        self.gauges.values().for_each(Family::clear);
        for (measure, labels, value) in sources.values().flat_map(|source| source()) {
            self.gauges[&measure].get_or_create(&labels).inc_by(value);
        }
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::BTreeSet, thread};

    use super::*;

    fn state(state: &str, reason: &str) -> Sample {
        (Measure::Apps, vec![("state", state.to_owned()), ("reason", reason.to_owned())], 1)
    }

    fn counted() -> Metrics {
        let metrics = Metrics::default();
        drop(metrics.reconcile("ClientApp"));
        metrics.helm_run("upgrade", true, Duration::from_millis(700));
        metrics.reconcile_failed("Postgresql", Reason::Conflict);
        metrics
    }

    #[test]
    fn what_is_counted_is_rendered() {
        let metrics = Arc::new(counted());
        let dump = |name, seconds| {
            let time = Timestamp::from_second(seconds).expect("it is a time");
            times("shop", name, [(Measure::PostgresqlBackup, Some(time)), (Measure::PostgresqlBackupOverdue, None)])
        };
        let apps = || vec![state("True", "Ready"), state("False", "InvalidSpec"), state("True", "Ready")];
        let dumps = move || dump("orders", 1_767_236_400).chain(dump("new", 0)).collect();
        let sources = (metrics.measure("ClientApp", apps), metrics.measure("Postgresql", dumps));
        assert!(metrics.render().contains("clientapp_operator_leader 0"));
        metrics.leads(Leadership::unconditional());
        let text = metrics.render();
        for line in [
            "clientapp_operator_reconcile_seconds_count{kind=\"ClientApp\"} 1",
            "clientapp_operator_helm_seconds_count{command=\"upgrade\",result=\"success\"} 1",
            "clientapp_operator_reconcile_failures_total{kind=\"Postgresql\",reason=\"Conflict\"} 1",
            "clientapp_operator_leader 1",
            "clientapp_operator_apps{state=\"True\",reason=\"Ready\"} 2",
            "clientapp_operator_apps{state=\"False\",reason=\"InvalidSpec\"} 1",
            "clientapp_operator_postgresql_last_successful_backup_timestamp_seconds{namespace=\"shop\",name=\"orders\"} 1767236400",
            "clientapp_operator_postgresql_last_successful_backup_timestamp_seconds{namespace=\"shop\",name=\"new\"} 0",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        drop(sources);
        let text = metrics.render();
        assert!(!text.contains("clientapp_operator_apps{") && !text.contains("timestamp_seconds{"), "{text}");
    }

    #[test]
    fn scrapes_at_the_same_time_count_the_same() {
        let metrics = Arc::new(Metrics::default());
        let _source = metrics.measure("ClientApp", || (0..20).map(|_| state("True", "Ready")).collect());
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let text = metrics.render();
                        assert!(
                            text.contains("clientapp_operator_apps{state=\"True\",reason=\"Ready\"} 20\n"),
                            "{text}"
                        );
                    }
                });
            }
        });
    }

    #[test]
    fn every_metric_is_in_the_table_of_the_guide() {
        let metrics = Arc::new(counted());
        let each = || MEASURES.map(|(measure, ..)| (measure, Labels::new(), 1)).to_vec();
        let _source = metrics.measure("all", each);
        let text = metrics.render();
        let served: BTreeSet<_> = text
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE ")?.split_once(' '))
            .map(|(name, type_)| if type_ == "counter" { format!("{name}_total") } else { name.to_owned() })
            .collect();
        let guide = include_str!("../manifests/README.md");
        let rows = guide.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` | "));
        let documented = rows.map(|(name, _)| name.to_owned()).filter(|name| name.starts_with("clientapp_operator_"));
        let documented: BTreeSet<_> = documented.collect();
        assert_eq!(documented, served);
    }
}
