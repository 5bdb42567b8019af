//! Tests hostile requests. Each gets a 4xx status or a closed connection, and a concurrent stream
//! loses no token.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use millrace_integration_tests::{Attack, AttackOutcome, Server, attack, long_generation, raw_post, seconds};
use millrace_test_patience::patience;
use serde_json::json;

/// The number of concurrent attackers.
const CROWD: usize = 8;

#[test]
fn two_hundred_hostile_requests_harm_nobody() {
    // The attacks wait for these timeouts. The reader's requests may not use them up on a busy
    // machine.
    let timeout = seconds(patience(Duration::from_secs(2)));
    let timeouts = ["--header-timeout", &timeout, "--body-timeout", &timeout, "--idle-timeout", &timeout];
    let server = Server::start(&timeouts);
    let undisturbed = long_generation(&server, || {});
    let attacks = attacks();
    assert!(attacks.len() >= 200, "{}", attacks.len());
    let (next, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let wrong: Vec<String> = std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                assert_eq!(long_generation(&server, || {}), undisturbed);
            }
        });
        let crowd: Vec<_> = (0..CROWD)
            .map(|_| {
                scope.spawn(|| {
                    let mut wrong = Vec::new();
                    while let Some((name, what)) = attacks.get(next.fetch_add(1, Ordering::Relaxed)) {
                        let outcome = attack(server.address(), what);
                        if !matches!(outcome, AttackOutcome::Status(400..=499) | AttackOutcome::Closed) {
                            wrong.push(format!("{name}: {outcome:?}"));
                        }
                    }
                    wrong
                })
            })
            .collect();
        let wrong = crowd.into_iter().flat_map(|attacker| attacker.join().unwrap()).collect();
        over.store(true, Ordering::Relaxed);
        reader.join().unwrap();
        wrong
    });
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(server.get("/ready").0, 200);
    assert_eq!(server.metric("millrace_shard_restarts_total"), 0.0);
    assert!(!server.log().contains("panicked"), "{}", server.log());
    assert_eq!(long_generation(&server, || {}), undisturbed);
}

/// Returns all attacks with names.
fn attacks() -> Vec<(String, Attack)> {
    let mut attacks = Vec::new();
    for (path, field) in [
        ("/generate", "inputs"),
        ("/generate_stream", "inputs"),
        ("/v1/completions", "prompt"),
        ("/v1/chat/completions", "messages"),
    ] {
        for (name, body) in bodies(field) {
            // TGI's routes skip unknown fields of any depth.
            if path.starts_with("/v1") || !name.ends_with("beside it") {
                attacks.push((format!("{path}: {name}"), Attack::Write(raw_post(path, &body))));
            }
        }
        for (name, body) in parameters(path) {
            attacks.push((format!("{path}: {name}"), Attack::Write(raw_post(path, body.as_bytes()))));
        }
        let whole = raw_post(path, br#"{"inputs":"a","prompt":"a"}"#);
        let cut = whole[..whole.len() - 5].to_vec();
        attacks.push((format!("{path}: half of a body, half closed"), Attack::HalfClose(cut.clone())));
        attacks.push((format!("{path}: half of a body, silence"), Attack::Write(cut.clone())));
        attacks.push((format!("{path}: gone in the midst"), Attack::Disconnect(cut)));
        attacks.push((format!("{path}: gone at the end"), Attack::Disconnect(whole)));
    }
    attacks.extend(heads().into_iter().map(|(name, attack)| (name.to_owned(), attack)));
    attacks
}

/// Returns bodies that no route accepts.
fn bodies(field: &str) -> Vec<(&'static str, Vec<u8>)> {
    let string = |text: &str| format!(r#"{{"{field}":"{text}"}}"#).into_bytes();
    let value = |text: &str| format!(r#"{{"{field}":{text}}}"#).into_bytes();
    let mut invalid = string("x");
    let place = invalid.len() - 3;
    invalid[place] = 0xff;
    vec![
        ("nothing", vec![]),
        ("only spaces", vec![b' '; 1000]),
        ("deep lists", "[".repeat(100_000).into_bytes()),
        ("deep lists, closed", ("[".repeat(100_000) + &"]".repeat(100_000)).into_bytes()),
        ("deep objects", r#"{"a":"#.repeat(100_000).into_bytes()),
        ("deep lists in the field", value(&("[".repeat(5_000) + &"]".repeat(5_000)))),
        (
            "deep objects beside it",
            value(&format!("\"a\",\"x\":{}1{}", r#"{"a":"#.repeat(5_000), "}".repeat(5_000))),
        ),
        ("a number of 100000 digits", value(&"9".repeat(100_000))),
        ("1e999999999", value("1e999999999")),
        ("-0.0", value("-0.0")),
        ("NaN", value("NaN")),
        ("a lone high surrogate", string(r"\ud800")),
        ("a lone low surrogate", string(r"x\udc00y")),
        ("surrogates the wrong way round", string(r"\udc00\ud800")),
        ("not UTF-8", invalid),
        ("a raw NUL", string("\0")),
        ("not closed", string("x")[..string("x").len() - 1].to_vec()),
        ("more after the end", [string("x"), b"}".to_vec()].concat()),
        ("a comment", [b"/* */".to_vec(), string("x")].concat()),
        ("the same field twice", format!(r#"{{"{field}":{{}},"{field}":{{}}}}"#).into_bytes()),
        ("true", value("true")),
        ("null", value("null")),
        ("an object", value(r#"{"a":1}"#)),
        ("a list of objects without anything", value("[{},{}]")),
        ("more than three megabytes", string(&"x ".repeat(1_600_000))),
    ]
}

/// Returns parameters with excessive values.
fn parameters(path: &str) -> Vec<(&'static str, String)> {
    let fields = [
        ("temperature", "1e39"),
        ("temperature", "-1"),
        ("temperature", "\"hot\""),
        ("top_p", "-1e308"),
        ("top_k", "-5"),
        ("top_k", "1e400"),
        ("typical_p", "7"),
        ("repetition_penalty", "0"),
        ("frequency_penalty", "1e10"),
        ("seed", "184467440737095516160"),
        ("stop", r#"["a","b","c","d","e","f","g"]"#),
        ("stop", r#"[""]"#),
        ("best_of", "4294967296"),
    ];
    let bodies = fields.iter().map(|(name, value)| (*name, wrapped(path, name, value)));
    let long = match path {
        "/generate" | "/generate_stream" => ("max_new_tokens", "4294967295"),
        _ => ("max_tokens", "4294967295"),
    };
    let mut all: Vec<_> = bodies.collect();
    all.push(("more tokens than fit", wrapped(path, long.0, long.1)));
    if path.starts_with("/v1") {
        let biases = (0..100_000).map(|id| (id.to_string(), json!(1))).collect::<serde_json::Map<_, _>>();
        all.push(("a hundred thousand biases", wrapped(path, "logit_bias", &json!(biases).to_string())));
        all.push(("n", wrapped(path, "n", "1000000000")));
    }
    // `best_of` is not a field of chat, where unknown fields are ignored.
    all.retain(|(name, _)| !(path.ends_with("chat/completions") && *name == "best_of"));
    all
}

/// Returns a complete request with one parameter.
fn wrapped(path: &str, name: &str, value: &str) -> String {
    match path {
        "/generate" | "/generate_stream" => format!(r#"{{"inputs":"a","parameters":{{"{name}":{value}}}}}"#),
        "/v1/completions" => format!(r#"{{"prompt":"a","{name}":{value}}}"#),
        _ => format!(r#"{{"messages":[{{"role":"user","content":"a"}}],"{name}":{value}}}"#),
    }
}

/// Returns bytes that are not HTTP or are slightly wrong.
fn heads() -> Vec<(&'static str, Attack)> {
    let write = |text: &str| Attack::Write(text.as_bytes().to_vec());
    let post = "POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    let with = |headers: &str, body: &str| write(&format!("{post}{headers}\r\n{body}"));
    let chunked = |body: &str| with("transfer-encoding: chunked\r\n", body);
    vec![
        ("silence", write("")),
        ("half closed at once", Attack::HalfClose(vec![])),
        ("gone at once", Attack::Disconnect(vec![])),
        ("slow request line", Attack::SendSlowly(b"GET /".to_vec())),
        ("slow headers", Attack::SendSlowly(b"GET /health HTTP/1.1\r\nhost: x\r\nx: ".to_vec())),
        ("slow headers of a POST", Attack::SendSlowly(post.as_bytes().to_vec())),
        ("half of the headers, half closed", Attack::HalfClose(post.as_bytes().to_vec())),
        ("headers without an end", write(post)),
        ("slow body", Attack::SendSlowly(format!("{post}content-length: 1000\r\n\r\n{{").into_bytes())),
        (
            "slow chunks",
            Attack::SendSlowly(format!("{post}transfer-encoding: chunked\r\n\r\n1").into_bytes()),
        ),
        (
            "a giant header",
            write(&format!("GET /health HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "a".repeat(1 << 20))),
        ),
        (
            "a giant header that does not end",
            write(&format!("GET /health HTTP/1.1\r\nx: {}", "a".repeat(1 << 20))),
        ),
        ("a giant path", write(&format!("GET /{} HTTP/1.1\r\nhost: x\r\n\r\n", "a".repeat(1 << 20)))),
        ("a thousand headers", write(&format!("GET /health HTTP/1.1\r\n{}\r\n", "x: y\r\n".repeat(1000)))),
        ("a NUL in a header", write("GET /health HTTP/1.1\r\nhost: x\r\nx: \0\r\n\r\n")),
        ("a header without a colon", write("GET /health HTTP/1.1\r\nhost x\r\n\r\n")),
        ("a header with a space in its name", write("GET /health HTTP/1.1\r\nho st: x\r\n\r\n")),
        ("a version of the future", write("GET /health HTTP/9.9\r\nhost: x\r\n\r\n")),
        ("no version", write("GET /health\r\nhost: x\r\n\r\n")),
        ("a method with a slash", write("G/T /health HTTP/1.1\r\nhost: x\r\n\r\n")),
        ("a method of this world", write("BREW /generate HTTP/1.1\r\nhost: x\r\n\r\n")),
        ("a path that is none", write("GET \u{1} HTTP/1.1\r\nhost: x\r\n\r\n")),
        ("a path out of the folder", write("GET /../../etc/passwd HTTP/1.1\r\nhost: x\r\n\r\n")),
        ("a path with half an escape", write("GET /v1/models/%f HTTP/1.1\r\nhost: x\r\n\r\n")),
        ("a path that is not UTF-8", write("GET /v1/models/%ff%fe HTTP/1.1\r\nhost: x\r\n\r\n")),
        ("CONNECT", write("CONNECT example.com:443 HTTP/1.1\r\nhost: x\r\n\r\n")),
        ("a negative length", with("content-length: -1\r\n", "{}")),
        ("a length of 30 digits", with("content-length: 999999999999999999999999999999\r\n", "{}")),
        ("a length that is a word", with("content-length: many\r\n", "{}")),
        ("two lengths", with("content-length: 2\r\ncontent-length: 3\r\n", "{}x")),
        ("length and chunks", with("content-length: 2\r\ntransfer-encoding: chunked\r\n", "0\r\n\r\n")),
        ("an unknown encoding", with("transfer-encoding: bogus\r\n", "{}")),
        ("a compressed body", with("content-encoding: gzip\r\ncontent-length: 3\r\n", "\u{1f}\u{7f}x")),
        ("a terabyte that is announced", with("content-length: 1000000000000\r\n", "{}")),
        ("a chunk that is not hexadecimal", chunked("xyz\r\n{}\r\n0\r\n\r\n")),
        ("a chunk of 2^64 bytes", chunked("ffffffffffffffffff\r\n{}\r\n0\r\n\r\n")),
        ("a chunk of almost 2^64 bytes", chunked("ffffffffffffffff\r\n{}\r\n0\r\n\r\n")),
        ("a negative chunk", chunked("-2\r\n{}\r\n0\r\n\r\n")),
        ("a chunk longer than it says", chunked("2\r\n{}{}\r\n0\r\n\r\n")),
        (
            "a chunk with a giant extension",
            chunked(&format!("2;{}\r\n{{}}\r\n0\r\n\r\n", "a".repeat(1 << 20))),
        ),
        ("giant trailers", chunked(&format!("2\r\n{{}}\r\n0\r\n{}\r\n", "x: y\r\n".repeat(100_000)))),
        ("chunks without an end", chunked("2\r\n{}\r\n")),
        ("no content type", write("POST /generate HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")),
        ("two content types", with("content-type: text/html\r\ncontent-length: 2\r\n", "{}")),
        (
            "a handshake of TLS",
            Attack::Write([&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 500]].concat()),
        ),
        ("HTTP/2 and then noise", write(&format!("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n{}", "noise".repeat(100)))),
        ("HTTP/2 and then silence", write("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")),
        ("half of HTTP/2's preface", write("PRI * HT")),
        ("HTTP/0.9", write("GET /\r\n")),
        ("endless empty lines", Attack::Write(b"\r\n".repeat(500_000))),
        (
            "random bytes",
            Attack::Write((0..100_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect()),
        ),
        ("an answer instead of a question", write("HTTP/1.1 200 OK\r\n\r\n")),
        (
            "an upgrade to nothing",
            write("GET /generate HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: websocket\r\n\r\n"),
        ),
        ("an unknown expectation", with("expect: the unexpected\r\ncontent-length: 2\r\n", "{}")),
    ]
}
