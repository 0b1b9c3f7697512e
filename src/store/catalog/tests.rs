use super::*;

fn entry(name: &str, tables: u64) -> Entry {
    let about = About { system: "1".to_owned(), postgres: "17.10".to_owned(), tables };
    let stored = |name: &str| Stored { name: name.to_owned(), size: 4, sha256: "x".to_owned() };
    let (name, files) = (Name::parse(name).unwrap(), vec![stored("5.dump"), stored(dump::SUMS)]);
    Entry { format: FORMAT, name, about, bytes: 8, recipient: None, folder: "f".to_owned(), empty_volume: false, files }
}

fn sort_out(objects: Vec<Object>, read: Vec<(Name, Result<Entry, String>)>) -> Catalog {
    let mut sorting = Sorting::of(objects);
    for (name, entry) in read {
        sorting.take(name, entry);
    }
    sorting.done()
}

fn objects(keys: &[&str]) -> Vec<Object> {
    let object = |key: &&str| Object { key: (*key).to_owned(), size: 4, modified: Timestamp::UNIX_EPOCH };
    keys.iter().map(object).collect()
}

const A: &str = "20260101T030000Z-a";
const B: &str = "20260102T030000Z-b";

#[test]
fn half_an_upload_is_no_dump() {
    let a = entry("20260101T030000Z-a", 1);
    let whole = ["20260101T030000Z-a.json", "20260101T030000Z-a/f/5.dump", "20260101T030000Z-a/f/SHA256SUMS"];
    for (what, keys, read, complete, damaged, loose) in [
        ("whole", &whole[..], vec![Ok(a.clone())], 1, 0, 0),
        ("a file is missing", &whole[..2], vec![Ok(a.clone())], 0, 1, 0),
        ("it does not say so", &whole[1..], vec![], 0, 0, 2),
        ("it says nonsense", &whole, vec![Err("x".to_owned())], 0, 1, 0),
        (
            "another upload of it",
            &[whole[0], whole[1], whole[2], "20260101T030000Z-a/g/5.dump"],
            vec![Ok(a.clone())],
            1,
            0,
            1,
        ),
        ("what is another's", &["ns/db/20260101T030000Z-a/f/5.dump", "notes", "x/y"], vec![], 0, 0, 0),
    ] {
        let read = read.into_iter().map(|entry| (a.name.clone(), entry)).collect();
        let catalog = sort_out(objects(keys), read);
        let counts = (catalog.entries.len(), catalog.damaged.len(), catalog.loose.len());
        assert_eq!(counts, (complete, damaged, loose), "{what}");
        assert!(catalog.entries.iter().all(|entry| entry.files.is_empty()), "{what}: they are not kept in memory");
    }
    let mut other = objects(&whole);
    other[1].size = 3;
    let catalog = sort_out(other, vec![(a.name.clone(), Ok(a.clone()))]);
    assert_eq!(catalog.damaged[0].1, "20260101T030000Z-a/f/5.dump has 3 bytes instead of 4");
}

#[test]
fn the_latest_has_data_if_any_has() {
    for (dumps, latest) in [(&[(A, 1), (B, 1)], B), (&[(A, 1), (B, 0)], A), (&[(A, 0), (B, 0)], B)] {
        let entries = dumps.iter().rev().map(|(name, tables)| entry(name, *tables)).collect();
        let catalog = Catalog { entries, ..Catalog::default() };
        assert_eq!(catalog.latest().unwrap().name.as_str(), latest);
    }
    assert!(Catalog::default().latest().is_none());
}

#[test]
fn the_latest_is_not_named_ahead_of_time() {
    let (ahead, tomorrow) = ("99991231T000000Z-x", "20260103T030000Z-c");
    for (names, now, latest) in [
        (&[(ahead, 1), (B, 1), (A, 1)][..], "2026-01-02T04:00:00Z", B),
        (&[(ahead, 1), (tomorrow, 1), (A, 1)], "2026-01-02T04:00:00Z", tomorrow),
        (&[(ahead, 1), (tomorrow, 1), (A, 1)], "2026-01-02T02:00:00Z", A),
        (&[(ahead, 1), (B, 0)], "2026-01-02T04:00:00Z", B),
        (&[(ahead, 0), (tomorrow, 1)], "2026-01-01T00:00:00Z", tomorrow),
    ] {
        let entries = names.iter().map(|(name, tables)| entry(name, *tables)).collect();
        let catalog = Catalog { entries, at: now.parse().unwrap(), ..Catalog::default() };
        assert_eq!(catalog.latest().unwrap().name.as_str(), latest, "{now}");
        assert!(catalog.ahead().any(|entry| entry.name.as_str() == ahead), "{now}");
    }
}

#[test]
fn an_empty_volume_is_no_data() {
    let (whole, lost) = (entry(A, 3), Entry { empty_volume: true, ..entry(B, 3) });
    assert_eq!((whole.candidate().has_data, lost.candidate().has_data), (true, false));
    assert!(!serde_json::to_string(&whole).unwrap().contains("empty_volume"), "as before there was this field");
    let catalog = Catalog { entries: vec![lost, whole], ..Catalog::default() };
    assert_eq!(catalog.latest().unwrap().name.as_str(), A);
}

#[test]
fn what_a_bucket_says_is_not_believed() {
    let good = entry(A, 1);
    let name = good.name.clone();
    let parse = |entry: &Entry| Entry::parse(&serde_json::to_vec(entry).unwrap(), &name);
    assert_eq!(parse(&good), Ok(good.clone()));
    let changed = |change: fn(&mut Entry)| {
        let mut entry = good.clone();
        change(&mut entry);
        parse(&entry).unwrap_err()
    };
    for (change, problem) in [
        ((|entry| entry.format = 2) as fn(&mut Entry), "newer version"),
        (|entry| entry.name = Name::parse(B).unwrap(), "it describes"),
        (|entry| entry.folder = "..".to_owned(), "not list the files of a dump"),
        (|entry| entry.files[0].name = "../../passwd".to_owned(), "not list the files of a dump"),
        (|entry| drop(entry.files.pop()), "not list SHA256SUMS"),
        (|entry| entry.files[0].name = "acme.tar.gz".to_owned(), "not list the files of a dump"),
    ] {
        let said = changed(change);
        assert!(said.contains(problem), "{said}");
    }
    assert!(Entry::parse(b"{", &name).is_err());
    let long = format!(r#"{{"format": "{}"}}"#, "x".repeat(9999));
    assert!(Entry::parse(long.as_bytes(), &name).unwrap_err().len() <= LONGEST);
    for (file, of_files) in
        [("acme-nextcloud.tar.gz", true), ("../x.tar.gz", false), (".tar.gz", false), ("A.tar.gz", false)]
    {
        let stored = Stored { name: file.to_owned(), size: 1, sha256: "x".to_owned() };
        let entry = Entry { files: vec![stored], ..good.clone() };
        assert_eq!((parse(&entry).is_ok(), entry.is_of_files()), (of_files, of_files), "{file}");
    }
}
