//! The chart that an app's data ran with last. **Pure.**

use super::{release::ReleaseView, types::CachedChart};
use crate::crd::{ClientAppStatus, InstalledChart, Release};

/// Returns the chart that last ran with the app's data: as recorded now, or as an earlier version of the operator recorded it.
pub(crate) fn installed(recorded: &ClientAppStatus) -> Option<InstalledChart> {
    let of_release = || {
        let Release { chart, chart_version, app_version, chart_digest, .. } = recorded.release.clone()?;
        let (name, version, digest) = (chart?, chart_version?, chart_digest?);
        Some(InstalledChart { name, version, app_version, digest })
    };
    recorded.installed.clone().or_else(of_release)
}

/// Returns the same after this observation: the chart of the last attempt, if Helm's storage shows that it succeeded. The
/// attempt was recorded before helm started, so that nothing is forgotten even if helm outlives the operator. This comes before
/// any decision, since the spec may name another chart by then.
pub(crate) fn installed_now(release: Option<&ReleaseView>, recorded: &ClientAppStatus) -> Option<InstalledChart> {
    let attempt = recorded.last_attempt.as_ref();
    let attempt = attempt.filter(|attempt| release.is_some_and(|release| release.is_deployed_as(&attempt.digest)));
    attempt.and_then(|attempt| attempt.chart.clone()).or_else(|| installed(recorded))
}

/// Returns the message if this chart differs from the chart that was installed as the same version before.
pub(crate) fn digest_changed(installed: Option<&InstalledChart>, chart: &CachedChart) -> Option<String> {
    let InstalledChart { name: _, version: before, app_version: _, digest: installed } = installed?;
    let CachedChart { chart, version, app_version: _, digest } = chart;
    (*before == version.to_string() && installed != digest).then(|| {
        format!(
            "chart {chart} {version} has sha256 {digest}, but {installed} was installed as this version before: nothing is installed; publish the change under a new version"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        clientapp::{
            fixtures::{attempt, chart, release},
            observed::release::ReleasePhase,
        },
        crd::Attempt,
    };

    #[test]
    fn the_installed_chart_survives_changes_of_the_release() {
        let last_attempt = Attempt { chart: Some(chart("5.5.3", None)), ..attempt("d") };
        let recorded = ClientAppStatus {
            installed: Some(chart("5.5.2", None)),
            last_attempt: Some(last_attempt),
            ..ClientAppStatus::default()
        };
        let version = |release: Option<&ReleaseView>, recorded: &ClientAppStatus| {
            installed_now(release, recorded).map(|chart| chart.version).unwrap()
        };
        for (release, expected) in [
            // The status after the run was never written: the intent and Helm's storage are enough.
            (Some(release("d")), "5.5.3"),
            (Some(ReleaseView { phase: ReleasePhase::Failed, ..release("d") }), "5.5.2"),
            (Some(ReleaseView { managed_digest: None, ..release("d") }), "5.5.2"),
            (Some(release("other")), "5.5.2"),
            (None, "5.5.2"),
        ] {
            assert_eq!(version(release.as_ref(), &recorded), expected, "{release:?}");
        }
        // As an earlier version of the operator left it.
        let [chart, chart_version, chart_digest] = ["nextcloud", "5.5.1", "sha"].map(|word| Some(word.to_owned()));
        let before = Release { chart, chart_version, chart_digest, ..Release::default() };
        assert_eq!(version(None, &ClientAppStatus { release: Some(before), ..ClientAppStatus::default() }), "5.5.1");
    }
}
