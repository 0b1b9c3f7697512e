//! `store list`: one line of JSON for each dump. An **effect**.

use std::io::Write as _;

use serde_json::json;

use super::{bucket::Bucket, catalog, error::Error};

pub(crate) async fn list(bucket: &Bucket) -> Result<(), Error> {
    let found = catalog::read(bucket).await?;
    let mut text = String::new();
    for entry in &found.entries {
        let line = json!({
            "name": entry.name,
            "time": entry.name.time().to_string(),
            "bytes": entry.bytes,
            "tables": entry.about.tables,
            "postgres": entry.about.postgres,
            "system": entry.about.system,
            "encrypted": entry.recipient.is_some(),
        });
        text += &format!("{line}\n");
    }
    for (name, problem) in &found.damaged {
        eprintln!("{} is damaged: {problem}", bucket.place(name.as_str()));
    }
    // A reader may have had enough.
    let _ = std::io::stdout().write_all(text.as_bytes());
    Ok(())
}
