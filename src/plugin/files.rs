//! `backups --files`: the archives of an app's files.

use indicatif::BinaryBytes;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use super::{
    bucket,
    connection::Flags,
    error::Error,
    session::{Printer, Session},
    text::{BAD, GOOD, UNSURE, age, paint},
};
use crate::crd::{ClientApp, FilesSummary};

pub(crate) async fn list(session: &Session, printer: &mut Printer, name: &str) -> Result<(), Error> {
    let app = session.app(name).await?.app;
    let missing = || format!("the files of {name} are not archived: spec.persistence.backup is not set");
    let backup = app.spec.persistence.backup.ok_or_else(|| Error::Missing(missing()))?;
    bucket::list_archives(session, printer, name, &backup).await
}

/// A line about the last archive of an app's files, and one about a failure since. Empty if they are not archived.
pub(crate) fn last(app: &ClientApp, flags: &Flags, now: Timestamp) -> String {
    if app.spec.persistence.backup.is_none() {
        return String::new();
    }
    let summary = app.status.as_ref().and_then(|status| status.files.clone()).unwrap_or_default();
    let FilesSummary {
        last_success,
        last_duration: _,
        archive,
        bytes,
        files,
        last_failure,
        failed_backup: _,
        failure,
        scheduled: _,
    } = summary;
    let ago = |time: &Time| format!("{} ago", age(Some(time.0), now));
    let mut text = match &last_success {
        Some(time) => {
            let archive = archive.map_or_else(String::new, |archive| format!(" as {archive}"));
            let bytes = bytes.map_or_else(String::new, |bytes| format!(", {}", BinaryBytes(bytes.unsigned_abs())));
            let files = files.map_or_else(String::new, |files| format!(", {files} files and directories"));
            format!("{} the app's files were archived {}{archive}{bytes}{files}\n", paint(GOOD, "archived:"), ago(time))
        }
        None => format!(
            "{} there is no archive of the app's files yet: {} makes one\n",
            paint(UNSURE, "not archived:"),
            flags.command(format!("kubectl clientapp backup {}", app.name_any()))
        ),
    };
    let failed_last = last_failure.filter(|failure| last_success.as_ref().is_none_or(|success| success.0 < failure.0));
    if let Some(time) = failed_last {
        let why = failure.map_or_else(String::new, |why| format!(": {why}"));
        text += &format!("{} the archive {} failed{why}\n", paint(BAD, "not archived:"), ago(&time));
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::{
        platform::fake::{merged, of},
        plugin::tests::flags,
    };

    const ARCHIVE: &str = "20260131T033000Z-p9d4f";

    fn app(spec: Value, status: Value) -> ClientApp {
        let store = json!({"endpoint": "http://e", "bucket": "dumps", "credentialsSecret": {"name": "s3"}});
        let app = crate::plugin::tests::app("acme", json!({"persistence": {"backup": {"store": store}}}), status);
        of(merged(app, json!({"spec": spec})))
    }

    #[test]
    fn the_last_archive() {
        let now = "2026-01-31T04:00:00Z".parse().unwrap();
        let line = |files: Value| {
            let line = last(&app(json!({}), json!({"files": files})), &flags("shop"), now);
            anstream::adapter::strip_str(&line).to_string()
        };
        let archived = json!({
            "lastSuccess": "2026-01-31T03:30:00Z", "lastDuration": 60, "archive": ARCHIVE, "bytes": 123_456_789,
            "files": 42, "lastFailure": "2026-01-30T03:30:00Z", "failedBackup": "acme-files-202601300330", "failure": "error: why",
        });
        insta::assert_snapshot!(line(archived.clone()), @"archived: the app's files were archived 30m ago as 20260131T033000Z-p9d4f, 117.74 MiB, 42 files and directories");
        let mut failed = archived;
        failed["lastFailure"] = json!("2026-01-31T03:50:00Z");
        insta::assert_snapshot!(line(failed), @r"
        archived: the app's files were archived 30m ago as 20260131T033000Z-p9d4f, 117.74 MiB, 42 files and directories
        not archived: the archive 10m ago failed: error: why
        ");
        insta::assert_snapshot!(line(Value::Null), @"not archived: there is no archive of the app's files yet: `kubectl clientapp backup acme -n shop` makes one");
        assert_eq!(last(&app(json!({"persistence": {"backup": null}}), json!({})), &flags("shop"), now), "");
    }
}
