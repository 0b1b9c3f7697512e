//! The stage `desired`, **pure**: validates the spec once and computes the desired state. Later stages never read the raw spec.

use std::collections::BTreeSet;

use jiff::SignedDuration;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use semver::Version;
use serde_json::{Map, Value};

use super::{
    database::{self, DesiredDatabase, DesiredObject},
    file_backup::{self, DesiredFiles},
    names::digest,
    values::{self, Image, Reserved, TlsSource},
    values_from::{Layer, Salt, Sources},
};
use crate::{
    clientapp::{
        error::{InvalidSpec, invalid},
        hold::Hold,
    },
    config::Config,
    crd::{
        AppTls, Approval, Attempt, ClientApp, ClientAppSpec, ClientAppStatus, Credentials, DEFAULT_CHART_VERSION,
        DeletionPolicy, Dependency, Drift, DriftIgnore, JobSettings, MAX_NAME, NAME_TOO_LONG, OnFailure,
        ProfilePersistence, ProfileSpec, Reason, RolledBack, Test, Upgrade, ValuesDigest, annotation, duration,
        quantity,
    },
    helm::{Redactor, values::Values},
    platform::{
        account::AccountName,
        key::{Key, is_label},
    },
};

const MAX_RELEASE_NAME: usize = 53;
/// Size of the files' volume if neither spec nor Profile sets it.
const DEFAULT_SIZE: &str = "8Gi";

/// A stored Profile, or one sentence on why it does not decode.
pub(crate) type StoredProfile = Result<ProfileSpec, String>;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Desired {
    pub key: Key,
    pub hostname: String,
    /// Where the certificate of the hostname comes from; `None`: the operator configures no TLS.
    pub tls: Option<TlsSource>,
    pub suspend: bool,
    /// The ServiceAccount whose rights helm has.
    pub account: AccountName,
    pub secrets: DesiredSecrets,
    pub(crate) database: Option<DesiredDatabase>,
    /// The target of the release: the spec, or an earlier revision.
    pub intent: Intent,
    pub values: DesiredValues,
    pub upgrade: DesiredUpgrade,
    pub drift: DesiredDrift,
    pub data: DesiredData,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredSecrets {
    /// The administrator's, and whether the operator generates it.
    pub admin: SecretSource,
    /// The keys that the chart reads of it in addition to name and password.
    pub more_admin_keys: Vec<&'static str>,
    /// The generated Secret with the Redis password; `None`: no Redis.
    pub redis: Option<String>,
    /// The credentials that the app's pods use, as far as they are known.
    pub(crate) in_use: Vec<Credentials>,
}

/// The chart's values, as the spec asks for them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredValues {
    /// The complete document, all layers merged.
    pub merged: Values,
    /// `spec.valuesFrom`, with a digest of each source's content.
    pub sources: Vec<ValuesDigest>,
    /// One sentence on each part of the base values that the app needs and other values replace.
    pub replaced: Vec<String>,
    /// The texts from Secrets, which no message may contain.
    pub redactor: Redactor,
    /// The wait for values that are missing. No release has the digest of incomplete values.
    pub(crate) awaits: Option<Hold>,
}

/// The treatment of objects of the release that other clients change.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredDrift {
    pub policy: Drift,
    /// The fields that other clients may edit.
    pub ignore: Vec<DriftIgnore>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredData {
    pub deletion_policy: DeletionPolicy,
    /// `spec.postgres.adopt`: take over the data that an earlier ClientApp of this name left.
    pub adopt: bool,
    /// uids of the volumes without which a user has confirmed that the app goes on.
    pub(crate) without_volumes: BTreeSet<String>,
    /// Archives of the app's files.
    pub(crate) files: Option<DesiredFiles>,
}

/// Names what is installed, without its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReleaseTarget {
    /// The only version that helm may install.
    pub chart_version: Version,
    /// Digest of chart version, values and flags: equal digests are not installed twice.
    pub digest: String,
}

/// Says what a release is reconciled to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Intent {
    Spec(ReleaseTarget),
    /// A revision that was Ready before one failed; helm gets its values from Helm's storage.
    RolledBack {
        to: ReleaseTarget,
        record: RolledBack,
    },
}

/// Who provides a Secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SecretSource {
    /// The operator, under this name.
    Generated(String),
    /// The user, under this name.
    Given(String),
}

impl SecretSource {
    pub(crate) fn name(&self) -> &str {
        match self {
            SecretSource::Generated(name) | SecretSource::Given(name) => name,
        }
    }
}

/// The conditions of a helm run, and what follows from its failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DesiredUpgrade {
    /// Says whether helm runs at once, or what a user has approved.
    pub approval: Approval,
    pub approved: Option<String>,
    /// The objects that have to be Ready before.
    pub depends_on: Vec<Dependency>,
    /// The database is backed up before another chart version is installed.
    pub backup: bool,
    /// The version that may be installed even if it downgrades the app or skips a major version.
    pub allow: Option<Version>,
    /// How long another Helm client's lock is respected; `None`: as long as it exists.
    pub foreign_lock_timeout: Option<SignedDuration>,
    /// Holds what follows when a revision fails.
    pub on_failure: OnFailure,
    /// How many attempts follow a failed one before that.
    pub retries: u32,
    /// How long a deployed revision may take to become ready.
    pub timeout: SignedDuration,
    /// How long its tests may take; `None`: it is not tested.
    pub test: Option<SignedDuration>,
}

impl Desired {
    /// Returns what is installed: of the spec, or of the revision that the release was rolled back to.
    pub(crate) fn target(&self) -> &ReleaseTarget {
        match &self.intent {
            Intent::Spec(target) | Intent::RolledBack { to: target, .. } => target,
        }
    }

    pub(crate) fn rolled_back(&self) -> Option<&RolledBack> {
        match &self.intent {
            Intent::Spec(_) => None,
            Intent::RolledBack { record, .. } => Some(record),
        }
    }

    /// Returns the attempt on record to install this target.
    pub(crate) fn attempt<'a>(&self, recorded: &'a ClientAppStatus) -> Option<&'a Attempt> {
        recorded.last_attempt.as_ref().filter(|attempt| attempt.digest == self.target().digest)
    }

    /// Returns the database object, if one is created for the app.
    pub(crate) fn database_object(&self) -> Option<&DesiredObject> {
        self.database.as_ref()?.object.as_ref()
    }
}

/// Validates the spec and computes everything that follows from it, its Profile, and its values and credentials from elsewhere.
/// `profile` is the Profile stored under the name in the spec, `None` if the spec names none or it does not exist.
///
/// # Errors
/// The first invalid field. The schema rejects most of these earlier, but objects stored under an older schema still arrive here.
pub(crate) fn desired(
    app: &ClientApp,
    profile: Option<&StoredProfile>,
    (sources, credentials): (&Sources, &[Credentials]),
    config: &Config,
) -> Result<Desired, InvalidSpec> {
    let checked = CheckedSpec::checked(app, profile)?;
    let user = UserValues::checked(checked.spec, sources, checked.reserved())?;
    let asked = checked.layers(&user.merged, config)?;
    let CheckedSpec { key, spec, .. } = &checked;
    let database = match spec.postgres.enabled {
        true => Some(database::desired(key, app, config, (checked.profile.open, checked.profile.jobs.as_ref()))?),
        false => None,
    };
    let upgrade = upgrade(app)?;
    let account = account(spec)?;
    let (admin, redis) = (admin_secret(key, spec), spec.redis.enabled.then(|| key.redis_secret()));
    let access = PodSecrets {
        admin: &admin,
        redis: redis.as_deref(),
        database: database.as_ref().map(|database| &database.address),
        credentials,
    };
    let (values, digest) = chart_values(&checked, &asked, user, &access, config)?;
    Ok(Desired {
        hostname: checked.hostname.to_owned(),
        suspend: spec.suspend,
        account,
        secrets: DesiredSecrets {
            more_admin_keys: values::more_admin_keys(&values.merged.0),
            admin,
            redis,
            in_use: credentials.to_vec(),
        },
        database,
        values,
        upgrade,
        drift: DesiredDrift { policy: spec.drift, ignore: spec.drift_ignore.clone() },
        data: data(app)?,
        intent: Intent::Spec(ReleaseTarget { chart_version: checked.chart_version, digest }),
        tls: checked.tls,
        key: checked.key,
    })
}

/// The fields of a spec that the chart's values depend on, each of them valid, and what the Profile sets in their place.
struct CheckedSpec<'a> {
    key: Key,
    spec: &'a ClientAppSpec,
    hostname: &'a str,
    chart_version: Version,
    /// `None`: the chart's own.
    image: Option<Image>,
    tls: Option<TlsSource>,
    profile: ProfileLayer,
}

impl<'a> CheckedSpec<'a> {
    fn checked(app: &'a ClientApp, profile: Option<&StoredProfile>) -> Result<CheckedSpec<'a>, InvalidSpec> {
        let spec = &app.spec;
        let key = key(app)?;
        let hostname = hostname(&spec.hostname)?;
        let of_profile = profile.and_then(|profile| profile.as_ref().ok()?.defaults.chart_version.as_deref());
        let chart_version =
            chart_version(spec.chart_version.as_deref().or(of_profile).unwrap_or(DEFAULT_CHART_VERSION))?;
        let image = image(&spec.image)?;
        let tls = tls(&key, spec, profile)?;
        let mut checked =
            CheckedSpec { key, spec, hostname, chart_version, image, tls, profile: ProfileLayer::default() };
        checked.profile = match (&spec.profile, profile) {
            (None, _) => ProfileLayer::default(),
            (Some(name), None) => return Err(profile_missing(name)),
            (Some(name), Some(profile)) => profile_layer(name, profile, checked.reserved())?,
        };
        if checked.volume().is_some_and(|(size, _)| quantity::parse_positive(size).is_none()) {
            return Err(invalid("spec.persistence.size", "must be a quantity above zero such as 8Gi"));
        }
        Ok(checked)
    }

    /// Returns which keys only the operator sets.
    fn reserved(&self) -> Reserved<'_> {
        Reserved { with_database: self.spec.postgres.enabled, with_image: self.image.is_some(), tls: self.tls.as_ref() }
    }

    /// Returns size and StorageClass of the files' volume; `None`: no volume.
    fn volume(&self) -> Option<(&str, &str)> {
        let (of_spec, of_profile) = (&self.spec.persistence, &self.profile.persistence);
        let size = of_spec.size.as_deref().or(of_profile.size.as_deref()).unwrap_or(DEFAULT_SIZE);
        let is_enabled = of_spec.enabled.or(of_profile.enabled).unwrap_or(true);
        is_enabled.then_some((size, of_spec.storage_class_name.as_str()))
    }

    /// Merges the layers below the computed keys.
    fn layers(&self, user: &Value, config: &Config) -> Result<Value, InvalidSpec> {
        let of_tls = values::of_tls(self.tls.as_ref());
        let asked = values::merge([&config.base_values, &of_tls, &self.profile.values, user]);
        if let Some(image) = &self.image {
            values::check_registry(image, &asked).map_err(|problem| invalid("spec.image", problem))?;
        }
        Ok(asked)
    }
}

/// Returns namespace and name, from which all names of the app's objects are derived.
fn key(app: &ClientApp) -> Result<Key, InvalidSpec> {
    let key =
        Key::new(app.metadata.namespace.clone().unwrap_or_default(), app.metadata.name.clone().unwrap_or_default());
    // Some with longer names were installed before there was this limit.
    let is_installed = app.status.as_ref().is_some_and(|status| status.installed.is_some());
    if key.name.len() > if is_installed { MAX_RELEASE_NAME } else { MAX_NAME } {
        return Err(invalid("metadata.name", NAME_TOO_LONG));
    }
    if !is_label(&key.name) || key.name.starts_with(|first: char| first.is_ascii_digit()) {
        return Err(invalid(
            "metadata.name",
            "must be a DNS label: lower-case letters, digits and '-', beginning with a letter",
        ));
    }
    Ok(key)
}

/// Returns `spec.image`; `None`: the chart's own.
fn image(image: &str) -> Result<Option<Image>, InvalidSpec> {
    if image.is_empty() {
        return Ok(None);
    }
    Image::parse(image).map(Some).ok_or_else(|| {
        invalid("spec.image", "must be repository:tag or repository@sha256:<64 hex digits>, in lower case")
    })
}

fn admin_secret(key: &Key, spec: &ClientAppSpec) -> SecretSource {
    match &spec.admin_secret {
        Some(name) => SecretSource::Given(name.clone()),
        None => SecretSource::Generated(key.admin_secret()),
    }
}

/// The Secrets that the app's pods read, and the credentials in them, as far as they are known.
struct PodSecrets<'a> {
    admin: &'a SecretSource,
    redis: Option<&'a str>,
    database: Option<&'a values::DatabaseAddress>,
    credentials: &'a [Credentials],
}

impl PodSecrets<'_> {
    /// Returns the digest of all credentials.
    fn digest(&self) -> Result<String, Hold> {
        let secrets = [Some(self.admin.name()), self.redis, self.database.map(|database| database.secret.as_str())];
        known(self.credentials, secrets.into_iter().flatten())
    }

    /// Returns the digest of the Redis password, once it is known.
    fn redis_digest(&self) -> Option<String> {
        self.redis.and_then(|secret| known(self.credentials, [secret]).ok())
    }
}

/// Completes the chart's values with the computed keys, and returns the digest of the release that has them.
fn chart_values(
    checked: &CheckedSpec<'_>,
    asked: &Value,
    user: UserValues,
    access: &PodSecrets<'_>,
    config: &Config,
) -> Result<(DesiredValues, String), InvalidSpec> {
    let UserValues { merged: _, hidden, digests, salt, awaits } = user;
    let mail = match access.admin {
        // Values that are awaited may complete it.
        SecretSource::Generated(_) if awaits.is_none() => {
            values::mail(asked).map_err(|problem| invalid("spec.values", problem))?
        }
        _ => None,
    };
    let credentials = access.digest();
    let computed = values::computed(&values::Inputs {
        name: &checked.key.name,
        hostname: checked.hostname,
        admin_secret: access.admin.name(),
        ingress_class: checked.spec.ingress_class_name.as_deref(),
        tls: checked.tls.as_ref(),
        redis_secret: access.redis,
        database: access.database,
        persistence: checked.volume(),
        image: checked.image.clone(),
        replicas: checked.spec.replicas,
        trusted_domains: &values::trusted_domains(asked, &checked.key, config.chart.as_str(), checked.hostname),
        mail: mail.as_deref(),
        credentials: credentials.as_deref().ok(),
        redis_credentials: access.redis_digest().as_deref(),
    });
    let merged = values::without_autoscaler(values::merge([asked, &computed]));
    let awaits = awaits.or(credentials.err());
    let digest = release_digest(config, &checked.chart_version, &merged, awaits.is_none(), salt.as_ref());
    let replaced = values::replaced(&config.base_values, &merged);
    Ok((DesiredValues { merged: Values(merged), sources: digests, replaced, redactor: hidden, awaits }, digest))
}

/// Returns the digest by which a release is compared with the spec. No release has that of incomplete values.
fn release_digest(
    config: &Config,
    version: &Version,
    values: &Value,
    is_complete: bool,
    salt: Option<&Salt>,
) -> String {
    let (version, document) = (version.to_string(), values.to_string());
    let mut parts = vec![config.chart.as_str(), version.as_str(), document.as_str()];
    match (is_complete, salt) {
        (false, _) => parts.insert(0, "incomplete"),
        (true, Some(Salt(salt))) => parts.insert(0, salt),
        (true, None) => {}
    }
    digest(&parts)
}

fn data(app: &ClientApp) -> Result<DesiredData, InvalidSpec> {
    let spec = &app.spec;
    let restored = spec.postgres.restore.as_ref().and_then(|restore| restore.store.as_ref());
    Ok(DesiredData {
        deletion_policy: spec.deletion_policy,
        adopt: spec.postgres.adopt,
        without_volumes: without_volumes(&app.metadata),
        files: spec.persistence.backup.as_ref().map(|files| file_backup::desired(files, restored)).transpose()?,
    })
}

/// Returns the uids of the volumes without which the app goes on, as a user has confirmed.
pub(crate) fn without_volumes(app: &ObjectMeta) -> BTreeSet<String> {
    let uids = app.annotations.as_ref().and_then(|annotations| annotations.get(annotation::WITHOUT_VOLUME));
    let uids = uids.into_iter().flat_map(|uids| uids.split(',')).map(str::trim).filter(|uid| !uid.is_empty());
    uids.map(str::to_owned).collect()
}

/// Returns the digest of the credentials in these Secrets.
///
/// # Errors
/// One of them is not known yet. What decides whether helm may run looks at the Secrets only after that, and says more about those
/// that stay away.
fn known<'a>(credentials: &[Credentials], secrets: impl IntoIterator<Item = &'a str>) -> Result<String, Hold> {
    let digest_of = |secret: &str| {
        let found = credentials.iter().find(|known| known.secret == secret);
        found
            .map(|found| found.digest.as_str())
            .ok_or_else(|| Hold::new(Reason::Pending, format!("Secret {secret} has not been read yet")))
    };
    Ok(digest(&secrets.into_iter().map(digest_of).collect::<Result<Vec<_>, _>>()?))
}

struct UserValues {
    /// `spec.valuesFrom` and `spec.values`, merged.
    merged: Value,
    hidden: Redactor,
    /// Of the values from elsewhere, by object.
    digests: Vec<ValuesDigest>,
    /// Goes into the digest if there are values from elsewhere. The digest of other apps has none, as it always had.
    salt: Option<Salt>,
    awaits: Option<Hold>,
}

impl UserValues {
    /// Checks `spec.values`, then values from elsewhere alike: each layer, so that the message names it, and all of them together,
    /// because of their size.
    fn checked(spec: &ClientAppSpec, sources: &Sources, reserved: Reserved<'_>) -> Result<UserValues, InvalidSpec> {
        values::check_user_values(&spec.values, reserved).map_err(|problem| invalid("spec.values", problem))?;
        let refused =
            |problem: String| InvalidSpec { reason: Reason::ValuesInvalid, field: "spec.valuesFrom", problem };
        let inline = Value::Object(spec.values.clone());
        let (layers, salt, hidden) = match sources {
            Sources::Resolved { layers, salt, hidden } => (layers, salt, hidden.clone()),
            Sources::Pending(hold) => {
                let awaits = Some(hold.clone());
                return Ok(UserValues {
                    merged: inline,
                    hidden: Redactor::default(),
                    digests: vec![],
                    salt: None,
                    awaits,
                });
            }
            Sources::Invalid(problem) => return Err(refused(problem.clone())),
        };
        let none = Map::new();
        let check = |values: &Value| values::check_user_values(values.as_object().unwrap_or(&none), reserved);
        for Layer { origin, values, is_secret: _ } in layers.iter() {
            check(values).map_err(|problem| refused(format!("{origin}: {problem}")))?;
        }
        let merged = values::merge(layers.iter().map(|layer| &layer.values).chain([&inline]));
        let salt = (!layers.is_empty()).then(|| salt.clone());
        if salt.is_some() {
            check(&merged).map_err(|problem| refused(format!("merged with spec.values: {problem}")))?;
        }
        let digest_of = |Layer { origin, values, is_secret: _ }: &Layer| {
            let Salt(salt) = salt.as_ref()?;
            Some(ValuesDigest { of: origin.clone(), digest: digest(&[salt, origin, &values.to_string()]) })
        };
        let digests = layers.iter().filter_map(digest_of).collect();
        Ok(UserValues { merged, hidden, digests, salt, awaits: None })
    }
}

/// Holds what lies under an app's own spec.
struct ProfileLayer {
    values: Value,
    persistence: ProfilePersistence,
    /// True if pods of other namespaces can reach the namespaces created with it.
    open: bool,
    jobs: Option<JobSettings>,
}

impl Default for ProfileLayer {
    fn default() -> Self {
        ProfileLayer {
            values: Value::Object(serde_json::Map::new()),
            persistence: ProfilePersistence::default(),
            open: false,
            jobs: None,
        }
    }
}

fn profile_missing(name: &str) -> InvalidSpec {
    InvalidSpec {
        reason: Reason::ProfileMissing,
        field: "spec.profile",
        problem: format!("there is no Profile {name}: create it, or name another"),
    }
}

/// Returns the Profile's defaults as values, with its raw values merged over them.
fn profile_layer(name: &str, profile: &StoredProfile, reserved: Reserved<'_>) -> Result<ProfileLayer, InvalidSpec> {
    let refused = |problem: String| InvalidSpec {
        reason: Reason::ProfileInvalid,
        field: "spec.profile",
        problem: format!("Profile {name} is not valid: {problem}"),
    };
    let profile = profile.as_ref().map_err(|problem| refused(format!("it does not decode: {problem}")))?;
    let ProfileSpec { description: _, defaults, helm, namespace, rollout: _ } = profile;
    if defaults.tls.as_ref().is_some_and(|tls| !is_one(tls)) {
        return Err(refused(format!("defaults.tls: {ONE_OF_TLS}")));
    }
    if defaults.persistence.size.as_deref().is_some_and(|size| quantity::parse_positive(size).is_none()) {
        return Err(refused("defaults.persistence.size: must be a quantity above zero such as 10Gi".to_owned()));
    }
    if let Some(problem) = defaults.jobs.as_ref().and_then(JobSettings::problem) {
        return Err(refused(format!("defaults.jobs.{problem}")));
    }
    let written = values::of_profile(defaults);
    let of_defaults = written.as_object().cloned().unwrap_or_default();
    values::check_profile_values(&of_defaults, reserved)
        .map_err(|problem| refused(format!("defaults.apps: {problem}")))?;
    values::check_profile_values(&helm.values, reserved)
        .map_err(|problem| refused(format!("helm.values: {problem}")))?;
    let replicas = defaults.replica_count.map(|replicas| serde_json::json!({"replicaCount": replicas}));
    let raw = Value::Object(helm.values.clone());
    Ok(ProfileLayer {
        values: values::merge([&written, &replicas.unwrap_or(Value::Object(serde_json::Map::new())), &raw]),
        persistence: defaults.persistence.clone(),
        open: namespace.open,
        jobs: defaults.jobs.clone(),
    })
}

const ONE_OF_TLS: &str =
    "must have exactly one of issuer, secretName and terminatedElsewhere, and that can only be true";

fn is_one(AppTls { issuer, secret_name, terminated_elsewhere }: &AppTls) -> bool {
    let given = [issuer.is_some(), secret_name.is_some(), terminated_elsewhere.is_some()];
    given.into_iter().filter(|given| *given).count() == 1 && *terminated_elsewhere != Some(false)
}

/// Returns where the certificate comes from: by the spec, else by the Profile. Without an Ingress, a Profile's certificate is
/// not used.
fn tls(key: &Key, spec: &ClientAppSpec, profile: Option<&StoredProfile>) -> Result<Option<TlsSource>, InvalidSpec> {
    let has_ingress = spec.ingress_class_name.is_some();
    let of_profile = || profile?.as_ref().ok()?.defaults.tls.as_ref();
    let tls = match &spec.tls {
        Some(tls) if !is_one(tls) => return Err(invalid("spec.tls", ONE_OF_TLS)),
        Some(AppTls { terminated_elsewhere: None, .. }) if !has_ingress => {
            let problem = "issuer and secretName are for the Ingress: set ingressClassName as well, or terminatedElsewhere instead";
            return Err(invalid("spec.tls", problem));
        }
        Some(tls) => Some(tls),
        None => of_profile(),
    };
    let chosen = tls.map(|AppTls { issuer, secret_name, terminated_elsewhere: _ }| match (issuer, secret_name) {
        (Some(issuer), _) => TlsSource::Secret { name: key.tls_secret(), issuer: Some(issuer.clone()) },
        (None, Some(name)) => TlsSource::Secret { name: name.clone(), issuer: None },
        (None, None) => TlsSource::Elsewhere,
    });
    Ok(chosen.filter(|tls| has_ingress || *tls == TlsSource::Elsewhere))
}

fn is_dns_name(name: &str) -> bool {
    name.len() <= 253 && name.split('.').all(is_label)
}

/// Returns `spec.hostname` in the form in which claims of ClientApps are compared.
fn hostname(hostname: &str) -> Result<&str, InvalidSpec> {
    if is_dns_name(hostname) {
        return Ok(hostname);
    }
    const RULE: &str = "must be a DNS name in lower case, such as acme.example.com: letters, digits, '-' and '.', no wildcard, no trailing dot, at most 253 characters";
    Err(match as_dns(hostname) {
        Some(suggestion) => invalid("spec.hostname", format!("{RULE}; write {suggestion}")),
        None => invalid("spec.hostname", RULE),
    })
}

/// Returns what the user probably meant by capitals, an international name, or a trailing dot.
fn as_dns(hostname: &str) -> Option<String> {
    let hostname = hostname.trim();
    let name = idna::domain_to_ascii(hostname.strip_suffix('.').unwrap_or(hostname)).ok()?;
    is_dns_name(&name).then_some(name)
}

fn chart_version(version: &str) -> Result<Version, InvalidSpec> {
    Version::parse(version).map_err(|_| {
        invalid("spec.chartVersion", "must be one exact version such as 5.5.2: no range, no 'latest', no leading 'v'")
    })
}

/// Returns the ServiceAccount whose rights helm has. Not part of the digest: the account does not change what is installed.
pub(crate) fn account(spec: &ClientAppSpec) -> Result<AccountName, InvalidSpec> {
    let Some(name) = &spec.service_account_name else { return Ok(AccountName::default()) };
    AccountName::parse(name).ok_or_else(|| {
        invalid(
            "spec.serviceAccountName",
            "must be the name of a ServiceAccount: lower-case letters, digits, '-' and '.', beginning and ending with a letter or digit, at most 253 characters",
        )
    })
}

fn upgrade(app: &ClientApp) -> Result<DesiredUpgrade, InvalidSpec> {
    let Upgrade { backup, allow, foreign_lock_timeout: _, on_failure, retries, timeout } = &app.spec.upgrade;
    let postgres = &app.spec.postgres;
    let provider = database::provider(postgres.provider).filter(|_| postgres.enabled);
    if *backup && !provider.is_some_and(|provider| provider.backs_up(postgres)) {
        return Err(invalid(
            "spec.upgrade.backup",
            "this operator creates no database for the app that it could back up: set it to false, or with the provider cloudnativepg set spec.postgres.backup",
        ));
    }
    let allow = allow.as_deref().map(Version::parse).transpose();
    let allow = allow.map_err(|_| invalid("spec.upgrade.allow", "must be one exact version such as 5.5.2"))?;
    let timeout = duration::parse(timeout, SHORTEST_TIMEOUT..=LONGEST_TIMEOUT).ok_or_else(|| {
        invalid("spec.upgrade.timeout", "must be a duration such as 15m, at least 1m and at most 24h")
    })?;
    let spec = &app.spec;
    Ok(DesiredUpgrade {
        approval: spec.approval,
        approved: spec.approved.clone(),
        depends_on: spec.depends_on.clone(),
        test: test(&spec.test)?,
        backup: *backup,
        allow,
        foreign_lock_timeout: foreign_lock_timeout(app)?,
        on_failure: *on_failure,
        retries: (*retries).try_into().unwrap_or_default(),
        timeout,
    })
}

fn test(Test { enabled, timeout }: &Test) -> Result<Option<SignedDuration>, InvalidSpec> {
    let timeout = duration::parse(timeout, SHORTEST_TEST..=LONGEST_TEST)
        .ok_or_else(|| invalid("spec.test.timeout", "must be a duration such as 5m, at least 10s and at most 1h"))?;
    Ok(enabled.then_some(timeout))
}

/// Returns `spec.upgrade.foreignLockTimeout`.
///
/// # Errors
/// It is not a duration, or it is shorter than the clocks of two machines may differ.
pub(crate) fn foreign_lock_timeout(app: &ClientApp) -> Result<Option<SignedDuration>, InvalidSpec> {
    let Some(text) = &app.spec.upgrade.foreign_lock_timeout else { return Ok(None) };
    let problem = "must be a duration such as 30m or 2h, at least 5m and at most 720h";
    let parsed = duration::parse(text, SHORTEST_LOCK..=LONGEST_LOCK);
    parsed.map(Some).ok_or_else(|| invalid("spec.upgrade.foreignLockTimeout", problem))
}

const SHORTEST_TIMEOUT: SignedDuration = SignedDuration::from_mins(1);
const LONGEST_TIMEOUT: SignedDuration = SignedDuration::from_hours(24);
const SHORTEST_TEST: SignedDuration = SignedDuration::from_secs(10);
const LONGEST_TEST: SignedDuration = SignedDuration::from_hours(1);
const SHORTEST_LOCK: SignedDuration = SignedDuration::from_mins(5);
const LONGEST_LOCK: SignedDuration = SignedDuration::from_hours(720);

#[cfg(test)]
mod tests;
