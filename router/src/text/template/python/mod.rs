//! What Jinja2 and Python do otherwise than minijinja.
//!
//! Chat templates are written for Jinja2, which prints and compares as Python does. The table of
//! `integration-tests/golden/jinja.json` holds each of these to Jinja2 itself.
//!
//! | file | its job |
//! |---|---|
//! | `repr` | values as Python prints them |
//! | `values` | a conversation as values that print as Python's |
//! | `json` | `tojson`, as `json.dumps` writes it |
//! | `filters` | filters of Jinja2 |
//! | `methods` | methods of Python's strings, lists and dictionaries |
//! | `tests` | `is` tests of Jinja2 |
//! | `percent` | `'…' % value` |

mod filters;
mod json;
mod methods;
mod percent;
mod repr;
mod tests;
mod values;

use minijinja::value::Rest;
use minijinja::{Environment, Output, State, Value};

pub(super) use percent::without_percent;
pub(super) use values::{list_of, value_of};

/// A value as `json.dumps` writes it without arguments, but for letters outside of ASCII, which stay as they are.
pub(super) fn written_json(value: &serde_json::Value) -> Option<String> {
    json::Style { indent: None, ascii: false, separators: None }.write(value).ok()
}

/// Makes an environment behave as Jinja2 does.
pub(super) fn install(environment: &mut Environment<'_>) {
    environment.set_formatter(|out: &mut Output, _: &State, value: &Value| {
        Ok(out.write_str(&repr::printed(value))?)
    });
    environment.set_unknown_method_callback(methods::call);
    filters::install(environment);
    tests::install(environment);
    environment.add_function("cycler", |items: Rest<Value>| minijinja_contrib::globals::cycler(items.0));
    environment.add_function("joiner", minijinja_contrib::globals::joiner);
}
