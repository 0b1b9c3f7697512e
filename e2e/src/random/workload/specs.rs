//! One sequence: an object is created with little, changed at random, and compared with what its last spec alone gives;
//! then its first spec is put back. An **effect**.

pub mod kind;
pub mod schema;

use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context as _, Result};
use derive_more::Display;
use http::Method;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PostParams;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use self::kind::Kind;
use self::schema::{Mutation, Schema};
use crate::lab::{Apart, IMAGE, Tenant};
use crate::postgres::PASSWORD;
use crate::random::disturbance::operators::{Operators, Remains};
use crate::random::oracle::convergence::{End, converged, is_past};
use crate::random::oracle::evidence::{Evidence, leaks};
use crate::random::oracle::state::differences;
use crate::random::oracle::{Condition, Oracle, Violation, is_current};
use crate::random::report::{Done, Ran};
use crate::random::requests::{Answer, MERGE, WHOLE, ask};
use crate::random::stage::{Stage, at_rest, database, database_name, postgres};
use crate::wait::within;

/// How many changes a sequence has.
const CHANGES: RangeInclusive<usize> = 5..=8;
/// How long everything may take to come to rest.
const REST: Duration = Duration::from_secs(150);
/// How long nothing has to change before that counts as rest, and how long while the object says that work is in
/// progress: some of that never ends here, as with a pod that no node takes.
const STILL: Duration = Duration::from_secs(3);
const STILL_AT_WORK: Duration = Duration::from_secs(10);
/// How long after its end state another may still be reached.
const CONVERGED: Duration = Duration::from_secs(60);
/// A look lists all kinds.
const LOOK: Duration = Duration::from_secs(1);
/// How many requests an operator may send in [`STILL`] for an object that is not Ready; for one that is, none.
const RETRIES: usize = 30;
/// The object, and the app that names it where it is a Profile.
const NAME: &str = "acme";
const TABLES: &str = "people, others";
/// The name in sequences of the Profile, whose own is that of the namespace.
const CLASS: &str = "class";
/// In the Secret that specs may name.
const CANARY: &str = "canary-7d20-in-secrets-only";

/// One change, and whether everything comes to rest before the next.
#[derive(Clone, Debug, Display)]
#[display("{:.400}{}", mutation.patch.to_string(), if *rests { ", until it is at rest" } else { "" })]
pub struct Step {
    pub mutation: Mutation,
    pub rests: bool,
}

/// A namespace with the object and its operator.
struct Room<'a> {
    // They end before their proxy does.
    operators: Operators,
    stage: &'a Stage,
    kind: Kind,
    apart: Apart,
    sql: Option<tokio_postgres::Client>,
}

/// Runs the sequence of a seed, or these steps in its place.
///
/// # Errors
/// If it cannot be run.
pub async fn run(stage: &Stage, namespace: &str, kind: Kind, seed: u64, steps: Option<&[Step]>) -> Result<Ran<Step>> {
    let mut random = StdRng::seed_from_u64(seed);
    let first = kind.least().choose(&mut random).cloned().context("the kind has no first spec")?;
    let number = random.random_range(CHANGES);
    let room = Room::open(stage, kind, namespace).await?;
    room.create(&first).await?.accepted()?;
    let begun = room.rest().await?;
    let head = format!("{}, created with {first}", kind.name());
    let again = format!("specs --seed {seed} --count 1 --strings 0");
    let mut ran = Ran { seed, head, again, ..Ran::default() };
    let wrong = &mut ran.violations;
    if begun.ready.status != "True" {
        wrong.push(Violation::new(Oracle::Rest, format!("with its first spec it is {:?}", begun.ready)));
    }
    let schema = kind.schema();
    for index in 0..steps.map_or(number, <[Step]>::len) {
        let before = room.object().await?;
        let step = match steps {
            Some(steps) => steps[index].clone(),
            None => {
                let change = if random.random_bool(0.3) { Schema::invalid } else { Schema::valid };
                Step { mutation: change(&schema, &before["spec"], &mut random), rests: random.random_bool(0.3) }
            }
        };
        let at = Timestamp::now();
        let outcome = room.change(&before, &step, wrong).await?;
        if step.rests
            && let Err(error) = room.rest().await
        {
            wrong.push(Violation::new(Oracle::Rest, format!("after {step}: {error:#}")));
        }
        ran.done.push(Done { at, step, outcome });
    }
    if kind == Kind::ClientApp {
        // With one of these an app stays as it is, whatever that is.
        room.patch(&json!({"suspend": false, "approval": "Automatic"})).await?.accepted()?;
    }
    let alone = match room.rest().await {
        Ok(end) => Some(judge(&room, &end, &format!("{namespace}-alone"), wrong).await?),
        Err(error) => {
            wrong.push(Violation::new(Oracle::Rest, format!("{error:#}")));
            None
        }
    };
    wrong.extend(back(&room, &first, &begun.ready).await?);
    for room in alone.into_iter().chain([room]) {
        room.close(wrong).await?;
    }
    Ok(ran)
}

/// Judges what has to hold at rest, and returns the room with the last spec alone.
async fn judge<'a>(room: &Room<'a>, end: &End, namespace: &str, wrong: &mut Vec<Violation>) -> Result<Room<'a>> {
    wrong.extend(Violation::all(Oracle::Quiet, room.storms(&end.ready).await));
    let spec = room.object().await?["spec"].clone();
    let alone = Room::open(room.stage, room.kind, namespace).await?;
    let mut differs = |why: String| wrong.push(Violation::new(Oracle::Convergence, why));
    if let Answer::Refused { code, message } = alone.create(&spec).await? {
        let spec = spec.to_string();
        differs(format!("the last spec alone is refused, {code} {message:.600}: {spec:.2000}"));
        return Ok(alone);
    }
    match alone.rest().await {
        Err(error) => differs(format!("the last spec alone: {error:#}")),
        Ok(expected) => {
            let same = within(CONVERGED, "the end state is that of the last spec alone", async || {
                tokio::time::sleep(LOOK).await;
                let end = room.look().await.map_err(|error| format!("{error:#}"))?;
                let found = converged(&end, &expected);
                if found.is_empty() { Ok(()) } else { Err(found.join("\n    ")) }
            });
            same.await.unwrap_or_else(|error| differs(format!("{error:#}")));
        }
    }
    Ok(alone)
}

/// Puts the first spec back, and says why that does not lead to where it led at first. The API server may refuse it.
async fn back(room: &Room<'_>, first: &Value, begun: &Condition) -> Result<Option<Violation>> {
    let put = within(CONVERGED, "the first spec is put back", async || {
        let mut object = room.object().await.map_err(|error| format!("{error:#}"))?;
        object["spec"] = first.clone();
        match ask(&room.apart.tenant.client, Method::PUT, &room.url(), WHOLE, &object).await {
            // The operator has written the status meanwhile.
            Ok(Answer::Refused { code: 409, message }) => Err(message),
            Ok(answer) => Ok(answer),
            Err(error) => Err(format!("{error:#}")),
        }
    });
    let answer = put.await?;
    if let Answer::Refused { .. } = answer {
        let fault = answer.fault().map(|fault| format!("the first spec is put back: {fault}"));
        return Ok(fault.map(|fault| Violation::new(Oracle::Answers, fault)));
    }
    let is_back = within(REST, "the first spec gives what it gave", async || {
        let subject = room.subject().await.map_err(|error| format!("{error:#}"))?;
        let ready = Condition::ready(&subject);
        let is = is_current(&subject) && (ready.is(begun) || is_past(&ready));
        if is { Ok(()) } else { Err(format!("{ready:?}, and not {begun:?}")) }
    });
    Ok(is_back.await.err().map(|error| Violation::new(Oracle::Convergence, format!("{error:#}"))))
}

impl<'a> Room<'a> {
    /// With an operator that leads, and what specs may name.
    async fn open(stage: &'a Stage, kind: Kind, namespace: &str) -> Result<Room<'a>> {
        let mut apart = stage.lab.try_apart(namespace).await?;
        furnish(&apart.tenant).await?;
        apart.options.environment.push(("CLIENTAPP_IMAGE".to_owned(), IMAGE.to_owned()));
        let mut sql = None;
        if kind == Kind::PostgresWriter {
            let name = database_name(namespace);
            sql = Some(database(&name, TABLES).await?);
            apart.options.environment.extend(postgres()?.environment(&name, TABLES));
        }
        let operators = Operators::start(stage.lab, &apart.options, false)?;
        let room = Room { operators, stage, kind, apart, sql };
        if kind == Kind::ClientApp {
            room.post(Kind::Profile, room.namespace(), &json!({"description": "plain"})).await?.accepted()?;
        }
        Ok(room)
    }

    /// Returns a spec that names the only Profile that its operator sees, which has the name of the namespace.
    fn with_profile(&self, spec: &Value) -> Value {
        let mut spec = spec.clone();
        if spec["profile"] == CLASS {
            spec["profile"] = json!(self.namespace());
        }
        spec
    }

    fn namespace(&self) -> &str {
        &self.apart.tenant.namespace
    }

    /// A Profile is the cluster's, and has the name of the namespace.
    fn name(&self) -> &str {
        if self.kind == Kind::Profile { self.namespace() } else { NAME }
    }

    fn url(&self) -> String {
        format!("{}/{}", self.kind.url(self.namespace()), self.name())
    }

    async fn create(&self, spec: &Value) -> Result<Answer> {
        let mut answer = self.post(self.kind, self.name(), spec).await?;
        if self.kind == Kind::Profile && matches!(answer, Answer::Accepted(_)) {
            answer = self.post(Kind::ClientApp, NAME, &kind::app(Some(self.name()))).await?;
        }
        Ok(answer)
    }

    async fn post(&self, kind: Kind, name: &str, spec: &Value) -> Result<Answer> {
        let url = format!("{}?fieldValidation=Strict", kind.url(self.namespace()));
        ask(&self.apart.tenant.client, Method::POST, &url, WHOLE, &kind.object(name, &self.with_profile(spec))).await
    }

    async fn patch(&self, spec: &Value) -> Result<Answer> {
        let url = format!("{}?fieldValidation=Strict", self.url());
        ask(&self.apart.tenant.client, Method::PATCH, &url, MERGE, &json!({"spec": self.with_profile(spec)})).await
    }

    async fn object(&self) -> Result<Value> {
        ask(&self.apart.tenant.client, Method::GET, &self.url(), WHOLE, &Value::Null).await?.accepted()
    }

    /// The object whose status tells how it goes: a Profile's tells of all its apps.
    async fn subject(&self) -> Result<Value> {
        let kind = if self.kind == Kind::Profile { Kind::ClientApp } else { self.kind };
        let url = format!("{}/{NAME}", kind.url(self.namespace()));
        ask(&self.apart.tenant.client, Method::GET, &url, WHOLE, &Value::Null).await?.accepted()
    }

    /// Applies a change, and returns the refusal. A refused change leaves the object as it was.
    async fn change(&self, before: &Value, step: &Step, wrong: &mut Vec<Violation>) -> Result<String> {
        let answer = self.patch(&step.mutation.patch).await?;
        let mut amiss = |why: String| wrong.push(Violation::new(Oracle::Answers, why));
        answer.fault().into_iter().for_each(|fault| amiss(format!("to {step}, {fault}")));
        let Answer::Refused { code, message } = answer else {
            if step.mutation.refused {
                amiss(format!("the schema does not permit {step}, and the API server accepts it"));
            }
            return Ok(String::new());
        };
        let after = self.object().await?;
        let of = |object: &Value| (object["spec"].clone(), object["metadata"]["generation"].clone());
        if of(before) != of(&after) {
            amiss(format!("{step} is refused, and the object has changed all the same"));
        }
        Ok(format!("{code} {message:.300}"))
    }

    async fn look(&self) -> Result<End> {
        let subject = self.subject().await?;
        let is = |kind: &str| Condition::holds(&subject, kind);
        let ready = Condition::ready(&subject);
        let at_work = is("Reconciling") && !is("Stalled") && ready.reason != "Suspended";
        let state = self.stage.state(self.namespace(), Vec::new()).await?;
        Ok(End { state, at_work, is_current: is_current(&subject), ready, rows: self.rows().await? })
    }

    /// The rows of PostgresWriters.
    async fn rows(&self) -> Result<Vec<String>> {
        let Some(sql) = &self.sql else { return Ok(Vec::new()) };
        let of = |table: &str| format!("SELECT '{table}', id, name, age::text, country FROM {table}");
        let found = sql.query(&format!("{} UNION ALL {} ORDER BY 1, 2", of("people"), of("others")), &[]).await?;
        let told = |row: &tokio_postgres::Row| {
            let words = (0..5).map(|column| row.get::<_, String>(column).replace(self.namespace(), "NAMESPACE"));
            words.collect::<Vec<_>>().join(" ")
        };
        Ok(found.iter().map(told).collect())
    }

    /// Waits until nothing changes any more, and the status is of the current spec and says why.
    async fn rest(&self) -> Result<End> {
        let what = format!("{} in {} is at rest", self.kind.name(), self.namespace());
        let look = async || {
            tokio::time::sleep(LOOK).await;
            self.look().await
        };
        let changes = |before: &End, now: &End| {
            let mut changed = differences(&before.state, &now.state);
            if !now.ready.is(&before.ready) || now.rows != before.rows || now.is_current != before.is_current {
                changed.push(format!("{:?} is now {:?}", before.ready, now.ready));
            }
            changed
        };
        let rests = |now: &End, since| now.is_current && since >= if now.at_work { STILL_AT_WORK } else { STILL };
        at_rest(REST, &what, look, changes, rests).await
    }

    /// Returns whether the operator sends requests although there is nothing to do.
    async fn storms(&self, ready: &Condition) -> Option<String> {
        let before = self.apart.proxy.record().len();
        tokio::time::sleep(STILL).await;
        let mut since = self.apart.proxy.record().split_off(before);
        // Watches end by themselves from time to time.
        since.retain(|request| !request.contains(" watch ") && !request.ends_with(" leases"));
        let most = if ready.status == "True" { 0 } else { RETRIES };
        let number = since.len();
        (number > most).then(|| format!("at rest, in {STILL:?}, the operator sends {number} requests: {since:?}"))
    }

    /// Stops the operator, judges what it has done, and deletes everything.
    async fn close(mut self, wrong: &mut Vec<Violation>) -> Result<()> {
        let Remains { log, arguments, overlaps, leftovers } = self.operators.stop()?;
        let panics = log.lines().filter(|line| line.contains("panicked"));
        wrong.extend(Violation::all(Oracle::Quiet, panics.map(|line| format!("the operator's log has {line:.1000}"))));
        if log.contains(PASSWORD) {
            wrong.push(Violation::new(Oracle::Secrecy, "the password of the database is in the operator's log"));
        }
        let trace = self.stage.trace(self.namespace()).await?;
        let evidence = Evidence { trace, log, arguments, ..Evidence::default() };
        wrong.extend(Violation::all(Oracle::Secrecy, leaks(&evidence)));
        wrong.extend(Violation::all(Oracle::OneWriter, overlaps));
        wrong.extend(Violation::all(Oracle::Orphans, leftovers));
        if [Kind::Profile, Kind::ClientApp].contains(&self.kind) {
            let url = format!("{}/{}", Kind::Profile.url(""), self.namespace());
            ask(&self.apart.tenant.client, Method::DELETE, &url, WHOLE, &Value::Null).await?;
        }
        self.stage.clean_up([self.namespace(), &self.apart.options.lease_namespace]).await
    }
}

/// A Secret and a ConfigMap that specs may name, with all keys that they may name.
async fn furnish(tenant: &Tenant) -> Result<()> {
    let values = "podAnnotations: {note: given}\n";
    let secret = json!({"metadata": {"name": "given"}, "stringData": {
        "nextcloud-username": "admin", "nextcloud-password": CANARY, "user": "app", "password": CANARY,
        "host": "db.example.com", "dbname": "app", "values.yaml": values,
    }});
    tenant.api::<Secret>().create(&PostParams::default(), &serde_json::from_value(secret)?).await?;
    let map = json!({"metadata": {"name": "given"}, "data": {"values.yaml": values, "password": "none"}});
    tenant.api::<ConfigMap>().create(&PostParams::default(), &serde_json::from_value(map)?).await?;
    Ok(())
}
