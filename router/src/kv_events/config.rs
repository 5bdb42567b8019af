//! The configuration of the events, in the form of vLLM's `--kv-events-config`.

use std::fmt;
use std::str::FromStr;

use serde::Deserialize;

use super::history::HistoryLimits;

/// Where and how events are published.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KvEventsConfig {
    /// The socket for subscribers.
    pub endpoint: Endpoint,
    /// The socket for requests for earlier batches, if there is one.
    pub replay_endpoint: Option<Endpoint>,
    /// The first frame of each message.
    pub topic: String,
    /// Number of batches that are kept for [`replay_endpoint`](Self::replay_endpoint) and for slow
    /// subscribers.
    pub buffer_steps: usize,
    /// Number of batches that a subscriber may be behind.
    pub hwm: usize,
}

/// A TCP endpoint in ZeroMQ's notation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `tcp://*:PORT`, or `tcp://ADDRESS:PORT` with an address of any interface: connections are
    /// accepted at this address.
    Bind(String),
    /// `tcp://HOST:PORT`: this address is connected to, and again whenever the connection ends.
    Connect(String),
}

/// vLLM's fields, with its defaults.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Fields {
    #[serde(default)]
    enable_kv_cache_events: bool,
    publisher: Option<String>,
    #[serde(default = "default_endpoint")]
    endpoint: String,
    replay_endpoint: Option<String>,
    #[serde(default)]
    topic: String,
    #[serde(default = "default_buffer_steps")]
    buffer_steps: usize,
    #[serde(default = "default_hwm")]
    hwm: usize,
    /// The length of a queue that this server does not have: encoding is part of publishing.
    #[serde(default, rename = "max_queue_size")]
    _max_queue_size: usize,
}

fn default_endpoint() -> String {
    "tcp://*:5557".to_owned()
}

fn default_buffer_steps() -> usize {
    10_000
}

fn default_hwm() -> usize {
    100_000
}

impl KvEventsConfig {
    /// Parses vLLM's JSON. The result is `None` if it says that events are not published.
    ///
    /// # Errors
    /// A message for the user.
    pub fn parse(json: &str) -> Result<Option<Self>, String> {
        let fields: Fields = serde_json::from_str(json).map_err(|error| error.to_string())?;
        match fields.publisher.as_deref() {
            _ if !fields.enable_kv_cache_events => return Ok(None),
            Some("null") => return Ok(None),
            None | Some("zmq") => {}
            Some(other) => {
                return Err(format!("unknown publisher {other:?}: there are \"zmq\" and \"null\""));
            }
        }
        let replay_endpoint = match fields.replay_endpoint.as_deref() {
            None | Some("") => None,
            // Like vLLM's, this socket always accepts connections.
            Some(text) => Some(match text.parse()? {
                Endpoint::Bind(address) | Endpoint::Connect(address) => Endpoint::Bind(address),
            }),
        };
        if fields.buffer_steps == 0 || fields.hwm == 0 {
            return Err("`buffer_steps` and `hwm` must be above 0".to_owned());
        }
        if fields.topic.len() > MAX_TOPIC {
            return Err(format!("`topic` has more than {MAX_TOPIC} bytes"));
        }
        Ok(Some(KvEventsConfig {
            endpoint: fields.endpoint.parse()?,
            replay_endpoint,
            topic: fields.topic,
            buffer_steps: fields.buffer_steps,
            hwm: fields.hwm,
        }))
    }

    pub(super) fn history(&self) -> HistoryLimits {
        HistoryLimits { batches: self.buffer_steps, ..HistoryLimits::default() }
    }
}

/// The longest topic in bytes.
const MAX_TOPIC: usize = 1024;

impl FromStr for Endpoint {
    type Err = String;

    /// ZeroMQ has no notation for the difference. As in vLLM, an address with `*` or `::` is bound
    /// and any other one connected to. An unspecified IPv4 address is bound as well, because nobody
    /// can connect to it.
    fn from_str(text: &str) -> Result<Self, String> {
        let invalid = || format!("{text:?} is not an endpoint like tcp://*:5557 or tcp://router:5557");
        let address = text.strip_prefix("tcp://").ok_or_else(invalid)?;
        let (host, port) = address.rsplit_once(':').ok_or_else(invalid)?;
        port.parse::<u16>().map_err(|_| invalid())?;
        match host {
            "" => Err(invalid()),
            // Both IPv6 and IPv4.
            "*" => Ok(Endpoint::Bind(format!("[::]:{port}"))),
            "0.0.0.0" => Ok(Endpoint::Bind(address.to_owned())),
            _ if host.contains("::") => Ok(Endpoint::Bind(address.to_owned())),
            _ => Ok(Endpoint::Connect(address.to_owned())),
        }
    }
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Endpoint::Bind(address) | Endpoint::Connect(address)) = self;
        write!(f, "tcp://{address}")
    }
}
