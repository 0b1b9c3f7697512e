//! Texts that no message may contain, because they come from Secrets. **Pure.**

use std::{cmp::Ordering, fmt, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::Value;

use super::sentence::MASK;

/// A shorter text occurs by chance in every message, and masking it would disclose it rather than hide it.
const SHORTEST: usize = 4;

/// The texts, in the forms in which helm or the API server may quote them. They do not print.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Hidden(Arc<[String]>);

impl Hidden {
    /// How many texts and lines can be hidden: each is searched for in each message.
    pub(crate) const MOST: usize = 4000;

    /// Every text and number in these values, and every line of it; not their keys. `None`: there are more than [`Hidden::MOST`].
    pub(crate) fn of<'a>(values: impl IntoIterator<Item = &'a Value>) -> Option<Hidden> {
        let mut open: Vec<_> = values.into_iter().collect();
        let (mut texts, mut count) = (Vec::new(), 0);
        while let Some(value) = open.pop() {
            if count > Self::MOST {
                return None;
            }
            match value {
                Value::String(text) => {
                    for line in [text.as_str()].into_iter().chain(text.lines().filter(|line| line.len() < text.len())) {
                        if line.len() >= SHORTEST {
                            count += 1;
                            texts.extend(forms(line));
                        }
                    }
                }
                Value::Number(number) => {
                    count += 1;
                    texts.extend(
                        [Some(number.to_string()), number.as_f64().and_then(as_go_prints)].into_iter().flatten(),
                    );
                }
                Value::Array(list) => open.extend(list),
                Value::Object(map) => open.extend(map.values()),
                Value::Null | Value::Bool(_) => {}
            }
        }
        texts.retain(|text| text.len() >= SHORTEST);
        texts.sort_by(longest_first);
        texts.dedup();
        (count <= Self::MOST).then(|| Hidden(texts.into()))
    }

    /// What may come from Secrets in values that were installed before, when that is not known any more: all of them but those that
    /// are installed now and do not, and `hidden`, which do. `None`: there are more than [`Hidden::MOST`].
    pub(crate) fn formerly(installed: &Value, now: &Value, hidden: &Hidden) -> Option<Hidden> {
        Some(Hidden::of([installed])?.except(&Hidden::of([now]).unwrap_or_default(), hidden))
    }

    /// These, except for what may be shown, and others.
    fn except(&self, shown: &Hidden, others: &Hidden) -> Hidden {
        let mine = self.0.iter().filter(|text| !shown.0.contains(text));
        let mut texts: Vec<_> = mine.chain(others.0.iter()).cloned().collect();
        texts.sort_by(longest_first);
        texts.dedup();
        Hidden(texts.into())
    }

    /// A message without them.
    pub(crate) fn masked(&self, message: &str) -> String {
        self.0.iter().fold(message.to_owned(), |message, text| message.replace(text.as_str(), MASK))
    }
}

/// A text may contain another.
fn longest_first(one: &String, other: &String) -> Ordering {
    other.len().cmp(&one.len()).then_with(|| one.cmp(other))
}

/// A large number as Go prints it (`%v`), which helm reads as a float: 12345678 is `1.2345678e+07`.
fn as_go_prints(number: f64) -> Option<String> {
    let text = format!("{number:e}");
    let (digits, exponent) = text.split_once('e')?;
    let exponent: i32 = exponent.parse().ok()?;
    (exponent >= 6).then(|| format!("{digits}e+{exponent:02}"))
}

/// A text as it is, as it stands in quotes, and as a chart writes it into a Secret.
fn forms(text: &str) -> [String; 3] {
    let text = text.trim();
    let quoted = Value::from(text).to_string();
    [text.to_owned(), quoted[1..quoted.len() - 1].to_owned(), STANDARD.encode(text)]
}

impl fmt::Debug for Hidden {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
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
        let hidden = Hidden::of([&values, &json!({"more": "correct horse battery"})]).unwrap();
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
            assert_eq!(hidden.masked(message), expected);
        }
        assert_eq!(format!("{hidden:?}"), "…");
        // More than can be searched for in reasonable time.
        let [stored, present, secret] = ["stored old-pin", "stored new-pin", "new-pin"]
            .map(|texts| Hidden::of([&json!(texts.split(' ').collect::<Vec<_>>())]).unwrap());
        assert_eq!(stored.except(&present, &secret).masked("stored old-pin new-pin"), format!("stored {MASK} {MASK}"));
        assert!(Hidden::of([&json!(vec!["some text"; Hidden::MOST])]).is_some());
        assert!(Hidden::of([&json!(vec!["some text"; Hidden::MOST + 1])]).is_none());
        assert!(Hidden::of([&json!("line\n".repeat(Hidden::MOST + 1))]).is_none());
        assert_eq!(Hidden::default().masked("as it is"), "as it is");
    }
}
