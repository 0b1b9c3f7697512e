//! Ends Jobs in which nothing runs, and reads why. An **effect**.

use k8s_openapi::api::{batch::v1::Job, events::v1::Event};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams},
};

use super::{api::ignore_not_found, job, warnings};
use crate::crd::Guard;

/// Ends a Job with this name and uid, and records why.
pub(crate) async fn end(client: &Client, namespace: &str, (name, uid): (&str, &str), why: &str) -> kube::Result<()> {
    let patch = Patch::Merge(job::end(uid, why));
    let jobs = Api::<Job>::namespaced(client.clone(), namespace);
    ignore_not_found(jobs.patch(name, &PatchParams::default(), &patch).await).map(drop)
}

/// Returns the newest warning about an object.
pub(crate) async fn newest_warning(
    client: &Client,
    namespace: &str,
    kind: &str,
    name: &str,
) -> kube::Result<Option<String>> {
    let about = format!("type=Warning,regarding.kind={kind},regarding.name={name}");
    let events = Api::<Guard<Event>>::namespaced(client.clone(), namespace);
    events.list(&ListParams::default().fields(&about)).await.map(|events| warnings::newest(events.items))
}
