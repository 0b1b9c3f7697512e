//! Redacts texts that come from Secrets, which no message may contain. **Pure.**

use std::{
    borrow::Cow,
    collections::{BTreeSet, HashSet},
    ops::{Bound::Included, Range},
    sync::Arc,
};

use base64::{
    Engine as _, alphabet,
    engine::{
        DecodePaddingMode, GeneralPurpose, GeneralPurposeConfig,
        general_purpose::{STANDARD, STANDARD_NO_PAD},
    },
};
use serde_json::Value;

/// Stands for what is not shown.
pub(crate) const MASK: &str = "***";

/// A shorter text occurs by chance in every message, and masking it would disclose it rather than hide it.
const SHORTEST: usize = 4;

/// A shorter part of base64 occurs by chance within longer base64.
const SHORTEST_PART: usize = 6;

/// Reads base64 with and without padding, also if it was cut off.
const LENIENT: GeneralPurpose = GeneralPurpose::new(
    &alphabet::STANDARD,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);

/// Holds the texts, in the forms in which helm, a chart or the API server may quote them. They do not print.
///
/// They are in order, so that the one with which a text begins is found without a look at each of them.
#[derive(Clone, derive_more::Debug, Default, PartialEq, Eq)]
#[debug("…")]
pub(crate) struct Redactor(Arc<BTreeSet<Vec<u8>>>);

impl Redactor {
    /// Limits the texts and lines: each is kept in many forms.
    pub(crate) const MAX_TEXTS: usize = 4000;

    /// Redacts every text and number in these values, and every line of it; not their keys. Returns `None` if there are more than
    /// [`Redactor::MAX_TEXTS`].
    pub(crate) fn from_values<'a>(values: impl IntoIterator<Item = &'a Value>) -> Option<Redactor> {
        Redactor::default().extended(&texts(values))
    }

    /// Redacts the present Secrets and, because the former ones are not known any more, every previously installed value that is not
    /// installed now. Returns `None` if there are more than [`Redactor::MAX_TEXTS`].
    pub(crate) fn for_previous_values(installed: &Value, now: &Value, present: &Redactor) -> Option<Redactor> {
        let now: HashSet<_> = texts([now]).into_iter().collect();
        let mut former = texts([installed]);
        former.retain(|text| !now.contains::<str>(text));
        present.extended(&former)
    }

    /// Redacts these texts as well.
    fn extended(&self, texts: &[Cow<str>]) -> Option<Redactor> {
        if texts.len() > Self::MAX_TEXTS {
            return None;
        }
        let mut all = BTreeSet::clone(&self.0);
        let forms = texts.iter().flat_map(|text| forms(text));
        all.extend(forms.filter(|form| form.len() >= SHORTEST).map(String::into_bytes));
        Some(Redactor(Arc::new(all)))
    }

    /// Returns a message without them.
    pub(crate) fn redact(&self, message: &str) -> String {
        let (mut redacted, mut end) = (String::with_capacity(message.len()), 0);
        for found in self.matches(message) {
            // Those that overlap have one mask: the rest of either would tell of it.
            if found.start >= end {
                redacted.push_str(&message[end..found.start]);
                redacted.push_str(MASK);
            }
            end = end.max(found.end);
        }
        redacted.push_str(&message[end..]);
        redacted
    }

    /// Returns a text without the lines that contain one of them, also in base64 of something longer; without any line if one of them
    /// extends over several, or if the whole is such base64. It is for texts with any quotes and encodings: less is shown than of a
    /// message.
    pub(crate) fn redact_lines(&self, text: &str) -> String {
        let unfolded: String = text.split_whitespace().collect();
        if self.has_encoded_match(&unfolded) || self.matches(text).any(|found| text[found].contains('\n')) {
            return MASK.to_owned();
        }
        let is_secret = |line: &str| {
            let mut words = line.split(|char: char| !char.is_ascii_alphanumeric() && !"+/-_".contains(char));
            self.has_match(line) || words.any(|word| self.has_encoded_match(word))
        };
        text.split('\n').map(|line| if is_secret(line) { MASK } else { line }).collect::<Vec<_>>().join("\n")
    }

    fn has_match(&self, text: &str) -> bool {
        self.matches(text).next().is_some()
    }

    /// Returns true if a text is base64 of a text that contains one of them.
    fn has_encoded_match(&self, text: &str) -> bool {
        let decoded = LENIENT.decode(text.replace('-', "+").replace('_', "/"));
        decoded.is_ok_and(|bytes| self.has_match(&String::from_utf8_lossy(&bytes)))
    }

    /// Returns, in order, the longest match at each place in a text where one of them begins.
    fn matches(&self, text: &str) -> impl Iterator<Item = Range<usize>> {
        text.char_indices().filter_map(move |(start, _)| {
            let rest = &text.as_bytes()[start..];
            // What the rest begins with is not after the rest in this order.
            let least = rest.get(..SHORTEST)?;
            let mut alike = self.0.range::<[u8], _>((Included(least), Included(rest)));
            let longest = alike.rfind(|form| rest.starts_with(form))?;
            Some(start..start + longest.len())
        })
    }
}

/// Returns every text and number in these values, and every line of it, if it is long enough to be redacted.
fn texts<'a>(values: impl IntoIterator<Item = &'a Value>) -> Vec<Cow<'a, str>> {
    let mut open: Vec<_> = values.into_iter().collect();
    let mut texts: Vec<Cow<'a, str>> = Vec::new();
    while let Some(value) = open.pop() {
        match value {
            Value::String(text) => {
                let lines = text.lines().filter(|line| line.len() < text.len());
                texts.extend([text.as_str()].into_iter().chain(lines).map(Cow::Borrowed));
            }
            Value::Number(number) => {
                let printed = [Some(number.to_string()), number.as_f64().and_then(go_format)];
                texts.extend(printed.into_iter().flatten().map(Cow::<str>::Owned));
            }
            Value::Array(list) => open.extend(list),
            Value::Object(map) => open.extend(map.values()),
            Value::Null | Value::Bool(_) => {}
        }
    }
    texts.retain(|text| text.trim().len() >= SHORTEST);
    texts
}

/// Formats a large number as Go prints it (`%v`), which helm reads as a float: 12345678 is `1.2345678e+07`.
fn go_format(number: f64) -> Option<String> {
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e')?;
    let exponent: i32 = exponent.parse().ok()?;
    (exponent >= 6).then(|| format!("{digits}e+{exponent:02}"))
}

/// Returns a text as it is, and as a chart, helm or the API server may write it: in quotes of JSON and YAML, in a URL, in base64.
fn forms(text: &str) -> Vec<String> {
    let trimmed = text.trim();
    let quoted = Value::from(trimmed).to_string();
    let quoted = &quoted[1..quoted.len() - 1];
    let in_url = escaped(trimmed, "");
    let mut forms = vec![
        trimmed.to_owned(),
        quoted.to_owned(),
        // As `toJson` of Go writes it (encoding/json, `HTMLEscape`).
        quoted.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026"),
        // As the operator puts what others say on one line.
        trimmed.split_whitespace().collect::<Vec<_>>().join(" "),
        quoted.split_whitespace().collect::<Vec<_>>().join(" "),
        // In single quotes of YAML.
        trimmed.replace('\'', "''"),
        // As `urlquery` of Go writes it, in a path, and in the userinfo (net/url, `shouldEscape`).
        in_url.replace("%20", "+"),
        in_url,
        escaped(trimmed, "$&+=:@"),
        escaped(trimmed, "$&+,;="),
    ];
    // Some keep the final newline of a file.
    let whole = [text, trimmed].into_iter().flat_map(|text| [STANDARD.encode(text), STANDARD_NO_PAD.encode(text)]);
    for base64 in whole.chain(parts_of_base64(trimmed)) {
        forms.push(base64.replace('+', "-").replace('/', "_"));
        forms.push(base64);
    }
    forms
}

/// Escapes a text as Go does in a URL, except for these characters.
fn escaped(text: &str, except: &str) -> String {
    let escape = |byte: u8| match char::from(byte) {
        char if char.is_ascii_alphanumeric() || "-_.~".contains(char) || except.contains(char) => char.to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(escape).collect()
}

/// Returns what base64 of a longer text has of this one, whatever stands before and after it: base64 encodes three bytes at a time, so it
/// depends on how many bytes of its first three are another's, and leaves out the characters that are another's in part.
fn parts_of_base64(text: &str) -> impl Iterator<Item = String> {
    [(0, 0), (1, 2), (2, 3)].into_iter().filter_map(move |(before, partly)| {
        let bytes = [&[0u8; 2][..before], text.as_bytes()].concat();
        let part = STANDARD_NO_PAD.encode(&bytes).get(partly..bytes.len() * 8 / 6)?.to_owned();
        (part.len() >= SHORTEST_PART).then_some(part)
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn whatever_is_quoted_of_them_is_masked() {
        let values = json!({
            "password": "correct horse", "pin": 123456, "long": 12345678, "flag": true, "short": "abc",
            "list": [{"inner": "say \"canary\"\n"}], "pem": "-----BEGIN-----\nMIIcanary\n-----END-----\n",
        });
        let redactor = Redactor::from_values([&values, &json!({"more": "correct horse battery"})]).unwrap();
        for (message, expected) in [
            ("invalid value: \"correct horse\"", "invalid value: \"***\""),
            ("invalid: correct horse battery staple", "invalid: *** staple"),
            ("port 123456 is too large", "port *** is too large"),
            ("port 1.2345678e+07 is too large", "port *** is too large"),
            (r#"got "say \"canary\"""#, r#"got "***""#),
            (r#"got say "canary" now"#, "got *** now"),
            ("data: Y29ycmVjdCBob3JzZQ==", "data: ***"),
            ("line 2: MIIcanary", "line 2: ***"),
            ("password is true, abc", "password is true, abc"),
        ] {
            assert_eq!(redactor.redact(message), expected);
        }
        assert_eq!(format!("{redactor:?}"), "…");
        let [stored, present, secret] =
            ["stored old-pin", "stored new-pin", "new-pin"].map(|texts| json!(texts.split(' ').collect::<Vec<_>>()));
        let former =
            Redactor::for_previous_values(&stored, &present, &Redactor::from_values([&secret]).unwrap()).unwrap();
        assert_eq!(former.redact("stored old-pin new-pin"), format!("stored {MASK} {MASK}"));
        // Only those that are not installed now count.
        let many = json!((0..=Redactor::MAX_TEXTS).map(|at| format!("text {at}")).collect::<Vec<_>>());
        assert_eq!(Redactor::for_previous_values(&many, &many, &Redactor::default()), Some(Redactor::default()));
        assert_eq!(Redactor::for_previous_values(&many, &json!({}), &Redactor::default()), None);
        // More than can be kept in reasonable memory.
        assert!(Redactor::from_values([&json!(vec!["some text"; Redactor::MAX_TEXTS])]).is_some());
        assert!(Redactor::from_values([&json!(vec!["some text"; Redactor::MAX_TEXTS + 1])]).is_none());
        assert!(Redactor::from_values([&json!("line\n".repeat(Redactor::MAX_TEXTS + 1))]).is_none());
        assert_eq!(Redactor::default().redact("as it is"), "as it is");
    }

    #[test]
    fn they_are_masked_however_they_are_encoded() {
        let values = json!([
            "p@ss canaryU/word",
            "canary-file\n",
            "canaryH<amp>&x",
            "@it's-canaryQ-secret",
            "canary>>>???",
            12345678,
            "pine",
            "two  blanks,\ta tab",
            "abcdef",
            "defghi",
        ]);
        let redactor = Redactor::from_values([&values]).unwrap();
        for (message, expected) in [
            // urlquery, a path, encodeURIComponent, userinfo.
            ("postgres://u:p%40ss+canaryU%2Fword@db", "postgres://u:***@db"),
            ("https://x/p@ss%20canaryU%2Fword/y", "https://x/***/y"),
            ("https://x/p%40ss%20canaryU%2Fword/y", "https://x/***/y"),
            ("https://u:canary%3E%3E%3E%3F%3F%3F@x", "https://u:***@x"),
            // toJson and toRawJson.
            (r#"{"a":"canaryH\u003camp\u003e\u0026x"}"#, r#"{"a":"***"}"#),
            (r#"{"a":"canaryH<amp>&x"}"#, r#"{"a":"***"}"#),
            ("a: '@it''s-canaryQ-secret'", "a: '***'"),
            // On one line.
            ("a: two blanks, a tab", "a: ***"),
            // With the newline and without it, with padding and without it.
            ("a: Y2FuYXJ5LWZpbGUK", "a: ***"),
            ("a: Y2FuYXJ5LWZpbGU=", "a: ***"),
            ("a: Y2FuYXJ5LWZpbGU", "a: ***"),
            ("a: MTIzNDU2Nzg=", "a: ***"),
            // Both alphabets.
            ("a: Y2FuYXJ5Pj4+Pz8/", "a: ***"),
            ("a: Y2FuYXJ5Pj4-Pz8_", "a: ***"),
            // Within others: "canary-file?", "abc:canary-file!", "user:canary-file".
            ("a: Y2FuYXJ5LWZpbGU/", "a: ***/"),
            ("a: YWJjOmNhbmFyeS1maWxlIQ==", "a: YWJjOm***IQ=="),
            ("a: dXNlcjpjYW5hcnktZmlsZQ==", "a: dXNlcjp***Q=="),
            // "a pine tree": so little of base64 may be an accident.
            ("a: YSBwaW5lIHRyZWU=", "a: YSBwaW5lIHRyZWU="),
            ("abcdefghi", "***"),
        ] {
            assert_eq!(redactor.redact(message), expected, "{message}");
        }
    }

    #[test]
    fn lines_that_may_tell_of_them_are_withheld() {
        let redactor = Redactor::from_values([&json!(["canary-text", "pine", "ab\ncd\nef"])]).unwrap();
        for (text, expected) in [
            ("one\nand canary-text, too\nthree\n", "one\n***\nthree\n"),
            ("Basic dXNlcjpwaW5l", "***"),
            ("one\nTOKEN=YSBwaW5lIHRyZWU=\nthree", "one\n***\nthree"),
            ("YSBwaW5l\nIHRyZWU=\n", "***"),
            // Base64 of base64.
            ("YlhrZ1kyRnVZWEo1TFhSbGVIUT0=", "***"),
            ("one\nab\ncd\nef\nthree", "***"),
            ("one\ntwo/three four=five", "one\ntwo/three four=five"),
            ("", ""),
        ] {
            assert_eq!(redactor.redact_lines(text), expected, "{text}");
        }
    }
}
