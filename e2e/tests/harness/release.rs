//! A release: two have the same bytes, and one changed byte is refused. `operator_chart` installs it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread;

use e2e::release::{MANIFEST, Programs, make, verify};
use tempfile::TempDir;

use crate::tools;

pub(crate) const REPOSITORY: &str = "registry.example.com/platform/clientapp-operator";

/// Makes a release of these programs: what they do is not asked here, and a smaller one does instead of helm and restic.
pub(crate) fn release(key: Option<&Path>) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let small = tools().etcd.clone();
    let operator = directory.path().join("operator");
    fs::write(&operator, "#!/bin/sh\n").unwrap();
    let programs = Programs { operator, helm: small.clone(), restic: small };
    make(&directory.path().join("release"), REPOSITORY, &programs, tools(), key).unwrap();
    directory
}

fn openssl(arguments: &[&str], directory: &Path) {
    assert!(Command::new("openssl").args(arguments).current_dir(directory).output().unwrap().status.success());
}

#[test]
fn two_releases_have_the_same_bytes_and_one_changed_byte_is_refused() {
    let keys = tempfile::tempdir().unwrap();
    let [private, public, other] = ["private.pem", "public.pem", "other.pem"].map(|name| keys.path().join(name));
    openssl(
        &["genpkey", "-algorithm", "EC", "-pkeyopt", "ec_paramgen_curve:P-256", "-out", "private.pem"],
        keys.path(),
    );
    openssl(&["pkey", "-in", "private.pem", "-pubout", "-out", "public.pem"], keys.path());
    openssl(&["genpkey", "-algorithm", "ed25519", "-out", "other-private.pem"], keys.path());
    openssl(&["pkey", "-in", "other-private.pem", "-pubout", "-out", "other.pem"], keys.path());
    let [one, two] = thread::scope(|scope| {
        [Some(private.as_path()), None].map(|key| scope.spawn(move || release(key))).map(|made| made.join().unwrap())
    });
    let [one, two] = [&one, &two].map(|directory| directory.path().join("release"));
    let files: Vec<PathBuf> = fs::read_dir(&two).unwrap().map(|file| file.unwrap().path()).collect();
    assert_eq!(files.len(), 7);
    for file in &files {
        let same = one.join(file.file_name().unwrap());
        assert!(fs::read(file).unwrap() == fs::read(same).unwrap(), "{} differs", file.display());
    }

    assert!(verify(&two, None).unwrap().ends_with(", unsigned\n"));
    assert!(verify(&one, None).unwrap().contains("not checked"));
    assert!(verify(&one, Some(&public)).unwrap().contains("signed by this key"));
    for (directory, key) in [(&one, &other), (&two, &public)] {
        assert!(format!("{:#}", verify(directory, Some(key)).unwrap_err()).contains("SHA256SUMS.sig"));
    }
    let refused = |name: &str, key: Option<&Path>| {
        let error = format!("{:#}", verify(&one, key).unwrap_err());
        assert!(error.contains(name), "{name}: {error}");
    };
    for file in fs::read_dir(&one).unwrap().map(|file| file.unwrap().path()) {
        let name = file.file_name().unwrap().to_str().unwrap();
        let whole = fs::read(&file).unwrap();
        let mut changed = whole.clone();
        changed[whole.len() / 2] ^= 1;
        fs::write(&file, changed).unwrap();
        refused(name, name.starts_with("SHA256SUMS").then_some(&public));
        fs::remove_file(&file).unwrap();
        refused(name, name.starts_with("SHA256SUMS").then_some(&public));
        fs::write(&file, whole).unwrap();
    }
    fs::write(one.join("more"), "").unwrap();
    refused("more is not in SHA256SUMS", None);
    fs::remove_file(one.join("more")).unwrap();
    // The parts of one release do not fit to another's, even if the sums do.
    let manifest = fs::read_to_string(one.join(MANIFEST)).unwrap();
    fs::write(one.join(MANIFEST), manifest.replace(&format!("{REPOSITORY}@"), "elsewhere@")).unwrap();
    let sums = "sha256sum $(ls | grep -v SHA256SUMS) > SHA256SUMS";
    assert!(Command::new("sh").args(["-c", sums]).current_dir(&one).status().unwrap().success());
    refused(MANIFEST, None);
}
