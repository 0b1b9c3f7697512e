//! Keeps a table of the steps of the scenario: each with the time that it took, and the words of the status.

use std::time::{Duration, Instant};

use anyhow::Result;

/// A step that went well.
pub(super) struct Step {
    what: String,
    took: Duration,
    said: String,
}

/// All steps so far.
#[derive(Default)]
pub(super) struct Steps(Vec<Step>);

impl Steps {
    /// Runs a step, which returns what the status said at its end.
    pub(super) async fn step(&mut self, what: &str, run: impl AsyncFnOnce() -> Result<String>) -> Result<()> {
        let began = Instant::now();
        let result = run().await;
        let took = began.elapsed();
        match result {
            Ok(said) => {
                eprintln!("{:6.1} s  {what}: {said}", took.as_secs_f64());
                self.0.push(Step { what: what.to_owned(), took, said });
                Ok(())
            }
            Err(error) => {
                eprintln!("{:6.1} s  {what}: FAILED: {error:#}", took.as_secs_f64());
                Err(error.context(what.to_owned()))
            }
        }
    }

    /// Returns the table. Pure.
    pub(super) fn table(&self) -> String {
        let rows = self
            .0
            .iter()
            .map(|Step { what, took, said }| format!("| {what} | {:.1} s | {said} |\n", took.as_secs_f64()));
        format!("| step | took | what the status said at its end |\n|---|---|---|\n{}", rows.collect::<String>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wait::block_on;

    #[test]
    fn a_table_has_the_steps_that_went_well_and_the_first_failure_ends_it() {
        let mut steps = Steps::default();
        let failed = block_on(async || {
            steps.step("created", async || Ok("Ready".to_owned())).await?;
            steps.step("deleted", async || anyhow::bail!("it stays")).await
        });
        assert_eq!(format!("{:#}", failed.expect_err("a step fails")), "deleted: it stays");
        let table = steps.table();
        let rows: Vec<_> = table.lines().skip(2).collect();
        assert_eq!(rows, ["| created | 0.0 s | Ready |"]);
    }
}
