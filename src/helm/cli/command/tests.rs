use proptest::prelude::*;

use super::*;

const FLAGS: Flags = Flags { history_max: 5, hook_timeout: Duration::from_secs(300) };

fn upgrade() -> Upgrade {
    Upgrade {
        release: "my-app".parse().unwrap(),
        namespace: "tenant-1".parse().unwrap(),
        account: AccountName::default(),
        chart: "/cache/sha256/0123.tgz".into(),
        values: "password: canary\n".to_owned(),
        redactor: Redactor::default(),
        labels: ReleaseLabels {
            digest: "d".repeat(63).parse().unwrap(),
            holder: "operator-0".parse().unwrap(),
            operation: "01K0".parse().unwrap(),
            revision: 7,
        },
    }
}

#[test]
fn argv() {
    insta::assert_snapshot!(HelmCommand::upgrade(&upgrade(), FLAGS), @"helm upgrade --install my-app /cache/sha256/0123.tgz --namespace tenant-1 --values - --reset-values --history-max 5 --timeout 300s --labels apps.bnerd-operator.local/digest=ddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddddd,apps.bnerd-operator.local/holder=operator-0,apps.bnerd-operator.local/operation=01K0,apps.bnerd-operator.local/revision=7 --hide-notes --disable-openapi-validation --server-side=true --force-conflicts");

    let Upgrade { release, namespace, account, .. } = upgrade();
    let request = Uninstall { release, namespace, account };
    insta::assert_snapshot!(HelmCommand::uninstall(&request, FLAGS), @"helm uninstall my-app --namespace tenant-1 --cascade background --timeout 300s");
    insta::assert_snapshot!(HelmCommand::version(), @"helm version --template '{{.Version}}'");
    let pull_with = |source: &str, credentials: &Credentials| {
        let (chart, version) = ("nextcloud".parse().unwrap(), semver::Version::new(5, 5, 2));
        HelmCommand::pull(&source.parse().unwrap(), &chart, &version, Path::new("/private/pull"), credentials)
            .map(|pull| pull.to_string())
    };
    let pull = |source| pull_with(source, &Credentials::default());
    insta::assert_snapshot!(pull("https://nextcloud.github.io/helm/").unwrap(), @"helm pull charts/nextcloud --repository-config /private/pull/repository/config.yaml --repository-cache /private/pull/repository --version 5.5.2 --destination /private/pull");
    insta::assert_snapshot!(pull("oci://registry.example.com/charts").unwrap(), @"helm pull oci://registry.example.com/charts/nextcloud --version 5.5.2 --destination /private/pull");
    insta::assert_snapshot!(pull("oci://127.0.0.1:5000/charts").unwrap(), @"helm pull oci://127.0.0.1:5000/charts/nextcloud --plain-http --version 5.5.2 --destination /private/pull");
    assert_eq!(pull("/charts"), None);

    let credentials = Credentials {
        login: Some(("tenant".to_owned(), "canary".to_owned())),
        registry_config: Some("/etc/charts/.dockerconfigjson".into()),
        ca: Some("/etc/charts/ca.crt".into()),
        certificate: Some(("/etc/charts/tls.crt".into(), "/etc/charts/tls.key".into())),
        keyring: Some("/etc/keyring/charts.gpg".into()),
        redactor: Redactor::default(),
    };
    let fetched = HelmCommand::fetch_index("https://charts.example.com", Path::new("/private/pull"), &credentials);
    insta::assert_snapshot!(fetched, @"helm repo add charts https://charts.example.com --ca-file /etc/charts/ca.crt --cert-file /etc/charts/tls.crt --key-file /etc/charts/tls.key --username=tenant --password-stdin --repository-config /private/pull/repository/config.yaml --repository-cache /private/pull/repository");
    assert_eq!(fetched.into_parts().1.unwrap(), b"canary\n");
    insta::assert_snapshot!(pull_with("https://charts.example.com", &credentials).unwrap(), @"helm pull charts/nextcloud --repository-config /private/pull/repository/config.yaml --repository-cache /private/pull/repository --verify --keyring /etc/keyring/charts.gpg --version 5.5.2 --destination /private/pull");
    insta::assert_snapshot!(pull_with("oci://127.0.0.1:5000/charts", &credentials).unwrap(), @"helm pull oci://127.0.0.1:5000/charts/nextcloud --ca-file /etc/charts/ca.crt --cert-file /etc/charts/tls.crt --key-file /etc/charts/tls.key --registry-config /etc/charts/.dockerconfigjson --verify --keyring /etc/keyring/charts.gpg --version 5.5.2 --destination /private/pull");
    insta::assert_snapshot!(pull_with("/charts", &credentials).unwrap(), @"helm verify /private/pull/nextcloud-5.5.2.tgz --keyring /etc/keyring/charts.gpg");
    insta::assert_snapshot!(HelmCommand::fetch_index("https://nextcloud.github.io/helm", Path::new("/private/pull"), &Credentials::default()), @"helm repo add charts https://nextcloud.github.io/helm --repository-config /private/pull/repository/config.yaml --repository-cache /private/pull/repository");

    // A timeout has whole seconds, and is never none.
    assert_eq!([Duration::from_millis(1500), Duration::ZERO].map(go_duration), ["1s", "1s"]);
}

#[test]
fn values_are_in_no_argv() {
    let request = upgrade();
    let command = HelmCommand::upgrade(&request, FLAGS);
    assert!(!command.to_string().contains("canary"));
    assert_eq!(command.into_parts().1.unwrap(), request.values.as_bytes());
}

#[test]
fn names_that_could_act_are_refused() {
    let bad = ["", "-x", "--set", "x-", "a b", "a\0", "a\nb", "A", "ä", "a,b=c", "{{x}}", "a/b", "..", "\u{202e}a"];
    for text in bad {
        assert!(text.parse::<ReleaseName>().is_err(), "{text:?}");
        assert!(text.parse::<Namespace>().is_err(), "{text:?}");
    }
    for text in ["", "-x", "a/b", "../a", "a b", "a,b", "ä"] {
        assert!(text.parse::<ChartName>().is_err(), "{text:?}");
    }
    for text in ["", "-x", "x-", "null", "a,b", "a=b", "a/b", &"d".repeat(64)] {
        assert!(text.parse::<LabelValue>().is_err(), "{text:?}");
    }
    assert!("a.b-c".parse::<ReleaseName>().is_ok() && "a.b".parse::<Namespace>().is_err());
    assert!("a".repeat(53).parse::<ReleaseName>().is_ok() && "a".repeat(54).parse::<ReleaseName>().is_err());
    assert!("x".repeat(1 << 20).parse::<ReleaseName>().unwrap_err().to_string().len() < 300);
}

proptest! {
    /// Whatever passes as a name is one inert argument.
    #[test]
    fn accepted_names_are_inert(text in "\\PC{0,70}|[-a-z0-9.,={}_A-Z]{0,70}") {
        let accepted = [
            text.parse::<ReleaseName>().is_ok(),
            text.parse::<Namespace>().is_ok(),
            text.parse::<ChartName>().is_ok(),
            text.parse::<LabelValue>().is_ok(),
        ];
        if accepted.contains(&true) {
            prop_assert!(!text.starts_with('-'));
            prop_assert!(text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)));
        }
    }
}
