//! Holds what the operator knows of helm's versions (pure).

use std::path::PathBuf;

use semver::Version;

use super::{error::HelmUnavailable, message::summarize};

/// The oldest supported helm: 4.0.0 renamed flags and made server-side apply the default.
const MINIMUM: Version = Version::new(4, 0, 0);
/// The helm in the image, with which the tests run. Its output is in `e2e/fixtures`.
const TESTED: Version = Version::new(4, 3, 1);

/// Lists what matters to a cluster admin in versions older than these. Otherwise nothing that the operator uses differs: its flags, and the
/// messages in `parse` but one of a limit on charts, exist from the minimum on.
const OLDER: [(Version, &str); 1] = [
    // `verifyOwnershipBeforeDelete` in action/uninstall.go
    (
        Version::new(4, 3, 0),
        "its uninstall also deletes objects that belong to another release by now, or have lost Helm's marks",
    ),
];

/// Parses the output of `helm version --template '{{.Version}}'`: `v4.3.1`, or `v4.3` from a build without a version stamp.
pub(in crate::helm) fn usable(answer: &str, path: PathBuf) -> Result<Version, HelmUnavailable> {
    let answer = answer.trim();
    let text = answer.strip_prefix('v').unwrap_or(answer);
    let version = text.parse::<Version>().or_else(|_| format!("{text}.0").parse());
    match version {
        // A pre-release sorts before its release, so one of the minimum version is too old.
        Ok(found) if found < MINIMUM => Err(HelmUnavailable::TooOld { found, minimum: MINIMUM }),
        Ok(found) => Ok(found),
        Err(_) => Err(HelmUnavailable::NotHelm { path, said: summarize(answer).chars().take(80).collect() }),
    }
}

/// Returns sentences for the log about a usable version that is not as well known as the tested one; a patch release is.
pub(crate) fn cautions(version: &Version) -> Vec<String> {
    let mut cautions = Vec::new();
    if (version.major, version.minor) > (TESTED.major, TESTED.minor) {
        cautions.push(format!(
            "helm {version} is newer than this operator knows: it works with {MINIMUM} to {}.{}, and is tested with {TESTED}; use that version if helm runs fail",
            TESTED.major, TESTED.minor
        ));
    }
    let older = OLDER.into_iter().filter(|(than, _)| version < than);
    cautions.extend(older.map(|(than, what)| format!("helm {version} is older than {than}: {what}; use {TESTED}")));
    cautions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn which_versions_are_used_and_with_what_caution() {
        for (answer, expected) in [
            ("v2.17.0", "refused"),
            ("v3.22.0", "refused"),
            ("v4.0.0-rc.1", "refused"),
            ("v4.0.0", "older"),
            ("v4.2.4\n", "older"),
            ("v4.3.0-rc.1", "older"),
            ("v4.3.0", ""),
            ("v4.3", ""),
            ("v4.3.1", ""),
            ("v4.3.9", ""),
            ("4.3.1+vendor", ""),
            ("v4.4.0-rc.1", "newer"),
            ("v4.99.0", "newer"),
            ("v5.0.0", "newer"),
        ] {
            let result = usable(answer, PathBuf::new()).map(|version| cautions(&version));
            match result {
                Err(error) => assert!(expected == "refused" && error.to_string().contains("is too old"), "{error}"),
                Ok(cautions) => {
                    assert_eq!(cautions.len(), usize::from(!expected.is_empty()), "{answer}: {cautions:?}");
                    assert!(
                        cautions.iter().all(|caution| caution.contains(&format!(" is {expected} than "))),
                        "{cautions:?}"
                    );
                }
            }
        }
        insta::assert_snapshot!(cautions(&Version::new(5, 0, 0)).concat(), @"helm 5.0.0 is newer than this operator knows: it works with 4.0.0 to 4.3, and is tested with 4.3.1; use that version if helm runs fail");
        insta::assert_snapshot!(cautions(&Version::new(4, 2, 4)).concat(), @"helm 4.2.4 is older than 4.3.0: its uninstall also deletes objects that belong to another release by now, or have lost Helm's marks; use 4.3.1");
    }

    #[test]
    fn the_tested_version_is_the_pinned_one() {
        let pinned = include_str!("../../../e2e/tools/helm/go.mod");
        assert!(pinned.contains(&format!("helm.sh/helm/v4 v{TESTED} ")), "{TESTED} is not in e2e/tools/helm/go.mod");
    }
}
