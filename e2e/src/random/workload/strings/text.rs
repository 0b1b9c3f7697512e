//! Random strings of the kinds that break programs. Pure.

use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;

const YAML: [&str; 12] =
    ["a: b", "- x", "&a [*a, *a]", "!!binary x", "|\n  x", "{a: b}", "[", "# c", "'", "---\nb: c", "on", "~"];
/// For helm's `--set`.
const SET: [&str; 7] = ["a=b", "a,b=c", "a[0]=b", "a\\.b=c", "{a,b}", "a=null", "a[99999999]=b"];
const PATHS: [&str; 7] = ["../../etc/passwd", "..", ".", "/", "a/../b", "%2e%2e%2f", "file:///etc/passwd"];
/// Right to left, without width, of two characters, and those that look like others or are longer in lower case.
const UNICODE: [&str; 7] = ["\u{202e}", "\u{200b}", "\u{feff}", "e\u{301}", "\u{430}", "\u{130}", "\u{1f600}"];
const FORMATS: [&str; 8] = ["{}", "%s%n", "{{ .Values }}", "{{ fail \"x\" }}", "$(id)", "`id`", "${HOME}", "--help"];
const ESCAPES: [&str; 7] = ["\\u0000", "\\\"", "\"}", "\\", "\0", "\",\"a\":\"b", "\\ud800"];
const NUMBERS: [&str; 9] = ["0", "-1", "1e309", "0x10", "NaN", "007", "1_000", ".inf", "9223372036854775808"];
/// Around the limits of names, labels, fields, and of what is read at all.
const LENGTHS: [usize; 9] = [54, 63, 64, 253, 254, 1024, 1025, 4 << 10, 64 << 10];
const CLASSES: u8 = 13;

/// A string for a field that may be `valid`.
pub fn hostile(valid: &str, random: &mut StdRng) -> String {
    let class = random.random_range(0..CLASSES);
    of_class(class, valid, random)
}

fn of_class(class: u8, valid: &str, random: &mut StdRng) -> String {
    let mut one_of = |words: &[&str]| words.choose(random).copied().unwrap_or_default().to_owned();
    match class {
        0 => one_of(&YAML),
        1 => one_of(&SET),
        2 => one_of(&PATHS),
        3 => format!("{valid}{}", one_of(&UNICODE)),
        4 => one_of(&FORMATS),
        5 => one_of(&ESCAPES),
        6 => one_of(&NUMBERS),
        7 => one_of(&[
            &format!("{valid}\n"),
            &format!(" {valid}"),
            &format!("{valid}\r\n{valid}"),
            &format!("-{valid}"),
            &format!("{valid}."),
            &valid.to_uppercase(),
            "",
        ]),
        8 => String::from_utf8_lossy(&bytes(random)).into_owned(),
        9 => (0..random.random_range(1..8)).map(|_| char::from(random.random_range(0..33_u8) % 32)).collect(),
        10 if random.random_bool(0.01) => "a".repeat(1 << 20),
        10 => "a".repeat(LENGTHS.choose(random).copied().unwrap_or_default()),
        11 => {
            let kept = random.random_range(0..=valid.chars().count());
            let printable = |_| char::from(random.random_range(b' '..=b'~'));
            valid.chars().take(kept).chain((0..4).map(printable)).collect()
        }
        _ => mutated(valid, random),
    }
}

/// One to three characters of a string are left out, replaced or doubled.
fn mutated(valid: &str, random: &mut StdRng) -> String {
    let mut chars: Vec<char> = valid.chars().collect();
    for _ in 0..random.random_range(1..=3) {
        let at = random.random_range(0..=chars.len());
        match random.random_range(0..3) {
            0 if at < chars.len() => _ = chars.remove(at),
            1 if at < chars.len() => chars[at] = char::from(random.random_range(b'!'..=b'~')),
            _ => chars.insert(at, *chars.get(at).unwrap_or(&'-')),
        }
    }
    chars.into_iter().collect()
}

/// Random bytes.
pub fn bytes(random: &mut StdRng) -> Vec<u8> {
    let mut bytes = vec![0; random.random_range(0..64)];
    random.fill(&mut bytes[..]);
    bytes
}

/// A text with one byte changed, or without its end.
pub fn damaged(text: &str, random: &mut StdRng) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    let at = random.random_range(0..bytes.len().max(1));
    if random.random_bool(0.5) {
        bytes.truncate(at);
    } else if let Some(byte) = bytes.get_mut(at) {
        *byte = random.random_range(0..=u8::MAX);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn every_class_has_strings_and_a_seed_repeats_them() {
        let of = |class, seed| of_class(class, "acme.example.com", &mut StdRng::seed_from_u64(seed));
        for class in 0..CLASSES {
            let all: BTreeSet<_> = (0..100).map(|seed| of(class, seed)).collect();
            assert!(all.len() > 4, "{class}: {all:?}");
            assert_eq!(of(class, 1), of(class, 1));
        }
        // Of nothing, too.
        (0..200).for_each(|seed| drop(hostile("", &mut StdRng::seed_from_u64(seed))));
    }
}
