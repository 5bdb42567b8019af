//! The rules for calls whose arguments are single values: in tags, and as named arguments of
//! Python.

use std::collections::HashSet;

use serde_json::Value;

use super::terms::{definitions, quoted, relocate};
use crate::grammar::{MarkTokens, escape};
use crate::tools::allowed::{AllowedTools, Tool};
use crate::tools::tagged_call::{self, TagSyntax};

/// The number of bytes of definitions that are copied into the schemas of arguments. A grammar with
/// more is refused for its size anyway.
const MAX_COPIED: usize = 1 << 20;

/// The schemas of the arguments, each of which is a rule.
#[derive(Default)]
pub(in crate::tools) struct ValueSchemas {
    pub(in crate::tools) schemas: Vec<(String, Value)>,
    copied: usize,
}

/// A tool whose arguments become rules.
pub(in crate::tools) struct IndexedTool<'a> {
    index: usize,
    pub(in crate::tools) tool: &'a Tool,
    required: HashSet<&'a str>,
    /// The tool's definitions, to which the schemas of its arguments may refer.
    shared: Option<Value>,
    /// The size of the definitions in bytes.
    size: usize,
}

impl<'a> IndexedTool<'a> {
    pub(in crate::tools) fn new(index: usize, tool: &'a Tool) -> Self {
        let required = tool.parameters["required"].as_array().into_iter().flatten();
        let shared = tool.parameters.get("$defs").map(|_| definitions(std::iter::once((index, tool))).into());
        let size = shared.as_ref().map_or(0, |_: &Value| tool.parameters.to_string().len());
        IndexedTool { index, tool, required: required.filter_map(Value::as_str).collect(), shared, size }
    }

    pub(in crate::tools) fn is_required(&self, name: &str) -> bool {
        self.required.contains(name)
    }

    pub(in crate::tools) fn arguments(&self) -> impl Iterator<Item = (&'a String, &'a Value)> {
        self.tool.parameters["properties"].as_object().into_iter().flatten()
    }
}

impl ValueSchemas {
    /// Adds the schema of an argument and returns the name of its rule.
    pub(in crate::tools) fn rule(&mut self, tool: &IndexedTool, schema: &Value) -> String {
        let index = tool.index;
        let rule = format!("json_{index}_{}", self.schemas.len());
        let mut schema = schema.clone();
        relocate(&mut schema, &format!("#/$defs/{index}"));
        if let (Value::Object(schema), Some(shared)) = (&mut schema, &tool.shared)
            && self.copied < MAX_COPIED
        {
            self.copied += tool.size;
            schema.insert("$defs".into(), shared.clone());
        }
        self.schemas.push((rule.clone(), schema));
        rule
    }
}

/// Returns the rules for calls in tags. The arguments have the order of their schema. Strings are
/// written as they are up to the closing tag, with any special tokens but `marks` and the ends of
/// answers. Other values are JSON.
pub(in crate::tools) fn tagged_calls(
    syntax: TagSyntax,
    tools: &AllowedTools,
    tokens: MarkTokens<'_>,
    marks: &[&str],
) -> (String, Vec<(String, Value)>) {
    let mut writer = TagWriter { syntax, schemas: ValueSchemas::default(), tokens };
    let calls: Vec<String> = tools
        .callable()
        .enumerate()
        .map(|(index, tool)| writer.call(&IndexedTool::new(index, tool)))
        .collect();
    let TagSyntax { parameter, key_end, end_of_value, .. } = syntax;
    let pad = if syntax.is_padded { "\\n" } else { "" };
    let kind = syntax.types.mark().map_or_else(String::new, |mark| format!("{}(true|false)", escape(mark)));
    let others = tokens.others_within(marks);
    let text = match syntax.verbatim {
        None => text_rule("text", tokens.special(end_of_value), end_of_value, pad, others),
        // A value without the characters of tags needs nothing around it.
        Some((open, close)) => {
            let verbatim = text_rule("verbatim", None, &format!("{close}{end_of_value}"), pad, others);
            let plain = format!("/[^<]*{}/", escape(end_of_value));
            format!("text: {plain} | {} verbatim\n{verbatim}", quoted(open))
        }
    };
    let any = match key_end {
        "" => format!("/{}[A-Za-z0-9_.-]+{kind}{}{pad}/", escape(parameter.0), escape(parameter.1)),
        _ => {
            let [before, end, after] = [parameter.0, key_end, parameter.1].map(|mark| tokens.mark(mark));
            format!("{before} KEY {end} GAP? {after}\nKEY: /[A-Za-z0-9_.-]+/")
        }
    };
    let names: Vec<String> = (0..calls.len()).map(|index| format!("call_{index}")).collect();
    let calls: String = names.iter().zip(calls).map(|(name, call)| format!("{name}: {call}\n")).collect();
    let rules = format!("call: {}\n{calls}{text}any: {any}\nGAP: /[ \\n]{{1,2}}/\n", names.join(" | "));
    (rules, writer.schemas.schemas)
}

/// Returns the rule for any text up to `end`, which may be a special token. `others` are the
/// special tokens that the text may have.
pub(super) fn text_rule(
    name: &str,
    special_end: Option<u32>,
    end: &str,
    pad: &str,
    others: Option<String>,
) -> String {
    // Ordinary text never contains a special token.
    match (special_end, others) {
        (Some(id), None) => format!("{name}: FREE? <[{id}]>\nFREE: /(?s:.+)/\n"),
        (Some(id), Some(others)) => format!("{name}: (FREE | {others})* <[{id}]>\nFREE: /(?s:.+)/\n"),
        (None, None) => format!("{name}[lazy]: /(?s:.*){pad}{}{pad}/\n", escape(end)),
        (None, Some(others)) => {
            let end = escape(end);
            format!(
                "{name}: (FREE? {others})* {name}_last\nFREE: /(?s:.+)/ & ~/(?s:.*){end}(?s:.*)/\n\
                 {name}_last[lazy]: /(?s:.*){pad}{end}{pad}/\n"
            )
        }
    }
}

/// Writes the rules of calls in tags.
struct TagWriter<'a> {
    syntax: TagSyntax,
    schemas: ValueSchemas,
    tokens: MarkTokens<'a>,
}

impl TagWriter<'_> {
    /// Returns the rule for a call of one tool.
    fn call(&mut self, tool: &IndexedTool) -> String {
        let mut arguments = String::new();
        for (name, schema) in tool.arguments() {
            let is_required = tool.is_required(name);
            let argument = self.argument(tool, name, schema);
            arguments += &format!(" ({argument}){}", if is_required { "" } else { "?" });
        }
        if arguments.is_empty() && tool.tool.parameters["additionalProperties"] != false {
            arguments = format!(" (any text{})*", self.gap());
        }
        let (before, after) = self.syntax.function;
        let head = format!("{before}{}", tool.tool.name);
        let head = match (self.syntax.is_padded, after) {
            (_, after) if self.tokens.special(before).or(self.tokens.special(after)).is_some() => {
                let [before, after] = [before, after].map(|mark| self.tokens.mark(mark));
                format!("{before} {} {after} GAP?", quoted(&tool.tool.name))
            }
            (true, after) => quoted(&format!("{head}{after}\n")),
            (false, "\n") => format!("{} GAP?", quoted(&head)),
            (false, after) => format!("{} GAP?", quoted(&format!("{head}{after}"))),
        };
        format!("{head}{arguments} {}", self.tokens.mark(self.syntax.end))
    }

    /// Returns the rule for the white space after a value, if it is no part of the closing tag.
    fn gap(&self) -> &'static str {
        if self.syntax.is_padded { "" } else { " GAP?" }
    }

    fn argument(&mut self, tool: &IndexedTool, name: &str, schema: &Value) -> String {
        let TagSyntax { parameter, key_end, types, end_of_value, is_padded, .. } = self.syntax;
        let pad = if is_padded { "\n" } else { "" };
        let end = match self.tokens.special(end_of_value) {
            Some(id) => format!("<[{id}]>"),
            None => quoted(&format!("{end_of_value}{pad}")),
        };
        let is_text = tagged_call::is_text(schema);
        let value = match schema["enum"].as_array().filter(|_| is_text) {
            Some(values) => {
                let text = |value: &Value| quoted(&format!("{}{pad}", value.as_str().unwrap_or_default()));
                format!("({}) {end}", values.iter().map(text).collect::<Vec<_>>().join(" | "))
            }
            None if is_text => "text".to_owned(),
            None if pad.is_empty() => format!("{} {end}", self.schemas.rule(tool, schema)),
            None => format!("{} {} {end}", self.schemas.rule(tool, schema), quoted(pad)),
        };
        let kind = types.mark().map_or_else(String::new, |mark| format!("{mark}{is_text}"));
        let tag = match key_end {
            "" => quoted(&format!("{}{name}{kind}{}{pad}", parameter.0, parameter.1)),
            _ => {
                let [before, end, after] =
                    [parameter.0, key_end, parameter.1].map(|mark| self.tokens.mark(mark));
                format!("{before} {} {end} GAP? {after}", quoted(name))
            }
        };
        format!("{tag} {value}{}", self.gap())
    }
}

/// Returns the rules for calls in Python's syntax.
pub(super) fn python_calls(tools: &AllowedTools) -> (String, Vec<(String, Value)>) {
    let (rests, schemas) = python_rests(tools);
    let call = |(index, tool): (usize, &Tool)| format!("{} rest_{index}", quoted(&format!("{}(", tool.name)));
    let calls: Vec<String> = tools.callable().enumerate().map(call).collect();
    (format!("call: {}\n{rests}", calls.join(" | ")), schemas)
}

/// Returns the rules for the arguments of calls in Python's syntax, up to the closing parenthesis:
/// first those that are required, and then others. Values are JSON, which Python reads in the same
/// way but for the names of the truth values. Strings may also be in single quotes, as Python and
/// chat templates write them.
pub(super) fn python_rests(tools: &AllowedTools) -> (String, Vec<(String, Value)>) {
    let (mut rules, mut schemas) = (String::new(), ValueSchemas::default());
    for (index, tool) in tools.callable().enumerate() {
        let tool = IndexedTool::new(index, tool);
        let (mut required, mut others) = (Vec::new(), Vec::new());
        for (name, schema) in tool.arguments() {
            let value = match schema["type"] == "boolean" {
                true => "(\"True\" | \"False\")".to_owned(),
                false => {
                    let json = schemas.rule(&tool, schema);
                    single_quoted(schema).map_or_else(|| json.clone(), |text| format!("({json} | {text})"))
                }
            };
            let argument = format!("{} {value}", quoted(&format!("{name}=")));
            let is_required = tool.is_required(name);
            if is_required { required.push(argument) } else { others.push(argument) }
        }
        let arguments = match (required.is_empty(), others.is_empty()) {
            (true, true) => String::new(),
            (true, false) => {
                let any = others.join(" | ");
                format!("(({any}) (COMMA ({any}))*)?")
            }
            (false, _) => {
                let others: String = others.iter().map(|argument| format!(" (COMMA {argument})?")).collect();
                format!("{}{others}", required.join(" COMMA "))
            }
        };
        rules += &format!("rest_{index}: {arguments} \")\"\n");
    }
    (rules + "COMMA: /, ?/\nQUOTED: /'([^'\\\\\\n]|\\\\['\"\\\\nrt])*'/\n", schemas.schemas)
}

/// Returns the rule for a string of Python in single quotes, if the schema allows any string or has
/// a list of strings.
fn single_quoted(schema: &Value) -> Option<String> {
    const OTHER_KEYWORDS: [&str; 5] = ["const", "pattern", "format", "minLength", "maxLength"];
    if schema["type"] != "string" || OTHER_KEYWORDS.iter().any(|keyword| schema.get(keyword).is_some()) {
        return None;
    }
    let Some(values) = schema["enum"].as_array() else { return Some("QUOTED".to_owned()) };
    let is_plain = |text: &&str| !text.contains(['\'', '\\', '\n']);
    let texts = values.iter().filter_map(Value::as_str).filter(is_plain);
    let texts: Vec<String> = texts.map(|text| quoted(&format!("'{text}'"))).collect();
    (!texts.is_empty()).then(|| texts.join(" | "))
}
