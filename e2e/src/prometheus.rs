//! A real Prometheus that scrapes an operator, and its promtool.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use crate::manifests;
use crate::plane::free_port;
use crate::plane::watchdog::Watchdog;
use crate::progress::Progress;
use crate::tools::Extra;

/// Dropping it stops the server and removes its data.
pub struct Prometheus {
    http: reqwest::Client,
    url: String,
    watchdog: Watchdog,
    server: Child,
}

impl Prometheus {
    /// Starts one that scrapes the operator with this URL every second, as one that finds the Service would: with its namespace
    /// as a label of the target.
    pub fn start(health_url: &str, rules: &Value) -> Result<Prometheus> {
        let program = Extra::Prometheus.ensure(&Progress::stderr())?;
        let home = tempfile::tempdir()?;
        let watchdog = Watchdog::start(home.path()).context("cannot start the watchdog")?;
        // From here on the watchdog removes it in any case.
        let home = home.keep();
        let target = json!({
            "targets": [health_url.trim_start_matches("http://")], "labels": {"namespace": manifests::NAMESPACE},
        });
        let config = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": ["rules.yaml"],
            "scrape_configs": [{"job_name": "clientapp-operator", "honor_labels": true, "static_configs": [target]}],
        });
        fs::write(home.join("rules.yaml"), rules.to_string())?;
        fs::write(home.join("prometheus.yaml"), config.to_string())?;
        let address = format!("127.0.0.1:{}", free_port()?);
        let log = File::create(home.join("log"))?;
        let server = Command::new(&program)
            .args(["--config.file=prometheus.yaml", "--storage.tsdb.path=data"])
            .arg(format!("--web.listen-address={address}"))
            .current_dir(&home)
            .process_group(watchdog.group())
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .spawn()
            .context("cannot start Prometheus")?;
        let http = reqwest::Client::builder().no_proxy().build()?;
        Ok(Prometheus { http, url: format!("http://{address}/api/v1"), watchdog, server })
    }

    /// Returns the data that the HTTP API has under this path.
    ///
    /// # Errors
    /// Prometheus' own, such as that of a query that does not parse.
    pub async fn get(&self, path: &str, parameters: &[(&str, &str)]) -> Result<Value> {
        let url = reqwest::Url::parse_with_params(&format!("{}/{path}", self.url), parameters)?;
        let mut answer: Value = self.http.get(url).send().await?.json().await?;
        anyhow::ensure!(answer["status"] == "success", "{path} {parameters:?}: {}", answer["error"]);
        Ok(answer["data"].take())
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        self.watchdog.act();
        let _ = self.server.wait();
        self.watchdog.wait();
    }
}

/// Returns the path of promtool.
pub fn promtool() -> Result<PathBuf> {
    Ok(Extra::Prometheus.ensure(&Progress::stderr())?.with_file_name("promtool"))
}
