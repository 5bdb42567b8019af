//! Compares expressions with Jinja2's results. `integration-tests/oracle/make_jinja.py` writes the
//! table.

use serde_json::Value;

use super::ChatTemplate;
use crate::Conversation;

/// The expressions with a different result, and the reasons.
const EXPLAINED: &[(&str, &str)] = &[
    ("(1, 2)", TUPLES),
    ("'' ~ (1, 2)", TUPLES),
    ("(1, 2) | string", TUPLES),
    ("text.partition(', ')", TUPLES),
    ("text.rpartition('o')", TUPLES),
    ("text.partition('z')", TUPLES),
    ("object.items()", TUPLES),
    ("object | items | list", TUPLES),
    ("object | dictsort", TUPLES),
    ("(1, 2) == [1, 2]", TUPLES),
    ("range(3)", RANGES),
    ("'' ~ range(3)", RANGES),
    ("range(3) | string", RANGES),
    ("1e400 | tojson", "JSON has no infinity, so no request can hold one."),
    ("'%r' % 'a'", "minijinja's `format` has no `%r`."),
    ("1234567 | filesizeformat", "No chat template shows sizes of files."),
    ("'a b c d' | wordwrap(3)", "No chat template wraps lines."),
    ("lipsum is defined", "No chat template wants a text to fill a page."),
];

const TUPLES: &str = "minijinja has no tuples: they are lists, and print as lists.";
const RANGES: &str = "minijinja makes a list of a range.";

#[test]
fn expressions_have_the_results_of_jinja2() {
    let golden: Value =
        serde_json::from_str(include_str!("../../../../integration-tests/golden/jinja.json")).unwrap();
    let more = golden["variables"].as_object().unwrap();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for row in golden["expressions"].as_array().unwrap() {
        // Any result is allowed where Jinja2 fails.
        let (Some(expression), Some(expected)) = (row[0].as_str(), row[1].as_str()) else { continue };
        count += 1;
        let conversation = Conversation { more: more.clone(), ..Conversation::default() };
        let source = format!("{{{{ {expression} }}}}");
        let rendered = ChatTemplate::new(&source, None, None, None, 1)
            .and_then(|template| template.render_now(&conversation));
        let explained = EXPLAINED.iter().any(|(known, _)| *known == expression);
        if (rendered.as_deref() == Ok(expected)) == explained {
            wrong.push(format!("{expression}: {expected:?}, not {rendered:?}"));
        }
    }
    assert!(count > 400, "{count}");
    assert!(wrong.is_empty(), "{} of {count} differ:\n{}", wrong.len(), wrong.join("\n"));
}
