//! Random calls that published chat templates write are read back, whole and in random pieces. The
//! templates have other authors, so they are test data outside of the repository.

use std::collections::BTreeSet;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

use super::published_tests::{FORMATS, WITHOUT_CALLS};
use super::spoken_tests::{Model, Said};

/// The formats whose calls are found at the beginning of an answer only.
const WITHOUT_MARKS: [&str; 4] = ["llama3_json", "muse", "kimi_k3", "functionary"];

/// The number of random answers for each template.
const ANSWERS: u64 = 60;

/// A tool with an argument of each type, and one without arguments.
fn tools() -> Vec<Value> {
    let types = [
        ("text", "string"),
        ("other", "string"),
        ("number", "number"),
        ("count", "integer"),
        ("flag", "boolean"),
        ("list", "array"),
        ("fields", "object"),
    ];
    let properties: Map<String, Value> = types
        .iter()
        .map(|(name, kind)| ((*name).to_owned(), json!({"type": kind, "description": "x"})))
        .collect();
    [("record", Value::Object(properties)), ("ping", json!({}))]
        .map(|(name, properties)| {
            let parameters = json!({"type": "object", "properties": properties, "required": []});
            let function = json!({"name": name, "description": "Works.", "parameters": parameters});
            json!({"type": "function", "function": function})
        })
        .to_vec()
}

fn text(random: &mut StdRng) -> String {
    const PIECES: [&str; 31] = [
        "a", "word ", " ", "\n", "\t", "\"", "'", "\\", "{", "}", "[", "]", ",", ":", "<", ">", "&", "</",
        "Köln", "日本", "😀", "1", "true", "null", ">>>", "=", "(", ")", "`", "\\n", "&quot;",
    ];
    // White space around a text is lost in formats that put values on lines of their own.
    let pieces = random.random_range(0..8);
    let text: String = (0..pieces).map(|_| *PIECES.choose(random).unwrap()).collect();
    if text.is_empty() { text } else { format!("a{text}z") }
}

fn value(random: &mut StdRng, kind: &str, depth: usize) -> Value {
    const KINDS: [&str; 6] = ["string", "number", "integer", "boolean", "array", "object"];
    let count = random.random_range(0..=2);
    let inner = |random: &mut StdRng| {
        let kind = if depth == 0 { KINDS[random.random_range(0..4)] } else { *KINDS.choose(random).unwrap() };
        value(random, kind, depth.saturating_sub(1))
    };
    match kind {
        "string" => text(random).into(),
        "number" => {
            [json!(1.5), json!(-2), json!(0.25), json!(1e20), json!(-1.25e-7)].choose(random).unwrap().clone()
        }
        "integer" => [0, 7, -12, 1_234_567_890_123_i64].choose(random).copied().into(),
        "boolean" => random.random::<bool>().into(),
        "array" => (0..count).map(|_| inner(random)).collect(),
        _ => (0..count).map(|index| (format!("k{index} é"), inner(random))).collect::<Map<_, _>>().into(),
    }
}

fn call(random: &mut StdRng, tools: &[Value]) -> (String, Value) {
    if random.random_ratio(1, 4) {
        return ("ping".to_owned(), json!({}));
    }
    let properties = tools[0]["function"]["parameters"]["properties"].as_object().unwrap();
    let mut arguments = Map::new();
    for (name, schema) in properties {
        if random.random::<bool>() {
            arguments.insert(name.clone(), value(random, schema["type"].as_str().unwrap(), 2));
        }
    }
    ("record".to_owned(), arguments.into())
}

/// Replaces numbers by floating point numbers, since `1.0` and `1` are the same number.
fn normal(value: &Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.iter().map(normal).collect(),
        Value::Object(fields) => {
            fields.iter().map(|(name, value)| (name.clone(), normal(value))).collect::<Map<_, _>>().into()
        }
        other => other.clone(),
    }
}

fn normal_answer(said: &Said) -> (&str, &str, Vec<(&str, Value)>) {
    let calls = said.calls.iter().map(|(name, arguments)| (name.as_str(), normal(arguments)));
    (&said.reasoning, &said.content, calls.collect())
}

/// Whether an argument is a text with quotes or escapes.
fn has_quotes(arguments: &Value) -> bool {
    arguments.as_object().unwrap().values().filter_map(Value::as_str).any(|text| text.contains(['\'', '\\']))
}

/// Divides a text at random places.
fn pieces<'a>(random: &mut StdRng, text: &'a str) -> Vec<&'a str> {
    let mut cuts: BTreeSet<usize> = [0, text.len()].into();
    for _ in 0..random.random_range(0..20) {
        let at = random.random_range(0..=text.len());
        cuts.extend(text.is_char_boundary(at).then_some(at));
    }
    let cuts: Vec<usize> = cuts.into_iter().collect();
    cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect()
}

#[test]
#[ignore = "needs the published templates of MILLRACE_TEST_DATA"]
fn random_calls_are_read_back() {
    let (mut wrong, mut unread, mut checked) = (Vec::new(), Vec::new(), 0);
    for (name, calls_format, _) in FORMATS {
        let mut model = Model::load(name, true);
        model.tools = tools();
        let before = checked;
        let has_marks = !WITHOUT_CALLS.contains(&name) && !WITHOUT_MARKS.contains(&calls_format);
        for seed in 0..ANSWERS {
            let mut random = StdRng::seed_from_u64(seed);
            let calls = (0..random.random_range(1..=3)).map(|_| call(&mut random, &model.tools)).collect();
            let word = |random: &mut StdRng, word: &str| {
                if random.random() { word.to_owned() } else { String::new() }
            };
            let (reasoning, content) =
                (word(&mut random, "millracereasoning"), word(&mut random, "millraceanswer"));
            let mut said = Said { reasoning, content, calls };
            // This template writes the first call only.
            if calls_format == "gigachat" {
                said.calls.truncate(1);
            }
            // This template puts texts in quotes, and does not escape quotes in them.
            if calls_format == "lfm2" && said.calls.iter().any(|(_, arguments)| has_quotes(arguments)) {
                continue;
            }
            let written = model.written(&said).map(|(prompt, answer, _)| (Some(prompt), answer));
            let after =
                || has_marks.then(|| model.after_question(&said)).flatten().map(|answer| (None, answer));
            let Some((prompt, answer)) = written.or_else(after) else { continue };
            checked += 1;
            for pieces in [vec![answer.as_str()], pieces(&mut random, &answer)] {
                let is_same = match &prompt {
                    Some(prompt) => {
                        normal_answer(&model.read_pieces(prompt, &pieces)) == normal_answer(&said)
                    }
                    None => {
                        let reasoning = model.reasoning.take();
                        let read = model.read_pieces("", &pieces);
                        model.reasoning = reasoning;
                        normal_answer(&read).2 == normal_answer(&said).2
                    }
                };
                if !is_same {
                    wrong.push(format!("{name}, {seed}: {answer:?} is not read as {said:?}"));
                    break;
                }
            }
        }
        if checked == before {
            unread.push(name);
        }
    }
    let some: Vec<&String> = wrong.iter().step_by(wrong.len() / 40 + 1).collect();
    assert!(wrong.is_empty(), "{} of {checked}: {some:#?}", wrong.len());
    // Kimi K2's template changes a list, which Python's sandbox forbids too.
    assert_eq!(unread, [&["Kimi-K2-Instruct"][..], &WITHOUT_CALLS].concat());
    assert!(checked >= 1100, "{checked}");
}
