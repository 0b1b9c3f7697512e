//! Settings of the Jobs that back up and restore: part of a `Postgresql`'s and a ClientApp's `backup`.

use jiff::SignedDuration;
use kube::KubeSchema;
use serde::{Deserialize, Serialize};
use serde_with::skip_serializing_none;
use utoipa::ToSchema;

use super::{Resources, duration};

/// Settings of the Jobs that back up and restore.
#[skip_serializing_none]
#[derive(KubeSchema, ToSchema, Clone, Debug, Default, Deserialize, Serialize, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct JobSettings {
    /// Requests and limits of each container of these Jobs, which a namespace with a ResourceQuota for cpu or memory needs. A container
    /// with a PostgreSQL server has those of the servers, if there are any. Absent: none.
    pub resources: Option<Resources>,

    /// How long a dump, a drill, or a Job for files may take, such as `24h`, before it counts as failed. Absent: `6h`.
    #[schemars(length(max = 16))]
    #[x_kube(validation = Rule::new("self.matches('^([0-9]+(h|m|s))+$') && duration(self) >= duration('5m') && duration(self) <= duration('168h')").message("must be a duration such as 24h, at least 5m and at most 168h"))]
    pub timeout: Option<String>,

    /// ServiceAccount in this namespace of the Jobs that dump, and of those for files: for its image pull Secrets, for policies that
    /// tell pods by their account, and for the identity that a cloud gives to it, if the store's Secret has no keys. No token for the API
    /// server is mounted. Absent: `default`, which Jobs that restore dumps always have, because they run what users of the database wrote.
    #[schemars(length(min = 1, max = 253), regex(pattern = super::OBJECT_NAME))]
    pub service_account_name: Option<String>,
}

const SHORTEST: SignedDuration = SignedDuration::from_mins(5);
const LONGEST: SignedDuration = SignedDuration::from_hours(168);

impl JobSettings {
    /// Default of `timeout`.
    const TIMEOUT: SignedDuration = SignedDuration::from_hours(6);

    /// Returns why they are invalid, beginning with the field at fault.
    pub fn problem(&self) -> Option<String> {
        if let Some(problem) = self.resources.as_ref().and_then(Resources::problem) {
            return Some(format!("resources.{problem}"));
        }
        let text = self.timeout.as_deref()?;
        let is_valid = duration::parse(text, SHORTEST..=LONGEST).is_some();
        (!is_valid).then(|| "timeout: must be a duration such as 24h, at least 5m and at most 168h".to_owned())
    }

    /// Returns the settings of an app: its own, and those of its Profile for what it leaves open.
    pub fn over(own: Option<&JobSettings>, profile: Option<&JobSettings>) -> Option<JobSettings> {
        let (Some(own), Some(profile)) = (own, profile) else { return own.or(profile).cloned() };
        let JobSettings { resources, timeout, service_account_name } = own.clone();
        Some(JobSettings {
            resources: resources.or_else(|| profile.resources.clone()),
            timeout: timeout.or_else(|| profile.timeout.clone()),
            service_account_name: service_account_name.or_else(|| profile.service_account_name.clone()),
        })
    }

    /// Returns the seconds after which a Job counts as failed.
    pub fn deadline_seconds(settings: Option<&JobSettings>) -> i64 {
        let timeout = settings.and_then(|settings| duration::parse(settings.timeout.as_deref()?, SHORTEST..=LONGEST));
        timeout.unwrap_or(Self::TIMEOUT).as_secs()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_app_goes_before_its_profile() {
        let of = |settings: serde_json::Value| serde_json::from_value::<Option<JobSettings>>(settings).unwrap();
        let profile = json!({"timeout": "24h", "serviceAccountName": "dumper"});
        for (own, profile, expected) in [
            (json!(null), json!(null), json!(null)),
            (json!({"timeout": "1h"}), json!(null), json!({"timeout": "1h"})),
            (json!(null), profile.clone(), profile.clone()),
            (json!({}), profile.clone(), profile.clone()),
            (json!({"timeout": "1h"}), profile.clone(), json!({"timeout": "1h", "serviceAccountName": "dumper"})),
            (
                json!({"resources": {"limits": {"cpu": "1"}}, "serviceAccountName": "own"}),
                profile,
                json!({"resources": {"limits": {"cpu": "1"}}, "timeout": "24h", "serviceAccountName": "own"}),
            ),
        ] {
            let found = JobSettings::over(of(own.clone()).as_ref(), of(profile).as_ref());
            assert_eq!(json!(found), json!(of(expected)), "{own}");
        }
    }

    #[test]
    fn timeouts() {
        for (settings, problem, seconds) in [
            (json!({}), None, 21600),
            (json!({"timeout": "24h"}), None, 86400),
            (json!({"timeout": "1h30m"}), None, 5400),
            (json!({"timeout": "4m"}), Some("timeout: must be"), 21600),
            (json!({"timeout": "169h"}), Some("timeout: must be"), 21600),
            (json!({"timeout": "1 day"}), Some("timeout: must be"), 21600),
            (json!({"resources": {"limits": {"cpu": "much"}}}), Some("resources.limits.cpu"), 21600),
        ] {
            let read: JobSettings = serde_json::from_value(settings.clone()).unwrap();
            let found = read.problem();
            assert_eq!(found.as_deref().map(|found| &found[..problem.map_or(0, str::len)]), problem, "{settings}");
            assert_eq!(JobSettings::deadline_seconds(Some(&read)), seconds, "{settings}");
        }
        assert_eq!(JobSettings::deadline_seconds(None), 21600);
    }
}
