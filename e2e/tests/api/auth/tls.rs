//! TLS with a certificate that is mounted as by the kubelet, and renewed.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use super::*;

/// A Secret volume: the files are links into a directory that is swapped as a whole.
struct Volume(tempfile::TempDir);

impl Volume {
    fn new() -> Volume {
        let volume = Volume(tempfile::tempdir().unwrap());
        for file in ["tls.crt", "tls.key"] {
            symlink(Path::new("..data").join(file), volume.path(file)).unwrap();
        }
        volume
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    /// Replaces the contents atomically.
    fn swap(&self, version: &str, cert: &str, key: &str) {
        std::fs::create_dir(self.path(version)).unwrap();
        std::fs::write(self.path(version).join("tls.crt"), cert).unwrap();
        std::fs::write(self.path(version).join("tls.key"), key).unwrap();
        symlink(version, self.path("..data_tmp")).unwrap();
        std::fs::rename(self.path("..data_tmp"), self.path("..data")).unwrap();
    }
}

/// A new certificate for this machine, with its key.
pub fn made() -> (String, String) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned(), "127.0.0.1".to_owned()]).unwrap();
    (made.cert.pem(), made.signing_key.serialize_pem())
}

#[tokio::test]
async fn a_renewed_certificate_is_shown_without_a_restart_and_a_broken_one_is_not() {
    let lab = Lab::shared().await;
    let tenant = lab.tenant("certificates").await;
    account(&tenant, "jane").await;
    let [default, mine] = [AUDIENCE, "mine"];
    let (default, token) = (token(&tenant, "jane", default, None).await, token(&tenant, "jane", mine, None).await);
    let (volume, first, second) = (Volume::new(), made(), made());
    volume.swap("1", &first.0, &first.1);
    let (cert, key) = (volume.path("tls.crt"), volume.path("tls.key"));
    let files = ["--api-tls-cert", cert.to_str().unwrap(), "--api-tls-key", key.to_str().unwrap()];
    let auth = ["--api-auth", "token", "--api-audience", "mine"];
    let mut api = Served::start(lab.options(), &[auth, files].concat()).await;
    assert!(api.base.starts_with("https://"), "{}", api.base);
    // A new client opens a new connection.
    let reached = async |trusted: &str, token: Option<&str>| {
        let request = client(Some(trusted)).get(format!("{}/nowhere", api.base));
        let answer = token.into_iter().fold(request, reqwest::RequestBuilder::bearer_auth).send().await;
        answer.ok().map(|answer| answer.status().as_u16())
    };
    assert_eq!(reached(&first.0, None).await, Some(401));
    assert_eq!(reached(&first.0, Some(&token)).await, Some(404));
    assert_eq!(reached(&second.0, None).await, None);
    // A client without TLS gets nowhere.
    let plain = api.client.get(format!("http://{}/nowhere", api.address())).send().await;
    assert!(plain.is_err(), "{plain:?}");
    // The audience is a setting.
    let asked = client(Some(&first.0)).get(format!("{}/nowhere", api.base)).bearer_auth(&default);
    assert!(send(asked).await.refused(401, "Unauthorized").contains("--audience mine"));

    // The second certificate without its key.
    volume.swap("2", &second.0, &first.1);
    until("it is logged", async || api.operator.log().contains("keeps its old certificate").then_some(())).await;
    assert_eq!(reached(&first.0, None).await, Some(401));

    volume.swap("3", &second.0, &second.1);
    until("the new certificate is served", async || reached(&second.0, None).await.filter(|status| *status == 401))
        .await;
    assert_eq!(reached(&first.0, None).await, None);
    assert_eq!(api.operator.log().matches("keeps its old certificate").count(), 1);
    api.operator.wait_for_log("has a new certificate").unwrap();
}
