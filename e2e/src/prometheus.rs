//! A real Prometheus that scrapes an operator, and its promtool.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::manifests;
use crate::plane::free_port;
use crate::plane::watchdog::Watched;
use crate::progress::Progress;
use crate::tools::Extra;

/// Dropping it stops the server and removes its data.
pub struct Prometheus {
    http: reqwest::Client,
    url: String,
    _server: Watched,
}

impl Prometheus {
    /// Starts one that scrapes the operator with this URL every second, as one that finds the Service would: with its namespace
    /// as a label of the target.
    pub fn start(health_url: &str, rules: &Value) -> Result<Prometheus> {
        let program = Extra::Prometheus.ensure(&Progress::stderr())?;
        let target = json!({
            "targets": [health_url.trim_start_matches("http://")], "labels": {"namespace": manifests::NAMESPACE},
        });
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "clientapp-operator", "honor_labels": true, "static_configs": [target]}],
        });
        let address = format!("127.0.0.1:{}", free_port()?);
        let server = Watched::start("Prometheus", |home| {
            fs::write(home.join("rules.yaml"), rules.to_string())?;
            fs::write(home.join("prometheus.yaml"), config.to_string())?;
            let mut command = Command::new(&program);
            command.args(["--config.file=prometheus.yaml", "--storage.tsdb.path=data"]);
            command.arg(format!("--web.listen-address={address}")).current_dir(home);
            Ok(command)
        })?;
        let http = reqwest::Client::builder().no_proxy().build()?;
        Ok(Prometheus { http, url: format!("http://{address}/api/v1"), _server: server })
    }

    /// Returns the data that the HTTP API has under this path.
    ///
    /// # Errors
    /// Prometheus' own, such as that of a query that does not parse.
    pub async fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value> {
        let url = reqwest::Url::parse_with_params(&format!("{}/{path}", self.url), parameters)?;
        let mut answer: Value = self.http.get(url).send().await?.json().await?;
        ensure!(answer["status"] == "success", "{path} {parameters:?}: {}", answer["error"]);
        Ok(answer["data"].take())
    }
}

/// Returns the path of promtool.
pub fn promtool() -> Result<PathBuf> {
    Ok(Extra::Prometheus.ensure(&Progress::stderr())?.with_file_name("promtool"))
}
