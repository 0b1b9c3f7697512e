//! Text for terminals: colours, ages, tables, trees. Pure; colours are stripped on output that is not a terminal.

use std::{fmt::Display, io::Write as _, time::Duration};

use anstyle::AnsiColor;
pub(crate) use anstyle::Style;
use jiff::{SignedDuration, Timestamp};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tabwriter::TabWriter;
use termtree::{GlyphPalette, Tree};

use crate::{
    crd::{MAX_NAME, NAME_TOO_LONG},
    helm::cli::message::is_invisible,
};

pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
pub(crate) const UNSURE: Style = AnsiColor::Yellow.on_default();
pub(crate) const FAINT: Style = Style::new().dimmed();
pub(crate) const STRONG: Style = Style::new().bold();
pub(crate) const PLAIN: Style = Style::new();

pub(crate) fn paint(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Replaces control characters, and those that reorder or hide text.
pub(crate) fn harmless(text: &str) -> String {
    text.replace(|char: char| char.is_control() || is_invisible(char), " ")
}

/// An object of the cluster, for humans: its text is untrusted and must not control the terminal.
pub(crate) fn tamed<K: DeserializeOwned>(object: &impl Serialize) -> serde_json::Result<K> {
    fn tame(value: &mut Value) {
        match value {
            Value::String(text) => *text = harmless(text),
            Value::Array(values) => values.iter_mut().for_each(tame),
            Value::Object(fields) => fields.values_mut().for_each(tame),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
    let mut value = serde_json::to_value(object)?;
    tame(&mut value);
    serde_json::from_value(value)
}

/// The colour of a condition's status; `good` is the healthy one.
pub(crate) fn verdict(status: &str, good: &str) -> Style {
    match status {
        "Unknown" | "" => UNSURE,
        status if status == good => GOOD,
        _ => BAD,
    }
}

/// A duration in at most two units, as kubectl shows ages.
pub(crate) fn span(span: SignedDuration) -> String {
    let seconds = span.as_secs().max(0);
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86400);
    let two = |large: i64, unit: &str, rest: i64, small: &str| match rest {
        0 => format!("{large}{unit}"),
        rest => format!("{large}{unit}{rest}{small}"),
    };
    match seconds {
        0..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        _ => format!("{days}d"),
    }
}

pub(crate) fn span_of(duration: Duration) -> String {
    span(SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX))
}

/// A duration as a user writes it.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let parsed = text.parse::<SignedDuration>().ok().and_then(|duration| Duration::try_from(duration).ok());
    parsed.ok_or_else(|| "expected a duration such as 90s, 10m or 1h30m".to_owned())
}

/// The name of a ClientApp to create, of a length that its Helm release can have. The API server judges the rest.
pub(crate) fn new_name(text: &str) -> Result<String, String> {
    if text.len() > MAX_NAME { Err(NAME_TOO_LONG.to_owned()) } else { Ok(text.to_owned()) }
}

/// How long ago something was; `<unknown>` without a time.
pub(crate) fn age(then: Option<Timestamp>, now: Timestamp) -> String {
    then.map_or_else(|| "<unknown>".to_owned(), |then| span(now.duration_since(then)))
}

/// At most this many characters of the first line.
pub(crate) fn shortened(text: &str, most: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(most) {
        None => line.to_owned(),
        Some(_) => line.chars().take(most - 1).chain(['…']).collect(),
    }
}

/// Spaces between two columns of a table.
const GAP: usize = 3;

/// Minimum length of a cell that is cut.
const LEAST: usize = 4;

/// A table as kubectl prints it: columns as wide as they need to be.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    fitted(header, rows, &[], None)
}

/// A table whose rows take one line each on a terminal of this width, if cutting the cells of these columns makes that possible.
/// Without a width, nothing is cut; without a header, there is no line for it; without rows, there is no table.
pub(crate) fn fitted(header: &[&str], rows: &[Vec<String>], cut: &[usize], width: Option<usize>) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let titles: Vec<String> = header.iter().map(|title| paint(STRONG, title)).collect();
    let titles = if titles.is_empty() { vec![] } else { vec![titles] };
    let draw = |most: usize| {
        let cells = |row: &Vec<String>| {
            let cell = |(at, cell): (usize, &String)| match cut.contains(&at) {
                true => shortened(cell, most),
                false => cell.clone(),
            };
            row.iter().enumerate().map(cell).collect()
        };
        columns(&[titles.clone(), rows.iter().map(cells).collect()].concat(), GAP)
    };
    let Some(width) = width else { return draw(usize::MAX) };
    let is_too_wide = |most: &usize| draw(*most).lines().any(|line| console::measure_text_width(line) > width);
    let lengths = rows.iter().flat_map(|row| cut.iter().filter_map(|at| row.get(*at))).map(|cell| cell.chars().count());
    let limits: Vec<usize> = (LEAST..=lengths.max().unwrap_or(LEAST).max(LEAST)).rev().collect();
    draw(limits.get(limits.partition_point(is_too_wide)).copied().unwrap_or(LEAST))
}

/// Rows with aligned columns, one line each.
pub(crate) fn columns(rows: &[Vec<String>], gap: usize) -> String {
    let lines: String = rows.iter().map(|row| row.join("\t") + "\n").collect();
    let mut writer = TabWriter::new(Vec::new()).minwidth(0).padding(gap).ansi(true);
    // Writing to memory does not fail.
    let _ = writer.write_all(lines.as_bytes());
    writer.into_inner().ok().and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or(lines)
}

/// A line with lines below it.
pub(crate) type Node = Tree<String>;

pub(crate) fn node(line: impl Into<String>, below: Vec<Node>) -> Node {
    const BRANCHES: GlyphPalette = GlyphPalette {
        middle_item: "├",
        last_item: "└",
        item_indent: "─ ",
        middle_skip: "│",
        last_skip: " ",
        skip_indent: "  ",
    };
    Node::new(line.into()).with_leaves(below).with_glyphs(BRANCHES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans() {
        for (seconds, text) in [
            (-5, "0s"),
            (0, "0s"),
            (119, "119s"),
            (120, "2m"),
            (125, "2m5s"),
            (3600, "60m"),
            (4 * 3600 + 120, "4h2m"),
            (30 * 3600, "30h"),
            (50 * 3600, "2d2h"),
            (30 * 86400, "30d"),
        ] {
            assert_eq!(span(SignedDuration::from_secs(seconds)), text);
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration("1h30m"), Ok(Duration::from_secs(5400)));
        assert_eq!(duration("90s"), Ok(Duration::from_secs(90)));
        for wrong in ["", "10", "-5s", "soon"] {
            assert!(duration(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn names_of_new_apps() {
        for (length, fits) in [(1, true), (37, true), (38, false), (40, false), (41, false), (53, false), (54, false)] {
            let refused = new_name(&"a".repeat(length)).err();
            assert_eq!(refused.is_none(), fits, "{length}");
            assert!(refused.is_none_or(|problem| problem.contains("at most 37 characters")));
        }
    }

    #[test]
    fn shortening() {
        assert_eq!(shortened("äöüß", 4), "äöüß");
        assert_eq!(shortened("äöüßx", 4), "äöü…");
        assert_eq!(shortened("one\ntwo", 10), "one");
    }
}
