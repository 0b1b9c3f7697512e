//! Remembers what this process has created for an owner, which may be deleted before that is on record: then nothing else would prove that it
//! may go. It may be lost at any time: what is not on record is kept.

use crate::{
    crd::Owned,
    platform::{cache::Memo, key::Key},
};

/// For each owner: its uid, and what was created for it.
#[derive(Default)]
pub(crate) struct Made(Memo<Key, (String, Vec<Owned>)>);

impl Made {
    /// Remembers an object that was just created for the owner with this uid.
    pub(crate) fn put(&self, owner: &Key, uid: &str, object: Owned) {
        let mut made = self.of(owner, uid);
        put(&mut made, object);
        self.0.put(owner.clone(), (uid.to_owned(), made));
    }

    /// Returns what was created for the owner with this uid.
    pub(crate) fn of(&self, owner: &Key, uid: &str) -> Vec<Owned> {
        self.0.get(owner).filter(|(of, _)| of == uid).map(|(_, made)| made).unwrap_or_default()
    }

    pub(crate) fn forget(&self, owner: &Key) {
        self.0.take(owner);
    }
}

fn is_same(one: &Owned, other: &Owned) -> bool {
    (&one.kind, &one.name) == (&other.kind, &other.name)
}

/// Records an object, in place of another one of its name. **Pure.**
pub(crate) fn put(owned: &mut Vec<Owned>, object: Owned) {
    match owned.iter_mut().find(|entry| is_same(entry, &object)) {
        Some(entry) => *entry = object,
        None => owned.push(object),
    }
}

/// Adds what was created, unless another object of its name is on record: a replacement is recorded once the operator has dealt with
/// it. **Pure.**
pub(crate) fn add(owned: &mut Vec<Owned>, made: &[Owned]) {
    for object in made {
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
        let (made, owner) = (Made::default(), Key::new("tenants", "db"));
        for object in [claim("a", "1"), claim("b", "2"), claim("a", "3")] {
            made.put(&owner, "uid", object);
        }
        assert_eq!(made.of(&owner, "uid"), [claim("a", "3"), claim("b", "2")]);
        assert_eq!(made.of(&owner, "of the next"), []);
        made.put(&owner, "of the next", claim("c", "4"));
        assert_eq!(made.of(&owner, "uid"), []);
        made.forget(&owner);
        assert_eq!(made.of(&owner, "of the next"), []);
    }

    #[test]
    fn what_is_on_record_is_not_replaced() {
        let mut owned = vec![claim("a", "1")];
        add(&mut owned, &[claim("a", "2"), claim("b", "3")]);
        assert_eq!(owned, [claim("a", "1"), claim("b", "3")]);
    }
}
