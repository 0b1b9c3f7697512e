//! Text for terminals: colours, ages, tables, trees. Pure; what is not a terminal has the colours stripped.

use anstyle::AnsiColor;
pub use anstyle::Style;
use jiff::{SignedDuration, Timestamp};

/// As it should be.
pub const GOOD: Style = AnsiColor::Green.on_default();
/// Not as it should be.
pub const BAD: Style = AnsiColor::Red.on_default();
/// Nobody knows.
pub const UNSURE: Style = AnsiColor::Yellow.on_default();
/// What matters least.
pub const FAINT: Style = Style::new().dimmed();
/// What matters most.
pub const STRONG: Style = Style::new().bold();
/// Like everything else.
pub const PLAIN: Style = Style::new();

/// Text in a style.
#[must_use]
pub fn paint(style: Style, text: &str) -> String {
    format!("{style}{}{style:#}", harmless(text))
}

/// Text without control characters: what is in an object was written by others, who shall not write to this terminal.
#[must_use]
pub fn harmless(text: &str) -> String {
    text.replace(char::is_control, " ")
}

/// The colour of a condition's status; `good` is the one that is as it should be.
#[must_use]
pub fn verdict(status: &str, good: &str) -> Style {
    match status {
        "Unknown" | "" => UNSURE,
        status if status == good => GOOD,
        _ => BAD,
    }
}

/// A time span in at most two units, as kubectl shows ages.
#[must_use]
pub fn span(span: SignedDuration) -> String {
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

/// The same for a time that cannot be negative.
#[must_use]
pub fn span_of(duration: std::time::Duration) -> String {
    span(SignedDuration::try_from(duration).unwrap_or(SignedDuration::MAX))
}

/// How long ago something was; `<unknown>` where nobody says when.
#[must_use]
pub fn age(then: Option<Timestamp>, now: Timestamp) -> String {
    then.map_or_else(|| "<unknown>".to_owned(), |then| span(now.duration_since(then)))
}

/// At most this many characters of the first line.
#[must_use]
pub fn shortened(text: &str, most: usize) -> String {
    let line = text.lines().next().unwrap_or_default();
    match line.char_indices().nth(most) {
        None => line.to_owned(),
        Some(_) => line.chars().take(most - 1).chain(['…']).collect(),
    }
}

/// One field of a table.
#[derive(Clone, Debug)]
pub struct Cell {
    text: String,
    style: Style,
}

impl Cell {
    fn width(&self) -> usize {
        self.text.chars().count()
    }
}

/// A field in a style.
pub fn styled(text: impl Into<String>, style: Style) -> Cell {
    Cell { text: harmless(&text.into()), style }
}

/// A field.
pub fn cell(text: impl Into<String>) -> Cell {
    styled(text, PLAIN)
}

/// Between two columns of a table.
const GAP: usize = 3;

/// A table as kubectl prints them: columns as wide as they need to be.
#[must_use]
pub fn table(header: &[&str], rows: &[Vec<Cell>]) -> String {
    let rows = with_header(header, rows);
    let widths = widths(&rows);
    rows.iter().map(|row| table_line(row, &widths)).collect()
}

/// A further line of a table that is printed already.
#[must_use]
pub fn table_line(row: &[Cell], widths: &[usize]) -> String {
    format!("{}\n", line(row, widths, GAP))
}

/// The rows below their header.
#[must_use]
pub fn with_header(header: &[&str], rows: &[Vec<Cell>]) -> Vec<Vec<Cell>> {
    let head: Vec<Cell> = header.iter().map(|title| styled(*title, STRONG)).collect();
    [&[head], rows].concat()
}

/// Rows whose columns are aligned with each other.
#[must_use]
pub fn lines(rows: &[Vec<Cell>], gap: usize) -> Vec<String> {
    let widths = widths(rows);
    rows.iter().map(|row| line(row, &widths, gap)).collect()
}

/// How wide each column has to be.
#[must_use]
pub fn widths(rows: &[Vec<Cell>]) -> Vec<usize> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or_default();
    let cells = |column: usize| rows.iter().filter_map(move |row| row.get(column));
    (0..columns).map(|column| cells(column).map(Cell::width).max().unwrap_or_default()).collect()
}

fn line(row: &[Cell], widths: &[usize], gap: usize) -> String {
    let mut line = String::new();
    for (column, cell) in row.iter().enumerate() {
        line += &paint(cell.style, &cell.text);
        if column + 1 < row.len() {
            let width = widths.get(column).copied().unwrap_or_default();
            line += &" ".repeat(width.saturating_sub(cell.width()) + gap);
        }
    }
    line
}

/// A line with lines below it.
#[derive(Clone, Debug, Default)]
pub struct Node {
    line: String,
    below: Vec<Node>,
}

impl Node {
    /// A line with these below it.
    pub fn new(line: impl Into<String>, below: Vec<Node>) -> Node {
        Node { line: line.into(), below }
    }

    /// A line.
    pub fn leaf(line: impl Into<String>) -> Node {
        Node::new(line, Vec::new())
    }

    /// The whole tree.
    #[must_use]
    pub fn draw(&self) -> String {
        let mut text = format!("{}\n", self.line);
        self.draw_below("", &mut text);
        text
    }

    fn draw_below(&self, indent: &str, text: &mut String) {
        for (index, node) in self.below.iter().enumerate() {
            let (branch, deeper) = if index + 1 == self.below.len() { ("└─", "  ") } else { ("├─", "│ ") };
            *text += &format!("{indent}{branch} {}\n", node.line);
            node.draw_below(&format!("{indent}{deeper} "), text);
        }
    }
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

    #[test]
    fn nobody_else_writes_to_the_terminal() {
        let text = table(&["A"], &[vec![cell("a\u{1b}]0;owned\u{7}\nb\u{9b}2J")]]);
        assert!(text.ends_with("a ]0;owned  b 2J\n"), "{text:?}");
        assert!(!paint(GOOD, "\u{1b}[2J").contains("\u{1b}[2J"));
    }

    #[test]
    fn colours_do_not_count_as_width() {
        let rows = [vec![styled("a", GOOD), cell("b")], vec![cell("longer"), cell("c")]];
        let text = table(&["X", "Y"], &rows);
        assert!(text.contains("\u{1b}[32ma\u{1b}[0m"));
        assert_eq!(anstream::adapter::strip_str(&text).to_string(), "X        Y\na        b\nlonger   c\n");
    }
}
