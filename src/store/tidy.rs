//! Removes what the rule does not keep, and checks the repository. An **effect**.

use super::{
    error::Error,
    stored::{Content, Stored},
};
use crate::restic::{command::Keep, repository::Repository};

/// Removes snapshots of this host by the rule, but never the one that was made last. Those without data never replace any with data.
pub(super) async fn tidy(
    repository: &Repository,
    host: &str,
    content: Content,
    keep: Option<Keep>,
    made: Option<&str>,
) -> Result<(), Error> {
    let failed = |trouble| Error::upload(repository, trouble);
    let mut superseded = Vec::new();
    for has_data in [true, false] {
        let Some(keep) = keep else { break };
        superseded.extend(repository.superseded(host, &content.tags(has_data), keep).await.map_err(failed)?);
    }
    superseded.retain(|snapshot| Some(snapshot.id.as_str()) != made);
    if !superseded.is_empty() {
        let ids: Vec<_> = superseded.iter().map(|snapshot| snapshot.id.as_str()).collect();
        repository.forget(&ids).await.map_err(failed)?;
        for snapshot in &superseded {
            let name = Stored::of(snapshot).map_or_else(|| snapshot.id.clone(), |stored| stored.name.to_string());
            println!("removed {name} from {}: newer ones replace it", repository.location.repository());
        }
    }
    if made.is_some() {
        repository.check().await.map_err(|trouble| Error::check(repository, trouble))?;
    }
    Ok(())
}
