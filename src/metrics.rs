//! The operator's metrics, in Prometheus' text format under `/metrics`.

use std::time::{Duration, Instant};

use parking_lot::Mutex;
use prometheus_client::{
    encoding::text::encode,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};

use crate::{crd::Reason, leadership::Leadership};

type Labels<const N: usize> = [(&'static str, &'static str); N];
type States = Box<dyn Fn() -> Vec<(String, String)> + Send + Sync>;
type Times = Box<dyn Fn() -> Vec<BackupTimes> + Send + Sync>;

/// Holds the times of an object's scheduled backups, in seconds since 1970.
pub(crate) struct BackupTimes {
    pub namespace: String,
    pub name: String,
    /// When the last one was complete, 0 if none was; `None`: none is scheduled, but drills are.
    pub last: Option<i64>,
    /// When the next one is overdue.
    pub overdue: Option<i64>,
}

type ByObject = Family<[(&'static str, String); 2], Gauge>;

/// The scheduled backups of each object.
#[derive(Default)]
pub(crate) struct LastBackups {
    last: ByObject,
    overdue: ByObject,
    times: Mutex<Option<Times>>,
}

impl LastBackups {
    /// Source of the times; `None` once this operator no longer runs the controller of these objects.
    pub(crate) fn measure(&self, times: Option<Times>) {
        *self.times.lock() = times;
    }

    fn update(&self) {
        self.last.clear();
        self.overdue.clear();
        let times = self.times.lock();
        for BackupTimes { namespace, name, last, overdue } in times.as_ref().map(|times| times()).unwrap_or_default() {
            let labels = [("namespace", namespace), ("name", name)];
            if let Some(overdue) = overdue {
                self.overdue.get_or_create(&labels).set(overdue);
            }
            if let Some(last) = last {
                self.last.get_or_create(&labels).set(last);
            }
        }
    }
}

/// Cheap to update. Not labelled by app, because a thousand apps would be a thousand series; only the times of scheduled backups
/// are useless without a name.
pub(crate) struct Metrics {
    registry: Registry,
    reconciles: Histogram,
    failures: Family<Labels<1>, Counter>,
    apps: Family<[(&'static str, String); 2], Gauge>,
    /// Status and reason of `Ready` of each ClientApp, while this operator runs their controller.
    states: Mutex<Option<States>>,
    /// Of Postgresqls.
    pub(crate) dumps: LastBackups,
    /// Of the files of ClientApps.
    pub(crate) archives: LastBackups,
    helm_runs: Family<Labels<2>, Histogram, fn() -> Histogram>,
    leader: Gauge,
    lead: Mutex<Option<Leadership>>,
}

impl Default for Metrics {
    fn default() -> Self {
        let reconciles = Histogram::new([0.001, 0.005, 0.02, 0.1, 0.5, 2.0, 10.0, 60.0]);
        let (failures, apps) = (Family::default(), Family::default());
        let helm: fn() -> Histogram = || Histogram::new([0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 30.0, 120.0, 600.0]);
        let helm_runs = Family::new_with_constructor(helm);
        let leader = Gauge::default();
        let mut registry = Registry::with_prefix("clientapp_operator");
        registry.register_with_unit("reconcile", "Duration of reconciles", Unit::Seconds, reconciles.clone());
        registry.register("reconcile_failures", "Failed reconciles by reason", failures.clone());
        registry.register_with_unit("helm", "Duration of helm processes", Unit::Seconds, helm_runs.clone());
        registry.register("apps", "ClientApps by status and reason of Ready, on the leader only", apps.clone());
        let (dumps, archives) = (LastBackups::default(), LastBackups::default());
        for (name, help, times) in [
            (
                "postgresql_last_successful_backup_timestamp",
                "When the last dump of a Postgresql with a schedule was complete, 0 if none was, on the leader only",
                &dumps.last,
            ),
            (
                "postgresql_backup_overdue_timestamp",
                "When two dumps or drills in a row by the schedule of a Postgresql are missing, on the leader only",
                &dumps.overdue,
            ),
            (
                "files_last_successful_backup_timestamp",
                "When the last archive of a ClientApp's files was complete, 0 if none was, of those with a schedule, on the leader only",
                &archives.last,
            ),
            (
                "files_backup_overdue_timestamp",
                "When two archives in a row by the schedule of a ClientApp's files are missing, on the leader only",
                &archives.overdue,
            ),
        ] {
            registry.register_with_unit(name, help, Unit::Seconds, times.clone());
        }
        registry.register("leader", "1 if this operator is the leader", leader.clone());
        let (states, lead) = (Mutex::default(), Mutex::default());
        Metrics { registry, reconciles, failures, apps, states, dumps, archives, helm_runs, leader, lead }
    }
}

impl Metrics {
    /// Measures a reconcile until the guard is dropped.
    pub(crate) fn reconcile(&self) -> impl Drop + use<> {
        struct Timer(Instant, Histogram);
        impl Drop for Timer {
            fn drop(&mut self) {
                self.1.observe(self.0.elapsed().as_secs_f64());
            }
        }
        Timer(Instant::now(), self.reconciles.clone())
    }

    pub(crate) fn reconcile_failed(&self, reason: Reason) {
        self.failures.get_or_create(&[("reason", reason.as_str())]).inc();
    }

    pub(crate) fn helm_run(&self, command: &'static str, succeeded: bool, took: Duration) {
        let result = if succeeded { "success" } else { "failure" };
        self.helm_runs.get_or_create(&[("command", command), ("result", result)]).observe(took.as_secs_f64());
    }

    /// The newest lead of this operator; whether it holds is checked at each scrape.
    pub(crate) fn leads(&self, lead: Leadership) {
        *self.lead.lock() = Some(lead);
    }

    /// Source of the status and reason of each ClientApp; `None` once this operator no longer runs their controller.
    pub(crate) fn apps(&self, states: Option<States>) {
        *self.states.lock() = states;
    }

    /// All metrics, in the OpenMetrics text format.
    pub(crate) fn render(&self) -> String {
        let lead = self.lead.lock().clone();
        self.leader.set(lead.is_some_and(|lead| lead.is_held()).into());
        self.apps.clear();
        let states = self.states.lock();
        for (state, reason) in states.as_ref().map(|states| states()).unwrap_or_default() {
            self.apps.get_or_create(&[("state", state), ("reason", reason)]).inc();
        }
        drop(states);
        self.dumps.update();
        self.archives.update();
        let mut text = String::new();
        // Writing to a String cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_counted_is_rendered() {
        let metrics = Metrics::default();
        drop(metrics.reconcile());
        metrics.helm_run("upgrade", true, Duration::from_millis(700));
        metrics.reconcile_failed(Reason::Conflict);
        let app = |state: &str, reason: &str| (state.to_owned(), reason.to_owned());
        metrics.apps(Some(Box::new(move || {
            vec![app("True", "Ready"), app("False", "InvalidSpec"), app("True", "Ready")]
        })));
        let backup = |name: &str, last, overdue| {
            let (namespace, name) = ("shop".to_owned(), name.to_owned());
            BackupTimes { namespace, name, last, overdue }
        };
        let dumps =
            move || vec![backup("orders", Some(1_767_236_400), Some(1_767_409_200)), backup("new", Some(0), None)];
        metrics.dumps.measure(Some(Box::new(dumps)));
        metrics.archives.measure(Some(Box::new(move || vec![backup("acme", Some(7), Some(8))])));
        assert!(metrics.render().contains("clientapp_operator_leader 0"));
        metrics.leads(Leadership::unconditional());
        let text = metrics.render();
        for line in [
            "clientapp_operator_reconcile_seconds_count 1",
            "clientapp_operator_helm_seconds_count{command=\"upgrade\",result=\"success\"} 1",
            "clientapp_operator_reconcile_failures_total{reason=\"Conflict\"} 1",
            "clientapp_operator_leader 1",
            "clientapp_operator_apps{state=\"True\",reason=\"Ready\"} 2",
            "clientapp_operator_apps{state=\"False\",reason=\"InvalidSpec\"} 1",
            "clientapp_operator_postgresql_last_successful_backup_timestamp_seconds{namespace=\"shop\",name=\"orders\"} 1767236400",
            "clientapp_operator_postgresql_last_successful_backup_timestamp_seconds{namespace=\"shop\",name=\"new\"} 0",
            "clientapp_operator_files_last_successful_backup_timestamp_seconds{namespace=\"shop\",name=\"acme\"} 7",
            "clientapp_operator_postgresql_backup_overdue_timestamp_seconds{namespace=\"shop\",name=\"orders\"} 1767409200",
            "clientapp_operator_files_backup_overdue_timestamp_seconds{namespace=\"shop\",name=\"acme\"} 8",
        ] {
            assert!(text.contains(line), "{line} is not in\n{text}");
        }
        metrics.apps(None);
        metrics.dumps.measure(None);
        metrics.archives.measure(None);
        let text = metrics.render();
        assert!(!text.contains("clientapp_operator_apps{") && !text.contains("timestamp_seconds{"), "{text}");
    }
}
