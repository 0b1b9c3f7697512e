//! Holds chart versions to what the operator relies on: each is rendered with the operator's own values, with one optional part at a
//! time, and judged by invariants; then one version of each major is installed and upgraded in turn on a control plane.
//!
//! | | module | |
//! |---|---|---|
//! | the optional parts, as ClientApps | [`parts`] | pure |
//! | what a ClientApp asks for | [`asked`] | pure |
//! | what a chart renders | [`release`] | pure |
//! | what has to hold of it | [`invariants`] | pure |
//! | the table | [`table`] | pure |
//! | where charts come from | [`archives`] | effect |
//! | the upgrades | [`upgrades`] | effect |

pub mod archives;
pub mod asked;
pub mod invariants;
pub mod parts;
pub mod release;
pub mod table;
pub mod upgrades;

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;

use anyhow::{Context as _, Result};
use serde_json::Value;

use self::archives::{Archive, Source};
use self::asked::Asked;
use self::invariants::{Case, INVARIANTS};
use self::parts::{NAMESPACE, Part, Variant};
use self::release::Release;
use self::table::{Cell, Table};
use crate::helm::{Helm, Ran};
use crate::operator;
use crate::progress::Progress;
use crate::tools::Tools;

#[derive(clap::Args, Clone, Debug)]
pub struct Options {
    /// Directory of packaged charts, nextcloud-VERSION.tgz
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Chart repository to take them from, where there is no such directory
    #[arg(long, env = "CLIENTAPP_CHART_REPOSITORY", value_name = "URL")]
    pub repository: Option<String>,
    /// Only these chart versions, such as 9.2.4, or 9.2 for all that begin with it
    #[arg(long = "version", value_name = "VERSION")]
    pub versions: Vec<String>,
    /// Only the parts with these names
    #[arg(long = "part", value_name = "PART")]
    pub parts: Vec<String>,
    /// Only render: install nothing
    #[arg(long)]
    pub render_only: bool,
    /// A row for each version, even if the one before has the same cells
    #[arg(long)]
    pub all_rows: bool,
    /// Further arguments of `clientapp-operator render`, after `--`
    #[arg(last = true, value_name = "ARGUMENT")]
    pub render: Vec<String>,
}

/// The result of a run.
#[derive(Debug, Default)]
pub struct Outcome {
    pub table: Table,
    /// What the upgrades show, in order, and where they did not hold.
    pub upgrades: Vec<upgrades::Step>,
}

impl Outcome {
    /// Returns the number of violations.
    #[must_use]
    pub fn count(&self) -> usize {
        self.table.violations().len() + self.upgrades.iter().map(|step| step.violations.len()).sum::<usize>()
    }

    /// Returns the tables, and all violations.
    #[must_use]
    pub fn told(&self, all_rows: bool) -> String {
        let upgrades =
            if self.upgrades.is_empty() { String::new() } else { format!("\n{}", upgrades::told(&self.upgrades)) };
        format!("{}{upgrades}", self.table.told(all_rows))
    }
}

/// Runs everything; `None`: no charts are at hand.
///
/// # Errors
/// If no charts can be read, or a control plane cannot be started.
pub fn run(options: &Options, progress: &Progress) -> Result<Option<Outcome>> {
    let Some(source) = Source::of(options) else { return Ok(None) };
    let tools = Tools::ensure(progress)?;
    let fetched = tempfile::tempdir()?;
    let archives = source.archives(&options.versions, &tools.helm, fetched.path(), progress)?;
    let table = check(&archives, &tools.helm, options, progress)?;
    let upgrades = if options.render_only { Vec::new() } else { upgrades::run(&archives, progress)? };
    Ok(Some(Outcome { table, upgrades }))
}

/// Renders all archives, which are in order, and judges them.
///
/// # Errors
/// If helm cannot be started.
pub fn check(archives: &[Archive], helm: &Path, options: &Options, progress: &Progress) -> Result<Table> {
    let parts = parts::all(&longest_name(&options.render));
    let wanted = |part: &&Part| options.parts.is_empty() || options.parts.iter().any(|name| name == part.name);
    let columns: Vec<&Part> = parts.iter().filter(wanted).collect();
    let variants: usize = columns.iter().map(|part| part.variants.len()).sum();
    let task = progress.task(format!("rendering {} versions in {variants} ways", archives.len()));

    let plain = &parts[0].variants[0];
    let plain = in_parallel(archives, helm, |helm, archive| render(helm, archive, plain, &options.render))?;
    let judged = in_parallel(&columns, helm, |helm, part| column(helm, part, archives, &plain, &options.render))?;
    task.done();

    let mut table = Table { parts: columns.iter().map(|part| part.name.to_owned()).collect(), rows: Vec::new() };
    for (index, archive) in archives.iter().enumerate() {
        table.rows.push((archive.version.to_string(), judged.iter().map(|cells| cells[index].clone()).collect()));
    }
    Ok(table)
}

/// Does the same to all items, in order, on as many threads as there are processors, each with a helm of its own.
fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    helm: &Path,
    work: impl Fn(&Helm, &T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::new());
    let worker = || -> Result<()> {
        let helm = Helm::new(helm)?;
        loop {
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(index) else { return Ok(()) };
            let result = work(&helm, item)?;
            done.lock().unwrap_or_else(PoisonError::into_inner).push((index, result));
        }
    };
    thread::scope(|scope| {
        let workers = thread::available_parallelism().map_or(1, usize::from);
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(worker)).collect();
        workers.into_iter().try_for_each(|worker| worker.join().expect("a worker does not panic"))
    })?;
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    Ok(done.into_iter().map(|(_, result)| result).collect())
}

/// Returns a part's cell for each archive.
fn column(
    helm: &Helm,
    part: &Part,
    archives: &[Archive],
    plain: &[Rendered],
    arguments: &[String],
) -> Result<Vec<Cell>> {
    let mut cells = Vec::new();
    let mut before: Vec<Rendered> = Vec::new();
    for (archive, plain) in archives.iter().zip(plain) {
        if !part.needs.is_empty() && !archive.has(part.needs) {
            cells.push(Cell::Absent);
            continue;
        }
        let present: Vec<_> =
            part.variants.iter().map(|variant| render(helm, archive, variant, arguments)).collect::<Result<_>>()?;
        if present.iter().all(|rendered| matches!(rendered, Rendered::Broken)) {
            cells.push(Cell::Broken);
            continue;
        }
        let verdict = |(index, variant): (usize, &Variant)| {
            (variant.name.clone(), judge(&present[index], plain, before.get(index), variant))
        };
        cells.push(Cell::of(part.variants.iter().enumerate().map(verdict).collect()));
        before = present;
    }
    Ok(cells)
}

/// A ClientApp at a chart version.
#[derive(Clone, Debug)]
enum Rendered {
    Release {
        asked: Box<Asked>,
        release: Release,
    },
    /// The operator refuses the spec.
    Refused(String),
    /// Helm refuses the values.
    Failed(String),
    /// Helm refuses the part with the chart's own values, too.
    Broken,
}

fn render(helm: &Helm, archive: &Archive, variant: &Variant, arguments: &[String]) -> Result<Rendered> {
    let mut app = variant.app(&archive.version.to_string());
    for path in parts::SINCE.iter().filter(|path| !archive.has(path)) {
        let (parent, key) =
            path.rsplit_once('/').map_or((String::new(), *path), |(parent, key)| (format!("/{parent}"), key));
        let parent = app.pointer_mut(&format!("/spec/values{parent}")).and_then(Value::as_object_mut);
        parent.and_then(|parent| parent.remove(key));
    }
    let registry: &[_] = if archive.has("image/registry") { &["--with-registry".to_owned()] } else { &[] };
    let values = match of_operator(&app, &[arguments, registry].concat())? {
        Ok(values) => values,
        Err(refused) => return Ok(Rendered::Refused(refused)),
    };
    let file = helm.home().join("values.yaml");
    std::fs::write(&file, values.to_string()).context("cannot write the values")?;
    let (file, chart) = (file.to_string_lossy(), archive.path.to_string_lossy());
    let ran = helm.run(&["template", &variant.app, &chart, "--namespace", NAMESPACE, "--values", &file])?;
    if !ran.success {
        let of_user = &app["spec"]["values"];
        if of_user.is_null() {
            return Ok(Rendered::Failed(told(&ran.stderr)));
        }
        std::fs::write(&*file, of_user.to_string()).context("cannot write the values")?;
        let alone = helm.run(&["template", &variant.app, &chart, "--values", &file])?;
        return Ok(if alone.success { Rendered::Failed(told(&ran.stderr)) } else { Rendered::Broken });
    }
    Ok(match Release::parse(&ran.stdout) {
        Ok(release) => Rendered::Release { asked: Box::new(Asked::new(&app, &values, variant.secrets())), release },
        Err(error) => Rendered::Failed(format!("{error:#}")),
    })
}

/// Returns the values that the operator computes for a ClientApp, or why it refuses it.
fn of_operator(app: &Value, arguments: &[String]) -> Result<Result<Value, String>> {
    let mut child = Command::new(operator::binary()?)
        .args(["render", "--namespace", NAMESPACE, "--file", "-"])
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .context("cannot run the operator")?;
    // It may end before it has read everything; then it says why.
    _ = child.stdin.take().expect("it is piped").write_all(app.to_string().as_bytes());
    let ran = Ran::from(child.wait_with_output()?);
    if !ran.success {
        return Ok(Err(ran.stderr.trim().to_owned()));
    }
    Ok(Ok(serde_yaml::from_str(&ran.stdout).context("the values that the operator renders")?))
}

/// Returns the lines of helm's message that say what is wrong.
fn told(stderr: &str) -> String {
    let lines = stderr
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with("level=") && !line.starts_with("Use --debug"));
    let text: String = lines.collect::<Vec<_>>().join(" ");
    let end = text.char_indices().nth(400).map_or(text.len(), |(at, _)| at);
    text[..end].to_owned()
}

fn judge(rendered: &Rendered, plain: &Rendered, before: Option<&Rendered>, variant: &Variant) -> Vec<String> {
    let (asked, release) = match rendered {
        Rendered::Release { asked, release } => (asked, release),
        Rendered::Refused(_) if variant.may_be_refused => return Vec::new(),
        Rendered::Broken => return Vec::new(),
        Rendered::Refused(why) => return vec![format!("refused: {why}")],
        Rendered::Failed(why) => return vec![format!("helm: {why}")],
    };
    // What keeps the plain release from being rendered is told in its own column.
    let plain = if let Rendered::Release { release, .. } = plain { release } else { release };
    let before =
        before.and_then(|before| if let Rendered::Release { release, .. } = before { Some(release) } else { None });
    let case = Case { asked, release, plain, before };
    INVARIANTS
        .iter()
        .flat_map(|(name, invariant)| invariant(case).into_iter().map(move |told| format!("{name}: {told}")))
        .collect()
}

/// Returns the longest name of a ClientApp that the operator accepts.
fn longest_name(arguments: &[String]) -> String {
    let variant = |length: usize| Variant {
        app: "a".repeat(length),
        name: String::new(),
        spec: Value::Null,
        may_be_refused: false,
    };
    let accepted =
        |length: &usize| of_operator(&variant(*length).app("5.5.2"), arguments).is_ok_and(|values| values.is_ok());
    "a".repeat((1..=63).rev().find(accepted).unwrap_or(1))
}
