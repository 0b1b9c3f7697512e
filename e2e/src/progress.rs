//! Progress of slow work on standard error: bars on a terminal, plain lines elsewhere.

use std::borrow::Cow;
use std::cell::Cell;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

use indicatif::{FormattedDuration, MultiProgress, ProgressBar, ProgressDrawTarget, ProgressStyle};

/// How often plain output reports that a task is still running.
const REMINDER: Duration = Duration::from_secs(30);

pub struct Progress {
    bars: MultiProgress,
    silent: bool,
}

impl Progress {
    /// Bars on standard error if that is a terminal, else plain lines.
    pub fn stderr() -> Self {
        Self { bars: MultiProgress::with_draw_target(ProgressDrawTarget::stderr()), silent: false }
    }

    /// Prints nothing.
    pub fn hidden() -> Self {
        Self { bars: MultiProgress::with_draw_target(ProgressDrawTarget::hidden()), silent: true }
    }

    /// One line, above any bars.
    pub fn note(&self, text: &str) {
        if !self.silent {
            self.bars.suspend(|| line(text));
        }
    }

    /// Starts a task of unknown length.
    pub fn task(&self, title: impl Into<Cow<'static, str>>) -> Task<'_> {
        let title = title.into();
        let bar = self.bars.add(ProgressBar::new_spinner());
        bar.set_style(style("{spinner} {prefix} {elapsed_precise} {wide_msg}"));
        bar.set_prefix(title.clone());
        bar.enable_steady_tick(Duration::from_millis(120));
        self.instead_of_bars(|| format!("{title} ..."));
        let now = Instant::now();
        Task { progress: self, bar, title, started: now, said: Cell::new(now) }
    }

    fn instead_of_bars(&self, text: impl FnOnce() -> String) {
        if !self.silent && self.bars.is_hidden() {
            line(&text());
        }
    }
}

/// A task in progress. Dropped before [`Task::done`], it vanishes: the error says the rest.
pub struct Task<'a> {
    progress: &'a Progress,
    bar: ProgressBar,
    title: Cow<'static, str>,
    started: Instant,
    said: Cell<Instant>,
}

impl Task<'_> {
    /// Call it once the number of steps is known.
    pub fn steps(&self, steps: usize) {
        self.bar.set_style(style("{spinner} {prefix} {bar:24} {pos}/{len} {elapsed_precise} {wide_msg:.dim}"));
        self.bar.set_length(steps as u64);
    }

    pub fn step(&self) {
        self.bar.inc(1);
    }

    /// The current activity.
    pub fn message(&self, message: impl Into<Cow<'static, str>>) {
        let message = message.into();
        if self.said.get().elapsed() >= REMINDER {
            self.said.set(Instant::now());
            self.progress.instead_of_bars(|| {
                let steps = self.bar.length().map(|steps| format!(" {}/{steps}", self.bar.position()));
                format!("{} ... {}{} {message}", self.title, self.elapsed(), steps.unwrap_or_default())
            });
        }
        self.bar.set_message(message);
    }

    /// Leaves one line that says how long the task took.
    pub fn done(self) {
        self.bar.finish_and_clear();
        self.progress.note(&format!("{}: done in {}", self.title, self.elapsed()));
    }

    fn elapsed(&self) -> FormattedDuration {
        FormattedDuration(self.started.elapsed())
    }
}

impl Drop for Task<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Not `eprintln!`, whose output a test harness captures until the test has ended.
fn line(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).expect("the templates above are valid")
}
