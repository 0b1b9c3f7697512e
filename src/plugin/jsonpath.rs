//! `-o jsonpath=…`: templates as kubectl reads them, around paths as RFC 9535 does. Pure.

use std::str::FromStr;

use jsonpath_rust::{
    parser::{model::JpQuery, parse_json_path},
    query::js_path_process,
};
use serde_json::Value;

/// Text with paths in braces, such as `{.metadata.name}{"\n"}` or `{range .items[*]}{.metadata.name}, {end}`.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Template(Vec<Part>);

#[derive(Clone, Debug, PartialEq)]
enum Part {
    Text(String),
    Path(JpQuery),
    /// What is inside, for each value that the path finds.
    Range(JpQuery, Vec<Part>),
}

impl FromStr for Template {
    type Err = String;

    fn from_str(text: &str) -> Result<Template, String> {
        let mut parts = Vec::new();
        // The ranges that have begun, each with what comes before it.
        let mut begun: Vec<(JpQuery, Vec<Part>)> = Vec::new();
        let mut rest = text;
        while let Some((before, after)) = rest.split_once('{') {
            if !before.is_empty() {
                parts.push(Part::Text(before.to_owned()));
            }
            let (inside, after) = enclosed(after, '{', '}').ok_or_else(|| format!("{{{after} has no closing }}"))?;
            rest = after;
            match inside.trim() {
                "end" => {
                    let (of, outside) = begun.pop().ok_or("{end} has no {range …} before it")?;
                    let inside = std::mem::replace(&mut parts, outside);
                    parts.push(Part::Range(of, inside));
                }
                quoted if quoted.starts_with(['"', '\'']) => parts.push(Part::Text(literal(quoted)?)),
                path => match path.strip_prefix("range ") {
                    Some(path) => begun.push((query(path.trim())?, std::mem::take(&mut parts))),
                    None => parts.push(Part::Path(query(path)?)),
                },
            }
        }
        if !begun.is_empty() {
            return Err("{range …} has no {end}".to_owned());
        }
        if !rest.is_empty() {
            parts.push(Part::Text(rest.to_owned()));
        }
        Ok(Template(parts))
    }
}

impl Template {
    /// The text for an object. What a path does not find is empty.
    pub(crate) fn render(&self, object: &Value) -> String {
        let mut text = String::new();
        write(&self.0, object, &mut text);
        text
    }
}

fn write(parts: &[Part], object: &Value, text: &mut String) {
    for part in parts {
        match part {
            Part::Text(literal) => *text += literal,
            Part::Path(path) => *text += &found(path, object).into_iter().map(shown).collect::<Vec<_>>().join(" "),
            Part::Range(path, inside) => found(path, object).into_iter().for_each(|item| write(inside, item, text)),
        }
    }
}

fn found<'a>(path: &JpQuery, object: &'a Value) -> Vec<&'a Value> {
    let found = js_path_process(path, object).unwrap_or_default();
    found.into_iter().map(|found| found.val()).collect()
}

fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null => String::new(),
        other => other.to_string(),
    }
}

/// What comes before the bracket that closes an open one, and what comes after it.
fn enclosed(text: &str, open: char, close: char) -> Option<(&str, &str)> {
    let (mut depth, mut quote, mut escaped) = (1, None, false);
    for (at, char) in text.char_indices() {
        match char {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if quote == Some(char) => quote = None,
            _ if quote.is_some() => {}
            '"' | '\'' => quote = Some(char),
            _ if char == open => depth += 1,
            _ if char == close => depth -= 1,
            _ => {}
        }
        if depth == 0 {
            return Some((&text[..at], &text[at + close.len_utf8()..]));
        }
    }
    None
}

fn literal(quoted: &str) -> Result<String, String> {
    let json = match quoted.strip_prefix('\'').and_then(|rest| rest.strip_suffix('\'')) {
        Some(inside) => format!("\"{}\"", inside.replace("\\'", "'").replace('"', "\\\"")),
        None => quoted.to_owned(),
    };
    serde_json::from_str(&json).map_err(|_| format!("{quoted} is not a text in quotes"))
}

fn query(path: &str) -> Result<JpQuery, String> {
    let refused = || format!("{{{path}}} is not a path such as {{.status.release.revision}}");
    parse_json_path(&standard(path).ok_or_else(refused)?).map_err(|_| refused())
}

/// A path as RFC 9535 spells it: there, a name after a dot consists of letters, digits and `_`.
fn standard(path: &str) -> Option<String> {
    let mut rest = path.strip_prefix(['$', '@']).unwrap_or(path);
    let mut standard = "$".to_owned();
    if path.is_empty() || rest == "." {
        return (rest == ".").then_some(standard);
    }
    while !rest.is_empty() {
        if let Some(after) = rest.strip_prefix('[') {
            let (inside, after) = enclosed(after, '[', ']')?;
            standard += &format!("[{inside}]");
            rest = after;
            continue;
        }
        let (dots, after) = match rest.strip_prefix("..") {
            Some(after) => ("..", after),
            None => ("", rest.strip_prefix('.')?),
        };
        let (name, after) = member(after);
        rest = after;
        standard += dots;
        match name.as_str() {
            // A bracket follows.
            "" if rest.starts_with('[') => {}
            "" => return None,
            "*" => standard += "[*]",
            name if name.contains(char::is_whitespace) => return None,
            name => standard += &format!("[{}]", Value::from(name)),
        }
    }
    Some(standard)
}

/// The name of a field, up to a dot or a bracket that is not escaped, and what follows.
fn member(text: &str) -> (String, &str) {
    let (mut name, mut escaped) = (String::new(), false);
    for (at, char) in text.char_indices() {
        match char {
            '\\' if !escaped => escaped = true,
            '.' | '[' if !escaped => return (name, &text[at..]),
            _ => {
                name.push(char);
                escaped = false;
            }
        }
    }
    (name, "")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_templates_print() {
        let list = json!({"items": [
            {
                "metadata": {"name": "acme", "annotations": {"example.com/a-b": "c"}},
                "status": {
                    "release": {"revision": 2}, "url": null,
                    "conditions": [{"type": "Ready", "status": "True"}, {"type": "Stalled", "status": "False"}],
                },
            },
            {"metadata": {"name": "globex"}, "status": {"release": {"revision": 7}}},
        ]});
        let one = &list["items"][0];
        for (object, template, text) in [
            (one, "{.status.release.revision}", "2"),
            (one, "{$.metadata.name}", "acme"),
            (one, "{ .metadata.name }", "acme"),
            (one, r#"{.status.conditions[?(@.type=="Ready")].status}"#, "True"),
            (one, "{.status.conditions[?(@.type=='Stalled')].status}", "False"),
            (one, "{.status.conditions[*].type}", "Ready Stalled"),
            (one, "{.status.conditions[-1:].type}", "Stalled"),
            (one, r"{.metadata.annotations.example\.com/a-b}", "c"),
            (one, "{.metadata.annotations['example.com/a-b']}", "c"),
            (one, "{.status.release}", r#"{"revision":2}"#),
            (one, "{.status.release.*}", "2"),
            (one, "{.status.missing.entirely}", ""),
            (one, "{.status.url}", ""),
            (one, r#"revision {.status.release.revision}{"\n"}"#, "revision 2\n"),
            (one, r#"{'\t'}{"{}"}"#, "\t{}"),
            (one, "no path", "no path"),
            (&list, "{.items[*].metadata.name}", "acme globex"),
            (&list, "{..revision}", "2 7"),
            (
                &list,
                r#"{range .items[*]}{.metadata.name}={.status.release.revision}{"\n"}{end}done"#,
                "acme=2\nglobex=7\ndone",
            ),
        ] {
            assert_eq!(template.parse::<Template>().unwrap().render(object), text, "{template}");
        }
        assert_eq!("{.}".parse::<Template>().unwrap().render(&json!({"a": 1})), r#"{"a":1}"#);
    }

    #[test]
    fn what_is_no_template() {
        for (template, why) in [
            ("{.a", "has no closing }"),
            ("{}", "is not a path"),
            ("{.a .b}", "is not a path"),
            ("{a}", "is not a path"),
            ("{.a[}", "is not a path"),
            ("{.a[?(@.b=)]}", "is not a path"),
            ("{.a.}", "is not a path"),
            ("{range .a[*]}x", "has no {end}"),
            ("{end}", "has no {range …} before it"),
            (r#"{"a'}"#, "has no closing }"),
            (r#"{"a" "b"}"#, "is not a text in quotes"),
        ] {
            let refused = template.parse::<Template>().unwrap_err();
            assert!(refused.contains(why), "{template}: {refused}");
        }
    }
}
