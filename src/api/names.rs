//! Generated names of instances: `ca-<adjective>-<noun>-<6 of [a-z0-9]>`. Pure, except for the operating system's random numbers.

use rand::{RngExt as _, rand_core::UnwrapErr, rngs::SysRng};

use super::words::{ADJECTIVES, NOUNS};

const SUFFIX_LETTERS: &[u8; 36] = b"abcdefghijklmnopqrstuvwxyz0123456789";
const SUFFIX_LENGTH: usize = 6;
/// Random numbers in each name.
const DRAWS: usize = 2 + SUFFIX_LENGTH;

pub(crate) fn random() -> String {
    let mut random = UnwrapErr(SysRng);
    name(|choices| random.random_range(0..choices))
}

/// The name derived from a digest, the same on every replica.
pub(crate) fn derived(digest: &[u8; 4 * DRAWS]) -> String {
    let mut words = digest.chunks_exact(4).map(|chunk| u32::from_be_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]));
    name(|choices| words.next().unwrap_or_default() as usize % choices)
}

fn name(mut draw: impl FnMut(usize) -> usize) -> String {
    let adjective = ADJECTIVES[draw(ADJECTIVES.len())];
    let noun = NOUNS[draw(NOUNS.len())];
    let suffix: String = (0..SUFFIX_LENGTH).map(|_| char::from(SUFFIX_LETTERS[draw(SUFFIX_LETTERS.len())])).collect();
    format!("ca-{adjective}-{noun}-{suffix}")
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::{crd::MAX_NAME, platform::key};

    fn is_label(name: &str) -> bool {
        name.len() <= MAX_NAME && key::is_label(name) && name.starts_with(|first: char| first.is_ascii_lowercase())
    }

    #[test]
    fn every_pair_of_words_is_a_name() {
        for words in [&ADJECTIVES, &NOUNS] {
            assert!(words.len() >= 64);
            assert_eq!(words.iter().collect::<BTreeSet<_>>().len(), words.len(), "a word is there twice");
        }
        for adjective in 0..ADJECTIVES.len() {
            for noun in 0..NOUNS.len() {
                let mut draws = [adjective, noun].into_iter();
                let name = name(|_| draws.next().unwrap_or(35));
                assert!(is_label(&name), "{name}");
            }
        }
    }

    #[test]
    fn random_names_differ_and_derived_ones_do_not() {
        let names: BTreeSet<_> = (0..1000).map(|_| random()).collect();
        assert_eq!(names.len(), 1000);
        assert!(names.iter().all(|name| is_label(name)));
        assert_eq!(derived(&[7; 32]), derived(&[7; 32]));
        assert_ne!(derived(&[7; 32]), derived(&[8; 32]));
        assert!(is_label(&derived(&[255; 32])));
    }
}
