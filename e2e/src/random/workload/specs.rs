//! One sequence: an object is created with little, changed at random, and compared with what its last spec alone gives;
//! then its first spec is put back. An **effect**.

pub mod kind;
pub mod schema;

use std::fmt;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use clientapp_crd::PostgresWriter;
use http::Method;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PostParams;
use nix::sys::signal::Signal;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use serde_json::{Value, json};

use self::kind::{Answer, Kind, MERGE, Ready, WHOLE, ask, condition, is_current};
use self::schema::{Mutation, Schema};
use crate::lab::{Apart, IMAGE, Tenant};
use crate::operator::Operator;
use crate::postgres::{PASSWORD, Postgres};
use crate::random::oracle::convergence::{End, converged, is_past};
use crate::random::oracle::evidence::{Evidence, leaks};
use crate::random::oracle::state::differences;
use crate::random::preset::specs::Stage;
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
/// In the Secret that specs may name.
const CANARY: &str = "canary-7d20-in-secrets-only";

/// One change, and whether everything comes to rest before the next.
#[derive(Clone, Debug)]
pub struct Step {
    pub mutation: Mutation,
    pub rests: bool,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let patch = self.mutation.patch.to_string();
        write!(f, "{patch:.400}{}", if self.rests { ", until it is at rest" } else { "" })
    }
}

/// How a sequence went.
#[derive(Debug)]
pub struct Ran {
    pub first: Value,
    /// Each with the API server's refusal.
    pub steps: Vec<(Step, Option<String>)>,
    /// What does not hold, a sentence each.
    pub wrong: Vec<String>,
}

/// A namespace with the object and its operator.
struct Room<'a> {
    // Ends before its proxy does.
    operator: Operator,
    stage: &'a Stage,
    kind: Kind,
    apart: Apart,
    sql: Option<tokio_postgres::Client>,
}

/// Runs the sequence of a seed, or these steps in its place.
///
/// # Errors
/// If it cannot be run.
pub async fn run(stage: &Stage, namespace: &str, kind: Kind, seed: u64, steps: Option<&[Step]>) -> Result<Ran> {
    let mut random = StdRng::seed_from_u64(seed);
    let first = kind.least().choose(&mut random).cloned().context("the kind has no first spec")?;
    let number = random.random_range(CHANGES);
    let room = Room::open(stage, kind, namespace).await?;
    room.create(&first).await?.accepted()?;
    let begun = room.rest().await?;
    let mut ran = Ran { first, steps: Vec::new(), wrong: Vec::new() };
    if begun.ready.status != "True" {
        ran.wrong.push(format!("with its first spec it is {:?}", begun.ready));
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
        let refused = room.change(&before, &step, &mut ran.wrong).await?;
        if step.rests {
            ran.wrong.extend(room.rest().await.err().map(|error| format!("after {step}: {error:#}")));
        }
        ran.steps.push((step, refused));
    }
    if kind == Kind::ClientApp {
        // With one of these an app stays as it is, whatever that is.
        room.patch(&json!({"suspend": false, "approval": "Automatic"})).await?.accepted()?;
    }
    let alone = match room.rest().await {
        Ok(end) => Some(judge(&room, &end, &format!("{namespace}-alone"), &mut ran.wrong).await?),
        Err(error) => {
            ran.wrong.push(format!("{error:#}"));
            None
        }
    };
    if let Some(why) = back(&room, &ran.first, &begun.ready).await? {
        ran.wrong.push(why);
    }
    for room in alone.into_iter().chain([room]) {
        ran.wrong.extend(room.close().await?);
    }
    Ok(ran)
}

/// What has to hold at rest. Returns the room with the last spec alone.
async fn judge<'a>(room: &Room<'a>, end: &End, namespace: &str, wrong: &mut Vec<String>) -> Result<Room<'a>> {
    wrong.extend(room.storms(&end.ready).await);
    let spec = room.object().await?["spec"].clone();
    let alone = Room::open(room.stage, room.kind, namespace).await?;
    if let Answer::Refused { code, message } = alone.create(&spec).await? {
        let spec = spec.to_string();
        wrong.push(format!("the last spec alone is refused, {code} {message:.600}: {spec:.2000}"));
        return Ok(alone);
    }
    match alone.rest().await {
        Err(error) => wrong.push(format!("the last spec alone: {error:#}")),
        Ok(expected) => {
            let same = within(CONVERGED, "the end state is that of the last spec alone", async || {
                tokio::time::sleep(LOOK).await;
                let end = room.look().await.map_err(|error| format!("{error:#}"))?;
                let found = converged(&end, &expected);
                if found.is_empty() { Ok(()) } else { Err(found.join("\n    ")) }
            });
            wrong.extend(same.await.err().map(|error| format!("{error:#}")));
        }
    }
    Ok(alone)
}

/// Puts the first spec back, and says why that does not lead to where it led at first. The API server may refuse it.
async fn back(room: &Room<'_>, first: &Value, begun: &Ready) -> Result<Option<String>> {
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
        return Ok(answer.fault().map(|fault| format!("the first spec is put back: {fault}")));
    }
    let is_back = within(REST, "the first spec gives what it gave", async || {
        let subject = room.subject().await.map_err(|error| format!("{error:#}"))?;
        let ready = Ready::of(&subject);
        let is = is_current(&subject) && (ready.is(begun) || is_past(&ready));
        if is { Ok(()) } else { Err(format!("{ready:?}, and not {begun:?}")) }
    });
    Ok(is_back.await.err().map(|error| format!("{error:#}")))
}

impl<'a> Room<'a> {
    /// With an operator that leads, and what specs may name.
    async fn open(stage: &'a Stage, kind: Kind, namespace: &str) -> Result<Room<'a>> {
        let mut apart = stage.cases.lab.try_apart(namespace).await?;
        furnish(&apart.tenant).await?;
        let level = ("RUST_LOG".to_owned(), "info,clientapp_operator=debug".to_owned());
        apart.options.environment.extend([level, ("CLIENTAPP_IMAGE".to_owned(), IMAGE.to_owned())]);
        let mut sql = None;
        if kind == Kind::PostgresWriter {
            let name = namespace.replace('-', "_");
            sql = Some(database(&stage.postgres, &name).await?);
            apart.options.environment.extend(stage.postgres.environment(&name, TABLES));
        }
        Ok(Room { operator: Operator::leading(&apart.options)?, stage, kind, apart, sql })
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
        ask(&self.apart.tenant.client, Method::POST, &url, WHOLE, &kind.object(name, spec)).await
    }

    async fn patch(&self, spec: &Value) -> Result<Answer> {
        let url = format!("{}?fieldValidation=Strict", self.url());
        ask(&self.apart.tenant.client, Method::PATCH, &url, MERGE, &json!({"spec": spec})).await
    }

    async fn object(&self) -> Result<Value> {
        ask(&self.apart.tenant.client, Method::GET, &self.url(), WHOLE, &Value::Null).await?.accepted()
    }

    /// The object whose status tells how it goes: a Profile has none.
    async fn subject(&self) -> Result<Value> {
        let kind = if self.kind == Kind::Profile { Kind::ClientApp } else { self.kind };
        let url = format!("{}/{NAME}", kind.url(self.namespace()));
        ask(&self.apart.tenant.client, Method::GET, &url, WHOLE, &Value::Null).await?.accepted()
    }

    /// Applies a change, and returns the refusal. A refused change leaves the object as it was.
    async fn change(&self, before: &Value, step: &Step, wrong: &mut Vec<String>) -> Result<Option<String>> {
        let answer = self.patch(&step.mutation.patch).await?;
        wrong.extend(answer.fault().map(|fault| format!("to {step}, {fault}")));
        match answer {
            Answer::Accepted(_) if step.mutation.refused => {
                wrong.push(format!("the schema does not permit {step}, and the API server accepts it"));
                Ok(None)
            }
            Answer::Accepted(_) => Ok(None),
            Answer::Refused { code, message } => {
                let after = self.object().await?;
                let of = |object: &Value| (object["spec"].clone(), object["metadata"]["generation"].clone());
                if of(before) != of(&after) {
                    wrong.push(format!("{step} is refused, and the object has changed all the same"));
                }
                Ok(Some(format!("{code} {message:.300}")))
            }
        }
    }

    async fn look(&self) -> Result<End> {
        let subject = self.subject().await?;
        let is = |kind: &str| condition(&subject, kind)["status"] == "True";
        let ready = Ready::of(&subject);
        let at_work = is("Reconciling") && !is("Stalled") && ready.reason != "Suspended";
        let state = self.stage.cases.state(self.namespace(), Vec::new()).await?;
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
        let mut last = (Instant::now(), self.look().await?);
        let what = format!("{} in {} is at rest", self.kind.name(), self.namespace());
        within(REST, &what, async || {
            tokio::time::sleep(LOOK).await;
            let now = self.look().await.map_err(|error| format!("{error:#}"))?;
            let mut changed = differences(&last.1.state, &now.state);
            if !now.ready.is(&last.1.ready) || now.rows != last.1.rows || now.is_current != last.1.is_current {
                changed.push(format!("{:?} is now {:?}", last.1.ready, now.ready));
            }
            let since = if changed.is_empty() { last.0 } else { Instant::now() };
            let still = if now.at_work { STILL_AT_WORK } else { STILL };
            let rests = now.is_current && since.elapsed() >= still;
            last = (since, now.clone());
            if rests { Ok(now) } else { Err(format!("{:?}; {}", now.ready, changed.join("\n    "))) }
        })
        .await
    }

    /// Whether the operator sends requests although there is nothing to do.
    async fn storms(&self, ready: &Ready) -> Option<String> {
        let before = self.apart.proxy.record().len();
        tokio::time::sleep(STILL).await;
        let mut since = self.apart.proxy.record().split_off(before);
        // Watches end by themselves from time to time.
        since.retain(|request| !request.contains(" watch ") && !request.ends_with(" leases"));
        let most = if ready.status == "True" { 0 } else { RETRIES };
        let number = since.len();
        (number > most).then(|| format!("at rest, in {STILL:?}, the operator sends {number} requests: {since:?}"))
    }

    /// Stops the operator, deletes everything, and returns what the operator has done wrong.
    async fn close(mut self) -> Result<Vec<String>> {
        self.operator.signal(Signal::SIGTERM);
        let well = self.operator.wait()?;
        let (log, cases) = (self.operator.log(), &self.stage.cases);
        let mut wrong = Vec::new();
        let panics = log.lines().filter(|line| line.contains("panicked"));
        wrong.extend(panics.map(|line| format!("the operator's log has {line:.1000}")));
        if !well {
            wrong.push("the operator failed when it was stopped".to_owned());
        }
        if log.contains(PASSWORD) {
            wrong.push("the password of the database is in the operator's log".to_owned());
        }
        let trace = cases.trace(self.namespace()).await?;
        wrong.extend(leaks(&Evidence { trace, log, ..Evidence::default() }));
        if self.kind == Kind::Profile {
            ask(&self.apart.tenant.client, Method::DELETE, &self.url(), WHOLE, &Value::Null).await?;
        }
        cases.release::<PostgresWriter>(self.namespace()).await?;
        cases.clean_up([self.namespace(), &self.apart.options.lease_namespace]).await?;
        Ok(wrong)
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

/// A new database with the tables that PostgresWriters may name.
///
/// # Errors
/// PostgreSQL's.
pub async fn database(postgres: &Postgres, name: &str) -> Result<tokio_postgres::Client> {
    ensure!(name.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_'), "{name} is no name of a database");
    postgres.connect("postgres").await?.batch_execute(&format!("CREATE DATABASE {name}")).await?;
    let sql = postgres.connect(name).await?;
    for table in TABLES.split(", ") {
        let columns = "id text PRIMARY KEY, name text NOT NULL, age integer NOT NULL, country text NOT NULL";
        sql.batch_execute(&format!("CREATE TABLE {table} ({columns})")).await?;
    }
    Ok(sql)
}
