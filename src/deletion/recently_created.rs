//! Remembers what this process has created for an owner, which may be deleted before its status records that: then nothing else would prove
//! that the object may be deleted. The memory may be lost at any time, because what no status records is retained.

use crate::{
    crd::Owned,
    platform::{cache::Memo, key::Key},
};

/// Maps each owner to its uid and the objects created for it.
#[derive(Default)]
pub(crate) struct RecentlyCreated(Memo<Key, (String, Vec<Owned>)>);

impl RecentlyCreated {
    /// Remembers an object that was just created for the owner with this uid.
    pub(crate) fn record(&self, owner: &Key, uid: &str, object: Owned) {
        let mut created = self.created_for(owner, uid);
        upsert(&mut created, object);
        self.0.put(owner.clone(), (uid.to_owned(), created));
    }

    /// Returns what was created for the owner with this uid.
    pub(crate) fn created_for(&self, owner: &Key, uid: &str) -> Vec<Owned> {
        self.0.get(owner).filter(|(owner_uid, _)| owner_uid == uid).map(|(_, created)| created).unwrap_or_default()
    }

    pub(crate) fn forget(&self, owner: &Key) {
        self.0.take(owner);
    }
}

fn is_same(one: &Owned, other: &Owned) -> bool {
    (&one.kind, &one.name) == (&other.kind, &other.name)
}

/// Records an object, in place of another one of its name. **Pure.**
pub(crate) fn upsert(owned: &mut Vec<Owned>, object: Owned) {
    match owned.iter_mut().find(|entry| is_same(entry, &object)) {
        Some(entry) => *entry = object,
        None => owned.push(object),
    }
}

/// Adds the created objects, except those whose name is recorded for another object: a replacement is recorded once the operator has
/// dealt with it. **Pure.**
pub(crate) fn add_missing(owned: &mut Vec<Owned>, created: &[Owned]) {
    for object in created {
        if !owned.iter().any(|entry| is_same(entry, object)) {
            owned.push(object.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(name: &str, uid: &str) -> Owned {
        Owned { kind: "PersistentVolumeClaim".to_owned(), name: name.to_owned(), uid: uid.to_owned() }
    }

    #[test]
    fn the_last_object_of_a_name_counts_and_only_for_its_owner() {
        let (created, owner) = (RecentlyCreated::default(), Key::new("tenants", "db"));
        for object in [claim("a", "1"), claim("b", "2"), claim("a", "3")] {
            created.record(&owner, "uid", object);
        }
        assert_eq!(created.created_for(&owner, "uid"), [claim("a", "3"), claim("b", "2")]);
        assert_eq!(created.created_for(&owner, "of the next"), []);
        created.record(&owner, "of the next", claim("c", "4"));
        assert_eq!(created.created_for(&owner, "uid"), []);
        created.forget(&owner);
        assert_eq!(created.created_for(&owner, "of the next"), []);
    }

    #[test]
    fn what_is_on_record_is_not_replaced() {
        let mut owned = vec![claim("a", "1")];
        add_missing(&mut owned, &[claim("a", "2"), claim("b", "3")]);
        assert_eq!(owned, [claim("a", "1"), claim("b", "3")]);
    }
}
