//! What is done to the row and to the object's finalizer. An **effect**.

use super::{
    context::{Ctx, Writer},
    database::Owner,
    decide::Plan,
    error::Error,
    row::Wanted,
};

pub(super) enum Done {
    /// The object is let go.
    Gone,
    /// The row is as it should be, and was written for that or not.
    Settled { wanted: Wanted, written: bool },
}

pub(super) async fn act(ctx: &Ctx, of: &Writer<'_>, sealed: bool, plan: Plan) -> Result<Done, Error> {
    let (id, uid) = (&of.key.to_string(), of.uid());
    match plan {
        Plan::Forget => Ok(Done::Gone),
        Plan::Refuse(error) => Err(error),
        Plan::Settled(wanted) => Ok(Done::Settled { wanted, written: false }),
        Plan::Erase => {
            let database = ctx.database()?;
            database.erase(Owner { cluster: ctx.cluster().await?, id, uid }, &ctx.parts.lead).await?;
            ctx.seal(of, false).await?;
            Ok(Done::Gone)
        }
        Plan::Write(wanted) => {
            let database = ctx.database()?;
            let owner = Owner { cluster: ctx.cluster().await?, id, uid };
            if !sealed && !ctx.seal(of, true).await? {
                return Ok(Done::Gone);
            }
            let written = database.put(owner, &wanted, &ctx.parts.lead).await?;
            Ok(Done::Settled { wanted, written })
        }
    }
}
