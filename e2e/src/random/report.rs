//! The findings of a run: stories of failures, what was counted, and the table of the matrix. Pure.

use std::fmt::{Display, Write as _};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::disturbance::row::{ROWS, Row};
use super::oracle::Violation;

/// The result of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Chose everything random.
    pub seed: u64,
    pub cases: usize,
    /// A story for each case that failed.
    pub failures: Vec<String>,
    /// Says what was counted and measured, and how much of it.
    pub counted: Vec<(String, String)>,
    /// The rows of the matrix.
    pub lines: Vec<Line>,
    /// Says what was asked for in place of a run.
    pub listed: Option<String>,
}

impl Outcome {
    pub fn count(&mut self, what: impl Into<String>, number: impl ToString) {
        self.counted.push((what.into(), number.to_string()));
    }

    /// Returns how much was counted of something.
    pub fn counted(&self, what: &str) -> u64 {
        let found = self.counted.iter().find(|(counted, _)| counted == what);
        found.and_then(|(_, number)| number.parse().ok()).unwrap_or_default()
    }

    /// Returns the tables and all failures.
    pub fn told(&self) -> String {
        let Outcome { seed, cases, failures, counted, lines, listed } = self;
        if let Some(listed) = listed {
            return listed.clone();
        }
        let mut text = if lines.is_empty() { String::new() } else { table(lines) + "\n" };
        _ = writeln!(text, "| seed | {seed} |\n|---|---|\n| cases | {cases} |");
        counted.iter().for_each(|(what, number)| _ = writeln!(text, "| {what} | {number} |"));
        _ = writeln!(text, "| failures | {} |", failures.len());
        failures.iter().for_each(|failure| _ = write!(text, "\n{failure}\n"));
        text
    }

    pub fn json(&self) -> Value {
        let Outcome { seed, cases, failures, counted, lines, listed: _ } = self;
        let counted: serde_json::Map<_, _> =
            counted.iter().map(|(what, number)| (what.clone(), json!(number))).collect();
        let rows = lines.iter().map(|Line { row, title, cases, held, missed, recovery, wasted }| {
            let recovery = recovery.map(|(median, worst)| json!({"median": median, "worst": worst}));
            json!({
                "row": row, "fault": title, "cases": cases, "held": held, "missed": missed, "wastedRevisions": wasted,
                "recoverySeconds": recovery,
            })
        });
        let rows: Vec<_> = rows.collect();
        json!({"seed": seed, "cases": cases, "counted": counted, "rows": rows, "failures": failures})
    }
}

/// A step that was taken.
#[derive(Clone, Debug)]
pub struct Done<S> {
    /// When it started.
    pub at: Timestamp,
    pub step: S,
    /// The answer of the API server, the HTTP API or helm.
    pub outcome: String,
}

/// A case that is over.
#[derive(Clone, Debug)]
pub struct Ran<S> {
    pub seed: u64,
    /// Says what it is, apart from its steps.
    pub head: String,
    pub done: Vec<Done<S>>,
    /// Says what happened meanwhile.
    pub notes: Vec<(Timestamp, String)>,
    pub violations: Vec<Violation>,
    /// More about them.
    pub details: Vec<String>,
    /// The arguments that repeat it.
    pub again: String,
}

impl<S> Default for Ran<S> {
    fn default() -> Ran<S> {
        let (done, notes, violations, details) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        Ran { seed: 0, head: String::new(), done, notes, violations, details, again: String::new() }
    }
}

impl<S: Display> Ran<S> {
    /// Returns all of it for people: the steps with times, the violations, the requests behind them, and how to repeat it.
    pub fn told(&self) -> String {
        let Ran { seed, head, done, notes, violations, details, again } = self;
        let mut text = format!("seed {seed}, {head}:");
        let mut lines = notes.clone();
        lines.extend(done.iter().map(|Done { at, step, outcome }| {
            let outcome = if outcome.is_empty() { String::new() } else { format!("\n                   -> {outcome}") };
            (*at, format!("{step}{outcome}"))
        }));
        lines.sort();
        lines.iter().for_each(|(at, line)| _ = write!(text, "\n  {}  {line}", at.strftime("%H:%M:%S%.3f")));
        violations.iter().for_each(|violation| _ = write!(text, "\n  {violation}"));
        details.iter().for_each(|detail| _ = write!(text, "\n    {detail}"));
        if !again.is_empty() {
            _ = write!(text, "\n  again: cargo e2e {again}");
        }
        text
    }

    /// Returns that, if it failed.
    pub fn failure(&self) -> Option<String> {
        (!self.violations.is_empty()).then(|| self.told())
    }
}

/// How a case of the matrix went.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub row: u8,
    /// Says whether the fault hit: a run may have fewer writes than the undisturbed one.
    pub hit: bool,
    /// From the fault to the end state.
    pub recovery: Option<Duration>,
    /// Revisions that the undisturbed run does not have.
    pub wasted: i64,
    /// Scenario, fault, and what does not hold; `None`: every oracle held.
    pub failure: Option<String>,
}

/// A row of the table.
#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    pub row: u8,
    pub title: &'static str,
    pub cases: usize,
    pub held: usize,
    /// Cases whose moment did not come. They count as neither.
    pub missed: usize,
    /// In seconds, of the cases that held: at the median and at worst.
    pub recovery: Option<(f64, f64)>,
    pub wasted: i64,
}

/// A line for each row that had cases.
pub fn lines(verdicts: &[Verdict]) -> Vec<Line> {
    let line = |Row { number, title }: Row| {
        let of_row: Vec<_> = verdicts.iter().filter(|verdict| verdict.row == number).collect();
        // A case that was not hit may fail all the same, and then it counts.
        let (cases, missed): (Vec<&Verdict>, Vec<&Verdict>) =
            of_row.iter().partition(|verdict| verdict.hit || verdict.failure.is_some());
        let held: Vec<_> = cases.iter().filter(|verdict| verdict.failure.is_none()).collect();
        let mut times: Vec<_> =
            held.iter().filter_map(|verdict| verdict.recovery).map(|time| time.as_secs_f64()).collect();
        times.sort_by(f64::total_cmp);
        let recovery = times.last().map(|worst| (times[times.len() / 2], *worst));
        let wasted = cases.iter().map(|verdict| verdict.wasted).sum();
        let (cases, held, missed) = (cases.len(), held.len(), missed.len());
        (!of_row.is_empty()).then_some(Line { row: number, title, cases, held, missed, recovery, wasted })
    };
    ROWS.into_iter().filter_map(line).collect()
}

/// For people, and for a page in Markdown.
fn table(lines: &[Line]) -> String {
    let mut text = String::from(
        "| row | fault | cases | held | recovery, median | worst | wasted revisions |\n|---|---|---|---|---|---|---|\n",
    );
    for Line { row, title, cases, held, missed: _, recovery, wasted } in lines {
        let seconds = |time: f64| format!("{time:.1} s");
        let (median, worst) =
            recovery.map_or(("–".to_owned(), "–".to_owned()), |(median, worst)| (seconds(median), seconds(worst)));
        _ = writeln!(text, "| {row} | {title} | {cases} | {held} | {median} | {worst} | {wasted} |");
    }
    let sum = |of: fn(&Line) -> usize| lines.iter().map(of).sum::<usize>();
    let (cases, held, missed) = (sum(|line| line.cases), sum(|line| line.held), sum(|line| line.missed));
    let wasted: i64 = lines.iter().map(|line| line.wasted).sum();
    _ = writeln!(text, "| | all | {cases} | {held} | | | {wasted} |");
    if missed > 0 {
        _ = writeln!(text, "\n{missed} more cases had fewer writes than the undisturbed run, and were not hit.");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::super::oracle::Oracle;
    use super::*;

    fn verdict(row: u8, seconds: u64, wasted: i64) -> Verdict {
        Verdict { row, hit: true, recovery: Some(Duration::from_secs(seconds)), wasted, failure: None }
    }

    #[test]
    fn what_is_counted() {
        let verdicts = [
            verdict(1, 9, 0),
            verdict(1, 3, 1),
            verdict(1, 30, 0),
            Verdict { failure: Some("a reason".to_owned()), ..verdict(1, 99, 0) },
            Verdict { hit: false, ..verdict(1, 0, 0) },
            verdict(22, 1, 0),
            Verdict { hit: false, failure: Some("a reason".to_owned()), ..verdict(22, 99, 0) },
        ];
        let lines = lines(&verdicts);
        let told: Vec<_> = lines.iter().map(|l| (l.row, l.cases, l.held, l.missed, l.recovery, l.wasted)).collect();
        assert_eq!(told, [(1, 4, 3, 1, Some((9.0, 30.0)), 1), (22, 2, 1, 0, Some((1.0, 1.0)), 0)]);
        let table = table(&lines);
        for line in [
            "| 1 | operator killed at each of its own writes | 4 | 3 | 9.0 s | 30.0 s | 1 |",
            "| 22 | answer lost of each write | 2 | 1 | 1.0 s | 1.0 s | 0 |",
            "| | all | 6 | 4 | | | 1 |",
            "1 more cases had fewer writes",
        ] {
            assert!(table.contains(line), "{line} is not in\n{table}");
        }
        let outcome = Outcome { seed: 7, lines, failures: vec!["a reason".to_owned()], ..Outcome::default() };
        let json = outcome.json();
        assert_eq!((&json["seed"], &json["rows"][0]["recoverySeconds"]["worst"]), (&json!(7), &json!(30.0)));
        let mut outcome = Outcome { cases: 12, ..outcome };
        outcome.count("operator killed", 3);
        let told = outcome.told();
        let counted =
            "| seed | 7 |\n|---|---|\n| cases | 12 |\n| operator killed | 3 |\n| failures | 1 |\n\na reason\n";
        assert!(told.ends_with(counted) && outcome.counted("operator killed") == 3, "{told}");
    }

    #[test]
    fn a_story_has_the_steps_and_repeats_itself() {
        let done = |second, step, outcome: &str| Done {
            at: Timestamp::from_second(second).unwrap(),
            step,
            outcome: outcome.to_owned(),
        };
        let ran = |violations| Ran {
            seed: 5,
            head: "Postgresql".to_owned(),
            done: vec![done(1, "replicas 2", ""), done(3, "port 0", "422 small")],
            notes: vec![(Timestamp::from_second(2).unwrap(), "* the operator is killed".to_owned())],
            violations,
            again: "specs --seed 5 --count 1".to_owned(),
            ..Ran::default()
        };
        assert_eq!(ran(Vec::new()).failure(), None);
        let expected = "seed 5, Postgresql:
  00:00:01.000  replicas 2
  00:00:02.000  * the operator is killed
  00:00:03.000  port 0
                   -> 422 small
  rest: it is not
  again: cargo e2e specs --seed 5 --count 1";
        assert_eq!(ran(vec![Violation::new(Oracle::Rest, "it is not")]).failure().as_deref(), Some(expected));
    }
}
