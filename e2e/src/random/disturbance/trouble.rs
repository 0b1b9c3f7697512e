//! The operator of a soak test, and everything that happens to it. An **effect**.

use std::collections::{BTreeMap, BTreeSet};
use std::mem::take;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result};
use clientapp_crd::{ClientApp, Postgresql};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Api, ListParams};
use kube::{Client, ResourceExt as _};
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::task::block_in_place;

use super::operators::{Operators, Remains};
use super::schedule::Blow;
use crate::charts::{self, Content};
use crate::lab::{Lab, Tenant};
use crate::manifests;
use crate::operator::Options;
use crate::proxy::{Fault, Proxy, Rule};
use crate::random::oracle::audit::Entry;
use crate::random::oracle::evidence::{Evidence, secrecy};
use crate::random::oracle::leaks::{Measured, is_calm, measure};
use crate::random::oracle::lives_audit::Actor;
use crate::random::oracle::rest::{Apps, as_expected, samples};
use crate::random::workload::case::{led_again, steal};
use crate::wait::within;

/// After this time each watch is cut.
const WATCHES_CUT: Duration = Duration::from_secs(10);
/// For a request while the API server is hardly back.
const ANSWERED: Duration = Duration::from_secs(60);
/// For a release that another Helm client can change.
const OTHER_HELM: Duration = Duration::from_secs(60);
/// For what the operator still has in use just after its work, and for a watch that is late.
const CALM: Duration = Duration::from_secs(20);

/// How often each blow was struck.
pub type Tally = BTreeMap<Blow, usize>;

/// One operator after the other behind a proxy, with one directory for temporary files.
pub struct Trouble {
    pub operators: Operators,
    pub tally: Tally,
    pub passwords: Passwords,
    /// The most memory that any of them had, in KiB.
    peak: u64,
    lab: &'static Lab,
    client: Client,
    proxy: Proxy,
    tenants: Vec<Arc<Tenant>>,
    apps: watch::Receiver<Apps>,
    random: StdRng,
    charts: TempDir,
}

impl Trouble {
    /// Starts the first operator, all of whose watches are cut again and again.
    pub async fn start(
        lab: &'static Lab,
        tenants: Vec<Arc<Tenant>>,
        apps: watch::Receiver<Apps>,
        random: StdRng,
    ) -> Result<Trouble> {
        let proxy = Proxy::start(&lab.operator_kubeconfig)?;
        proxy.set([Rule::new("watch", "*", Fault::Cut(WATCHES_CUT))]);
        let options = Options { kubeconfig: proxy.kubeconfig(), ..lab.options() };
        let operators = block_in_place(|| Operators::start(lab, &options, false))?;
        let charts = tempfile::tempdir()?;
        charts::package(charts.path(), charts::DEFAULT, Content::Genuine)?;
        let client = lab.plane.client().await?;
        let passwords = Passwords { client: client.clone(), secrets: BTreeMap::new(), found: Vec::new() };
        let (tally, peak) = (Tally::new(), 0);
        Ok(Trouble { operators, tally, passwords, peak, lab, client, proxy, tenants, apps, random, charts })
    }

    /// Strikes when it is time, until this time has passed. It blocks its thread now and then.
    ///
    /// # Errors
    /// If no operator leads again, or the API server does not come back.
    pub async fn run(&mut self, schedule: &[(Duration, Blow)], total: Duration) -> Result<()> {
        let began = Instant::now();
        for (at, blow) in schedule {
            tokio::time::sleep_until((began + *at).into()).await;
            self.strike(*blow).await.with_context(|| format!("{blow:?} after {} s", began.elapsed().as_secs()))?;
            *self.tally.entry(*blow).or_default() += 1;
        }
        tokio::time::sleep_until((began + total).into()).await;
        Ok(())
    }

    async fn strike(&mut self, blow: Blow) -> Result<()> {
        match blow {
            Blow::Kill => self.restart().await,
            Blow::Outage => self.lab.outage(|| {}),
            Blow::Theft => {
                let leases: Api<Lease> = Api::namespaced(self.client.clone(), manifests::NAMESPACE);
                let taken = Timestamp::now();
                let stolen = async || steal(&leases, taken).await.map_err(|error| format!("{error:#}"));
                within(ANSWERED, "the Lease is stolen", stolen).await?;
                led_again(&leases, taken).await.map(drop)
            }
            Blow::OtherHelm => self.other_helm().await,
        }
    }

    /// Kills the operator, perhaps with its helms, and starts another.
    async fn restart(&mut self) -> Result<()> {
        self.peak = self.peak.max(self.measure()?.peak);
        // It counts all writes, and nothing asks for so many.
        self.proxy.count_writes(None);
        let with_helms = self.random.random_bool(0.5);
        let operators = &mut self.operators;
        block_in_place(|| operators.kill(with_helms).and_then(|()| operators.lead()))?;
        self.passwords.search(take(&mut operators.log), Vec::new()).await
    }

    /// Never during an outage, in which it would leave a lock behind.
    async fn other_helm(&mut self) -> Result<()> {
        let chart = self.charts.path().join(charts::file_name(charts::DEFAULT)).display().to_string();
        let uninstalls = self.random.random_bool(0.5);
        let Trouble { apps, tenants, random, .. } = self;
        within(OTHER_HELM, "another Helm client has changed a release", async || {
            let at_rest = |app: &ClientApp| as_expected(Some(&["Ready"]), None, Some(app)).is_ok() && !app.spec.suspend;
            let ready: Vec<_> =
                apps.borrow().iter().filter(|(_, app)| at_rest(app)).map(|(key, _)| key.clone()).collect();
            let Some((namespace, name)) = ready.choose(random) else { return Err("no app is Ready".to_owned()) };
            let tenant = tenants.iter().find(|tenant| tenant.namespace == *namespace).expect("each app has a tenant");
            let ran = if uninstalls {
                tenant.helm(&["uninstall", name])
            } else {
                tenant.helm(&["upgrade", name, &chart, "--reuse-values", "--set", "podAnnotations.by=hand"])
            };
            if ran.success { Ok(()) } else { Err(ran.stderr) }
        })
        .await
    }

    /// Leaves the operator alone from now on.
    pub fn lull(&self) {
        self.proxy.set([]);
    }

    /// Where the caches of the operator differ from the API server, a sentence each: in what `/metrics` counts, and in
    /// what a new operator writes that finds everything at rest.
    pub async fn stale(&mut self) -> Result<Vec<String>> {
        let mut wrong = Vec::from_iter(self.miscounted().await);
        self.restart().await?;
        let all = ListParams::default();
        let databases = Api::<Postgresql>::all(self.client.clone()).list_metadata(&all).await?.items.len();
        let objects = databases + self.apps.borrow().len();
        block_in_place(|| self.operators.has_reconciled(objects))?;
        wrong.extend(self.miscounted().await);
        wrong.extend(self.proxy.writes().iter().map(|write| format!("a new operator sent, with all at rest: {write}")));
        Ok(wrong)
    }

    /// What `/metrics` counts differently than the API server, for longer than a watch may be late.
    pub async fn miscounted(&mut self) -> Option<String> {
        let Trouble { operators, apps, .. } = self;
        let counted = within(CALM, "/metrics counts the apps as they are", async || {
            let samples = samples(&apps.borrow());
            let operator = operators.running.as_mut().ok_or("no operator runs")?;
            for (sample, count) in samples {
                let counted = block_in_place(|| operator.counted(&sample)).map_err(|error| format!("{error:#}"))?;
                // Far below the limit up to which such a number is exact.
                if counted != count as f64 {
                    return Err(format!("{sample} is {counted}, and there are {count} such apps"));
                }
            }
            Ok::<_, String>(())
        });
        counted.await.err().map(|error| format!("{error:#}"))
    }

    /// What the operator has in use now.
    pub fn measure(&self) -> Result<Measured> {
        measure(self.operators.running.as_ref().context("no operator runs")?, &self.temporary())
    }

    /// What it has in use once that is no more than before, or after a while.
    pub async fn calm(&self, before: &Measured) -> Result<Measured> {
        _ = within(CALM, "the operator has no more in use than before", async || {
            self.measure().is_ok_and(|now| is_calm(before, &now))
        })
        .await;
        self.measure()
    }

    fn temporary(&self) -> PathBuf {
        self.operators.directory.path().join("tmp")
    }

    /// Stops the operator. Returns what there is to know of it and of its predecessors.
    pub async fn stop(self) -> Result<Stopped> {
        let peak = self.peak.max(self.measure()?.peak);
        let Trouble { operators, tally, mut passwords, .. } = self;
        // Helms of different releases may overlap.
        let Remains { log, arguments, overlaps: _, leftovers } = block_in_place(|| operators.stop())?;
        let helm_runs = arguments.len();
        passwords.search(log, arguments).await?;
        let violations = [passwords.found, leftovers].concat();
        Ok(Stopped { tally, peak, helm_runs, violations })
    }
}

/// What there is to know of all operators once the last has stopped.
pub struct Stopped {
    pub tally: Tally,
    /// The most memory that any of them had, in KiB.
    pub peak: u64,
    /// How often helm has run.
    pub helm_runs: usize,
    /// Processes, files and passwords that they have left, a sentence each.
    pub violations: Vec<String>,
}

/// Looks for passwords in what operators have logged.
pub struct Passwords {
    client: Client,
    /// All Secrets that were seen since the last search, by uid.
    secrets: BTreeMap<String, Entry>,
    /// A sentence for each password outside Secrets.
    found: Vec<String>,
}

impl Passwords {
    /// Remembers the Secrets that there are, and returns their uids.
    pub async fn look(&mut self) -> Result<BTreeSet<String>> {
        // Helm's own are large, and no oracle looks into them.
        let params = ListParams::default().fields("type!=helm.sh/release.v1");
        let mut uids = BTreeSet::new();
        let secrets = Api::<Secret>::all(self.client.clone());
        for secret in within(ANSWERED, "the Secrets are listed", async || secrets.list(&params).await).await? {
            let uid = secret.uid().unwrap_or_default();
            let entry = Entry {
                at: Timestamp::now(),
                actor: Actor::Other(String::new()),
                verb: "list".to_owned(),
                resource: "secrets".to_owned(),
                name: secret.name_any(),
                uid: uid.clone(),
                created: false,
                object: serde_json::to_value(&secret)?,
                line: None,
            };
            self.secrets.insert(uid.clone(), entry);
            uids.insert(uid);
        }
        Ok(uids)
    }

    async fn search(&mut self, log: String, arguments: Vec<String>) -> Result<()> {
        let uids = self.look().await?;
        let trace: Vec<_> = self.secrets.values().cloned().collect();
        // Before the first app there is none.
        if !trace.is_empty() {
            self.found.extend(secrecy(&Evidence { trace, log, arguments, ..Evidence::default() }));
        }
        self.secrets.retain(|uid, _| uids.contains(uid));
        Ok(())
    }
}
