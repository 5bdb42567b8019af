//! `millrace health`: asks a server on this machine whether it answers requests. It is the health
//! check of a container, so it must be quick, and it finds the server by itself.

use std::ffi::OsString;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::{CommandFactory, FromArgMatches};

use crate::cli::{Cli, Command, HealthArgs, HttpArgs, ServeArgs, of_server};
use crate::{config, environment};

/// The probe that answers 200 exactly when requests are served.
const PROBE: &str = "/ready";

/// Most characters of a server's answer that an error repeats.
pub(super) const SHOWN: usize = 200;

/// Server to ask.
#[derive(Debug, PartialEq, Eq)]
enum Server {
    /// The URL of its probe.
    Probe(String),
    /// A machine that computes for a leader, and serves no HTTP.
    Worker,
}

/// Asks the server, and prints its URL if it is healthy.
pub(crate) fn run(args: &HealthArgs) -> Result<()> {
    let server = match &args.url {
        Some(url) => Server::Probe(with_path(url, PROBE)?),
        None => Server::find()?,
    };
    let Server::Probe(url) = server else {
        println!("a worker of a group serves no HTTP: ask the leader");
        return Ok(());
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(ask(&url, Duration::from_secs_f64(args.timeout)))?;
    println!("healthy: {url}");
    Ok(())
}

async fn ask(url: &str, timeout: Duration) -> Result<()> {
    let client = reqwest::Client::builder()
        // The server is on this machine, whatever proxy its variables name.
        .no_proxy()
        // Its certificate is for the name by which clients know it. No secret is sent.
        .danger_accept_invalid_certs(true)
        .redirect(reqwest::redirect::Policy::none())
        .timeout(timeout)
        .build()?;
    let answer = client.get(url).send().await.map_err(|error| anyhow::anyhow!("{url}: {}", cause(&error)))?;
    let status = answer.status();
    if status.is_success() {
        return Ok(());
    }
    let text = answer.text().await.unwrap_or_default();
    let text: String = text.lines().next().unwrap_or_default().chars().take(SHOWN).collect();
    bail!("{url}: {} {text}", status.as_u16())
}

/// Returns the reason of a failed request. The outer errors only repeat the URL.
pub(super) fn cause(error: &reqwest::Error) -> String {
    if error.is_timeout() {
        return "no answer in time".to_owned();
    }
    let mut cause: &dyn std::error::Error = error;
    while let Some(inner) = cause.source() {
        cause = inner;
    }
    cause.to_string()
}

/// Adds a path to a URL that has none.
///
/// # Errors
/// If it is no URL of an HTTP server.
pub(super) fn with_path(url: &str, path: &str) -> Result<String> {
    let mut parsed = reqwest::Url::parse(url).with_context(|| format!("--url {url}"))?;
    ensure!(matches!(parsed.scheme(), "http" | "https"), "--url {url}: give http:// or https://");
    if parsed.path() == "/" {
        parsed.set_path(path);
    }
    Ok(parsed.into())
}

impl Server {
    /// Finds the server as its own start does: from arguments, variables and configuration file.
    fn find() -> Result<Server> {
        let arguments = of_process_1().unwrap_or_else(|| vec!["millrace".into(), "serve".into()]);
        // The server has warned of them.
        let (command, _) =
            environment::without_foreign(Cli::command(), "serve", |name| std::env::var_os(name));
        let matches = config::try_parse(command, &arguments)?;
        match Cli::from_arg_matches(&matches)?.command {
            Command::Serve(serve) => Server::of(&serve),
            _ => bail!("process 1 is not `millrace serve`; give --url"),
        }
    }

    fn of(serve: &ServeArgs) -> Result<Server> {
        if serve.nodes.is_worker() {
            return Ok(Server::Worker);
        }
        Ok(Server::Probe(probe_url(&serve.http)?))
    }
}

/// Returns the arguments of process 1 if it is a server, as it is in a container.
fn of_process_1() -> Option<Vec<OsString>> {
    let bytes = std::fs::read("/proc/1/cmdline").ok()?;
    let text = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    let words = text.split(|byte| *byte == 0);
    // Arguments that are not text are not flags of the server's address.
    let words = words.map(|word| OsString::from(String::from_utf8_lossy(word).into_owned()));
    of_server(&words.collect::<Vec<_>>())
}

/// Returns the URL of the probe for the flags of a server on this machine. The health port is
/// preferred: it answers also when the limit of connections is reached.
fn probe_url(http: &HttpArgs) -> Result<String> {
    let ip = match http.address()? {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    let (scheme, port, flag) = match http.health_port {
        Some(port) => ("http", port, "--health-port"),
        None if http.tls_cert.is_some() => ("https", http.port()?, "--port"),
        None => ("http", http.port()?, "--port"),
    };
    ensure!(port != 0, "{flag} 0 lets the system choose the port; give --url");
    Ok(format!("{scheme}://{}{PROBE}", SocketAddr::new(ip, port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(flags: &[&str]) -> String {
        let arguments: Vec<OsString> = ["millrace", "serve"].iter().chain(flags).map(Into::into).collect();
        let matches = config::try_parse(Cli::command(), &arguments).unwrap();
        let Command::Serve(serve) = Cli::from_arg_matches(&matches).unwrap().command else { panic!() };
        match Server::of(&serve) {
            Ok(Server::Probe(url)) => url,
            Ok(Server::Worker) => "worker".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_url_follows_the_flags() {
        for (flags, url) in [
            (&["--port=8080", "--hostname=0.0.0.0"][..], "http://127.0.0.1:8080/ready"),
            (&["--port=8080", "--hostname=::"], "http://[::1]:8080/ready"),
            (&["--port=8080", "--hostname=192.0.2.7"], "http://192.0.2.7:8080/ready"),
            (
                &["--port=443", "--hostname=0.0.0.0", "--tls-cert=a", "--tls-key=b"],
                "https://127.0.0.1:443/ready",
            ),
            (
                &["--port=443", "--hostname=0.0.0.0", "--tls-cert=a", "--tls-key=b", "--health-port=81"],
                "http://127.0.0.1:81/ready",
            ),
            (&["--port=0"], "--port 0 lets the system choose the port; give --url"),
            (&["--nnodes=2", "--node-rank=1"], "worker"),
        ] {
            assert_eq!(found(flags), url, "{flags:?}");
        }
    }

    #[test]
    fn a_url_without_a_path_gets_that_of_the_probe() {
        assert_eq!(with_path("http://host:8080", PROBE).unwrap(), "http://host:8080/ready");
        assert_eq!(with_path("http://host:80", PROBE).unwrap(), "http://host/ready");
        assert_eq!(with_path("https://host/health", PROBE).unwrap(), "https://host/health");
        for wrong in ["host:80", "unix:/socket", ""] {
            assert!(format!("{:#}", with_path(wrong, PROBE).unwrap_err()).starts_with("--url "), "{wrong}");
        }
    }
}
