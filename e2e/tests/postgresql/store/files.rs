//! The files of volumes: they are restored completely, into empty volumes or in place of other files, or not at all.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};

use super::*;

/// Kind and mode, modification time and content of each file.
type Content = BTreeMap<PathBuf, (u32, i64, Vec<u8>)>;

/// A directory with volumes, as in a pod.
struct Volumes(TempDir);

/// The volumes of an app.
const BOTH: [&str; 2] = ["nextcloud", "nextcloud-data"];

impl Volumes {
    fn new(names: &[&str]) -> Volumes {
        let volumes = Volumes(tempfile::tempdir().unwrap());
        for name in names {
            fs::create_dir_all(volumes.0.path().join(name).join("lost+found")).unwrap();
        }
        volumes
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, data: &[u8], mode: u32) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, data).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    }

    /// Everything in a volume that belongs to the app.
    fn content(&self, volume: &str) -> Content {
        let root = self.path(volume);
        let (mut found, mut left) = (BTreeMap::new(), vec![root.clone()]);
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(&directory).unwrap() {
                let path = entry.unwrap().path();
                let name = path.strip_prefix(&root).unwrap().to_owned();
                let ours = |name: &str| name.starts_with(".clientapp-restore.") || name == ".clientapp-restored";
                if name.starts_with("lost+found") || ours(name.to_str().unwrap()) {
                    continue;
                }
                let metadata = fs::symlink_metadata(&path).unwrap();
                let data = match metadata.file_type() {
                    kind if kind.is_symlink() => fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes(),
                    kind if kind.is_file() => fs::read(&path).unwrap(),
                    _ => Vec::new(),
                };
                let time = if metadata.is_file() { metadata.mtime() } else { 0 };
                found.insert(name, (metadata.mode(), time, data));
                if metadata.is_dir() {
                    left.push(path);
                }
            }
        }
        found
    }
}

/// Returns what is restored of the volume from [`filled`]: all but the pipe.
fn restorable(volumes: &Volumes) -> Content {
    let mut content = volumes.content("nextcloud");
    content.remove(Path::new("pipe")).expect("it was filled");
    content
}

/// Archives the volumes, and returns the name of the archive, which sorts as the newest if the pod's name ends in `z…`.
fn archived(bench: &Bench, volumes: &Volumes, pod: &str) -> String {
    succeeds(archive(bench, volumes, "uid-1", pod));
    bench.list().remove(0)
}

fn archive(bench: &Bench, volumes: &Volumes, of: &str, pod: &str) -> Command {
    let mut command = bench.store(&["archive"]);
    command.env("VOLUMES", volumes.0.path()).envs([("ARCHIVE_OF", of), ("HOSTNAME", pod)]);
    command
}

fn extract(bench: &Bench, volumes: &Volumes, id: &str) -> Command {
    let mut command = bench.faulty(&["extract"]);
    command.env("VOLUMES", volumes.0.path()).env("RESTORE_ID", id);
    command
}

fn replace(bench: &Bench, volumes: &Volumes, id: &str) -> Command {
    with_argument(extract(bench, volumes, id), "--replace")
}

/// The same with this argument as well.
fn with_argument(mut command: Command, argument: &str) -> Command {
    command.arg(argument);
    command
}

/// Two volumes of an app that has gone on since its files were archived.
fn in_use() -> Volumes {
    let volumes = Volumes::new(&BOTH);
    volumes.write("nextcloud/config/config.php", b"<?php since", 0o640);
    volumes.write("nextcloud/html/since.php", b"since", 0o755);
    volumes.write("nextcloud-data/a/since", b"since", 0o600);
    symlink("config", volumes.path("nextcloud/since")).unwrap();
    volumes
}

/// Two volumes with every kind of file.
fn filled() -> Volumes {
    let volumes = Volumes::new(&BOTH);
    volumes.write("nextcloud/config/config.php", b"<?php canary", 0o640);
    volumes.write("nextcloud/html/index.php", &random(3 << 20), 0o755);
    volumes.write(&format!("nextcloud-data/{}/{}", "d".repeat(120), "\u{fc}".repeat(60)), b"long", 0o600);
    volumes.write("nextcloud-data/empty", b"", 0o644);
    volumes.write("nextcloud-data/lost+found/not-ours", b"x", 0o600);
    volumes.write("nextcloud-data/a/lost+found/ours", b"x", 0o600);
    fs::create_dir(volumes.path("nextcloud/empty")).unwrap();
    for (target, link) in [("config.php", "config/link"), ("/etc/passwd", "absolute"), ("nowhere", "dangling")] {
        symlink(target, volumes.path("nextcloud").join(link)).unwrap();
    }
    assert!(Command::new("mkfifo").arg(volumes.path("nextcloud/pipe")).status().unwrap().success());
    volumes
}

#[test]
fn files_come_back_as_they_were() {
    let bench = Bench::new();
    let home = tempfile::tempdir().unwrap();
    let (identity, recipient) = keys(home.path(), "identity");
    let volumes = filled();
    let report = home.path().join("report");
    let sealed = archive(&bench, &volumes, "uid-1", "acme-files-29481-x7k2p");
    succeeds(with_env(sealed, [("STORE_RECIPIENT", recipient.as_ref()), ("REPORT", report.as_os_str())]));
    let [name] = &bench.list()[..] else { panic!("{:?}", bench.list()) };
    assert!(name.ends_with("Z-x7k2p"), "{name}");
    let said = fs::read_to_string(&report).unwrap();
    let [of, bytes, files] = said.split(' ').collect::<Vec<_>>()[..] else { panic!("{said}") };
    // Everything except the pipe's content, the links' targets, and the file system's own files.
    assert_eq!((of, files, bytes.parse::<u64>().unwrap() > 3 << 20), (&**name, "15", true));
    for key in bench.keys().iter().filter(|key| !key.ends_with(".json")) {
        let stored = fs::read(bench.file(key)).unwrap();
        assert!(key.ends_with(".tar.gz.age") && !stored.windows(6).any(|word| word == b"canary"), "{key}");
    }

    let empty = Volumes::new(&BOTH);
    let sentence = fails(extract(&bench, &empty, "one"));
    assert!(sentence.contains("is encrypted for"), "{sentence}");
    let again = |id: &str| with_env(extract(&bench, &empty, id), [("STORE_IDENTITY_FILE", &identity)]);
    succeeds(again("one"));
    assert_eq!(empty.content("nextcloud"), restorable(&volumes));
    assert_eq!(empty.content("nextcloud-data"), volumes.content("nextcloud-data"));

    // Another pod of the same Job has nothing to do; existing files are never overwritten.
    empty.write("nextcloud/new", b"since", 0o600);
    let before = empty.content("nextcloud");
    succeeds(again("one"));
    let sentence = fails(again("two"));
    assert!(sentence.contains("is not empty: it is left as it is"), "{sentence}");
    assert_eq!(empty.content("nextcloud"), before);
    // Nor is the restore's own file archived as the app's. Within one second, the later archive sorts later.
    succeeds(archive(&bench, &empty, "uid-2", "x-zlater"));
    let third = Volumes::new(&BOTH);
    succeeds(extract(&bench, &third, "three"));
    assert_eq!(third.content("nextcloud"), before);
    assert_eq!(names(&third.path("nextcloud")).iter().filter(|name| name.starts_with(".clientapp")).count(), 1);
    let sentence = fails(with_env(bench.store(&["fetch"]), [("DUMPS", home.path())]));
    assert!(sentence.contains("`store extract` restores"), "{sentence}");
}

#[test]
fn a_restore_of_files_that_is_cut_off_is_begun_again() {
    let bench = Bench::new();
    let volumes = filled();
    succeeds(archive(&bench, &volumes, "uid-1", "x-a"));
    let nothing = |empty: &Volumes, what: &str| {
        assert!(empty.content("nextcloud").is_empty() && empty.content("nextcloud-data").is_empty(), "{what}");
    };
    let new = || Volumes::new(&BOTH);
    for (what, fault) in
        [("lost", Fault::Lose), ("changed", Fault::Change), ("forbidden", Fault::Answer(StatusCode::FORBIDDEN))]
    {
        for part in ["nextcloud.tar.gz", "nextcloud-data.tar.gz"] {
            let empty = new();
            bench.objects.set([Rule::new(Method::GET, part, fault)]);
            let sentence = fails(extract(&bench, &empty, "one"));
            assert!(sentence.contains(part), "{what}: {sentence}");
            nothing(&empty, what);
        }
    }
    bench.objects.set([]);
    let empty = new();
    killed(&bench, extract(&bench, &empty, "one"), Rule::new(Method::GET, "nextcloud-data.tar.gz", Fault::Hang));
    nothing(&empty, "killed");
    // Half of it is in place, as if it was killed there: the rest follows.
    succeeds(extract(&bench, &empty, "one"));
    let stamp = empty.path("nextcloud/.clientapp-restored");
    fs::remove_file(&stamp).unwrap();
    let whole = empty.path(&format!("nextcloud/.clientapp-restore.{}.one.whole", bench.list()[0]));
    fs::create_dir(&whole).unwrap();
    fs::rename(empty.path("nextcloud/config"), whole.join("config")).unwrap();
    succeeds(extract(&bench, &empty, "one"));
    let expected = restorable(&volumes);
    assert_eq!(empty.content("nextcloud"), expected);
    assert!(stamp.exists() && !whole.exists());

    // A later archive exists by the time another pod continues: it still finishes the one that was started, and no
    // other.
    let first = bench.list().remove(0);
    succeeds(archive(&bench, &volumes, "uid-1", "x-b"));
    fs::remove_file(&stamp).unwrap();
    fs::create_dir(&whole).unwrap();
    fs::rename(empty.path("nextcloud/config"), whole.join("config")).unwrap();
    assert!(succeeds(extract(&bench, &empty, "one")).contains(&first));
    assert_eq!(empty.content("nextcloud"), expected);
    // Files that a user deleted are restored, although they were restored once before.
    let gone = Volumes::new(&BOTH);
    succeeds(extract(&bench, &gone, "one"));
    for volume in BOTH {
        let stays = |name: &&String| name.starts_with(".clientapp") || *name == "lost+found";
        for name in names(&gone.path(volume)).iter().filter(|name| !stays(name)) {
            let path = gone.path(volume).join(name);
            let is_directory = path.symlink_metadata().unwrap().is_dir();
            if is_directory { fs::remove_dir_all(path).unwrap() } else { fs::remove_file(path).unwrap() }
        }
    }
    succeeds(extract(&bench, &gone, "one"));
    assert_eq!(gone.content("nextcloud"), expected);

    // A volume for some of it is missing, or there is no archive at all.
    let sentence = fails(extract(&bench, &Volumes::new(&["nextcloud"]), "two"));
    assert!(sentence.contains("files of volume nextcloud-data, but there is no such volume"), "{sentence}");
    let dump = "20991231T030000Z-b";
    small(bench.dumps(), dump);
    bench.push();
    let one = Volumes::new(&["nextcloud"]);
    let sentence = fails(with_argument(extract(&bench, &one, "three"), dump));
    assert!(sentence.contains("it is a database dump"), "{sentence}");
    // The latest is none that is named far ahead.
    let empty = new();
    assert!(succeeds(extract(&bench, &empty, "three")).contains(&format!("{dump} is named more than a day ahead")));
    assert_eq!(empty.content("nextcloud"), expected);
}

/// Where the former files of a volume are, from this restore of the archive.
fn former(volume: &str, archive: &str, number: &str) -> String {
    format!("{volume}/.clientapp-restore.former.{archive}{number}")
}

/// The names in a volume that a restore has left.
fn left(volumes: &Volumes, volume: &str) -> Vec<String> {
    names(&volumes.path(volume)).into_iter().filter(|name| name.starts_with(".clientapp-restore")).collect()
}

#[test]
fn files_that_are_replaced_are_set_aside() {
    let bench = Bench::new();
    let source = filled();
    let name = archived(&bench, &source, "x-a");
    let expected = restorable(&source);

    let used = in_use();
    let before = BOTH.map(|volume| used.content(volume));
    let sentence = fails(extract(&bench, &used, "one"));
    assert!(sentence.contains("With --replace, a restore sets such files aside"), "{sentence}");
    succeeds(replace(&bench, &used, "one"));
    for (volume, before) in BOTH.into_iter().zip(before) {
        assert_eq!(used.content(&former(volume, &name, "")), before);
        assert_eq!(left(&used, volume), [&*format!(".clientapp-restore.former.{name}"), ".clientapp-restored"]);
    }
    assert_eq!(used.content("nextcloud"), expected);
    assert_eq!(used.content("nextcloud-data"), source.content("nextcloud-data"));
    assert!(used.path("nextcloud-data/lost+found").exists());

    // Another pod of the same Job has nothing to do, while another restore sets aside what there is by then.
    used.write("nextcloud/new", b"since", 0o600);
    let before = used.content("nextcloud");
    succeeds(replace(&bench, &used, "one"));
    assert_eq!(used.content("nextcloud"), before);
    succeeds(replace(&bench, &used, "two"));
    assert_eq!((used.content("nextcloud"), used.content(&former("nextcloud", &name, ".2"))), (expected, before));
    // An empty volume has nothing to set aside.
    let empty = Volumes::new(&BOTH);
    succeeds(replace(&bench, &empty, "one"));
    assert_eq!(left(&empty, "nextcloud"), [".clientapp-restored"]);
    // The restore must be told from an earlier one.
    let output = replace(&bench, &used, "three").env_remove("RESTORE_ID").output().unwrap();
    assert!(!output.status.success() && said(&output).contains("--id"), "{}", said(&output));
    // Nor is what was set aside archived as the app's.
    succeeds(archive(&bench, &used, "uid-1", "x-zlater"));
    let third = Volumes::new(&BOTH);
    succeeds(extract(&bench, &third, "four"));
    assert_eq!(third.content("nextcloud"), used.content("nextcloud"));
    assert_eq!(left(&third, "nextcloud"), [".clientapp-restored"]);
}

#[test]
fn an_archive_that_is_damaged_or_cut_off_replaces_nothing() {
    let bench = Bench::new();
    let source = filled();
    let name = archived(&bench, &source, "x-a");
    let used = in_use();
    let before = BOTH.map(|volume| used.content(volume));
    for part in ["nextcloud.tar.gz", "nextcloud-data.tar.gz"] {
        bench.objects.set([Rule::new(Method::GET, part, Fault::Change)]);
        let sentence = fails(replace(&bench, &used, "one"));
        assert!(sentence.contains(part), "{sentence}");
        for (volume, before) in BOTH.into_iter().zip(&before) {
            assert_eq!((&used.content(volume), left(&used, volume)), (before, Vec::new()), "{part}");
        }
    }
    // During a restore, the volume lacks files that are somewhere else, and another would not know what the first has moved.
    let unpacked = || Rule::new(Method::GET, "nextcloud-data.tar.gz", Fault::Hang);
    let mut child = held_up(&bench, replace(&bench, &used, "one"), unpacked());
    for second in [replace(&bench, &used, "two"), archive(&bench, &used, "uid-1", "x-b")] {
        let sentence = fails(second);
        assert!(sentence.contains("another process archives or restores volume"), "{sentence}");
    }
    // Killed once one volume is unpacked: nothing was moved, so another archive may take the place of this one.
    child.kill().unwrap();
    child.wait().unwrap();
    bench.objects.set([]);
    let sentence = fails(archive(&bench, &used, "uid-1", "x-b"));
    let whole = format!("/nextcloud/.clientapp-restore.{name}.one.whole belongs to a restore that has not ended");
    assert!(sentence.contains(&whole), "{sentence}");
    assert_eq!((used.content("nextcloud"), left(&used, "nextcloud").len()), (before[0].clone(), 3));
    let sentence = fails(extract(&bench, &used, "two"));
    assert!(sentence.contains("is not empty"), "{sentence}");
    assert_eq!((used.content("nextcloud"), left(&used, "nextcloud")), (before[0].clone(), Vec::new()));
    killed(&bench, replace(&bench, &used, "three"), unpacked());
    source.write("nextcloud/later", b"later", 0o600);
    let later = archived(&bench, &source, "x-zlater");
    assert!(succeeds(replace(&bench, &used, "three")).contains(&later));
    assert_eq!(fs::read(used.path("nextcloud/later")).unwrap(), b"later");
    let former = [&*format!(".clientapp-restore.former.{later}"), ".clientapp-restored"];
    assert_eq!(left(&used, "nextcloud"), former);

    // All volumes are replaced, or none.
    let before = used.content("nextcloud");
    let half = Volumes::new(&["nextcloud"]);
    half.write("nextcloud/a", b"a", 0o600);
    archived(&bench, &half, "x-zz");
    let sentence = fails(replace(&bench, &used, "four"));
    assert!(sentence.contains("contains no files of volume nextcloud-data"), "{sentence}");
    assert_eq!((used.content("nextcloud"), left(&used, "nextcloud")), (before, former.map(str::to_owned).to_vec()));
}

#[test]
fn a_replacement_that_is_cut_off_is_continued() {
    let bench = Bench::new();
    let source = filled();
    let name = archived(&bench, &source, "x-a");
    let expected = restorable(&source);
    let used = in_use();
    let before = used.content("nextcloud");
    succeeds(replace(&bench, &used, "one"));
    // A later archive does not mix with the one that is being restored.
    succeeds(archive(&bench, &in_use(), "uid-1", "x-zlater"));

    let own = |kind: &str| used.path(&format!("nextcloud/.clientapp-restore.{name}.one.{kind}"));
    let put_back = |moved: &[&str]| {
        fs::create_dir(own("whole")).unwrap();
        for entry in moved {
            fs::rename(used.path("nextcloud").join(entry), own("whole").join(entry)).unwrap();
        }
        fs::remove_file(used.path("nextcloud/.clientapp-restored")).unwrap();
    };
    let all = ["absolute", "config", "dangling", "empty", "html"];
    let is_continued = |what: &str| {
        assert!(succeeds(replace(&bench, &used, "one")).contains(&name), "{what}");
        assert_eq!(used.content("nextcloud"), expected, "{what}");
        assert_eq!(used.content(&former("nextcloud", &name, "")), before, "{what}");
        assert_eq!(
            left(&used, "nextcloud"),
            [&*format!(".clientapp-restore.former.{name}"), ".clientapp-restored"],
            "{what}"
        );
    };
    // As if it was killed while the former files were moved, of which some are still in their place.
    put_back(&all);
    fs::rename(used.path(&former("nextcloud", &name, "")), own("aside")).unwrap();
    fs::rename(own("aside").join("config"), used.path("nextcloud/config")).unwrap();
    is_continued("while former files are moved");
    // And while the new ones were, when the former ones have their name.
    put_back(&["config", "html"]);
    is_continued("while new files are moved");

    // The app was started in between: nothing is overwritten, and the restore continues once a user has moved its file away.
    for (what, moved) in [("aside", &all[..]), ("former", &["html"])] {
        put_back(moved);
        if what == "aside" {
            fs::rename(used.path(&former("nextcloud", &name, "")), own("aside")).unwrap();
        }
        used.write("nextcloud/html/started.php", b"started", 0o644);
        let sentence = fails(replace(&bench, &used, "one"));
        assert!(sentence.contains("/nextcloud/html was written during the restore"), "{what}: {sentence}");
        assert_eq!(names(&used.path("nextcloud/html")), ["started.php"], "{what}");
        fs::remove_dir_all(used.path("nextcloud/html")).unwrap();
        is_continued(what);
    }
}

/// A user who can write to the bucket cannot write anywhere else.
#[test]
fn an_archive_cannot_lead_out_of_its_volume() {
    let bench = Bench::new();
    let volumes = Volumes::new(&["nextcloud"]);
    volumes.write("nextcloud/a", b"a", 0o600);
    succeeds(archive(&bench, &volumes, "uid-1", "x-a"));
    let key = bench.keys().into_iter().find(|key| key.ends_with(".tar.gz")).unwrap();
    let outside = tempfile::tempdir().unwrap();
    let file = |path: &str| {
        let mut header = tar::Header::new_gnu();
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.set_size(4);
        header.set_mode(0o644);
        header.set_entry_type(tar::EntryType::Regular);
        header.set_cksum();
        header
    };
    for what in ["dots", "absolute", "link"] {
        let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast()));
        match what {
            "dots" => tar.append(&file("../../evil"), &b"evil"[..]).unwrap(),
            "absolute" => tar.append(&file(outside.path().join("evil").to_str().unwrap()), &b"evil"[..]).unwrap(),
            _ => {
                let mut link = tar::Header::new_gnu();
                link.set_entry_type(tar::EntryType::Symlink);
                link.set_size(0);
                tar.append_link(&mut link, "out", outside.path()).unwrap();
                tar.append(&file("out/evil"), &b"evil"[..]).unwrap();
            }
        }
        let data = tar.into_inner().unwrap().finish().unwrap();
        let sum: String = Sha256::digest(&data).iter().map(|byte| format!("{byte:02x}")).collect();
        fs::write(bench.file(&key), &data).unwrap();
        let json = bench.keys().into_iter().find(|key| key.ends_with(".json")).unwrap();
        let json = bench.objects.file(PREFIX).join(json);
        let mut entry: Value = serde_json::from_slice(&fs::read(&json).unwrap()).unwrap();
        entry["files"][0]["size"] = data.len().into();
        entry["files"][0]["sha256"] = sum.into();
        fs::write(&json, entry.to_string()).unwrap();
        let empty = Volumes::new(&["nextcloud"]);
        let _ = extract(&bench, &empty, what).output().unwrap();
        assert_eq!(names(outside.path()), Vec::<String>::new(), "{what}");
        assert_eq!(names(empty.0.path()), ["nextcloud"], "{what}");
    }
}

/// An archive of another volume, such as one that was lost and recreated, displaces none of this one, and neither does one without
/// files, or without the files of one volume.
#[test]
fn archives_that_newer_ones_stand_for_go() {
    let bench = Bench::new();
    let kept = |volumes: &Volumes, of: &str, pod: &str| {
        succeeds(with_env(archive(&bench, volumes, of, pod), [("STORE_KEEP_LAST", "1")]));
        let mut names: Vec<_> =
            bench.list().into_iter().map(|name| name.split_once("Z-").unwrap().1.to_owned()).collect();
        names.sort();
        names
    };
    let one = Volumes::new(&["nextcloud"]);
    one.write("nextcloud/a", b"a", 0o600);
    assert_eq!(kept(&one, "uid-1", "x-a"), ["a"]);
    assert_eq!(kept(&one, "uid-1", "x-b"), ["b"]);
    fs::remove_file(one.path("nextcloud/a")).unwrap();
    assert_eq!(kept(&one, "uid-1", "x-c"), ["b", "c"], "it is empty");
    assert_eq!(kept(&one, "uid-2", "x-d"), ["b", "c", "d"], "it is of another volume");
    fs::create_dir(one.path("nextcloud/a")).unwrap();
    assert_eq!(kept(&one, "uid-1", "x-e"), ["b", "d", "e"], "there are only directories");
    let both = filled();
    assert_eq!(kept(&both, "uid-3", "x-f"), ["b", "d", "e", "f"]);
    let first = bench.list().remove(0);
    fs::remove_dir_all(both.path("nextcloud-data")).unwrap();
    fs::create_dir_all(both.path("nextcloud-data/a")).unwrap();
    assert_eq!(kept(&both, "uid-3", "x-g"), ["b", "d", "e", "f", "g"], "one volume has no files");
    // Nor is it the latest.
    let empty = Volumes::new(&BOTH);
    assert!(succeeds(extract(&bench, &empty, "one")).contains(&first));
}
