//! The S3-compatible storage of the node, behind a certificate of its authority.

use std::fs;
use std::net::TcpStream;
use std::path::PathBuf;

use anyhow::Result;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, PostParams};
use serde_json::{Value, json};

use super::files::{ADDRESS, path};
use super::inside::Node;
use crate::objects::{ACCESS_KEY, SECRET_KEY};
use crate::plane::server::Recipe;
use crate::progress::Progress;
use crate::tools::Extra;

const PORT: u16 = 9000;
pub(super) const BUCKET: &str = "archives";
/// The Secrets of a namespace that uses it.
const CREDENTIALS: &str = "bucket";
const AUTHORITY: &str = "bucket-authority";
const PASSWORD: &str = "bucket-password";

/// Serves an empty bucket.
pub(super) fn serve(node: &Node) -> Result<()> {
    let program = Extra::Versitygw.ensure(&Progress::hidden())?;
    let at = |name: &str| path("storage").join(name);
    for directory in ["attributes".to_owned(), format!("objects/{BUCKET}")] {
        fs::create_dir_all(at(&directory))?;
    }
    let identity = node.authority.server("storage", vec![ADDRESS.to_owned()])?;
    fs::write(at("tls.crt"), identity.certificate)?;
    fs::write(at("tls.key"), identity.key)?;
    let word = |name: &str| at(name).display().to_string();
    let mut arguments = vec!["--port".to_owned(), format!("{ADDRESS}:{PORT}"), "--quiet".to_owned()];
    arguments.extend(["--cert".to_owned(), word("tls.crt"), "--key".to_owned(), word("tls.key")]);
    arguments.extend(["posix".to_owned(), "--sidecar".to_owned(), word("attributes"), word("objects")]);
    let keys = [("ROOT_ACCESS_KEY", ACCESS_KEY), ("ROOT_SECRET_KEY", SECRET_KEY)];
    let environment = keys.map(|(name, value)| (name, value.to_owned())).to_vec();
    node.start_server(Recipe { name: "versitygw", program, arguments, environment })?;
    answers(node)
}

/// Waits until it answers.
pub(super) fn answers(node: &Node) -> Result<()> {
    node.wait_for("the storage answers", "versitygw", async || TcpStream::connect((ADDRESS, PORT)).is_ok())
}

/// Returns the directory with all buckets.
pub(super) fn objects() -> PathBuf {
    path("storage").join("objects")
}

/// Creates the Secrets that its use needs in a namespace, and returns the `store` of a spec there. `restore_to`: the Postgresql that
/// may read what others have stored.
pub(super) async fn store(client: &Client, namespace: &str, restore_to: Option<&str>) -> Result<Value> {
    let secrets: Api<Secret> = Api::namespaced(client.clone(), namespace);
    let labels = restore_to.map(|name| json!({"apps.bnerd-operator.local/restore-to": name}));
    for (name, labels, data) in [
        (CREDENTIALS, labels, json!({"AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY})),
        (AUTHORITY, None, json!({"ca.crt": fs::read_to_string(path("ca.crt"))?})),
        (PASSWORD, None, json!({"password": "of the repository"})),
    ] {
        let secret = json!({"metadata": {"name": name, "labels": labels}, "stringData": data});
        secrets.create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    }
    Ok(json!({
        "endpoint": format!("https://{ADDRESS}:{PORT}"), "bucket": BUCKET, "credentialsSecret": {"name": CREDENTIALS},
        "caSecret": {"name": AUTHORITY}, "passwordSecret": {"name": PASSWORD},
    }))
}

/// Returns the number of snapshots in a repository of the bucket.
pub(super) fn snapshots(repository: &str) -> usize {
    let directory = objects().join(BUCKET).join(repository).join("snapshots");
    fs::read_dir(directory).map_or(0, Iterator::count)
}
