//! S3-compatible storage for a `Postgresql`'s dumps, in addition to their volume. Part of [`super::Backup`].

use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

/// A bucket of S3-compatible storage, and how to access it.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Bucket {
    /// URL of the storage, such as `https://s3.eu-central-1.amazonaws.com`: scheme, host and an optional port.
    #[schemars(length(max = 300))]
    #[x_kube(validation = Rule::new("self.matches('^https?://([a-zA-Z0-9]([-a-zA-Z0-9.]*[a-zA-Z0-9])?|[[][0-9a-f:]+[]])(:[0-9]{1,5})?/?$')").message("must be an http:// or https:// URL with only a host and a port, such as https://s3.example.com"))]
    pub endpoint: String,

    /// Name of the bucket, which must exist.
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

    /// The Secret in this namespace with certificates to trust in addition to the usual ones.
    pub ca_secret: Option<CaSecret>,
}

/// S3-compatible storage to which each dump is uploaded, below `<prefix>/<namespace>/<name>/` in the bucket. If an upload fails, the
/// dump counts as failed, stays on its volume, and is uploaded with the next one.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Store {
    /// The bucket.
    #[serde(flatten)]
    pub bucket: Bucket,

    /// Prefix before `<namespace>/<name>/` in the names of all objects. Absent: none.
    #[schemars(length(min = 1, max = 300))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9_-][a-zA-Z0-9._-]*(/[a-zA-Z0-9_-][a-zA-Z0-9._-]*)*$')").message("must be words of letters, digits, '.', '_' and '-', separated by '/'"))]
    pub prefix: Option<String>,

    /// Public age key (`age1…`, as `age-keygen` prints it) to encrypt dumps for. The secret key is needed to restore a dump, and should
    /// be kept outside this cluster; without it, the dumps cannot be read. Absent: dumps are not encrypted.
    #[schemars(length(max = 62))]
    #[x_kube(validation = Rule::new("self.matches('^age1[02-9ac-hj-np-z]{58}$')").message("must be a public age key, as age-keygen prints it: age1 and 58 letters and digits"))]
    pub recipient: Option<String>,

    /// Which dumps to keep in the bucket. Absent: all, and the credentials need no right to delete.
    pub keep: Option<StoreKeep>,
}

impl Store {
    /// Prefix of all objects of this Postgresql, which no other Postgresql has.
    pub fn path(&self, namespace: &str, name: &str) -> String {
        let own = format!("{namespace}/{name}");
        self.prefix.as_ref().map_or(own.clone(), |prefix| format!("{prefix}/{own}"))
    }
}

/// A Secret with the storage's credentials.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct CredentialsSecret {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub name: String,
    /// Key of the access key ID.
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
    /// Key of the certificates, in PEM format.
    #[serde(default = "default_ca")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[-._a-zA-Z0-9]+$')").message("must be a key of a Secret"))]
    pub key: String,
}

/// Number of dumps to keep in the bucket for each period, in UTC. A dump that is empty, damaged or of another server never replaces
/// one with data, and the newest dump with data is always kept.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.last + self.daily + self.weekly + self.monthly > 0").message("set the number of dumps to keep, or omit keep to keep all"))]
pub struct StoreKeep {
    /// Number of newest dumps to keep.
    #[serde(default = "super::number::<0>")]
    #[schemars(range(min = 0, max = 1000))]
    pub last: i32,
    /// Number of days with a dump to keep the newest dump of.
    #[serde(default = "super::number::<0>")]
    #[schemars(range(min = 0, max = 1000))]
    pub daily: i32,
    /// Number of weeks with a dump to keep the newest dump of.
    #[serde(default = "super::number::<0>")]
    #[schemars(range(min = 0, max = 1000))]
    pub weekly: i32,
    /// Number of months with a dump to keep the newest dump of.
    #[serde(default = "super::number::<0>")]
    #[schemars(range(min = 0, max = 1000))]
    pub monthly: i32,
}

fn default_region() -> String {
    "us-east-1".to_owned()
}
// The keys in Percona's Secrets for backups.
fn default_access_key_id() -> String {
    "AWS_ACCESS_KEY_ID".to_owned()
}
fn default_secret_access_key() -> String {
    "AWS_SECRET_ACCESS_KEY".to_owned()
}
fn default_ca() -> String {
    "ca.crt".to_owned()
}
