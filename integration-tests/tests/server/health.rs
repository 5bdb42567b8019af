//! Tests `millrace health`, the health check of containers.

use std::net::TcpListener;
use std::process::{Command, Output};

use millrace_integration_tests::{Server, binary, free_port};

/// Runs `millrace health` with these flags, and with no variables but these.
fn health(flags: &[&str], variables: &[(&str, &str)]) -> Output {
    let mut command = Command::new(binary());
    if !flags.contains(&"--timeout") {
        // A busy machine may not use up the timeout.
        command.args(["health", "--timeout", "86400"])
    } else {
        command.arg("health")
    };
    command.args(flags).env_clear().envs(variables.iter().copied()).output().unwrap()
}

fn assert_healthy(flags: &[&str], variables: &[(&str, &str)], url: &str) {
    let output = health(flags, variables);
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said, format!("healthy: {url}\n"), "{flags:?} {variables:?}: {output:?}");
    assert_eq!(output.status.code(), Some(0));
}

/// Returns the one line that says why a server is not healthy.
fn unhealthy(flags: &[&str], variables: &[(&str, &str)]) -> String {
    let output = health(flags, variables);
    assert_eq!(output.status.code(), Some(1), "{flags:?} {variables:?}: {output:?}");
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(said.lines().count(), 1, "{said}");
    said
}

#[test]
fn a_ready_server_is_found_and_needs_no_key() {
    let server = Server::start(&["--api-key", "key", "--health-port", "0"]);
    server.wait_for_log("probes are answered on http://");
    let log = server.log();
    let (_, probes) = log.split_once("probes are answered on http://").unwrap();
    let health_port = probes.split_whitespace().next().unwrap().rsplit(':').next().unwrap();
    let address = server.address();
    let port = address.rsplit(':').next().unwrap();
    let main = format!("http://127.0.0.1:{port}/ready");
    let separate = format!("http://127.0.0.1:{health_port}/ready");
    assert_healthy(&["--url", &server.url("")], &[], &main);
    assert_healthy(&["--url", &server.url("/health")], &[], &server.url("/health"));
    // The variables of the server, as an image or an orchestrator sets them.
    assert_healthy(&[], &[("PORT", port)], &main);
    assert_healthy(&[], &[("AIP_HTTP_PORT", port)], &main);
    assert_healthy(&[], &[("PORT", port), ("HOSTNAME", "0.0.0.0")], &main);
    assert_healthy(&[], &[("PORT", port), ("HOSTNAME", "the-name-of-a-container")], &main);
    assert_healthy(&[], &[("PORT", port), ("MILLRACE_HOSTNAME", "0.0.0.0")], &main);
    assert_healthy(&[], &[("PORT", "1"), ("HEALTH_PORT", health_port)], &separate);
    // A proxy is for other machines.
    let proxy = ("http_proxy", "http://127.0.0.1:1");
    assert_healthy(&[], &[("PORT", port), proxy], &main);
}

#[test]
fn the_configuration_file_of_the_server_counts() {
    let server = Server::start(&[]);
    let port = server.address().rsplit(':').next().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("millrace.toml");
    std::fs::write(&path, format!("port = {port}\nhostname = \"0.0.0.0\"\n")).unwrap();
    let path = path.to_str().unwrap();
    let url = format!("http://127.0.0.1:{port}/ready");
    assert_healthy(&[], &[("MILLRACE_CONFIG", path)], &url);
    let said = unhealthy(&[], &[("MILLRACE_CONFIG", "/nowhere/millrace.toml")]);
    assert!(said.contains("--config /nowhere/millrace.toml"), "{said}");
}

#[test]
fn a_server_with_tls_is_asked_by_its_address() {
    // The certificate is for the name by which clients know the server.
    let key = rcgen::generate_simple_self_signed(vec!["llm.example".to_owned()]).unwrap();
    let folder = tempfile::tempdir().unwrap();
    let (certificate, private) = (folder.path().join("cert.pem"), folder.path().join("key.pem"));
    std::fs::write(&certificate, key.cert.pem()).unwrap();
    std::fs::write(&private, key.signing_key.serialize_pem()).unwrap();
    let (certificate, private) = (certificate.to_str().unwrap(), private.to_str().unwrap());
    let server = Server::start_loading(&["--tls-cert", certificate, "--tls-key", private]);
    let port = server.address().rsplit(':').next().unwrap();
    let variables = [("PORT", port), ("TLS_CERT", certificate), ("TLS_KEY", private)];
    server.wait_until("it is healthy", |_| health(&[], &variables).status.success());
    assert_healthy(&[], &variables, &format!("https://127.0.0.1:{port}/ready"));
    // A request without TLS is not answered with success.
    unhealthy(&[], &[("PORT", port)]);
}

#[test]
fn the_reason_is_one_line() {
    let closed = free_port();
    let said = unhealthy(&[], &[("PORT", &closed)]);
    assert!(said.contains(&format!("http://127.0.0.1:{closed}/ready")) && said.contains("refused"), "{said}");

    // A server whose port is open but which never answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port().to_string();
    let said = unhealthy(&["--timeout", "0.3"], &[("PORT", &port)]);
    assert!(said.contains("no answer in time"), "{said}");

    let server = Server::start(&["--disable-ui"]);
    let said = unhealthy(&["--url", &server.url("/ui/")], &[]);
    assert!(said.contains("404"), "{said}");

    for (flags, variables, text) in [
        (&["--url", "127.0.0.1:80"][..], &[][..], "--url 127.0.0.1:80"),
        (&["--url", "unix:/run/millrace"], &[], "give http:// or https://"),
        (&[], &[("PORT", "0")], "--port 0 lets the system choose the port; give --url"),
        (&[], &[("AIP_HTTP_PORT", "many")], "AIP_HTTP_PORT=many"),
        (&[], &[("MILLRACE_HOSTNAME", "no.such.name.invalid")], "MILLRACE_HOSTNAME=no.such.name.invalid"),
    ] {
        let said = unhealthy(flags, variables);
        assert!(said.contains(text), "{flags:?} {variables:?}: {said}");
    }
}

#[test]
fn a_server_that_loads_or_drains_is_not_ready() {
    let server = Server::start(&[
        "--device",
        "null",
        "--heartbeat-timeout",
        "86400",
        "--graceful-termination-timeout",
        "86400",
    ]);
    assert_healthy(&["--url", &server.url("")], &[], &server.url("/ready"));
    // The stopped shard keeps the server draining until the test has seen it.
    server.signal_shards("STOP");
    let body = serde_json::json!({"inputs": "a", "parameters": {"max_new_tokens": 4}});
    let url = server.url("/generate");
    let request = std::thread::spawn(move || millrace_integration_tests::post(&url, &body).status);
    server.wait_until("the request runs", |server| server.metric("tgi_batch_current_size") > 0.0);
    server.signal("TERM");
    server.wait_until("it drains", |server| server.get("/ready").0 == 503);
    let said = unhealthy(&["--url", &server.url("")], &[]);
    assert!(said.contains("/ready: 503"), "{said}");
    server.signal_shards("CONT");
    assert_eq!(request.join().unwrap(), 200);
}

#[test]
fn flags_without_a_subcommand_serve() {
    // The first argument is a flag, as behind the name of TGI's image.
    let said = Command::new(binary()).args(["--model-id", "/nowhere/model", "--port", "0"]).output().unwrap();
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("/nowhere/model"), "{said}");
    let said = Command::new(binary()).arg("--max-concurent-requests=3").output().unwrap();
    let said = String::from_utf8(said.stderr).unwrap();
    assert!(said.contains("--max-concurrent-requests"), "{said}");
    let said = Command::new(binary()).arg("--version").output().unwrap();
    assert!(String::from_utf8(said.stdout).unwrap().starts_with("millrace "));
}
