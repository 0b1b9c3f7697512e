//! `logs`: what the pods of a release have written.

use futures::{AsyncBufRead, AsyncBufReadExt as _, Stream, StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, ResourceExt as _,
    api::{ListParams, LogParams},
};

use super::{
    args,
    error::{Error, described},
    session::{Printer, Session},
    several::Tally,
};
use crate::clientapp::observed::owned::INSTANCE;

/// An annotation of pods with several containers, which kubectl follows, too.
const DEFAULT_CONTAINER: &str = "kubectl.kubernetes.io/default-container";

pub(crate) async fn run(session: &Session, printer: &mut Printer, args: &args::Logs) -> Result<(), Error> {
    let args::Logs { name, follow, tail, since, container } = args;
    let api = session.api::<Pod>();
    let what = format!("list the pods of {}", described(&session.namespace, name));
    let pods = api.list(&ListParams::default().labels(&format!("{INSTANCE}={name}"))).await;
    let pods = pods.map_err(Error::api(what))?.items;
    if pods.is_empty() {
        session.app(name).await?;
        return Err(Error::Missing(format!(
            "{name} has no pods: `kubectl clientapp status {name}` shows what it is waiting for"
        )));
    }
    let chosen = chosen(&pods, container.as_deref()).map_err(Error::Missing)?;
    let several = chosen.len() > 1;
    let logs = chosen.into_iter().map(|(pod, container)| {
        let prefix = if several { format!("[{pod}] ") } else { String::new() };
        let params = LogParams {
            container: Some(container),
            follow: *follow,
            tail_lines: *tail,
            since_seconds: since.map(|since| i64::try_from(since.as_secs()).unwrap_or(i64::MAX).max(1)),
            ..LogParams::default()
        };
        log(api.clone(), pod, params).map_ok(move |line| (prefix.clone(), line)).boxed()
    });
    let logs: Vec<_> = logs.collect();
    let mut tally = Tally::of(logs.len());
    // One pod after the other, unless their logs go on.
    let mut lines = if *follow { stream::select_all(logs).boxed() } else { stream::iter(logs).flatten().boxed() };
    while let Some(line) = lines.next().await {
        if let Some((prefix, line)) = tally.keep(line, printer)? {
            printer.log(&prefix, &line)?;
        }
    }
    tally.end()
}

/// The pods and their containers whose logs are meant, or why there are none. **Pure.**
fn chosen(pods: &[Pod], container: Option<&str>) -> Result<Vec<(String, String)>, String> {
    let chosen: Vec<_> = pods.iter().filter_map(|pod| Some((pod.name_any(), meant(pod, container)?))).collect();
    match container.filter(|_| chosen.is_empty()) {
        None => Ok(chosen),
        Some(container) => {
            let mut known: Vec<_> = pods.iter().flat_map(containers).collect();
            known.sort();
            known.dedup();
            Err(format!("no pod has a container {container}; there are {}", known.join(", ")))
        }
    }
}

/// The container of this name, or the one that the pod is about.
fn meant(pod: &Pod, container: Option<&str>) -> Option<String> {
    let mut all = containers(pod);
    let wanted = container.or_else(|| pod.annotations().get(DEFAULT_CONTAINER).map(String::as_str));
    match wanted.and_then(|wanted| all.clone().find(|known| *known == wanted)) {
        Some(found) => Some(found.to_owned()),
        None if container.is_some() => None,
        None => all.next().map(str::to_owned),
    }
}

/// The containers that run first, and then those that prepare for them.
fn containers(pod: &Pod) -> impl Iterator<Item = &str> + Clone {
    let spec = pod.spec.iter();
    let main = spec.clone().flat_map(|spec| &spec.containers);
    main.chain(spec.flat_map(|spec| spec.init_containers.iter().flatten())).map(|container| container.name.as_str())
}

/// The lines of a log. A request for a log that goes on is not answered before there is a line, so it is made when it is read.
fn log(api: Api<Pod>, pod: String, params: LogParams) -> impl Stream<Item = Result<Vec<u8>, Error>> {
    let opened = async move {
        let what = format!("read the log of pod {pod}");
        match api.log_stream(&pod, &params).await {
            Ok(log) => Ok(lines(log, what)),
            Err(error) => Err(Error::api(what)(error)),
        }
    };
    stream::once(opened).try_flatten()
}

fn lines(log: impl AsyncBufRead, what: String) -> impl Stream<Item = Result<Vec<u8>, Error>> {
    stream::try_unfold((Box::pin(log), what), async |(mut log, what)| {
        let mut line = Vec::new();
        match log.read_until(b'\n', &mut line).await {
            Ok(0) => Ok(None),
            Ok(_) => Ok(Some((line, (log, what)))),
            Err(error) => Err(Error::Missing(format!("{what}: {error}"))),
        }
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::plugin::tests::built;

    fn pod(name: &str, containers: &[&str], default: Value) -> Pod {
        let named = |name: &&str| json!({"name": name});
        built(json!({
            "metadata": {"name": name, "annotations": {DEFAULT_CONTAINER: default}},
            "spec": {
                "containers": containers.iter().map(named).collect::<Vec<_>>(), "initContainers": [{"name": "prepare"}],
            },
        }))
    }

    #[test]
    fn which_logs_are_meant() {
        let pods =
            [pod("app", &["web", "cron"], json!("cron")), pod("cache", &["redis", "metrics"], json!("is not there"))];
        let of = |container: Option<&str>| {
            let chosen = chosen(&pods, container)?;
            Ok::<_, String>(chosen.iter().map(|(pod, of)| format!("{pod}/{of}")).collect::<Vec<_>>().join(" "))
        };
        assert_eq!(of(None).unwrap(), "app/cron cache/redis");
        assert_eq!(of(Some("web")).unwrap(), "app/web");
        assert_eq!(of(Some("prepare")).unwrap(), "app/prepare cache/prepare");
        assert_eq!(
            of(Some("x")),
            Err("no pod has a container x; there are cron, metrics, prepare, redis, web".to_owned())
        );
    }

    #[tokio::test]
    async fn lines_as_they_are_written() {
        let log = futures::io::Cursor::new(b"one\n\xfftwo\n\nlast".as_slice());
        let read: Vec<_> = lines(log, String::new()).try_collect().await.unwrap();
        assert_eq!(read, [b"one\n".as_slice(), b"\xfftwo\n", b"\n", b"last"]);
    }
}
