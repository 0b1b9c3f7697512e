//! A restic repository in S3-compatible storage, for a `Postgresql`'s dumps and a ClientApp's files. Part of [`super::Backup`].

use kube::KubeSchema;
use schemars::JsonSchema;
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

    /// Name of the bucket. It is created if it does not exist and the credentials allow it.
    #[schemars(length(min = 3, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-z0-9][-a-z0-9.]*[a-z0-9]$') && !self.contains('..')").message("must be the name of a bucket: lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit"))]
    pub bucket: String,

    /// Region of the bucket.
    #[serde(default = "default_region")]
    #[schemars(length(min = 1, max = 63))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9-]+$')").message("must be the name of a region, such as eu-central-1"))]
    pub region: String,

    /// The Secret in this namespace with the credentials. Without keys in it, Jobs with `jobs.serviceAccountName` use the identity that a
    /// cloud gives to that account.
    pub credentials_secret: CredentialsSecret,

    /// The Secret in this namespace with certificates to trust instead of the usual ones.
    pub ca_secret: Option<CaSecret>,

    /// The Secret in this namespace with the password of the restic repository, which is created with it. Keep a copy outside this
    /// cluster: nobody can read the repository without it. Absent: the repository is not encrypted.
    pub password_secret: Option<StorePasswordSecret>,
}

/// S3-compatible storage with the restic repository to which each dump is uploaded: `<prefix>/<namespace>/<name>` in the bucket. If an
/// upload fails, the dump counts as failed, stays on its volume, and is uploaded with the next one.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("!has(self.generatePassword) || !self.generatePassword || has(self.passwordSecret)").message("needs passwordSecret, with the name of the Secret to create").field_path(".generatePassword"))]
pub struct Store {
    /// The bucket.
    #[serde(flatten)]
    pub bucket: Bucket,

    /// Prefix before `<namespace>/<name>` in the repository's path. Absent: none.
    #[schemars(length(min = 1, max = 300))]
    #[x_kube(validation = Rule::new("self.matches('^[a-zA-Z0-9_-][a-zA-Z0-9._-]*(/[a-zA-Z0-9_-][a-zA-Z0-9._-]*)*$')").message("must be words of letters, digits, '.', '_' and '-', separated by '/'"))]
    pub prefix: Option<String>,

    /// Which snapshots to keep in the repository. Absent: all.
    pub keep: Option<StoreKeep>,

    /// True: the operator creates the Secret that `passwordSecret` names, with a generated password, before the first backup. It never
    /// changes or deletes it, and creates no other if it is lost: keep a copy outside this cluster.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub generate_password: bool,
}

impl Store {
    /// Returns the path of the repository, which no other object of the cluster has.
    pub fn path(&self, namespace: &str, name: &str) -> String {
        let own = format!("{namespace}/{name}");
        self.prefix.as_ref().map_or(own.clone(), |prefix| format!("{prefix}/{own}"))
    }
}

/// The Secret with the password of a restic repository, as last seen.
#[derive(JsonSchema, Clone, Debug, Deserialize, Serialize, PartialEq, Eq)]
#[serde(rename_all = "camelCase")]
pub struct RepositoryPassword {
    /// Name of the Secret.
    pub secret: String,
    /// uid of the Secret.
    pub uid: String,
}

/// Tells how a repository stands with its password.
#[derive(Clone, Debug, PartialEq)]
pub enum PasswordState {
    /// It is on record, or a user gives it.
    Given,
    /// It is to be generated into this Secret, unless that exists.
    Missing(StorePasswordSecret),
    /// This Secret is gone, and the repository knows no other password.
    Lost(StorePasswordSecret),
}

impl Bucket {
    /// Returns the Secret with the password to record. `uid`: that of the Secret, if it exists.
    pub fn password(&self, recorded: Option<&RepositoryPassword>, uid: Option<&str>) -> Option<RepositoryPassword> {
        let seen = self.password_secret.as_ref().zip(uid);
        let seen = seen.map(|(secret, uid)| RepositoryPassword { secret: secret.name.clone(), uid: uid.to_owned() });
        seen.or_else(|| recorded.cloned())
    }

    /// Returns how the repository stands with its password. One that was ever seen is never replaced by another.
    pub fn password_state(
        &self,
        is_generated: bool,
        recorded: Option<&RepositoryPassword>,
        exists: bool,
    ) -> PasswordState {
        let Some(secret) = self.password_secret.as_ref().filter(|_| !exists) else {
            return PasswordState::Given;
        };
        match (recorded, is_generated) {
            (Some(_), _) => PasswordState::Lost(secret.clone()),
            (None, true) => PasswordState::Missing(secret.clone()),
            (None, false) => PasswordState::Given,
        }
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

/// Number of snapshots to keep for each period in UTC, as `restic forget` counts them. A dump that is empty or of another server never
/// replaces one with data, and the newest with data is always kept.
#[derive(KubeSchema, ToSchema, Clone, Copy, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("self.last + self.hourly + self.daily + self.weekly + self.monthly + self.yearly > 0").message("set the number of snapshots to keep, or omit keep to keep all"))]
pub struct StoreKeep {
    /// Number of newest snapshots to keep.
    #[serde(default = "super::number::<0>")]
    #[schemars(range(min = 0, max = 1000))]
    pub last: i32,
    /// Number of hours with a snapshot to keep the newest of.
    #[serde(default = "super::number::<0>")]
    #[schemars(range(min = 0, max = 1000))]
    pub hourly: i32,
    /// Number of days with a snapshot to keep the newest of.
    #[serde(default = "super::number::<0>")]
    #[schemars(range(min = 0, max = 1000))]
    pub daily: i32,
    /// Number of weeks with a snapshot to keep the newest of.
    #[serde(default = "super::number::<0>")]
    #[schemars(range(min = 0, max = 1000))]
    pub weekly: i32,
    /// Number of months with a snapshot to keep the newest of.
    #[serde(default = "super::number::<0>")]
    #[schemars(range(min = 0, max = 1000))]
    pub monthly: i32,
    /// Number of years with a snapshot to keep the newest of.
    #[serde(default = "super::number::<0>")]
    #[schemars(range(min = 0, max = 1000))]
    pub yearly: i32,
}

impl StoreKeep {
    /// Returns the number for each period, by restic's name of it.
    pub fn counts(self) -> [(&'static str, i32); 6] {
        let StoreKeep { last, hourly, daily, weekly, monthly, yearly } = self;
        [
            ("last", last),
            ("hourly", hourly),
            ("daily", daily),
            ("weekly", weekly),
            ("monthly", monthly),
            ("yearly", yearly),
        ]
    }
}

/// A Secret with the password of a restic repository.
#[derive(KubeSchema, ToSchema, Clone, Debug, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct StorePasswordSecret {
    /// Name of the Secret.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub name: String,
    /// Key of the password.
    #[serde(default = "default_password")]
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = Rule::new("self.matches('^[-._a-zA-Z0-9]+$')").message("must be a key of a Secret"))]
    pub key: String,
}

impl StorePasswordSecret {
    /// Returns the Secret of this name, with the default key.
    pub fn named(name: &str) -> StorePasswordSecret {
        StorePasswordSecret { name: name.to_owned(), key: default_password() }
    }
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
fn default_password() -> String {
    "password".to_owned()
}
fn default_ca() -> String {
    "ca.crt".to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_password_is_generated_once() {
        let bucket = |secret: Value| -> Bucket {
            let whole = json!({"endpoint": "https://s3", "bucket": "dumps", "credentialsSecret": {"name": "s3"}, "passwordSecret": secret});
            serde_json::from_value(whole).unwrap()
        };
        let record = |secret: &str| Some(RepositoryPassword { secret: secret.to_owned(), uid: "u".to_owned() });
        let named = || json!({"name": "restic"});
        let secret = || StorePasswordSecret::named("restic");
        let (missing, lost) = (|| PasswordState::Missing(secret()), || PasswordState::Lost(secret()));
        for (what, secret, is_generated, recorded, uid, state, put_down) in [
            ("not encrypted", json!(null), false, None, None, PasswordState::Given, None),
            ("before the first backup", named(), true, None, None, missing(), None),
            ("it is generated", named(), true, None, Some("u"), PasswordState::Given, record("restic")),
            ("on record", named(), true, record("restic"), Some("u"), PasswordState::Given, record("restic")),
            ("it is gone", named(), true, record("restic"), None, lost(), record("restic")),
            ("another name does not make it anew", named(), true, record("other"), None, lost(), record("other")),
            ("it was a user's before", named(), true, record("restic"), None, lost(), record("restic")),
            ("a user's is gone", named(), false, record("restic"), None, lost(), record("restic")),
            ("a user has not created it yet", named(), false, None, None, PasswordState::Given, None),
            (
                "a user names another",
                named(),
                false,
                record("other"),
                Some("u"),
                PasswordState::Given,
                record("restic"),
            ),
        ] {
            let bucket = bucket(secret);
            assert_eq!(bucket.password_state(is_generated, recorded.as_ref(), uid.is_some()), state, "{what}");
            assert_eq!(bucket.password(recorded.as_ref(), uid), put_down, "{what}");
        }
    }
}
