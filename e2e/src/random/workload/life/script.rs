//! Chooses what users do next, at random: with everything that users can do, as the script of a life; or so that it is known what then has to
//! become of their apps. Pure: the same seed gives the same steps.

use clientapp_crd::PostgresProvider;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::step::{APPS, Cascade, Edit, Helm, Hostname, Move, Name, Part, Plant, Policy, SOLO, Solo, Spec, Step, Then};

/// The number of steps of a life, without those that end it.
const STEPS: std::ops::RangeInclusive<usize> = 3..=8;

/// The plan of a life.
#[derive(Clone, Debug, PartialEq)]
pub struct Script {
    pub seed: u64,
    /// Says whether its namespace is marked as created by the HTTP API.
    pub made_namespace: bool,
    pub moves: Vec<Move>,
}

/// An app after the steps so far, as far as that influences later ones. It may be wrong where users do everything: the API server then
/// refuses a step, and the life continues.
#[derive(Clone, Copy, Debug)]
pub struct App {
    pub name: Name,
    /// That of each app of this name, so that a later one can adopt its data; `None` in the first place: any.
    provider: Option<Option<PostgresProvider>>,
    is_persistent: bool,
    pub exists: bool,
    suspended: bool,
    /// How its spec is broken.
    broken: Option<Edit>,
    pub retain: bool,
    /// Says whether an earlier app of this name may have left data that this one has not adopted yet.
    pub left: bool,
    /// Says whether it has the next patch version. It never goes back: an older app does not understand newer data.
    upgraded: bool,
}

impl App {
    /// An app whose users do anything.
    fn of_any_kind(name: Name) -> App {
        let (exists, suspended, retain, left, upgraded) = (false, false, false, false, false);
        App { name, provider: None, is_persistent: true, exists, suspended, broken: None, retain, left, upgraded }
    }

    /// An app of which it is known what has to become of it. The number chooses among all kinds.
    pub fn numbered(name: Name, number: usize) -> App {
        let provider = [None, Some(PostgresProvider::Standalone), Some(PostgresProvider::Percona)][number % 3];
        App { provider: Some(provider), is_persistent: (number / 3).is_multiple_of(2), ..App::of_any_kind(name) }
    }

    /// Returns what its user does next, where it is known what then has to become of it.
    pub fn next(&self, random: &mut StdRng) -> Step {
        let App { name, exists, suspended, broken, upgraded, is_persistent, .. } = *self;
        let value = Edit::Value(random.random());
        let edits: Vec<(Edit, u32)> = match (exists, suspended, broken) {
            (false, ..) => {
                let policy = if random.random_bool(0.4) { Policy::Retain } else { Policy::Delete };
                return Step::Create(name, self.spec(policy));
            }
            // A suspended app is not deleted.
            (_, true, _) => vec![(Edit::Suspend(false), 3), (value, 1)],
            (_, _, Some(_)) if random.random_bool(0.25) => return Step::Delete(name, Cascade::Background),
            (_, _, Some(_)) => vec![(Edit::Mend, 3)],
            _ => match random.random_range(0..16) {
                0..2 => return Step::Hand(name, Part::Deployment),
                2..4 => return Step::Delete(name, Cascade::Background),
                _ => vec![
                    (value, 4),
                    (Edit::Version, if upgraded { 0 } else { 2 }),
                    (Edit::Unrenderable, 1),
                    (Edit::UnknownVersion, 1),
                    (Edit::ReservedKey, 1),
                    (Edit::Suspend(true), 1),
                    // Several pods cannot share its volume.
                    (Edit::Scale(random.random_range(1..=3)), if is_persistent { 0 } else { 2 }),
                    (Edit::Policy(if self.retain { Policy::Delete } else { Policy::Retain }), 1),
                ],
            },
        };
        Step::Edit(name, edits.choose_weighted(random, |(_, weight)| *weight).expect("there is a choice").0)
    }

    /// The spec to create it with, where it is known what then has to become of it.
    pub fn spec(&self, policy: Policy) -> Spec {
        let provider = self.provider.flatten();
        Spec {
            provider,
            policy,
            is_upgraded: self.upgraded,
            is_persistent: self.is_persistent,
            redis: false,
            given_secret: false,
            keep: true,
            // Percona's second controller may make the user's Secret again while the first deletes it.
            adopt: self.left || provider == Some(PostgresProvider::Percona),
            backup: false,
        }
    }

    /// The app after a step.
    pub fn after(self, step: &Step) -> App {
        match *step {
            Step::Create(_, Spec { policy, .. }) => App { exists: true, retain: policy == Policy::Retain, ..self },
            Step::Post(_, _, Hostname::Own) => App { exists: true, retain: false, ..self },
            Step::Edit(_, Edit::Suspend(suspended)) => App { suspended, ..self },
            Step::Edit(_, Edit::Version) => App { upgraded: true, ..self },
            Step::Edit(_, Edit::Mend) => App { upgraded: true, broken: None, ..self },
            Step::Edit(_, Edit::Policy(policy)) => App { retain: policy == Policy::Retain, ..self },
            Step::Edit(_, edit) if edit.breaks() => App { broken: Some(edit), ..self },
            // A suspended app is not deleted.
            Step::Delete(..) | Step::HttpDelete(_) | Step::EditOutFinalizers(_) => {
                App { exists: self.suspended, broken: None, left: self.left || self.retain, ..self }
            }
            _ => self,
        }
    }

    /// The app once it was as expected: if it was Ready, everything that was left is its own again.
    pub fn rested(self) -> App {
        App { left: self.left && !(self.exists && self.remedy().is_none()), ..self }
    }

    /// Returns what puts it right, unless it is.
    pub fn remedy(&self) -> Option<Step> {
        let remedy = if self.suspended { Some(Edit::Suspend(false)) } else { self.broken.map(|_| Edit::Mend) };
        remedy.map(|edit| Step::Edit(self.name, edit))
    }

    /// The reasons that `Ready` may have at rest; `None`: the app does not exist.
    pub fn expected(&self) -> Option<&'static [&'static str]> {
        let reasons: &[&str] = match (self.suspended, self.broken) {
            // Nothing was left to do when it was suspended, or something was.
            (true, _) => &["Ready", "Suspended"],
            (_, None) => &["Ready"],
            (_, Some(Edit::ReservedKey)) => &["InvalidSpec"],
            (_, Some(_)) => &["ChartInvalid"],
        };
        self.exists.then_some(reasons)
    }
}

/// The script of a seed.
pub fn script(seed: u64) -> Script {
    let mut random = StdRng::seed_from_u64(seed);
    let made_namespace = random.random_bool(0.3);
    let mut writer = Writer { random, apps: APPS.map(App::of_any_kind), solo: false, moves: Vec::new() };
    // Most lives use one app or its name only, so that names are reused.
    let apps = if writer.random.random_bool(0.75) { 1 } else { 2 };
    let steps = writer.random.random_range(STEPS);
    while writer.moves.len() < steps {
        match writer.random.random_range(0..100) {
            0..88 => {
                let app = writer.random.random_range(0..apps);
                writer.about_app(app);
            }
            88..97 => writer.about_solo(),
            _ => writer.delete_namespace(),
        }
    }
    writer.end();
    Script { seed, made_namespace, moves: writer.moves }
}

struct Writer {
    random: StdRng,
    apps: [App; 2],
    solo: bool,
    moves: Vec<Move>,
}

impl Writer {
    fn push(&mut self, step: Step) {
        let then = self.one_of(&[(Then::AtOnce, 2), (Then::Seen, 2), (Then::Settled, 6)]);
        for app in &mut self.apps {
            if step.app() == Some(app.name) {
                *app = app.after(&step);
            }
        }
        self.moves.push(Move { step, then });
    }

    fn one_of<T: Clone>(&mut self, choices: &[(T, u32)]) -> T {
        let (chosen, _) = choices.choose_weighted(&mut self.random, |(_, weight)| *weight).expect("there is a choice");
        chosen.clone()
    }

    /// Chooses with the weight of each of a group.
    fn one_of_each<T: Copy>(&mut self, groups: &[(u32, &[T])]) -> T {
        let all: Vec<_> =
            groups.iter().flat_map(|(weight, group)| group.iter().map(|choice| (*choice, *weight))).collect();
        self.one_of(&all)
    }

    fn about_app(&mut self, index: usize) {
        let name = APPS[index];
        if !self.apps[index].exists {
            return match self.random.random_range(0..100) {
                0..62 => self.create(index),
                62..72 => self.post(index),
                72..92 => self.plant(name),
                _ => self.push(Step::Helm(name, Helm::Install)),
            };
        }
        match self.random.random_range(0..100) {
            0..32 => self.delete(index),
            32..62 => self.edit(index),
            62..78 => {
                use Part::{
                    AdminSecret, Database, DatabaseSecret, DatabaseVolume, Deployment, Files, RedisSecret,
                    ReleaseSecret,
                };
                let (twice, once) = (
                    [AdminSecret, Database, ReleaseSecret],
                    [RedisSecret, DatabaseVolume, DatabaseSecret, Files, Deployment],
                );
                let part = self.one_of_each(&[(2, &twice), (1, &once)]);
                self.push(Step::Hand(name, part));
            }
            78..84 => {
                let helm = self.one_of(&[(Helm::Upgrade, 1), (Helm::Uninstall, 1), (Helm::UninstallKeepHistory, 1)]);
                self.push(Step::Helm(name, helm));
            }
            84..94 => self.plant(name),
            94..97 => self.push(Step::ForgeMarks(name)),
            _ => self.push(Step::ForgeStatus(name)),
        }
    }

    fn spec(&mut self, left: bool) -> Spec {
        let provider = self.one_of(&[
            (None, 3),
            (Some(PostgresProvider::Percona), 4),
            (Some(PostgresProvider::Standalone), 4),
            (Some(PostgresProvider::External), 1),
        ]);
        Spec {
            provider,
            policy: self.one_of(&[(Policy::Delete, 3), (Policy::Retain, 2)]),
            is_upgraded: false,
            is_persistent: true,
            redis: self.random.random_bool(0.3),
            given_secret: self.random.random_bool(0.2),
            keep: self.random.random_bool(0.5),
            adopt: left && self.random.random_bool(0.5),
            backup: provider.is_some() && self.random.random_bool(0.15),
        }
    }

    fn create(&mut self, index: usize) {
        let spec = self.spec(self.apps[index].left);
        self.push(Step::Create(APPS[index], spec));
    }

    fn post(&mut self, index: usize) {
        let spec = self.spec(self.apps[index].left);
        let hostname = self.one_of(&[(Hostname::Own, 4), (Hostname::Taken, 1)]);
        self.push(Step::Post(APPS[index], Spec { policy: Policy::Delete, given_secret: false, ..spec }, hostname));
    }

    fn plant(&mut self, name: Name) {
        use Plant::*;
        let twice = [ReleaseVolume, InstanceVolume, DatabaseVolume, LabelledSecret, Cluster];
        let once = [RetainedVolume, AdminSecret, Postgresql, Backup, EndpointSlice, Snapshot];
        let plant = self.one_of_each(&[(2, &twice), (1, &once)]);
        self.push(Step::Plant(name, plant));
        if matches!(plant, Plant::Cluster | Plant::Postgresql) && self.random.random_bool(0.5) {
            // Anything it leaves behind is as foreign as it was.
            self.push(Step::Hand(name, Part::Database));
        }
    }

    fn edit(&mut self, index: usize) {
        let App { suspended, broken, .. } = self.apps[index];
        let number = self.random.random();
        let edit = match (suspended, broken) {
            (true, _) if self.random.random_bool(0.5) => Edit::Suspend(false),
            (_, Some(_)) if self.random.random_bool(0.5) => Edit::Mend,
            _ => self.one_of_each(&[
                (4, &[Edit::Suspend(true)]),
                (3, &[Edit::Value(number), Edit::Policy(Policy::Retain), Edit::Policy(Policy::Delete)]),
                (2, &[Edit::Version, Edit::Grow, Edit::ReservedKey, Edit::Undecodable]),
                (1, &[Edit::Redis(true), Edit::Redis(false), Edit::NoPersistence, Edit::Rename]),
                (1, &[Edit::UnknownVersion, Edit::Unrenderable, Edit::Adopt]),
            ]),
        };
        self.push(Step::Edit(APPS[index], edit));
    }

    fn cascade(&mut self) -> Cascade {
        self.one_of(&[(Cascade::Background, 6), (Cascade::Foreground, 4), (Cascade::Orphan, 1)])
    }

    fn delete(&mut self, index: usize) {
        let name = APPS[index];
        let cascade = self.cascade();
        let step = self.one_of(&[
            (Step::Delete(name, cascade), 8),
            (Step::HttpDelete(name), 1),
            (Step::EditOutFinalizers(name), 1),
        ]);
        self.push(step);
        self.apps[index].left = true;
        // Recreated under the same name: the operator must not confuse the objects of the two.
        if self.random.random_bool(0.5) {
            self.create(index);
        }
    }

    fn about_solo(&mut self) {
        if self.solo {
            match self.random.random_range(0..3) {
                0 => {
                    let policy = self.one_of(&[(Policy::Retain, 1), (Policy::Delete, 1)]);
                    self.push(Step::FlipSolo(policy));
                }
                1 => self.push(Step::Hand(SOLO, Part::DatabaseSecret)),
                _ => {
                    let cascade = self.cascade();
                    self.push(Step::DeleteSolo(cascade));
                    self.solo = false;
                }
            }
        } else {
            let solo = Solo {
                policy: self.one_of(&[(Policy::Delete, 1), (Policy::Retain, 1)]),
                last_dump: self.random.random_bool(0.5),
                replicas: self.random.random_range(1..=2),
            };
            self.push(Step::CreateSolo(solo));
            self.solo = true;
        }
    }

    fn delete_namespace(&mut self) {
        self.moves.push(Move { step: Step::DeleteNamespace, then: Then::AtOnce });
        self.apps = APPS.map(App::of_any_kind);
        self.solo = false;
    }

    /// Most lives end by deleting everything, which shows whether something is left.
    fn end(&mut self) {
        if self.random.random_bool(0.2) {
            return;
        }
        for (index, name) in APPS.into_iter().enumerate() {
            if self.apps[index].exists {
                let cascade = self.cascade();
                self.push(Step::Delete(name, cascade));
            }
        }
        if self.solo {
            let cascade = self.cascade();
            self.push(Step::DeleteSolo(cascade));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The words of the steps of an app of which it is known what has to become of it.
    fn known(seed: u64, number: usize) -> Vec<Step> {
        let (mut random, mut app) = (StdRng::seed_from_u64(seed), App::numbered("a", number));
        let mut next = || {
            let step = app.next(&mut random);
            app = app.after(&step);
            step
        };
        (0..60).map(|_| next()).collect()
    }

    #[test]
    fn every_step_of_an_app_with_a_known_end_comes() {
        assert_eq!(known(7, 0), known(7, 0));
        let steps = (0..12).flat_map(|number| known(number, number as usize));
        let words = steps.map(|step| match step {
            Step::Edit(_, edit) => format!("{edit:?}").split('(').next().unwrap_or_default().to_owned(),
            other => format!("{other:?}").split('(').next().unwrap_or_default().to_owned(),
        });
        let words: BTreeSet<_> = words.collect();
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        let expected =
            "Create Delete Hand Mend Policy ReservedKey Scale Suspend UnknownVersion Unrenderable Value Version";
        assert_eq!(words.join(" "), expected);
    }

    #[test]
    fn what_is_expected_after_some_steps() {
        let create = |policy| Step::Create("a", App::numbered("a", 0).spec(policy));
        let (deleted, retained) = (|| create(Policy::Delete), || create(Policy::Retain));
        let edit = |edit| Step::Edit("a", edit);
        let (delete, hand) = (|| Step::Delete("a", Cascade::Background), Step::Hand("a", Part::Deployment));
        let told = |app: &App| app.expected().map(|reasons| reasons.join(" or "));
        for (steps, expected, left) in [
            (vec![], None, false),
            (vec![deleted()], Some("Ready"), false),
            (vec![deleted(), edit(Edit::UnknownVersion)], Some("ChartInvalid"), false),
            (vec![deleted(), edit(Edit::Unrenderable), edit(Edit::Mend)], Some("Ready"), false),
            (vec![deleted(), edit(Edit::ReservedKey)], Some("InvalidSpec"), false),
            (vec![deleted(), edit(Edit::Suspend(true))], Some("Ready or Suspended"), false),
            (vec![deleted(), edit(Edit::Suspend(true)), edit(Edit::Suspend(false)), hand], Some("Ready"), false),
            (vec![deleted(), edit(Edit::UnknownVersion), delete()], None, false),
            (vec![deleted(), delete(), deleted()], Some("Ready"), false),
            (vec![deleted(), edit(Edit::Policy(Policy::Retain)), delete()], None, true),
            (vec![retained(), delete(), deleted()], Some("Ready"), true),
            (vec![retained(), edit(Edit::Policy(Policy::Delete)), delete()], None, false),
            // Perhaps deleted before it has adopted anything.
            (vec![retained(), delete(), deleted(), delete()], None, true),
            (vec![deleted(), edit(Edit::Version)], Some("Ready"), false),
        ] {
            let app = steps.iter().fold(App::numbered("a", 0), App::after);
            assert_eq!((told(&app).as_deref(), app.left), (expected, left), "{steps:?}");
            let well = app.remedy().map_or(app, |remedy| app.after(&remedy));
            assert!(!well.exists || told(&well).as_deref() == Some("Ready"), "{steps:?}");
            assert_eq!(app.rested().left, left && !app.exists, "{steps:?}");
        }
    }

    #[test]
    fn an_app_comes_back_as_it_was_and_adopts() {
        let app = App::numbered("a", 1);
        let steps = [Step::Create("a", app.spec(Policy::Retain)), Step::Edit("a", Edit::Version)];
        let app = steps.iter().fold(app, App::after).after(&Step::Delete("a", Cascade::Background));
        let Spec { is_upgraded, is_persistent, adopt, provider, .. } = app.spec(Policy::Delete);
        assert_eq!(
            (is_upgraded, is_persistent, adopt, provider),
            (true, true, true, Some(PostgresProvider::Standalone))
        );
    }

    #[test]
    fn a_seed_is_a_script() {
        assert_eq!(script(7), script(7));
        let different: BTreeSet<String> = (0..50).map(|seed| format!("{:?}", script(seed).moves)).collect();
        assert!(different.len() > 45, "{}", different.len());
    }

    /// Every kind of step is frequent enough to occur in a few hundred lives.
    #[test]
    fn nothing_is_forgotten() {
        let steps: Vec<Step> =
            (0..400).flat_map(|seed| script(seed).moves.into_iter().map(|moved| moved.step)).collect();
        let words: BTreeSet<String> = steps
            .iter()
            .map(|step| match step {
                Step::Create(_, spec) => format!("create {:?}", spec.provider),
                Step::Edit(_, Edit::Value(_)) => "edit Value".to_owned(),
                Step::Post(..) | Step::CreateSolo(_) => step.to_string().split(' ').next().unwrap().to_owned(),
                other => format!("{other:?}").replace("\"beta\"", "acme").replace("\"acme\"", "acme"),
            })
            .collect();
        let wanted = "create None; create Some(Percona); create Some(Standalone); create Some(External); POST; \
            Delete(acme, Orphan); EditOutFinalizers(acme); HttpDelete(acme); Edit(acme, Undecodable); \
            Edit(acme, Suspend(true)); Edit(acme, Adopt); Hand(acme, ReleaseSecret); Hand(acme, AdminSecret); \
            Helm(acme, Install); Helm(acme, UninstallKeepHistory); Plant(acme, Cluster); \
            Plant(acme, DatabaseVolume); Plant(acme, Snapshot); ForgeStatus(acme); ForgeMarks(acme); \
            DeleteSolo(Foreground); DeleteNamespace";
        for wanted in wanted.split("; ") {
            assert!(words.contains(wanted), "{wanted} does not occur in {words:#?}");
        }
    }
}
