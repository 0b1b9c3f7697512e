//! Reads what the index of a chart repository says about an archive (pure, except for [`read`]).
//!
//! Helm 4.3.1 does not compare an archive that it pulls with the digest in the index (`DownloadTo` in `downloader/chart_downloader.go`),
//! although archives are often at another host than the index. So the operator does.

use std::{borrow::Cow, fs, io, path::Path};

use granit_parser::{Event, Parser, ScanError};
use semver::Version;

use super::command::ChartName;

/// Size limit of an index, in bytes. Large public repositories have 20 MiB.
const MAX_INDEX: u64 = 64 << 20;
/// The key of the items of a sequence.
const ITEM: &str = "";

#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidIndex {
    #[error("the repository's index cannot be read: {source}")]
    Unreadable { source: io::Error },
    #[error("the repository's index is larger than {MAX_INDEX} bytes")]
    TooLarge,
    #[error("the repository's index is not YAML: {source}")]
    NotYaml { source: Box<ScanError> },
    #[error(
        "the repository's index has a digest of version {version} that helm and the operator may read differently: an alias, a merge key, or a key in other letters"
    )]
    Ambiguous { version: Version },
}

/// Reads the [`digests`] of an index file. It blocks, for a second if the index is large.
pub(in crate::helm) fn read(
    path: &Path,
    chart: &ChartName,
    version: &Version,
) -> Result<Option<Vec<String>>, InvalidIndex> {
    let unreadable = |source| InvalidIndex::Unreadable { source };
    if fs::metadata(path).map_err(unreadable)?.len() > MAX_INDEX {
        return Err(InvalidIndex::TooLarge);
    }
    let index = fs::read_to_string(path).map_err(unreadable)?;
    digests(&index, chart, version)
}

/// Returns the SHA-256 of a chart version's archive: several if the index lists the version more than once, and an empty list if it does so
/// without a digest, as old repositories do. `None` if the index does not have the version.
fn digests(index: &str, chart: &ChartName, version: &Version) -> Result<Option<Vec<String>>, InvalidIndex> {
    let mut entries = entries(index, chart.as_str()).map_err(|source| InvalidIndex::NotYaml { source })?;
    let is_asked_for = |entry: &IndexEntry| is_version(&entry.version, version);
    if entries.iter().any(|entry| entry.is_ambiguous && (entry.version.is_empty() || is_asked_for(entry))) {
        return Err(InvalidIndex::Ambiguous { version: version.clone() });
    }
    entries.retain(is_asked_for);
    let listed = entries.iter().map(|entry| plain(&entry.digest)).filter(|digest| !digest.is_empty()).collect();
    Ok((!entries.is_empty()).then_some(listed))
}

/// Returns true if a chart's own text names this version. Some charts prefix it with a v, which helm ignores.
pub(in crate::helm) fn is_version(text: &str, version: &Version) -> bool {
    text.trim_start_matches('v').parse().is_ok_and(|found: Version| found == *version)
}

/// Returns a digest without the name of its algorithm, which helm allows; empty if there is none. Its length is bounded, because
/// messages quote it.
fn plain(digest: &str) -> String {
    let digest = match digest {
        "null" | "Null" | "NULL" | "~" => "",
        _ => digest.rsplit(':').next().unwrap_or_default(),
    };
    digest.chars().filter(char::is_ascii_graphic).take(80).map(|char| char.to_ascii_lowercase()).collect()
}

#[derive(Default)]
struct IndexEntry {
    version: String,
    digest: String,
    /// True if version or digest may be another than these for helm.
    is_ambiguous: bool,
}

/// A mapping or sequence that has begun, and the key of the value in it that is being read.
struct Open<'a> {
    is_mapping: bool,
    key: Option<Cow<'a, str>>,
}

/// Returns the entries of a chart, read event by event: all of a large index as values would take hundreds of MiB.
fn entries(index: &str, chart: &str) -> Result<Vec<IndexEntry>, Box<ScanError>> {
    let (mut open, mut entries) = (Vec::<Open<'_>>::new(), Vec::<IndexEntry>::new());
    for event in Parser::new_from_str(index) {
        let (event, _) = event.map_err(Box::new)?;
        let is_alias = matches!(event, Event::Alias(_));
        let node: Cow<'_, str> = match event {
            Event::MappingStart(..) => {
                if is_list_of(chart, &open) {
                    entries.push(IndexEntry::default());
                }
                open.push(Open { is_mapping: true, key: None });
                continue;
            }
            Event::SequenceStart(..) => {
                open.push(Open { is_mapping: false, key: Some(ITEM.into()) });
                continue;
            }
            Event::MappingEnd | Event::SequenceEnd => {
                open.pop();
                Cow::default()
            }
            Event::Scalar(text, ..) => text,
            Event::Alias(_) => Cow::default(),
            // helm reads the first document.
            Event::DocumentEnd => break,
            _ => continue,
        };
        let Some((last, outer)) = open.split_last_mut() else { continue };
        if !last.is_mapping {
            continue;
        }
        let Some(key) = last.key.take() else {
            last.key = Some(node);
            continue;
        };
        if is_list_of(chart, outer)
            && let Some(entry) = entries.last_mut()
        {
            let is = |name: &str| key.eq_ignore_ascii_case(name);
            entry.is_ambiguous |=
                key == "<<" || (is_alias || key != key.to_ascii_lowercase()) && (is("version") || is("digest"));
            match &*key {
                "version" => entry.version = node.into_owned(),
                "digest" => entry.digest = node.into_owned(),
                _ => {}
            }
        }
    }
    Ok(entries)
}

fn is_list_of(chart: &str, open: &[Open<'_>]) -> bool {
    open.iter().map(|open| open.key.as_deref()).eq([Some("entries"), Some(chart), Some(ITEM)])
}

#[cfg(test)]
mod tests {
    use super::*;

    const INDEX: &str = r#"
apiVersion: v1
entries:
  other:
  - version: 5.5.2
    digest: "01"
  nextcloud:
  - annotations: {version: 5.5.9, digest: "02"}
    dependencies:
    - name: redis
      version: 5.5.9
      digest: "03"
    digest: sha256:0A
    maintainers: &all [{name: a}]
    version: 5.5.2
    urls: [https://example.com/nextcloud-5.5.2.tgz]
  - {version: v5.5.3, digest: "04", maintainers: *all}
  - version: 5.5.4
  - version: 5.5.5
    digest: ~
  - version: 5.5.6
    digest:
  - version: 5.5.7
    digest: "05"
  - version: 5.5.7
    digest: "06"
  - version: latest
    digest: "07"
  - *all
generated: "2026-01-01T00:00:00Z"
nextcloud:
- version: 5.5.8
  digest: "08"
"#;

    fn found(index: &str, version: &str) -> Option<Vec<String>> {
        digests(index, &"nextcloud".parse().unwrap(), &version.parse().unwrap()).unwrap()
    }

    #[test]
    fn only_the_entries_of_the_version_count() {
        let rows: [(&str, Option<&[&str]>); 9] = [
            ("5.5.2", Some(&["0a"])),
            ("5.5.3", Some(&["04"])),
            ("5.5.4", Some(&[])),
            ("5.5.5", Some(&[])),
            ("5.5.6", Some(&[])),
            ("5.5.7", Some(&["05", "06"])),
            ("5.5.8", None),
            ("5.5.9", None),
            ("5.5.2-rc.1", None),
        ];
        for (version, expected) in rows {
            let expected =
                expected.map(|digests| digests.iter().map(|digest| (*digest).to_owned()).collect::<Vec<_>>());
            assert_eq!(found(INDEX, version), expected, "{version}");
        }
        for odd in ["<<: *d", "digest: *d", "Digest: '01'", "version: *d", "VERSION: 5.5.2"] {
            let index =
                format!("d: &d '01'\nentries:\n  nextcloud:\n  - version: 5.5.2\n  - {odd}\n    version: 5.5.2\n");
            let index = if odd.starts_with("version") { index.replace("    version: 5.5.2\n", "") } else { index };
            let found = digests(&index, &"nextcloud".parse().unwrap(), &Version::new(5, 5, 2));
            assert!(matches!(found, Err(InvalidIndex::Ambiguous { .. })), "{odd}: {found:?}");
        }
        let second = "entries: {}\n---\nentries: {nextcloud: [{version: 5.5.2}]}\n";
        assert_eq!(found(second, "5.5.2"), None);
        let json = r#"{"entries": {"nextcloud": [{"digest": "0b", "urls": ["a\/b"], "version": "5.5.2"}]}}"#;
        assert_eq!(found(json, "5.5.2"), Some(vec!["0b".to_owned()]));
        for other in ["", "[]", "entries: []", "entries: {nextcloud: ~}", "entries: {other: [{version: 5.5.2}]}"] {
            assert_eq!(found(other, "5.5.2"), None, "{other}");
        }
    }

    #[test]
    fn what_cannot_be_read_is_no_index() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("index.yaml");
        let problem = || read(&path, &"nextcloud".parse().unwrap(), &Version::new(5, 5, 2)).unwrap_err().to_string();
        assert!(problem().starts_with("the repository's index cannot be read: "));
        fs::write(&path, "entries: [").unwrap();
        assert!(problem().starts_with("the repository's index is not YAML: "));
        fs::File::create(&path).unwrap().set_len(MAX_INDEX + 1).unwrap();
        assert_eq!(problem(), "the repository's index is larger than 67108864 bytes");
    }
}
