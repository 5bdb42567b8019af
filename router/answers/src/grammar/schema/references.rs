//! References of schemas to their own parts.
//!
//! llguidance follows a reference only if it is a plain path, such as `#/$defs/a`. Clients may also
//! write the path percent-encoded and with the escapes of JSON pointers, name a part by its
//! `$anchor`, or refer to its `$id`. Such references become plain paths. A part whose path has no
//! plain form is copied to `$defs` under a name of its own.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// Maximum number of values in all parts of one schema that are copied.
const MAX_COPIED: usize = 20_000;

/// Maximum number of bytes of all paths and addresses that are kept. It bounds the work for long
/// keys: parts that would exceed it are not found.
const MAX_KEPT_BYTES: usize = 4 << 20;
/// Bytes of the longest address of a part. Longer ones are ignored.
const MAX_ADDRESS_BYTES: usize = 1024;

/// Keywords whose values are data and no schemas.
const DATA: [&str; 5] = ["const", "enum", "default", "examples", "example"];

/// Keywords with schemas by names, which may be equal to keywords.
const NAMED: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];

/// The keys and indices that lead to a part of a schema.
type Path = Vec<String>;

/// Returns a schema whose references are plain paths. References that lead to no part of the schema
/// stay as they are. The work is linear in the size of the schema.
pub fn with_plain_references(mut schema: Value) -> Value {
    let mut index = PartIndex { left: MAX_KEPT_BYTES, ..PartIndex::default() };
    index.add(&schema, "", &mut Vec::new(), true);
    if !index.has_other_references {
        return schema;
    }
    let mut changes = Vec::new();
    index.collect(&schema, (&schema, true), "", &mut Vec::new(), &mut changes);
    let mut copies = Copies::default();
    for Change { at, target } in changes {
        let plain = plain_reference(&target).unwrap_or_else(|| copies.reference(target));
        if let Some(reference) = part_mut(&mut schema, &at).and_then(|part| part.get_mut("$ref")) {
            *reference = plain.into();
        }
    }
    copies.add_to(&mut schema);
    remove_names(&mut schema, true);
    schema
}

/// Removes the names of parts, to which nothing refers any more. A plain path must not be relative
/// to an `$id`.
fn remove_names(part: &mut Value, is_schema: bool) {
    match part {
        Value::Object(fields) => {
            if is_schema {
                fields.retain(|keyword, value| {
                    let is_name = ["$id", "$anchor", "$dynamicAnchor"].contains(&keyword.as_str());
                    !(is_name && value.is_string())
                });
            }
            for (keyword, value) in fields {
                if !(is_schema && DATA.contains(&keyword.as_str())) {
                    remove_names(value, !(is_schema && NAMED.contains(&keyword.as_str())));
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| remove_names(item, true)),
        _ => {}
    }
}

/// The parts of a schema that references can name.
#[derive(Default)]
struct PartIndex {
    /// The paths of parts with an `$id`, by their addresses.
    ids: HashMap<String, Path>,
    /// The paths of parts with an anchor, by the address of the part around them and the anchor.
    anchors: HashMap<(String, String), Path>,
    /// Whether a reference is not a plain path already.
    has_other_references: bool,
    /// The number of bytes of paths and addresses that may still be kept.
    left: usize,
}

/// A reference that becomes another one.
struct Change {
    /// The path of the schema that contains the reference.
    at: Path,
    target: Path,
}

/// Calls `visit` for the values of a schema that may be or contain schemas.
fn for_each_child<'a>(value: &'a Value, is_schema: bool, mut visit: impl FnMut(String, &'a Value, bool)) {
    match value {
        Value::Object(fields) => {
            for (name, child) in fields {
                if !is_schema {
                    visit(name.clone(), child, true);
                } else if !DATA.contains(&name.as_str()) {
                    visit(name.clone(), child, !NAMED.contains(&name.as_str()));
                }
            }
        }
        Value::Array(items) => {
            for (index, child) in items.iter().enumerate() {
                visit(index.to_string(), child, true);
            }
        }
        _ => {}
    }
}

/// Returns the address of a schema, to which its references are relative.
fn address(schema: &Value, around: &str) -> Option<String> {
    let id = schema.get("$id")?.as_str()?;
    let id = id.split('#').next().unwrap_or_default();
    let fits = !id.is_empty() && id.len() <= MAX_ADDRESS_BYTES;
    fits.then(|| joined(around, id)).filter(|address| address.len() <= MAX_ADDRESS_BYTES)
}

impl PartIndex {
    /// Returns a copy of a path, unless it would exceed the bytes that may be kept.
    fn kept(&mut self, path: &Path) -> Option<Path> {
        let bytes: usize = path.iter().map(|key| key.len() + size_of::<String>()).sum();
        self.left = self.left.checked_sub(bytes + MAX_ADDRESS_BYTES)?;
        Some(path.clone())
    }

    /// Adds a part and all parts inside of it.
    fn add(&mut self, part: &Value, around: &str, path: &mut Path, is_schema: bool) {
        let own = if is_schema { address(part, around) } else { None };
        let base = own.as_deref().unwrap_or(around);
        if is_schema {
            self.add_names(part, own.as_deref(), base, path);
            if let Some(reference) = part.get("$ref").and_then(Value::as_str) {
                let is_plain = base.is_empty()
                    && (reference == "#" || reference.starts_with("#/"))
                    && !reference.contains(['%', '~']);
                self.has_other_references |= !is_plain;
            }
        }
        for_each_child(part, is_schema, |key, child, is_schema| {
            path.push(key);
            self.add(child, base, path, is_schema);
            path.pop();
        });
    }

    /// Adds the address and the anchors of one part.
    fn add_names(&mut self, part: &Value, own: Option<&str>, base: &str, path: &Path) {
        if let Some(address) = own
            && let Some(path) = self.kept(path)
        {
            self.ids.entry(address.to_owned()).or_insert(path);
        }
        let text = |keyword: &str| part.get(keyword).and_then(Value::as_str);
        let old_anchor = text("$id").and_then(|id| id.strip_prefix('#'));
        for anchor in [text("$anchor"), text("$dynamicAnchor"), old_anchor].into_iter().flatten() {
            if let Some(path) = self.kept(path) {
                self.anchors.entry((base.to_owned(), anchor.to_owned())).or_insert(path);
            }
        }
    }

    /// Collects the references of a part that have another plain form. `is_schema` says that the
    /// part is a schema and not a list of schemas by names.
    fn collect(
        &mut self,
        root: &Value,
        (part, is_schema): (&Value, bool),
        around: &str,
        path: &mut Path,
        changes: &mut Vec<Change>,
    ) {
        let own = if is_schema { address(part, around) } else { None };
        let base = own.as_deref().unwrap_or(around);
        let reference = part.get("$ref").filter(|_| is_schema).and_then(Value::as_str);
        if let Some(target) = reference.and_then(|reference| self.target(root, base, reference))
            && let Some(at) = self.kept(path)
        {
            changes.push(Change { at, target });
        }
        for_each_child(part, is_schema, |key, child, is_schema| {
            path.push(key);
            self.collect(root, (child, is_schema), base, path, changes);
            path.pop();
        });
    }

    /// Returns the path of the part to which a reference leads.
    fn target(&mut self, root: &Value, base: &str, reference: &str) -> Option<Path> {
        let (address, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let address = if address.is_empty() { base.to_owned() } else { joined(base, address) };
        let around = self.ids.get(&address).cloned().or(address.is_empty().then(Path::new))?;
        let mut path = self.kept(&around)?;
        let fragment = percent_decoded(fragment)?;
        if let Some(pointer) = fragment.strip_prefix('/') {
            path.extend(pointer.split('/').map(|segment| segment.replace("~1", "/").replace("~0", "~")));
        } else if !fragment.is_empty() {
            path = self.anchors.get(&(address, fragment))?.clone();
        }
        part(root, &path).map(|_| path)
    }
}

/// Returns an address that may be relative to another one.
fn joined(base: &str, address: &str) -> String {
    let has_scheme = address.split_once(':').is_some_and(|(scheme, _)| {
        !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
    });
    if has_scheme || base.is_empty() {
        return address.to_owned();
    }
    let after_host = base.find("://").map_or(0, |at| at + 3);
    let path_start = base[after_host..].find('/').map_or(base.len(), |at| after_host + at);
    if address.starts_with('/') {
        return format!("{}{address}", &base[..path_start]);
    }
    let folder = base[path_start..].rfind('/').map_or(path_start, |at| path_start + at);
    format!("{}/{}", &base[..folder], address.trim_start_matches("./"))
}

/// Returns the text with its percent-encoded bytes decoded; `None` if it is no text then.
fn percent_decoded(text: &str) -> Option<String> {
    if !text.contains('%') {
        return Some(text.to_owned());
    }
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&byte, after)) = rest.split_first() {
        let digits = after.get(..2).and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.filter(|_| byte == b'%').and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(decoded) => {
                bytes.push(decoded);
                rest = &after[2..];
            }
            None => {
                bytes.push(byte);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

/// Returns the reference for a path, unless llguidance would not read a key of it as it is.
fn plain_reference(path: &Path) -> Option<String> {
    // Other characters are no part of a URI, or have another meaning in it.
    let is_plain_byte = |byte: u8| byte.is_ascii_alphanumeric() || b"-._!$&'()*+,;=:@".contains(&byte);
    let is_plain = |key: &String| !key.is_empty() && key.bytes().all(is_plain_byte);
    match path.as_slice() {
        [] => Some("#".into()),
        path if path.iter().all(is_plain) => Some(format!("#/{}", path.join("/"))),
        _ => None,
    }
}

fn part<'a>(root: &'a Value, path: &Path) -> Option<&'a Value> {
    path.iter().try_fold(root, |value, key| match value {
        Value::Array(items) => items.get(key.parse::<usize>().ok()?),
        value => value.get(key),
    })
}

fn part_mut<'a>(root: &'a mut Value, path: &Path) -> Option<&'a mut Value> {
    path.iter().try_fold(root, |value, key| match value {
        Value::Array(items) => items.get_mut(key.parse::<usize>().ok()?),
        value => value.get_mut(key),
    })
}

/// Parts that are copied to `$defs`.
#[derive(Default)]
struct Copies {
    paths: Vec<Path>,
    indices: HashMap<Path, usize>,
}

impl Copies {
    /// Returns the name of a part in `$defs`.
    fn name(index: usize) -> String {
        format!("millrace-part-{index}")
    }

    /// Returns the reference to a copy of the part at this path.
    fn reference(&mut self, path: Path) -> String {
        let index = *self.indices.entry(path).or_insert_with_key(|path| {
            self.paths.push(path.clone());
            self.paths.len() - 1
        });
        format!("#/$defs/{}", Self::name(index))
    }

    /// Adds the parts to a schema. The references to parts that are too large stay without a
    /// target, and so they are refused.
    fn add_to(self, schema: &mut Value) {
        let mut left = MAX_COPIED;
        let mut copies = Map::new();
        for (index, path) in self.paths.iter().enumerate() {
            let Some(part) = part(schema, path) else { continue };
            let size = values(part, left);
            if size <= left {
                left -= size;
                copies.insert(Self::name(index), part.clone());
            }
        }
        let Value::Object(fields) = schema else { return };
        let definitions = fields.entry("$defs").or_insert_with(|| Map::new().into());
        if let Value::Object(definitions) = definitions {
            definitions.extend(copies);
        }
    }
}

/// Counts the values in a value, up to one more than `most`.
fn values(value: &Value, most: usize) -> usize {
    let mut count = 1;
    let children: Vec<&Value> = match value {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    };
    for child in children {
        if count > most {
            break;
        }
        count += values(child, most - count.min(most));
    }
    count
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns the reference that `reference` becomes in a schema with these definitions.
    fn plain(reference: &str, definitions: Value) -> String {
        let schema = json!({"$defs": definitions, "properties": {"p": {"$ref": reference}}});
        let schema = with_plain_references(schema);
        schema["properties"]["p"]["$ref"].as_str().unwrap_or_default().to_owned()
    }

    #[test]
    fn references_become_plain_paths() {
        let definitions = json!({
            "a": {"type": "string"},
            "named": {"$anchor": "here", "type": "string"},
            "old": {"$id": "#there", "type": "string"},
            "own": {"$id": "https://a.example/own.json", "$defs": {"x": {"$anchor": "x"}}, "items": {"$ref": "#/$defs/x"}},
        });
        for (reference, expected) in [
            ("#/$defs/a", "#/$defs/a"),
            ("#/%24defs/a", "#/$defs/a"),
            ("#here", "#/$defs/named"),
            ("#there", "#/$defs/old"),
            ("https://a.example/own.json", "#/$defs/own"),
            ("https://a.example/own.json#x", "#/$defs/own/$defs/x"),
            ("https://a.example/own.json#/$defs/x", "#/$defs/own/$defs/x"),
            // The schema lacks the part, and nothing is fetched.
            ("#nowhere", "#nowhere"),
            ("https://b.example/", "https://b.example/"),
        ] {
            assert_eq!(plain(reference, definitions.clone()), expected, "{reference}");
        }
        let schema = with_plain_references(json!({"$defs": definitions}));
        assert_eq!(schema["$defs"]["own"]["items"]["$ref"], "#/$defs/own/$defs/x");
    }

    #[test]
    fn references_are_relative_to_the_id_around_them() {
        let schema = json!({
            "$id": "https://a.example/dir/root.json",
            "$defs": {"n": {"$id": "item.json", "type": "string"}},
            "properties": {
                "a": {"$ref": "item.json"}, "b": {"$ref": "/dir/item.json"}, "c": {"$ref": "root.json"},
                "d": {"$ref": "#/$defs/n"}, "e": {"$ref": "#"},
            },
        });
        let schema = with_plain_references(schema);
        let reference = |name: &str| schema["properties"][name]["$ref"].clone();
        assert_eq!(["a", "b", "d"].map(reference), ["#/$defs/n"; 3].map(Value::from));
        assert_eq!(["c", "e"].map(reference), ["#"; 2].map(Value::from));
        assert_eq!((schema.get("$id"), schema["$defs"]["n"].get("$id")), (None, None));
    }

    #[test]
    fn parts_without_a_plain_path_are_copied() {
        let definitions = json!({
            "a/b": {"items": {"$ref": "#/$defs/c~0d"}}, "c~d": {"type": "string"}, "ü x": {"type": "null"},
        });
        let schema = json!({"$defs": definitions, "properties": {
            "p": {"$ref": "#/$defs/a~1b"}, "q": {"$ref": "#/$defs/a~1b"}, "r": {"$ref": "#/$defs/%C3%BC%20x"},
        }});
        let schema = with_plain_references(schema);
        let reference = schema["properties"]["p"]["$ref"].as_str().unwrap_or_default();
        assert_eq!(schema["properties"]["q"]["$ref"], reference);
        let copy = schema.pointer(&reference[1..]).unwrap_or(&Value::Null);
        let inner = copy["items"]["$ref"].as_str().unwrap_or_default();
        assert_eq!(schema.pointer(&inner[1..]), Some(&json!({"type": "string"})));
        // A second pass changes nothing.
        assert_eq!(with_plain_references(schema.clone()), schema);
    }

    #[test]
    fn data_and_names_are_no_references() {
        let schema =
            json!({"properties": {"$ref": {"type": "string"}, "$anchor": {"const": {"$ref": "#x"}}}});
        assert_eq!(with_plain_references(schema.clone()), schema);
    }
}
