//! The table of chart versions and parts. **Pure.**

use std::fmt::Write as _;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// The columns.
    pub parts: Vec<String>,
    /// The cells of each version, in the order of the columns.
    pub rows: Vec<(String, Vec<Cell>)>,
}

/// A part of a version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cell {
    Fine,
    /// The version does not have the part.
    Absent,
    /// The version does not render with the part and its own values either.
    Broken,
    /// A sentence for each violation.
    Violated(Vec<String>),
}

impl Cell {
    /// Returns the cell for what was found about each variant of a part, by its name.
    #[must_use]
    pub fn of(verdicts: Vec<(String, Vec<String>)>) -> Cell {
        let named = |(variant, told): (String, Vec<String>)| {
            let prefix = if variant.is_empty() { variant } else { format!("{variant}: ") };
            told.into_iter().map(move |told| format!("{prefix}{told}"))
        };
        let all: Vec<_> = verdicts.into_iter().flat_map(named).collect();
        if all.is_empty() { Cell::Fine } else { Cell::Violated(all) }
    }
}

impl Table {
    /// Returns each violation once, with its part, in the order of the rows.
    #[must_use]
    pub fn violations(&self) -> Vec<String> {
        let mut all = Vec::new();
        for (_, cells) in &self.rows {
            for told in cells.iter().zip(&self.parts).flat_map(|(cell, part)| sentences(cell, part)) {
                if !all.contains(&told) {
                    all.push(told);
                }
            }
        }
        all
    }

    /// Returns the table in Markdown, with a number for each violation, and all violations. Successive versions whose cells are equal
    /// share a row, unless all rows are asked for.
    #[must_use]
    pub fn told(&self, all_rows: bool) -> String {
        let violations = self.violations();
        let word = |cell: &Cell, part: &str| match cell {
            Cell::Fine => "ok".to_owned(),
            Cell::Absent => "–".to_owned(),
            Cell::Broken => "broken".to_owned(),
            Cell::Violated(_) => {
                let numbers =
                    sentences(cell, part).filter_map(|told| violations.iter().position(|known| *known == told));
                numbers.map(|number| (number + 1).to_string()).collect::<Vec<_>>().join(" ")
            }
        };
        let mut text = format!("| chart | {} |\n|---|{}\n", self.parts.join(" | "), "---|".repeat(self.parts.len()));
        let mut rows = self.rows.iter().peekable();
        while let Some((first, cells)) = rows.next() {
            let mut last = first;
            while let Some((version, _)) = rows.next_if(|(_, next)| !all_rows && next == cells) {
                last = version;
            }
            let versions = if first == last { first.clone() } else { format!("{first} – {last}") };
            let words: Vec<_> = cells.iter().zip(&self.parts).map(|(cell, part)| word(cell, part)).collect();
            _ = writeln!(text, "| {versions} | {} |", words.join(" | "));
        }
        for (number, told) in violations.iter().enumerate() {
            _ = write!(text, "\n{}. {told}", number + 1);
        }
        if violations.is_empty() { text } else { text + "\n" }
    }
}

fn sentences<'a>(cell: &'a Cell, part: &'a str) -> impl Iterator<Item = String> + 'a {
    let told = if let Cell::Violated(told) = cell { told.as_slice() } else { &[] };
    told.iter().map(move |told| format!("{part}: {told}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_with_equal_cells_share_a_row_and_a_violation_has_one_number() {
        let violated = |told: &str| Cell::of(vec![("one".to_owned(), vec![told.to_owned()]), (String::new(), vec![])]);
        let row = |version: &str, cells: [Cell; 2]| (version.to_owned(), cells.to_vec());
        let fine = || Cell::of(vec![(String::new(), vec![])]);
        let table = Table {
            parts: vec!["plain".to_owned(), "mail".to_owned()],
            rows: vec![
                row("1.0.0", [fine(), Cell::Absent]),
                row("1.0.1", [fine(), Cell::Absent]),
                row("1.1.0", [violated("a"), violated("b")]),
                row("1.2.0", [fine(), violated("b")]),
            ],
        };
        assert_eq!(
            table.told(false),
            "| chart | plain | mail |\n|---|---|---|\n| 1.0.0 – 1.0.1 | ok | – |\n| 1.1.0 | 1 | 2 |\n| 1.2.0 | ok | 2 |\n\
             \n1. plain: one: a\n2. mail: one: b\n"
        );
        assert_eq!(table.told(true).lines().filter(|line| line.starts_with("| 1")).count(), 4);
        assert_eq!(Table::default().violations(), Vec::<String>::new());
    }
}
