//! `history`: the revisions of a release, from the labels of Helm's storage Secrets. Their payloads are never read.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ListParams, PartialObjectMeta};

use super::{
    error::Error,
    session::{Printer, Session},
    text::{BAD, FAINT, GOOD, PLAIN, UNSURE, age, paint, table},
};
use crate::secrets::{RevisionMeta, revision};

/// Characters of a digest that distinguish it from others.
const DIGEST: usize = 12;

pub(crate) async fn run(session: &Session, printer: &mut Printer, name: &str) -> Result<(), Error> {
    let params = ListParams::default().labels(&format!("owner=helm,name={name}"));
    let what = format!("list the revisions of release {}/{name}", session.namespace);
    let mut secrets = session.api::<Secret>().list_metadata(&params).await.map_err(Error::api(what))?.items;
    if secrets.is_empty() {
        session.app(name).await?;
        if printer.is_for_humans() {
            printer.note(&format!("Release {name} has no revision yet."));
            return Ok(());
        }
    }
    secrets.sort_by_key(|secret| revision(secret).map(|revision| revision.revision));
    printer.objects(&secrets, || render(&secrets, Session::now()))
}

pub(crate) fn render(secrets: &[PartialObjectMeta<Secret>], now: Timestamp) -> String {
    let rows: Vec<_> = secrets.iter().filter_map(revision).map(|revision| row(&revision, now)).collect();
    table(&["REVISION", "STATUS", "DIGEST", "BY", "AGE"], &rows)
}

fn row(revision: &RevisionMeta, now: Timestamp) -> Vec<String> {
    // Helm copies labels to the next revision; only labels stamped for this revision are its own.
    let own = revision.digest.as_ref().filter(|_| revision.stamped == Some(revision.revision));
    let status = match revision.status.as_str() {
        "deployed" => GOOD,
        "failed" => BAD,
        pending if pending.starts_with("pending-") => UNSURE,
        _ => PLAIN,
    };
    vec![
        revision.revision.to_string(),
        paint(status, &revision.status),
        own.map_or_else(|| "-".to_owned(), |digest| digest.chars().take(DIGEST).collect()),
        own.map_or_else(|| paint(UNSURE, "another Helm client"), |_| "this operator".to_owned()),
        paint(FAINT, age(revision.written, now)),
    ]
}
