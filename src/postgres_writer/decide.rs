//! What to do for one object now. **Pure.**
//!
//! The finalizer, or what is staked until it is on, is the claim to the row: it is made only after the row was seen to be
//! free, and from then on whatever has that id is ours, to write and to delete. So nothing of somebody else's is ever
//! written over, and nothing of ours is left behind or taken for somebody else's, wherever the operator is killed.

use super::row::Wanted;
use crate::crd::WrittenRow;

/// What is known of an object.
#[derive(Clone, Copy, Debug)]
pub struct World<'a> {
    /// It is being deleted.
    pub deleting: bool,
    /// It carries the finalizer, or its claim is staked.
    pub claimed: bool,
    /// What is staked is the claim of another object, which had this one's name and is gone.
    pub inherited: bool,
    /// The row it asks for, or why there is none.
    pub wanted: Result<&'a Wanted, &'a str>,
    /// The row as it was last written, by its status.
    pub written: Option<&'a WrittenRow>,
    /// The row was seen to differ since.
    pub drifted: bool,
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plan<'a> {
    /// Nothing, ever again.
    Forget,
    /// Delete the row of the object that is gone.
    Sweep,
    /// Look whether the row is free, and claim it.
    Claim(&'a Wanted),
    /// Write the row.
    Write(&'a Wanted),
    /// Nothing; the row is as it should be.
    Settled(&'a Wanted),
    /// Delete the row, then let the object go.
    Delete(&'a Wanted),
    /// Say what is wrong with the spec.
    Refuse(&'a str),
}

/// Decides.
#[must_use]
pub fn decide<'a>(world: &World<'a>) -> Plan<'a> {
    let World { deleting, claimed, inherited, wanted, written, drifted } = *world;
    if inherited {
        return Plan::Sweep;
    }
    if deleting && !claimed {
        return Plan::Forget;
    }
    let wanted = match wanted {
        Ok(wanted) => wanted,
        Err(problem) => return Plan::Refuse(problem),
    };
    if deleting {
        return Plan::Delete(wanted);
    }
    if !claimed {
        return Plan::Claim(wanted);
    }
    if !drifted && written.is_some_and(|written| is(written, wanted)) {
        return Plan::Settled(wanted);
    }
    Plan::Write(wanted)
}

/// Whether what was written is what is wanted.
#[must_use]
pub fn is(written: &WrittenRow, Wanted { table, row }: &Wanted) -> bool {
    let WrittenRow { table: in_table, id, digest, written_at: _ } = written;
    *in_table == table.to_string() && *id == row.id && *digest == row.digest()
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

    use super::{super::row::Row, *};

    fn wanted(age: i32) -> Wanted {
        let row = Row { id: "ns/ada".into(), name: "Ada".into(), age, country: "UK".into() };
        Wanted { table: "people".parse().unwrap(), row }
    }

    fn written(wanted: &Wanted) -> WrittenRow {
        WrittenRow {
            table: wanted.table.to_string(),
            id: wanted.row.id.clone(),
            digest: wanted.row.digest(),
            written_at: Time(Timestamp::UNIX_EPOCH),
        }
    }

    #[test]
    fn the_table() {
        let (now, then) = (wanted(36), wanted(35));
        let (current, old) = (written(&now), written(&then));
        let elsewhere = WrittenRow { table: "others".into(), ..current.clone() };
        let ok: Result<&Wanted, &str> = Ok(&now);
        let bad: Result<&Wanted, &str> = Err("spec.age: no");
        for (deleting, claimed, wanted, written, drifted, plan) in [
            (false, false, ok, None, false, Plan::Claim(&now)),
            // Of a status nobody but the operator knows where it is from: the claim decides.
            (false, false, ok, Some(&current), false, Plan::Claim(&now)),
            (false, true, ok, None, false, Plan::Write(&now)),
            (false, true, ok, Some(&old), false, Plan::Write(&now)),
            (false, true, ok, Some(&elsewhere), false, Plan::Write(&now)),
            (false, true, ok, Some(&current), false, Plan::Settled(&now)),
            (false, true, ok, Some(&current), true, Plan::Write(&now)),
            (false, false, bad, None, false, Plan::Refuse("spec.age: no")),
            (false, true, bad, Some(&current), true, Plan::Refuse("spec.age: no")),
            (true, false, ok, None, false, Plan::Forget),
            (true, false, bad, None, false, Plan::Forget),
            (true, true, ok, None, false, Plan::Delete(&now)),
            (true, true, ok, Some(&current), true, Plan::Delete(&now)),
            // Which row would it be?
            (true, true, bad, Some(&current), false, Plan::Refuse("spec.age: no")),
        ] {
            let world = World { deleting, claimed, inherited: false, wanted, written, drifted };
            assert_eq!(decide(&world), plan, "{world:?}");
            // Whatever shall be of this object: first the other one's row goes.
            let heir = World { inherited: true, ..world };
            assert_eq!(decide(&heir), Plan::Sweep, "{heir:?}");
        }
    }
}
