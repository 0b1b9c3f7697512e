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

/// Archives the volumes, and returns the name of the archive.
fn archived(bench: &Bench, volumes: &Volumes) -> String {
    succeeds(archive(bench, volumes, "uid-1"));
    bench.archives().remove(0)
}

fn archive(bench: &Bench, volumes: &Volumes, of: &str) -> Command {
    let mut command = bench.store(&["archive"]);
    command.env("VOLUMES", volumes.0.path()).env("ARCHIVE_OF", of);
    command
}

impl Bench {
    /// The names of the archives, newest first.
    fn archives(&self) -> Vec<String> {
        let name = |snapshot: &Value| {
            let time = snapshot["time"].as_str().unwrap()[..19].replace(['-', ':'], "");
            format!("{time}Z-{}", snapshot["short_id"].as_str().unwrap())
        };
        self.snapshots().iter().map(name).collect()
    }
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
    let volumes = filled();
    let report = home.path().join("report");
    fs::write(&report, "").unwrap();
    succeeds(with_env(archive(&bench, &volumes, "uid-1"), [("REPORT", &report)]));
    let [name] = &bench.archives()[..] else { panic!("{:?}", bench.archives()) };
    let said = fs::read_to_string(&report).unwrap();
    let [of, bytes, files] = said.split(' ').collect::<Vec<_>>()[..] else { panic!("{said}") };
    // The app's regular files.
    assert_eq!((of, files, bytes.parse::<u64>().unwrap() > 3 << 20), (&**name, "5", true));
    for key in bench.keys() {
        let stored = fs::read(bench.file(&key)).unwrap();
        assert!(!stored.windows(6).any(|word| word == b"canary"), "{key}");
    }

    let empty = Volumes::new(&BOTH);
    succeeds(extract(&bench, &empty, "one"));
    for volume in BOTH {
        assert_eq!(empty.content(volume), volumes.content(volume));
    }
    // A second archive moves only what has changed.
    let size = || bench.keys_of("data").iter().map(|key| fs::metadata(bench.file(key)).unwrap().len()).sum::<u64>();
    let before = size();
    succeeds(archive(&bench, &volumes, "uid-1"));
    assert!(size() - before < before / 100, "{before} and then {}", size());

    // Another pod of the same Job has nothing to do; existing files are never overwritten.
    let once = Volumes::new(&BOTH);
    let named = |id: &str| with_argument(extract(&bench, &once, id), name);
    succeeds(named("one"));
    once.write("nextcloud/new", b"since", 0o600);
    let before = once.content("nextcloud");
    succeeds(named("one"));
    let sentence = fails(named("two"));
    assert!(sentence.contains("is not empty: it is left as it is"), "{sentence}");
    assert_eq!(once.content("nextcloud"), before);
    // Nor is the restore's own file archived as the app's.
    succeeds(archive(&bench, &once, "uid-2"));
    let third = Volumes::new(&BOTH);
    succeeds(extract(&bench, &third, "three"));
    assert_eq!(third.content("nextcloud"), before);
    assert_eq!(names(&third.path("nextcloud")).iter().filter(|name| name.starts_with(".clientapp")).count(), 1);
    let sentence = fails(with_env(bench.store(&["fetch"]), [("DUMPS", home.path())]));
    assert!(sentence.contains("there is no complete dump"), "{sentence}");
}

/// A file that this user may not read is missing from no archive: there is none.
#[test]
fn an_archive_has_all_files_or_is_none() {
    let bench = Bench::new();
    let volumes = filled();
    let [script, real] = ["script", "restic"].map(|name| bench.secrets.path().join(name));
    // Where a confined process may run it.
    program(operator::restic().unwrap(), &real).unwrap();
    // As restic ends whose user may not read a file. The tests' user may read all.
    let text = format!(
        "#!/bin/sh\nline='{{\"message_type\":\"error\",\"error\":{{\"message\":\"open /volumes/a: permission denied\"}}}}'\n\
         {} \"$@\" || exit\ncase \"$*\" in *' backup '*) echo \"$line\" >&2; exit 3 ;; esac\n",
        real.display()
    );
    executable(&script, &text, 0o755).unwrap();
    let sentence = fails(with_env(archive(&bench, &volumes, "uid-1"), [("CLIENTAPP_RESTIC", &script)]));
    assert!(sentence.contains("a file could not be read (open /volumes/a: permission denied)"), "{sentence}");
    assert_eq!(bench.archives(), Vec::<String>::new());
}

#[test]
fn a_restore_of_files_that_is_cut_off_is_begun_again() {
    let bench = Bench::new();
    let volumes = filled();
    succeeds(archive(&bench, &volumes, "uid-1"));
    let nothing = |empty: &Volumes, what: &str| {
        assert!(empty.content("nextcloud").is_empty() && empty.content("nextcloud-data").is_empty(), "{what}");
    };
    let new = || Volumes::new(&BOTH);
    let empty = new();
    bench.objects.set([Rule::new(Method::GET, "/data/", Fault::Answer(StatusCode::FORBIDDEN))]);
    let sentence = fails(extract(&bench, &empty, "one"));
    assert!(sentence.contains("Access Denied"), "{sentence}");
    nothing(&empty, "forbidden");
    bench.objects.set([]);
    let empty = new();
    killed(&bench, extract(&bench, &empty, "one"), Rule::new(Method::GET, "/data/", Fault::Hang));
    nothing(&empty, "killed");
    // Half of it is in place, as if it was killed there: the rest follows.
    succeeds(extract(&bench, &empty, "one"));
    let stamp = empty.path("nextcloud/.clientapp-restored");
    fs::remove_file(&stamp).unwrap();
    let whole = empty.path(&format!("nextcloud/.clientapp-restore.{}.one.whole", bench.archives()[0]));
    fs::create_dir(&whole).unwrap();
    fs::rename(empty.path("nextcloud/config"), whole.join("config")).unwrap();
    succeeds(extract(&bench, &empty, "one"));
    let expected = volumes.content("nextcloud");
    assert_eq!(empty.content("nextcloud"), expected);
    assert!(stamp.exists() && !whole.exists());

    // A later archive exists by the time another pod continues: it still finishes the one that was started, and no
    // other.
    let first = bench.archives().remove(0);
    succeeds(archive(&bench, &volumes, "uid-1"));
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
    assert!(sentence.contains("there is no archive"), "{sentence}");
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
    let name = archived(&bench, &source);
    let expected = source.content("nextcloud");

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
    succeeds(archive(&bench, &used, "uid-1"));
    let third = Volumes::new(&BOTH);
    succeeds(extract(&bench, &third, "four"));
    assert_eq!(third.content("nextcloud"), used.content("nextcloud"));
    assert_eq!(left(&third, "nextcloud"), [".clientapp-restored"]);
}

#[test]
fn an_archive_that_is_damaged_or_cut_off_replaces_nothing() {
    let bench = Bench::new();
    let source = filled();
    let name = archived(&bench, &source);
    let used = in_use();
    let before = BOTH.map(|volume| used.content(volume));
    let largest = bench.keys_of("data").into_iter().max_by_key(|key| fs::metadata(bench.file(key)).unwrap().len());
    let (pack, aside) = (bench.file(largest.unwrap()), bench.dumps().join("pack"));
    fs::copy(&pack, &aside).unwrap();
    fs::write(&pack, random(3 << 20)).unwrap();
    let sentence = fails(replace(&bench, &used, "one"));
    assert!(sentence.contains(&format!("cannot restore {name}")), "{sentence}");
    for (volume, before) in BOTH.into_iter().zip(&before) {
        assert_eq!((&used.content(volume), left(&used, volume)), (before, Vec::new()));
    }
    fs::copy(&aside, &pack).unwrap();
    // During a restore, the volume lacks files that are somewhere else, and another would not know what the first has moved.
    let data = || Rule::new(Method::GET, "/data/", Fault::Hang);
    let child = held_up(&bench, replace(&bench, &used, "one"), data());
    for second in [replace(&bench, &used, "two"), archive(&bench, &used, "uid-1")] {
        let sentence = fails(second);
        assert!(sentence.contains("another process archives or restores volume"), "{sentence}");
    }
    kill_all(child);
    bench.objects.set([]);
    // Killed once one volume is unpacked: nothing was moved, so another archive may take the place of this one.
    let partial = used.path(&format!("nextcloud/.clientapp-restore.{name}.one.partial"));
    let whole = used.path(&format!("nextcloud/.clientapp-restore.{name}.one.whole"));
    fs::create_dir(partial.with_extension("aside")).unwrap();
    fs::rename(&partial, &whole).unwrap();
    let sentence = fails(archive(&bench, &used, "uid-1"));
    assert!(sentence.contains(&format!("{} belongs to a restore that has not ended", whole.display())), "{sentence}");
    let sentence = fails(extract(&bench, &used, "two"));
    assert!(sentence.contains("is not empty"), "{sentence}");
    assert_eq!((used.content("nextcloud"), left(&used, "nextcloud")), (before[0].clone(), Vec::new()));
    killed(&bench, replace(&bench, &used, "three"), data());
    source.write("nextcloud/later", b"later", 0o600);
    let later = archived(&bench, &source);
    assert!(succeeds(replace(&bench, &used, "three")).contains(&later));
    assert_eq!(fs::read(used.path("nextcloud/later")).unwrap(), b"later");
    let former = [&*format!(".clientapp-restore.former.{later}"), ".clientapp-restored"];
    assert_eq!(left(&used, "nextcloud"), former);

    // All volumes are replaced, or none.
    let before = used.content("nextcloud");
    let half = Volumes::new(&["nextcloud"]);
    half.write("nextcloud/a", b"a", 0o600);
    archived(&bench, &half);
    let sentence = fails(replace(&bench, &used, "four"));
    assert!(sentence.contains("contains no files of volume nextcloud-data"), "{sentence}");
    assert_eq!((used.content("nextcloud"), left(&used, "nextcloud")), (before, former.map(str::to_owned).to_vec()));
}

#[test]
fn a_replacement_that_is_cut_off_is_continued() {
    let bench = Bench::new();
    let source = filled();
    let name = archived(&bench, &source);
    let expected = source.content("nextcloud");
    let used = in_use();
    let before = used.content("nextcloud");
    succeeds(replace(&bench, &used, "one"));
    // A later archive does not mix with the one that is being restored.
    succeeds(archive(&bench, &in_use(), "uid-1"));

    let own = |kind: &str| used.path(&format!("nextcloud/.clientapp-restore.{name}.one.{kind}"));
    let put_back = |moved: &[&str]| {
        fs::create_dir(own("whole")).unwrap();
        for entry in moved {
            fs::rename(used.path("nextcloud").join(entry), own("whole").join(entry)).unwrap();
        }
        fs::remove_file(used.path("nextcloud/.clientapp-restored")).unwrap();
    };
    let all = ["absolute", "config", "dangling", "empty", "html", "pipe"];
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

/// An archive of another volume, such as one that was lost and recreated, displaces none of this one, and neither does one without
/// files, or without the files of one volume.
#[test]
fn archives_that_newer_ones_stand_for_go() {
    let bench = Bench::new();
    // Archives the volumes, and counts those that stay of each.
    let kept = |volumes: &Volumes, of: &str| {
        succeeds(with_env(archive(&bench, volumes, of), [("STORE_KEEP", r#"{"last": 1}"#)]));
        let mut counts = BTreeMap::new();
        for snapshot in bench.snapshots() {
            let of = [&snapshot["hostname"], &snapshot["tags"][1]].map(|word| word.as_str().unwrap().to_owned());
            *counts.entry(of.join(" ")).or_insert(0) += 1;
        }
        counts.into_iter().map(|(of, count)| format!("{count} {of}")).collect::<Vec<_>>().join(", ")
    };
    let one = Volumes::new(&["nextcloud"]);
    one.write("nextcloud/a", b"a", 0o600);
    assert_eq!(kept(&one, "uid-1"), "1 uid-1 data");
    assert_eq!(kept(&one, "uid-1"), "1 uid-1 data");
    fs::remove_file(one.path("nextcloud/a")).unwrap();
    assert_eq!(kept(&one, "uid-1"), "1 uid-1 data, 1 uid-1 empty");
    assert_eq!(kept(&one, "uid-2"), "1 uid-1 data, 1 uid-1 empty, 1 uid-2 empty", "it is of another volume");
    fs::create_dir(one.path("nextcloud/a")).unwrap();
    assert_eq!(kept(&one, "uid-1"), "1 uid-1 data, 1 uid-1 empty, 1 uid-2 empty", "there are only directories");
    let both = filled();
    kept(&both, "uid-3");
    let first = bench.archives().remove(0);
    fs::remove_dir_all(both.path("nextcloud-data")).unwrap();
    fs::create_dir_all(both.path("nextcloud-data/a")).unwrap();
    assert!(kept(&both, "uid-3").ends_with("1 uid-3 data, 1 uid-3 empty"), "one volume has no files");
    // Nor is it the latest.
    let empty = Volumes::new(&BOTH);
    assert!(succeeds(extract(&bench, &empty, "one")).contains(&first));
}
