//! Metrics of grammars.

use metrics::{Unit, counter, describe_counter};

use super::error::GrammarError;

/// Counter: compiled grammars.
const COMPILED: &str = "millrace_grammar_compiled_total";
/// Counter by `reason`: requests whose grammar was refused.
const REFUSED: &str = "millrace_grammar_refused_total";
/// Counter by `reason`: workers that were killed because a grammar exceeded a limit.
const WORKERS_KILLED: &str = "millrace_grammar_workers_killed_total";
/// Counter: workers that could not be started.
const WORKERS_NOT_STARTED: &str = "millrace_grammar_workers_not_started_total";

/// Describes the metrics to the installed recorder. It also creates the series, so that they exist
/// before the first event.
pub(super) fn describe() {
    counter!(COMPILED).increment(0);
    counter!(WORKERS_NOT_STARTED).increment(0);
    for reason in ["invalid", "too_complex", "busy", "unsupported"] {
        counter!(REFUSED, "reason" => reason).increment(0);
    }
    for reason in ["cpu_time", "wall_time", "memory", "other"] {
        counter!(WORKERS_KILLED, "reason" => reason).increment(0);
    }
    describe_counter!(COMPILED, Unit::Count, "Grammars that were compiled");
    describe_counter!(REFUSED, Unit::Count, "Requests whose grammar was refused, by reason");
    describe_counter!(
        WORKERS_KILLED,
        Unit::Count,
        "Workers that ended while they compiled a grammar, by the limit that it exceeded"
    );
    describe_counter!(WORKERS_NOT_STARTED, Unit::Count, "Workers for grammars that could not be started");
}

pub(super) fn compiled() {
    counter!(COMPILED).increment(1);
}

pub(super) fn refused(error: &GrammarError) {
    let reason = match error {
        GrammarError::Unsupported(_) => "unsupported",
        GrammarError::Invalid(_) => "invalid",
        GrammarError::TooComplex(_) => "too_complex",
        GrammarError::Busy => "busy",
    };
    counter!(REFUSED, "reason" => reason).increment(1);
}

pub(super) fn worker_killed(reason: &'static str) {
    counter!(WORKERS_KILLED, "reason" => reason).increment(1);
}

pub(super) fn worker_not_started() {
    counter!(WORKERS_NOT_STARTED).increment(1);
}
