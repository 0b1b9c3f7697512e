//! What to do for one object now. **Pure.**
//!
//! The finalizer goes before the row, so that no row outlives its object unseen. It proves nothing more, and neither does a
//! status: whose a row is says the ledger alone, in the transaction that writes ([`super::database`]).

use super::{error::Error, row::Wanted};
use crate::crd::WrittenRow;

#[derive(Clone, Copy, Debug)]
pub(super) struct Look<'a> {
    pub(super) deleting: bool,
    pub(super) sealed: bool,
    /// The row as it was last written, by its status.
    pub(super) written: Option<&'a WrittenRow>,
    /// The row was seen to differ since.
    pub(super) drifted: bool,
}

#[derive(Debug)]
pub(super) enum Plan {
    /// Nothing, ever again.
    Forget,
    /// Delete the row that the ledger has, whatever the spec says, then let the object go.
    Erase,
    /// Say what is wrong with the spec.
    Refuse(Error),
    /// Nothing; the row is as it should be.
    Settled(Wanted),
    /// Put the finalizer on if need be, then write the row.
    Write(Wanted),
}

pub(super) fn decide(look: &Look<'_>, wanted: Result<Wanted, Error>) -> Plan {
    let Look { deleting, sealed, written, drifted } = *look;
    match wanted {
        _ if deleting && sealed => Plan::Erase,
        _ if deleting => Plan::Forget,
        Err(error) => Plan::Refuse(error),
        Ok(wanted) if sealed && !drifted && written.is_some_and(|written| wanted.is(written)) => Plan::Settled(wanted),
        Ok(wanted) => Plan::Write(wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::{super::row::tests::ada, *};

    #[test]
    fn the_table() {
        let [current, old] = [36, 35].map(|age| ada(age).written(jiff::Timestamp::UNIX_EPOCH));
        let elsewhere = WrittenRow { table: "others".into(), ..current.clone() };
        for (deleting, sealed, valid, written, drifted, plan) in [
            (false, false, true, None, false, "Write"),
            // A status proves nothing, a finalizer that the object brought along neither.
            (false, false, true, Some(&current), false, "Write"),
            (false, true, true, None, false, "Write"),
            (false, true, true, Some(&old), false, "Write"),
            (false, true, true, Some(&elsewhere), false, "Write"),
            (false, true, true, Some(&current), false, "Settled"),
            (false, true, true, Some(&current), true, "Write"),
            (false, false, false, None, false, "Refuse"),
            (false, true, false, Some(&current), true, "Refuse"),
            (true, false, true, None, false, "Forget"),
            (true, false, false, None, false, "Forget"),
            (true, true, true, None, false, "Erase"),
            (true, true, true, Some(&current), true, "Erase"),
            (true, true, false, Some(&elsewhere), false, "Erase"),
        ] {
            let look = Look { deleting, sealed, written, drifted };
            let wanted = valid.then(|| ada(36)).ok_or_else(|| Error::invalid("spec.age: no".into()));
            let decided = format!("{:?}", decide(&look, wanted));
            assert!(decided.starts_with(plan), "{look:?}: {decided}");
        }
    }
}
