//! Reads the metadata of a packaged chart without unpacking it (pure over a reader).
//!
//! Helm drops the first component of each path in the archive, whatever it is, cleans the rest, and lets the last file of a name win. A
//! crafted archive could show another `Chart.yaml` to a careless reader than to helm. So everything that `helm package` never writes is
//! refused: entries outside `<chart>/`, unclean paths, links, and a second `Chart.yaml`. So is a schema of values that refers to another
//! document, in the chart or in a chart within it: helm would fetch that from the operator's pod, or read it from its disk.

use std::{
    cell::Cell,
    collections::BTreeMap,
    io::{self, Read},
    path::{Component, Path},
};

use flate2::read::MultiGzDecoder;
use serde::{Deserialize, de::IgnoredAny};
use tar::EntryType;

/// Size limit of an unpacked chart, in bytes; the same as helm's.
const MAX_UNPACKED: u64 = 100 << 20;
/// Limit of the number of entries; a large umbrella chart has a few thousand.
const MAX_ENTRIES: usize = 20_000;
/// Size limit of `Chart.yaml`, in bytes.
const MAX_METADATA: u64 = 1 << 20;
/// Size limit of a schema of values, in bytes; the same as helm's for any file.
const MAX_SCHEMA: u64 = 5 << 20;
/// Limit of the levels of packaged charts within a chart.
const MAX_NESTED: usize = 4;
/// The drafts of JSON Schema that helm has, at json-schema.org; it would fetch any other.
const DRAFTS: [&str; 6] =
    ["schema", "draft-04/schema", "draft-06/schema", "draft-07/schema", "draft/2019-09/schema", "draft/2020-12/schema"];

#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(in crate::helm) struct ChartMetadata {
    pub(in crate::helm) name: String,
    pub(in crate::helm) version: String,
    pub(in crate::helm) app_version: Option<String>,
    /// True if the chart's own values have `image.registry`, and so its templates put it before `image.repository`.
    #[serde(skip)]
    pub(in crate::helm) has_image_registry: bool,
}

#[derive(Debug, thiserror::Error)]
pub(crate) enum InvalidArchive {
    #[error("it is not a gzipped tar archive")]
    Unreadable { source: io::Error },
    #[error("it is larger than a chart may be: {MAX_UNPACKED} bytes unpacked, {MAX_ENTRIES} entries")]
    TooLarge,
    #[error("its entry {path:?} is not within {chart}/")]
    Outside { path: String, chart: String },
    #[error("its entry {path:?} is neither a plain file nor a directory")]
    Special { path: String },
    #[error("it has {count} files {chart}/Chart.yaml instead of one")]
    Metadata { count: usize, chart: String },
    #[error("its Chart.yaml cannot be read")]
    Yaml { source: serde_yaml::Error },
    #[error("its schema {path:?} is not JSON")]
    Schema { path: String, source: serde_json::Error },
    #[error(
        "its schema {path:?} refers to {reference:?}: a schema may refer to its own definitions only, since helm would fetch the other from the operator's pod; put them into the schema, and refer to them as #/$defs/…"
    )]
    Elsewhere { path: String, reference: String },
}

/// Reads a packaged chart to its end and returns its metadata.
pub(in crate::helm) fn inspect(chart: &str, packed: impl Read) -> Result<ChartMetadata, InvalidArchive> {
    // Go reads concatenated gzip members as one stream, so this must too.
    let unpacked = MultiGzDecoder::new(packed).take(MAX_UNPACKED);
    let mut archive = tar::Archive::new(unpacked);
    let (mut found, mut values, left) = (Vec::new(), Vec::new(), Cell::new(MAX_UNPACKED));
    for (count, entry) in archive.entries().map_err(unreadable)?.enumerate() {
        let mut entry = entry.map_err(unreadable)?;
        if count >= MAX_ENTRIES || entry.size() > MAX_UNPACKED {
            return Err(InvalidArchive::TooLarge);
        }
        let raw = entry.path_bytes().into_owned();
        let path = || String::from_utf8_lossy(&raw[..raw.len().min(200)]).into_owned();
        if !is_plain(&mut entry).map_err(unreadable)? {
            return Err(InvalidArchive::Special { path: path() });
        }
        if entry.header().entry_type() == EntryType::XGlobalHeader {
            continue;
        }
        if !is_within(chart, &raw) {
            return Err(InvalidArchive::Outside { path: path(), chart: chart.to_owned() });
        }
        if raw == format!("{chart}/Chart.yaml").as_bytes() {
            let mut yaml = Vec::new();
            entry.by_ref().take(MAX_METADATA).read_to_end(&mut yaml).map_err(unreadable)?;
            found.push(yaml);
        }
        if raw == format!("{chart}/values.yaml").as_bytes() {
            values.clear();
            entry.by_ref().take(MAX_METADATA).read_to_end(&mut values).map_err(unreadable)?;
        }
        check_schemas(&raw, &mut entry, &left, 0)?;
    }
    // Reads what follows the end of the archive as well, to detect a truncated or oversized file.
    let mut rest = archive.into_inner();
    io::copy(&mut rest, &mut io::sink()).map_err(unreadable)?;
    if rest.limit() == 0 {
        return Err(InvalidArchive::TooLarge);
    }
    match found.as_slice() {
        [yaml] => {
            let metadata = serde_yaml::from_slice(yaml).map_err(|source| InvalidArchive::Yaml { source })?;
            Ok(ChartMetadata { has_image_registry: has_image_registry(&values), ..metadata })
        }
        _ => Err(InvalidArchive::Metadata { count: found.len(), chart: chart.to_owned() }),
    }
}

/// Returns false for values that have no such key, or cannot be read: helm says more about these.
fn has_image_registry(values: &[u8]) -> bool {
    #[derive(Deserialize)]
    struct Values {
        #[serde(default)]
        image: BTreeMap<String, IgnoredAny>,
    }
    serde_yaml::from_slice(values).is_ok_and(|Values { image }| image.contains_key("registry"))
}

/// Refuses a schema that refers to another document, if this entry is one or a packaged chart with one. `left`: the number of bytes
/// that all charts within the chart may unpack to.
fn check_schemas(raw: &[u8], entry: &mut dyn Read, left: &Cell<u64>, depth: usize) -> Result<(), InvalidArchive> {
    let text = String::from_utf8_lossy(raw);
    let (directory, file) = text.rsplit_once('/').unwrap_or(("", &text));
    let path = || text.chars().take(200).collect::<String>();
    if file == "values.schema.json" && is_chart(directory) {
        let mut text = Vec::new();
        entry.take(MAX_SCHEMA + 1).read_to_end(&mut text).map_err(unreadable)?;
        if text.len() as u64 > MAX_SCHEMA {
            return Err(InvalidArchive::TooLarge);
        }
        // helm removes the mark, and takes an empty schema for none.
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&text);
        if text.is_empty() {
            return Ok(());
        }
        let schema = serde_json::from_slice(text);
        let schema = schema.map_err(|source| InvalidArchive::Schema { path: path(), source })?;
        return match external_reference(&schema) {
            Some(reference) => Err(InvalidArchive::Elsewhere { path: path(), reference: reference.to_owned() }),
            None => Ok(()),
        };
    }
    // helm ignores files with the other beginnings, such as those of macOS.
    let is_packaged = file.ends_with(".tgz") && !file.starts_with(['.', '_']);
    if is_packaged && directory.strip_suffix("/charts").is_some_and(is_chart) {
        if depth >= MAX_NESTED {
            return Err(InvalidArchive::TooLarge);
        }
        let mut archive = tar::Archive::new(Metered { inner: MultiGzDecoder::new(entry), left });
        for entry in archive.entries().map_err(unreadable)? {
            let mut entry = entry.map_err(unreadable)?;
            let raw = entry.path_bytes().into_owned();
            if !is_plain(&mut entry).map_err(unreadable)? {
                return Err(InvalidArchive::Special { path: path() });
            }
            if entry.header().entry_type() != EntryType::XGlobalHeader && clean(&raw).is_none() {
                return Err(InvalidArchive::Outside { path: path(), chart: "charts".to_owned() });
            }
            check_schemas(&raw, &mut entry, left, depth + 1)?;
        }
    }
    Ok(())
}

/// Returns true if an entry is a file or directory that Go's archive/tar, and so helm, reads just like this module's reader: they differ in
/// sparse files, in paths that are given twice or in unusual headers, and in what else makes a directory.
fn is_plain<R: Read>(entry: &mut tar::Entry<'_, R>) -> io::Result<bool> {
    let header = entry.header();
    let (kind, bytes) = (header.entry_type(), header.as_bytes());
    if kind == EntryType::XGlobalHeader {
        return Ok(true);
    }
    let zero = |range: std::ops::Range<usize>| bytes[range].iter().all(|byte| *byte == 0);
    let has_usual_header = match (header.as_ustar(), header.as_gnu()) {
        (Some(_), _) => zero(500..512),
        (_, Some(_)) => zero(345..500),
        _ => zero(257..265),
    };
    let has_usual_mode = match header.mode()? & 0o170_000 {
        0 | 0o100_000 => true,
        0o040_000 => kind == EntryType::Directory,
        _ => false,
    };
    let is_as_usual = match kind {
        EntryType::Directory => entry.size() == 0,
        EntryType::Regular => !entry.path_bytes().ends_with(b"/"),
        _ => false,
    };
    let mut paths = 0;
    for extension in entry.pax_extensions()?.into_iter().flatten() {
        let extension = extension?;
        if extension.key_bytes().starts_with(b"GNU.sparse") {
            return Ok(false);
        }
        paths += usize::from(extension.key_bytes() == b"path");
    }
    Ok(is_as_usual && has_usual_header && has_usual_mode && paths <= 1)
}

/// Returns true if this is the directory of the chart, or of an unpacked chart within it, as helm finds them.
fn is_chart(directory: &str) -> bool {
    let mut parts = directory.split('/').skip(1);
    loop {
        match (parts.next(), parts.next()) {
            (None, _) => return true,
            (Some("charts"), Some(name)) if !name.starts_with(['.', '_']) => {}
            _ => return false,
        }
    }
}

/// Returns the first reference of a JSON schema to another document.
fn external_reference(schema: &serde_json::Value) -> Option<&str> {
    match schema {
        serde_json::Value::Object(members) => members.iter().find_map(|(key, value)| {
            let leads_away = |reference: &&str| match key.as_str() {
                "$ref" | "$dynamicRef" | "$recursiveRef" => !reference.starts_with('#'),
                "$schema" => {
                    let path = ["http", "https"]
                        .iter()
                        .find_map(|scheme| reference.strip_prefix(scheme)?.strip_prefix("://json-schema.org/"));
                    path.is_none_or(|path| !DRAFTS.contains(&path.trim_end_matches('#')))
                }
                _ => false,
            };
            value.as_str().filter(leads_away).or_else(|| external_reference(value))
        }),
        serde_json::Value::Array(members) => members.iter().find_map(external_reference),
        _ => None,
    }
}

/// A reader that fails when the number of bytes `left` for it and others is used up.
struct Metered<'a, R> {
    inner: R,
    left: &'a Cell<u64>,
}

impl<R: Read> Read for Metered<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        let left = self.left.get().checked_sub(count as u64);
        self.left.set(left.ok_or_else(|| io::Error::other("the charts within it are too large"))?);
        Ok(count)
    }
}

fn unreadable(source: io::Error) -> InvalidArchive {
    InvalidArchive::Unreadable { source }
}

/// Returns true if a path is clean and within the chart's directory.
fn is_within(chart: &str, raw: &[u8]) -> bool {
    clean(raw).is_some_and(|path| path.components().next() == Some(Component::Normal(chart.as_ref())))
}

/// Returns a path that helm understands as it is. Helm treats a backslash as a separator, so it is refused here.
fn clean(raw: &[u8]) -> Option<&Path> {
    let text = std::str::from_utf8(raw).ok()?;
    let clean = !text.contains(['\\', '\0']) && !text.contains("//") && !text.contains("/./") && !text.ends_with("/.");
    let path = Path::new(text);
    (clean && path.components().all(|component| matches!(component, Component::Normal(_)))).then_some(path)
}

#[cfg(test)]
pub(in crate::helm) mod tests {
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
    fn how_a_chart_names_its_image_is_read_from_its_values() {
        for (values, expected) in [
            ("image: {registry: docker.io, repository: a}", true),
            ("a: 1\nimage:\n  # None.\n  registry:\n  repository: a", true),
            ("image: {repository: a}", false),
            ("image: a:1", false),
            ("nginx: {image: {registry: docker.io}}", false),
            ("", false),
            ("image: [", false),
        ] {
            let files = [("x/Chart.yaml", "name: x\nversion: 1.0.0\n"), ("x/values.yaml", values)];
            assert_eq!(inspect("x", packed(&files).as_slice()).unwrap().has_image_registry, expected, "{values}");
        }
        assert!(!inspect("x", chart("x", "1.0.0").as_slice()).unwrap().has_image_registry, "without values");
        let of_subchart =
            [("x/Chart.yaml", "name: x\nversion: 1.0.0\n"), ("x/charts/y/values.yaml", "image: {registry: docker.io}")];
        assert!(!inspect("x", packed(&of_subchart).as_slice()).unwrap().has_image_registry);
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
    fn a_schema_refers_to_itself_only() {
        let inside = |schema: &str| {
            packed(&[("sub/Chart.yaml", "name: sub\nversion: 1.0.0\n"), ("sub/values.schema.json", schema)])
        };
        let within = |path: &str, file: &[u8]| {
            let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
            append(&mut builder, EntryType::Regular, "x/Chart.yaml", "name: x\nversion: 1.0.0\n");
            let mut header = tar::Header::new_gnu();
            header.set_size(file.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, path, file).unwrap();
            builder.into_inner().unwrap().finish().unwrap()
        };
        let draft = "http://json-schema.org/draft-07/schema#";
        for (schema, refused) in [
            (format!(r##"{{"$schema": "{draft}", "properties": {{"a": {{"$ref": "#/definitions/a"}}}}}}"##), false),
            (r##"{"properties": {"$ref": {"type": "string"}}}"##.to_owned(), false),
            (String::new(), false),
            ("\u{feff}{}".to_owned(), false),
            (r#"{"allOf": [{"$ref": "http://10.0.0.1/x.json"}]}"#.to_owned(), true),
            (r#"{"$ref": "file:///var/run/secrets/token"}"#.to_owned(), true),
            (r#"{"$id": "https://elsewhere.example.com/", "$ref": "x.json"}"#.to_owned(), true),
            (r#"{"$dynamicRef": "//elsewhere.example.com/x.json"}"#.to_owned(), true),
            (r#"{"$schema": "https://elsewhere.example.com/x.json"}"#.to_owned(), true),
            (r#"{"$schema": "https://json-schema.org/draft/2021-12/schema"}"#.to_owned(), true),
            (r#"{"$schema": "https://json-schema.org/draft/2020-12/schema"}"#.to_owned(), false),
            ("\u{feff}{\"$ref\": \"x.json\"}".to_owned(), true),
            ("no json".to_owned(), true),
            (format!("{}{}", "[".repeat(200), "]".repeat(200)), true),
        ] {
            let sub = inside(&schema);
            let deep = within("sub/charts/x.tgz", &sub);
            for (path, file) in [
                ("x/values.schema.json", schema.as_bytes()),
                ("x/charts/sub/values.schema.json", schema.as_bytes()),
                ("x/charts/sub-1.0.0.tgz", &sub),
                ("x/charts/deep-1.0.0.tgz", &deep),
            ] {
                let found = inspect("x", within(path, file).as_slice());
                let is_refused = matches!(found, Err(InvalidArchive::Elsewhere { .. } | InvalidArchive::Schema { .. }));
                assert!(is_refused == refused && found.is_err() == refused, "{path} {schema}: {found:?}");
            }
            // helm ignores these.
            for (path, file) in [
                ("x/files/sub-1.0.0.tgz", sub.as_slice()),
                ("x/files/charts/sub-1.0.0.tgz", &sub),
                ("x/charts/._sub-1.0.0.tgz", b"\0"),
                ("x/charts/_sub-1.0.0.tgz", &sub),
                ("x/files/values.schema.json", schema.as_bytes()),
            ] {
                assert!(inspect("x", within(path, file).as_slice()).is_ok(), "{path} {schema}");
            }
        }
        let mut nested = inside("{}");
        for _ in 0..MAX_NESTED {
            nested = within("sub/charts/x.tgz", &nested);
        }
        assert!(matches!(inspect("x", within("x/charts/sub.tgz", &nested).as_slice()), Err(InvalidArchive::TooLarge)));
        let unclean = packed(&[("sub/./values.schema.json", "{}")]);
        assert!(matches!(
            inspect("x", within("x/charts/sub.tgz", &unclean).as_slice()),
            Err(InvalidArchive::Outside { .. })
        ));
        let zeros = vec![0; 1 << 20];
        let mut bomb = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
        for number in 0..101 {
            let mut header = tar::Header::new_gnu();
            header.set_size(zeros.len() as u64);
            header.set_mode(0o644);
            bomb.append_data(&mut header, format!("sub/{number}"), zeros.as_slice()).unwrap();
        }
        let bomb = bomb.into_inner().unwrap().finish().unwrap();
        assert!(inspect("x", within("x/charts/sub.tgz", &bomb).as_slice()).is_err());
    }

    type Packer = tar::Builder<GzEncoder<Vec<u8>>>;
    /// Changes the bytes of a header.
    type Change = fn(&mut [u8; 512]);

    /// Each of these is one file to this reader, and another to Go's.
    #[test]
    fn what_go_reads_differently_is_refused() {
        let forged = "name: x\nversion: 9.9.9\n";
        let inspect_changed = |change: &dyn Fn(&mut Packer)| {
            let mut builder = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::fast()));
            append(&mut builder, EntryType::Regular, "x/Chart.yaml", "name: x\nversion: 1.0.0\n");
            change(&mut builder);
            let packed = builder.into_inner().unwrap().finish().unwrap();
            inspect("x", packed.as_slice())
        };
        let header = |kind, path: &str, size: u64, change: Change| {
            let mut header = tar::Header::new_ustar();
            header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(kind);
            header.set_size(size);
            header.set_mode(0o644);
            change(header.as_mut_bytes());
            header.set_cksum();
            header
        };
        let size = forged.len() as u64;
        let rows: [(&str, EntryType, &str, Change); 6] = [
            ("a slash at the end", EntryType::Regular, "x/a.yaml/", |_| {}),
            ("a directory with content", EntryType::Directory, "x/a", |_| {}),
            ("a trailer of star", EntryType::Regular, "x/a.yaml", |bytes| bytes[508..512].copy_from_slice(b"tar\0")),
            ("another version", EntryType::Regular, "x/a.yaml", |bytes| bytes[263..265].copy_from_slice(b"99")),
            ("a directory by its mode", EntryType::Regular, "x/a.yaml", |bytes| {
                bytes[100..108].copy_from_slice(b"0040644\0");
            }),
            ("a link with content", EntryType::Link, "x/a.yaml", |_| {}),
        ];
        for (what, kind, path, change) in rows {
            let header = header(kind, path, size, change);
            let found = inspect_changed(&|builder| builder.append(&header, forged.as_bytes()).unwrap());
            assert!(matches!(found, Err(InvalidArchive::Special { .. })), "{what}: {found:?}");
        }
        let with = |extensions: &[(&str, &[u8])]| {
            inspect_changed(&|builder| {
                builder.append_pax_extensions(extensions.iter().copied()).unwrap();
                builder.append(&header(EntryType::Regular, "x/a.yaml", size, |_| {}), forged.as_bytes()).unwrap();
            })
        };
        let twice: [(&str, &[u8]); 2] = [("path", b"x/b.yaml"), ("path", b"x/Chart.yaml")];
        assert!(matches!(with(&twice), Err(InvalidArchive::Special { .. })));
        let sparse = with(&[("GNU.sparse.name", b"x/Chart.yaml")]);
        assert!(matches!(sparse, Err(InvalidArchive::Special { .. })), "{sparse:?}");
        let usual = with(&[("path", b"x/b.yaml"), ("mtime", b"1.5")]);
        assert!(usual.is_ok(), "{usual:?}");
        let long = format!("x/{}.yaml", "a".repeat(200));
        let long = inspect_changed(&|builder| {
            let mut header = tar::Header::new_gnu();
            header.set_size(size);
            header.set_mode(0o644);
            builder.append_data(&mut header, &long, forged.as_bytes()).unwrap();
        });
        assert!(long.is_ok(), "{long:?}");
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
