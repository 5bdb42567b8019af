//! `is` tests of Jinja2, according to Python's types.

use minijinja::value::ValueKind;
use minijinja::{Environment, Value};

pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_test("number", is_number);
    environment.add_test("callable", is_callable);
}

/// Whether `iter()` accepts the value. minijinja iterates over `none` too.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// Whether the value has a length and items. This includes dictionaries and Jinja2's undefined
/// value.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Map, Seq, String, Undefined};
    matches!(value.kind(), Seq | String | Map | Undefined) || (is_iterable(value) && value.len().is_some())
}

/// Whether the value is a number. In Python a `bool` is a number.
fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}

/// Whether the value is a function, a macro, or Jinja2's undefined value. A method that is not
/// called is undefined here.
fn is_callable(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Plain | ValueKind::Undefined)
}
