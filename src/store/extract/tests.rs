use std::{ffi::OsStr, os::unix::fs::symlink};

use tempfile::TempDir;

use super::*;
use crate::store::volume::{LONGEST, LOST_AND_FOUND, STAMP, WHOLE, none_begun};

const A: &str = "20260101T030000Z-a";
const B: &str = "20260102T030000Z-b";

/// A directory with two volumes.
fn two() -> (TempDir, Vec<PathBuf>) {
    let volumes = tempfile::tempdir().unwrap();
    for name in ["one", "two"] {
        fs::create_dir(volumes.path().join(name)).unwrap();
    }
    let roots = roots(volumes.path()).unwrap();
    (volumes, roots)
}

fn restore(archive: &str, id: &str) -> Restore {
    Restore { archive: Name::parse(archive).unwrap(), id: id.to_owned() }
}

fn target(root: &Path, archive: &str, id: &str) -> Target {
    Target { root: root.to_owned(), restore: restore(archive, id) }
}

/// Creates files, and directories where a path ends with a slash.
fn fill(directory: &Path, paths: &[&str]) {
    for path in paths {
        let path = directory.join(path);
        if path.to_str().unwrap().ends_with('/') {
            fs::create_dir_all(path).unwrap();
        } else {
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(&path, path.to_str().unwrap()).unwrap();
        }
    }
}

fn names(directory: &Path) -> Vec<String> {
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

#[test]
fn what_is_ours() {
    let whole = format!(".clientapp-restore.{A}.uid-1.whole");
    assert_eq!(Restore::parse(&whole), Some((restore(A, "uid-1"), WHOLE)));
    for name in
        ["former.{A}", "former.{A}.2", "{A}.whole", "{A}.uid-1.else", "{A}.uid.1.whole", "{A}.u\n.whole", "x.u.whole"]
    {
        let name = format!(".clientapp-restore.{}", name.replace("{A}", A));
        assert!(Restore::parse(&name).is_none() && is_ours(OsStr::new(&name)), "{name}");
    }
    for (name, ours) in
        [(STAMP, true), (LOST_AND_FOUND, true), (".clientapp-restore-notes", false), (".clientapp-restored.old", false)]
    {
        assert_eq!(is_ours(OsStr::new(name)), ours, "{name}");
    }
    for (stamp, words) in [
        (format!("uid-1 {A} 10 2\n"), Some(format!("{A} 10 2"))),
        (format!("uid-1 {A} 10 2"), None),
        (format!("uid-1 {A} 10 many\n"), None),
        (format!("uid-1 {B} 10 2\n"), None),
        (format!("uid-12 {A} 10 2\n"), None),
    ] {
        assert_eq!(restore(A, "uid-1").words(&stamp), words.as_deref(), "{stamp}");
    }
}

/// Only what a restore has moved binds later ones to it, and only then are there files that an archive would lack.
#[test]
fn a_restore_that_has_moved_files_is_continued_by_itself_only() {
    let (whole, aside) = (format!(".clientapp-restore.{A}.x.whole"), format!(".clientapp-restore.{A}.x.aside"));
    let partial = format!(".clientapp-restore.{A}.x.partial/");
    let (named_a, named_b) = (Which::Named(Name::parse(A).unwrap()), Which::Named(Name::parse(B).unwrap()));
    for (what, first, second, moved, archived) in [
        ("nothing", vec![], vec![], false, true),
        ("unpacking", vec![partial.clone(), format!("{aside}/")], vec![], false, true),
        ("unpacked", vec![format!("{whole}/f"), format!("{aside}/")], vec![partial.clone()], false, false),
        ("setting aside", vec![format!("{whole}/f"), format!("{aside}/g")], vec![], true, false),
        ("putting in place", vec![format!("{whole}/f")], vec![], true, false),
        ("the whole was taken away", vec![format!("{aside}/g")], vec![], true, false),
        ("between two volumes", vec!["f".to_owned()], vec![format!("{whole}/f"), format!("{aside}/")], true, false),
        ("an empty one is left", vec!["f".to_owned(), format!("{whole}/")], vec![], false, true),
    ] {
        let (_volumes, roots) = two();
        for (root, paths) in roots.iter().zip([first, second]) {
            fill(root, &paths.iter().map(String::as_str).collect::<Vec<_>>());
            if root.join("f").exists() {
                fs::write(root.join(STAMP), format!("x {A} 10 2\n")).unwrap();
            }
        }
        let a = moved.then(|| Name::parse(A).unwrap());
        assert_eq!(begun(&roots, "x", &Which::Latest).unwrap(), a, "{what}");
        assert_eq!(begun(&roots, "x", &named_a).unwrap(), a, "{what}");
        assert_eq!(begun(&roots, "x", &named_b).is_err(), moved, "{what}: another archive");
        match begun(&roots, "y", &Which::Latest) {
            Ok(found) => assert!(!moved && found.is_none(), "{what}: another restore"),
            Err(error) => {
                let said = error.to_string();
                assert!(moved && said.contains(&format!(".clientapp-restore.{A}.x.")), "{what}: {said}");
                assert!(said.contains("--id x"), "{what}: {said}");
            }
        }
        assert_eq!(none_begun(roots.iter().map(PathBuf::as_path)).is_ok(), archived, "{what}");
        // Another restore removes the rest.
        if !moved {
            for root in &roots {
                tidy(root, Some(&restore(B, "y"))).unwrap();
                assert!(names(root).iter().all(|name| [STAMP, "f"].contains(&&**name)), "{what}: {:?}", names(root));
            }
        }
    }
}

#[test]
fn a_restore_is_continued_without_the_bucket() {
    let (_volumes, roots) = two();
    let words = format!("{A} 10 2");
    let targets: Vec<_> = roots.iter().map(|root| target(root, A, "x")).collect();
    for target in &targets {
        fill(&target.root, &["config/c", "since"]);
        fill(&target.whole(), &["config/c", "html/"]);
        fill(&target.aside(), &["data/"]);
    }
    assert!(all_there(&roots, &restore(A, "x")).is_none(), "no words");
    for target in &targets {
        write(&target.pending(), &stamp("x", &words)).unwrap();
    }
    let finished = |target: &Target| {
        check(target, true).unwrap();
        set_aside(target).unwrap();
        put_in_place(target, &stamp("x", &words)).unwrap();
    };
    finished(&targets[0]);
    let (found, said) = all_there(&roots, &restore(A, "x")).unwrap();
    assert_eq!((found.len(), &said), (2, &words));
    found.iter().for_each(finished);
    for root in &roots {
        let former = format!(".clientapp-restore.former.{A}");
        assert_eq!(names(root), [&*former, STAMP, "config", "html"]);
        assert_eq!(names(&root.join(former)), ["config", "data", "since"]);
    }
    assert!(all_there(&roots, &restore(B, "x")).is_none());
    // What neither is there nor was restored is no success.
    fs::remove_file(roots[0].join(STAMP)).unwrap();
    assert!(matches!(put_in_place(&targets[0], &stamp("x", &words)), Err(Error::Vanished(_))));
}

/// Root may write anywhere, so this holds nothing up where tests run as root; but modes come back.
#[test]
fn read_only_directories_are_moved_and_removed() {
    let (_volumes, roots) = two();
    let target = target(&roots[0], A, "x");
    fill(&target.root, &["former/f"]);
    fill(&target.whole(), &["new/f"]);
    fs::create_dir(target.aside()).unwrap();
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&target.root.join("former"), 0o555);
    mode(&target.whole().join("new"), 0o555);
    check(&target, true).unwrap();
    set_aside(&target).unwrap();
    put_in_place(&target, "x\n").unwrap();
    let former = target.root.join(format!(".clientapp-restore.former.{A}/former"));
    for path in [target.root.join("new"), former] {
        assert_eq!(path.metadata().unwrap().mode() & 0o777, 0o555, "{}", path.display());
        mode(&path, 0o755);
    }
    fill(&target.partial(), &["d/e/f"]);
    mode(&target.partial().join("d/e"), 0o555);
    tidy(&target.root, Some(&target.restore)).unwrap();
    assert!(!target.partial().exists());
}

#[test]
fn nothing_moves_if_something_cannot() {
    let (_volumes, roots) = two();
    let target = target(&roots[0], A, "x");
    fill(&target.root, &["since", ".clientapp-restored/f"]);
    fill(&target.whole(), &["f"]);
    fs::create_dir(target.aside()).unwrap();
    let said = check(&target, true).unwrap_err().to_string();
    assert!(said.contains(".clientapp-restored: is a directory"), "{said}");
    fs::remove_dir_all(target.stamp()).unwrap();
    check(&target, true).unwrap();
    assert!(matches!(check(&target, false), Err(Error::NotEmpty(_))));
    // An archive that another program has made.
    fill(&target.whole(), &["lost+found/"]);
    let said = check(&target, true).unwrap_err().to_string();
    assert!(said.contains("lost+found cannot be restored"), "{said}");
}

#[test]
fn a_stamp_is_a_file_of_its_own() {
    let (_volumes, roots) = two();
    let (stamp, other) = (roots[0].join(STAMP), roots[1].join("other"));
    fs::write(&other, "kept").unwrap();
    symlink(&other, &stamp).unwrap();
    assert_eq!(read(&stamp), None, "a link");
    write(&stamp, "x").unwrap();
    assert_eq!((read(&stamp).as_deref(), &*fs::read_to_string(&other).unwrap()), (Some("x"), "kept"));
    fs::write(&stamp, "x".repeat(9999)).unwrap();
    assert_eq!(read(&stamp).unwrap().len() as u64, LONGEST);
    fs::remove_file(&stamp).unwrap();
    nix::unistd::mkfifo(&stamp, nix::sys::stat::Mode::S_IRWXU).unwrap();
    assert_eq!(read(&stamp), None, "a pipe");
}
