//! `check`: whether this cluster can run ClientApps, by reads only.

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        authorization::v1::{ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec},
        coordination::v1::Lease,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{Api, Resource as _, ResourceExt as _, api::PostParams};

use super::{
    args,
    error::Error,
    session::{Printer, Session},
    status::Look,
    text::{BAD, FAINT, GOOD, UNSURE, columns, harmless, paint, span},
};
use crate::{
    crd::{self, ClientApp, cloudnativepg, label, percona},
    lease::rules::holder,
};

/// A leader renews its Lease every second. The rest is for clocks that differ: the time is the operator's, and this machine compares.
const RECENT: SignedDuration = SignedDuration::from_secs(60);

/// How a check came out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    Good,
    /// Without it, ClientApps do not work.
    Bad,
    /// The user may not see it, or it may be on its way.
    Unsure,
    /// Some clusters do without.
    Optional,
}

#[derive(Debug)]
struct Finding {
    mark: Mark,
    subject: String,
    sentence: String,
}

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Check) -> Result<(), Error> {
    let args::Check { operator_namespace } = args;
    let mut findings = Vec::new();
    let definitions: Api<CustomResourceDefinition> = Api::all(session.client.clone());
    for ours in crd::all() {
        let found = looked(definitions.get_opt(&ours.name_any()).await, "read its definition")?;
        findings.push(definition(&ours, found));
    }
    let deployments: Api<Deployment> = Api::namespaced(session.client.clone(), operator_namespace);
    let found = looked(deployments.get_opt(label::OPERATOR).await, "read Deployments there")?;
    findings.push(deployment(operator_namespace, found));
    let leases: Api<Lease> = Api::namespaced(session.client.clone(), operator_namespace);
    let found = looked(leases.get_opt(crd::LEASE).await, "read Leases there")?;
    findings.push(leader(operator_namespace, found, Session::now()));
    findings.push(right(&session.namespace, may_create(session).await?));
    for provider in [PERCONA, CLOUDNATIVEPG, BARMAN_CLOUD] {
        let found = looked(definitions.get_metadata_opt(provider.definition).await, "read its definition")?;
        findings.push(optional(&provider, found.map(|found| found.is_some())));
    }
    printer.out(&render(&findings))?;
    match findings.iter().filter(|finding| finding.mark == Mark::Bad).count() {
        0 => Ok(()),
        1 => Err(Error::Missing("a check has failed".to_owned())),
        count => Err(Error::Missing(format!("{count} checks have failed"))),
    }
}

/// What was read, or that the user may not; any other error ends the command.
fn looked<T>(answer: kube::Result<T>, what: &str) -> Result<Look<T>, Error> {
    match answer {
        Ok(found) => Ok(Ok(found)),
        Err(kube::Error::Api(status)) if status.code == 403 => Ok(Err(format!("you have no permission to {what}"))),
        Err(error) => Err(Error::api(format!("check the cluster: {what}"))(error)),
    }
}

/// A review is created, but nothing is stored.
async fn may_create(session: &Session) -> Result<bool, Error> {
    let wanted = ResourceAttributes {
        group: Some(ClientApp::group(&()).into_owned()),
        resource: Some(ClientApp::plural(&()).into_owned()),
        verb: Some("create".to_owned()),
        namespace: Some(session.namespace.clone()),
        ..ResourceAttributes::default()
    };
    let spec = SelfSubjectAccessReviewSpec { resource_attributes: Some(wanted), ..Default::default() };
    let review = SelfSubjectAccessReview { spec, ..Default::default() };
    let reviews: Api<SelfSubjectAccessReview> = Api::all(session.client.clone());
    let answer = reviews.create(&PostParams::default(), &review).await;
    let answer = answer.map_err(Error::api("ask whether you may create ClientApps"))?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

fn definition(ours: &CustomResourceDefinition, found: Look<Option<CustomResourceDefinition>>) -> Finding {
    let kind = &ours.spec.names.kind;
    let (mark, sentence) = match found {
        Err(why) => (Mark::Unsure, why),
        Ok(None) => (
            Mark::Bad,
            "is not installed: run `clientapp-operator crds | kubectl apply -f -` as cluster admin".to_owned(),
        ),
        Ok(Some(found)) if has_schemas_of(&found, ours) => (Mark::Good, "is installed".to_owned()),
        Ok(Some(_)) => (Mark::Bad, format!("the definition of {kind} is from another version: apply crds/")),
    };
    Finding { mark, subject: format!("Kind {kind}"), sentence }
}

fn has_schemas_of(found: &CustomResourceDefinition, ours: &CustomResourceDefinition) -> bool {
    ours.spec.versions.iter().all(|ours| {
        let same = found.spec.versions.iter().find(|found| found.name == ours.name);
        same.is_some_and(|same| same.served && same.schema == ours.schema)
    })
}

fn deployment(namespace: &str, found: Look<Option<Deployment>>) -> Finding {
    let count = |found: &Deployment| {
        let ready = found.status.as_ref().and_then(|status| status.ready_replicas).unwrap_or_default();
        (ready, found.spec.as_ref().and_then(|spec| spec.replicas).unwrap_or(1))
    };
    let (mark, sentence) = match found.map(|found| found.as_ref().map(count)) {
        Err(why) => (Mark::Unsure, why),
        Ok(None) => (
            Mark::Bad,
            format!(
                "there is no Deployment {namespace}/{}: install the operator, or name its namespace with --operator-namespace",
                label::OPERATOR
            ),
        ),
        Ok(Some((ready, wanted))) => {
            let mark = match ready {
                0 => Mark::Bad,
                _ if ready < wanted => Mark::Unsure,
                _ => Mark::Good,
            };
            (mark, format!("{ready}/{wanted} pods are ready"))
        }
    };
    Finding { mark, subject: "Operator".to_owned(), sentence }
}

fn leader(namespace: &str, found: Look<Option<Lease>>, now: Timestamp) -> Finding {
    let spec = found.map(|found| found.and_then(|lease| lease.spec).unwrap_or_default());
    let (mark, sentence) = match spec {
        Err(why) => (Mark::Unsure, why),
        Ok(spec) => {
            let age = spec.renew_time.as_ref().map(|renewed| now.duration_since(renewed.0));
            match (holder(Some(&spec)), age) {
                (Some(holder), Some(age)) if age.abs() <= RECENT => {
                    (Mark::Good, format!("{holder} leads, confirmed {} ago", span(age)))
                }
                (Some(holder), Some(age)) => {
                    (Mark::Bad, format!("no operator leads: {holder} has last confirmed it {} ago", span(age)))
                }
                _ => (Mark::Bad, format!("no operator leads, according to the Lease {namespace}/{}", crd::LEASE)),
            }
        }
    };
    Finding { mark, subject: "Leader".to_owned(), sentence }
}

fn right(namespace: &str, may: bool) -> Finding {
    let (mark, verb) = if may { (Mark::Good, "may") } else { (Mark::Bad, "may not") };
    Finding { mark, subject: "You".to_owned(), sentence: format!("{verb} create ClientApps in namespace {namespace}") }
}

/// A kind that only one provider needs.
struct OptionalKind {
    definition: &'static str,
    kind: &'static str,
    provider: &'static str,
}

const PERCONA: OptionalKind =
    OptionalKind { definition: percona::CRD_NAME, kind: "PerconaPGCluster", provider: "percona" };
const CLOUDNATIVEPG: OptionalKind =
    OptionalKind { definition: cloudnativepg::CRD_NAME, kind: "Cluster (CloudNativePG)", provider: "cloudnativepg" };
const BARMAN_CLOUD: OptionalKind = OptionalKind {
    definition: cloudnativepg::STORE_CRD_NAME,
    kind: "ObjectStore (barman-cloud)",
    provider: "cloudnativepg with postgres.backup",
};

fn optional(OptionalKind { definition: _, kind, provider }: &OptionalKind, installed: Look<bool>) -> Finding {
    let (mark, sentence) = match installed {
        Ok(true) => (Mark::Good, "is installed".to_owned()),
        Ok(false) => (Mark::Optional, format!("is not installed: only the provider {provider} needs it")),
        Err(why) => (Mark::Unsure, why),
    };
    Finding { mark, subject: format!("Kind {kind}"), sentence }
}

fn render(findings: &[Finding]) -> String {
    let row = |Finding { mark, subject, sentence }: &Finding| {
        let (style, sign) = match mark {
            Mark::Good => (GOOD, "✔"),
            Mark::Bad => (BAD, "✗"),
            Mark::Unsure => (UNSURE, "?"),
            Mark::Optional => (FAINT, "-"),
        };
        vec![paint(style, sign), subject.clone(), harmless(sentence)]
    };
    columns(&findings.iter().map(row).collect::<Vec<_>>(), 2)
}

#[cfg(test)]
mod tests {
    use kube::CustomResourceExt as _;
    use serde_json::{Value, json};

    use super::*;
    use crate::platform::fake::of;

    fn lease(spec: Value) -> Look<Option<Lease>> {
        Ok(Some(of(json!({"metadata": {}, "spec": spec}))))
    }

    #[test]
    fn what_each_finding_says() {
        let now = "2026-01-01T12:00:00Z".parse().unwrap();
        let ours = ClientApp::crd();
        let mut older = ours.clone();
        older.spec.versions[0].schema = None;
        let deployed = |ready: i64| {
            Ok(Some(of(json!({"metadata": {}, "spec": {"replicas": 2, "selector": {},
            "template": {}}, "status": {"readyReplicas": ready}}))))
        };
        let held = |renewed: &str| lease(json!({"holderIdentity": "pod-a", "renewTime": renewed}));
        let hidden = || "you have no permission to read it".to_owned();
        let findings = [
            definition(&ours, Ok(Some(ours.clone()))),
            definition(&ours, Ok(Some(older))),
            definition(&ours, Ok(None)),
            definition(&ours, Err(hidden())),
            deployment("system", deployed(2)),
            deployment("system", deployed(1)),
            deployment("system", deployed(0)),
            deployment("system", Ok(None)),
            leader("system", held("2026-01-01T11:59:59.000000Z"), now),
            // The operator's clock is ahead.
            leader("system", held("2026-01-01T12:00:20.000000Z"), now),
            leader("system", held("2026-01-01T11:00:00.000000Z"), now),
            leader("system", lease(json!({"holderIdentity": ""})), now),
            leader("system", Ok(None), now),
            leader("system", Err(hidden()), now),
            right("tenants", true),
            right("tenants", false),
            optional(&PERCONA, Ok(true)),
            optional(&PERCONA, Ok(false)),
            optional(&CLOUDNATIVEPG, Ok(false)),
        ];
        let text = render(&findings);
        insta::assert_snapshot!(anstream::adapter::strip_str(&text));
    }
}
