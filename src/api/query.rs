//! Parses query strings strictly: unknown parameters are refused by name instead of ignored. Pure.

use std::{collections::BTreeMap, ops::RangeInclusive};

use axum::http::StatusCode;

use super::problem::Problem;

#[derive(Debug, Default)]
pub(crate) struct Query(BTreeMap<String, String>);

impl Query {
    /// Parses a query string; an empty value counts as absent.
    /// 400 for a parameter that is not `known`, or occurs twice.
    pub(crate) fn parse(query: Option<&str>, known: &[&str]) -> Result<Query, Problem> {
        let mut parameters = BTreeMap::new();
        for (name, value) in form_urlencoded::parse(query.unwrap_or_default().as_bytes()) {
            if !known.contains(&name.as_ref()) {
                return Err(refused(&name, format!("is unknown; known parameters are {}", known.join(", "))));
            }
            if !value.is_empty() && parameters.insert(name.clone().into_owned(), value.into_owned()).is_some() {
                return Err(refused(&name, "occurs twice".to_owned()));
            }
        }
        Ok(Query(parameters))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    pub(crate) fn number(&self, name: &str, range: RangeInclusive<u64>) -> Result<Option<u64>, Problem> {
        let number = |text: &str| {
            let number = text.parse().ok().filter(|number| range.contains(number));
            number.ok_or_else(|| refused(name, format!("must be a number from {} to {}", range.start(), range.end())))
        };
        self.get(name).map(number).transpose()
    }

    pub(crate) fn flag(&self, name: &str) -> Result<bool, Problem> {
        match self.get(name) {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(refused(name, "must be true or false".to_owned())),
        }
    }
}

pub(crate) fn refused(name: &str, problem: String) -> Problem {
    Problem::new(StatusCode::BAD_REQUEST, "InvalidParameter", format!("{name}: {problem}")).about(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters() {
        let known = ["namespace", "limit", "follow"];
        let query = Query::parse(Some("namespace=a%2Fb&limit=7&follow=true"), &known).unwrap();
        assert_eq!(query.get("namespace"), Some("a/b"));
        assert_eq!(query.number("limit", 1..=10).unwrap(), Some(7));
        assert!(query.flag("follow").unwrap());
        assert_eq!(Query::parse(Some("namespace="), &known).unwrap().get("namespace"), None);
        assert_eq!(Query::parse(None, &known).unwrap().number("limit", 1..=10).unwrap(), None);
        for (text, detail) in [
            ("namspace=a", "namspace: is unknown; known parameters are namespace, limit, follow"),
            ("limit=1&limit=2", "limit: occurs twice"),
        ] {
            assert_eq!(Query::parse(Some(text), &known).unwrap_err().detail, detail);
        }
        for text in ["limit=0", "limit=11", "limit=-1", "limit=x"] {
            let query = Query::parse(Some(text), &known).unwrap();
            assert_eq!(query.number("limit", 1..=10).unwrap_err().detail, "limit: must be a number from 1 to 10");
        }
        assert!(Query::parse(Some("follow=1"), &known).unwrap().flag("follow").is_err());
    }
}
