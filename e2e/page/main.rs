//! The page of the API in a real browser, as its users see and use it.

mod alone;
mod browser;
mod operated;

use std::pin::Pin;
use std::process::ExitCode;
use std::sync::{LazyLock, mpsc};

use libtest_mimic::{Arguments, Trial};
use serde_json::json;
use tokio::runtime::Builder;
use tokio::sync::Mutex;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::{JoinError, LocalSet, spawn_local};

use crate::browser::{Browser, Tab};

/// An ordinary window.
const DESK: (u32, u32) = (1200, 800);
/// A small phone.
const PHONE: (u32, u32) = (360, 740);

type Test = fn() -> Pin<Box<dyn Future<Output = ()>>>;
type Ended = mpsc::Sender<Result<(), JoinError>>;

/// Takes tests to the thread on which all of them run, like the browser's events: what the browser has told before an answer is known
/// before that answer.
static TESTS: LazyLock<UnboundedSender<(Test, Ended)>> = LazyLock::new(|| {
    let (tests, mut begun) = unbounded_channel::<(Test, Ended)>();
    std::thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        LocalSet::new().block_on(&runtime, async {
            while let Some((test, ended)) = begun.recv().await {
                let test = spawn_local(test());
                spawn_local(async move { ended.send(test.await) });
            }
        });
    });
    tests
});

fn run(test: Test) {
    let (ended, end) = mpsc::channel();
    TESTS.send((test, ended)).expect("the thread runs");
    if let Err(error) = end.recv().expect("the thread runs") {
        std::panic::resume_unwind(error.into_panic());
    }
}

/// Shared by all tests.
static BROWSER: Mutex<Option<Browser>> = Mutex::const_new(None);

/// Opens an address in a new tab. The first one starts the browser.
async fn open(url: &str, size: (u32, u32)) -> Tab {
    let mut browser = BROWSER.lock().await;
    if browser.is_none() {
        *browser = Some(Browser::start().await);
    }
    browser.as_ref().expect("it is started").open(url, size).await.unwrap()
}

async fn end() {
    if let Some(browser) = BROWSER.lock().await.take() {
        browser.end().await.expect("Chromium ends");
    }
}

/// The text of the first element that a selector matches.
async fn text(tab: &Tab, selector: &str) -> String {
    let text = tab.evaluate(&format!("document.querySelector({}).textContent", json!(selector))).await.unwrap();
    text.as_str().unwrap().to_owned()
}

/// The browser complained only as expected, and only this API received requests.
async fn was_quiet(tab: &Tab, url: &str, expected: &[&str]) {
    let complaints = tab.complaints();
    let as_expected = complaints.iter().zip(expected).all(|(complaint, expected)| complaint.contains(expected));
    assert!(as_expected && complaints.len() == expected.len(), "{complaints:#?} are not {expected:#?}");
    let requests = tab.requests();
    assert!(requests.iter().any(|request| request.starts_with(url)), "{requests:?}");
    let elsewhere: Vec<_> =
        requests.iter().filter(|request| !request.starts_with(url) && !request.starts_with("data:")).collect();
    assert!(elsewhere.is_empty(), "{elsewhere:?}");
}

/// Nothing is wider than the window.
async fn fits(tab: &Tab, what: &str) {
    let widths = tab.evaluate("[document.documentElement.scrollWidth, innerWidth]").await.unwrap();
    assert!(widths[0].as_u64().unwrap() <= widths[1].as_u64().unwrap(), "{what}: {widths}");
    let cut = tab
        .evaluate(
            "[...document.querySelectorAll('dialog[open], dialog[open] *, section:not([hidden]) *')]
               .filter((element) => element.checkVisibility() && !element.closest('.unseen, thead'))
               .filter((element) => element.getBoundingClientRect().right > innerWidth + 1)
               .map((element) => element.outerHTML.slice(0, 80))",
        )
        .await
        .unwrap();
    assert_eq!(cut, json!([]), "{what}");
}

/// Every text has a contrast of at least 4.5 : 1 to its background, as WCAG 2 requires.
async fn is_legible(tab: &Tab, what: &str) {
    let faint = tab
        .evaluate(
            "(() => {
               const canvas = Object.assign(document.createElement('canvas'), {width: 1, height: 1});
               const context = canvas.getContext('2d', {willReadFrequently: true});
               const behind = (element) => element ? [...behind(element.parentElement), getComputedStyle(element).backgroundColor] : ['white'];
               const mixed = (colours) => {
                 for (const colour of colours) { context.fillStyle = colour; context.fillRect(0, 0, 1, 1); }
                 return [...context.getImageData(0, 0, 1, 1).data];
               };
               const luminance = ([red, green, blue]) => [red, green, blue]
                 .map((part) => part / 255)
                 .map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4)
                 .reduce((sum, part, index) => sum + part * [0.2126, 0.7152, 0.0722][index], 0);
               const contrast = (element) => {
                 const ground = behind(element);
                 const levels = [mixed(ground), mixed([...ground, getComputedStyle(element).color])].map(luminance);
                 return (Math.max(...levels) + 0.05) / (Math.min(...levels) + 0.05);
               };
               const written = (element) => [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
               const place = document.querySelector('dialog[open]') ?? document.body;
               const texts = [...place.querySelectorAll('*')].filter((element) =>
                 written(element) && element.checkVisibility() && !element.closest('.unseen, thead, :disabled, svg, noscript'));
               return {
                 texts: texts.length,
                 faint: texts.filter((element) => contrast(element) < 4.5).map((element) => `${contrast(element)} ${element.outerHTML.slice(0, 80)}`),
               };
             })()",
        )
        .await
        .unwrap();
    assert!(faint["texts"].as_u64().unwrap() > 5, "{what}: {faint}");
    assert_eq!(faint["faint"], json!([]), "{what}");
}

/// Tests by their names.
macro_rules! trials {
    ($($test:ident),* $(,)?) => {
        vec![$(crate::trial(concat!(module_path!(), "::", stringify!($test)), || Box::pin($test()))),*]
    };
}
use trials;

fn trial(name: &str, test: Test) -> Trial {
    let run = move || {
        run(test);
        Ok(())
    };
    Trial::test(name.trim_start_matches("page::"), run)
        .with_ignored_flag(browser::find().is_none() && !browser::is_required())
}

/// Only at run time is it known whether there is a browser, and libtest cannot ignore a test at run time.
fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    if arguments.test_threads.is_none() {
        arguments.test_threads = std::env::var("RUST_TEST_THREADS").ok().and_then(|threads| threads.parse().ok());
    }
    let ran = libtest_mimic::run(&arguments, alone::trials().into_iter().chain(operated::trials()).collect());
    run(|| Box::pin(end()));
    ran.exit_code()
}
