//! What has to hold of every release that the operator makes of a published chart. **Pure.**

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::asked::{Asked, Source};
use super::release::{Container, Mount, Pod, Reference, Release, items, name, text};

/// A release, and what it is compared with.
#[derive(Clone, Copy)]
pub struct Case<'a> {
    pub asked: &'a Asked,
    pub release: &'a Release,
    /// The release of the same chart version without any optional part, and under a name of its own.
    pub plain: &'a Release,
    /// The release of the chart version before, with the same parts.
    pub before: Option<&'a Release>,
}

/// Returns a sentence for each violation.
pub type Invariant = fn(Case<'_>) -> Vec<String>;

/// All of them, by name.
pub const INVARIANTS: &[(&str, Invariant)] = &[
    ("parts", parts),
    ("images", images),
    ("references", references),
    ("replicas", replicas),
    ("database", database),
    ("redis", redis),
    ("host", host),
    ("services", services),
    ("lengths", lengths),
    ("unique", unique),
    ("claims", claims),
    ("immutable", immutable),
];

/// The greatest length of a label, which Services' names are as well.
const LABEL: usize = 63;
/// What Kubernetes appends to the name of a StatefulSet in the label `controller-revision-hash` of its pods: `-` and ten digits.
const REVISION_HASH: usize = 11;
/// The greatest length of the name of a CronJob, to which Kubernetes appends eleven characters for its Jobs.
const CRON_JOB: usize = 52;
/// The greatest length of most names.
const NAME: usize = 253;
/// The greatest length of the name of a port.
const PORT: usize = 15;

impl<'a> Case<'a> {
    /// Returns the app's Deployment.
    fn deployment(self) -> Option<&'a Value> {
        app(self.release)
    }

    /// Returns the containers in which the app runs: not those that prepare something for it.
    fn app_containers(self) -> Vec<Container<'a>> {
        let image = app_image(self.release);
        let runs_app = |container: &Container<'_>| !container.init && Some(container.image()) == image;
        self.release.containers().into_iter().filter(runs_app).collect()
    }
}

fn app(release: &Release) -> Option<&Value> {
    release.of_kind("Deployment").find(|object| object["metadata"]["labels"]["app.kubernetes.io/component"] == "app")
}

/// Returns the image of the app's first container.
fn app_image(release: &Release) -> Option<&str> {
    app(release)?.pointer("/spec/template/spec/containers/0/image")?.as_str()
}

fn at(container: &Container<'_>) -> String {
    format!("{} {}, container {}", container.pod.kind, container.pod.name, container.name())
}

/// Each optional part that was asked for is there.
fn parts(case: Case<'_>) -> Vec<String> {
    let Case { asked, release, .. } = case;
    let mut missing = Vec::new();
    let mut needs = |part: &str, there: bool| {
        if !there {
            missing.push(format!("{part} was switched on, and nothing is rendered for it"));
        }
    };
    needs("the app", case.deployment().is_some());
    if asked.has("hpa") {
        needs("hpa", release.of_kind("HorizontalPodAutoscaler").next().is_some());
    }
    if asked.has("cronjob") {
        let sidecar = case
            .app_containers()
            .iter()
            .any(|container| container.pod.kind == "Deployment" && container.name().ends_with("-cron"));
        let as_job = asked.values["cronjob"]["type"] == "cronjob";
        needs("cronjob", if as_job { release.of_kind("CronJob").next().is_some() } else { sidecar });
    }
    if asked.has("metrics") {
        needs("metrics", release.of_kind("Deployment").any(|object| name(object).contains("metrics")));
    }
    if asked.has("nextcloud/mail") {
        let variables = ["MAIL_FROM_ADDRESS", "MAIL_DOMAIN", "SMTP_HOST", "SMTP_PORT", "SMTP_SECURE"];
        let has_all = |container: &Container<'_>| variables.iter().all(|name| container.env(name).is_some());
        needs("nextcloud.mail", case.app_containers().iter().all(has_all));
    }
    needs("an Ingress", asked.ingress_class.is_none() || release.of_kind("Ingress").next().is_some());
    needs("httpRoute", !asked.has("httpRoute") || release.of_kind("HTTPRoute").next().is_some());
    missing
}

/// The app's containers run the image that was asked for, or else the chart's own; all others run what they run without it.
fn images(case: Case<'_>) -> Vec<String> {
    let Some(own) = app_image(case.plain) else { return vec!["the chart's own image is not known".to_owned()] };
    let wanted = case.asked.image.as_deref().unwrap_or(own);
    let former = case.plain.containers();
    let mut wrong = Vec::new();
    for container in case.release.containers() {
        let same = |other: &&Container<'_>| {
            let role = |of: &Container<'_>| {
                text(&of.pod.template["metadata"]["labels"]["app.kubernetes.io/component"]).to_owned()
            };
            other.pod.kind == container.pod.kind && other.name() == container.name() && role(other) == role(&container)
        };
        let before = former.iter().find(same).map(Container::image);
        let in_app =
            case.deployment().is_some_and(|app| container.pod.kind == "Deployment" && container.pod.name == name(app));
        // Without a counterpart, it belongs to an optional part: a container of the app if it is beside it, or named for its jobs.
        let runs_app = before.map_or(in_app || container.name().ends_with("-cron"), |before| before == own);
        let expected = if runs_app { wanted } else { before.unwrap_or(container.image()) };
        if canonical(container.image()) != canonical(expected) {
            wrong.push(format!("{} runs {}, not {expected}", at(&container), container.image()));
        }
        if container.image().is_empty() || container.image().contains(['<', ' ', '%']) {
            wrong.push(format!("{} has the image {:?}", at(&container), container.image()));
        }
        if withdrawn(container.image()) {
            wrong.push(format!("{} runs {}, which was withdrawn from its registry", at(&container), container.image()));
        }
    }
    wrong
}

/// Returns an image in full, as container runtimes complete it.
fn canonical(image: &str) -> String {
    let image = image.strip_prefix("index.docker.io/").unwrap_or(image);
    let (first, rest) = image.split_once('/').unwrap_or(("", image));
    let is_host = first.contains(['.', ':']) || first == "localhost";
    match (first, rest) {
        ("docker.io", rest) if !rest.contains('/') => format!("docker.io/library/{rest}"),
        _ if is_host => image.to_owned(),
        ("", rest) => format!("docker.io/library/{rest}"),
        _ => format!("docker.io/{image}"),
    }
}

/// Returns whether nobody can pull an image any more.
fn withdrawn(image: &str) -> bool {
    canonical(image).starts_with("docker.io/bitnami/")
}

/// What a pod reads and mounts exists: in the release, or because the operator or the user makes it.
fn references(case: Case<'_>) -> Vec<String> {
    let Case { asked, release, .. } = case;
    let mut missing = Vec::new();
    for pod in release.pods() {
        for Reference { kind, name, key } in pod.references() {
            let made = (kind == "Secret").then(|| asked.secrets.get(name)).flatten();
            let rendered = release.find(kind, name);
            let has = |key: &str| {
                let in_object = |object: &Value| {
                    ["data", "stringData", "binaryData"].iter().any(|part| object[part].get(key).is_some())
                };
                made.is_some_and(|keys| keys.contains(key)) || rendered.is_some_and(in_object)
            };
            let told = match key {
                _ if made.is_none() && rendered.is_none() => "there is none",
                Some(key) if !has(key) => "that key is not in it",
                _ => continue,
            };
            let key = key.map(|key| format!(", key {key}")).unwrap_or_default();
            missing.push(format!("{} {} reads {kind} {name}{key}: {told}", pod.kind, pod.name));
        }
        for claim in pod.claims().filter(|claim| release.find("PersistentVolumeClaim", claim).is_none()) {
            missing.push(format!("{} {} mounts PersistentVolumeClaim {claim}: there is none", pod.kind, pod.name));
        }
        let account = pod.spec()["serviceAccountName"].as_str().filter(|account| *account != "default");
        if let Some(account) = account.filter(|account| release.find("ServiceAccount", account).is_none()) {
            missing.push(format!("{} {} runs as ServiceAccount {account}: there is none", pod.kind, pod.name));
        }
        missing.extend(unmounted(pod));
    }
    missing
}

/// Returns the mounts of volumes that a pod does not have.
fn unmounted(pod: Pod<'_>) -> Vec<String> {
    let lists = ["containers", "initContainers"].into_iter().flat_map(|list| items(&pod.spec()[list]));
    let mounts = lists.flat_map(|container| items(&container["volumeMounts"])).map(|mount| text(&mount["name"]));
    let volumes: BTreeSet<_> = items(&pod.spec()["volumes"]).map(|volume| text(&volume["name"])).collect();
    let unknown: BTreeSet<_> = mounts.filter(|mount| !volumes.contains(mount)).collect();
    // The claims of a StatefulSet are volumes as well.
    let told = |mount: &str| format!("{} {} mounts the volume {mount}: it has none", pod.kind, pod.name);
    if pod.kind == "StatefulSet" { Vec::new() } else { unknown.into_iter().map(told).collect() }
}

/// The app has the replicas that were asked for, unless an autoscaler owns them; Redis has one.
fn replicas(case: Case<'_>) -> Vec<String> {
    let Case { asked, release, .. } = case;
    let Some(app) = case.deployment() else { return Vec::new() };
    let mut wrong = Vec::new();
    let rendered = &app["spec"]["replicas"];
    let target = |scaler: &Value| scaler["spec"]["scaleTargetRef"].clone();
    let wanted = json!({"apiVersion": "apps/v1", "kind": "Deployment", "name": name(app)});
    let scaled = release.of_kind("HorizontalPodAutoscaler").map(target).collect::<Vec<_>>();
    if asked.has("hpa") {
        if scaled != [wanted] {
            wrong.push(format!("the autoscaler targets {}, not Deployment {}", json!(scaled), name(app)));
        }
        if !rendered.is_null() {
            wrong.push(format!("Deployment {} has {rendered} replicas, though an autoscaler owns them", name(app)));
        }
    } else if *rendered != asked.replicas {
        wrong.push(format!("Deployment {} has {rendered} replicas, not {}", name(app), asked.replicas));
    }
    let nodes: Vec<_> = release.of_kind("StatefulSet").collect();
    if nodes.len() != usize::from(asked.redis) || nodes.iter().any(|node| node["spec"]["replicas"] != 1) {
        let found: Vec<_> =
            nodes.iter().map(|node| format!("{} of {}", node["spec"]["replicas"], name(node))).collect();
        wrong.push(format!("StatefulSets are {found:?}: Redis is one pod if it is asked for"));
    }
    wrong
}

/// Every container of the app knows the database that was asked for, and libpq finds a directory that it can read.
fn database(case: Case<'_>) -> Vec<String> {
    let wanted = &case.asked.database;
    let of_user = items(&case.asked.values["nextcloud"]["extraEnv"]).find(|entry| entry["name"] == "PGSSLCERT");
    let no_file = Source::Value(of_user.map_or("/tmp/postgresql.crt", |entry| text(&entry["value"])).to_owned());
    let variables = [
        ("POSTGRES_HOST", &wanted.host),
        ("POSTGRES_DB", &wanted.name),
        ("POSTGRES_USER", &wanted.user),
        ("POSTGRES_PASSWORD", &wanted.password),
        ("PGSSLCERT", &no_file),
    ];
    let of_others = ["SQLITE_DATABASE", "MYSQL_HOST", "MYSQL_DATABASE"];
    let mut wrong = Vec::new();
    for container in case.app_containers() {
        wrong.extend(differing(&container, &variables));
        wrong.extend(excess(&container, &of_others));
    }
    wrong
}

/// Every container of the app knows Redis, if it was asked for, by a Service and a password that Redis has.
fn redis(case: Case<'_>) -> Vec<String> {
    let Case { asked, release, .. } = case;
    let mut wrong = Vec::new();
    let password = Source::Secret(format!("{}-redis-secret", asked.app.name), "redis-password".to_owned());
    for container in case.app_containers() {
        if !asked.redis {
            wrong.extend(excess(&container, &["REDIS_HOST", "REDIS_HOST_PASSWORD"]));
            continue;
        }
        wrong.extend(differing(&container, &[("REDIS_HOST_PASSWORD", &password)]));
        let host = container.env("REDIS_HOST").map(|entry| text(&entry["value"])).unwrap_or_default();
        let port = container.env("REDIS_HOST_PORT").map(|entry| text(&entry["value"])).unwrap_or_default();
        match release.find("Service", host) {
            None => wrong
                .push(format!("{} looks for Redis at {host:?}, which is no Service of the release", at(&container))),
            Some(service)
                if !items(&service["spec"]["ports"])
                    .any(|open| port.parse().is_ok_and(|port: i64| open["port"] == port)) =>
            {
                wrong.push(format!("{} looks for Redis at port {port:?} of Service {host}", at(&container)));
            }
            Some(_) => {}
        }
    }
    if let Source::Secret(secret, key) = &password {
        for node in release.pods().into_iter().filter(|pod| pod.kind == "StatefulSet") {
            let reads = node
                .references()
                .iter()
                .any(|of| of.kind == "Secret" && of.name == secret && of.key.is_none_or(|read| read == key));
            if !reads {
                wrong.push(format!("StatefulSet {} does not read key {key} of Secret {secret}", node.name));
            }
        }
    }
    wrong
}

/// Returns where the variables of a container are not these.
fn differing(container: &Container<'_>, variables: &[(&str, &Source)]) -> Vec<String> {
    let told = |(name, source): &(&str, &Source)| match container.env(name) {
        Some(entry) if source.is_of(entry) => None,
        Some(entry) => {
            let mut found = entry.as_object().cloned().unwrap_or_default();
            found.remove("name");
            Some(format!("{} has {name} {}, not {source:?}", at(container), Value::Object(found)))
        }
        None => Some(format!("{} has no {name}", at(container))),
    };
    variables.iter().filter_map(told).collect()
}

fn excess(container: &Container<'_>, variables: &[&str]) -> Vec<String> {
    let found = variables.iter().filter(|name| container.env(name).is_some());
    found.map(|name| format!("{} has {name}", at(container))).collect()
}

/// The app answers to its hostname, and what leads there names no other host.
fn host(case: Case<'_>) -> Vec<String> {
    let Case { asked, release, .. } = case;
    let mut wrong = Vec::new();
    for container in case.app_containers() {
        let trusted = container.env("NEXTCLOUD_TRUSTED_DOMAINS").map(|entry| text(&entry["value"])).unwrap_or_default();
        if !trusted.split(' ').any(|domain| domain == asked.hostname) {
            wrong.push(format!("{} trusts {trusted:?}, not {}", at(&container), asked.hostname));
        }
        for probe in ["startupProbe", "livenessProbe", "readinessProbe"] {
            for header in
                items(&container.spec[probe]["httpGet"]["httpHeaders"]).filter(|header| header["name"] == "Host")
            {
                if header["value"] != asked.hostname.as_str() {
                    wrong.push(format!("{}: {probe} asks for host {}", at(&container), header["value"]));
                }
            }
        }
    }
    let of_ingress =
        release.of_kind("Ingress").flat_map(|ingress| items(&ingress["spec"]["rules"])).map(|rule| &rule["host"]);
    let of_route = release.of_kind("HTTPRoute").flat_map(|route| items(&route["spec"]["hostnames"]));
    wrong.extend(
        of_ingress
            .chain(of_route)
            .filter(|host| **host != asked.hostname.as_str())
            .map(|host| format!("a route leads from host {host}")),
    );
    for route in release.of_kind("HTTPRoute").filter(|route| items(&route["spec"]["hostnames"]).next().is_none()) {
        wrong.push(format!("HTTPRoute {} has no hostname: it takes every host", name(route)));
    }
    for ingress in release.of_kind("Ingress") {
        let class = ingress["spec"]["ingressClassName"].as_str();
        if class != asked.ingress_class.as_deref() {
            wrong.push(format!("Ingress {} has class {class:?}, not {:?}", name(ingress), asked.ingress_class));
        }
    }
    wrong
}

/// Each Service leads to pods of one workload, at ports that they have, and each route to a Service.
fn services(case: Case<'_>) -> Vec<String> {
    let release = case.release;
    let mut wrong = Vec::new();
    let pods = release.pods();
    for service in release.of_kind("Service") {
        let Some(selector) = service["spec"]["selector"].as_object() else { continue };
        let chosen: Vec<_> = pods.iter().filter(|pod| selects(selector, &pod.template["metadata"]["labels"])).collect();
        let [pod] = chosen.as_slice() else {
            let found: Vec<_> = chosen.iter().map(|pod| format!("{} {}", pod.kind, pod.name)).collect();
            wrong.push(format!("Service {} selects {found:?}, not one workload", name(service)));
            continue;
        };
        let open: Vec<_> = items(&pod.spec()["containers"]).flat_map(|container| items(&container["ports"])).collect();
        for port in items(&service["spec"]["ports"]) {
            let target = if port["targetPort"].is_null() { &port["port"] } else { &port["targetPort"] };
            if !open.iter().any(|open| open["containerPort"] == *target || open["name"] == *target) {
                wrong.push(format!(
                    "Service {} leads to port {target} of {} {}, which has none",
                    name(service),
                    pod.kind,
                    pod.name
                ));
            }
        }
    }
    let paths = |ingress: &'_ Value| {
        let rules = items(&ingress["spec"]["rules"]).flat_map(|rule| items(&rule["http"]["paths"]));
        rules
            .map(|path| {
                (path["backend"]["service"]["name"].clone(), path["backend"]["service"]["port"]["number"].clone())
            })
            .collect::<Vec<_>>()
    };
    let backends = |route: &'_ Value| {
        let backends = items(&route["spec"]["rules"]).flat_map(|rule| items(&rule["backendRefs"]));
        backends.map(|backend| (backend["name"].clone(), backend["port"].clone())).collect::<Vec<_>>()
    };
    let led = release.of_kind("Ingress").flat_map(paths).chain(release.of_kind("HTTPRoute").flat_map(backends));
    for (service, port) in led {
        let found = release.find("Service", text(&service));
        if !found.is_some_and(|found| items(&found["spec"]["ports"]).any(|open| open["port"] == port)) {
            wrong.push(format!("a route leads to Service {service}, port {port}: there is none"));
        }
    }
    wrong
}

fn selects(selector: &Map<String, Value>, labels: &Value) -> bool {
    selector.iter().all(|(label, value)| labels[label] == *value)
}

/// Kubernetes accepts each name and label, and those that it derives from them.
fn lengths(case: Case<'_>) -> Vec<String> {
    let mut wrong = Vec::new();
    let mut fits = |what: &str, value: &str, greatest: usize| {
        if value.len() > greatest {
            wrong.push(format!("{what} {value} has {} characters, at most {greatest} are valid", value.len()));
        }
    };
    for object in &case.release.objects {
        let kind = text(&object["kind"]);
        let greatest = match kind {
            "StatefulSet" => LABEL - REVISION_HASH,
            "CronJob" => CRON_JOB,
            "Service" | "Job" => LABEL,
            _ => NAME,
        };
        fits(kind, name(object), greatest);
        let pod = object.pointer("/spec/template").or_else(|| object.pointer("/spec/jobTemplate/spec/template"));
        let claims = items(&object["spec"]["volumeClaimTemplates"]);
        for metadata in [Some(object), pod].into_iter().flatten().chain(claims).map(|of| &of["metadata"]) {
            for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
                fits(&format!("{kind}, the label {key}:"), text(value), LABEL);
                fits(&format!("{kind}, the key of a label,"), key.rsplit('/').next().unwrap_or(key), LABEL);
            }
        }
        for selector in [
            &object["spec"]["selector"],
            &object["spec"]["selector"]["matchLabels"],
            &object["spec"]["podSelector"]["matchLabels"],
        ] {
            for (key, value) in selector.as_object().into_iter().flatten() {
                fits(&format!("{kind}, selector {key}:"), text(value), LABEL);
            }
        }
    }
    for container in case.release.containers() {
        fits("container", container.name(), LABEL);
        items(&container.spec["ports"]).for_each(|port| fits("port", text(&port["name"]), PORT));
    }
    for pod in case.release.pods() {
        items(&pod.spec()["volumes"]).for_each(|volume| fits("volume", text(&volume["name"]), LABEL));
    }
    wrong.sort();
    wrong.dedup();
    wrong
}

/// No object is rendered twice, and no item of a list that server-side apply merges by a key: it refuses both.
fn unique(case: Case<'_>) -> Vec<String> {
    let release = case.release;
    let mut seen = BTreeSet::new();
    let again = release.objects.iter().filter(|object| !seen.insert((text(&object["kind"]), name(object))));
    let mut wrong: Vec<_> =
        again.map(|object| format!("{} {} is rendered twice", text(&object["kind"]), name(object))).collect();
    for container in release.containers() {
        for (list, key) in [("env", "name"), ("volumeMounts", "mountPath"), ("ports", "containerPort")] {
            let twice = repeated(items(&container.spec[list]), key);
            wrong.extend(twice.map(|value| format!("{} has {list} {value} twice", at(&container))));
        }
    }
    for pod in release.pods() {
        let containers = ["initContainers", "containers"].into_iter().flat_map(|list| items(&pod.spec()[list]));
        let twice = repeated(items(&pod.spec()["volumes"]), "name").chain(repeated(containers, "name"));
        wrong.extend(twice.map(|value| format!("{} {} has a volume or container {value} twice", pod.kind, pod.name)));
    }
    wrong
}

/// Returns the values of a key that an earlier item has as well.
fn repeated<'a>(items: impl Iterator<Item = &'a Value>, key: &'a str) -> impl Iterator<Item = &'a Value> {
    let mut seen = Vec::new();
    items.map(move |item| &item[key]).filter(move |value| {
        let again = seen.contains(value);
        seen.push(*value);
        again
    })
}

/// The volumes are those of the version before, in the size and class that were asked for, and outlive the release.
fn claims(case: Case<'_>) -> Vec<String> {
    let Case { asked, release, before, .. } = case;
    let mut wrong = Vec::new();
    let mounted: BTreeSet<_> = case.deployment().and_then(Pod::of).into_iter().flat_map(Pod::claims).collect();
    let main: Vec<_> = release.of_kind("PersistentVolumeClaim").filter(|claim| mounted.contains(name(claim))).collect();
    match main.as_slice() {
        [claim] => {
            let size = &claim["spec"]["resources"]["requests"]["storage"];
            if *size != asked.size.as_str() {
                wrong.push(format!("PersistentVolumeClaim {} requests {size}, not {}", name(claim), asked.size));
            }
            let class = claim["spec"]["storageClassName"].as_str();
            if class != asked.storage_class.as_deref() {
                wrong.push(format!(
                    "PersistentVolumeClaim {} has class {class:?}, not {:?}",
                    name(claim),
                    asked.storage_class
                ));
            }
            if claim["metadata"]["annotations"]["helm.sh/resource-policy"] != "keep" {
                wrong.push(format!("PersistentVolumeClaim {} goes with the release", name(claim)));
            }
        }
        others => {
            let found: Vec<_> = others.iter().map(|claim| name(claim)).collect();
            wrong.push(format!("the app mounts the claims {found:?}, not one"));
        }
    }
    if let Some(before) = before {
        let (former, present) = (claim_names(before), claim_names(release));
        wrong.extend(
            former.difference(&present).map(|claim| format!("the claim {claim} of the version before is gone")),
        );
        wrong.extend(
            present
                .difference(&former)
                .map(|claim| format!("the claim {claim} is new, beside those of the version before")),
        );
        wrong.extend(moved(before, release));
    }
    wrong
}

/// Returns a sentence for each folder of a claim that is no longer where a workload of the version before had it.
fn moved(before: &Release, release: &Release) -> Vec<String> {
    let mounts = |object| Pod::of(object).map(|pod| pod.mounts(&object["spec"]["volumeClaimTemplates"]));
    let mut wrong = Vec::new();
    for former in &before.objects {
        let (kind, name_of) = (text(&former["kind"]), name(former));
        let Some(object) = release.find(kind, name_of) else { continue };
        let (former, present) = (mounts(former).unwrap_or_default(), mounts(object).unwrap_or_default());
        // A claim that is gone or has another name is told already.
        let of_set = items(&object["spec"]["volumeClaimTemplates"]);
        let kept: BTreeSet<_> = release.of_kind("PersistentVolumeClaim").chain(of_set).map(name).collect();
        let lost = former.difference(&present).filter(|mount| kept.contains(mount.claim));
        wrong.extend(lost.map(|Mount { claim, folder, path }| {
            format!("{kind} {name_of} no longer has folder {folder:?} of the claim {claim} at {path}")
        }));
    }
    wrong
}

/// Returns the names of all claims, those of StatefulSets' first pods included.
fn claim_names(release: &Release) -> BTreeSet<String> {
    let of_set = |set: &'_ Value| {
        let templates = items(&set["spec"]["volumeClaimTemplates"]);
        templates.map(|claim| format!("{}-{}-0", name(claim), name(set))).collect::<Vec<_>>()
    };
    let plain = release.of_kind("PersistentVolumeClaim").map(|claim| name(claim).to_owned());
    plain.chain(release.of_kind("StatefulSet").flat_map(of_set)).collect()
}

/// No field that Kubernetes does not let change differs from the version before: helm could not upgrade.
fn immutable(case: Case<'_>) -> Vec<String> {
    let fields = |kind: &str| -> &[&str] {
        match kind {
            "Deployment" => &["/spec/selector"],
            "StatefulSet" => {
                &["/spec/selector", "/spec/serviceName", "/spec/volumeClaimTemplates", "/spec/podManagementPolicy"]
            }
            "PersistentVolumeClaim" => &["/spec/accessModes", "/spec/storageClassName", "/spec/volumeMode"],
            "RoleBinding" => &["/roleRef"],
            "Secret" => &["/type"],
            _ => &[],
        }
    };
    let former: BTreeMap<_, _> = case
        .before
        .iter()
        .flat_map(|before| &before.objects)
        .map(|object| ((text(&object["kind"]), name(object)), object))
        .collect();
    let mut wrong = Vec::new();
    for object in &case.release.objects {
        let kind = text(&object["kind"]);
        let Some(before) = former.get(&(kind, name(object))) else { continue };
        let changed = fields(kind).iter().filter(|field| object.pointer(field) != before.pointer(field));
        wrong.extend(changed.map(|field| {
            let value = |of: &Value| of.pointer(field).unwrap_or(&Value::Null).to_string();
            format!("{kind} {}: {field} was {}, and is {}", name(object), value(before), value(object))
        }));
    }
    wrong
}

#[cfg(test)]
mod tests;
