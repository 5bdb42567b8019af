//! A server that plays the Hugging Face hub, with a second port for the host that large files are
//! redirected to.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};

use crate::wait_limit;

/// The commit of the only revision.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The size from which files are stored elsewhere, as on the hub.
const LARGE: usize = 1 << 20;

/// A request that the hub has received.
#[derive(Debug, Clone)]
pub struct HubRequest {
    /// `GET` or `HEAD`.
    pub method: String,
    /// The path, without the query.
    pub path: String,
    /// Whether it came to the port for large files.
    pub is_cdn: bool,
    /// The header `Authorization`.
    pub authorization: Option<String>,
    /// The first byte of the header `Range`.
    pub start: Option<usize>,
}

/// A deviation of the hub from the right answer.
#[derive(Debug, Clone)]
pub enum Fault {
    /// Another status, with these headers.
    Status(u16, Vec<(&'static str, &'static str)>),
    /// The connection ends after so many bytes of the body.
    BreakAfter(usize),
    /// The connection stays open after so many bytes of the body, but nothing more comes until the
    /// client gives up, or [`FakeHub::end_stalls`] is called.
    StallAfter(usize),
    /// After so many bytes of the body, one more comes every 20 ms.
    TrickleAfter(usize),
    /// So many bytes of the body come at once, with a short pause after each.
    Slow(usize),
    /// The bytes of the body are wrong.
    WrongBytes,
    /// The whole file comes although a part is asked for.
    IgnoreRange,
    /// `Content-Length` is larger than the file by so much.
    WrongLength(usize),
}

type FaultOf = Box<dyn FnMut(&HubRequest) -> Option<Fault> + Send>;

/// A running hub with one repository, `org/tiny`.
pub struct FakeHub {
    /// The address, without a slash at its end.
    pub url: String,
    state: Arc<HubState>,
}

struct HubState {
    files: Vec<(String, Vec<u8>)>,
    cdn: String,
    listing: Mutex<Value>,
    faults: Mutex<FaultOf>,
    requests: Mutex<Vec<HubRequest>>,
    stalls_have_ended: AtomicBool,
}

impl FakeHub {
    /// Starts a hub with the demo model.
    pub fn with_demo_model() -> FakeHub {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/demo");
        let names = [
            "config.json",
            "generation_config.json",
            "model.safetensors",
            "tokenizer.json",
            "tokenizer_config.json",
        ];
        let files = names.iter().map(|name| ((*name).to_owned(), std::fs::read(folder.join(name)).unwrap()));
        let more = ["README.md", "consolidated.safetensors", "original/model.safetensors", "model.gguf"];
        let more = more.iter().map(|name| ((*name).to_owned(), b"not needed".to_vec()));
        FakeHub::start(files.chain(more).collect())
    }

    /// Starts a hub with these files.
    pub fn start(files: Vec<(String, Vec<u8>)>) -> FakeHub {
        let listen = || TcpListener::bind("127.0.0.1:0").unwrap();
        let (hub, cdn) = (listen(), listen());
        let address = |listener: &TcpListener| format!("http://{}", listener.local_addr().unwrap());
        let (url, cdn_url) = (address(&hub), address(&cdn));
        let siblings: Vec<Value> = files.iter().map(|(name, bytes)| sibling(name, bytes)).collect();
        let listing = json!({"id": "org/tiny", "sha": COMMIT, "private": false, "siblings": siblings});
        let state = Arc::new(HubState {
            files,
            cdn: cdn_url,
            listing: Mutex::new(listing),
            faults: Mutex::new(Box::new(|_| None)),
            requests: Mutex::default(),
            stalls_have_ended: AtomicBool::new(false),
        });
        for (listener, is_cdn) in [(hub, false), (cdn, true)] {
            let state = state.clone();
            std::thread::spawn(move || {
                for connection in listener.incoming().flatten() {
                    let state = state.clone();
                    std::thread::spawn(move || drop(state.answer(connection, is_cdn)));
                }
            });
        }
        FakeHub { url, state }
    }

    /// Chooses the faults of the requests that follow.
    pub fn set_faults(&self, faults: impl FnMut(&HubRequest) -> Option<Fault> + Send + 'static) {
        *self.state.faults.lock().unwrap() = Box::new(faults);
    }

    /// Closes the connections that [`Fault::StallAfter`] keeps open, and those that it would.
    pub fn end_stalls(&self) {
        self.state.stalls_have_ended.store(true, Ordering::Relaxed);
    }

    /// Changes the list of files.
    pub fn edit_listing(&self, edit: impl FnOnce(&mut Value)) {
        edit(&mut self.state.listing.lock().unwrap());
    }

    /// Returns the requests so far.
    pub fn requests(&self) -> Vec<HubRequest> {
        self.state.requests.lock().unwrap().clone()
    }

    /// Returns the requests so far for the content of the file with this name.
    pub fn downloads_of(&self, name: &str) -> Vec<HubRequest> {
        let path = format!("/{name}");
        let is_download = |request: &HubRequest| request.method == "GET" && request.path.ends_with(&path);
        self.requests().into_iter().filter(is_download).collect()
    }

    /// Returns the command `millrace` with these arguments, which uses this hub and the cache in
    /// `folder`.
    pub fn millrace(&self, folder: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new(crate::binary());
        command.args(arguments).envs(self.environment(folder)).stdin(Stdio::null());
        for absent in ["HF_TOKEN", "HF_HUB_OFFLINE", "MODEL_ID", "REVISION", "LOG_LEVEL", "RUST_LOG"] {
            command.env_remove(absent);
        }
        command
    }

    /// Returns variables for the use of this hub with the cache in `folder`. Retries follow soon.
    pub fn environment(&self, folder: &Path) -> Vec<(String, String)> {
        let cache = folder.join("hub").to_str().unwrap().to_owned();
        let fixed = [
            ("HF_ENDPOINT", self.url.as_str()),
            ("HF_HOME", folder.to_str().unwrap()),
            ("HF_HUB_CACHE", &cache),
            ("HUGGINGFACE_HUB_CACHE", &cache),
            ("NO_PROXY", "127.0.0.1"),
            ("no_proxy", "127.0.0.1"),
            ("MILLRACE_HUB_RETRY_PAUSE", "0.02"),
            // A busy machine may not use up the timeouts, which Python reads as integers.
            ("HF_HUB_DOWNLOAD_TIMEOUT", "600"),
            ("HF_HUB_ETAG_TIMEOUT", "600"),
        ];
        fixed.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    }

    /// Runs `millrace download org/tiny` with more variables and arguments.
    pub fn download(&self, folder: &Path, variables: &[(&str, &str)], arguments: &[&str]) -> Output {
        let arguments = [&["download", "org/tiny"], arguments].concat();
        self.millrace(folder, &arguments).envs(variables.iter().copied()).output().unwrap()
    }
}

/// Returns the folder of the snapshot in the cache in `folder`.
pub fn snapshot(folder: &Path) -> PathBuf {
    folder.join("hub/models--org--tiny/snapshots").join(COMMIT)
}

/// Describes a file in the list of files.
fn sibling(name: &str, bytes: &[u8]) -> Value {
    let mut sibling = json!({"rfilename": name, "size": bytes.len(), "blobId": git_hash(bytes)});
    if is_large(bytes) {
        sibling["lfs"] = json!({"sha256": sha256(bytes), "size": bytes.len(), "pointerSize": 132});
    }
    sibling
}

fn is_large(bytes: &[u8]) -> bool {
    bytes.len() >= LARGE
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn sha256(bytes: &[u8]) -> String {
    hexadecimal(&Sha256::digest(bytes))
}

/// Returns the hash of a file as `git hash-object` computes it.
fn git_hash(bytes: &[u8]) -> String {
    let mut hasher = Sha1::new();
    hasher.update(format!("blob {}\0", bytes.len()));
    hasher.update(bytes);
    hexadecimal(&hasher.finalize())
}

impl HubState {
    /// Answers one request, and closes the connection.
    fn answer(&self, mut connection: TcpStream, is_cdn: bool) -> std::io::Result<()> {
        connection.set_read_timeout(Some(wait_limit()))?;
        let Some(request) = read_request(&connection, is_cdn)? else { return Ok(()) };
        self.requests.lock().unwrap().push(request.clone());
        let fault = (self.faults.lock().unwrap())(&request);
        if let Some(Fault::Status(status, headers)) = &fault {
            let headers: String =
                headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
            return write!(
                connection,
                "HTTP/1.1 {status} X\r\n{headers}content-length: 0\r\nconnection: close\r\n\r\n"
            );
        }
        if request.path.contains("/api/models/org/tiny") {
            let body = self.listing.lock().unwrap().to_string();
            return self.send(&mut connection, &request, body.as_bytes(), "", fault);
        }
        let name = request.path.split_once(&format!("/resolve/{COMMIT}/")).map(|(_, name)| name);
        let file = self.files.iter().find(|(file, _)| Some(file.as_str()) == name);
        let Some((name, bytes)) = file else {
            let headers = "x-error-code: RepoNotFound\r\ncontent-length: 0\r\nconnection: close";
            return write!(connection, "HTTP/1.1 404 X\r\n{headers}\r\n\r\n");
        };
        if is_large(bytes) && !is_cdn {
            let (length, hash, cdn) = (bytes.len(), sha256(bytes), &self.cdn);
            return write!(
                connection,
                "HTTP/1.1 302 Found\r\nlocation: {cdn}/signed/resolve/{COMMIT}/{name}?signature=secret-signature\r\n\
                 x-repo-commit: {COMMIT}\r\nx-linked-size: {length}\r\nx-linked-etag: \"{hash}\"\r\n\
                 content-length: 0\r\nconnection: close\r\n\r\n"
            );
        }
        let headers = format!("x-repo-commit: {COMMIT}\r\netag: \"{}\"\r\n", git_hash(bytes));
        self.send(&mut connection, &request, bytes, &headers, fault)
    }

    /// Sends a body, or the part that is asked for.
    fn send(
        &self,
        connection: &mut TcpStream,
        request: &HubRequest,
        body: &[u8],
        headers: &str,
        fault: Option<Fault>,
    ) -> std::io::Result<()> {
        let total = body.len();
        let start = request.start.filter(|_| !matches!(fault, Some(Fault::IgnoreRange)));
        let mut part = body[start.unwrap_or(0).min(total)..].to_vec();
        let status = match start {
            Some(start) => {
                format!("206 Partial Content\r\ncontent-range: bytes {start}-{}/{total}", total - 1)
            }
            None => "200 OK".to_owned(),
        };
        let mut length = part.len();
        match fault {
            Some(Fault::WrongBytes) => part.iter_mut().for_each(|byte| *byte ^= 1),
            Some(Fault::WrongLength(more)) => length += more,
            _ => {}
        }
        write!(
            connection,
            "HTTP/1.1 {status}\r\n{headers}content-length: {length}\r\nconnection: close\r\n\r\n"
        )?;
        if request.method == "HEAD" {
            return Ok(());
        }
        match fault {
            Some(Fault::BreakAfter(bytes)) => connection.write_all(&part[..bytes.min(part.len())]),
            Some(Fault::StallAfter(bytes)) => {
                connection.write_all(&part[..bytes.min(part.len())])?;
                self.stall(connection)
            }
            Some(Fault::TrickleAfter(bytes)) => {
                let (first, rest) = part.split_at(bytes.min(part.len()));
                connection.write_all(first)?;
                rest.chunks(1).try_for_each(|byte| {
                    std::thread::sleep(Duration::from_millis(20));
                    connection.write_all(byte)
                })
            }
            Some(Fault::Slow(bytes)) => part.chunks(bytes).try_for_each(|bytes| {
                std::thread::sleep(Duration::from_millis(20));
                connection.write_all(bytes)
            }),
            _ => connection.write_all(&part),
        }
    }

    /// Keeps a connection open until the client gives up or [`FakeHub::end_stalls`] is called.
    fn stall(&self, connection: &mut TcpStream) -> std::io::Result<()> {
        connection.set_read_timeout(Some(Duration::from_millis(20)))?;
        while !self.stalls_have_ended.load(Ordering::Relaxed) {
            match connection.read(&mut [0]) {
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                _ => break,
            }
        }
        Ok(())
    }
}

/// Reads the head of a request.
fn read_request(connection: &TcpStream, is_cdn: bool) -> std::io::Result<Option<HubRequest>> {
    let mut lines = BufReader::new(connection).lines();
    let Some(first) = lines.next().transpose()? else { return Ok(None) };
    let mut words = first.split(' ').map(str::to_owned);
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default().to_owned();
    let mut request = HubRequest { method, path, is_cdn, authorization: None, start: None };
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        match name.to_lowercase().as_str() {
            "authorization" => request.authorization = Some(value.trim().to_owned()),
            "range" => {
                request.start = value
                    .trim()
                    .strip_prefix("bytes=")
                    .and_then(|range| range.split('-').next()?.parse().ok())
            }
            _ => {}
        }
    }
    Ok(Some(request))
}
