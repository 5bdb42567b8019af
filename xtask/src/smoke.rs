//! Runs the README's first command as a new user does.

use std::io::{BufRead, BufReader, Read, Result, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const QUESTION: &str = r#"{"messages": [{"role": "user", "content": "Tell me a story about a fox and a lantern."}], "stream": true}"#;

/// Builds and serves the demo model on a free port, and streams one answer.
pub(crate) fn run() -> bool {
    eprintln!("$ cargo run --release -- serve --port 0");
    let server = Command::new(crate::cargo::cargo_path())
        .args(["run", "--release", "--", "serve", "--port", "0"])
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut server) = server else { return false };
    let answer = ask(&mut server);
    // This ends the server too: Cargo replaces itself by the program, or forwards the signal.
    let _ = Command::new("kill").args(["-TERM", &server.id().to_string()]).status();
    let _ = server.wait();
    match answer {
        Ok(answer) if answer.starts_with("HTTP/1.1 200") && answer.contains("data: [DONE]") => {
            eprintln!("{answer}\nthe README's first command works");
            true
        }
        other => {
            eprintln!("the README's first command does not work: {other:?}");
            false
        }
    }
}

/// Sends one streamed chat request and returns the raw HTTP response.
fn ask(server: &mut Child) -> Result<String> {
    let stderr = server.stderr.take().ok_or_else(|| std::io::Error::other("no standard error"))?;
    let mut lines = BufReader::new(stderr).lines();
    let address = loop {
        let line = lines.next().ok_or_else(|| std::io::Error::other("the server has ended"))??;
        eprintln!("{line}");
        if let Some((_, address)) = line.split_once("listening on http://") {
            break address.trim().to_owned();
        }
    };
    // The pipe is read to its end, so that later log lines do not block the server.
    std::thread::spawn(move || lines.map_while(Result::ok).for_each(|line| eprintln!("{line}")));
    loop {
        let answer = post(&address)?;
        if !answer.starts_with("HTTP/1.1 503") {
            return Ok(answer);
        }
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn post(address: &str) -> Result<String> {
    let mut socket = TcpStream::connect(address)?;
    // On a busy machine the first token may take long. Only a server that hangs reaches this limit.
    socket.set_read_timeout(Some(Duration::from_secs(600)))?;
    write!(
        socket,
        "POST /v1/chat/completions HTTP/1.1\r\nhost: {address}\r\ncontent-type: application/json\r\n\
         content-length: {}\r\nconnection: close\r\n\r\n{QUESTION}",
        QUESTION.len()
    )?;
    let mut answer = String::new();
    socket.read_to_string(&mut answer)?;
    Ok(answer)
}
