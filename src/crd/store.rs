//! Where a `Postgresql`'s dumps go besides their volume. Part of [`super::Backup`].

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

/// A bucket of S3-compatible storage, and how it is reached.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Bucket {
    /// URL of the storage, such as `https://s3.eu-central-1.amazonaws.com`: scheme and host, and a port if need be.
    #[schemars(length(max = 300))]
    #[x_kube(validation = Rule::new("self.matches('^https?://([a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?|[[][0-9a-f:]+[]])(:[0-9]{1,5})?/?$')").message("must be an http:// or https:// URL with nothing but a host and a port, such as https://s3.example.com"))]
    pub endpoint: String,

    /// Name of the bucket. It has to exist.
    #[schemars(length(min = 3, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9][-a-z0-9.]*[a-z0-9]$') && !self.contains('..')").message("must be the name of a bucket: lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit"))]
    pub bucket: String,

    /// Region of the bucket.
    #[serde(default = "default_region")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9-]+$')").message("must be the name of a region, such as eu-central-1"))]
    pub region: String,

    /// The Secret in this namespace with the credentials.
    pub credentials_secret: CredentialsSecret,

    /// The Secret in this namespace with certificates that are trusted beside the usual ones.
    pub ca_secret: Option<CaSecret>,
}

/// S3-compatible storage to which each dump is uploaded, below `<prefix>/<namespace>/<name>/` of the bucket. A dump that could not be uploaded
/// has failed, stays on its volume, and is uploaded with the next one.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Store {
    /// The bucket.
    #[serde(flatten)]
    pub bucket: Bucket,

    /// What comes before `<namespace>/<name>/` in the names of all objects. Absent: nothing.
    #[schemars(length(min = 1, max = 300))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9_-][a-zA-Z0-9._-]*(/[a-zA-Z0-9_-][a-zA-Z0-9._-]*)*$')").message("must be words of letters, digits, '.', '_' and '-' with '/' between them"))]
    pub prefix: Option<String>,

    /// Public key of age (`age1…`, as `age-keygen` prints it) for which dumps are encrypted. The secret key is needed to fetch a
    /// dump, and belongs outside this cluster; without it nothing opens them. Absent: dumps are stored as they are.
    #[schemars(length(max = 62))]
    #[x_kube(validation = Rule::new("self.matches('^age1[02-9ac-hj-np-z]{58}$')").message("must be a public key of age, as age-keygen prints it: age1 and 58 letters and digits"))]
    pub recipient: Option<String>,

    /// Which dumps stay in the bucket. Absent: all of them, and the credentials need no right to delete.
    pub keep: Option<StoreKeep>,
}

impl Store {
    /// What the names of all objects of the Postgresql of this name begin with: no other has that.
    pub(crate) fn path(&self, namespace: &str, name: &str) -> String {
        let own = format!("{namespace}/{name}");
        self.prefix.as_ref().map_or(own.clone(), |prefix| format!("{prefix}/{own}"))
    }
}

/// A Secret with credentials of the storage.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CredentialsSecret {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub name: String,
    /// Key of the access key's id.
    #[serde(default = "default_access_key_id")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[-._a-zA-Z0-9]+$')").message("must be a key of a Secret"))]
    pub access_key_id_key: String,
    /// Key of the secret access key.
    #[serde(default = "default_secret_access_key")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[-._a-zA-Z0-9]+$')").message("must be a key of a Secret"))]
    pub secret_access_key_key: String,
}

/// A Secret with certificates.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CaSecret {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub name: String,
    /// Key of the certificates, in PEM.
    #[serde(default = "default_ca")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[-._a-zA-Z0-9]+$')").message("must be a key of a Secret"))]
    pub key: String,
}

/// How many dumps of each age stay in the bucket, in UTC. A dump that is empty or damaged, or of another server, never replaces
/// one with data, and the newest one with data always stays.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.last + self.daily + self.weekly + self.monthly > 0").message("say how many are kept, or leave keep out to keep all"))]
pub struct StoreKeep {
    /// The newest dumps.
    #[serde(default = "super::number::<0>")]
    #[schemars(range(min = 0, max = 1000))]
    pub last: i32,
    /// The newest dump of each of so many days with a dump.
    #[serde(default = "super::number::<0>")]
    #[schemars(range(min = 0, max = 1000))]
    pub daily: i32,
    /// The newest dump of each of so many weeks with a dump.
    #[serde(default = "super::number::<0>")]
    #[schemars(range(min = 0, max = 1000))]
    pub weekly: i32,
    /// The newest dump of each of so many months with a dump.
    #[serde(default = "super::number::<0>")]
    #[schemars(range(min = 0, max = 1000))]
    pub monthly: i32,
}

fn default_region() -> String {
    "us-east-1".to_owned()
}
// The keys that Percona's Secrets for backups have.
fn default_access_key_id() -> String {
    "AWS_ACCESS_KEY_ID".to_owned()
}
fn default_secret_access_key() -> String {
    "AWS_SECRET_ACCESS_KEY".to_owned()
}
fn default_ca() -> String {
    "ca.crt".to_owned()
}
