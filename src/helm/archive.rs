//! Reads the metadata of a packaged chart without unpacking it (pure over a reader).
//!
//! Helm drops the first component of each path in the archive, whatever it is, cleans the rest, and lets the last file of a name win. A
//! crafted archive could show another `Chart.yaml` to a careless reader than to helm. So everything that `helm package` never writes is
//! refused: entries outside `<chart>/`, unclean paths, links, and a second `Chart.yaml`.

use std::{
    io::{self, Read},
    path::{Component, Path},
};

use flate2::read::MultiGzDecoder;
use semver::Version;
use serde::Deserialize;
use tar::EntryType;

/// Size limit of an unpacked chart, in bytes; the same as helm's.
const MAX_UNPACKED: u64 = 100 << 20;
/// Limit of the number of entries; a large umbrella chart has a few thousand.
const MAX_ENTRIES: usize = 20_000;
/// Size limit of `Chart.yaml`, in bytes.
const MAX_METADATA: u64 = 1 << 20;

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) name: String,
    pub(super) version: String,
    pub(super) app_version: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidArchive {
    #[error("it is not a gzipped tar archive")]
    Unreadable { source: io::Error },
    #[error("it is larger than a chart may be: {MAX_UNPACKED} bytes unpacked, {MAX_ENTRIES} entries")]
    TooLarge,
    #[error("its entry {path:?} is not within {chart}/")]
    Outside { path: String, chart: String },
    #[error("its entry {path:?} is neither a file nor a directory")]
    Special { path: String },
    #[error("it has {count} files {chart}/Chart.yaml instead of one")]
    Metadata { count: usize, chart: String },
    #[error("its Chart.yaml cannot be read")]
    Yaml { source: serde_yaml::Error },
}

/// Reads a packaged chart to its end and returns its metadata.
pub(super) fn inspect(chart: &str, packed: impl Read) -> Result<Metadata, InvalidArchive> {
    // Go reads concatenated gzip members as one stream, so this must too.
    let unpacked = MultiGzDecoder::new(packed).take(MAX_UNPACKED);
    let mut archive = tar::Archive::new(unpacked);
    let mut found = Vec::new();
    for (count, entry) in archive.entries().map_err(unreadable)?.enumerate() {
        let mut entry = entry.map_err(unreadable)?;
        if count >= MAX_ENTRIES || entry.size() > MAX_UNPACKED {
            return Err(InvalidArchive::TooLarge);
        }
        let raw = entry.path_bytes().into_owned();
        let path = || String::from_utf8_lossy(&raw[..raw.len().min(200)]).into_owned();
        match entry.header().entry_type() {
            EntryType::Regular | EntryType::Directory => {}
            EntryType::XGlobalHeader => continue,
            _ => return Err(InvalidArchive::Special { path: path() }),
        }
        if !is_within(chart, &raw) {
            return Err(InvalidArchive::Outside { path: path(), chart: chart.to_owned() });
        }
        if raw == format!("{chart}/Chart.yaml").as_bytes() {
            let mut yaml = Vec::new();
            entry.by_ref().take(MAX_METADATA).read_to_end(&mut yaml).map_err(unreadable)?;
            found.push(yaml);
        }
    }
    // Reads what follows the end of the archive as well, to detect a truncated or oversized file.
    let mut rest = archive.into_inner();
    io::copy(&mut rest, &mut io::sink()).map_err(unreadable)?;
    if rest.limit() == 0 {
        return Err(InvalidArchive::TooLarge);
    }
    match found.as_slice() {
        [yaml] => serde_yaml::from_slice(yaml).map_err(|source| InvalidArchive::Yaml { source }),
        _ => Err(InvalidArchive::Metadata { count: found.len(), chart: chart.to_owned() }),
    }
}

/// Whether a chart's own text is this version. Some charts prefix it with a v, which helm ignores.
pub(super) fn is_version(text: &str, version: &Version) -> bool {
    text.trim_start_matches('v').parse().is_ok_and(|found: Version| found == *version)
}

fn unreadable(source: io::Error) -> InvalidArchive {
    InvalidArchive::Unreadable { source }
}

/// Whether a path is clean and within the chart's directory. Helm treats a backslash as a separator, so it is refused here.
fn is_within(chart: &str, raw: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(raw) else { return false };
    let clean = !text.contains(['\\', '\0']) && !text.contains("//") && !text.contains("/./") && !text.ends_with("/.");
    let mut components = Path::new(text).components();
    clean
        && components.next() == Some(Component::Normal(chart.as_ref()))
        && components.all(|component| matches!(component, Component::Normal(_)))
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};

    use super::*;

    pub(in crate::helm) fn packed(files: &[(&str, &str)]) -> Vec<u8> {
        let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for (path, content) in files {
            append(&mut builder, EntryType::Regular, path, content);
        }
        builder.into_inner().unwrap().finish().unwrap()
    }

    pub(in crate::helm) fn chart(name: &str, version: &str) -> Vec<u8> {
        let yaml =
            format!("apiVersion: v2\nname: {name}\nversion: {version}\nappVersion: 29.0.4\nkubeVersion: '>=1.24'\n");
        packed(&[(&format!("{name}/Chart.yaml"), &yaml), (&format!("{name}/templates/a.yaml"), "a: b\n")])
    }

    fn append<W: Write>(builder: &mut tar::Builder<W>, kind: EntryType, path: &str, content: &str) {
        let mut header = tar::Header::new_gnu();
        // Not with `set_path`, which refuses the paths of a hostile archive.
        header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_cksum();
        builder.append(&header, content.as_bytes()).unwrap();
    }

    #[test]
    fn a_subchart_has_metadata_of_its_own() {
        let files =
            [("x/Chart.yaml", "name: x\nversion: 1.0.0\n"), ("x/charts/y/Chart.yaml", "name: y\nversion: 2.0.0\n")];
        assert_eq!(inspect("x", packed(&files).as_slice()).unwrap().version, "1.0.0");
    }

    #[test]
    fn what_helm_might_see_differently_is_refused() {
        let yaml = "name: x\nversion: 1.0.0\n";
        for path in [
            "y/Chart.yaml",
            "/x/Chart.yaml",
            "x/../Chart.yaml",
            "x//Chart.yaml",
            "x/./a",
            "./x/a",
            "Chart.yaml",
            "x\\Chart.yaml",
            "..",
        ] {
            let error = inspect("x", packed(&[("x/Chart.yaml", yaml), (path, yaml)]).as_slice()).unwrap_err();
            assert!(matches!(error, InvalidArchive::Outside { .. }), "{path}: {error}");
        }
        let twice = packed(&[("x/Chart.yaml", yaml), ("x/Chart.yaml", yaml)]);
        assert!(matches!(inspect("x", twice.as_slice()), Err(InvalidArchive::Metadata { count: 2, .. })));
        // A second gzip member, after the end of the first archive.
        let mut members = chart("x", "1.0.0");
        members.extend(packed(&[("x/Chart.yaml", yaml)]));
        assert_eq!(inspect("x", members.as_slice()).unwrap().version, "1.0.0");
    }

    #[test]
    fn links_and_devices_are_refused() {
        for kind in [EntryType::Symlink, EntryType::Link, EntryType::Char, EntryType::Fifo] {
            let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
            append(&mut builder, kind, "x/values.yaml", "");
            let archive = builder.into_inner().unwrap().finish().unwrap();
            assert!(matches!(inspect("x", archive.as_slice()), Err(InvalidArchive::Special { .. })), "{kind:?}");
        }
    }

    #[test]
    fn bombs_are_cut_off() {
        let mut mebibyte = GzEncoder::new(Vec::new(), Compression::fast());
        mebibyte.write_all(&vec![0; 1 << 20]).unwrap();
        let zeros = mebibyte.finish().unwrap().repeat(101);
        // After the end of an archive …
        let mut behind = chart("x", "1.0.0");
        behind.extend(&zeros);
        assert!(matches!(inspect("x", behind.as_slice()), Err(InvalidArchive::TooLarge)));
        // … and as the content of a file.
        let mut header = tar::Header::new_gnu();
        header.set_path("x/bomb").unwrap();
        header.set_size(2 * MAX_UNPACKED);
        header.set_cksum();
        let mut inside = GzEncoder::new(Vec::new(), Compression::fast());
        inside.write_all(header.as_bytes()).unwrap();
        let mut inside = inside.finish().unwrap();
        inside.extend(&zeros);
        assert!(matches!(inspect("x", inside.as_slice()), Err(InvalidArchive::TooLarge)));
    }

    #[test]
    fn garbage_is_refused() {
        assert!(matches!(inspect("x", b"<html>".as_slice()), Err(InvalidArchive::Unreadable { .. })));
        let whole = chart("x", "1.0.0");
        assert!(matches!(inspect("x", &whole[..whole.len() / 2]), Err(InvalidArchive::Unreadable { .. })));
        assert!(matches!(inspect("x", packed(&[]).as_slice()), Err(InvalidArchive::Metadata { count: 0, .. })));
        for yaml in ["", "[]", "name: x", "name: [x]\nversion: 1.0.0", "a: &a [*a]"] {
            let archive = packed(&[("x/Chart.yaml", yaml)]);
            assert!(matches!(inspect("x", archive.as_slice()), Err(InvalidArchive::Yaml { .. })), "{yaml}");
        }
    }
}
