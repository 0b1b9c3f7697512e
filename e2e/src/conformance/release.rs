//! What `helm template` renders, and the questions that invariants ask of it. **Pure.**

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context as _, Result};
use serde::Deserialize as _;
use serde_json::Value;

/// The objects that one release consists of.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Release {
    pub objects: Vec<Value>,
}

/// A pod template and the object that it is in.
#[derive(Clone, Copy, Debug)]
pub struct Pod<'a> {
    pub kind: &'a str,
    pub name: &'a str,
    /// Metadata and spec of the pods.
    pub template: &'a Value,
}

/// A container of a pod template.
#[derive(Clone, Copy, Debug)]
pub struct Container<'a> {
    pub pod: Pod<'a>,
    /// True if it is an init container.
    pub init: bool,
    pub spec: &'a Value,
}

/// A key of a Secret or of a ConfigMap that a pod cannot start without; `None`: no key in particular.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Reference<'a> {
    pub kind: &'static str,
    pub name: &'a str,
    pub key: Option<&'a str>,
}

/// A folder of a claim, and its path in a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mount<'a> {
    /// The claim's name; in a StatefulSet, that of its template.
    pub claim: &'a str,
    pub folder: &'a str,
    pub path: &'a str,
}

impl Release {
    /// Parses the output of `helm template`.
    ///
    /// # Errors
    /// A document that is not YAML.
    pub fn parse(manifests: &str) -> Result<Release> {
        let documents = serde_yaml::Deserializer::from_str(manifests);
        let objects = documents.map(Value::deserialize).collect::<Result<Vec<_>, _>>().context("helm's output")?;
        Ok(Release { objects: objects.into_iter().filter(|object| !object.is_null()).collect() })
    }

    /// Returns all objects of a kind.
    pub fn of_kind<'a>(&'a self, kind: &'a str) -> impl Iterator<Item = &'a Value> {
        self.objects.iter().filter(move |object| object["kind"] == kind)
    }

    /// Returns an object.
    #[must_use]
    pub fn find<'a>(&'a self, kind: &'a str, name: &str) -> Option<&'a Value> {
        self.of_kind(kind).find(|object| object["metadata"]["name"] == name)
    }

    /// Returns the templates of all pods, those of hooks included.
    #[must_use]
    pub fn pods(&self) -> Vec<Pod<'_>> {
        self.objects.iter().filter_map(Pod::of).collect()
    }

    /// Returns all containers.
    #[must_use]
    pub fn containers(&self) -> Vec<Container<'_>> {
        self.pods().into_iter().flat_map(Pod::containers).collect()
    }
}

impl<'a> Pod<'a> {
    /// Returns the template that an object has.
    #[must_use]
    pub fn of(object: &'a Value) -> Option<Pod<'a>> {
        let kind = object["kind"].as_str()?;
        let path = match kind {
            "Deployment" | "StatefulSet" | "DaemonSet" | "Job" => "/spec/template",
            "CronJob" => "/spec/jobTemplate/spec/template",
            _ => return None,
        };
        Some(Pod { kind, name: name(object), template: object.pointer(path)? })
    }

    pub fn spec(&self) -> &'a Value {
        &self.template["spec"]
    }

    fn containers(self) -> impl Iterator<Item = Container<'a>> {
        let of = move |list: &str, init| items(&self.spec()[list]).map(move |spec| Container { pod: self, init, spec });
        of("initContainers", true).chain(of("containers", false))
    }

    /// Returns what its containers and volumes read.
    #[must_use]
    pub fn references(self) -> Vec<Reference<'a>> {
        let mut found = Vec::new();
        for Container { spec, .. } in self.containers() {
            for from in items(&spec["env"]).map(|entry| &entry["valueFrom"]) {
                found.extend(keyed("Secret", &from["secretKeyRef"], "name", "key"));
                found.extend(keyed("ConfigMap", &from["configMapKeyRef"], "name", "key"));
            }
            for from in items(&spec["envFrom"]) {
                found.extend(keyed("Secret", &from["secretRef"], "name", ""));
                found.extend(keyed("ConfigMap", &from["configMapRef"], "name", ""));
            }
        }
        let volumes = items(&self.spec()["volumes"]);
        let projected = |volume: &'a Value| items(&volume["projected"]["sources"]);
        for source in volumes.flat_map(|volume| std::iter::once(volume).chain(projected(volume))) {
            for (kind, volume, name) in
                [("Secret", &source["secret"], "secretName"), ("ConfigMap", &source["configMap"], "name")]
            {
                let name = if volume[name].is_string() { name } else { "name" };
                found.extend(keyed(kind, volume, name, ""));
                let item =
                    |item: &'a Value| Some(Reference { kind, name: volume[name].as_str()?, key: item["key"].as_str() });
                found.extend(items(&volume["items"]).filter(|_| volume["optional"] != true).filter_map(item));
            }
        }
        found.extend(items(&self.spec()["imagePullSecrets"]).flat_map(|secret| keyed("Secret", secret, "name", "")));
        found.sort();
        found.dedup();
        found
    }

    /// Returns the names of the claims that its volumes name.
    pub fn claims(self) -> impl Iterator<Item = &'a str> {
        items(&self.spec()["volumes"]).filter_map(claim_of)
    }

    /// Returns where its containers, the init containers left out, mount claims. `templates` are the claims of a StatefulSet.
    #[must_use]
    pub fn mounts(self, templates: &'a Value) -> BTreeSet<Mount<'a>> {
        let named =
            items(&self.spec()["volumes"]).filter_map(|volume| Some((text(&volume["name"]), claim_of(volume)?)));
        let of_set = items(templates).map(|claim| (name(claim), name(claim)));
        let claims: BTreeMap<_, _> = named.chain(of_set).collect();
        let mounts = self
            .containers()
            .filter(|container| !container.init)
            .flat_map(|container| items(&container.spec["volumeMounts"]));
        let mount = |mount: &'a Value| {
            let claim = claims.get(text(&mount["name"]))?;
            let folder = mount["subPath"].as_str().or(mount["subPathExpr"].as_str()).unwrap_or_default();
            Some(Mount { claim, folder, path: text(&mount["mountPath"]) })
        };
        mounts.filter_map(mount).collect()
    }
}

impl<'a> Container<'a> {
    pub fn name(&self) -> &'a str {
        text(&self.spec["name"])
    }

    pub fn image(&self) -> &'a str {
        text(&self.spec["image"])
    }

    /// Returns a variable of its environment.
    #[must_use]
    pub fn env(&self, name: &str) -> Option<&'a Value> {
        items(&self.spec["env"]).find(|entry| entry["name"] == name)
    }
}

/// Returns the name of the claim that a volume names.
fn claim_of(volume: &Value) -> Option<&str> {
    volume["persistentVolumeClaim"]["claimName"].as_str()
}

fn keyed<'a>(kind: &'static str, source: &'a Value, name: &str, key: &str) -> Option<Reference<'a>> {
    let name = source[name].as_str().filter(|_| source["optional"] != true)?;
    Some(Reference { kind, name, key: source[key].as_str() })
}

/// Returns the items of a list; of anything else, none.
pub fn items(list: &Value) -> impl Iterator<Item = &Value> {
    list.as_array().into_iter().flatten()
}

/// Returns a text; of anything else, the empty one.
#[must_use]
pub fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Returns the name of an object.
#[must_use]
pub fn name(object: &Value) -> &str {
    text(&object["metadata"]["name"])
}
