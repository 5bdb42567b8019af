//! Lists without repetitions.
//!
//! A grammar cannot remember which items a list has. Where the items are among a few values, all
//! lists are written out as alternatives.

use serde_json::{Map, Value, json};

/// The most lists that are written out: all lists of five values.
const MAX_LISTS: usize = 326;

/// Keywords that may stand beside a list that is written out. They do not change which lists are
/// valid, or are taken into account.
const ALLOWED_BESIDE: [&str; 9] =
    ["type", "items", "uniqueItems", "minItems", "maxItems", "title", "description", "default", "examples"];

/// Returns a schema for the lists of `fields` whose items differ. `values` are the values that an
/// item may have. Returns `None` if there are too many such lists.
pub(super) fn written_out(fields: &Map<String, Value>, values: &[Value]) -> Option<Map<String, Value>> {
    let is_list = fields.get("type").is_some_and(|kind| kind == "array");
    if !is_list || !fields.keys().all(|keyword| ALLOWED_BESIDE.contains(&keyword.as_str())) {
        return None;
    }
    let mut distinct: Vec<&Value> = Vec::new();
    for value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
        if distinct.len() > MAX_LISTS {
            return None;
        }
    }
    let count = |keyword: &str, default: usize| match fields.get(keyword) {
        None => Some(default),
        Some(count) => usize::try_from(count.as_u64()?).ok(),
    };
    let (least, most) = (count("minItems", 0)?, count("maxItems", distinct.len())?.min(distinct.len()));
    let mut lists: Vec<Vec<&Value>> = Vec::new();
    let mut longest = vec![Vec::new()];
    for length in 0..=most {
        if length >= least {
            lists.extend(longest.iter().cloned());
        }
        if lists.len().max(longest.len()) > MAX_LISTS {
            return None;
        }
        longest = longer(&longest, &distinct);
    }
    if lists.is_empty() {
        return None;
    }
    let alternatives: Vec<Value> = lists.iter().map(|list| exactly(list)).collect();
    let mut schema = Map::new();
    schema.insert("anyOf".into(), alternatives.into());
    Some(schema)
}

/// Returns all lists that have one more value than one of `lists`.
fn longer<'a>(lists: &[Vec<&'a Value>], values: &[&'a Value]) -> Vec<Vec<&'a Value>> {
    let with = |list: &Vec<&'a Value>, value: &'a Value| list.iter().copied().chain([value]).collect();
    let more = |list: &Vec<&'a Value>| -> Vec<Vec<&'a Value>> {
        values.iter().filter(|value| !list.contains(value)).map(|value| with(list, value)).collect()
    };
    lists.iter().take(MAX_LISTS + 1).flat_map(more).take(MAX_LISTS + 1).collect()
}

/// Returns a schema for one list.
fn exactly(list: &[&Value]) -> Value {
    let items: Vec<Value> = list.iter().map(|value| json!({"const": value})).collect();
    let length = items.len();
    json!({"type": "array", "prefixItems": items, "items": false, "minItems": length, "maxItems": length})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lists(schema: Value, values: &[Value]) -> Option<usize> {
        let fields = schema.as_object().cloned().unwrap_or_default();
        written_out(&fields, values)?.get("anyOf")?.as_array().map(Vec::len)
    }

    #[test]
    fn all_lists_of_few_values_are_written_out() {
        let values: Vec<Value> = (0..6).map(Value::from).collect();
        let list = json!({"type": "array", "uniqueItems": true});
        assert_eq!(lists(list.clone(), &values[..2]), Some(5));
        assert_eq!(lists(list.clone(), &values[..5]), Some(MAX_LISTS));
        assert_eq!(lists(list.clone(), &values), None);
        assert_eq!(lists(list, &[json!("a"), json!("a")]), Some(2));
        assert_eq!(lists(json!({"type": "array", "minItems": 2, "maxItems": 2}), &values), Some(30));
        assert_eq!(lists(json!({"type": "array", "minItems": 3}), &values[..2]), None);
        assert_eq!(lists(json!({"uniqueItems": true}), &values[..2]), None);
        assert_eq!(lists(json!({"type": "array", "contains": {}}), &values[..2]), None);
    }
}
