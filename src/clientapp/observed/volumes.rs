//! The volumes with the app's data, **pure**: which are in use, and whether a revision has a place for each of them.
//!
//! A volume is in use while it is on record by uid, and of the deployed release.

use std::{borrow::Borrow, collections::BTreeSet};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::inventory;
use crate::{
    clientapp::{
        hold::{NAMED, join_limited},
        spec::desired::Desired,
    },
    crd::{Inventory, Owned, annotation},
    deletion::permit::DataKind,
    helm::{gateway::record::KeptSize, storage::Stored},
    platform::key::Key,
};

/// Returns true if a claim is one of Redis'. That is a cache: without its volume, it begins with an empty one. The StatefulSets
/// of a release begin with its name, so no app can be named in a way that makes its own files look like a cache.
fn is_cache(claim: &str, app: &str) -> bool {
    claim.strip_prefix("redis-data-").and_then(|set| set.strip_prefix(app)).is_some_and(|rest| rest.starts_with('-'))
}

/// Returns true if this entry of an app's record is a volume with its data.
fn has_data(Owned { kind, name, uid }: &Owned, app: &str, confirmed: &BTreeSet<String>) -> bool {
    kind == DataKind::Volume.as_str() && !is_cache(name, app) && !confirmed.contains(uid)
}

/// Returns true if a claim has taken the place of a volume with the app's data, which stays on record.
pub(crate) fn is_another(claim: &ObjectMeta, app: &str, recorded: &[Owned], confirmed: &BTreeSet<String>) -> bool {
    let name = claim.name.as_deref().unwrap_or_default();
    let same_name = recorded.iter().find(|owned| owned.kind == DataKind::Volume.as_str() && owned.name == name);
    same_name.is_some_and(|owned| claim.uid.as_ref() != Some(&owned.uid) && has_data(owned, app, confirmed))
}

/// Returns the volumes in use. Without a release, those that were adopted.
pub(crate) fn in_use(desired: &Desired, inventory: Option<&Inventory>, owned: &[Owned]) -> Vec<Owned> {
    let is_of_release = |owned: &&Owned| {
        let maker = |inventory| inventory::maker(inventory, &desired.key.namespace, &owned.name);
        inventory.is_none_or(|inventory| maker(inventory).is_some())
    };
    let owned = owned.iter().filter(|owned| has_data(owned, &desired.key.name, &desired.data.without_volumes));
    owned.filter(is_of_release).cloned().collect()
}

/// Returns the command with which a user confirms that the app goes on without these volumes, besides those confirmed before. A
/// confirmation for a volume that is not on record any more is left out.
pub(crate) fn confirm(desired: &Desired, owned: &[Owned]) -> impl Fn(&[&Owned]) -> String + Send + Sync + use<> {
    let Key { namespace, name } = desired.key.clone();
    let mut before = desired.data.without_volumes.clone();
    before.retain(|uid| owned.iter().any(|owned| owned.uid == *uid));
    move |volumes: &[&Owned]| {
        let uids: BTreeSet<_> = before.iter().chain(volumes.iter().map(|volume| &volume.uid)).cloned().collect();
        let uids = uids.into_iter().collect::<Vec<_>>().join(",");
        format!("`kubectl annotate clientapp {name} -n {namespace} --overwrite {}={uids}`", annotation::WITHOUT_VOLUME)
    }
}

/// Returns what reviews the revision that helm is about to store: it says why that may not be made, or fails if it cannot be read.
/// `None`: there is no volume that it could drop.
pub(crate) fn review(
    desired: &Desired,
    inventory: Option<&Inventory>,
    owned: &[Owned],
) -> Option<impl Fn(&Stored) -> Result<Option<String>, String> + Send + Sync + use<>> {
    let in_use = in_use(desired, inventory, owned);
    let confirm = confirm(desired, owned);
    let (Key { namespace, name }, version) = (desired.key.clone(), desired.target().chart_version.clone());
    (!in_use.is_empty()).then_some(move |stored: &Stored| {
        let next = inventory::read("", stored)?;
        let is_dropped = |volume: &&Owned| inventory::maker(&next, &namespace, &volume.name).is_none();
        let dropped: Vec<_> = in_use.iter().filter(is_dropped).collect();
        if dropped.is_empty() {
            return Ok(None);
        }
        let is_new = |claim: &String| !is_cache(claim, &name) && in_use.iter().all(|volume| volume.name != *claim);
        let instead: Vec<_> = inventory::first_claims(&next, &namespace).filter(is_new).collect();
        let instead = if instead.is_empty() { String::new() } else { format!(", but {} is", join_limited(instead, NAMED)) };
        Ok(Some(format!(
            "PersistentVolumeClaim {} with the app's data is not in the next revision, with chart version {version}{instead}: correct the spec; or confirm that the app goes on without it, with {}",
            join_limited(dropped.iter().map(|volume| volume.name.clone()), NAMED),
            confirm(&dropped)
        )))
    })
}

/// Returns the record without volumes that are gone and are not of the release any more. An object that is gone while the
/// release has it stays on record: its place is not taken by another one unnoticed.
pub(crate) fn without_gone(
    mut recorded: Vec<Owned>,
    inventory: Option<&Inventory>,
    namespace: &str,
    claims: &[impl Borrow<ObjectMeta>],
) -> Vec<Owned> {
    let Some(inventory) = inventory else { return recorded };
    let is_named = |claim: &ObjectMeta, name: &String| claim.name.as_ref() == Some(name);
    recorded.retain(|Owned { kind, name, uid: _ }| {
        kind != DataKind::Volume.as_str()
            || inventory::maker(inventory, namespace, name).is_some()
            || claims.iter().any(|claim| is_named(claim.borrow(), name))
    });
    recorded
}

/// Returns the note about volumes that are larger than the chart asks: they stay as they are, since no volume shrinks.
pub(crate) fn kept(kept: &[KeptSize]) -> Option<String> {
    let sizes = kept.iter().map(|KeptSize { claim, requested: asked, has }| format!("{claim} ({has}, asked {asked})"));
    (!kept.is_empty()).then(|| {
        format!(
            "PersistentVolumeClaim {} is larger than asked for and keeps its size: raise spec.persistence.size, or the chart's value for it",
            join_limited(sizes, NAMED)
        )
    })
}

#[cfg(test)]
pub(in crate::clientapp) mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::clientapp::{
        fixtures::{self, object, settled, stateful_set, want},
        observed::types::{Observed, ObservedObjects},
    };

    pub(in crate::clientapp) fn owned(name: &str, uid: &str) -> Owned {
        fixtures::owned(DataKind::Volume.as_str(), name, uid)
    }

    pub(in crate::clientapp) fn claim(name: &str, uid: &str, more: Value) -> std::sync::Arc<ObjectMeta> {
        let mut claim = json!({"name": name, "uid": uid});
        claim.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        std::sync::Arc::new(serde_json::from_value(claim).unwrap())
    }

    /// With files, an internal database, a cache, and a volume of an earlier revision.
    pub(in crate::clientapp) fn observed(desired: &Desired) -> Observed {
        let objects = vec![
            object("PersistentVolumeClaim", "acme-files"),
            stateful_set("acme-mariadb", "data"),
            stateful_set("acme-redis-master", "redis-data"),
        ];
        let inventory = Inventory { objects, ..Inventory::default() };
        let owned = vec![
            owned("acme-files", "1"),
            owned("data-acme-mariadb-0", "2"),
            owned("redis-data-acme-redis-master-0", "3"),
            owned("left", "4"),
        ];
        let claims = owned.iter().map(|owned| claim(&owned.name, &owned.uid, json!({}))).collect();
        let observed = settled(desired);
        let objects = ObservedObjects { inventory: Some(inventory), claims, ..observed.objects };
        Observed { objects, owned, ..observed }
    }

    pub(in crate::clientapp) fn confirmed(uids: &[&str]) -> Desired {
        let mut desired = want(&json!({}));
        desired.data.without_volumes = uids.iter().map(ToString::to_string).collect();
        desired
    }

    #[test]
    fn volumes_that_a_revision_drops() {
        let desired = confirmed(&[]);
        let Observed { objects: ObservedObjects { inventory, .. }, owned, .. } = observed(&desired);
        let in_use: Vec<_> = in_use(&desired, inventory.as_ref(), &owned).into_iter().map(|owned| owned.name).collect();
        assert_eq!(in_use, ["acme-files", "data-acme-mariadb-0"]);
        let manifest = |claim: &str, set: &str| {
            format!(
                "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {{name: {claim}}}\n---\n\
                 apiVersion: apps/v1\nkind: StatefulSet\nmetadata: {{name: {set}}}\n\
                 spec: {{replicas: 0, volumeClaimTemplates: [{{metadata: {{name: data}}}}]}}\n"
            )
        };
        for (what, without, manifest, expected) in [
            ("the same", &[][..], manifest("acme-files", "acme-mariadb"), None),
            ("renamed", &[], manifest("acme-new", "acme-mariadb"), Some("acme-files with the app's data is not in")),
            ("another set", &[], manifest("acme-files", "acme-db"), Some("data-acme-mariadb-0 with")),
            ("nothing", &[], String::new(), Some("acme-files, data-acme-mariadb-0 with")),
            ("confirmed", &["1"], manifest("acme-new", "acme-mariadb"), None),
            ("unreadable", &[], "{".to_owned(), Some("unread: its manifest")),
        ] {
            let review = review(&confirmed(without), inventory.as_ref(), &owned).unwrap();
            let said = review(&Stored { manifest, ..Stored::default() })
                .unwrap_or_else(|unread| Some(format!("unread: {unread}")));
            let fits = |expected: &str| said.as_ref().is_some_and(|said| said.contains(expected));
            assert!(expected.map_or(said.is_none(), fits), "{what}: {said:?}");
        }
        let all = ["1", "2"];
        assert!(review(&confirmed(&all), inventory.as_ref(), &owned).is_none());
        // What was adopted is in use before there is a release.
        assert!(review(&confirmed(&all), None, &owned).is_some());
    }

    #[test]
    fn the_command_names_what_is_confirmed_already() {
        let desired = confirmed(&["2", "of another app"]);
        let command = confirm(&desired, &observed(&desired).owned)(&[&owned("acme-files", "1")]);
        assert!(command.ends_with("without-volume=1,2`"), "{command}");
    }

    #[test]
    fn recorded_volumes_that_stay() {
        let desired = confirmed(&[]);
        let Observed { objects: ObservedObjects { inventory, claims, .. }, owned, .. } = observed(&desired);
        let names = |claims: &[std::sync::Arc<ObjectMeta>], inventory: Option<&Inventory>| {
            let kept = without_gone(owned.clone(), inventory, "tenants", claims);
            kept.into_iter().map(|owned| owned.uid).collect::<Vec<_>>()
        };
        assert_eq!(names(&claims, inventory.as_ref()), ["1", "2", "3", "4"]);
        assert_eq!(names(&[], inventory.as_ref()), ["1", "2", "3"]);
        assert_eq!(names(&[], None), ["1", "2", "3", "4"]);
        let (none, one) = (BTreeSet::new(), BTreeSet::from(["1".to_owned()]));
        let files = claim("acme-files", "9", json!({}));
        let is_another = |claim: &ObjectMeta, confirmed| super::is_another(claim, "acme", &owned, confirmed);
        assert!(is_another(&files, &none) && !is_another(&files, &one));
        assert!(!is_another(&claims[0], &none));
        assert!(!is_another(&claim("redis-data-acme-redis-master-0", "9", json!({})), &none));
    }

    #[test]
    fn only_redis_is_a_cache() {
        for (claim, app, expected) in [
            ("redis-data-acme-redis-master-0", "acme", true),
            // A name with `redis` in it is the whole name of the StatefulSet.
            ("redis-data-my-redis-master-0", "my-redis", true),
            ("acme-nextcloud", "acme", false),
            ("redis-data-nextcloud", "redis-data", false),
            ("redis-data-acme-nextcloud", "redis-data-acme", false),
            ("redis-data-acme2-redis-master-0", "acme", false),
        ] {
            assert_eq!(is_cache(claim, app), expected, "{claim} of {app}");
        }
    }
}
