//! PostgresWriters, with a real PostgreSQL, which all cases share, and in it a database for each. An **effect**.

use anyhow::Result;
use clientapp_crd::{PostgresWriter, conditions};
use kube::Resource as _;
use kube::api::{DeleteParams, PostParams};
use serde_json::{Value, json};

use crate::lab::Tenant;
use crate::postgres::PASSWORD;
use crate::random::oracle::told;
use crate::random::requests::{TIMEOUT, asked, change, delete, plant};
use crate::random::stage::{database, database_name, postgres};
use crate::wait::within;

const TABLE: &str = "people";
/// Where the operator records which rows are its own.
const LEDGER: &str = "clientapp_operator_rows";
/// Is created and changed while it is disturbed.
const CHANGED: &str = "ada";
/// Was there before, and is deleted.
const DELETED: &str = "bob";

/// Creates the database and its table, and returns the environment for it.
pub async fn environment(namespace: &str) -> Result<Vec<(String, String)>> {
    let name = database_name(namespace);
    database(&name, TABLE).await?;
    Ok(postgres()?.environment(&name, TABLE))
}

/// Creates the object that is deleted later, and a Secret with the password that the operator must keep to itself.
pub async fn prepare(tenant: &Tenant) -> Result<()> {
    plant(tenant, "database", json!({"password": PASSWORD})).await?;
    create(tenant, DELETED).await?;
    written(tenant, DELETED).await
}

/// Creates an object, changes it, and deletes another.
pub async fn act(tenant: &Tenant) -> Result<()> {
    create(tenant, CHANGED).await?;
    written(tenant, CHANGED).await?;
    change(&tenant.api::<PostgresWriter>(), CHANGED, &json!({"spec": {"age": 37}})).await?;
    written(tenant, CHANGED).await?;
    delete::<PostgresWriter>(tenant, DELETED, &DeleteParams::default()).await
}

/// The rows of the table and of the ledger, in the form of objects that have the table's name.
pub async fn rows(namespace: &str) -> Result<Vec<Value>> {
    let sql = postgres()?.connect(&database_name(namespace)).await?;
    let mut found = Vec::new();
    for table in [TABLE, LEDGER] {
        for row in sql.query(&format!("SELECT to_json({table})::text FROM {table}"), &[]).await? {
            let row: Value = serde_json::from_str(row.get(0))?;
            found.push(json!({"kind": "Row", "metadata": {"name": table}, "row": row}));
        }
    }
    Ok(found)
}

/// Deletes the database of a case that is over.
pub async fn clean_up(namespace: &str) -> Result<()> {
    let statement = format!("DROP DATABASE {} WITH (FORCE)", database_name(namespace));
    Ok(postgres()?.connect("postgres").await?.batch_execute(&statement).await?)
}

async fn create(tenant: &Tenant, name: &str) -> Result<()> {
    let spec = json!({"table": TABLE, "name": name, "age": 36, "country": "England"});
    let object = json!({
        "apiVersion": PostgresWriter::api_version(&()), "kind": PostgresWriter::kind(&()),
        "metadata": {"name": name}, "spec": spec,
    });
    let (writers, object) = (tenant.api::<PostgresWriter>(), serde_json::from_value(object)?);
    let create = async || writers.create(&PostParams::default(), &object).await;
    asked("the PostgresWriter is created", 409, create).await
}

/// Waits until the row is as in the current spec.
async fn written(tenant: &Tenant, name: &str) -> Result<()> {
    let is_written = async || {
        let found = tenant.api::<PostgresWriter>().get(name).await.map_err(|error| error.to_string())?;
        let status = found.status.as_ref();
        let status = status.filter(|status| status.observed_generation == found.metadata.generation);
        let ready = status.and_then(|status| conditions::find(&status.conditions, "Ready"));
        if ready.is_some_and(|ready| ready.status == "True") { Ok(()) } else { Err(told(&found)) }
    };
    within(TIMEOUT, &format!("the row of PostgresWriter {name} is written"), is_written).await
}
