//! Text for terminals: colours, ages, tables, trees. Pure; colours are stripped on output that is not a terminal.

use std::{fmt::Display, io::Write as _};

use anstyle::AnsiColor;
pub(crate) use anstyle::Style;
use jiff::{SignedDuration, Timestamp};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;
use tabwriter::TabWriter;
use termtree::{GlyphPalette, Tree};

pub(crate) const GOOD: Style = AnsiColor::Green.on_default();
pub(crate) const BAD: Style = AnsiColor::Red.on_default();
pub(crate) const UNSURE: Style = AnsiColor::Yellow.on_default();
pub(crate) const FAINT: Style = Style::new().dimmed();
pub(crate) const STRONG: Style = Style::new().bold();
pub(crate) const PLAIN: Style = Style::new();

pub(crate) fn paint(style: Style, text: impl Display) -> String {
    format!("{style}{text}{style:#}")
}

/// Replaces control characters.
pub(crate) fn harmless(text: &str) -> String {
    text.replace(char::is_control, " ")
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

pub(crate) fn span_of(duration: std::time::Duration) -> String {
    span(SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX))
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

/// A table as kubectl prints it: columns as wide as they need to be.
pub(crate) fn table(header: &[&str], rows: &[Vec<String>]) -> String {
    let header: Vec<_> = header.iter().map(|title| paint(STRONG, title)).collect();
    columns(&[&[header], rows].concat(), GAP)
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
    fn shortening() {
        assert_eq!(shortened("äöüß", 4), "äöüß");
        assert_eq!(shortened("äöüßx", 4), "äöü…");
        assert_eq!(shortened("one\ntwo", 10), "one");
    }
}
