//! Decides whether the volumes with the app's data are still there. **Pure.**
//!
//! The app never goes on with an empty volume in the place of one that is in use, beside a database that is in use, unless a user
//! confirms it for this uid.

use crate::{
    clientapp::{
        hold::{Hold, NAMED, join_limited},
        observed::{
            inventory,
            types::Observed,
            volumes::{confirm, in_use},
        },
        spec::desired::Desired,
    },
    crd::Reason,
};

/// Returns why nothing is changed: a volume in use is being deleted, or is lost.
pub(crate) fn hold(desired: &Desired, observed: &Observed) -> Option<Hold> {
    let namespace = &desired.key.namespace;
    let inventory = observed.objects.inventory.as_ref()?;
    let (mut going, mut lost) = (Vec::new(), Vec::new());
    let in_use = in_use(desired, Some(inventory), &observed.owned);
    for volume in in_use.into_iter().filter(|volume| inventory::expects(inventory, namespace, &volume.name)) {
        match observed.objects.claims.iter().find(|claim| claim.name.as_ref() == Some(&volume.name)) {
            Some(claim) if claim.uid.as_ref() == Some(&volume.uid) => {
                if claim.deletion_timestamp.is_some() {
                    going.push(volume.name);
                }
            }
            found => lost.push((volume, found.and_then(|claim| claim.uid.clone()))),
        }
    }
    if let Some((first, found)) = lost.first() {
        let what = match found {
            None => format!("PersistentVolumeClaim {} with the app's data is gone", first.name),
            Some(uid) => format!(
                "PersistentVolumeClaim {} is not the one with the app's data: its uid is {uid}, and the uid on record is {}",
                first.name, first.uid
            ),
        };
        let more = if lost.len() > 1 { format!("; so are {} more", lost.len() - 1) } else { String::new() };
        let lost: Vec<_> = lost.iter().map(|(volume, _)| volume).collect();
        let message = format!(
            "{what}{more}: nothing is changed; restore it under this name, and confirm what is then there, or nothing, with {}",
            confirm(desired, &observed.owned)(&lost)
        );
        return Some(Hold::new(Reason::VolumeLost, message));
    }
    (!going.is_empty()).then(|| {
        let message = format!(
            "PersistentVolumeClaim {} with the app's data is being deleted, and is gone once no pod uses it: copy the data elsewhere before its pod ends; helm does not run meanwhile",
            join_limited(going, NAMED)
        );
        Hold::new(Reason::VolumeGoing, message)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::clientapp::observed::volumes::tests::{claim, confirmed, observed, owned};

    #[test]
    fn a_volume_in_use_is_there() {
        let going = json!({"deletionTimestamp": "2026-01-01T12:00:00Z"});
        type Row<'a> = (&'a str, &'a [&'a str], &'a dyn Fn(&mut Observed), Option<&'a str>);
        let rows: [Row<'_>; 11] = [
            ("there", &[], &|_| {}, None),
            (
                "being deleted",
                &[],
                &|w| w.objects.claims[0] = claim("acme-files", "1", going.clone()),
                Some("VolumeGoing"),
            ),
            ("gone", &[], &|w| drop(w.objects.claims.remove(0)), Some("VolumeLost")),
            ("gone, and that is confirmed", &["1"], &|w| drop(w.objects.claims.remove(0)), None),
            ("gone, and another is confirmed", &["2"], &|w| drop(w.objects.claims.remove(0)), Some("VolumeLost")),
            ("replaced", &[], &|w| w.objects.claims[0] = claim("acme-files", "9", json!({})), Some("VolumeLost")),
            ("of a StatefulSet", &[], &|w| drop(w.objects.claims.remove(1)), Some("VolumeLost")),
            ("of the cache", &[], &|w| drop(w.objects.claims.remove(2)), None),
            ("not of the release any more", &[], &|w| drop(w.objects.claims.remove(3)), None),
            ("of more replicas than there are", &[], &|w| w.owned.push(owned("data-acme-mariadb-1", "5")), None),
            ("not known", &[], &|w| (w.objects.inventory, w.objects.claims) = (None, vec![]), None),
        ];
        for (what, without, change, expected) in rows {
            let desired = confirmed(without);
            let mut observed = observed(&desired);
            change(&mut observed);
            assert_eq!(hold(&desired, &observed).map(|hold| hold.reason.as_str()), expected, "{what}");
        }
    }
}
