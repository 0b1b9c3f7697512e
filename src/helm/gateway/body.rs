//! Extracts the name of an object to create from the body of the request, and names the object to delete there (pure).

use axum::body::Bytes;
use k8s_openapi::api::core::v1::Secret;
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct NamedObject {
    #[serde(default)]
    metadata: ObjectMetadata,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectMetadata {
    name: String,
    uid: String,
}

/// Prefix of Kubernetes' protobuf (k8s.io/apimachinery/pkg/runtime/serializer/protobuf). A `runtime.Unknown` follows, with the object
/// as its field 2. In each object, field 1 is the metadata, whose field 1 is the name.
const PROTOBUF: &[u8] = b"k8s\0";

/// Returns the name of the object in a body. Returns `None` if the body is neither JSON nor protobuf.
pub(super) fn name(body: &[u8]) -> Option<String> {
    let Some(unknown) = body.strip_prefix(PROTOBUF) else {
        return serde_json::from_slice::<NamedObject>(body).ok().map(|named| named.metadata.name);
    };
    let name = field(unknown, 2).and_then(|object| field(object, 1)).and_then(|metadata| field(metadata, 1))?;
    String::from_utf8(name.to_vec()).ok()
}

/// Returns the revision that helm is about to store: the value under `release` of a Secret.
pub(super) fn revision(body: &[u8]) -> Option<Vec<u8>> {
    const KEY: &str = "release";
    let Some(unknown) = body.strip_prefix(PROTOBUF) else {
        let secret: Secret = serde_json::from_slice(body).ok()?;
        return secret.data?.remove(KEY).map(|revision| revision.0);
    };
    // Field 2 of a Secret is a map: messages with the key as field 1, and the value as field 2.
    let entry = field(unknown, 2).and_then(|secret| field(secret, 2))?;
    field(entry, 1).filter(|key| *key == KEY.as_bytes())?;
    field(entry, 2).map(<[u8]>::to_vec)
}

/// Returns the uid of an object in JSON.
pub(super) fn uid(object: &[u8]) -> Option<String> {
    let NamedObject { metadata } = serde_json::from_slice(object).ok()?;
    Some(metadata.uid).filter(|uid| !uid.is_empty())
}

/// Returns the options of a deletion, bound to the object with this uid. helm sends them as JSON, and for its storage as protobuf with
/// nothing in it. `None`: they are neither.
pub(super) fn with_uid_precondition(options: &[u8], uid: &str) -> Option<Bytes> {
    let mut options: Map<String, Value> = match options.strip_prefix(PROTOBUF) {
        Some(unknown) if field(unknown, 2).is_none_or(<[u8]>::is_empty) => Map::new(),
        Some(_) => return None,
        None if options.is_empty() => Map::new(),
        None => serde_json::from_slice(options).ok()?,
    };
    options.entry("kind").or_insert(json!("DeleteOptions"));
    options.entry("apiVersion").or_insert(json!("v1"));
    options.entry("preconditions").or_insert(json!({})).as_object_mut()?.insert("uid".to_owned(), json!(uid));
    Some(Value::Object(options).to_string().into())
}

/// Returns the bytes of a field of a protobuf message, or `None` if the field is missing or repeated, or this is not a message.
fn field(mut message: &[u8], number: u64) -> Option<&[u8]> {
    let mut field = None;
    while !message.is_empty() {
        let key = varint(&mut message)?;
        let length = match key & 7 {
            0 => {
                varint(&mut message)?;
                continue;
            }
            1 => 8,
            2 => usize::try_from(varint(&mut message)?).ok()?,
            5 => 4,
            _ => return None,
        };
        let (bytes, rest) = message.split_at_checked(length)?;
        if key == number << 3 | 2 {
            // Protobuf merges repeated submessages, which no Kubernetes client sends.
            if field.is_some() {
                return None;
            }
            field = Some(bytes);
        }
        message = rest;
    }
    field
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::fake::merged;

    fn message(fields: &[(u8, &[u8])]) -> Vec<u8> {
        let one =
            |(number, bytes): &(u8, &[u8])| [&[number << 3 | 2, u8::try_from(bytes.len()).unwrap()], *bytes].concat();
        fields.iter().flat_map(one).collect()
    }

    #[test]
    fn a_deletion_is_of_one_object() {
        let protobuf = |options: &[u8]| [PROTOBUF, &message(&[(1, b"type"), (2, options)])].concat();
        let options = json!({"kind": "DeleteOptions", "apiVersion": "v1", "preconditions": {"uid": "a"}});
        let with = |more| Some(merged(options.clone(), more));
        for (body, expected) in [
            (Vec::new(), with(json!({}))),
            (protobuf(b""), with(json!({}))),
            (protobuf(&message(&[(4, b"Orphan")])), None),
            (br#"{"propagationPolicy": "Background"}"#.to_vec(), with(json!({"propagationPolicy": "Background"}))),
            (
                br#"{"apiVersion": "apps/v1", "preconditions": {"uid": "b", "resourceVersion": "7"}}"#.to_vec(),
                with(json!({"apiVersion": "apps/v1", "preconditions": {"uid": "a", "resourceVersion": "7"}})),
            ),
            (b"[]".to_vec(), None),
            (b"propagationPolicy: Background".to_vec(), None),
            (br#"{"preconditions": "x"}"#.to_vec(), None),
        ] {
            let options =
                with_uid_precondition(&body, "a").map(|options| serde_json::from_slice::<Value>(&options).unwrap());
            assert_eq!(options, expected, "{body:?}");
        }
        assert_eq!(uid(br#"{"metadata": {"uid": "a"}}"#).as_deref(), Some("a"));
        assert_eq!((uid(br#"{"metadata": {}}"#), uid(b"x")), (None, None));
    }

    #[test]
    fn the_revision_in_json_and_in_protobuf() {
        let stored = |entries: &[&[u8]]| {
            let metadata: (u8, &[u8]) = (1, b"");
            let fields: Vec<_> = [metadata].into_iter().chain(entries.iter().map(|entry| (2, *entry))).collect();
            [PROTOBUF, &message(&[(1, b"type"), (2, &message(&fields))])].concat()
        };
        let (release, other) = (message(&[(1, b"release"), (2, b"H4s")]), message(&[(1, b"other"), (2, b"x")]));
        for (body, expected) in [
            (br#"{"data": {"release": "SDRz"}}"#.to_vec(), Some("H4s")),
            (br#"{"stringData": {"release": "H4s"}}"#.to_vec(), None),
            (b"data: {release: SDRz}".to_vec(), None),
            (stored(&[&release]), Some("H4s")),
            (stored(&[&other]), None),
            (stored(&[&release, &release]), None),
            (stored(&[]), None),
        ] {
            assert_eq!(revision(&body).as_deref(), expected.map(str::as_bytes), "{body:?}");
        }
    }

    #[test]
    fn the_name_in_json_and_in_protobuf() {
        let named = |fields: &[(u8, &[u8])]| {
            let object = message(&[(1, &message(fields)), (2, b"data")]);
            [PROTOBUF, &message(&[(1, b"type"), (2, &object)]), &[4 << 3, 0x80, 1]].concat()
        };
        for (body, expected) in [
            (br#"{"metadata": {"name": "x"}}"#.to_vec(), Some("x")),
            (br#"{"metadata": {"generateName": "x-"}}"#.to_vec(), Some("")),
            (b"metadata: {name: x}".to_vec(), None),
            (named(&[(1, b"x"), (3, b"ns")]), Some("x")),
            (named(&[(3, b"ns")]), None),
            (named(&[(1, b"x"), (1, b"y")]), None),
            (named(&[(1, b"x")])[..12].to_vec(), None),
            (b"k8s\0\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff".to_vec(), None),
            (Vec::new(), None),
        ] {
            assert_eq!(name(&body).as_deref(), expected, "{body:?}");
        }
    }
}
