//! `store push`: backs up the dumps that the repository lacks, then removes old ones from the repository. An **effect**.

use tokio_util::sync::CancellationToken;

use super::{
    dump::{self, Dump},
    error::Error,
    lock,
    settings::PushArgs,
    stored::{self, Content, Stored},
    tidy,
};
use crate::restic::{command::Backup, repository::Repository};

pub(super) async fn push(repository: &Repository, push: &PushArgs, stop: &CancellationToken) -> Result<(), Error> {
    // Two processes would back up the same dumps twice.
    let _lock = stop.run_until_cancelled(lock::wait(&push.dumps)).await.unwrap_or(Err(Error::Stopped))?;
    let (whole, damaged) = dump::all(&push.dumps).map_err(Error::file("read", &push.dumps))?;
    for (name, problem) in damaged {
        println!("dump {name} is damaged ({problem}) and not uploaded");
    }
    let newest = whole.first().ok_or_else(|| Error::NoDump(push.dumps.clone()))?;
    let failed = |trouble| Error::upload(repository, trouble);
    repository.create().await.map_err(failed)?;
    let found = stored::all(&repository.snapshots().await.map_err(failed)?, Content::Dump);
    // The newest first, because a later upload may fail.
    let mut last = None;
    for dump in missing(&found, &whole) {
        match upload(repository, dump).await {
            Ok(id) => {
                println!("stored dump {} in {}: snapshot {id}", dump.name, repository.location.repository());
                last.get_or_insert(id);
            }
            Err(Error::DamagedHere { problem, .. }) if dump != newest => {
                println!("dump {} is damaged ({problem}) and not uploaded", dump.name);
            }
            // The Job of another dump has removed it.
            Err(_) if dump != newest && !dump.path.exists() => {}
            Err(error) => return Err(error),
        }
    }
    let there = found.iter().find(|stored| stored.name == newest.name).map(|stored| stored.id.clone());
    let (is_new, newest_one) = (last.is_some(), last.or(there));
    tidy::tidy(repository, &newest.about.system, Content::Dump, push.keep, newest_one.as_deref()).await?;
    if is_new { tidy::check(repository).await } else { Ok(()) }
}

/// Returns the dumps that are newer than those of their server in the repository, and the newest in any case: what is older was
/// removed from the repository, and is only still on the volume. **Pure.**
fn missing<'a>(found: &[Stored], whole: &'a [Dump]) -> Vec<&'a Dump> {
    let there = |dump: &Dump| found.iter().any(|stored| stored.name == dump.name);
    let is_newer = |dump: &Dump| {
        let mut its = found.iter().filter(|stored| stored.of == dump.about.system);
        its.all(|stored| stored.name < dump.name)
    };
    let newest = whole.first();
    whole.iter().filter(|dump| !there(dump) && (is_newer(dump) || Some(*dump) == newest)).collect()
}

/// Backs up a dump whose checksums match, and returns the snapshot's id.
async fn upload(repository: &Repository, dump: &Dump) -> Result<String, Error> {
    let checked = dump.clone();
    let verified = tokio::task::spawn_blocking(move || dump::verify(&checked.path, &checked.name));
    crate::platform::panic::joined(verified).await.map_err(|problem| Error::DamagedHere {
        name: dump.name.clone(),
        path: dump.path.clone(),
        problem,
    })?;
    let what = Backup {
        paths: vec![&dump.path],
        exclude: Vec::new(),
        host: &dump.about.system,
        tags: stored::tags_of(&dump.about),
        time: Some(dump.name.time()),
    };
    let summary = repository.backup(&what).await.map_err(|trouble| Error::upload(repository, trouble))?;
    if summary.totals.files != dump.files.len() as u64 {
        // Another Job was removing it meanwhile.
        let forgotten = repository.forget(&[&summary.snapshot_id]).await;
        forgotten.map_err(|trouble| Error::upload(repository, trouble))?;
        let problem = format!("{} of {} files were there", summary.totals.files, dump.files.len());
        return Err(Error::DamagedHere { name: dump.name.clone(), path: dump.path.clone(), problem });
    }
    Ok(summary.snapshot_id)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::dump::{About, Name};

    const A: &str = "20260102T030000Z-a";
    const B: &str = "20260103T030000Z-b";
    const C: &str = "20260104T030000Z-c";
    /// From a node whose clock was ahead.
    const AHEAD: &str = "20991231T000000Z-x";

    #[test]
    fn what_is_uploaded() {
        let here = |(name, system): &(&str, &str)| {
            let about = About { system: (*system).to_owned(), postgres: "17.10".to_owned(), tables: 1 };
            Dump { name: Name::parse(name).unwrap(), path: "/x".into(), about, files: Vec::new() }
        };
        let there = |(name, system): &(&str, &str)| Stored {
            name: Name::parse(name).unwrap(),
            content: Content::Dump,
            time: Name::parse(name).unwrap().time(),
            id: String::new(),
            paths: Vec::new(),
            of: (*system).to_owned(),
            has_data: true,
            bytes: 1,
            count: 1,
        };
        for (what, found, local, expected) in [
            ("all", &[][..], &[(C, "7"), (B, "7")][..], &[C, B][..]),
            ("what an outage has kept back", &[(A, "7")], &[(C, "7"), (B, "7"), (A, "7")], &[C, B]),
            ("nothing", &[(C, "7"), (B, "7")], &[(C, "7"), (B, "7")], &[]),
            ("nothing that was removed", &[(C, "7")], &[(C, "7"), (B, "7"), (A, "7")], &[]),
            ("the newest, whatever is there", &[(AHEAD, "7")], &[(C, "7"), (B, "7")], &[C]),
            ("another server's", &[(C, "7")], &[(C, "7"), (A, "8")], &[A]),
        ] {
            let found: Vec<_> = found.iter().map(there).collect();
            let whole: Vec<_> = local.iter().map(here).collect();
            let names: Vec<_> = missing(&found, &whole).iter().map(|dump| dump.name.as_str()).collect();
            assert_eq!(names, expected, "{what}");
        }
    }
}
