//! The termination message of a container, in one sentence. **Pure.**

/// Longer sentences are cut.
const LONGEST: usize = 600;

/// Returns why PostgreSQL or a script has failed: the last fatal line of the log with PostgreSQL's details and hints, or else the last
/// line.
pub(super) fn summarize(log: &str) -> Option<String> {
    let mut lines = log.lines().filter(|line| !line.trim().is_empty()).collect::<Vec<_>>().into_iter().rev();
    let mut comments = Vec::new();
    let last = lines.next()?;
    for line in std::iter::once(last).chain(lines) {
        if let Some(comment) = from(line, &["DETAIL:", "HINT:"]) {
            comments.push(comment);
        } else if let Some(fatal) = from(line, &["FATAL:", "PANIC:"]) {
            comments.push(fatal);
            return Some(cut(comments.into_iter().rev().collect::<Vec<_>>().join(" ")));
        } else {
            comments.clear();
        }
    }
    Some(cut(last.trim().to_owned()))
}

/// Returns the part of a line that begins with one of these words, without the time and the process before it.
fn from(line: &str, words: &[&str]) -> Option<String> {
    let at = words.iter().find_map(|word| line.find(word))?;
    Some(line[at..].split_whitespace().collect::<Vec<_>>().join(" "))
}

fn cut(sentence: String) -> String {
    match sentence.char_indices().nth(LONGEST) {
        Some((at, _)) => format!("{}…", &sentence[..at]),
        None => sentence,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fatal_line_or_else_the_last() {
        for (log, expected) in [
            ("", None),
            (" \n\n", None),
            ("as it is\n", Some("as it is")),
            (
                "2026-11-23 10:00:00.646 GMT [1] FATAL:  invalid value for parameter \"max_connections\": \"lots\"\n",
                Some("FATAL: invalid value for parameter \"max_connections\": \"lots\""),
            ),
            (
                "2026 UTC [1] LOG:  starting\n2026 UTC [1] FATAL:  could not map anonymous shared memory\n2026 UTC [1] HINT:  Reduce it.\n2026 UTC [1] LOG:  database system is shut down\n",
                Some("FATAL: could not map anonymous shared memory HINT: Reduce it."),
            ),
            (
                "a [1] FATAL:  of a client\na [1] DETAIL:  its\na [2] FATAL:  recovery aborted\na [2] DETAIL:  less\na [2] HINT:  more\n",
                Some("FATAL: recovery aborted DETAIL: less HINT: more"),
            ),
            (
                "postgres: superuser_reserved_connections (3) must be less than max_connections (3)\n",
                Some("postgres: superuser_reserved_connections (3) must be less than max_connections (3)"),
            ),
        ] {
            assert_eq!(summarize(log).as_deref(), expected, "{log}");
        }
        let long = summarize(&format!("FATAL: {}", "ä".repeat(2000))).unwrap();
        assert_eq!(long.chars().count(), LONGEST + 1);
    }
}
