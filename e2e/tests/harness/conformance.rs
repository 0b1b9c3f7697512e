//! The checks of `cargo e2e charts` over the test chart: they find no fault with its good versions, and what is wrong with the others.

use std::path::Path;

use e2e::arguments::defaults;
use e2e::charts::{self, Content};
use e2e::conformance::archives::{Archive, Source};
use e2e::conformance::table::{Cell, Table};
use e2e::conformance::{self, check, upgrades};
use e2e::progress::Progress;

use crate::tools;

/// The test chart's archives of these versions, in a directory.
fn archives(directory: &Path, versions: &[&str]) -> Vec<Archive> {
    for version in versions {
        charts::package(directory, version, Content::Genuine).unwrap();
    }
    let source = Source::Directory(directory.to_owned());
    // It needs helm only for a repository.
    source.archives(&[], Path::new("unused"), Path::new("unused"), &Progress::hidden()).unwrap()
}

/// The table of these versions and parts; without parts, of all.
fn table(versions: &[&str], parts: &[&str]) -> Table {
    let progress = Progress::hidden();
    let directory = tempfile::tempdir().unwrap();
    let archives = archives(directory.path(), versions);
    let parts = parts.iter().map(|part| (*part).to_owned()).collect();
    check(&archives, &tools().helm, &conformance::Options { parts, ..defaults() }, &progress).unwrap()
}

#[test]
fn good_versions_have_every_part() {
    // The others differ from the default version in their numbers only.
    let versions = [charts::DEFAULT, charts::CURRENT];
    let table = table(&versions, &[]);
    assert_eq!(table.rows.len(), versions.len());
    assert!(table.violations().is_empty(), "{}", table.told(true));
    let has = |version: &str, part: &str| {
        let column = table.parts.iter().position(|name| name == part).unwrap();
        table.rows.iter().find(|(name, _)| name == version).unwrap().1[column] == Cell::Fine
    };
    for part in ["cron job", "httpRoute"] {
        assert!(has(charts::CURRENT, part) && !has(charts::DEFAULT, part), "{part}");
    }
}

#[test]
#[ignore = "scenarios and `cargo e2e charts` do the same with the operator and with published charts"]
fn an_upgrade_keeps_volumes_and_credentials() {
    let directory = tempfile::tempdir().unwrap();
    let archives = archives(directory.path(), &[charts::DEFAULT, charts::PATCH, charts::MAJOR]);
    let steps = upgrades::run(&archives, &Progress::hidden()).unwrap();
    assert!(steps.iter().all(|step| step.violations.is_empty()), "{}", upgrades::told(&steps));
    // The newest of each major version.
    let versions: Vec<_> = steps.iter().map(|step| step.version.as_str()).collect();
    assert_eq!(versions, [charts::PATCH, charts::MAJOR]);
    let claims = ["acme-nextcloud-nextcloud", "data-acme-pg-0", "redis-data-acme-redis-master-0"];
    assert!(steps.iter().all(|step| step.claims == claims), "{}", upgrades::told(&steps));
}

#[test]
fn a_renamed_claim_is_told() {
    assert_eq!(
        table(&[charts::PATCH, charts::RENAMES_CLAIM], &["plain"]).violations(),
        [
            "plain: claims: the claim acme-nextcloud-nextcloud of the version before is gone",
            "plain: claims: the claim acme-nextcloud-files is new, beside those of the version before",
        ]
    );
}

#[test]
fn a_version_that_does_not_render_is_told() {
    let told = table(&[charts::UNRENDERABLE], &["plain", "httpRoute"]);
    let [violation] = &told.violations()[..] else { panic!("{}", told.told(true)) };
    assert!(
        violation.starts_with("plain: helm: ") && violation.contains("this version refuses to render"),
        "{violation}"
    );
    assert_eq!(told.rows[0].1[1], Cell::Absent);
}
