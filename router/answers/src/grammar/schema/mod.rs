//! Conversion of clients' JSON schemas to schemas that llguidance compiles.
//!
//! Clients write schemas for validators, which check a complete value. A grammar supports fewer
//! keywords, and is stricter where it can be:
//!
//! - An object with listed `properties` has no other properties, unless `additionalProperties` or a
//!   composition (such as `allOf`) allows them. A validator would allow any property. But a model
//!   that is asked for three properties should not invent a fourth.
//! - Keywords that a grammar cannot enforce are refused if the answer would be wrong without them.
//!   In the schemas of tools they are left out instead, because the model has seen them in the
//!   prompt, and clients check arguments anyway.
//! - The response names the keywords that were left out (see [`UnenforcedKeywords`]).
//!
//! All work is linear in the schema's size. [`bounds`](super::bounds) limits the size and the
//! depth.

mod broken_tools;
mod formats;
mod references;
mod unique_items;

use std::collections::{BTreeSet, HashSet};

use llguidance::derivre::RegexBuilder;
use serde_json::{Map, Value, json};

use super::definition::MAX_REPETITIONS;
use super::error::GrammarError;
use super::llguidance_support::catch_panics;
pub(super) use broken_tools::without_broken_tools;
pub use references::with_plain_references;

/// The text that a schema describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum SchemaPurpose {
    /// The answer. The client relies on its form.
    Answer,
    /// The arguments of tools.
    Arguments,
}

/// Keywords of a grammar's schemas that the grammar does not enforce.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnenforcedKeywords {
    /// Keywords of the answer's schema.
    pub answer: BTreeSet<&'static str>,
    /// Keywords of the tools' schemas.
    pub tools: BTreeSet<&'static str>,
    /// The tools whose schemas cannot be compiled, by their places among the tools that may be
    /// called. Their arguments are any JSON.
    pub left_out: BTreeSet<usize>,
    /// Whether objects may have keys that the schemas do not list. Such keys could repeat.
    pub has_open_objects: bool,
}

impl UnenforcedKeywords {
    /// Returns the keywords with the request fields that contain them. `field` is the field with
    /// the answer's schema.
    pub fn fields(&self, field: &str) -> Vec<String> {
        let answer = self.answer.iter().map(|keyword| format!("{field}.{keyword}"));
        answer.chain(self.tools.iter().map(|keyword| format!("tools.{keyword}"))).collect()
    }

    fn of(&mut self, purpose: SchemaPurpose) -> &mut BTreeSet<&'static str> {
        match purpose {
            SchemaPurpose::Answer => &mut self.answer,
            SchemaPurpose::Arguments => &mut self.tools,
        }
    }
}

/// Keywords that grammars do not support and that change which values are valid.
const UNSUPPORTED_KEYWORDS: [&str; 15] = [
    "not",
    "if",
    "then",
    "else",
    "contains",
    "minContains",
    "maxContains",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "$dynamicRef",
    "$recursiveRef",
];

/// Formats that llguidance supports.
const KNOWN_FORMATS: [&str; 11] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"];

const KNOWN_TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];

/// Numbers above this bound are not exact in a grammar. The largest integers that JavaScript writes
/// as bounds are below it.
const MAX_EXACT_BOUND: f64 = 9.1e15;
/// The number of bytes of a location that an error shows.
const MAX_LOCATION_BYTES: usize = 160;

/// Converts a schema for llguidance. `name` is the name of its rule in the grammar of tools.
///
/// # Errors
/// [`GrammarError::Invalid`] names a keyword that is not supported, and its location.
pub(super) fn adapt(
    schema: &Value,
    purpose: SchemaPurpose,
    name: &str,
    unenforced: &mut UnenforcedKeywords,
) -> Result<Map<String, Value>, GrammarError> {
    let map = match schema {
        // `true` allows every value. It becomes an empty object, because options need an object.
        Value::Bool(true) => {
            unenforced.has_open_objects = true;
            return Ok(Map::new());
        }
        Value::Object(map) => map,
        _ => return Err(GrammarError::Invalid("a JSON schema must be an object".into())),
    };
    let composed = ComposedSchemas::of(schema);
    let expressions = RegexBuilder::new();
    let dropped = unenforced.of(purpose);
    let mut adapter = SchemaAdapter {
        root: schema,
        purpose,
        name,
        composed,
        expressions,
        path: Vec::new(),
        dropped,
        has_open_objects: false,
    };
    let adapted = adapter.object(schema, map);
    let has_open_objects = adapter.has_open_objects;
    unenforced.has_open_objects |= has_open_objects;
    adapted
}

/// The schemas in the value of a keyword.
enum SubSchemas<'a> {
    Schema(&'a Value),
    List(&'a [Value]),
    Named(&'a Map<String, Value>),
    Nothing,
}

impl<'a> SubSchemas<'a> {
    fn of(keyword: &str, value: &'a Value) -> Self {
        match (keyword, value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(named)) => {
                SubSchemas::Named(named)
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(list)) => {
                SubSchemas::List(list)
            }
            ("items" | "additionalItems" | "additionalProperties", Value::Object(_)) => {
                SubSchemas::Schema(value)
            }
            _ => SubSchemas::Nothing,
        }
    }

    fn schemas(self) -> Vec<&'a Value> {
        match self {
            SubSchemas::Schema(schema) => vec![schema],
            SubSchemas::List(list) => list.iter().collect(),
            SubSchemas::Named(named) => named.values().collect(),
            SubSchemas::Nothing => Vec::new(),
        }
    }
}

/// Keywords with schemas for the same value as the schema that contains them.
const SAME_VALUE_KEYWORDS: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Whether a schema restricts the properties of an object, directly or through other schemas.
fn shapes(schema: &Value) -> bool {
    ["properties", "patternProperties", "additionalProperties", "$ref", "allOf", "anyOf", "oneOf"]
        .iter()
        .any(|keyword| schema.get(keyword).is_some())
}

/// Whether several parts of this schema together restrict the properties of an object. In this case
/// no part may exclude the properties of another part.
fn is_composition(fields: &Map<String, Value>) -> bool {
    let own = ["properties", "patternProperties", "additionalProperties"];
    let mut parts = usize::from(own.iter().any(|keyword| fields.contains_key(*keyword)));
    parts += usize::from(fields.contains_key("$ref"));
    for keyword in SAME_VALUE_KEYWORDS {
        let Some(Value::Array(list)) = fields.get(keyword) else { continue };
        let shaping = list.iter().filter(|schema| shapes(schema)).count();
        parts += if keyword == "allOf" { shaping } else { shaping.min(1) };
    }
    parts > 1
}

/// Returns the target of a reference by llguidance's rules.
fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    match reference {
        "#" | "#/" => Some(root),
        _ => reference.strip_prefix("#/")?.split('/').try_fold(root, |value, segment| match value {
            Value::Array(list) => list.get(segment.parse::<usize>().ok()?),
            value => value.get(segment),
        }),
    }
}

/// The schemas that are parts of a composition, by their addresses.
#[derive(Default)]
struct ComposedSchemas(HashSet<*const Value>);

impl ComposedSchemas {
    fn of(root: &Value) -> Self {
        let (mut composed, mut left, mut parts) = (ComposedSchemas::default(), vec![root], Vec::new());
        while let Some(schema) = left.pop() {
            let Value::Object(fields) = schema else { continue };
            if is_composition(fields) {
                parts.extend(in_place(root, fields));
            }
            left.extend(fields.iter().flat_map(|(keyword, value)| SubSchemas::of(keyword, value).schemas()));
        }
        while let Some(part) = parts.pop() {
            if let (true, Value::Object(fields)) = (composed.0.insert(part), part) {
                parts.extend(in_place(root, fields));
            }
        }
        composed
    }

    fn has(&self, schema: &Value) -> bool {
        self.0.contains(&std::ptr::from_ref(schema))
    }
}

/// Returns the schemas that describe the same value as this one.
fn in_place<'a>(root: &'a Value, fields: &'a Map<String, Value>) -> Vec<&'a Value> {
    let lists = SAME_VALUE_KEYWORDS.iter().filter_map(|keyword| fields.get(*keyword)?.as_array());
    let reference = fields.get("$ref").and_then(Value::as_str).and_then(|reference| target(root, reference));
    lists.flatten().chain(reference).collect()
}

struct SchemaAdapter<'a> {
    root: &'a Value,
    purpose: SchemaPurpose,
    name: &'a str,
    composed: ComposedSchemas,
    /// Checks whether expressions can be compiled.
    expressions: RegexBuilder,
    /// The keys and indices that lead to the current schema.
    path: Vec<String>,
    dropped: &'a mut BTreeSet<&'static str>,
    /// Whether objects may have keys that are not listed.
    has_open_objects: bool,
}

/// The treatment of a keyword.
enum KeywordAction {
    /// The keyword stays, and the schemas in it are converted.
    Keep,
    /// The keyword has no effect and is removed.
    Drop,
    /// The keyword is removed, and the client is told.
    Unenforced(&'static str),
    /// An answer without the keyword would be wrong.
    Refuse(&'static str, String),
}

impl<'a> SchemaAdapter<'a> {
    fn schema(&mut self, schema: &'a Value) -> Result<Value, GrammarError> {
        match schema {
            Value::Object(fields) => self.object(schema, fields).map(Value::Object),
            other => {
                self.has_open_objects |= *other == Value::Bool(true);
                Ok(other.clone())
            }
        }
    }

    fn object(
        &mut self,
        schema: &'a Value,
        fields: &'a Map<String, Value>,
    ) -> Result<Map<String, Value>, GrammarError> {
        if let Some(lists) = self.unique_lists(fields) {
            return Ok(lists);
        }
        let mut adapted = Map::new();
        let alone = !self.composed.has(schema) && !is_composition(fields);
        for (keyword, value) in fields {
            match self.action(keyword, value, fields, alone) {
                KeywordAction::Keep => {
                    self.path.push(keyword.clone());
                    let value = self.value(keyword, value)?;
                    self.path.pop();
                    adapted.insert(keyword.clone(), value);
                }
                KeywordAction::Drop => {}
                KeywordAction::Unenforced(keyword) => {
                    self.dropped.insert(keyword);
                }
                KeywordAction::Refuse(keyword, _) if self.purpose == SchemaPurpose::Arguments => {
                    self.dropped.insert(keyword);
                }
                KeywordAction::Refuse(keyword, reason) => return Err(self.refusal(keyword, &reason)),
            }
        }
        tighten_format(&mut adapted);
        self.leave_patterns_open(fields, &mut adapted);
        if alone {
            close(fields, &mut adapted);
        }
        self.has_open_objects |= is_open_object(&adapted);
        Ok(adapted)
    }

    /// Returns the value of a keyword with its schemas converted.
    fn value(&mut self, keyword: &str, value: &'a Value) -> Result<Value, GrammarError> {
        match SubSchemas::of(keyword, value) {
            SubSchemas::Nothing => Ok(value.clone()),
            SubSchemas::Schema(schema) => self.schema(schema),
            SubSchemas::List(list) => {
                let mut adapted = Vec::with_capacity(list.len());
                for (index, schema) in list.iter().enumerate() {
                    self.path.push(index.to_string());
                    adapted.push(self.schema(schema)?);
                    self.path.pop();
                }
                Ok(adapted.into())
            }
            SubSchemas::Named(named) => {
                let mut adapted = Map::new();
                for (name, schema) in named {
                    if keyword == "patternProperties"
                        && let Some(reason) = self.unsupported(name)
                    {
                        if self.purpose == SchemaPurpose::Answer {
                            return Err(self.refusal(name, &reason));
                        }
                        self.dropped.insert("patternProperties");
                        continue;
                    }
                    self.path.push(name.clone());
                    adapted.insert(name.clone(), self.schema(schema)?);
                    self.path.pop();
                }
                Ok(adapted.into())
            }
        }
    }

    /// Returns a schema that enforces `uniqueItems`, if the items are among a few values.
    fn unique_lists(&self, fields: &Map<String, Value>) -> Option<Map<String, Value>> {
        fields.get("uniqueItems").filter(|unique| **unique == Value::Bool(true))?;
        let items = fields.get("items")?;
        let items = match items.get("$ref").and_then(Value::as_str) {
            Some(reference) => target(self.root, reference)?,
            None => items,
        };
        unique_items::written_out(fields, items.get("enum")?.as_array()?)
    }

    /// Decides about a keyword. `alone` says that no other schema describes the same object.
    fn action(
        &mut self,
        keyword: &str,
        value: &Value,
        fields: &Map<String, Value>,
        alone: bool,
    ) -> KeywordAction {
        let lenient = self.purpose == SchemaPurpose::Arguments;
        match (keyword, value) {
            // llguidance treats every draft as the newest one that it supports.
            ("$schema" | "$dynamicAnchor" | "$recursiveAnchor", _) => KeywordAction::Drop,
            // References are plain paths by now, which must not be relative to an address.
            ("$id" | "$anchor", Value::String(_)) => KeywordAction::Drop,
            ("uniqueItems", Value::Bool(false)) => KeywordAction::Drop,
            ("uniqueItems", _) => KeywordAction::Unenforced("uniqueItems"),
            ("format", Value::String(format)) if !KNOWN_FORMATS.contains(&format.as_str()) => {
                KeywordAction::Unenforced("format")
            }
            ("propertyNames" | "unevaluatedProperties" | "unevaluatedItems", value) if allows_all(value) => {
                KeywordAction::Drop
            }
            // The object is closed in any case.
            ("unevaluatedProperties", Value::Bool(false)) if alone && fields.contains_key("properties") => {
                KeywordAction::Drop
            }
            ("minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum", value)
                if value.as_f64().is_some_and(|bound| bound.abs() > MAX_EXACT_BOUND) =>
            {
                KeywordAction::Unenforced(if keyword.ends_with("inimum") { "minimum" } else { "maximum" })
            }
            ("maxLength" | "maxItems" | "maxProperties", value) if lenient && exceeds_max_count(value) => {
                KeywordAction::Unenforced(match keyword {
                    "maxLength" => "maxLength",
                    "maxItems" => "maxItems",
                    _ => "maxProperties",
                })
            }
            ("pattern", Value::String(pattern)) => match self.unsupported(pattern) {
                None => KeywordAction::Keep,
                // The format describes the same texts, as in the schemas that pydantic writes.
                Some(_) if has_known_format(fields) => KeywordAction::Unenforced("pattern"),
                Some(reason) => KeywordAction::Refuse("pattern", reason),
            },
            ("multipleOf", value) if !is_short_decimal(value) => {
                KeywordAction::Refuse("multipleOf", "has too many digits".into())
            }
            ("type", value) if !is_type(value) => {
                KeywordAction::Refuse("type", format!("must be among {}", KNOWN_TYPES.join(", ")))
            }
            // This keyword was a boolean in draft 3.
            ("required", value) if lenient && !value.is_array() => KeywordAction::Drop,
            ("$ref", Value::String(reference)) if target(self.root, reference).is_none() => {
                let reason = "leads to no place in the schema, and nothing is fetched".to_owned();
                KeywordAction::Refuse("$ref", reason)
            }
            ("then" | "else", _) if !fields.contains_key("if") => KeywordAction::Drop,
            _ => match UNSUPPORTED_KEYWORDS.iter().find(|unsupported| **unsupported == keyword) {
                Some(unsupported) => KeywordAction::Refuse(unsupported, "is not supported".into()),
                None => KeywordAction::Keep,
            },
        }
    }

    /// Returns the reason why an expression is not supported.
    fn unsupported(&mut self, expression: &str) -> Option<String> {
        let error = catch_panics(|| self.expressions.mk_regex_for_serach(expression)).err()?.to_string();
        if ["(?=", "(?!", "(?<=", "(?<!"].iter().any(|look| expression.contains(look)) {
            return Some("has look-around, which is not supported".into());
        }
        let reason = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
        Some(format!("is no expression that can be followed: {}", shortened(reason)))
    }

    /// Allows additional properties if patterns were removed, because the model may need properties
    /// that match them.
    fn leave_patterns_open(&self, fields: &Map<String, Value>, adapted: &mut Map<String, Value>) {
        let count = |fields: &Map<String, Value>| {
            fields.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len)
        };
        if count(adapted) < count(fields) && adapted.get("additionalProperties") == Some(&Value::Bool(false))
        {
            adapted.remove("additionalProperties");
        }
    }

    fn refusal(&self, keyword: &str, reason: &str) -> GrammarError {
        let path = self.path.iter().map(String::as_str);
        GrammarError::Invalid(format!("`{}` {} {reason}", shortened(keyword), location(self.name, path)))
    }
}

/// Describes the location of a schema for an error by its tool and the path to it. `name` is the
/// name of its rule in the grammar of tools, whose definitions are the tools' own schemas.
pub(super) fn location<'a>(name: &str, path: impl Iterator<Item = &'a str>) -> String {
    let path: Vec<&str> = path.collect();
    let tool = name.strip_prefix("json_").and_then(|rule| rule.split('_').next());
    let (tool, path) = match (tool, path.as_slice()) {
        (Some(tool), path) => (Some(tool), path),
        (None, ["$defs", tool, path @ ..]) if name == "call" => (Some(*tool), path),
        (None, path) => (None, path),
    };
    let pointer: String = path.iter().flat_map(|key| ["/", key]).collect();
    let whose = tool.map(|tool| format!("of tools[{tool}] ")).unwrap_or_default();
    if pointer.is_empty() {
        format!("{whose}at the top")
    } else {
        format!("{whose}at {}", shortened(&pointer))
    }
}

/// Shortens a long text to its end, which is the most specific part.
fn shortened(text: &str) -> String {
    match text.char_indices().rev().nth(MAX_LOCATION_BYTES) {
        Some((at, _)) => format!("…{}", text.get(at..).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Whether a schema for property names or for remaining values excludes nothing.
fn allows_all(schema: &Value) -> bool {
    match schema {
        Value::Bool(all) => *all,
        Value::Object(fields) => fields
            .iter()
            .all(|(keyword, value)| keyword == "type" && value == "string" || keyword == "description"),
        _ => false,
    }
}

/// Whether a schema describes objects with keys that it does not list. The parts of a composition
/// count by themselves.
fn is_open_object(adapted: &Map<String, Value>) -> bool {
    let has = |keyword: &&str| adapted.contains_key(*keyword);
    let may_be_object = match adapted.get("type") {
        Some(Value::String(kind)) => kind == "object",
        Some(Value::Array(kinds)) => kinds.iter().any(|kind| kind == "object"),
        _ => !["enum", "const", "$ref", "anyOf", "oneOf", "allOf"].iter().any(has),
    };
    let is_closed = adapted.get("additionalProperties") == Some(&Value::Bool(false));
    may_be_object && (!is_closed || adapted.contains_key("patternProperties"))
}

/// Whether a schema has a format that a grammar enforces.
fn has_known_format(fields: &Map<String, Value>) -> bool {
    let format = fields.get("format").and_then(Value::as_str);
    format.is_some_and(|format| format != "unknown" && KNOWN_FORMATS.contains(&format))
}

/// Replaces a format by a stricter expression, if there is one.
fn tighten_format(adapted: &mut Map<String, Value>) {
    let format = adapted.get("format").and_then(Value::as_str);
    let Some(expression) = format.and_then(formats::expression) else { return };
    adapted.remove("format");
    if !adapted.contains_key("pattern") {
        adapted.insert("pattern".into(), expression.into());
        return;
    }
    let all = adapted.entry("allOf").or_insert_with(|| Value::Array(Vec::new()));
    if let Value::Array(all) = all {
        all.push(json!({"pattern": expression}));
    }
}

fn is_type(value: &Value) -> bool {
    let known = |value: &Value| value.as_str().is_some_and(|name| KNOWN_TYPES.contains(&name));
    match value {
        Value::Array(list) => list.iter().all(known),
        value => known(value),
    }
}

/// Whether llguidance supports multiples of a number: a fraction of at most nine digits and a
/// mantissa of at most 32 bits.
fn is_short_decimal(value: &Value) -> bool {
    let Some(mut number) = value.as_f64().map(f64::abs) else { return true };
    // llguidance shifts the decimal point in the same way.
    for _ in 0..9 {
        if number.fract() != 0.0 {
            number *= 10.0;
        }
    }
    number.fract() == 0.0 && number <= f64::from(u32::MAX)
}

/// Whether a count exceeds the maximum of a grammar.
pub(super) fn exceeds_max_count(value: &Value) -> bool {
    value.as_f64().is_some_and(|count| count > f64::from(MAX_REPETITIONS))
}

/// Keywords that determine which other properties are allowed, or that add properties.
const OPENING_KEYWORDS: [&str; 7] = [
    "additionalProperties",
    "patternProperties",
    "if",
    "dependencies",
    "dependentSchemas",
    "$dynamicRef",
    "$recursiveRef",
];

/// Closes an object with listed properties.
fn close(fields: &Map<String, Value>, adapted: &mut Map<String, Value>) {
    let open = OPENING_KEYWORDS.iter().any(|keyword| fields.contains_key(*keyword));
    if open || fields.get("unevaluatedProperties").is_some_and(|more| *more != Value::Bool(false)) {
        return;
    }
    let required: Vec<String> = match adapted.get("required") {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    let Some(Value::Object(properties)) = adapted.get_mut("properties") else { return };
    for name in required {
        // A required name that is not listed is a property without restrictions.
        properties.entry(name).or_insert(Value::Bool(true));
    }
    adapted.insert("additionalProperties".into(), Value::Bool(false));
}

#[cfg(test)]
mod tests;
