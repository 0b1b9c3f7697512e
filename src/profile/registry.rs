//! Tells ClientApps of Profiles: which revision each of them has, or may take. Filled by the controller of Profiles.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use parking_lot::Mutex;

use super::{revision::ProfileRevision, waves::Passed};
use crate::{
    crd::{BoundRevision, Profile},
    platform::{cache::Cache, controller::Objects, key::Key},
};

/// Holds the Profiles, their revisions, and who may take which.
pub(crate) struct Profiles {
    /// The Profiles, and the triggers of their reconciles.
    pub(super) objects: Objects<Profile>,
    /// The ControllerRevisions by name, filed under the uid of their Profile.
    pub(super) revisions: Cache<Arc<ProfileRevision>>,
    /// By uid of the Profile.
    turns: Mutex<BTreeMap<String, Turns>>,
}

/// Says which revisions the ClientApps of a Profile may take.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Turns {
    /// The name of the revision that new ClientApps begin with.
    pub(super) current: String,
    /// The name of the revision that `permitted` may take.
    pub(super) target: String,
    /// uids of the ClientApps whose turn it is.
    pub(super) permitted: BTreeSet<String>,
    pub(super) passed: Passed,
}

impl Turns {
    /// Returns true if the ClientApp with this uid may take this revision.
    pub(super) fn permits(&self, target: &str, app: &str) -> bool {
        self.target == target && self.permitted.contains(app)
    }
}

/// The revision of its Profile that a ClientApp has from now on.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    /// There is no such Profile.
    Missing,
    /// The Profile has no revision yet, for this reason if it is known.
    Unknown(Option<String>),
    Revision(Arc<ProfileRevision>),
}

impl Profiles {
    pub(crate) fn new(objects: Objects<Profile>) -> Profiles {
        Profiles { objects, revisions: Cache::default(), turns: Mutex::default() }
    }

    /// Returns once it is known which Profiles and revisions there are.
    pub(crate) async fn synced(&self) {
        self.objects.listed().await;
        self.revisions.synced().await;
    }

    /// Triggers a reconcile of each Profile, because ClientApps may have changed.
    pub(crate) fn trigger_all(&self) {
        self.objects.trigger_where(|_| true);
    }

    /// Triggers a reconcile of a Profile, because one of its ClientApps has changed.
    pub(crate) fn trigger(&self, profile: &str) {
        self.objects.trigger(&Key::new("", profile));
    }

    /// Returns the revision for the ClientApp with this uid: the one whose turn it is, else the one that it has, else the current one.
    pub(crate) fn revision_for(&self, profile: &str, app: &str, has: Option<&BoundRevision>) -> Found {
        let Some(found) = self.objects.get(&Key::new("", profile)) else { return Found::Missing };
        let uid = found.metadata.uid.as_deref().unwrap_or_default();
        let of_profile = |name: &str| {
            self.revisions
                .get(&Key::new("", name))
                .filter(|revision: &Arc<ProfileRevision>| revision.profile_uid == uid)
        };
        let (turn, current) = self.turns.lock().get(uid).map_or((None, None), |turns| {
            let turn = turns.permitted.contains(app).then(|| turns.target.clone());
            (turn, Some(turns.current.clone()))
        });
        let has = has.filter(|has| has.profile == profile).map(|has| has.name.clone());
        match [turn, has, current].into_iter().flatten().find_map(|name| of_profile(&name)) {
            Some(revision) => Found::Revision(revision),
            None => Found::Unknown(found.object.as_ref().err().cloned()),
        }
    }

    /// Returns the revisions of the Profile with this uid, in ascending order.
    pub(super) fn revisions_of(&self, uid: &str) -> Vec<Arc<ProfileRevision>> {
        let mut revisions: Vec<_> =
            self.revisions.group(&Key::new("", uid)).into_iter().map(|(_, revision)| revision).collect();
        revisions.sort_by_key(|revision| revision.number);
        revisions
    }

    pub(super) fn turns_of(&self, uid: &str) -> Turns {
        self.turns.lock().get(uid).cloned().unwrap_or_default()
    }

    /// Sets the turns of the Profile with this uid; `None`: it is gone.
    pub(super) fn set_turns(&self, uid: &str, turns: Option<Turns>) {
        match turns {
            Some(turns) => _ = self.turns.lock().insert(uid.to_owned(), turns),
            None => _ = self.turns.lock().remove(uid),
        }
    }
}
