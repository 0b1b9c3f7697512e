//! `store forget`: removes the archive of one ClientAppBackup. An **effect**.

use super::{
    error::Error,
    stored::{self, Content},
};
use crate::restic::repository::Repository;

pub(super) async fn forget(repository: &Repository, backup: &str) -> Result<(), Error> {
    let place = repository.location.repository();
    let failed = |trouble| Error::Repository { operation: "forget an archive in", place: place.clone(), trouble };
    if !repository.exists().await.map_err(failed)? {
        println!("there is no repository {place}");
        return Ok(());
    }
    let snapshots = repository.snapshots().await.map_err(failed)?;
    let made = stored::of_backup(&snapshots, Content::Files, backup);
    if made.is_empty() {
        println!("{place} has no archive of ClientAppBackup {backup} any more");
        // An earlier try may have removed the snapshot, and not the data that only it needed.
        return repository.prune().await.map_err(failed);
    }
    let ids: Vec<_> = made.iter().map(|stored| stored.id.as_str()).collect();
    repository.forget(&ids).await.map_err(failed)?;
    for stored in &made {
        println!("removed {} of ClientAppBackup {backup} from {place}", stored.name);
    }
    Ok(())
}
