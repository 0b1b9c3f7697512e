//! What an app's user does next, and what then has to become of the app. Pure: the same seed gives the same choices.

use clientapp_crd::PostgresProvider;
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use serde_json::{Value, json};

use crate::charts;

/// A version that no repository has.
const ABSENT: &str = "9.9.9";

/// How a spec is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    /// A version that does not render.
    Unrenderable,
    /// A version that is not published.
    Absent,
    /// A value that the operator computes.
    ReservedKey,
}

/// What a user does to an app, or to its objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// With `deletionPolicy: Retain` or not, adopting what an earlier app has left.
    Create {
        retain: bool,
    },
    /// A value for the chart.
    Value(u32),
    /// The next patch version.
    Upgrade,
    Break(Broken),
    /// Reverts [`Action::Break`].
    Mend,
    Suspend(bool),
    Scale(u8),
    /// `spec.deletionPolicy`.
    Retain(bool),
    DeleteDeployment,
    Delete,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Well,
    Broken(Broken),
    Suspended,
}

/// An app as its user knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct App {
    provider: Option<PostgresProvider>,
    persistent: bool,
    pub exists: bool,
    pub retain: bool,
    /// Whether an earlier app of this name may have left data that this one has not adopted yet.
    pub left: bool,
    /// Whether it has the next patch version. It never goes back: an older app does not understand newer data.
    upgraded: bool,
    shape: Shape,
}

impl App {
    /// An app that does not exist yet. The number chooses among all kinds.
    #[must_use]
    pub fn new(number: usize) -> App {
        let provider = [None, Some(PostgresProvider::Standalone), Some(PostgresProvider::Percona)][number % 3];
        App {
            provider,
            persistent: (number / 3).is_multiple_of(2),
            exists: false,
            retain: false,
            left: false,
            upgraded: false,
            shape: Shape::Well,
        }
    }

    /// What its user does next.
    pub fn next(&self, random: &mut StdRng) -> Action {
        let number = random.random_range(0..1_000_000);
        let choices: Vec<(Action, u32)> = match (self.exists, self.shape) {
            (false, _) => vec![(Action::Create { retain: random.random_bool(0.4) }, 1)],
            // A suspended app is not deleted.
            (true, Shape::Suspended) => vec![(Action::Suspend(false), 3), (Action::Value(number), 1)],
            (true, Shape::Broken(_)) => vec![(Action::Mend, 3), (Action::Delete, 1)],
            (true, Shape::Well) => vec![
                (Action::Value(number), 4),
                (Action::Upgrade, if self.upgraded { 0 } else { 2 }),
                (Action::Break(Broken::Unrenderable), 1),
                (Action::Break(Broken::Absent), 1),
                (Action::Break(Broken::ReservedKey), 1),
                (Action::Suspend(true), 1),
                // Several pods cannot share its volume.
                (Action::Scale(random.random_range(1..=3)), if self.persistent { 0 } else { 2 }),
                (Action::Retain(!self.retain), 1),
                (Action::DeleteDeployment, 2),
                (Action::Delete, 2),
            ],
        };
        let chosen = choices.choose_weighted(random, |(_, weight)| *weight);
        chosen.expect("there is a choice").0
    }

    /// The app after that.
    #[must_use]
    pub fn after(self, action: Action) -> App {
        match action {
            Action::Create { retain } => App { exists: true, retain, shape: Shape::Well, ..self },
            Action::Upgrade => App { upgraded: true, ..self },
            Action::Break(broken) => App { shape: Shape::Broken(broken), ..self },
            Action::Suspend(true) => App { shape: Shape::Suspended, ..self },
            Action::Mend | Action::Suspend(false) => App { shape: Shape::Well, ..self },
            Action::Retain(retain) => App { retain, ..self },
            Action::Delete => App { exists: false, left: self.left || self.retain, shape: Shape::Well, ..self },
            Action::Value(_) | Action::Scale(_) | Action::DeleteDeployment => self,
        }
    }

    /// The app once it was as expected: if it was Ready, everything that was left is its own again.
    #[must_use]
    pub fn rested(self) -> App {
        App { left: self.left && !(self.exists && self.shape == Shape::Well), ..self }
    }

    /// What puts it right, unless it is.
    #[must_use]
    pub fn remedy(&self) -> Option<Action> {
        match self.shape {
            Shape::Well => None,
            Shape::Broken(_) => Some(Action::Mend),
            Shape::Suspended => Some(Action::Suspend(false)),
        }
    }

    /// The reasons that `Ready` may have at rest; `None`: the app does not exist.
    #[must_use]
    pub fn expected(&self) -> Option<&'static [&'static str]> {
        let reasons: &[&str] = match self.shape {
            Shape::Well => &["Ready"],
            Shape::Broken(Broken::ReservedKey) => &["InvalidSpec"],
            Shape::Broken(_) => &["ChartInvalid"],
            // Nothing was left to do when it was suspended, or something was.
            Shape::Suspended => &["Ready", "Suspended"],
        };
        self.exists.then_some(reasons)
    }

    fn version(&self) -> &'static str {
        if self.upgraded { charts::PATCH } else { charts::DEFAULT }
    }

    fn policy(&self) -> &'static str {
        if self.retain { "Retain" } else { "Delete" }
    }

    /// The `spec` to create it with.
    #[must_use]
    pub fn spec(&self, hostname: &str) -> Value {
        let mut postgres = match self.provider {
            None => json!({"enabled": false}),
            Some(PostgresProvider::Standalone) => json!({"provider": "standalone", "version": "17"}),
            Some(_) => json!({"provider": "percona"}),
        };
        // Percona's second controller may make the user's Secret again while the first deletes it.
        postgres["adopt"] = json!(self.left || self.provider == Some(PostgresProvider::Percona));
        json!({
            "hostname": hostname,
            "chartVersion": self.version(),
            "deletionPolicy": self.policy(),
            "redis": {"enabled": false},
            "persistence": {"enabled": self.persistent},
            "postgres": postgres,
        })
    }

    /// The merge patch of the spec for the action that made it what it is; `None`: the action does not change the spec.
    #[must_use]
    pub fn patch(&self, action: Action) -> Option<Value> {
        Some(match action {
            Action::Value(number) => json!({"values": {"podAnnotations": {"soak/value": number.to_string()}}}),
            Action::Upgrade => json!({"chartVersion": self.version()}),
            Action::Break(Broken::Unrenderable) => json!({"chartVersion": charts::UNRENDERABLE}),
            Action::Break(Broken::Absent) => json!({"chartVersion": ABSENT}),
            Action::Break(Broken::ReservedKey) => json!({"values": {"nextcloud": {"host": "elsewhere.example.com"}}}),
            Action::Mend => json!({"chartVersion": self.version(), "values": {"nextcloud": null}}),
            Action::Suspend(suspend) => json!({"suspend": suspend}),
            Action::Scale(replicas) => json!({"replicas": replicas}),
            Action::Retain(_) => json!({"deletionPolicy": self.policy()}),
            Action::Create { .. } | Action::DeleteDeployment | Action::Delete => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng as _;

    use super::*;

    fn lived(seed: u64, number: usize) -> Vec<Action> {
        let (mut random, mut app) = (StdRng::seed_from_u64(seed), App::new(number));
        let mut step = || {
            let action = app.next(&mut random);
            app = app.after(action);
            action
        };
        (0..60).map(|_| step()).collect()
    }

    #[test]
    fn a_seed_is_a_life_and_every_action_comes() {
        assert_eq!(lived(7, 0), lived(7, 0));
        assert_ne!(lived(7, 0), lived(8, 0));
        let word = |action: Action| {
            let told = format!("{action:?}");
            told.split([' ', '(']).next().unwrap_or_default().to_owned()
        };
        let words: BTreeSet<_> = (0..12).flat_map(|number| lived(number, number as usize)).map(word).collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        assert_eq!(words.join(" "), "Break Create Delete DeleteDeployment Mend Retain Scale Suspend Upgrade Value");
    }

    #[test]
    fn what_is_expected_after_some_actions() {
        use Action::{Break, Create, Delete, DeleteDeployment, Mend, Retain, Suspend, Upgrade};
        let create = Create { retain: false };
        let told = |app: &App| app.expected().map(|reasons| reasons.join(" or "));
        for (actions, expected, left) in [
            (vec![], None, false),
            (vec![create], Some("Ready"), false),
            (vec![create, Break(Broken::Absent)], Some("ChartInvalid"), false),
            (vec![create, Break(Broken::Unrenderable), Mend], Some("Ready"), false),
            (vec![create, Break(Broken::ReservedKey)], Some("InvalidSpec"), false),
            (vec![create, Suspend(true)], Some("Ready or Suspended"), false),
            (vec![create, Suspend(true), Suspend(false), DeleteDeployment], Some("Ready"), false),
            (vec![create, Break(Broken::Absent), Delete], None, false),
            (vec![create, Delete, create], Some("Ready"), false),
            (vec![create, Retain(true), Delete], None, true),
            (vec![Create { retain: true }, Delete, create], Some("Ready"), true),
            (vec![Create { retain: true }, Retain(false), Delete], None, false),
            // Perhaps deleted before it has adopted anything.
            (vec![Create { retain: true }, Delete, create, Delete], None, true),
            (vec![create, Upgrade], Some("Ready"), false),
        ] {
            let app = actions.iter().fold(App::new(0), |app, action| app.after(*action));
            assert_eq!((told(&app).as_deref(), app.left), (expected, left), "{actions:?}");
            let well = app.remedy().map_or(app, |remedy| app.after(remedy));
            assert!(!well.exists || told(&well).as_deref() == Some("Ready"), "{actions:?}");
            assert_eq!(app.rested().left, left && !app.exists, "{actions:?}");
        }
    }

    #[test]
    fn an_app_comes_back_as_it_was_and_adopts() {
        let actions =
            [Action::Create { retain: true }, Action::Upgrade, Action::Delete, Action::Create { retain: false }];
        let app = actions.iter().fold(App::new(1), |app, action| app.after(*action));
        assert_eq!(
            app.spec("a.example.com"),
            json!({
                "hostname": "a.example.com", "chartVersion": charts::PATCH, "deletionPolicy": "Delete",
                "redis": {"enabled": false}, "persistence": {"enabled": true},
                "postgres": {"provider": "standalone", "version": "17", "adopt": true},
            })
        );
        assert_eq!(
            app.patch(Action::Mend),
            Some(json!({"chartVersion": charts::PATCH, "values": {"nextcloud": null}}))
        );
        assert_eq!(app.patch(Action::Delete), None);
    }
}
