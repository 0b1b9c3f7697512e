//! Removes what the rule does not keep, and checks the repository. An **effect**.

use super::{
    error::Error,
    stored::{Content, Stored},
};
use crate::{
    crd::StoreKeep,
    restic::{
        output::Failure,
        repository::{Repository, Trouble},
    },
};

/// Removes snapshots of this host by the rule, but never the newest one. Those without data never replace any with data.
pub(super) async fn tidy(
    repository: &Repository,
    host: &str,
    content: Content,
    keep: Option<StoreKeep>,
    newest: Option<&str>,
) -> Result<(), Error> {
    let failed = |trouble| Error::upload(repository, trouble);
    let mut superseded = Vec::new();
    for has_data in [true, false] {
        let Some(keep) = keep.filter(|keep| *keep != StoreKeep::default()) else { break };
        superseded.extend(repository.superseded(host, &content.tags(has_data), keep).await.map_err(failed)?);
    }
    superseded.retain(|snapshot| Some(snapshot.id.as_str()) != newest);
    if !superseded.is_empty() {
        let ids: Vec<_> = superseded.iter().map(|snapshot| snapshot.id.as_str()).collect();
        repository.forget(&ids).await.map_err(failed)?;
        for snapshot in &superseded {
            let name = Stored::of(snapshot).map_or_else(|| snapshot.id.clone(), |stored| stored.name.to_string());
            println!("removed {name} from {}: newer ones replace it", repository.location.repository());
        }
    }
    Ok(())
}

/// Checks the repository after a backup, unless another process has it for long: that one checks it.
pub(super) async fn check(repository: &Repository) -> Result<(), Error> {
    match repository.check().await {
        Err(Trouble::Failed(Failure::Locked)) => {
            println!("the repository is in use by another process, and not checked now");
            Ok(())
        }
        checked => checked.map_err(|trouble| Error::check(repository, trouble)),
    }
}
