//! The names of request fields that have no effect.

use std::collections::BTreeSet;

use crate::service::Prepared;

/// The most names that are kept. A request may have a million unknown fields.
const MAX_NAMES: usize = 32;
/// Bytes of the longest name that is kept.
const MAX_NAME_BYTES: usize = 64;

/// The names of request fields that were accepted and have no effect, in alphabetical order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct IgnoredFields(BTreeSet<String>);

impl IgnoredFields {
    /// Adds a field by its path in the request, such as `text.verbosity`.
    ///
    /// Names with characters that identifiers and paths do not have are left out, and so are
    /// names after the first [`MAX_NAMES`]: a client must not be able to fill a header or a log.
    pub(crate) fn note(&mut self, field: &str) {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.[]$".contains(&byte);
        let fits = !field.is_empty() && field.len() <= MAX_NAME_BYTES && field.bytes().all(is_plain);
        if fits && self.0.len() < MAX_NAMES {
            self.0.insert(field.to_owned());
        }
    }

    /// Adds the schema keywords of a request that do not constrain its answer.
    pub(crate) fn note_unenforced(&mut self, prepared: &Prepared) {
        prepared.unenforced().iter().for_each(|field| self.note(field));
    }

    /// The names, in alphabetical order.
    pub(crate) fn names(&self) -> Vec<&str> {
        self.0.iter().map(String::as_str).collect()
    }
}
