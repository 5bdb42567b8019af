//! Expressions for the formats of dates and times, which are stricter than llguidance's: all of
//! their texts can be read by the usual libraries.

/// Hours, minutes and seconds without leap seconds, a fraction of at most nine digits, and a zone.
const TIME: &str = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]{1,9})?(?:[zZ]|[+\-](?:[01][0-9]|2[0-3]):[0-5][0-9])";

/// Years, months and days. February has 29 days in leap years only.
const DATE: &str = concat!(
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]|30)|",
    r"02-(?:0[1-9]|1[0-9]|2[0-8]))|",
    r"(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])|(?:[02468][048]|[13579][26])00)-02-29)",
);

/// Returns the expression that replaces a format.
pub(super) fn expression(format: &str) -> Option<String> {
    match format {
        "time" => Some(format!("^{TIME}$")),
        "date" => Some(format!("^{DATE}$")),
        "date-time" => Some(format!("^{DATE}[tT]{TIME}$")),
        _ => None,
    }
}
