//! Random values for the fields of a kind, from the schema in its definition. Pure.
//!
//! The rules in CEL are the API server's alone: a value that the schema permits may still be refused by one.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use serde_json::{Map, Value, json};

use crate::charts;

/// Kubernetes' own schemas, whose hundreds of fields the operator only passes on.
const PASSED_ON: [&str; 1] = ["affinity"];
/// The step of a path from a list to its items, and from a map to its values.
const ITEM: &str = "[]";
const VALUE: &str = "{}";
/// A string of a MiB; the API server reads three, and etcd stores one and a half.
const HUGE: usize = 1 << 20;

/// Strings that mean something: of the first row whose path a field's path ends with. What they name exists where a
/// sequence runs, or is `missing`. The versions of the chart come from its own list.
const MEANINGS: &[(&str, &[&str])] = &[
    ("hostname", &["acme.example.com", "other.example.com", "a.b"]),
    // It does not exist.
    ("chartVersion", &["1.2.3"]),
    ("allow", &[charts::DEFAULT, charts::MAJOR]),
    ("image", &["example.com/app:1", "example.com:5000/a/b:2-x"]),
    ("timeout", &["5m", "1h", "1m30s"]),
    ("foreignLockTimeout", &["30m", "2h"]),
    // None of them comes while a sequence runs.
    ("schedule", &["0 3 1 1 *", "@yearly"]),
    ("drill", &["0 5 1 1 *", "@yearly"]),
    ("full", &["0 3 1 1 *"]),
    ("differential", &["0 4 1 1 *"]),
    ("incremental", &["0 5 1 1 *"]),
    ("size", &["8Gi", "9Gi", "8192Mi"]),
    ("storageSize", &["1Gi", "2Gi", "1024Mi"]),
    // Kubernetes changes no volume's class, and so helm fails.
    ("persistence.storageClassName", &[]),
    ("storageClassName", &["kwok-volume"]),
    ("ingressClassName", &["nginx", "traefik"]),
    ("serviceAccountName", &["clientapp-deployer", "missing"]),
    ("profile", &["class", "missing"]),
    ("adminSecret", &["given", "missing"]),
    ("secretName", &["given", "missing"]),
    ("dependsOn[].kind", &["ClientApp", "Postgresql"]),
    ("dependsOn[].name", &["missing", "acme"]),
    ("driftIgnore[].kind", &["Deployment", "Service"]),
    ("paths[]", &["/spec/replicas", "/metadata/annotations/example.com~1note"]),
    ("targetPath", &["nextcloud.mail.smtp.password", "podAnnotations.note"]),
    ("valuesKey", &["values.yaml", "missing"]),
    ("version", &["15", "16", "17"]),
    ("claim", &["missing"]),
    ("from", &["latest", "20260131T030000Z-x7k2p"]),
    ("endpoint", &["https://s3.example.com"]),
    ("bucket", &["dumps"]),
    ("region", &["us-east-1"]),
    ("host", &["db.example.com", "db.example.com:6432"]),
    ("cidr", &["10.0.0.0/8"]),
    ("except[]", &["10.1.0.0/16"]),
    ("operator", &["Exists"]),
    ("effect", &["NoSchedule"]),
    ("request", &["one", "two"]),
    ("time", &["2026-01-31T03:00:00Z"]),
    ("key", &["password", "missing"]),
    // Shorter than what the oracle of secrecy looks for: it is in the spec, where all users see it.
    ("password", &["s3cret", "0ther"]),
    ("defaultUser", &["app", "other"]),
    ("table", &["people", "others", "public.people", "missing"]),
    ("requests{}", &["100m", "64"]),
    ("limits{}", &["200m", "128"]),
    ("quota{}", &["20"]),
    ("parameters{}", &["100", "200"]),
    ("name", &["given", "missing"]),
];

/// The keys of maps.
const KEYS: &[(&str, &[&str])] = &[
    ("requests", &["cpu"]),
    ("limits", &["cpu"]),
    ("quota", &["pods", "services"]),
    ("parameters", &["max_connections", "max_worker_processes"]),
    ("apps", &["cronjob", "metrics"]),
    ("", &["a", "b"]),
];

/// Numbers of which any would do by the schema, and a hundred pods would be no test of the spec.
const NUMBERS: &[(&str, &[i64])] = &[("replicas", &[0, 1, 2]), ("replicaCount", &[0, 1, 2]), ("instances", &[1, 2])];

/// Values for the chart: the last two are refused by the operator, and by the API server.
fn chart_values() -> [Value; 5] {
    [
        json!({}),
        json!({"podAnnotations": {"note": "a"}}),
        json!({"nextcloud": {"trustedDomains": ["a.example.com"]}}),
        json!({"replicaCount": 2}),
        json!({"service": {"type": "Nonsense"}}),
    ]
}

/// The schema of a kind's spec.
#[derive(Clone, Debug)]
pub struct Schema(Value);

/// A field, at any depth.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// From the spec down; `[]` is an item of a list, and `{}` a value of a map.
    pub path: Vec<String>,
    pub schema: Value,
    /// Says whether the object that it is in cannot be without it.
    pub required: bool,
}

/// A change of a spec.
#[derive(Clone, Debug, PartialEq)]
pub struct Mutation {
    /// A merge patch of the spec.
    pub patch: Value,
    /// Says whether the schema itself does not permit it.
    pub refused: bool,
}

impl Field {
    /// As in messages: `dependsOn[].name`.
    pub fn name(&self) -> String {
        self.path.iter().fold(String::new(), |path, step| beneath(&path, step))
    }

    pub fn is_string(&self) -> bool {
        self.schema["type"] == "string"
    }

    /// A string that it may be.
    pub fn sample(&self) -> String {
        strings(&self.schema, &self.name())[0].as_str().unwrap_or_default().to_owned()
    }

    /// Returns whether a merge patch reaches it alone.
    fn is_alone(&self) -> bool {
        !self.path.iter().any(|step| step == ITEM || step == VALUE)
    }
}

fn beneath(path: &str, step: &str) -> String {
    let dot = if path.is_empty() || step == ITEM || step == VALUE { "" } else { "." };
    format!("{path}{dot}{step}")
}

/// The first row for a path.
fn row<'a, T: ?Sized>(table: &[(&str, &'a T)], path: &str) -> Option<&'a T> {
    let ends = |end: &str| path.strip_suffix(end).is_some_and(|before| before.is_empty() || before.ends_with('.'));
    table.iter().find(|(end, _)| end.is_empty() || ends(end)).map(|(_, found)| *found)
}

impl Schema {
    pub fn of(definition: &CustomResourceDefinition) -> Schema {
        let definition = serde_json::to_value(definition).expect("a definition is JSON");
        let mut spec = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"].clone();
        // Where a rollout ends depends on the specs before, by design, so none is compared with the last spec alone.
        if let Some(fields) = spec["properties"].as_object_mut() {
            fields.remove("rollout");
        }
        Schema(spec)
    }

    /// All fields, those of lists and maps included.
    pub fn fields(&self) -> Vec<Field> {
        let mut found = Vec::new();
        collect(&self.0, &[], &mut found);
        // Those of one field at the top beside each other, and in the same order everywhere.
        found.sort_by(|one, other| one.path.cmp(&other.path));
        found
    }

    /// Another value that the schema permits, or none, for a field.
    pub fn valid(&self, spec: &Value, random: &mut StdRng) -> Mutation {
        let field = self.field(random);
        let now = field.path.iter().fold(spec, |value, step| &value[step]);
        if !field.required && !now.is_null() && random.random_bool(0.3) {
            return Mutation { patch: nested(&field.path, Value::Null), refused: false };
        }
        let name = field.name();
        let mut value = permitted(&field.schema, &name, random);
        // Many fields have few values.
        for _ in 0..4 {
            if value != *now {
                break;
            }
            value = permitted(&field.schema, &name, random);
        }
        Mutation { patch: self.patch(spec, &field, value), refused: false }
    }

    /// A value of a field that the schema does not permit, or that is hostile.
    pub fn invalid(&self, spec: &Value, random: &mut StdRng) -> Mutation {
        let field = self.field(random);
        let (value, refused) = forbidden(&field.schema, random);
        Mutation { patch: self.patch(spec, &field, value), refused }
    }

    /// A spec with this value of a field, and with what is required beside it.
    pub fn with(&self, spec: &Value, field: &Field, value: Value) -> Value {
        put(&self.0, spec, "", &field.path, value)
    }

    /// The part of the spec at the top that changes.
    fn patch(&self, spec: &Value, field: &Field, value: Value) -> Value {
        let top = &field.path[0];
        json!({ top: self.with(spec, field, value)[top] })
    }

    /// Each field at the top is as likely as any other, however many there are in it.
    fn field(&self, random: &mut StdRng) -> Field {
        let fields: Vec<_> = self.fields().into_iter().filter(Field::is_alone).collect();
        let mut tops: Vec<_> = fields.iter().map(|field| &field.path[0]).collect();
        tops.dedup();
        let top = (*tops.choose(random).expect("a spec has fields")).clone();
        let within: Vec<_> = fields.into_iter().filter(|field| field.path[0] == top).collect();
        within.choose(random).expect("a field at the top is one").clone()
    }
}

fn collect(schema: &Value, path: &[String], found: &mut Vec<Field>) {
    let required = |name: &str| schema["required"].as_array().is_some_and(|names| names.iter().any(|is| is == name));
    let properties = schema["properties"].as_object().into_iter().flatten();
    let properties = properties.map(|(name, schema)| (name.as_str(), schema, required(name)));
    let inner = [(ITEM, &schema["items"], true), (VALUE, &schema["additionalProperties"], true)];
    for (step, schema, required) in properties.chain(inner.into_iter().filter(|(_, schema, _)| schema.is_object())) {
        if PASSED_ON.contains(&step) {
            continue;
        }
        let path = [path, &[step.to_owned()]].concat();
        found.push(Field { path: path.clone(), schema: schema.clone(), required });
        collect(schema, &path, found);
    }
}

fn nested(path: &[String], value: Value) -> Value {
    path.iter().rev().fold(value, |value, step| json!({ step: value }))
}

/// The value at a path, with what is required around it where that is not there.
fn put(schema: &Value, now: &Value, around: &str, path: &[String], value: Value) -> Value {
    let Some((step, rest)) = path.split_first() else { return value };
    let place = beneath(around, step);
    match step.as_str() {
        ITEM => json!([put(&schema["items"], &Value::Null, &place, rest, value)]),
        VALUE => {
            let key = row(KEYS, around).expect("the last row is for all")[0];
            json!({ key: put(&schema["additionalProperties"], &Value::Null, &place, rest, value) })
        }
        step => {
            let object = now.as_object().cloned().filter(|object| !object.is_empty());
            let mut object = object.unwrap_or_else(|| least(schema, around));
            let inner = put(&schema["properties"][step], &now[step], &place, rest, value);
            object.insert(step.to_owned(), inner);
            Value::Object(object)
        }
    }
}

/// An object with what is required, and nothing else.
fn least(schema: &Value, place: &str) -> Map<String, Value> {
    let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
    let value = |name: &str| {
        let (schema, place) = (&schema["properties"][name], beneath(place, name));
        match schema["type"].as_str() {
            Some("object") => Value::Object(least(schema, &place)),
            Some("array") => json!([]),
            Some("integer") => json!(bounds(schema).0),
            Some("boolean") => json!(false),
            _ => strings(schema, &place).remove(0),
        }
    };
    required.map(|name| (name.to_owned(), value(name))).collect()
}

fn bounds(schema: &Value) -> (i64, i64) {
    // Bounds are written as floats, and are whole.
    let bound = |name: &str| schema[name].as_f64().map(|bound| bound as i64);
    (bound("minimum").unwrap_or(0), bound("maximum").unwrap_or(i64::from(i32::MAX)))
}

/// The strings that a field may have; at least one.
fn strings(schema: &Value, place: &str) -> Vec<Value> {
    if let Some(values) = schema["enum"].as_array() {
        return values.clone();
    }
    let mut found: Vec<_> = row(MEANINGS, place).unwrap_or_default().iter().map(|word| json!(word)).collect();
    if place == "chartVersion" {
        found.extend(charts::VERSIONS.iter().map(|version| json!(version.chart)));
    }
    found.extend(Some(schema["default"].clone()).filter(Value::is_string));
    if found.is_empty() {
        found.push(json!("words"));
    }
    found
}

/// A value that the schema permits.
fn permitted(schema: &Value, place: &str, random: &mut StdRng) -> Value {
    match schema["type"].as_str() {
        Some("object") if schema["x-kubernetes-preserve-unknown-fields"] == true => {
            chart_values().choose(random).cloned().unwrap_or_default()
        }
        Some("object") if schema["additionalProperties"].is_object() => {
            let keys = row(KEYS, place).expect("the last row is for all");
            let place = beneath(place, VALUE);
            let some = keys.iter().take(random.random_range(1..=keys.len()));
            some.map(|key| ((*key).to_owned(), permitted(&schema["additionalProperties"], &place, random))).collect()
        }
        Some("object") => {
            let mut object = least(schema, place);
            for (name, schema) in schema["properties"].as_object().into_iter().flatten() {
                if !PASSED_ON.contains(&name.as_str()) && (object.contains_key(name) || random.random_bool(0.3)) {
                    object.insert(name.clone(), permitted(schema, &beneath(place, name), random));
                }
            }
            Value::Object(object)
        }
        Some("array") => {
            let (least, place) = (schema["minItems"].as_u64().unwrap_or(0), beneath(place, ITEM));
            let number = random.random_range(least..=least.max(2));
            (0..number).map(|_| permitted(&schema["items"], &place, random)).collect()
        }
        Some("integer") => {
            let (least, most) = bounds(schema);
            let meant = row(NUMBERS, place).unwrap_or_default().to_vec();
            let numbers = if meant.is_empty() { vec![least, least + 1, most - 1, most] } else { meant };
            let numbers: Vec<_> = numbers.into_iter().filter(|number| (least..=most).contains(number)).collect();
            json!(numbers.choose(random).copied().unwrap_or(least))
        }
        Some("boolean") => json!(random.random_bool(0.5)),
        _ => strings(schema, place).choose(random).cloned().unwrap_or_default(),
    }
}

/// A value that the schema does not permit, and `true`; or one that it may permit, and `false`.
fn forbidden(schema: &Value, random: &mut StdRng) -> (Value, bool) {
    let mut wrong = vec![(json!([["deep"]]), true)];
    match schema["type"].as_str() {
        Some("string") => {
            wrong.push((json!(7), true));
            wrong.push((json!({"a": "b"}), true));
            if let Some(most) = schema["maxLength"].as_u64() {
                wrong.push((json!("a".repeat(usize::try_from(most).unwrap_or(HUGE) + 1)), true));
                wrong.push((json!("a".repeat(HUGE)), true));
            }
            let strict = !schema["enum"].is_null();
            let hostile = ["", "a\0b", "a\nb", "\u{202e}moc.a", "{{ .Values }}", "-o", "../../etc/passwd", "$(id)"];
            wrong.extend(hostile.map(|text| (json!(text), strict)));
        }
        Some("integer") => {
            let (least, most) = bounds(schema);
            let bounded = |name: &str| schema[name].is_number();
            let numbers = [
                (json!("7"), true),
                (json!(1.5), true),
                (json!(least - 1), bounded("minimum")),
                (json!(most + 1), bounded("maximum")),
            ];
            wrong.extend(numbers);
        }
        Some("boolean") => wrong.extend([(json!("yes"), true), (json!(1), true)]),
        Some("array") => {
            wrong = vec![(json!({}), true), (json!("words"), true)];
            if let Some(most) = schema["maxItems"].as_u64() {
                wrong.push(((0..=most).map(|_| least_item(schema)).collect(), true));
            }
        }
        Some("object") => {
            wrong.push((json!("words"), true));
            let open = schema["x-kubernetes-preserve-unknown-fields"] == true;
            if !open && !schema["additionalProperties"].is_object() {
                wrong.push((json!({"noSuchField": true}), true));
            }
        }
        _ => {}
    }
    wrong.choose(random).cloned().unwrap_or_default()
}

fn least_item(schema: &Value) -> Value {
    match schema["items"]["type"].as_str() {
        Some("object") => Value::Object(least(&schema["items"], "")),
        _ => json!("words"),
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::super::kind::Kind;
    use super::*;

    fn small() -> Schema {
        Schema(json!({"type": "object", "required": ["hostname"], "properties": {
            "hostname": {"type": "string", "maxLength": 5},
            "replicas": {"type": "integer", "minimum": 0.0, "maximum": 1.0},
            "mode": {"type": "string", "enum": ["A", "B"], "default": "A"},
            "store": {"type": "object", "required": ["bucket"], "properties": {
                "bucket": {"type": "string"}, "keep": {"type": "integer", "minimum": 3.0},
            }},
            "list": {"type": "array", "maxItems": 2, "items": {"type": "object", "required": ["name"],
                "properties": {"name": {"type": "string"}, "key": {"type": "string"}}}},
            "map": {"type": "object", "additionalProperties": {"type": "string"}},
        }}))
    }

    #[test]
    fn every_field_is_found() {
        let names: Vec<_> = small().fields().iter().map(Field::name).collect();
        let expected =
            "hostname list list[] list[].key list[].name map map{} mode replicas store store.bucket store.keep";
        assert_eq!(names.join(" "), expected);
    }

    #[test]
    fn a_field_brings_what_is_required_beside_it() {
        let schema = small();
        for (name, expected) in [
            ("hostname", json!({"hostname": "x"})),
            ("list[].key", json!({"hostname": "a", "list": [{"name": "given", "key": "x"}]})),
            ("map{}", json!({"hostname": "a", "map": {"a": "x"}})),
            ("store.keep", json!({"hostname": "a", "store": {"bucket": "dumps", "keep": "x"}})),
        ] {
            let field = schema.fields().into_iter().find(|field| field.name() == name).unwrap();
            assert_eq!(schema.with(&json!({"hostname": "a"}), &field, json!("x")), expected, "{name}");
        }
    }

    /// Returns whether the schema permits a value.
    fn permits(schema: &Value, value: &Value) -> bool {
        match schema["type"].as_str() {
            Some("string") => value.as_str().is_some_and(|text| {
                let fits = schema["maxLength"].as_u64().is_none_or(|most| text.len() as u64 <= most);
                fits && schema["enum"].as_array().is_none_or(|words| words.contains(value))
            }),
            Some("integer") => value.as_i64().is_some_and(|number| {
                number >= bounds(schema).0 && schema["maximum"].as_f64().is_none_or(|most| number as f64 <= most)
            }),
            Some("array") => value.as_array().is_some_and(|items| {
                schema["maxItems"].as_u64().is_none_or(|most| items.len() as u64 <= most)
                    && items.iter().all(|item| permits(&schema["items"], item))
            }),
            Some("object") => value.as_object().is_some_and(|object| {
                object.iter().all(|(name, value)| match schema["additionalProperties"].is_object() {
                    true => permits(&schema["additionalProperties"], value),
                    false => value.is_null() || permits(&schema["properties"][name], value),
                })
            }),
            _ => false,
        }
    }

    #[test]
    fn the_schema_permits_what_is_valid_and_nothing_that_it_refuses() {
        let schema = small();
        let mut random = StdRng::seed_from_u64(1);
        // The hostnames of the table are too long for this schema.
        let hostname = |mutation: &Mutation| mutation.patch.get("hostname").is_some();
        let (mut refused, mut changed) = (0, 0);
        for _ in 0..500 {
            let spec = json!({"hostname": "a", "mode": "B"});
            let valid = schema.valid(&spec, &mut random);
            assert!(hostname(&valid) || permits(&schema.0, &valid.patch), "{}", valid.patch);
            changed += usize::from(valid.patch["mode"] == "A");
            let invalid = schema.invalid(&spec, &mut random);
            assert!(!invalid.refused || !permits(&schema.0, &invalid.patch), "{:.300}", invalid.patch.to_string());
            refused += usize::from(invalid.refused);
        }
        assert!(refused > 200 && changed > 20, "{refused} {changed}");
    }

    #[test]
    fn a_seed_is_a_change_and_every_kind_has_fields() {
        for kind in Kind::ALL {
            let schema = Schema::of(&kind.definition());
            let change = |seed| schema.valid(&json!({}), &mut StdRng::seed_from_u64(seed));
            assert_eq!(change(3), change(3));
            assert!(schema.fields().iter().any(Field::is_string), "{kind:?}");
            for field in schema.fields().iter().filter(|field| field.is_string()) {
                let values = strings(&field.schema, &field.name());
                let most = field.schema["maxLength"].as_u64().unwrap_or(u64::MAX);
                let fits = |value: &Value| value.as_str().is_some_and(|text| text.len() as u64 <= most);
                assert!(!values.is_empty() && values.iter().all(fits), "{kind:?} {}: {values:?}", field.name());
            }
        }
    }
}
