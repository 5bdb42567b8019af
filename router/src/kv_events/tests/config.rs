//! Tests of the configuration.

use crate::kv_events::{Endpoint, KvEventsConfig};

#[test]
fn the_defaults_are_those_of_vllm() {
    let config = KvEventsConfig::parse(r#"{"enable_kv_cache_events": true, "publisher": "zmq"}"#);
    let expected = KvEventsConfig {
        endpoint: Endpoint::Bind("[::]:5557".into()),
        replay_endpoint: None,
        topic: String::new(),
        buffer_steps: 10_000,
        hwm: 100_000,
    };
    assert_eq!(config, Ok(Some(expected)));
}

#[test]
fn every_field_of_vllm_is_known() {
    let config = KvEventsConfig::parse(
        r#"{"enable_kv_cache_events": true, "publisher": "zmq", "endpoint": "tcp://router:5557",
            "replay_endpoint": "tcp://*:5558", "buffer_steps": 7, "hwm": 8, "max_queue_size": 9,
            "topic": "kv@10.0.0.1@demo"}"#,
    );
    let expected = KvEventsConfig {
        endpoint: Endpoint::Connect("router:5557".into()),
        replay_endpoint: Some(Endpoint::Bind("[::]:5558".into())),
        topic: "kv@10.0.0.1@demo".into(),
        buffer_steps: 7,
        hwm: 8,
    };
    assert_eq!(config, Ok(Some(expected)));
}

#[test]
fn events_may_be_switched_off() {
    for json in [
        "{}",
        r#"{"enable_kv_cache_events": false}"#,
        r#"{"enable_kv_cache_events": true, "publisher": "null"}"#,
    ] {
        assert_eq!(KvEventsConfig::parse(json), Ok(None), "{json}");
    }
}

#[test]
fn mistakes_are_named() {
    for (rest, expected) in [
        (r#""publisher": "kafka""#, "unknown publisher \"kafka\""),
        (r#""endpoint": "ipc:///tmp/x""#, "\"ipc:///tmp/x\" is not an endpoint"),
        (r#""endpoint": "tcp://*""#, "is not an endpoint"),
        (r#""endpoint": "tcp://*:70000""#, "is not an endpoint"),
        (r#""endpoint": "tcp://:1""#, "is not an endpoint"),
        (r#""replay_endpoint": "nonsense""#, "\"nonsense\" is not an endpoint"),
        (r#""buffer_steps": 0"#, "must be above 0"),
        (r#""hwm": 0"#, "must be above 0"),
        (r#""buffer": 1"#, "unknown field `buffer`"),
        (r#""topic": 3"#, "invalid type"),
    ] {
        let json = format!(r#"{{"enable_kv_cache_events": true, {rest}}}"#);
        let error = KvEventsConfig::parse(&json).unwrap_err();
        assert!(error.contains(expected), "{json}: {error}");
    }
    let long = format!(r#"{{"enable_kv_cache_events": true, "topic": "{}"}}"#, "x".repeat(1025));
    assert!(KvEventsConfig::parse(&long).unwrap_err().contains("more than 1024 bytes"));
}

#[test]
fn addresses_of_any_interface_are_bound() {
    for (text, bound) in [
        ("tcp://*:1", Some("[::]:1")),
        ("tcp://0.0.0.0:1", Some("0.0.0.0:1")),
        ("tcp://[::]:1", Some("[::]:1")),
        ("tcp://[::1]:1", Some("[::1]:1")),
        ("tcp://127.0.0.1:1", None),
        ("tcp://indexer.svc:1", None),
    ] {
        let expected = match bound {
            Some(address) => Endpoint::Bind(address.into()),
            None => Endpoint::Connect(text.trim_start_matches("tcp://").into()),
        };
        assert_eq!(text.parse(), Ok(expected), "{text}");
    }
}
