//! The framing of server-sent events.

use axum::body::Bytes;
use bytes::{BufMut, BytesMut};
use serde::Serialize;
use utoipa::ToSchema;

/// An event of a stream. Its data is JSON. The events of `/v1/messages` and `/v1/responses` also
/// have names.
#[derive(ToSchema)]
#[expect(dead_code, reason = "the fields are a schema; events are written as text")]
pub(super) struct EventDescription {
    /// Its name, if it has one
    #[schema(value_type = String, required = false)]
    event: Option<String>,
    /// JSON; `[DONE]` ends OpenAI's streams
    data: String,
}

/// Events that have been written and not yet sent.
#[derive(Debug, Default)]
pub(super) struct Events(BytesMut);

impl Events {
    /// Writes an event with one line of JSON.
    pub(super) fn json(&mut self, value: &impl Serialize) {
        self.0.put_slice(b"data: ");
        let begin = self.0.len();
        if let Err(error) = serde_json::to_writer((&mut self.0).writer(), value) {
            // The types of events have string keys and a finite depth, so that only a bug can get
            // here. It costs one event and not the stream.
            tracing::error!(%error, "an event could not be written");
            self.0.truncate(begin);
            self.0.put_slice(
                br#"{"error":"event could not be written","error_type":"stream_serialization_error"}"#,
            );
        }
        self.0.put_slice(b"\n\n");
    }

    /// Writes an event with a name and one line of JSON.
    pub(super) fn named(&mut self, name: &str, value: &impl Serialize) {
        self.0.put_slice(b"event: ");
        self.0.put_slice(name.as_bytes());
        self.0.put_slice(b"\n");
        self.json(value);
    }

    /// Writes a comment, which clients skip.
    pub(super) fn comment(&mut self) {
        self.0.put_slice(b":\n\n");
    }

    /// Writes an event with a line that is not JSON.
    pub(super) fn line(&mut self, line: &str) {
        self.0.put_slice(b"data: ");
        self.0.put_slice(line.as_bytes());
        self.0.put_slice(b"\n\n");
    }

    /// Returns the number of bytes that have been written.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    /// Takes the bytes that have been written.
    pub(super) fn take(&mut self) -> Bytes {
        self.0.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_that_cannot_be_serialized_becomes_an_error_event() {
        let mut events = Events::default();
        events.json(&std::collections::BTreeMap::from([([1, 2], "a list cannot be the key of an object")]));
        let text = std::str::from_utf8(&events.0).unwrap();
        let data = text.strip_prefix("data: ").and_then(|text| text.strip_suffix("\n\n")).unwrap();
        let error: serde_json::Value = serde_json::from_str(data).unwrap();
        assert_eq!(error["error_type"], "stream_serialization_error");
    }
}
