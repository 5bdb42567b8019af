//! From a client's JSON schema to one that llguidance compiles.
//!
//! Clients write schemas for validators, which check a complete value. A grammar can do less and is stricter where it can:
//!
//! - An object whose `properties` are listed has no others, unless `additionalProperties` or a composition (`allOf` …) says
//!   so. A validator would allow any, but a model that is asked for three properties should not invent a fourth.
//! - Keywords that a grammar cannot follow are refused if the answer would be wrong without them. In the schemas of tools
//!   they are left out instead: the model has been shown them, and clients check arguments anyway.
//! - What is left out is told to the client, see [`Unenforced`].
//!
//! All work is linear in the schema's size, which [`bounds`](super::bounds) limits together with its depth.

use std::collections::{BTreeSet, HashSet};

use llguidance::derivre::RegexBuilder;
use serde_json::{Map, Value};

use super::GrammarError;
use super::expression::MOST_REPEATED;
use super::parser::caught;

/// What a schema describes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// The answer, whose form the client relies on.
    Answer,
    /// The arguments of tools.
    Arguments,
}

/// Keywords of a grammar's schemas that do not bind what is generated.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Unenforced {
    /// Of the schema of the answer.
    pub answer: BTreeSet<&'static str>,
    /// Of the schemas of tools.
    pub tools: BTreeSet<&'static str>,
}

impl Unenforced {
    /// The keywords behind the fields of the request that they are in; `field` holds the schema of the answer.
    pub fn fields(&self, field: &str) -> Vec<String> {
        let answer = self.answer.iter().map(|keyword| format!("{field}.{keyword}"));
        answer.chain(self.tools.iter().map(|keyword| format!("tools.{keyword}"))).collect()
    }

    fn of(&mut self, purpose: Purpose) -> &mut BTreeSet<&'static str> {
        match purpose {
            Purpose::Answer => &mut self.answer,
            Purpose::Arguments => &mut self.tools,
        }
    }
}

/// Keywords that no grammar follows and that change what is valid.
const UNSUPPORTED: [&str; 15] = [
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

/// Formats that llguidance knows.
const FORMATS: [&str; 11] =
    ["date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "unknown"];

const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];

/// Numbers beyond this are not exact in a grammar. The largest integers that JavaScript writes as bounds are below it.
const LARGEST_BOUND: f64 = 9.1e15;
/// Bytes of a place that are shown in an error.
const LONGEST_PLACE: usize = 160;

/// Writes a schema as llguidance takes it. `name` is the rule that it becomes in the grammar of tools.
///
/// # Errors
/// [`GrammarError::Invalid`] names a keyword that cannot be followed, and its place.
pub(super) fn adapt(
    schema: &Value,
    purpose: Purpose,
    name: &str,
    unenforced: &mut Unenforced,
) -> Result<Map<String, Value>, GrammarError> {
    let map = match schema {
        // True allows everything; and only an object can carry options.
        Value::Bool(true) => return Ok(Map::new()),
        Value::Object(map) => map,
        _ => return Err(GrammarError::Invalid("a JSON schema is an object".into())),
    };
    let composed = Composed::of(schema);
    let expressions = RegexBuilder::new();
    let dropped = unenforced.of(purpose);
    let mut adapter =
        Adapter { root: schema, purpose, name, composed, expressions, path: Vec::new(), dropped };
    adapter.object(schema, map)
}

/// How the value of a keyword holds schemas.
enum Holds<'a> {
    Schema(&'a Value),
    List(&'a [Value]),
    Named(&'a Map<String, Value>),
    Nothing,
}

impl<'a> Holds<'a> {
    fn of(keyword: &str, value: &'a Value) -> Self {
        match (keyword, value) {
            ("properties" | "patternProperties" | "$defs" | "definitions", Value::Object(named)) => {
                Holds::Named(named)
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(list)) => Holds::List(list),
            ("items" | "additionalItems" | "additionalProperties", Value::Object(_)) => Holds::Schema(value),
            _ => Holds::Nothing,
        }
    }

    fn schemas(self) -> Vec<&'a Value> {
        match self {
            Holds::Schema(schema) => vec![schema],
            Holds::List(list) => list.iter().collect(),
            Holds::Named(named) => named.values().collect(),
            Holds::Nothing => Vec::new(),
        }
    }
}

/// Keywords whose schemas describe the same value as the schema that they stand in.
const IN_PLACE: [&str; 3] = ["allOf", "anyOf", "oneOf"];

/// Whether a schema says which properties an object has, by itself or through others.
fn shapes(schema: &Value) -> bool {
    ["properties", "patternProperties", "additionalProperties", "$ref", "allOf", "anyOf", "oneOf"]
        .iter()
        .any(|keyword| schema.get(keyword).is_some())
}

/// Whether several parts of this schema say together which properties an object has. None of them may exclude the
/// properties of another.
fn is_composition(fields: &Map<String, Value>) -> bool {
    let own = ["properties", "patternProperties", "additionalProperties"];
    let mut parts = usize::from(own.iter().any(|keyword| fields.contains_key(*keyword)));
    parts += usize::from(fields.contains_key("$ref"));
    for keyword in IN_PLACE {
        let Some(Value::Array(list)) = fields.get(keyword) else { continue };
        let shaping = list.iter().filter(|schema| shapes(schema)).count();
        parts += if keyword == "allOf" { shaping } else { shaping.min(1) };
    }
    parts > 1
}

/// Where a reference leads, as llguidance follows it.
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
struct Composed(HashSet<*const Value>);

impl Composed {
    fn of(root: &Value) -> Self {
        let (mut composed, mut left, mut parts) = (Composed::default(), vec![root], Vec::new());
        while let Some(schema) = left.pop() {
            let Value::Object(fields) = schema else { continue };
            if is_composition(fields) {
                parts.extend(in_place(root, fields));
            }
            left.extend(fields.iter().flat_map(|(keyword, value)| Holds::of(keyword, value).schemas()));
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

/// The schemas that describe the same value as this one.
fn in_place<'a>(root: &'a Value, fields: &'a Map<String, Value>) -> Vec<&'a Value> {
    let lists = IN_PLACE.iter().filter_map(|keyword| fields.get(*keyword)?.as_array());
    let reference = fields.get("$ref").and_then(Value::as_str).and_then(|reference| target(root, reference));
    lists.flatten().chain(reference).collect()
}

struct Adapter<'a> {
    root: &'a Value,
    purpose: Purpose,
    name: &'a str,
    composed: Composed,
    /// Tries expressions.
    expressions: RegexBuilder,
    /// Keys and indices that lead to the schema.
    path: Vec<String>,
    dropped: &'a mut BTreeSet<&'static str>,
}

/// What becomes of a keyword.
enum Fate {
    /// It stays as it is, with its schemas adapted.
    Keep,
    /// It binds nothing, and nobody need know.
    Drop,
    /// It is left out, and the client is told.
    Unenforced(&'static str),
    /// An answer without it would be wrong.
    Refuse(&'static str, String),
}

impl<'a> Adapter<'a> {
    fn schema(&mut self, schema: &'a Value) -> Result<Value, GrammarError> {
        match schema {
            Value::Object(fields) => self.object(schema, fields).map(Value::Object),
            other => Ok(other.clone()),
        }
    }

    fn object(
        &mut self,
        schema: &'a Value,
        fields: &'a Map<String, Value>,
    ) -> Result<Map<String, Value>, GrammarError> {
        let mut adapted = Map::new();
        let alone = !self.composed.has(schema) && !is_composition(fields);
        for (keyword, value) in fields {
            match self.fate(keyword, value, fields, alone) {
                Fate::Keep => {
                    self.path.push(keyword.clone());
                    let value = self.value(keyword, value)?;
                    self.path.pop();
                    adapted.insert(keyword.clone(), value);
                }
                Fate::Drop => {}
                Fate::Unenforced(keyword) => {
                    self.dropped.insert(keyword);
                }
                Fate::Refuse(keyword, _) if self.purpose == Purpose::Arguments => {
                    self.dropped.insert(keyword);
                }
                Fate::Refuse(keyword, why) => return Err(self.refusal(keyword, &why)),
            }
        }
        self.leave_patterns_open(fields, &mut adapted);
        if alone {
            close(fields, &mut adapted);
        }
        Ok(adapted)
    }

    /// The value of a keyword with the schemas in it adapted.
    fn value(&mut self, keyword: &str, value: &'a Value) -> Result<Value, GrammarError> {
        match Holds::of(keyword, value) {
            Holds::Nothing => Ok(value.clone()),
            Holds::Schema(schema) => self.schema(schema),
            Holds::List(list) => {
                let mut adapted = Vec::with_capacity(list.len());
                for (index, schema) in list.iter().enumerate() {
                    self.path.push(index.to_string());
                    adapted.push(self.schema(schema)?);
                    self.path.pop();
                }
                Ok(adapted.into())
            }
            Holds::Named(named) => {
                let mut adapted = Map::new();
                for (name, schema) in named {
                    if keyword == "patternProperties"
                        && let Some(why) = self.unsupported(name)
                    {
                        if self.purpose == Purpose::Answer {
                            return Err(self.refusal(name, &why));
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

    /// `alone`: no other schema describes the same object.
    fn fate(&mut self, keyword: &str, value: &Value, fields: &Map<String, Value>, alone: bool) -> Fate {
        let lenient = self.purpose == Purpose::Arguments;
        match (keyword, value) {
            // llguidance takes every draft as the newest one that it knows.
            ("$schema" | "$dynamicAnchor" | "$recursiveAnchor", _) => Fate::Drop,
            ("uniqueItems", Value::Bool(false)) => Fate::Drop,
            ("uniqueItems", _) => Fate::Unenforced("uniqueItems"),
            ("format", Value::String(format)) if !FORMATS.contains(&format.as_str()) => {
                Fate::Unenforced("format")
            }
            ("propertyNames" | "unevaluatedProperties" | "unevaluatedItems", value) if allows_all(value) => {
                Fate::Drop
            }
            // The object is closed in any case.
            ("unevaluatedProperties", Value::Bool(false)) if alone && fields.contains_key("properties") => {
                Fate::Drop
            }
            ("minimum" | "maximum" | "exclusiveMinimum" | "exclusiveMaximum", value)
                if value.as_f64().is_some_and(|bound| bound.abs() > LARGEST_BOUND) =>
            {
                Fate::Unenforced(if keyword.ends_with("inimum") { "minimum" } else { "maximum" })
            }
            ("maxLength" | "maxItems" | "maxProperties", value) if lenient && beyond(value) => {
                Fate::Unenforced(match keyword {
                    "maxLength" => "maxLength",
                    "maxItems" => "maxItems",
                    _ => "maxProperties",
                })
            }
            ("pattern", Value::String(pattern)) => {
                self.unsupported(pattern).map_or(Fate::Keep, |why| Fate::Refuse("pattern", why))
            }
            ("multipleOf", value) if !is_short_decimal(value) => {
                Fate::Refuse("multipleOf", "has too many digits".into())
            }
            ("type", value) if !is_type(value) => {
                Fate::Refuse("type", format!("must be among {}", TYPES.join(", ")))
            }
            // Draft 3 had a boolean here.
            ("required", value) if lenient && !value.is_array() => Fate::Drop,
            ("$ref", Value::String(reference)) if target(self.root, reference).is_none() => {
                let why = "leads to no place in the schema, and nothing is fetched".to_owned();
                Fate::Refuse("$ref", why)
            }
            ("then" | "else", _) if !fields.contains_key("if") => Fate::Drop,
            _ => match UNSUPPORTED.iter().find(|unsupported| **unsupported == keyword) {
                Some(unsupported) => Fate::Refuse(unsupported, "is not supported".into()),
                None => Fate::Keep,
            },
        }
    }

    /// Why an expression cannot be followed.
    fn unsupported(&mut self, expression: &str) -> Option<String> {
        let error = caught(|| self.expressions.mk_regex_for_serach(expression)).err()?.to_string();
        if ["(?=", "(?!", "(?<=", "(?<!"].iter().any(|look| expression.contains(look)) {
            return Some("has look-around, which is not supported".into());
        }
        let why = error.lines().last().unwrap_or_default().trim_start_matches("error: ");
        Some(format!("is no expression that can be followed: {}", shortened(why)))
    }

    /// Patterns that were left out may be those that the model needs.
    fn leave_patterns_open(&self, fields: &Map<String, Value>, adapted: &mut Map<String, Value>) {
        let count = |fields: &Map<String, Value>| {
            fields.get("patternProperties").and_then(Value::as_object).map_or(0, Map::len)
        };
        if count(adapted) < count(fields) && adapted.get("additionalProperties") == Some(&Value::Bool(false))
        {
            adapted.remove("additionalProperties");
        }
    }

    fn refusal(&self, keyword: &str, why: &str) -> GrammarError {
        let path = self.path.iter().map(String::as_str);
        GrammarError::Invalid(format!("`{}` {} {why}", shortened(keyword), place(self.name, path)))
    }
}

/// Where a schema stands, for an error: the properties on the way to it. `name` is its rule in the grammar of tools, whose
/// definitions are the tools' own schemas.
pub(super) fn place<'a>(name: &str, path: impl Iterator<Item = &'a str>) -> String {
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

/// The end of a long text, which says most.
fn shortened(text: &str) -> String {
    match text.char_indices().rev().nth(LONGEST_PLACE) {
        Some((at, _)) => format!("…{}", text.get(at..).unwrap_or_default()),
        None => text.to_owned(),
    }
}

/// Whether a schema for names or for what is left over excludes nothing.
fn allows_all(schema: &Value) -> bool {
    match schema {
        Value::Bool(all) => *all,
        Value::Object(fields) => fields
            .iter()
            .all(|(keyword, value)| keyword == "type" && value == "string" || keyword == "description"),
        _ => false,
    }
}

fn is_type(value: &Value) -> bool {
    let known = |value: &Value| value.as_str().is_some_and(|name| TYPES.contains(&name));
    match value {
        Value::Array(list) => list.iter().all(known),
        value => known(value),
    }
}

/// Whether a number is one that llguidance can take multiples of: at most 32 bits behind at most nine digits of a fraction.
fn is_short_decimal(value: &Value) -> bool {
    let Some(mut number) = value.as_f64().map(f64::abs) else { return true };
    // llguidance shifts the point in the same way.
    for _ in 0..9 {
        if number.fract() != 0.0 {
            number *= 10.0;
        }
    }
    number.fract() == 0.0 && number <= f64::from(u32::MAX)
}

/// Whether a count is more than a grammar may have.
pub(super) fn beyond(value: &Value) -> bool {
    value.as_f64().is_some_and(|count| count > MOST_REPEATED as f64)
}

/// Keywords that say themselves which other properties there may be, or bring properties of their own.
const OPENING: [&str; 7] = [
    "additionalProperties",
    "patternProperties",
    "if",
    "dependencies",
    "dependentSchemas",
    "$dynamicRef",
    "$recursiveRef",
];

/// Closes an object whose properties are listed.
fn close(fields: &Map<String, Value>, adapted: &mut Map<String, Value>) {
    let open = OPENING.iter().any(|keyword| fields.contains_key(*keyword));
    if open || fields.get("unevaluatedProperties").is_some_and(|more| *more != Value::Bool(false)) {
        return;
    }
    let required: Vec<String> = match adapted.get("required") {
        Some(Value::Array(names)) => names.iter().filter_map(Value::as_str).map(str::to_owned).collect(),
        _ => Vec::new(),
    };
    let Some(Value::Object(properties)) = adapted.get_mut("properties") else { return };
    for name in required {
        // It must be there, so it is a property, of which nothing is known.
        properties.entry(name).or_insert(Value::Bool(true));
    }
    adapted.insert("additionalProperties".into(), Value::Bool(false));
}

#[cfg(test)]
mod tests;
