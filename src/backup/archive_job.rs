//! Builds the Job that archives an app's files, from the CronJob that the operator maintains for `spec.persistence.backup`. Pure.

use std::collections::BTreeSet;

use k8s_openapi::{
    api::{
        batch::v1::{CronJob, Job},
        core::v1::{
            Affinity, NodeAffinity, NodeSelector, NodeSelectorRequirement, NodeSelectorTerm, Pod, PodSpec, Toleration,
        },
    },
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Resource as _, ResourceExt as _};

use crate::crd::ClientApp;

/// The maximum length of a Job's name: it becomes a label of its pods.
pub(crate) const LONGEST: usize = 63;

/// Returns the name of a Job of this CronJob, which ends with a word.
pub(crate) fn name(cron_job: &str, word: &str) -> String {
    let head: String = cron_job.chars().take(LONGEST - 1 - word.len()).collect();
    format!("{}-{word}", head.trim_end_matches('-'))
}

/// Builds what `kubectl create job --from=cronjob/…` makes.
pub(crate) fn instance(cron_job: &CronJob, name: &str) -> Job {
    let template = cron_job.spec.as_ref().map(|spec| spec.job_template.clone()).unwrap_or_default();
    let ObjectMeta { labels, annotations, .. } = template.metadata.unwrap_or_default();
    let owner = OwnerReference {
        api_version: CronJob::api_version(&()).into_owned(),
        kind: CronJob::kind(&()).into_owned(),
        name: cron_job.name_any(),
        uid: cron_job.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    let metadata = ObjectMeta {
        name: Some(name.to_owned()),
        namespace: cron_job.namespace(),
        labels,
        annotations,
        owner_references: Some(vec![owner]),
        ..ObjectMeta::default()
    };
    Job { metadata, spec: template.spec, status: None }
}

/// Where a pod has the volumes.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Place {
    pub node: String,
    /// Tolerations of the pod there.
    pub tolerations: Vec<Toleration>,
}

/// Returns the claims of a pod.
fn claims(pod: &PodSpec) -> BTreeSet<String> {
    let claims = pod.volumes.iter().flatten().filter_map(|volume| volume.persistent_volume_claim.as_ref());
    claims.map(|claim| claim.claim_name.clone()).collect()
}

/// Returns where one of these pods has a volume whose files the CronJob archives; `None`: none of them has.
pub(crate) fn place(cron_job: &CronJob, pods: &[Pod]) -> Option<Place> {
    let mut places = users(cron_job, pods).filter_map(|pod| {
        let pod = pod.spec.as_ref()?;
        Some(Place { node: pod.node_name.clone()?, tolerations: pod.tolerations.clone().unwrap_or_default() })
    });
    places.next()
}

/// Returns the pods that have not ended and have a volume whose files the CronJob archives.
pub(crate) fn users<'a>(cron_job: &CronJob, pods: &'a [Pod]) -> impl Iterator<Item = &'a Pod> {
    let template = cron_job.spec.as_ref().and_then(|spec| spec.job_template.spec.as_ref()?.template.spec.as_ref());
    let wanted = template.map(claims).unwrap_or_default();
    pods.iter().filter(move |pod| {
        let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
        !matches!(phase, Some("Succeeded" | "Failed"))
            && pod.spec.as_ref().is_some_and(|pod| !claims(pod).is_disjoint(&wanted))
    })
}

/// Keeps a Job's pod on the node where a volume is in use: one that only one node can have is not attached elsewhere.
pub(crate) fn keep_at(job: &mut Job, Place { node, tolerations }: &Place) {
    let Some(pod) = job.spec.as_mut().and_then(|spec| spec.template.spec.as_mut()) else { return };
    let here = NodeSelectorRequirement {
        key: "metadata.name".to_owned(),
        operator: "In".to_owned(),
        values: Some(vec![node.clone()]),
    };
    let term = NodeSelectorTerm { match_fields: Some(vec![here]), ..NodeSelectorTerm::default() };
    pod.affinity = Some(Affinity {
        node_affinity: Some(NodeAffinity {
            required_during_scheduling_ignored_during_execution: Some(NodeSelector { node_selector_terms: vec![term] }),
            ..NodeAffinity::default()
        }),
        ..Affinity::default()
    });
    pod.tolerations = Some(tolerations.clone());
}

/// Builds the Job that archives the files as they are now.
pub(crate) fn archive(cron_job: &CronJob, name: &str) -> Job {
    let mut job = instance(cron_job, name);
    job.annotations_mut().insert("cronjob.kubernetes.io/instantiate".to_owned(), "manual".to_owned());
    job
}

/// Returns true if the CronJob is this ClientApp's, and not of an earlier one of the same name.
pub(crate) fn is_of(cron_job: &CronJob, app: &ClientApp) -> bool {
    let uid = app.metadata.uid.as_deref();
    cron_job.owner_references().iter().any(|owner| {
        owner.controller == Some(true) && owner.kind == ClientApp::kind(&()) && Some(owner.uid.as_str()) == uid
    })
}

#[cfg(test)]
mod tests {
    use serde::de::DeserializeOwned;
    use serde_json::{Value, json};

    use super::*;

    fn of<K: DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).unwrap()
    }

    fn pod_with(claim: &str, node: Value, phase: &str) -> Pod {
        let volumes =
            json!([{"name": "a", "emptyDir": {}}, {"name": "b", "persistentVolumeClaim": {"claimName": claim}}]);
        let tolerations = json!([{"key": "cloud", "operator": "Exists"}]);
        let spec = json!({"containers": [], "volumes": volumes, "nodeName": node, "tolerations": tolerations});
        of(json!({"metadata": {}, "spec": spec, "status": {"phase": phase}}))
    }

    #[test]
    fn the_job_is_where_the_volume_is() {
        let volumes = json!([{"name": "files-0", "persistentVolumeClaim": {"claimName": "files"}}]);
        let pod = json!({"containers": [], "volumes": volumes, "affinity": {"podAffinity": {}}});
        let template = json!({"spec": {"template": {"spec": pod}}});
        let cron_job: CronJob = of(json!({
            "metadata": {"name": "acme-files"}, "spec": {"schedule": "@daily", "jobTemplate": template},
        }));
        for (pods, expected) in [
            (vec![], None),
            (vec![pod_with("other", json!("n1"), "Running")], None),
            (vec![pod_with("files", json!("n1"), "Succeeded")], None),
            (vec![pod_with("files", json!(null), "Pending")], None),
            (vec![pod_with("files", json!(null), "Pending"), pod_with("files", json!("n2"), "Running")], Some("n2")),
        ] {
            assert_eq!(place(&cron_job, &pods).map(|place| place.node).as_deref(), expected, "{pods:?}");
        }
        let place = place(&cron_job, &[pod_with("files", json!("n2"), "Running")]).unwrap();
        let mut job = archive(&cron_job, "acme-files-1");
        keep_at(&mut job, &place);
        let pod = json!(job.spec.unwrap().template.spec.unwrap());
        let fields = &pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"];
        assert_eq!(
            fields["nodeSelectorTerms"][0]["matchFields"][0],
            json!({"key": "metadata.name", "operator": "In", "values": ["n2"]})
        );
        assert_eq!(pod["tolerations"], json!([{"key": "cloud", "operator": "Exists"}]));
        assert!(pod["affinity"].get("podAffinity").is_none(), "{pod}");
    }
}
