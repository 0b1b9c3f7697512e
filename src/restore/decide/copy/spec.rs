//! Builds the spec of a ClientApp that is created from a backup of another. Pure.
//!
//! The two must neither collide nor share anything that one of them changes. Structs are destructured without `..`, so that a new field
//! does not compile until it is decided here.

use crate::crd::{
    Backup, ClientAppSpec, CloudNativePgDataSource, CloudNativePgOptions, DriftIgnore, PerconaDataSource,
    PerconaOptions, Persistence, Postgres, Restore, Upgrade,
};

/// Names what the new database is created from.
#[derive(Clone, Debug)]
pub(super) enum Source {
    /// A dump of a Postgresql.
    Dump(Restore),
    /// The backups of a PerconaPGCluster.
    Cluster(PerconaDataSource),
    /// The backups of a Cluster of CloudNativePG, in the bucket that both have.
    CloudNativePg(CloudNativePgDataSource),
}

/// Holds the names of the two ClientApps.
#[derive(Clone, Copy, Debug)]
pub(super) struct Names<'a> {
    pub(super) first: &'a str,
    pub(super) other: &'a str,
}

/// Returns the spec of the other ClientApp. It is suspended until its administrator's Secret exists.
pub(super) fn copied(of: ClientAppSpec, names: Names<'_>, hostname: &str, source: &Source) -> ClientAppSpec {
    let ClientAppSpec {
        hostname: _,
        chart_version,
        // A user's own Secret serves both; a generated one is copied.
        admin_secret,
        ingress_class_name,
        // An issuer gives each app a certificate of its own.
        tls,
        profile,
        image,
        // The app's files follow, if at all, and Nextcloud without its config.php would begin an installation, into the restored database.
        replicas: _,
        // Each release has a Redis of its own.
        redis,
        postgres,
        // Each release has a volume of its own.
        persistence,
        service_account_name,
        upgrade,
        approval,
        // That is a plan of the first.
        approved: _,
        test,
        depends_on,
        drift,
        drift_ignore,
        // They are only read.
        values_from,
        // They cannot name objects of the release, and the operator refuses a host that another ClientApp has.
        values,
        suspend: _,
        deletion_policy,
    } = of;
    ClientAppSpec {
        hostname: hostname.to_owned(),
        chart_version,
        admin_secret,
        ingress_class_name,
        tls,
        profile,
        image,
        replicas: Some(0),
        redis,
        postgres: database(postgres, source),
        persistence: volume(persistence),
        service_account_name,
        upgrade: upgrades(upgrade),
        approval,
        approved: None,
        test,
        depends_on,
        drift,
        drift_ignore: drift_ignore.into_iter().map(|entry| ignored(entry, names)).collect(),
        values_from,
        values,
        suspend: true,
        deletion_policy,
    }
}

fn database(of: Postgres, source: &Source) -> Postgres {
    let Postgres {
        enabled,
        provider,
        version,
        storage_size,
        storage_class_name,
        instances,
        // What an earlier ClientApp of the first name has left is not the other's.
        adopt: _,
        backup,
        restore: _,
        percona,
        cloudnativepg,
        resources,
        parameters,
        tls,
        // Both would write into one database.
        external: _,
    } = of;
    let pooler = cloudnativepg.and_then(|options| options.pooler);
    let (restore, percona, cloudnativepg) = match source {
        Source::Dump(dump) => (Some(dump.clone()), None, None),
        Source::Cluster(cluster) => (None, Some(options(percona.unwrap_or_default(), cluster)), None),
        Source::CloudNativePg(source) => {
            let options = CloudNativePgOptions { cluster: None, data_source: Some(source.clone()), pooler };
            (None, None, Some(options))
        }
    };
    Postgres {
        enabled,
        provider,
        version,
        storage_size,
        storage_class_name,
        instances,
        adopt: false,
        backup: backup.and_then(dumps),
        restore,
        percona,
        cloudnativepg,
        resources,
        parameters,
        tls,
        external: None,
    }
}

/// Dumps onto a volume of its own and, since objects are named after the Postgresql, into the same bucket.
fn dumps(of: Backup) -> Option<Backup> {
    let Backup { schedule, request: _, keep, size, on_delete, drill, drill_store, store, jobs } = of;
    // The schema refuses one that never makes a dump.
    let makes_dumps = schedule.is_some() || on_delete;
    makes_dumps.then_some(Backup { schedule, request: None, keep, size, on_delete, drill, drill_store, store, jobs })
}

/// Archives of its files go into the same bucket, since objects are named after the ClientApp.
fn volume(of: Persistence) -> Persistence {
    let Persistence { enabled, size, storage_class_name, backup } = of;
    Persistence { enabled, size, storage_class_name, backup }
}

/// Its backups are on a volume of its own, and deleted with it: a repository is permanent, and the options in the Secret are numbered
/// for the first cluster.
fn options(of: PerconaOptions, source: &PerconaDataSource) -> PerconaOptions {
    let PerconaOptions { repository: _, schedules, keep, data_source: _ } = of;
    PerconaOptions { repository: None, schedules, keep, data_source: Some(source.clone()) }
}

fn upgrades(of: Upgrade) -> Upgrade {
    // What is allowed once is allowed to the first.
    let Upgrade { backup, allow: _, foreign_lock_timeout, on_failure, retries, timeout } = of;
    Upgrade { backup, allow: None, foreign_lock_timeout, on_failure, retries, timeout }
}

/// The names of a release's objects begin with the release's name.
fn ignored(of: DriftIgnore, Names { first, other }: Names<'_>) -> DriftIgnore {
    let DriftIgnore { kind, name, paths } = of;
    let renamed = |name: String| match name.strip_prefix(first) {
        Some(rest) if rest.is_empty() || rest.starts_with('-') => format!("{other}{rest}"),
        _ => name,
    };
    DriftIgnore { kind, name: name.map(renamed), paths }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn made(spec: Value, source: &Source) -> Value {
        let spec: ClientAppSpec = serde_json::from_value(spec).unwrap();
        json!(copied(spec, Names { first: "acme", other: "then" }, "then.example.com", source))
    }

    fn dump() -> Source {
        Source::Dump(Restore::of_claim("20260131T030000Z-x7k2p", "acme-pg-backup"))
    }

    /// Every field is set, and most of them not to their default.
    #[test]
    fn every_field() {
        let bucket = json!({
            "endpoint": "https://s3.example.com", "bucket": "dumps", "region": "eu", "prefix": "production",
            "credentialsSecret": {"name": "s3"}, "caSecret": {"name": "ca"}, "keep": {"last": 3},
            "passwordSecret": {"name": "restic"},
        });
        let archives =
            json!({"endpoint": "https://s3.example.com", "bucket": "files", "credentialsSecret": {"name": "s3"}});
        let spec = json!({
            "hostname": "acme.example.com", "chartVersion": "5.5.3", "adminSecret": "mine",
            "ingressClassName": "traefik", "profile": "gold", "image": "a:b", "replicas": 3, "redis": {"enabled": false},
            "postgres": {
                "enabled": true, "provider": "standalone", "version": "17", "storageSize": "5Gi",
                "storageClassName": "fast", "instances": 2, "adopt": true,
                "backup": {"schedule": "@daily", "request": "once", "keep": 9, "size": "9Gi", "onDelete": true,
                    "drill": "@weekly", "drillStore": {"size": "7Gi"}, "store": bucket},
                "restore": {"claim": "earlier"}, "resources": {"requests": {"cpu": "1"}},
                "parameters": {"max_connections": "200"}, "tls": {"required": true},
            },
            "persistence": {"enabled": true, "size": "20Gi", "storageClassName": "fast",
                "backup": {"schedule": "@daily", "store": archives, "user": 82}},
            "serviceAccountName": "helm",
            "upgrade": {"backup": true, "allow": "5.5.2", "foreignLockTimeout": "1h", "onFailure": "Stop", "retries": 1,
                "timeout": "20m"},
            "dependsOn": [{"kind": "Postgresql", "name": "shared"}], "drift": "Report",
            "driftIgnore": [
                {"kind": "Deployment", "name": "acme-nextcloud", "paths": ["/spec/replicas"]},
                {"kind": "Service", "name": "acmes", "paths": ["/spec"]},
                {"kind": "Secret", "paths": ["/data"]},
            ],
            "valuesFrom": [{"kind": "Secret", "name": "smtp"}], "values": {"cronjob": {"enabled": true}},
            "suspend": false, "deletionPolicy": "Retain",
        });
        insta::assert_snapshot!(serde_yaml::to_string(&made(spec, &dump())).unwrap());
    }

    #[test]
    fn where_the_database_comes_from() {
        let of = |postgres: Value, source: &Source| {
            made(json!({"hostname": "a.example", "postgres": postgres}), source)["postgres"].clone()
        };
        // A ClientAppBackup does not need `backup`.
        let on_request = of(json!({"provider": "standalone", "backup": {"request": "once"}}), &dump());
        assert_eq!(on_request.get("backup"), None);
        let bucket = json!({
            "endpoint": "http://e", "bucket": "dumps", "credentialsSecret": {"name": "s3"}, "path": "prod/ns/acme-pg",
            "passwordSecret": {"name": "restic"},
        });
        let store = Source::Dump(Restore::of_store("latest", serde_json::from_value(bucket).unwrap()));
        let restore = of(json!({"provider": "standalone"}), &store)["restore"].clone();
        assert_eq!((&restore["from"], &restore["store"]["path"]), (&json!("latest"), &json!("prod/ns/acme-pg")));
        assert_eq!(restore["store"]["passwordSecret"], json!({"name": "restic", "key": "password"}));

        let cluster: PerconaDataSource =
            serde_json::from_value(json!({"cluster": "acme-pg", "backup": "20260131-030000F"})).unwrap();
        let repository = json!({"gcs": {"bucket": "backups"}, "secretName": "s", "path": "/acme"});
        let earlier = json!({"cluster": "earlier-pg"});
        let percona =
            json!({"repository": repository, "schedules": {"full": "@weekly"}, "keep": 3, "dataSource": earlier});
        let source = Source::Cluster(cluster);
        let made = of(json!({"percona": percona}), &source);
        let expected = json!({
            "schedules": {"full": "@weekly"}, "keep": 3,
            "dataSource": {"cluster": "acme-pg", "backup": "20260131-030000F"},
        });
        assert_eq!((&made["percona"], made.get("restore")), (&expected, None));
        assert_eq!(of(json!({}), &source)["percona"]["dataSource"], expected["dataSource"]);

        // Its own archive is in the same bucket, under another name.
        let bucket = json!({"endpoint": "http://e", "bucket": "pg", "credentialsSecret": {"name": "s3"}});
        let postgres = json!({
            "provider": "cloudnativepg", "backup": {"schedule": "@daily", "store": bucket},
            "cloudnativepg": {"cluster": "orders", "dataSource": {"serverName": "earlier"}, "pooler": {"poolMode": "transaction"}},
        });
        let expected = json!({"serverName": "acme-pg-5f0c2c0e", "backup": "20260131T030000"});
        let made = of(postgres, &Source::CloudNativePg(serde_json::from_value(expected.clone()).unwrap()));
        let pooler = json!({"instances": 1, "poolMode": "transaction"});
        assert_eq!(made["cloudnativepg"], json!({"dataSource": expected, "pooler": pooler}));
        assert_eq!((&made["backup"]["store"]["bucket"], made.get("restore")), (&json!("pg"), None));
    }
}
