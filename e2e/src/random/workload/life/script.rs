//! A random script of a life. Pure: the same seed gives the same script.

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
    /// Whether its namespace is marked as created by the HTTP API.
    pub made_namespace: bool,
    pub moves: Vec<Move>,
}

/// The state after the script so far, as far as it influences later steps. It may be wrong: the API server then refuses
/// a step, and the life continues.
#[derive(Clone, Copy, Debug, Default)]
struct App {
    exists: bool,
    suspended: bool,
    invalid: bool,
    /// An earlier app has left data behind.
    left: bool,
}

/// The script of a seed.
#[must_use]
pub fn script(seed: u64) -> Script {
    let mut random = StdRng::seed_from_u64(seed);
    let made_namespace = random.random_bool(0.3);
    let mut writer = Writer { random, apps: [App::default(); 2], solo: false, moves: Vec::new() };
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
        self.moves.push(Move { step, then });
    }

    fn one_of<T: Clone>(&mut self, choices: &[(T, u32)]) -> T {
        let (chosen, _) = choices.choose_weighted(&mut self.random, |(_, weight)| *weight).expect("there is a choice");
        chosen.clone()
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
                let part = self.one_of(&[
                    (Part::AdminSecret, 2),
                    (Part::RedisSecret, 1),
                    (Part::Database, 2),
                    (Part::DatabaseVolume, 1),
                    (Part::DatabaseSecret, 1),
                    (Part::Files, 1),
                    (Part::ReleaseSecret, 2),
                    (Part::Deployment, 1),
                ]);
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
            redis: self.random.random_bool(0.3),
            given_secret: self.random.random_bool(0.2),
            keep: self.random.random_bool(0.5),
            adopt: left && self.random.random_bool(0.5),
            backup: provider.is_some() && self.random.random_bool(0.15),
        }
    }

    fn create(&mut self, index: usize) {
        let left = self.apps[index].left;
        let spec = self.spec(left);
        self.push(Step::Create(APPS[index], spec));
        self.apps[index] = App { exists: true, left, ..App::default() };
    }

    fn post(&mut self, index: usize) {
        let left = self.apps[index].left;
        let spec = self.spec(left);
        let hostname = self.one_of(&[(Hostname::Own, 4), (Hostname::Taken, 1)]);
        self.push(Step::Post(APPS[index], Spec { policy: Policy::Delete, given_secret: false, ..spec }, hostname));
        self.apps[index] = App { exists: hostname == Hostname::Own, left, ..App::default() };
    }

    fn plant(&mut self, name: Name) {
        let plant = self.one_of(&[
            (Plant::ReleaseVolume, 2),
            (Plant::InstanceVolume, 2),
            (Plant::RetainedVolume, 1),
            (Plant::DatabaseVolume, 2),
            (Plant::LabelledSecret, 2),
            (Plant::AdminSecret, 1),
            (Plant::Cluster, 2),
            (Plant::Postgresql, 1),
            (Plant::Backup, 1),
            (Plant::EndpointSlice, 1),
            (Plant::Snapshot, 1),
        ]);
        self.push(Step::Plant(name, plant));
        if matches!(plant, Plant::Cluster | Plant::Postgresql) && self.random.random_bool(0.5) {
            // Anything it leaves behind is as foreign as it was.
            self.push(Step::Hand(name, Part::Database));
        }
    }

    fn edit(&mut self, index: usize) {
        let App { suspended, invalid, .. } = self.apps[index];
        let number = self.random.random();
        let edit = match (suspended, invalid) {
            (true, _) if self.random.random_bool(0.5) => Edit::Suspend(false),
            (_, true) if self.random.random_bool(0.5) => Edit::Mend,
            _ => self.one_of(&[
                (Edit::Value(number), 3),
                (Edit::Version, 2),
                (Edit::Grow, 2),
                (Edit::Redis(true), 1),
                (Edit::Redis(false), 1),
                (Edit::NoPersistence, 1),
                (Edit::Rename, 1),
                (Edit::ReservedKey, 2),
                (Edit::UnknownVersion, 1),
                (Edit::Unrenderable, 1),
                (Edit::Undecodable, 2),
                (Edit::Suspend(true), 4),
                (Edit::Policy(Policy::Retain), 3),
                (Edit::Policy(Policy::Delete), 3),
                (Edit::Adopt, 1),
            ]),
        };
        let app = &mut self.apps[index];
        match edit {
            Edit::Suspend(suspend) => app.suspended = suspend,
            Edit::ReservedKey | Edit::UnknownVersion | Edit::Unrenderable | Edit::Undecodable => app.invalid = true,
            Edit::Mend => app.invalid = false,
            _ => {}
        }
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
        // A suspended app is not deleted.
        let App { suspended, .. } = self.apps[index];
        self.apps[index] = App { exists: suspended, suspended, left: true, ..App::default() };
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
        self.apps = [App::default(); 2];
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
                other => format!("{other:?}").replace("\"beta\"", "\"acme\""),
            })
            .collect();
        for wanted in [
            "create None",
            "create Some(Percona)",
            "create Some(Standalone)",
            "create Some(External)",
            "POST",
            "Delete(\"acme\", Orphan)",
            "EditOutFinalizers(\"acme\")",
            "HttpDelete(\"acme\")",
            "Edit(\"acme\", Undecodable)",
            "Edit(\"acme\", Suspend(true))",
            "Edit(\"acme\", Adopt)",
            "Hand(\"acme\", ReleaseSecret)",
            "Hand(\"acme\", AdminSecret)",
            "Helm(\"acme\", Install)",
            "Helm(\"acme\", UninstallKeepHistory)",
            "Plant(\"acme\", Cluster)",
            "Plant(\"acme\", DatabaseVolume)",
            "Plant(\"acme\", Snapshot)",
            "ForgeStatus(\"acme\")",
            "ForgeMarks(\"acme\")",
            "DeleteSolo(Foreground)",
            "DeleteNamespace",
        ] {
            assert!(words.contains(wanted), "{wanted} does not occur in {words:#?}");
        }
    }
}
