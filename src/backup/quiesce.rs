//! Takes the pods of an app away while its volumes are backed up or restored, and gives them back. The ClientApp shows for what, in
//! an annotation, by which its controller asks the chart for no pods; its spec stays as it is.

use kube::{Api, Client, ResourceExt as _, api::ApiResource};
use serde_json::json;

use super::archive_job;
use crate::{
    crd::{Approval, ClientApp, annotation},
    platform::{
        key::Key,
        run_once::{Error, change},
    },
};

/// Tells how far an app is with stopping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stopped {
    /// The annotation is to be set.
    NotAsked,
    Waits(String),
    /// No pod has the volumes.
    Yes,
}

/// Tells whether an app has no pods for this mark. `knows_volumes`: its volumes are known; `user`: a pod that has one of them. **Pure.**
pub(crate) fn stopped(app: &ClientApp, mark: &str, knows_volumes: bool, user: Option<&str>) -> Stopped {
    let name = app.name_any();
    if !knows_volumes {
        return Stopped::Waits(archive_job::unknown(&name));
    }
    if app.spec.suspend {
        return Stopped::Waits(format!("{name} is suspended, so its pods stay: set spec.suspend to false"));
    }
    match app.annotations().get(annotation::STOPPED_FOR) {
        None => Stopped::NotAsked,
        Some(other) if other != mark => Stopped::Waits(format!("{name} is stopped for {other}")),
        Some(_) => user.map_or(Stopped::Yes, |pod| {
            let approval = match app.spec.approval {
                Approval::Manual => format!("; spec.approval is Manual: `{}`", approve(app)),
                Approval::Automatic => String::new(),
            };
            Stopped::Waits(format!("pod {pod} still has a volume of {name}{approval}"))
        }),
    }
}

/// Tells whether an app is without pods for this mark, or on the way to it. **Pure.**
pub(crate) fn is_stopped_for(app: &ClientApp, mark: &str) -> bool {
    app.annotations().get(annotation::STOPPED_FOR).is_some_and(|found| found == mark)
}

/// Returns what is still to be done for an app to get its pods back, as the end of a sentence. **Pure.**
pub(crate) fn approval(app: &ClientApp) -> String {
    let is_stopped = app.annotations().contains_key(annotation::STOPPED_FOR);
    match app.spec.approval {
        Approval::Manual if is_stopped => {
            format!("; spec.approval is Manual: `{}` gives the pods back", approve(app))
        }
        _ => String::new(),
    }
}

/// Returns the command that approves what an app waits for.
fn approve(app: &ClientApp) -> String {
    format!("kubectl clientapp approve {} -n {}", app.name_any(), app.namespace().unwrap_or_default())
}

/// Asks for an app without pods.
pub(crate) async fn stop(client: &Client, app: &ClientApp, mark: &str) -> Result<(), Error> {
    annotate(client, app, Some(mark)).await
}

/// Gives an app its pods back, if they were taken away for this mark.
pub(crate) async fn start(client: &Client, key: &Key, app: Option<&str>, mark: &str) -> Result<(), Error> {
    let Some(name) = app else { return Ok(()) };
    let found = Api::<ClientApp>::namespaced(client.clone(), &key.namespace).get_opt(name).await;
    let found = found.map_err(Error::api(format!("read ClientApp {}/{name}", key.namespace)))?;
    match found.filter(|app| is_stopped_for(app, mark)) {
        Some(app) => annotate(client, &app, None).await,
        None => Ok(()),
    }
}

/// Sets or removes the annotation, unless another run has just set it.
async fn annotate(client: &Client, app: &ClientApp, mark: Option<&str>) -> Result<(), Error> {
    let patch = json!({"metadata": {"annotations": {annotation::STOPPED_FOR: mark}}});
    change(client, &ApiResource::erase::<ClientApp>(&()), &app.metadata, patch).await
}
