use serde_json::{Value, json};

use super::*;
use crate::{
    platform::fake::{merged, of},
    profile::waves,
};

const READY: i64 = 1_000_000;

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(READY + seconds).unwrap()
}

fn check(given: Value) -> Arc<HealthCheck> {
    of(merged(json!({"path": "/status.php"}), given))
}

fn app(name: &str, revision: i64) -> AppView {
    AppView { health: Health::Ready(at(0)), ..waves::tests::app(name, revision) }
}

/// One app, of a Profile whose soak is a minute.
struct Played {
    checks: Checks,
    check: Arc<HealthCheck>,
    revision: &'static str,
    ready_since: Timestamp,
    is_ready: bool,
    question: Option<Question>,
}

impl Played {
    fn new(check: Arc<HealthCheck>) -> Played {
        Played {
            checks: Checks::default(),
            check,
            revision: "team-2",
            ready_since: at(0),
            is_ready: true,
            question: None,
        }
    }

    /// Returns how the app does at this time, whether it is asked, and when it is to be asked again.
    fn at(&mut self, seconds: i64) -> (Health, bool, Option<i64>) {
        let judged = Judged { revision: (2, self.revision), check: &self.check, soak: SignedDuration::from_mins(1) };
        let health = if self.is_ready { Health::Ready(self.ready_since) } else { Health::Waits };
        let mut apps = [AppView { health, ..app("acme", 2) }];
        let (mut due, next) = self.checks.judge(("team", "p"), judged, &mut apps, at(seconds));
        let is_asked = !due.is_empty();
        if is_asked {
            self.question = due.pop();
        }
        (apps[0].health, is_asked, next.map(|next| next.as_second() - READY))
    }

    fn answers(&self, outcome: Outcome, seconds: i64) {
        self.checks.record(self.question.as_ref().unwrap(), outcome, at(seconds));
    }
}

fn wrong() -> Outcome {
    Outcome::Wrong("it says no".to_owned())
}

#[test]
fn an_app_is_asked_once_it_is_ready_and_at_the_end_of_its_soak() {
    let mut app = Played::new(check(json!({})));
    assert_eq!(app.at(0), (Health::Waits, true, None));
    // It is being asked.
    assert_eq!(app.at(1), (Health::Waits, false, None));
    app.answers(Outcome::Right, 2);
    assert_eq!(app.at(2), (Health::Ready(at(0)), false, Some(60)));
    assert_eq!(app.at(60), (Health::Waits, true, None));
    app.answers(Outcome::Right, 61);
    assert_eq!(app.at(61), (Health::Ready(at(0)), false, None));
    assert_eq!(app.at(99_999), (Health::Ready(at(0)), false, None));
    app.checks.forget("p");
    // As after a restart.
    assert_eq!(app.at(100_000), (Health::Waits, true, None));
    app.answers(Outcome::Right, 100_001);
    assert_eq!(app.at(100_001), (Health::Ready(at(0)), false, None));
}

#[test]
fn an_app_that_answers_wrongly_waits_and_fails_and_comes_back() {
    let mut app = Played::new(check(json!({"periodSeconds": 20, "failureThreshold": 3})));
    app.at(0);
    for asked in [0, 20, 40] {
        app.answers(wrong(), asked);
        let health = if asked == 40 { Health::Failed } else { Health::Waits };
        // One that has failed is asked once a minute.
        let again = if asked == 40 { 100 } else { asked + 20 };
        assert_eq!(app.at(asked + 1), (health, false, Some(again)));
        assert_eq!(app.at(again), (health, true, None));
    }
    // That the API server does not answer is not the app's failure, nor its recovery.
    app.answers(Outcome::Unknown("no".to_owned()), 100);
    assert_eq!(app.at(160), (Health::Failed, true, None));
    app.answers(Outcome::Right, 160);
    // The soak begins anew.
    assert_eq!(app.at(161), (Health::Ready(at(160)), false, Some(220)));
    assert_eq!(app.at(220), (Health::Waits, true, None));
    app.answers(Outcome::Right, 220);
    assert_eq!(app.at(221), (Health::Ready(at(160)), false, None));
}

#[test]
fn an_app_that_is_not_ready_in_between_does_not_begin_anew() {
    let mut app = Played::new(check(json!({"failureThreshold": 2})));
    app.at(0);
    app.answers(wrong(), 1);
    app.is_ready = false;
    assert_eq!(app.at(5), (Health::Waits, false, None));
    (app.is_ready, app.ready_since) = (true, at(9));
    assert_eq!(app.at(9), (Health::Waits, true, None));
    app.answers(wrong(), 10);
    assert_eq!(app.at(10), (Health::Failed, false, Some(30)));
}

#[test]
fn an_app_that_is_right_and_wrong_in_turn_has_failed_after_half_an_hour() {
    let mut app = Played::new(check(json!({})));
    app.at(0);
    app.answers(Outcome::Right, 0);
    for begin in [60, 2000] {
        assert_eq!(app.at(begin), (Health::Waits, true, None));
        app.answers(wrong(), begin);
        let health = if begin == 60 { Health::Waits } else { Health::Failed };
        assert_eq!(app.at(begin + 60), (health, true, None));
        app.answers(Outcome::Right, begin + 60);
        let soaks = if begin == 60 { Health::Ready(at(120)) } else { Health::Failed };
        assert_eq!(app.at(begin + 61), (soaks, false, Some(begin + 120)));
    }
    // Unless it is right for the whole soak.
    assert_eq!(app.at(2120), (Health::Waits, true, None));
    app.answers(Outcome::Right, 2120);
    assert_eq!(app.at(2121), (Health::Ready(at(2060)), false, None));
}

#[test]
fn every_app_is_asked_when_the_soak_of_the_last_one_ends() {
    let (checks, asked) = (Checks::default(), check(json!({})));
    let judged = Judged { revision: (2, "team-2"), check: &asked, soak: SignedDuration::from_mins(1) };
    let judge = |now: i64| {
        let mut apps = [app("a", 2), AppView { health: Health::Ready(at(50)), ..app("b", 2) }];
        let (due, next) = checks.judge(("team", "p"), judged, &mut apps, at(now));
        due.iter().for_each(|question| checks.record(question, Outcome::Right, at(now)));
        let uids: Vec<_> = due.into_iter().map(|question| question.uid).collect();
        (uids.concat(), next.map(|next| next.as_second() - READY))
    };
    assert_eq!(judge(50), ("ab".to_owned(), None));
    assert_eq!(judge(50), (String::new(), Some(110)));
    assert_eq!(judge(110), ("ab".to_owned(), None));
    assert_eq!(judge(111), (String::new(), None));
}

#[test]
fn an_answer_that_nobody_waits_for_is_not_asked_for() {
    let mut app = Played::new(check(json!({})));
    app.at(0);
    let question = app.question.clone().unwrap();
    assert!(app.checks.awaits(&question));
    app.check = check(json!({"periodSeconds": 11}));
    app.at(1);
    assert!(!app.checks.awaits(&question) && app.checks.awaits(app.question.as_ref().unwrap()));
    app.checks.forget("p");
    assert!(!app.checks.awaits(app.question.as_ref().unwrap()));
}

#[test]
fn a_clock_that_was_set_back_delays_nothing() {
    let mut app = Played::new(check(json!({})));
    app.at(0);
    app.answers(wrong(), 99_999);
    assert_eq!(app.at(10), (Health::Waits, true, None));
    app.answers(Outcome::Right, 10);
    assert_eq!(app.at(10), (Health::Ready(at(10)), false, Some(70)));
}

#[test]
fn an_api_server_that_does_not_answer_fails_no_app() {
    let mut app = Played::new(check(json!({"failureThreshold": 1})));
    app.at(0);
    for asked in [0, 10, 20] {
        app.answers(Outcome::Unknown("no".to_owned()), asked);
        assert_eq!(app.at(asked + 10), (Health::Waits, true, None));
    }
    app.answers(Outcome::Right, 30);
    assert_eq!(app.at(31), (Health::Ready(at(0)), false, Some(60)));
}

#[test]
fn an_answer_says_nothing_about_another_state_of_the_app() {
    let change: [fn(&mut Played); 3] = [
        |app| app.revision = "team-2-of-another-profile",
        |app| app.ready_since = at(5),
        |app| app.check = check(json!({"port": 8080})),
    ];
    for change in change {
        let mut app = Played::new(check(json!({})));
        app.at(0);
        app.answers(Outcome::Right, 1);
        change(&mut app);
        let asked_before = app.question.clone();
        assert_eq!(app.at(6), (Health::Waits, true, None));
        // Nor does an answer that is late.
        app.checks.record(&asked_before.unwrap(), Outcome::Right, at(7));
        assert_eq!(app.at(7), (Health::Waits, false, None));
    }
    let app = Played::new(check(json!({})));
    let question = Question {
        profile: ("team".to_owned(), "p".to_owned()),
        app: Key::new("ns", "gone"),
        uid: "gone".to_owned(),
        subject: Subject { revision: "team-2".to_owned(), ready_since: at(0), check: app.check.clone() },
    };
    app.checks.record(&question, Outcome::Right, at(0));
    assert!(app.checks.0.lock().is_empty());
}

#[test]
fn only_apps_that_are_ready_with_the_revision_and_count_are_asked() {
    let mut apps = [app("a", 2), app("b", 1), app("c", 2), app("d", 2), app("e", 2)];
    apps[2].is_out = true;
    apps[3].health = Health::Waits;
    apps[4].health = Health::Failed;
    let (checks, asked) = (Checks::default(), check(json!({})));
    let judged = Judged { revision: (2, "team-2"), check: &asked, soak: SignedDuration::ZERO };
    let (due, next) = checks.judge(("team", "p"), judged, &mut apps, at(9));
    assert_eq!(due.iter().map(|question| question.uid.as_str()).collect::<Vec<_>>(), ["a"]);
    checks.record(&due[0], wrong(), at(9));
    assert_eq!(next, None);
    apps[0].health = Health::Ready(at(0));
    let (due, next) = checks.judge(("team", "p"), judged, &mut apps, at(9));
    assert_eq!((due.len(), next), (0, Some(at(19))));
    assert_eq!((apps[0].health, apps[0].unhealthy.as_deref()), (Health::Waits, Some("it says no")));
    // Without a soak, one answer is enough.
    let (due, _) = checks.judge(("team", "p"), judged, &mut [app("a", 2)], at(19));
    checks.record(&due[0], Outcome::Right, at(20));
    let mut apps = [app("a", 2)];
    assert_eq!(checks.judge(("team", "p"), judged, &mut apps, at(20)).1, None);
    assert_eq!(apps[0].health, Health::Ready(at(20)));
}
