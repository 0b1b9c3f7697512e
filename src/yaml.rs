//! YAML that users write and read. **Pure.**
//!
//! kubectl and helm parse YAML 1.1, where a plain `no` is false and `1_000` is a number; nearly every other parser, including the one
//! in this program, follows YAML 1.2, where both are strings. To keep values the same for all of them, ambiguous scalars are neither
//! accepted nor printed.

use std::{borrow::Cow, ops::Range};

use granit_parser::{Event, Parser, ScalarStyle, ScanError};
use serde::{Deserialize as _, Serialize};
use serde_json::Value;

/// So many brackets, and so many directives for tags, cost nothing that is worth a look.
const FEW: usize = 200;

/// Says why a text cannot be read. Its sentence quotes the text, unlike [`discreet`](Unread::discreet).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Unread {
    #[error("not YAML: {message}")]
    NotYaml { line: Option<usize>, message: String },
    #[error(
        "line {line}: {word} is {meaning} to kubectl and helm, and text to other readers of YAML: write \"{word}\" for the text, or write the other meaning explicitly"
    )]
    Ambiguous { line: usize, word: String, meaning: &'static str },
    #[error(
        "line {line}: an alias, with which a short text can become a very large value: write out what it stands for"
    )]
    Alias { line: usize },
    #[error("it has more than {FEW} directives for tags: write the tags out")]
    Directives,
}

impl Unread {
    /// A sentence that discloses nothing of the text.
    pub(crate) fn discreet(&self) -> String {
        match self {
            Unread::NotYaml { line: Some(line), .. } => format!("line {line}: not YAML"),
            Unread::NotYaml { line: None, .. } => "not YAML".to_owned(),
            Unread::Ambiguous { line, .. } => format!(
                "line {line}: a word has another meaning to kubectl and helm than to other readers of YAML: write it in quotes for the text, or write the other meaning explicitly"
            ),
            Unread::Alias { .. } | Unread::Directives => self.to_string(),
        }
    }
}

fn not_yaml(error: &ScanError) -> Unread {
    Unread::NotYaml { line: Some(error.marker().line()), message: error.to_string() }
}

impl From<serde_yaml::Error> for Unread {
    fn from(error: serde_yaml::Error) -> Self {
        Unread::NotYaml { line: error.location().map(|place| place.line()), message: error.to_string() }
    }
}

/// Parses one document. The error says why it is not YAML, or which part of it is ambiguous.
pub fn read(text: &str) -> Result<Value, String> {
    let read = || {
        is_cheap(text)?;
        let value = serde_yaml::from_str(text)?;
        unambiguous(text).map(|()| value)
    };
    read().map_err(|unread: Unread| unread.to_string())
}

/// Parses one document of an author who is not trusted with the memory of this process: aliases are refused.
pub(crate) fn read_without_aliases(text: &str) -> Result<Value, Unread> {
    is_cheap(text)?;
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| not_yaml(&error))?;
        if let Event::Alias(_) = event {
            return Err(Unread::Alias { line: span.start.line() });
        }
    }
    let value = serde_yaml::from_str(text)?;
    unambiguous(text).map(|()| value)
}

/// Refuses a text that takes libyaml, which is behind `serde_yaml`, much longer than its length suggests: it compares each directive
/// for a tag with all others, and each token with all brackets that are open. granit refuses more than 255 of those, in linear time.
fn is_cheap(text: &str) -> Result<(), Unread> {
    if text.matches("%TAG").nth(FEW).is_some() {
        return Err(Unread::Directives);
    }
    if text.matches(['[', '{']).nth(FEW).is_some() {
        Parser::new_from_str(text).try_for_each(|event| event.map(drop)).map_err(|error| not_yaml(&error))?;
    }
    Ok(())
}

/// Calls `take` for each document of a text, aliases and ambiguous scalars included.
pub(crate) fn each(text: &str, mut take: impl FnMut(Value) -> Result<(), String>) -> Result<(), String> {
    is_cheap(text).map_err(|unread| unread.to_string())?;
    serde_yaml::Deserializer::from_str(text)
        .try_for_each(|document| take(Value::deserialize(document).map_err(|error| format!("not YAML: {error}"))?))
}

/// Parses any number of documents, with the same errors.
pub fn documents(text: &str) -> Result<Vec<Value>, String> {
    let mut documents = Vec::new();
    each(text, |document| {
        documents.push(document);
        Ok(())
    })?;
    unambiguous(text).map(|()| documents).map_err(|unread| unread.to_string())
}

/// Prints a document, with ambiguous scalars in quotes.
pub fn print(value: &impl Serialize) -> Result<String, String> {
    let mut text = serde_yaml::to_string(value).map_err(|error| error.to_string())?;
    let found = ambiguous(&text).map_err(|unread| unread.to_string())?;
    for Ambiguous { place, .. } in found.into_iter().rev() {
        text.insert(place.end, '\'');
        text.insert(place.start, '\'');
    }
    Ok(text)
}

/// Rewrites ambiguous scalars to what kubectl and helm read: `0755` to 493, `no` to false.
pub fn as_helm_reads(text: &str) -> Result<Cow<'_, str>, String> {
    let found = ambiguous(text).map_err(|unread| unread.to_string())?;
    if found.is_empty() {
        return Ok(text.into());
    }
    let mut text = text.to_owned();
    for Ambiguous { line, place, meaning } in found.into_iter().rev() {
        let word = text[place.clone()].to_owned();
        let digits = word.replace('_', "");
        let (sign, digits) = match digits.strip_prefix('-') {
            Some(digits) => (-1, digits),
            None => (1, digits.strip_prefix('+').unwrap_or(&digits)),
        };
        let number = match digits.strip_prefix('0') {
            Some(octal) => i64::from_str_radix(octal, 8),
            None => digits.parse(),
        }
        .map(|number: i64| sign * number);
        let means = match (meaning, number) {
            ("true" | "false", _) => meaning.to_owned(),
            ("a number", Ok(number)) => number.to_string(),
            _ => return Err(format!("line {line}: {word} is {meaning} to helm, which is not supported here")),
        };
        text.replace_range(place, &means);
    }
    Ok(text.into())
}

fn unambiguous(text: &str) -> Result<(), Unread> {
    match ambiguous(text)?.first() {
        None => Ok(()),
        Some(Ambiguous { line, place, meaning }) => {
            Err(Unread::Ambiguous { line: *line, word: text[place.clone()].to_owned(), meaning })
        }
    }
}

/// A plain scalar that YAML 1.1 and 1.2 read differently.
struct Ambiguous {
    line: usize,
    place: Range<usize>,
    meaning: &'static str,
}

fn ambiguous(text: &str) -> Result<Vec<Ambiguous>, Unread> {
    let mut found = Vec::new();
    for event in Parser::new_from_str(text) {
        let (event, span) = event.map_err(|error| not_yaml(&error))?;
        if let Event::Scalar(scalar, ScalarStyle::Plain, _, None) = event
            && let (Some(meaning), Some(place)) = (meaning(&scalar), span.byte_range())
        {
            found.push(Ambiguous { line: span.start.line(), place, meaning });
        }
    }
    Ok(found)
}

/// Returns what a plain scalar means to kubectl and helm (`go.yaml.in/yaml/v2`, resolve.go), if it is text in YAML 1.2.
fn meaning(scalar: &str) -> Option<&'static str> {
    match scalar {
        "y" | "Y" | "yes" | "Yes" | "YES" | "on" | "On" | "ON" => Some("true"),
        "n" | "N" | "no" | "No" | "NO" | "off" | "Off" | "OFF" => Some("false"),
        "<<" => Some("a merge of what follows it"),
        _ => (is_number(scalar) && matches!(serde_yaml::from_str(scalar), Ok(Value::String(_)))).then_some("a number"),
    }
}

/// Returns true if it is a number in YAML 1.1: with underscores anywhere, or leading zeros. Go parses one that begins with a dot with
/// `strconv.ParseFloat`, which accepts underscores only between digits; one that begins with `0b` may have a sign after that.
fn is_number(scalar: &str) -> bool {
    let plain = scalar.replace('_', "");
    let digits = plain.to_ascii_lowercase();
    let unsigned = digits.strip_prefix(['+', '-']).unwrap_or(&digits);
    let is_of = |(prefix, radix): (&str, u32)| {
        let rest = unsigned.strip_prefix(prefix).filter(|rest| !rest.starts_with('+'));
        rest.is_some_and(|rest| u64::from_str_radix(rest, radix).is_ok())
    };
    let begins = |text: &str| text.starts_with(|first: char| first.is_ascii_digit());
    let parts: Vec<_> = scalar.split('_').collect();
    let separated =
        || parts.windows(2).all(|pair| pair[0].ends_with(|last: char| last.is_ascii_digit()) && begins(pair[1]));
    (begins(scalar) || scalar.starts_with(['+', '-']) || scalar.starts_with('.') && separated())
        && (begins(unsigned.trim_start_matches('.')) && unsigned.parse::<f64>().is_ok_and(f64::is_finite)
            || [("0x", 16), ("0o", 8), ("0b", 2)].into_iter().any(is_of)
            || plain.strip_prefix("0b").is_some_and(|rest| i64::from_str_radix(rest, 2).is_ok()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_has_two_meanings_is_named_and_not_read() {
        for (text, word, meaning) in [
            ("a: 1\nb: {c: [x, no]}\n", "line 2: no", "false"),
            ("y: 1", "line 1: y", "true"),
            ("a: On", "line 1: On", "true"),
            ("a: 1_000", "line 1: 1_000", "a number"),
            ("a: -0x_1f", "line 1: -0x_1f", "a number"),
            ("a: 0X1F", "line 1: 0X1F", "a number"),
            ("a: 0777", "line 1: 0777", "a number"),
            ("a: 08", "line 1: 08", "a number"),
            ("a: +01", "line 1: +01", "a number"),
            ("a: .1_435_4", "line 1: .1_435_4", "a number"),
            ("a: 0b-1", "line 1: 0b-1", "a number"),
            ("a: &b {c: 1}\nd: {<<: *b}", "line 2: <<", "a merge"),
            ("a: 1\n---\nb: yes", "line 3: yes", "true"),
        ] {
            let problem = documents(text).unwrap_err();
            assert!(problem.starts_with(&format!("{word} is {meaning}")), "{text}: {problem}");
        }
    }

    #[test]
    fn what_helm_reads() {
        for (text, expected) in [
            ("a: 0755\nb: [no, '0755', On]\nc: |\n  0755\n", Ok("a: 493\nb: [false, '0755', true]\nc: |\n  0755\n")),
            ("a: 1_000\nyes: 1\n", Ok("a: 1000\ntrue: 1\n")),
            ("ä: -0755\nb: +0755\n", Ok("ä: -493\nb: 493\n")),
            ("a: 0x1_f\n", Err("line 1: 0x1_f is a number to helm")),
            ("a: 755\nb: text\n", Ok("a: 755\nb: text\n")),
            ("a: 08\n", Err("line 1: 08 is a number to helm")),
            ("a: &b {c: 1}\nd: {<<: *b}\n", Err("line 2: << is a merge of what follows it to helm")),
        ] {
            match (as_helm_reads(text), expected) {
                (Ok(read), Ok(expected)) => assert_eq!(read, expected),
                (Err(problem), Err(expected)) => assert!(problem.starts_with(expected), "{problem}"),
                (read, _) => panic!("{text}: {read:?}"),
            }
        }
    }

    #[test]
    fn all_else_is_read() {
        for (text, value) in [
            (
                "a: \"no\"\nb: 'yes'\n\"y\": |\n  on\nc: true\nd: ~",
                json!({"a": "no", "b": "yes", "y": "on\n", "c": true, "d": null}),
            ),
            ("[0o14, 1e3, -1.5, 0.5, 0, 0x1f]", json!([12, 1000.0, -1.5, 0.5, 0, 31])),
            (
                "[2001-01-01, 12:30:45, +inf, 1.2.3, 5_a, _1, ._1, .1__2, 0x+1, no way]",
                json!(["2001-01-01", "12:30:45", "+inf", "1.2.3", "5_a", "_1", "._1", ".1__2", "0x+1", "no way"]),
            ),
            ("# no\n", json!(null)),
            ("{\"a\": \"\\u0000\"}", json!({"a": "\u{0}"})),
        ] {
            assert_eq!(read(text), Ok(value), "{text}");
        }
        assert!(read("a: [").unwrap_err().starts_with("not YAML: "));
        assert_eq!(documents("---\na: 1\n---\n---\nb: 2\n").unwrap().len(), 3);
    }

    #[test]
    fn of_a_secret_text_only_the_line_is_told() {
        let refused = |text: &str| {
            let unread = read_without_aliases(text).unwrap_err();
            (unread.to_string(), unread.discreet())
        };
        for (text, quoted, discreet) in [
            ("a: 1\npassword: 0123456", "line 2: 0123456 is a number", "line 2: a word has another meaning"),
            ("a: &x [canary]\nb: *x", "line 2: an alias", "line 2: an alias"),
            ("a: \"canary", "not YAML: ", "line "),
            ("a: [canary", "not YAML: ", "line "),
            ("canary: b: c", "not YAML: ", "line 1: not YAML"),
            ("a: \"\\canary\"", "not YAML: ", "line 1: not YAML"),
            ("? [canary]\n: 1", "not YAML: ", "line 1: not YAML"),
        ] {
            let (said, safe) = refused(text);
            assert!(said.starts_with(quoted), "{text}: {said}");
            assert!(safe.starts_with(discreet), "{text}: {safe}");
            assert!(!safe.contains("canary") && !safe.contains("0123456"), "{text}: {safe}");
        }
        assert_eq!(read_without_aliases("a: &x 1\nb: '*x'"), Ok(json!({"a": 1, "b": "*x"})));
        // A stack that overflowed would end the process.
        assert!(read_without_aliases(&"[".repeat(200_000)).is_err());
        assert!(read_without_aliases(&"{a: ".repeat(50_000)).is_err());
    }

    /// Each of them would take many minutes.
    #[test]
    fn a_text_whose_parsing_takes_long_is_not_parsed() {
        let tags = |number: usize| (0..number).map(|at| format!("%TAG !t{at}! t\n")).collect::<String>() + "---\na: 1";
        let deep = |depth: usize| format!("a: {}1{}", "[".repeat(depth), "]".repeat(depth));
        for text in [tags(100_000), deep(1_500_000), format!("{}{}", deep(9000), "\nb: [1,1]".repeat(300_000))] {
            let secret = read_without_aliases(&text).map_err(|unread| unread.to_string());
            for problem in [read(&text).err(), secret.err(), documents(&text).err(), each(&text, |_| Ok(())).err()] {
                let problem = problem.unwrap();
                assert!(problem.starts_with("not YAML: ") || problem.contains("directives"), "{problem}");
            }
        }
        for text in [tags(20), deep(100), format!("a: [{}1]", "[1],".repeat(10_000))] {
            assert!(read(&text).is_ok() && documents(&text).is_ok(), "{text:.100}");
        }
    }

    #[test]
    fn what_is_printed_has_one_meaning() {
        let list = json!(["1_000", "0777", ".1_4", "<<", "no way", {"on": "off"}]);
        let value = json!({"y": "NO", "list": list, "n": {"é": "a\nb"}, "<<": 1});
        let text = print(&value).unwrap();
        assert_eq!(read(&text), Ok(value), "{text}");
        assert!(text.contains("'y': 'NO'") && text.contains("- no way"), "{text}");
    }
}
