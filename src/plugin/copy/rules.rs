//! Whether another ClientApp can be created from a dump, and what the user has to know of it. **Pure.**

use kube::ResourceExt as _;
use serde_json::{Value, json};

use super::super::restore::listed;
use super::spec::Names;
use crate::{
    crd::{ClientApp, Postgresql, Restore, label},
    plugin::connection::Flags,
};

/// Whether there is such a dump, as far as the cluster knows; what is in a bucket, the caller checks itself.
pub(super) fn has_dump(
    app: &ClientApp,
    database: Option<&Postgresql>,
    wanted: &Restore,
    flags: &Flags,
) -> Result<(), String> {
    let name = app.name_any();
    match (&wanted.store, database) {
        (Some(_), _) => Ok(()),
        (None, Some(database)) => listed(&name, database, wanted, flags),
        (None, None) => Err(format!(
            "{name} has no Postgresql, so the available dumps are unknown: create the other ClientApp yourself, with spec.postgres.restore and dumps of {}",
            wanted.place()
        )),
    }
}

/// The volume with the dumps, or the Secret that opens their bucket, and the label that says which database may be created from it.
pub(super) struct Holder<'a> {
    /// As `kubectl` spells it.
    pub(super) resource: &'a str,
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    pub(super) label: Option<&'a str>,
    /// Whether the Postgresql that the label names has its database.
    pub(super) is_spent: bool,
}

impl Holder<'_> {
    /// Whether the label is still to be set for this database, or why another user would miss it.
    pub(super) fn is_to_be_labelled(&self, database: &str, flags: &Flags) -> Result<bool, String> {
        let Holder { resource, namespace, name, label, is_spent } = self;
        match label {
            None => Ok(true),
            Some(to) if *to == database => Ok(false),
            // The operator reads it only until there is a database.
            Some(_) if *is_spent => Ok(true),
            Some(to) => Err(format!(
                "{resource} {namespace}/{name} is labelled for Postgresql {to}, which is not restored yet, and the label has room for one: wait until it is or, if it never will be, remove the label with {}, and run the same command again",
                flags.command(format!("kubectl label {resource} {name} {}-", label::RESTORE_TO))
            )),
        }
    }
}

/// The other app's database.
#[derive(Clone, Copy)]
pub(super) struct Database<'a> {
    /// Its host.
    pub(super) service: &'a str,
    /// Whether the hooks of the base values write it into the app's configuration: they do if the database's user is the same.
    pub(super) by_hooks: bool,
}

/// What is still to be done before the other app is of use. `archive`: the archive whose files it has.
pub(super) fn what_remains(
    Names { first, other }: Names<'_>,
    flags: &Flags,
    Database { service, by_hooks }: Database<'_>,
    replicas: Option<i32>,
    secret: Option<&str>,
    archive: Option<&str>,
) -> String {
    let patch: Value = json!({"spec": {"replicas": replicas}});
    let administrator = match secret {
        Some(secret) => {
            format!("Secret {secret} is a copy of the credentials that the administrator of {first} has now")
        }
        None => format!("clientapp/{other} uses the same spec.adminSecret as {first}"),
    };
    let why = match archive {
        Some(archive) => format!(", so that you can check its files, which are those of archive {archive}."),
        None => ": it does not have the app's files, and without them it would be installed anew.".to_owned(),
    };
    let copy = format!("Copy the files of {first} (crds/backups.md, \"The app's files\").");
    let set = format!("set dbhost to {service}: otherwise clientapp/{other} would change the database of {first}.");
    let check = match by_hooks {
        true => format!(
            "Check the values: at each start, the hooks of the base values set dbhost in config.php. If the values replace nextcloud.hooks, {set}"
        ),
        false => format!("In their config.php, {set}"),
    };
    let allow = flags.command(format!("kubectl patch clientapp {other} --type=merge -p '{patch}'"));
    let allow = format!("Let it have pods: {allow}");
    let steps = archive.is_none().then_some(copy).into_iter().chain([check, allow]);
    let steps: String = steps.enumerate().map(|(at, step)| format!("{}. {step}\n", at + 1)).collect();
    format!(
        "clientapp/{other} has no pods yet (spec.replicas: 0){why}
{steps}The restored database knows the users of {first} and their passwords at that time: {administrator}."
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::tests::flags;

    fn of<K: serde::de::DeserializeOwned>(value: Value) -> K {
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn whether_there_is_such_a_dump() {
        const DUMP: &str = "20260131T030000Z-x7k2p";
        let app: ClientApp = of(json!({"metadata": {"name": "acme"}, "spec": {"hostname": "a.example"}}));
        let database =
            |status: Value| -> Option<Postgresql> { Some(of(json!({"metadata": {}, "spec": {}, "status": status}))) };
        let dumps = || database(json!({"backup": {"dumps": [{"name": DUMP, "bytes": 1, "tables": 1}]}}));
        let restored = database(json!({"restored": {"dump": DUMP, "claim": "acme-pg-backup"}}));
        let claim = |from: &str| Restore::of_claim(from, "acme-pg-backup");
        let store = json!({"store": {"endpoint": "e", "bucket": "b", "credentialsSecret": {"name": "s"}, "path": "p"}});
        for (what, database, wanted, expected) in [
            ("it is listed", dumps(), claim(DUMP), Ok(())),
            ("the latest", dumps(), claim("latest"), Ok(())),
            ("another", dumps(), claim("20250131T030000Z-a"), Err("acme has no dump 20250131T030000Z-a: `kubectl")),
            (
                "none yet",
                database(json!({})),
                claim("latest"),
                Err("acme has no dump: `kubectl clientapp backup acme -n ns`"),
            ),
            ("the one that it is from is not listed yet", restored, claim(DUMP), Ok(())),
            ("the database is gone", None, claim(DUMP), Err("acme has no Postgresql")),
            ("and the dumps are in a bucket", None, of(store), Ok(())),
        ] {
            match (has_dump(&app, database.as_ref(), &wanted, &flags("ns")), expected) {
                (Ok(()), Ok(())) => {}
                (Err(why), Err(words)) => assert!(why.contains(words), "{what}: {why}"),
                (found, _) => panic!("{what}: {found:?}"),
            }
        }
    }

    #[test]
    fn a_label_for_another_database_stays_while_it_is_needed() {
        for (what, label, is_spent, expected) in [
            ("none", None, false, Ok(true)),
            ("its own", Some("then-pg"), false, Ok(false)),
            ("another's, which is restored", Some("before-pg"), true, Ok(true)),
            (
                "another's",
                Some("before-pg"),
                false,
                Err("pvc acme-pg-backup apps.bnerd-operator.local/restore-to- -n ns`"),
            ),
        ] {
            let holder = Holder { resource: "pvc", namespace: "ns", name: "acme-pg-backup", label, is_spent };
            match (holder.is_to_be_labelled("then-pg", &flags("ns")), expected) {
                (Ok(found), Ok(expected)) => assert_eq!(found, expected, "{what}"),
                (Err(why), Err(words)) => assert!(why.contains(words) && why.contains("before-pg"), "{what}: {why}"),
                (found, _) => panic!("{what}: {found:?}"),
            }
        }
    }

    #[test]
    fn what_the_user_has_to_do() {
        let names = Names { first: "acme", other: "then" };
        let standalone = Database { service: "then-pg", by_hooks: true };
        let percona = Database { service: "then-pg-pgbouncer", by_hooks: false };
        insta::assert_snapshot!(what_remains(names, &flags("ns"), standalone, Some(2), Some("then-admin-secret"), None), @r#"
        clientapp/then has no pods yet (spec.replicas: 0): it does not have the app's files, and without them it would be installed anew.
        1. Copy the files of acme (crds/backups.md, "The app's files").
        2. Check the values: at each start, the hooks of the base values set dbhost in config.php. If the values replace nextcloud.hooks, set dbhost to then-pg: otherwise clientapp/then would change the database of acme.
        3. Let it have pods: `kubectl patch clientapp then --type=merge -p '{"spec":{"replicas":2}}' -n ns`
        The restored database knows the users of acme and their passwords at that time: Secret then-admin-secret is a copy of the credentials that the administrator of acme has now.
        "#);
        insta::assert_snapshot!(what_remains(names, &flags("ns"), percona, None, None, Some("20260131T033000Z-p9d4f")), @r#"
        clientapp/then has no pods yet (spec.replicas: 0), so that you can check its files, which are those of archive 20260131T033000Z-p9d4f.
        1. In their config.php, set dbhost to then-pg-pgbouncer: otherwise clientapp/then would change the database of acme.
        2. Let it have pods: `kubectl patch clientapp then --type=merge -p '{"spec":{"replicas":null}}' -n ns`
        The restored database knows the users of acme and their passwords at that time: clientapp/then uses the same spec.adminSecret as acme.
        "#);
    }
}
