//! Summarizes helm's output in one paragraph for a condition (pure).

/// Limits a summary, in bytes.
const MAX_LENGTH: usize = 1024;
/// Bytes kept of the end of a longer one: errors are chains, and the cause comes last.
const TAIL_LENGTH: usize = 384;

/// Extracts the error from helm's standard error, without logs, warnings and the `Error: ` prefix.
///
/// Helm is a cobra command, so the error is printed last, after `Error: `. Log lines may precede it (`level=…` of slog, `I0131 …` of
/// klog, `2026/01/31 …` of Go's log), and lines that start with `WARNING:`. Without an `Error: `, it has crashed: the first paragraph
/// is the reason, and goroutines follow.
pub(in crate::helm) fn error_text(stderr: &str) -> String {
    let lines: Vec<_> = stderr.lines().map(str::trim_end).filter(|line| !is_noise(line)).collect();
    let text = match lines.iter().rposition(|line| line.starts_with("Error: ")) {
        Some(last) => lines[last..].join("\n"),
        None => {
            lines.split(|line| line.is_empty()).find(|paragraph| !paragraph.is_empty()).unwrap_or_default().join("\n")
        }
    };
    let text = text.trim_end().strip_prefix("Error: ").unwrap_or(&text);
    ["UPGRADE FAILED: ", "INSTALLATION FAILED: "]
        .iter()
        .find_map(|what| text.strip_prefix(what))
        .unwrap_or(text)
        .to_owned()
}

fn is_noise(line: &str) -> bool {
    let digits =
        |text: &str, count: usize| text.len() > count && text.bytes().take(count).all(|byte| byte.is_ascii_digit());
    line.starts_with("WARNING:")
        || line.starts_with("level=")
        || line.strip_prefix(['I', 'W', 'E', 'F']).is_some_and(|rest| digits(rest, 4) && rest[4..].starts_with(' '))
        || digits(line, 4) && line[4..].starts_with('/') && line.contains(": ")
}

/// Returns the error as one paragraph of at most about 1 KiB. [`Redactor`](super::redact::Redactor) has redacted it before.
pub(crate) fn summarize(error: &str) -> String {
    // Control characters become spaces; characters that reorder or hide text are removed.
    let visible = error.chars().filter(|char| !is_invisible(*char));
    let spaced: String = visible.map(|char| if char.is_control() { ' ' } else { char }).collect();
    let collapsed = spaced.split_whitespace().collect::<Vec<_>>().join(" ");
    shortened(collapsed)
}

/// Returns true if a character reorders or hides text, or is hidden itself.
pub(crate) fn is_invisible(char: char) -> bool {
    matches!(
        char,
        '\u{ad}'
            | '\u{61c}'
            | '\u{200b}'..='\u{200f}'
            | '\u{202a}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}'
            | '\u{feff}'
            | '\u{e0000}'..='\u{e007f}'
    )
}

fn shortened(text: String) -> String {
    if text.len() <= MAX_LENGTH {
        return text;
    }
    let boundary = |at: usize| (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let (beginning, ending) =
        (&text[..boundary(MAX_LENGTH - TAIL_LENGTH)], &text[boundary(text.len() - TAIL_LENGTH)..]);
    format!("{} … {}", beginning.trim_end(), ending.trim_start())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn logs_and_warnings_are_left_out() {
        let stderr = concat!(
            "WARNING: Kubernetes configuration file is group-readable. This is insecure.\n",
            "I0131 10:00:00.000000   1 warnings.go:70] unknown field\n",
            "2026/01/31 10:00:00 error outputting logs for hook failure: x\n",
            "level=WARN msg=\"upgrade failed\" name=x error=\"context canceled\"\n",
            "Error: UPGRADE FAILED: first line\n  second line\n\n",
        );
        assert_eq!(error_text(stderr), "first line\n  second line");
        assert_eq!(summarize(&error_text(stderr)), "first line second line");
    }

    #[test]
    fn of_a_crash_the_first_paragraph_is_kept() {
        let crash = "\nruntime: out of memory\nfatal error: runtime: out of memory\n\nruntime stack:\nmain.main()\n";
        assert_eq!(error_text(crash), "runtime: out of memory\nfatal error: runtime: out of memory");
        assert_eq!(error_text(""), "");
    }

    #[test]
    fn long_errors_keep_both_ends_in_one_kibibyte() {
        let long = format!("what failed: {} the cause", "ä".repeat(5000));
        let text = summarize(&long);
        assert!(text.starts_with("what failed: ä") && text.ends_with("ä the cause") && text.contains(" … "), "{text}");
        assert!(text.len() <= MAX_LENGTH + 8, "{}", text.len());
    }

    #[test]
    fn control_and_bidirectional_characters_vanish() {
        assert_eq!(summarize("a\u{1b}[31mb\u{202e}c\0d\t\r\ne\u{200b}f"), "a [31mbc d ef");
        assert_eq!(summarize("a\u{61c}b\u{e0041}c"), "abc");
    }

    #[test]
    fn what_is_needed_to_understand_stays() {
        for text in [
            "Secret \"my-app-redis-secret\" not found: key redis-password is missing",
            "secrets is forbidden: User \"system:serviceaccount:ns:operator\" cannot list resource \"secrets\" in API group \"\"",
            "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef does not match",
            "execution error at (nextcloud/templates/deployment.yaml:12:3): a password is required",
            "password authentication failed for user \"app\", the password must not be empty",
            "User \"u\" cannot create resource \"serviceaccounts/token\" in API group \"\"",
            "failed to fetch https://example.com/nextcloud-5.5.2.tgz : 404 Not Found",
            "pods \"my-app-nextcloud-6d5f7c8b9-x2x4z\" is forbidden: exceeded quota",
            // Only what is known to be secret is masked: a guess hides the cause.
            "values don't meet the specifications of the schema: at '/auth/password': minLength: got 3, want 12",
            "secret \"db\" has no key token: token is replicated",
            "no image example.com/app@sha256:0123456789ABCDEFabcdef0123456789ABCDEFabcdef0123456789ABCDEFabcd",
        ] {
            assert_eq!(summarize(text), text);
        }
    }

    proptest! {
        #[test]
        fn any_text_becomes_one_bounded_line(text in "\\PC{0,2000}|.{0,2000}") {
            let sentence = summarize(&text);
            prop_assert!(sentence.len() <= MAX_LENGTH + 8);
            prop_assert!(!sentence.contains(char::is_control));
        }
    }
}
