//! Differences between Jinja2 with Python and minijinja.
//!
//! Chat templates are written for Jinja2, which prints and compares values as Python does. The
//! table in `integration-tests/golden/jinja.json` holds Jinja2's results for these features.
//!
//! | file | its job |
//! |---|---|
//! | `repr` | prints values in Python's format |
//! | `values` | converts a conversation to values that print in Python's format |
//! | `json` | the filter `tojson` in the format of `json.dumps` |
//! | `filters` | filters of Jinja2 |
//! | `methods` | methods of Python's strings, lists and dictionaries |
//! | `tests` | `is` tests of Jinja2 |
//! | `percent` | the operator `'…' % value` |

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

/// Writes a value in the format of `json.dumps` with its default arguments, except that characters
/// outside of ASCII are not escaped.
pub(super) fn written_json(value: &serde_json::Value) -> Option<String> {
    json::JsonStyle { indent: None, ascii: false, separators: None }.write(value).ok()
}

/// Makes an environment behave like Jinja2.
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
