//! Label selectors as kubectl takes them: `k=v`, `k==v`, `k!=v`, `k`, `!k`, `k in (a,b)`, `k notin (a,b)`. Pure.

use kube::core::{Expression, Selector};

use super::{problem::Problem, query};

/// 400 with the part that cannot be parsed.
pub(crate) fn parse(text: &str) -> Result<Selector, Problem> {
    let mut expressions = Vec::new();
    for part in parts(text) {
        let part = part.trim();
        let expression = expression(part).ok_or_else(|| {
            let forms = "one of k=v, k!=v, k, !k, k in (a,b), k notin (a,b), joined by commas";
            query::refused("labelSelector", format!("{part:?} is not {forms}"))
        })?;
        expressions.push(expression);
    }
    Ok(expressions.into_iter().collect())
}

/// Splits at commas outside of parentheses.
fn parts(text: &str) -> Vec<&str> {
    let mut within = false;
    text.split(|c| {
        within = c == '(' || within && c != ')';
        c == ',' && !within
    })
    .collect()
}

fn expression(part: &str) -> Option<Expression> {
    if let Some(key) = part.strip_prefix('!') {
        return Some(Expression::DoesNotExist(key_of(key)?));
    }
    if let Some((key, value)) = part.split_once("!=") {
        return Some(Expression::NotEqual(key_of(key)?, value_of(value)?));
    }
    if let Some((key, value)) = part.split_once('=') {
        return Some(Expression::Equal(key_of(key)?, value_of(value.strip_prefix('=').unwrap_or(value))?));
    }
    if let Some(list) = part.strip_suffix(')') {
        let (head, list) = list.split_once('(')?;
        let values = list.split(',').map(value_of).collect::<Option<_>>()?;
        let (key, operator) = head.trim_end().rsplit_once(char::is_whitespace)?;
        return match operator {
            "in" => Some(Expression::In(key_of(key)?, values)),
            "notin" => Some(Expression::NotIn(key_of(key)?, values)),
            _ => None,
        };
    }
    Some(Expression::Exists(key_of(part)?))
}

fn key_of(key: &str) -> Option<String> {
    let key = key.trim();
    let (prefix, name) = key.split_once('/').map_or((None, key), |(prefix, name)| (Some(prefix), name));
    let prefix_is_good = prefix.is_none_or(|prefix| {
        !prefix.is_empty()
            && prefix.len() <= 253
            && prefix.bytes().all(|c| c.is_ascii_alphanumeric() || b"-.".contains(&c))
    });
    (prefix_is_good && !name.is_empty()).then_some(())?;
    value_of(name)?;
    Some(key.to_owned())
}

fn value_of(value: &str) -> Option<String> {
    let value = value.trim();
    let ends = |end: Option<char>| end.is_none_or(|c| c.is_ascii_alphanumeric());
    let good = value.len() <= 63
        && value.bytes().all(|c| c.is_ascii_alphanumeric() || b"-._".contains(&c))
        && ends(value.chars().next())
        && ends(value.chars().last());
    good.then(|| value.to_owned())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use kube::core::SelectorExt as _;

    use super::*;

    #[test]
    fn selectors() {
        let labels: BTreeMap<String, String> = [("tier", "gold"), ("example.com/team", "a"), ("empty", "")]
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .into();
        for (text, matches) in [
            ("tier=gold", true),
            ("tier==gold", true),
            ("tier = gold , empty=", true),
            ("tier=silver", false),
            ("tier!=silver", true),
            ("other!=x", true),
            ("tier", true),
            ("other", false),
            ("!other", true),
            ("! tier", false),
            ("tier in (gold,silver)", true),
            ("tier in (gold, silver),example.com/team notin (b,c)", true),
            ("example.com/team notin (a)", false),
            ("other notin (a)", true),
            ("tier in (bronze),tier", false),
        ] {
            assert_eq!(parse(text).unwrap().matches(&labels), matches, "{text}");
        }
    }

    #[test]
    fn what_is_none_is_refused() {
        for text in [
            "", ",", "=v", "a=b=c", "a in b", "a in (b", "a on (b)", "a b", "-a=b", "a=-b", "a/b/c=d", "/a=b", "a=b,",
            "a>1",
        ] {
            let problem = parse(text).unwrap_err();
            assert!(problem.detail.starts_with("labelSelector: "), "{text}: {}", problem.detail);
        }
    }
}
