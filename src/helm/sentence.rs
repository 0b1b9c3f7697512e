//! helm's output as one paragraph for a condition (pure).

/// Maximum length of a sentence, in bytes.
const LONGEST: usize = 1024;
/// How much is kept of the end of a longer one: errors are chains, and the cause comes last.
const ENDING: usize = 384;
/// Minimum length in characters of a random-looking word that is masked as a possible credential.
const LONG_WORD: usize = 32;

/// Stands for what is not shown.
pub(crate) const MASK: &str = "***";

/// The error in helm's standard error, without logs, warnings and the `Error: ` prefix.
///
/// Helm is a cobra command, so the error is printed last, after `Error: `. Log lines may precede it (`level=…` of slog, `I0131 …` of
/// klog, `2026/01/31 …` of Go's log), and lines that start with `WARNING:`. Without an `Error: `, it has crashed: the first paragraph
/// is the reason, and goroutines follow.
pub(super) fn error_text(stderr: &str) -> String {
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

/// The error as one redacted paragraph of at most about 1 KiB.
///
/// helm's messages should not contain secrets, because values only name them. This is a safety net, because a message can quote
/// anything that a chart or an admission webhook has made up.
pub(crate) fn sentence(error: &str) -> String {
    // Control characters become spaces; characters that reorder or hide text are removed.
    let visible = error.chars().filter(|char| !is_invisible(*char));
    let spaced: String = visible.map(|char| if char.is_control() { ' ' } else { char }).collect();
    let collapsed = spaced.split_whitespace().collect::<Vec<_>>().join(" ");
    shortened(redacted(&collapsed))
}

/// Whether a character reorders or hides text, or is hidden itself.
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
    if text.len() <= LONGEST {
        return text;
    }
    let boundary = |at: usize| (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
    let (beginning, ending) = (&text[..boundary(LONGEST - ENDING)], &text[boundary(text.len() - ENDING)..]);
    format!("{} … {}", beginning.trim_end(), ending.trim_start())
}

/// What the next word may be, judging by the previous one.
#[derive(Clone, Copy, PartialEq)]
enum Next {
    Text,
    Credential,
    /// After `password`: a credential in `password X` and `PASSWORD is X`, but not in `password is missing`.
    CredentialUnlessCommon,
}

/// Endings of the names of credentials, in lower case and without separators.
const TELLING: &str = "password passwd passphrase pwd token apikey accesskey secretkey clientsecret authorization";

/// Words between such a name and the value.
const LINKS: &str = "is was to";

/// Words that follow such a name in ordinary sentences. If one is missing here, it is masked needlessly; one too many would reveal a
/// password.
const COMMON: &str = "\
    a an and are as at authentication be by can cannot could does empty expired failed field file for from has \
    have in incorrect invalid key length mismatch missing must no not of on or policy required request review \
    set should that the too unset value when which will with wrong";

/// Masks everything that looks like a credential: the userinfo of a URL, the value of a name that ends as in [`TELLING`], the word
/// after `Bearer` or `Basic`, and long random-looking words.
fn redacted(text: &str) -> String {
    let is_one_of = |words: &str, word: &str| words.split(' ').any(|known| word.eq_ignore_ascii_case(known));
    let mut result = String::with_capacity(text.len());
    let mut next = Next::Text;
    for piece in text.split_inclusive(is_delimiter) {
        let word = piece.trim_end_matches(is_delimiter);
        let delimiter = &piece[word.len()..];
        // In `password: "x"`, a separate colon and quotes stand between the name and the value.
        if word.is_empty() || word == ":" || word == "=" {
            result.push_str(piece);
            if !word.is_empty() && next == Next::CredentialUnlessCommon {
                next = Next::Credential;
            }
            continue;
        }
        let before = std::mem::replace(&mut next, Next::Text);
        let (name, value) = named_value(word);
        if is_one_of("bearer basic", word) {
            result.push_str(word);
            next = Next::Credential;
        } else if before == Next::CredentialUnlessCommon && is_one_of(LINKS, word) {
            result.push_str(word);
            next = before;
        } else if before == Next::Credential || before == Next::CredentialUnlessCommon && !is_one_of(COMMON, word) {
            result.push_str(MASK);
        } else if is_telling(name) {
            result.push_str(&word[..word.len() - value.len()]);
            if value.is_empty() {
                let certain = name.len() < word.len();
                next = match delimiter {
                    _ if certain => Next::Credential,
                    " " | "\"" | "'" | "`" => Next::CredentialUnlessCommon,
                    _ => Next::Text,
                };
            } else {
                result.push_str(MASK);
            }
        } else {
            result.push_str(
                &without_userinfo(word).split_inclusive(is_separator).map(without_random).collect::<String>(),
            );
        }
        result.push_str(delimiter);
    }
    result
}

fn is_delimiter(char: char) -> bool {
    char.is_whitespace() || "\"'`&?,;(){}[]<>|".contains(char)
}

fn is_separator(char: char) -> bool {
    ":@.".contains(char)
}

/// Splits `name=value` and `name:value`; any other word is only a name.
fn named_value(word: &str) -> (&str, &str) {
    match word.find(['=', ':']) {
        Some(at) if !word[at..].starts_with("://") => (&word[..at], &word[at + 1..]),
        _ => (word, ""),
    }
}

fn is_telling(name: &str) -> bool {
    let name = name.rsplit('.').next().unwrap_or_default();
    let name: String = name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_ascii_lowercase();
    TELLING.split(' ').any(|telling| name.ends_with(telling))
}

fn without_userinfo(word: &str) -> String {
    if let Some(start) = word.find("://").map(|at| at + 3)
        && let authority = word[start..].find('/').map_or(word.len(), |at| start + at)
        && let Some(at) = word[start..authority].rfind('@')
    {
        return format!("{}{MASK}{}", &word[..start], &word[start + at..]);
    }
    word.to_owned()
}

/// Long base64 mixes upper case, lower case and digits. Digests are lower case; names contain dashes or are shorter.
fn without_random(word: &str) -> String {
    let run = word.trim_end_matches(is_separator);
    let base64 = |extra: &[u8]| run.bytes().all(|byte| byte.is_ascii_alphanumeric() || extra.contains(&byte));
    let mixed = [u8::is_ascii_uppercase, u8::is_ascii_lowercase, u8::is_ascii_digit]
        .iter()
        .all(|class| run.bytes().any(|byte| class(&byte)));
    if run.len() >= LONG_WORD && mixed && (base64(b"+/=") || base64(b"-_=")) {
        format!("{MASK}{}", &word[run.len()..])
    } else {
        word.to_owned()
    }
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
        assert_eq!(sentence(&error_text(stderr)), "first line second line");
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
        let text = sentence(&long);
        assert!(text.starts_with("what failed: ä") && text.ends_with("ä the cause") && text.contains(" … "), "{text}");
        assert!(text.len() <= LONGEST + 8, "{}", text.len());
    }

    #[test]
    fn control_and_bidirectional_characters_vanish() {
        assert_eq!(sentence("a\u{1b}[31mb\u{202e}c\0d\t\r\ne\u{200b}f"), "a [31mbc d ef");
        assert_eq!(sentence("a\u{61c}b\u{e0041}c"), "abc");
    }

    #[test]
    fn credentials_are_masked() {
        let rows = [
            ("Get \"https://user:canary@example.com/x\": EOF", "Get \"https://***@example.com/x\": EOF"),
            ("password=canary rest", "password=*** rest"),
            ("--set auth.postgresPassword=canary,a=b", "--set auth.postgresPassword=***,a=b"),
            ("{\"password\":\"canary\",\"a\":\"b\"}", "{\"password\":\"***\",\"a\":\"b\"}"),
            ("{\"password\": \"canary\"}", "{\"password\": \"***\"}"),
            ("redis-password: canary", "redis-password: ***"),
            ("login with passwd canary failed", "login with passwd *** failed"),
            ("the PASSWORD is canary, keep it", "the PASSWORD is ***, keep it"),
            ("password 'canary' was refused", "password '***' was refused"),
            ("Authorization: Bearer canary rest", "Authorization: Bearer *** rest"),
            ("sent Basic canary", "sent Basic ***"),
            ("https://example.com/a?token=canary&x=1", "https://example.com/a?token=***&x=1"),
            ("data: Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5Y2FuYXJ5 end", "data: *** end"),
            (
                "eyJhbGciOiJSUzI1NiIsImtpZCI6IkFCQyJ9.eyJpc3MiOiJrdWJlcm5ldGVzL3NlcnZpY2VhY2NvdW50In0.c2lnbmF0dXJlMTIzNDU2Nzg5MEFCQ0RFRg",
                "***.***.***",
            ),
        ];
        for (text, expected) in rows {
            assert_eq!(sentence(text), expected);
        }
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
        ] {
            assert_eq!(sentence(text), text);
        }
    }

    proptest! {
        #[test]
        fn any_text_becomes_one_bounded_line(text in "\\PC{0,2000}|.{0,2000}") {
            let sentence = sentence(&text);
            prop_assert!(sentence.len() <= LONGEST + 8);
            prop_assert!(!sentence.contains(char::is_control));
        }
    }
}
