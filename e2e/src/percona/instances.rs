//! The instances of a cluster: a StatefulSet and a volume each.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt as _;

use super::objects::{INSTANCE, INSTANCE_SET};
use super::spec::InstanceSet;
use crate::charts::digest;

/// One PostgreSQL server.
#[derive(Debug)]
pub(super) struct Instance<'a> {
    pub(super) name: String,
    pub(super) set: &'a InstanceSet,
}

/// The instances of a set. Existing volumes keep their names, including those left by an earlier cluster.
pub(super) fn instances<'a>(
    cluster: &str,
    uid: &str,
    set: &'a InstanceSet,
    volumes: &[PersistentVolumeClaim],
) -> Vec<Instance<'a>> {
    let of_set = volumes.iter().filter(|volume| volume.labels().get(INSTANCE_SET) == Some(&set.name));
    let mut left: Vec<_> = of_set.filter_map(|volume| volume.labels().get(INSTANCE).cloned()).collect();
    left.sort();
    // The real names are random; these only look so, and a repeated reconcile gets the same ones.
    let new = |index: i32| format!("{cluster}-{}-{}", set.name, letters(&format!("{uid}/{}/{index}", set.name)));
    let names = left.into_iter().chain((0..).map(new)).take(set.replicas.try_into().unwrap_or_default());
    names.map(|name| Instance { name, set }).collect()
}

/// Four letters that look random.
pub(super) fn letters(seed: &str) -> String {
    let letter = |hex: char| char::from(b'a' + hex.to_digit(16).unwrap_or_default() as u8);
    digest(seed.as_bytes()).chars().take(4).map(letter).collect()
}
