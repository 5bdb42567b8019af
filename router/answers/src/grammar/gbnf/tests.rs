//! Compares translated grammars with a reference that follows the rules of GBNF literally.

use std::collections::BTreeSet;
use std::sync::Arc;

use millrace_text::test_support::{self, EOS};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use super::parse::{Alternatives, Atom, Rules, parse};
use super::{is_gbnf, to_lark};
use crate::Constraint;
use crate::grammar::{CompiledGrammar, Grammar, GrammarCompiler, GrammarMatcher};

/// The grammar of JSON, in the style of those that come with llama.cpp.
const JSON: &str = r#"
# A value of JSON
root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::= "[" ws ( value ("," ws value)* )? "]" ws
string ::= "\"" ( [^"\\\x7F\x00-\x1F] | "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) )* "\"" ws
number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ws
ws ::= | " " | "\n" [ \t]{0,20}
"#;

fn compile(grammar: &str) -> Arc<CompiledGrammar> {
    let lark = to_lark(grammar).unwrap_or_else(|error| panic!("{grammar}: {error}"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let compiler = GrammarCompiler::new(test_support::tokenizer(), Arc::new([EOS]));
    let compiled = runtime.block_on(compiler.compile(&Grammar::Lark(lark.clone()), EOS + 1));
    compiled.unwrap_or_else(|error| panic!("{grammar}\n{lark}: {error}"))
}

fn accepts(compiled: &Arc<CompiledGrammar>, text: &str) -> bool {
    let allows = |mask: &crate::Mask, token: u32| {
        mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
    };
    let (mut walk, mut mask) = (GrammarMatcher::new(compiled.clone()), compiled.first());
    for byte in text.bytes() {
        if !allows(&mask, u32::from(byte)) {
            return false;
        }
        mask = walk.advance(u32::from(byte)).unwrap();
    }
    allows(&mask, EOS)
}

#[test]
fn the_grammar_of_json_is_followed() {
    let compiled = compile(JSON);
    for text in [
        "{}",
        r#"{"a": 1}"#,
        r#"{"a":[1,2.5,{"b":"c\n\u00e9é"}], "d":true}"#,
        "{\n\t\"a\": -10, \"b\": [[], null]}",
    ] {
        assert!(accepts(&compiled, text), "{text}");
    }
    for text in ["[]", "{", r#"{"a"}"#, r#"{"a": 01}"#, r#"{"a": "b}"#, r#"{"a": 1,}"#, "{}x"] {
        assert!(!accepts(&compiled, text), "{text}");
    }
}

#[test]
fn rules_may_refer_to_themselves() {
    let compiled =
        compile("root ::= expr\nexpr ::= expr [-+*] term | term\nterm ::= [0-9]+ | \"(\" expr \")\"");
    for text in ["1", "12+3", "(1+2)*(3)", "((4))"] {
        assert!(accepts(&compiled, text), "{text}");
    }
    for text in ["", "+", "(1", "1+", "()"] {
        assert!(!accepts(&compiled, text), "{text}");
    }
}

#[test]
fn every_element_is_translated() {
    for (grammar, good, bad) in [
        (r#"root ::= "a" 'b' | "\x63\u00e9""#, &["ab", "cé"][..], &["a", "c"][..]),
        ("root ::= [a-c/\\]-]{2}", &["a/", "]-"], &["a", "d/"]),
        ("root ::= [^a]{,2} .", &["b", "bba", "\n"], &["ab", ""]),
        (
            "root ::= other-rule other_rule2?\nother-rule ::= \"x\"\nother_rule2 ::= \"y\"",
            &["x", "xy"],
            &["y"],
        ),
        ("root ::= (\"a\" |)  \"b\"{2,} # comment\n", &["bb", "abbb"], &["ab"]),
        ("// comment\nroot ::=\n  \"a\"\n  | \"b\"\n", &["a", "b"], &["ab"]),
        ("root ::= \"/\" \"\\\"\" \"\\\\\"", &["/\"\\"], &["/"]),
        ("root ::= \"a\"{0,0} \"b\"", &["b"], &["ab"]),
    ] {
        let grammar = grammar.trim_start_matches("// comment\n");
        let compiled = compile(grammar);
        for text in good {
            assert!(accepts(&compiled, text), "{grammar}: {text:?}");
        }
        for text in bad {
            assert!(!accepts(&compiled, text), "{grammar}: {text:?}");
        }
    }
}

#[test]
fn errors_name_the_line_and_the_part() {
    for (grammar, reason) in [
        ("rot ::= \"a\"", "no rule `root`"),
        ("root ::= other", "the rule `other` is not defined"),
        ("root ::= \"a\"\nroot ::= \"b\"", "line 2: the rule `root` is defined twice"),
        ("root ::= \"a", "line 1: a text is not closed"),
        ("root ::= (\"a\"", "a group is not closed"),
        ("root ::= \"a\")", "line 1: unexpected text at `)`"),
        ("root ::= [", "a class is not closed"),
        ("root ::= []", "an empty class"),
        ("root ::= [b-a]", "ends before it begins"),
        ("root ::= \"\\q\"", "unknown escape"),
        ("root ::= \"\\ud800\"", "an escape is no character"),
        ("root ::= \"a\"{3,2}", "fewer than the least"),
        ("root ::= \"a\"{20000}", "at most 10000"),
        ("root ::= \"a\"*?", "several numbers of repetitions"),
        ("root ::= \"a\"\n\n  <[12]>", "line 3: tokens by their names or ids are not supported"),
        ("root ::= (?=\"a\")", "look-ahead is not supported"),
        ("root ::= TagDispatch((\"a\", b))", "the function `TagDispatch` is not supported"),
        ("root ::= \"a\" ::= \"b\"", "unexpected character at `::="),
    ] {
        let error = to_lark(grammar).unwrap_err();
        assert!(error.starts_with("grammar is not valid: ") && error.contains(reason), "{grammar}: {error}");
    }
    let deep = format!("root ::= {}\"a\"{}", "(".repeat(100), ")".repeat(100));
    assert!(to_lark(&deep).unwrap_err().contains("more than 64 groups"));
    assert!(to_lark(&"a".repeat(300_000)).unwrap_err().contains("too complex"));
}

#[test]
fn gbnf_is_told_from_lark() {
    for gbnf in [JSON, "root ::= \"a\"", "# comment\n\n  my-rule\t::= \"a\""] {
        assert!(is_gbnf(gbnf), "{gbnf}");
    }
    for lark in ["start: \"::=\"", "start: A\nA: /root ::= /", "", "// root ::= \"a\"", "::= \"a\""] {
        assert!(!is_gbnf(lark), "{lark}");
    }
}

/// Returns where a text may end that begins at `start` and that the alternatives describe. No rule
/// may refer to itself.
fn ends(rules: &Rules, alternatives: &Alternatives, text: &[char], start: usize) -> BTreeSet<usize> {
    let once = |atom: &Atom, from: usize| -> BTreeSet<usize> {
        match atom {
            Atom::Text(expected) => {
                let expected: Vec<char> = expected.chars().collect();
                let matches = text[from..].starts_with(&expected);
                matches.then_some(from + expected.len()).into_iter().collect()
            }
            Atom::Class(class) => {
                // The tests have only classes of letters.
                let matches = text.get(from).is_some_and(|c| class.contains(*c));
                matches.then_some(from + 1).into_iter().collect()
            }
            Atom::Rule(index) => ends(rules, &rules.rules[*index], text, from),
            Atom::Group(inner) => ends(rules, inner, text, from),
        }
    };
    let mut all = BTreeSet::new();
    for sequence in alternatives {
        let mut places = BTreeSet::from([start]);
        for element in sequence {
            let (mut reached, mut round) = (BTreeSet::new(), places);
            for count in 0..=element.repeat.max.unwrap_or(text.len() as u32 + 2) {
                if count >= element.repeat.min {
                    reached.extend(round.iter().copied());
                }
                round = round.iter().flat_map(|&from| once(&element.atom, from)).collect();
            }
            places = reached;
        }
        all.extend(places);
    }
    all
}

/// Random alternatives that refer to the rules before `rule`.
fn alternatives(rule: usize) -> impl Strategy<Value = String> {
    let mut leaves = vec![
        Just("\"a\"".to_owned()).boxed(),
        Just("\"bc\"".to_owned()).boxed(),
        Just("[ab]".to_owned()).boxed(),
        Just("\"\"".to_owned()).boxed(),
    ];
    if rule > 0 {
        leaves.push((0..rule).prop_map(|other| format!("rule{other}")).boxed());
    }
    let repeat = prop::sample::select(vec!["", "", "", "?", "*", "+", "{2}", "{1,2}", "{2,}"]);
    let element = (proptest::strategy::Union::new(leaves), repeat).prop_map(|(atom, repeat)| atom + repeat);
    let sequence = prop::collection::vec(element, 0..3).prop_map(|elements| elements.join(" "));
    let group = prop::collection::vec(sequence.boxed(), 1..3).prop_map(|sequences| sequences.join(" | "));
    prop::collection::vec(group.prop_map(|group| format!("({group})")), 1..3)
        .prop_map(|groups| groups.join(" | "))
}

#[test]
fn rules_without_recursion_mean_the_same_after_the_translation() {
    let texts: Vec<String> = (0..4)
        .scan(vec![String::new()], |last, _| {
            let texts = last.clone();
            *last = texts.iter().flat_map(|text| ["a", "b", "c"].map(|c| format!("{text}{c}"))).collect();
            Some(texts)
        })
        .flatten()
        .collect();
    let strategy = (alternatives(0), alternatives(1), alternatives(2));
    let mut runner = TestRunner::new(Config { cases: 48, failure_persistence: None, ..Config::default() });
    let tested = runner.run(&strategy, |(first, second, root)| {
        let grammar = format!("root ::= {root}\nrule0 ::= {first}\nrule1 ::= {second}");
        let rules = parse(&grammar).unwrap();
        let matching = |text: &&String| {
            let chars: Vec<char> = text.chars().collect();
            ends(&rules, &rules.rules[rules.root], &chars, 0).contains(&chars.len())
        };
        // A grammar without a text is refused.
        if !texts.iter().any(|text| matching(&text)) {
            return Ok(());
        }
        let compiled = compile(&grammar);
        for text in &texts {
            prop_assert_eq!(accepts(&compiled, text), matching(&text), "{}: {:?}", grammar, text);
        }
        Ok(())
    });
    tested.unwrap();
}
