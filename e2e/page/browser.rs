//! A real headless Chromium for tests of the page: with its own profile, driven by key presses, and inspected.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result, bail};
use chromiumoxide::browser::{Browser as Chromium, BrowserConfig};
use chromiumoxide::cdp::browser_protocol::target::CreateTargetParams;
use chromiumoxide::cdp::browser_protocol::{log, network};
use chromiumoxide::cdp::js_protocol::runtime;
use chromiumoxide::types::{Command, Method, MethodId};
use chromiumoxide::{Handler, Page};
use futures::{Stream, StreamExt as _};
use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::task::JoinHandle;

use e2e::wait::TIMEOUT;

/// Names the browser.
const VARIABLE: &str = "CHROMIUM";
/// The names looked for on the PATH.
const NAMES: [&str; 4] = ["chromium", "chromium-browser", "google-chrome", "google-chrome-stable"];
/// Either of these variables makes a browser mandatory.
const REQUIRE: [&str; 2] = ["CI", "CLIENTAPP_E2E_REQUIRE_BROWSER"];

/// The browser's executable: the value of `CHROMIUM`, or one on the PATH.
#[must_use]
pub fn find() -> Option<PathBuf> {
    match std::env::var_os(VARIABLE) {
        Some(named) => which::which(named).ok(),
        None => NAMES.iter().find_map(|name| which::which(name).ok()),
    }
}

/// Returns true if a test that needs a browser must fail if there is none, instead of being ignored.
#[must_use]
pub fn is_required() -> bool {
    REQUIRE.iter().any(|name| std::env::var_os(name).is_some())
}

pub struct Browser {
    chromium: Chromium,
    handler: JoinHandle<()>,
    // Dropped last.
    _profile: TempDir,
}

impl Browser {
    /// # Panics
    /// If there is no browser on this machine, or it does not start.
    pub async fn start() -> Browser {
        let found = find().unwrap_or_else(|| {
            panic!("there is no browser: install Debian's package chromium, or name a Chromium in ${VARIABLE}")
        });
        Self::launch(found).await.expect("Chromium starts")
    }

    async fn launch(executable: PathBuf) -> Result<Browser> {
        let profile = tempfile::tempdir()?;
        let home = profile.path().to_str().context("the temporary directory is not UTF-8")?;
        let config = BrowserConfig::builder()
            .chrome_executable(executable)
            .user_data_dir(profile.path().join("profile"))
            .env("HOME", home)
            .env("XDG_CONFIG_HOME", home)
            .env("XDG_CACHE_HOME", home)
            .new_headless_mode()
            // It shows only the page under test, and root has no sandbox.
            .no_sandbox()
            .disable_https_first()
            // Keeps it from contacting its vendor.
            .arg(("host-resolver-rules", "MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"))
            .arg("no-proxy-server")
            .arg("disable-component-update")
            .arg("disable-gpu")
            .launch_timeout(TIMEOUT)
            .request_timeout(TIMEOUT)
            .viewport(None)
            .build();
        let (chromium, handler) = Chromium::launch(config.map_err(anyhow::Error::msg)?).await?;
        Ok(Browser { chromium, handler: tokio::spawn(handle(handler)), _profile: profile })
    }

    /// Opens an address in a window of this size, in CSS pixels, that is visible and has the focus whatever others there are.
    pub async fn open(&self, url: &str, (width, height): (u32, u32)) -> Result<Tab> {
        let target = CreateTargetParams::builder().url("about:blank").new_window(true).build();
        let page = self.chromium.new_page(target.map_err(anyhow::Error::msg)?).await?;
        let tab = Tab { page, seen: Arc::default() };
        tab.record(tab.page.event_listener::<log::EventEntryAdded>().await?, |event| {
            let entry = &event.entry;
            (entry.level == log::LogEntryLevel::Error || entry.level == log::LogEntryLevel::Warning)
                .then(|| Seen::Complaint(format!("{}: {}", entry.source.as_ref(), entry.text)))
        });
        tab.record(tab.page.event_listener::<runtime::EventConsoleApiCalled>().await?, |event| {
            Some(Seen::Complaint(format!("console.{}: {:?}", event.r#type.as_ref(), event.args)))
        });
        tab.record(tab.page.event_listener::<runtime::EventExceptionThrown>().await?, |event| {
            Some(Seen::Complaint(format!("exception: {:?}", event.exception_details)))
        });
        tab.record(tab.page.event_listener::<network::EventRequestWillBeSent>().await?, |event| {
            Some(Seen::Request(event.request.url.clone()))
        });
        tab.page.enable_log().await?;
        tab.call("Emulation.setFocusEmulationEnabled", json!({"enabled": true})).await?;
        tab.resize(width, height).await?;
        tab.call("Page.navigate", json!({"url": url})).await?;
        Ok(tab)
    }

    /// Closes it.
    pub async fn end(mut self) -> Result<()> {
        self.chromium.close().await?;
        self.chromium.wait().await?;
        self.handler.abort();
        Ok(())
    }
}

async fn handle(mut handler: Handler) {
    // Keeps going after an event that this version of the protocol does not know.
    while handler.next().await.is_some() {}
}

/// An event in a tab.
enum Seen {
    Complaint(String),
    Request(String),
}

pub struct Tab {
    page: Page,
    seen: Arc<Mutex<Vec<Seen>>>,
}

impl Tab {
    fn record<E: Send + Sync + 'static>(
        &self,
        mut events: impl Stream<Item = Arc<E>> + Send + Unpin + 'static,
        read: impl Fn(&E) -> Option<Seen> + Send + 'static,
    ) {
        let seen = self.seen.clone();
        tokio::spawn(async move {
            while let Some(event) = events.next().await {
                seen.lock().unwrap_or_else(PoisonError::into_inner).extend(read(&event));
            }
        });
    }

    /// The browser's complaints: exceptions, violations of the content security policy, failed requests, and console
    /// messages.
    #[must_use]
    pub fn complaints(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter()
            .filter_map(|seen| if let Seen::Complaint(text) = seen { Some(text.clone()) } else { None })
            .collect()
    }

    /// The addresses requested so far.
    #[must_use]
    pub fn requests(&self) -> Vec<String> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.iter().filter_map(|seen| if let Seen::Request(url) = seen { Some(url.clone()) } else { None }).collect()
    }

    /// One command of the DevTools protocol.
    async fn call(&self, method: &'static str, params: Value) -> Result<Value> {
        Ok(self.page.execute(Call { method, params }).await.with_context(|| method)?.result)
    }

    /// Resizes the tab, in CSS pixels.
    pub async fn resize(&self, width: u32, height: u32) -> Result<()> {
        let metrics = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", metrics).await.map(|_| ())
    }

    /// Emulates media preferences, such as `("prefers-color-scheme", "dark")`.
    pub async fn prefer(&self, preferences: &[(&str, &str)]) -> Result<()> {
        let features: Vec<_> = preferences.iter().map(|(name, value)| json!({"name": name, "value": value})).collect();
        self.call("Emulation.setEmulatedMedia", json!({"features": features})).await.map(|_| ())
    }

    /// The value of an expression; a promise is awaited. An exception is an error.
    pub async fn evaluate(&self, expression: &str) -> Result<Value> {
        let params = json!({"expression": expression, "awaitPromise": true, "returnByValue": true});
        let mut answer = self.call("Runtime.evaluate", params).await?;
        if let Some(thrown) = answer.get("exceptionDetails") {
            bail!("{expression}: {thrown}");
        }
        Ok(answer["result"]["value"].take())
    }

    /// Waits until an expression is true on the page, and returns its value.
    pub async fn wait(&self, expression: &str) -> Value {
        let wait = format!(
            "new Promise((resolve) => {{
               const check = () => {{
                 // Until the document is parsed, half of the page is missing.
                 const value = document.readyState !== 'loading' && ({expression});
                 if (!value) return;
                 clearInterval(timer);
                 observer.disconnect();
                 resolve(value);
               }};
               // Values of fields and the focus change without a mutation.
               const timer = setInterval(check, 50);
               const observer = new MutationObserver(check);
               observer.observe(document, {{subtree: true, childList: true, attributes: true, characterData: true}});
               check();
             }})"
        );
        let deadline = tokio::time::Instant::now() + TIMEOUT;
        loop {
            match tokio::time::timeout_at(deadline, self.evaluate(&wait)).await {
                Ok(Ok(value)) => return value,
                // When a page is replaced by another, the old one's promises break.
                Ok(Err(error)) if error.to_string().contains("Runtime.evaluate") => {}
                Ok(Err(error)) => panic!("{error:#}"),
                Err(_) => {}
            }
            if tokio::time::Instant::now() >= deadline {
                panic!("{expression} did not become true on the page\n{}", self.shows().await);
            }
        }
    }

    /// The text of the page, and the browser's complaints.
    async fn shows(&self) -> String {
        let text = self.evaluate("location.href + '\\n' + document.body.innerText").await.unwrap_or_default();
        format!("{}\n{:#?}", text.as_str().unwrap_or_default(), self.complaints())
    }

    /// Presses a key: `Tab`, `Enter`, `Escape`, `Space`.
    pub async fn press(&self, key: &str) {
        let (key, code, text) = match key {
            "Tab" => ("Tab", 9, ""),
            "Enter" => ("Enter", 13, "\r"),
            "Escape" => ("Escape", 27, ""),
            "Space" => (" ", 32, " "),
            _ => panic!("no key {key}"),
        };
        self.key(json!({"key": key, "windowsVirtualKeyCode": code, "text": text})).await;
    }

    /// Types a text, key by key, into the focused element.
    pub async fn write(&self, text: &str) {
        for letter in text.chars() {
            self.key(json!({"key": letter.to_string(), "text": letter.to_string()})).await;
        }
    }

    async fn key(&self, mut event: Value) {
        event["type"] = json!(if event["text"] == "" { "rawKeyDown" } else { "keyDown" });
        self.call("Input.dispatchKeyEvent", event.clone()).await.expect("the key goes down");
        event["type"] = json!("keyUp");
        event["text"] = json!("");
        self.call("Input.dispatchKeyEvent", event).await.expect("the key comes up");
    }

    /// Presses Tab until the element that the selector matches has the focus.
    pub async fn tab_to(&self, selector: &str) {
        let mut passed = Vec::new();
        let selected = format!("document.activeElement.matches({})", json!(selector));
        for _ in 0..100 {
            if self.evaluate(&selected).await.expect("the selector is valid") == true {
                return;
            }
            self.press("Tab").await;
            let at = self.evaluate("document.activeElement.outerHTML.slice(0, 80)").await.unwrap_or_default();
            passed.push(at);
        }
        panic!("Tab does not lead to {selector}, but to {passed:#?}");
    }

    /// The accessibility tree: role and name of each node that is not ignored.
    pub async fn accessible(&self) -> Result<Vec<(String, String)>> {
        self.call("Accessibility.enable", json!({})).await?;
        let tree = self.call("Accessibility.getFullAXTree", json!({})).await?;
        let nodes = tree["nodes"].as_array().context("the tree has nodes")?.iter();
        let word = |value: &Value| value["value"].as_str().unwrap_or_default().to_owned();
        Ok(nodes
            .filter(|node| node["ignored"] != true)
            .map(|node| (word(&node["role"]), word(&node["name"])))
            .collect())
    }

    /// A PNG screenshot of the tab.
    pub async fn screenshot(&self) -> Result<Vec<u8>> {
        Ok(self.page.screenshot(chromiumoxide::page::ScreenshotParams::default()).await?)
    }
}

/// A command whose response is read untyped: the browser may be newer than the generated types.
#[derive(Debug)]
struct Call {
    method: &'static str,
    params: Value,
}

impl Serialize for Call {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.params.serialize(serializer)
    }
}

impl Method for Call {
    fn identifier(&self) -> MethodId {
        self.method.into()
    }
}

impl Command for Call {
    type Response = Value;
}
