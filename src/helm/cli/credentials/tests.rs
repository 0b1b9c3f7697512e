use std::{
    fs::{self, File},
    os::unix::fs::symlink,
};

use tempfile::TempDir;

use super::*;

const REPOSITORY: &str = "https://charts.example.com/stable";
const REGISTRY: &str = "oci://registry.example.com:5000/charts";

fn mounted(files: &[(&str, &str)]) -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    for (name, content) in files {
        fs::write(directory.path().join(name), content).unwrap();
    }
    directory
}

/// Reads a mounted Secret; in the message of an error, `DIR` stands for its path.
fn read(directory: &Path, source: &str) -> Result<Credentials, String> {
    let files = CredentialFiles { directory: Some(directory.to_owned()), keyring: None };
    let path = directory.display().to_string();
    files.read(&source.parse().unwrap()).map_err(|error| error.to_string().replace(&path, "DIR"))
}

#[test]
fn whatever_a_source_takes_is_found() {
    let tls = [("ca.crt", "CA"), ("tls.crt", "CERTIFICATE"), ("tls.key", "KEY")];
    let login = [("username", "tenant\n"), ("password", " canary: pass\"word \n")];
    let directory = mounted(&[&tls[..], &login, &[("..data", "ignored"), ("keystore.jks", "ignored")]].concat());
    let path = |name| directory.path().join(name);
    let found = read(directory.path(), REPOSITORY).ok().unwrap();
    assert_eq!(found.login, Some(("tenant".to_owned(), " canary: pass\"word ".to_owned())));
    assert_eq!((found.ca, found.registry_config, found.keyring), (Some(path("ca.crt")), None, None));
    assert_eq!(found.certificate, Some((path("tls.crt"), path("tls.key"))));
    for quoted in ["canary: pass\"word", "Authorization: Basic dGVuYW50OiBjYW5hcnk6IHBhc3Mid29yZCA="] {
        assert!(!found.redactor.redact(quoted).contains("canary") && found.redactor.redact(quoted).contains("***"));
    }

    for (auths, secret) in [
        (r#"{"registry.example.com:5000": {"auth": "dGVuYW50OmNhbmFyeQ=="}}"#, "canary"),
        (r#"{"https://registry.example.com:5000/v1/": {"username": "a", "password": "canary"}}"#, "canary"),
        (r#"{"other": {"auth": "x"}, "registry.example.com:5000": {"identitytoken": "canary"}}"#, "canary"),
    ] {
        let directory = mounted(&[(".dockerconfigjson", &format!(r#"{{"auths": {auths}}}"#)), tls[0]]);
        let found = read(directory.path(), REGISTRY).ok().unwrap();
        assert_eq!(found.registry_config, Some(directory.path().join(".dockerconfigjson")), "{auths}");
        assert_eq!((found.login, found.certificate), (None, None));
        assert_eq!(found.redactor.redact(&format!("got {secret}")), "got ***", "{auths}");
    }
    assert_eq!(
        registry_secrets(
            br#"{"auths": {"https://index.docker.io/v1/": {"password": "canary"}}}"#,
            "registry-1.docker.io"
        ),
        Some(vec!["canary".to_owned()])
    );

    // A rotated Secret is read at the next pull.
    fs::write(path("password"), "other").unwrap();
    assert_eq!(read(directory.path(), REPOSITORY).ok().unwrap().login.unwrap().1, "other");
    // A mounted Secret is of links.
    let link = tempfile::tempdir().unwrap();
    symlink(path("ca.crt"), link.path().join("ca.crt")).unwrap();
    assert_eq!(read(link.path(), REPOSITORY).ok().unwrap().ca, Some(link.path().join("ca.crt")));
    assert!(
        CredentialFiles::default()
            .read(&REPOSITORY.parse().unwrap())
            .is_ok_and(|found| found == Credentials::default())
    );
}

#[test]
fn what_cannot_be_used_is_refused_and_not_quoted() {
    let docker = (".dockerconfigjson", r#"{"auths": {"registry.example.com:5000": {"auth": "dGVuYW50OmNhbmFyeQ=="}}}"#);
    let other = (".dockerconfigjson", r#"{"auths": {"registry.example.com": {"auth": "dGVuYW50OmNhbmFyeQ=="}}}"#);
    let [user, password] = [("username", "tenant"), ("password", "canary")];
    let no_auth =
        "DIR/.dockerconfigjson is not a Docker config.json with credentials of registry.example.com:5000 in `auths`";
    let one_line = "DIR/password has to be one line of text, with at most one newline at its end";
    let none = "DIR has none of username and password, .dockerconfigjson, ca.crt, tls.crt and tls.key: mount a Secret with them there";
    let of_registry = "DIR/.dockerconfigjson is not for this source: the credentials of an https:// repository are in username and password";
    let of_repository =
        "DIR/username is not for this source: the credentials of an oci:// registry are in .dockerconfigjson";
    for (source, files, expected) in [
        (REPOSITORY, &[][..], none),
        (REPOSITORY, &[("Username", "tenant")], none),
        (REPOSITORY, &[user], "DIR has username, but no password: put both into the Secret"),
        (REPOSITORY, &[password], "DIR has password, but no username: put both into the Secret"),
        (REPOSITORY, &[("tls.crt", "x")], "DIR has tls.crt, but no tls.key: put both into the Secret"),
        (REGISTRY, &[("tls.key", "x")], "DIR has tls.key, but no tls.crt: put both into the Secret"),
        (REPOSITORY, &[docker], of_registry),
        (REGISTRY, &[user, password], of_repository),
        ("/charts", &[user, password], "DIR is not for this source: charts in a directory need no credentials"),
        (REPOSITORY, &[user, ("password", "")], one_line),
        (REPOSITORY, &[user, ("password", "\n")], one_line),
        (REPOSITORY, &[user, ("password", "canary\n\n")], one_line),
        (REPOSITORY, &[user, ("password", "canary\r\n")], one_line),
        (REPOSITORY, &[user, ("password", "canary\0")], one_line),
        (REPOSITORY, &[("username", "a:canary"), password], "DIR/username has to be one line of text without a colon"),
        (REGISTRY, &[(".dockerconfigjson", "{\"auths\": canary")], no_auth),
        (REGISTRY, &[(".dockerconfigjson", "{\"auths\": [\"canary\"]}")], no_auth),
        (
            REGISTRY,
            &[(".dockerconfigjson", r#"{"auths": {"registry.example.com:5000": {"username": "canary"}}}"#)],
            no_auth,
        ),
        (REGISTRY, &[other], no_auth),
    ] {
        let directory = mounted(files);
        let message = read(directory.path(), source).err().unwrap();
        assert_eq!(message, expected, "{files:?}");
        assert!(!message.contains("canary"));
    }

    let directory = mounted(&[user]);
    let path = directory.path().join("password");
    symlink("password", &path).unwrap();
    let message = read(directory.path(), REPOSITORY).err().unwrap();
    assert!(message.starts_with("cannot read DIR/password: ") && message.contains("symbolic links"), "{message}");
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert_eq!(read(directory.path(), REPOSITORY).err().unwrap(), "DIR/password is not a file of at most 1 MiB");
    fs::remove_dir(&path).unwrap();
    File::create(&path).unwrap().set_len(MAX_FILE + 1).unwrap();
    assert_eq!(read(directory.path(), REPOSITORY).err().unwrap(), "DIR/password is not a file of at most 1 MiB");
    fs::write(&path, b"canary\xff").unwrap();
    assert_eq!(read(directory.path(), REPOSITORY).err().unwrap(), one_line);
    // A file in place of the directory.
    assert!(read(&path, REPOSITORY).err().unwrap().starts_with("cannot read DIR/"));
}

#[test]
fn a_keyring_is_a_file_that_exists() {
    let directory = mounted(&[("keyring.gpg", "keys")]);
    let read = |name: &str| {
        let files = CredentialFiles { directory: None, keyring: Some(directory.path().join(name)) };
        files.read(&"/charts".parse().unwrap())
    };
    assert_eq!(read("keyring.gpg").ok().unwrap().keyring, Some(directory.path().join("keyring.gpg")));
    assert!(matches!(read("none").err().unwrap(), InvalidCredentials::Read { .. }));
    assert!(matches!(read("").err().unwrap(), InvalidCredentials::Unfit { .. }));
}
