//! The table of the matrix. Pure.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::{Value, json};

use crate::random::disturbance::row::{ROWS, Row};

/// The result of a case.
#[derive(Clone, Debug)]
pub struct Verdict {
    pub row: u8,
    /// Whether the fault hit: a run may have fewer writes than the undisturbed one.
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
#[must_use]
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
#[must_use]
pub fn table(lines: &[Line]) -> String {
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

/// For programs.
#[must_use]
pub fn json(seed: u64, lines: &[Line], failures: &[String]) -> Value {
    let rows: Vec<_> = lines
        .iter()
        .map(|Line { row, title, cases, held, missed, recovery, wasted }| {
            json!({
                "row": row, "fault": title, "cases": cases, "held": held, "missed": missed, "wastedRevisions": wasted,
                "recoverySeconds": recovery.map(|(median, worst)| json!({"median": median, "worst": worst})),
            })
        })
        .collect();
    json!({"seed": seed, "rows": rows, "failures": failures})
}

#[cfg(test)]
mod tests {
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
        let json = json(7, &lines, &["a reason".to_owned()]);
        assert_eq!((&json["seed"], &json["rows"][0]["recoverySeconds"]["worst"]), (&json!(7), &json!(30.0)));
    }
}
