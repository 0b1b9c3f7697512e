use proptest::prelude::*;

use super::*;

/// A dump with data is written as its day, an empty one with `-`, one of another server with `+`.
fn candidate(text: &str) -> Candidate {
    let (stamp, mark) = match text.strip_suffix(['-', '+']) {
        Some(stamp) => (stamp, &text[stamp.len()..]),
        None => (text, ""),
    };
    let (day, hour) = stamp.split_once('T').unwrap_or((stamp, "03"));
    let name = Name::parse(&format!("{}T{hour}0000Z-a", day.replace('.', ""))).unwrap();
    let system = if mark == "+" { "2" } else { "1" };
    Candidate { name, system: system.to_owned(), has_data: mark != "-" }
}

const fn keep(last: u32, daily: u32, weekly: u32, monthly: u32) -> Keep {
    Keep { last, daily, weekly, monthly }
}

#[test]
fn what_goes() {
    for (what, keep, all, expected) in [
        ("nothing is there", keep(1, 0, 0, 0), "", ""),
        ("the last ones stay", keep(2, 0, 0, 0), "2026.01.01 2026.01.02 2026.01.03", "2026.01.01"),
        ("of a day, the newest", keep(0, 2, 0, 0), "2026.01.01T03 2026.01.01T04 2026.01.02T03", "2026.01.01T03"),
        ("days without a dump do not count", keep(0, 2, 0, 0), "2026.01.01 2026.02.01 2026.03.01", "2026.01.01"),
        // 2026-01-01 is a Thursday.
        (
            "weeks begin on Monday",
            keep(0, 0, 2, 0),
            "2025.12.28 2025.12.29 2026.01.04 2026.01.05",
            "2025.12.28 2025.12.29",
        ),
        ("months", keep(0, 0, 0, 2), "2025.12.31 2026.01.30 2026.01.31 2026.02.01", "2025.12.31 2026.01.30"),
        (
            "each rule keeps its own",
            keep(1, 2, 0, 2),
            "2025.11.30 2025.12.31 2026.01.29 2026.01.30T01 2026.01.30T02 2026.01.31",
            "2025.11.30 2026.01.29 2026.01.30T01",
        ),
        ("nothing is asked for, and one stays", keep(0, 0, 0, 0), "2026.01.01 2026.01.02", "2026.01.01"),
        ("empty ones stand for none with data", keep(1, 0, 0, 0), "2026.01.01 2026.01.02- 2026.01.03-", "2026.01.02"),
        ("and go for ones with data", keep(1, 0, 0, 0), "2026.01.01- 2026.01.02", "2026.01.01"),
        ("an empty one of the same day does not stand for it", keep(0, 1, 0, 0), "2026.01.01T03 2026.01.01T04-", ""),
        ("another server's stand for none", keep(1, 0, 0, 0), "2026.01.01 2026.01.02+ 2026.01.03+", ""),
    ] {
        let all: Vec<_> = all.split_whitespace().map(candidate).collect();
        let expected: Vec<_> = expected.split_whitespace().map(|text| candidate(text).name).collect();
        assert_eq!(goes(&all, "1", keep), expected, "{what}");
    }
}

fn some() -> impl Strategy<Value = (Vec<Candidate>, Keep)> {
    let one = (0..800i64, 0..3u8, any::<bool>()).prop_map(|(hour, system, has_data)| {
        let time =
            jiff::civil::date(2026, 1, 1).at(0, 0, 0, 0).saturating_add(jiff::SignedDuration::from_hours(hour * 7));
        let name = Name::parse(&format!("{}Z-a{system}", time.strftime("%Y%m%dT%H%M%S"))).unwrap();
        Candidate { name, system: system.to_string(), has_data }
    });
    let keep = (0..4u32, 0..4u32, 0..4u32, 0..4u32).prop_map(|(a, b, c, d)| keep(a, b, c, d));
    let unique = |all: Vec<Candidate>| -> Vec<Candidate> {
        let by_name: std::collections::BTreeMap<_, _> = all.into_iter().map(|one| (one.name.clone(), one)).collect();
        by_name.into_values().collect()
    };
    (proptest::collection::vec(one, 0..40).prop_map(unique), keep)
}

proptest! {
    #[test]
    fn whatever_is_there((all, keep) in some(), server in "[012]") {
        let gone = goes(&all, &server, keep);
        let left: Vec<_> = all.iter().filter(|one| !gone.contains(&one.name)).cloned().collect();
        // The newest of each server with data stays, and another server's all.
        for system in ["0", "1", "2"] {
            let newest = all.iter().filter(|one| one.system == system && one.has_data).max();
            prop_assert!(newest.is_none_or(|newest| left.contains(newest)));
        }
        prop_assert!(gone.iter().all(|name| all.iter().any(|one| one.name == *name && one.system == server)));
        // A removed dump is older than a kept one that replaces it.
        for name in &gone {
            let went = all.iter().find(|one| one.name == *name).unwrap();
            let stands_for = |one: &&Candidate| one.name > went.name && one.system == went.system && (one.has_data || !went.has_data);
            prop_assert!(left.iter().any(|one| stands_for(&one)));
        }
        // A second run removes nothing more.
        prop_assert_eq!(goes(&left, &server, keep), vec![]);
        let of_data = all.iter().filter(|one| one.system == server && one.has_data).count();
        let stay = left.iter().filter(|one| one.system == server && one.has_data).count();
        let bound = keep.last.max(1) + keep.daily + keep.weekly + keep.monthly;
        prop_assert!(stay <= bound as usize && stay >= of_data.min(keep.last as usize));
    }

    /// A dump that is worth uploading is not removed afterwards.
    #[test]
    fn an_upload_is_not_in_vain((all, keep) in some(), in_bucket in proptest::collection::vec(any::<bool>(), 40)) {
        let worth = kept(&all, keep);
        let there = all.iter().zip(in_bucket).filter(|(one, there)| *there || worth.contains(&one.name));
        let there: Vec<_> = there.map(|(one, _)| one.clone()).collect();
        prop_assert!(worth.is_subset(&kept(&there, keep)));
    }
}
