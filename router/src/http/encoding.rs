//! Compressed request bodies: `content-encoding: gzip` or `zstd`.
//!
//! A compressed body is unpacked before its route reads it. `--payload-limit` bounds its size both
//! before and after, and the unpacked bytes count toward `--max-body-bytes-in-flight`. A small body
//! that unpacks to a large one therefore takes no more memory than a large body.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Buf;

use super::api::Api;
use super::app::App;
use super::body::{BodyOutcome, SharedBodyOutcome};

/// Bytes that are unpacked at once.
const PIECE_BYTES: usize = 64 << 10;

/// The binary logarithm of zstd's largest window, 8 MiB, which RFC 8878 recommends every decoder to
/// support.
const WINDOW_LOG: u32 = 23;

/// Reserves memory for the bodies of all requests. The connection stores it in the request's
/// extensions.
#[derive(Clone)]
pub(crate) struct BodyMemory(Arc<dyn Fn(usize) -> bool + Send + Sync>);

impl BodyMemory {
    /// `reserve` takes a number of bytes, or returns false if not so many are left.
    pub(crate) fn new(reserve: impl Fn(usize) -> bool + Send + Sync + 'static) -> Self {
        BodyMemory(Arc::new(reserve))
    }
}

impl fmt::Debug for BodyMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyMemory").finish_non_exhaustive()
    }
}

/// The compression of a body.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Gzip,
    Zstd,
}

/// The reason why a body was not unpacked.
#[derive(Debug)]
enum UnpackError {
    /// The data do not have the declared encoding.
    Invalid(io::Error),
    /// The unpacked body is larger than `--payload-limit`.
    TooLarge,
    /// The bodies of all requests together take too much memory.
    NoRoom,
}

/// Unpacks the body of a request that has one of the supported encodings, and refuses other
/// encodings.
pub(super) async fn decode(State(app): State<App>, request: Request, next: Next) -> Response {
    let api = Api::of(request.uri().path());
    let encoding = match encoding(request.headers()) {
        Ok(None) => return next.run(request).await,
        Ok(Some(encoding)) => encoding,
        Err(()) => {
            let text = "`content-encoding` must be gzip, zstd or identity, and only one of them".to_owned();
            let mut response = api.refused(StatusCode::UNSUPPORTED_MEDIA_TYPE, text);
            response.headers_mut().insert(header::ACCEPT_ENCODING, HeaderValue::from_static("gzip, zstd"));
            return response;
        }
    };
    let limit = app.service.payload_limit();
    let (mut parts, body) = request.into_parts();
    let Ok(packed) = axum::body::to_bytes(body, limit).await else {
        return unread(api, parts.extensions.get::<SharedBodyOutcome>());
    };
    let memory = parts.extensions.get::<BodyMemory>().cloned();
    // The work is proportional to the size of the unpacked body, which is at most the limit.
    let unpacked = app.service.in_turn_for(limit.min(packed.len().saturating_mul(1024)), move || {
        unpack(encoding, packed, limit, memory.as_ref())
    });
    match unpacked.await {
        Ok(bytes) => {
            parts.headers.remove(header::CONTENT_ENCODING);
            parts.headers.insert(header::CONTENT_LENGTH, bytes.len().into());
            next.run(Request::from_parts(parts, Body::from(bytes))).await
        }
        Err(UnpackError::Invalid(error)) => {
            let name = if encoding == Encoding::Gzip { "gzip" } else { "zstd" };
            api.refused(
                StatusCode::BAD_REQUEST,
                format!("Failed to unpack the request body as {name}: {error}"),
            )
        }
        // The layer around this one writes the text of the error.
        Err(UnpackError::TooLarge) => api.refused(StatusCode::PAYLOAD_TOO_LARGE, String::new()),
        Err(UnpackError::NoRoom) => {
            if let Some(outcome) = parts.extensions.get::<SharedBodyOutcome>() {
                // The layer around this one replaces the response.
                outcome.set(BodyOutcome::NoMemory);
            }
            api.refused(
                StatusCode::SERVICE_UNAVAILABLE,
                "The server has no memory for the request now".into(),
            )
        }
    }
}

/// The response to a request whose body could not be read.
fn unread(api: Api, outcome: Option<&SharedBodyOutcome>) -> Response {
    let (status, reason) = match outcome.map(SharedBodyOutcome::get) {
        Some(BodyOutcome::TooSlow) => (StatusCode::BAD_REQUEST, "the body took too long"),
        Some(BodyOutcome::Incomplete) => (StatusCode::BAD_REQUEST, "the body is incomplete"),
        _ => (StatusCode::PAYLOAD_TOO_LARGE, "length limit exceeded"),
    };
    api.refused(status, format!("Failed to buffer the request body: {reason}"))
}

/// Returns the encoding of a body, or an error if it is not supported or there are several.
fn encoding(headers: &HeaderMap) -> Result<Option<Encoding>, ()> {
    let mut encodings = headers.get_all(header::CONTENT_ENCODING).iter();
    let Some(first) = encodings.next() else { return Ok(None) };
    if encodings.next().is_some() {
        return Err(());
    }
    match first.to_str().map_err(|_| ())?.trim().to_ascii_lowercase().as_str() {
        "" | "identity" => Ok(None),
        "gzip" | "x-gzip" => Ok(Some(Encoding::Gzip)),
        "zstd" => Ok(Some(Encoding::Zstd)),
        _ => Err(()),
    }
}

/// Unpacks a body of at most `limit` bytes.
fn unpack(
    encoding: Encoding,
    packed: Bytes,
    limit: usize,
    memory: Option<&BodyMemory>,
) -> Result<Vec<u8>, UnpackError> {
    let packed = packed.reader();
    match encoding {
        Encoding::Gzip => read_all(flate2::bufread::MultiGzDecoder::new(packed), limit, memory),
        Encoding::Zstd => {
            let mut decoder =
                zstd::stream::read::Decoder::with_buffer(packed).map_err(UnpackError::Invalid)?;
            decoder.window_log_max(WINDOW_LOG).map_err(UnpackError::Invalid)?;
            read_all(decoder, limit, memory)
        }
    }
}

/// Reads to the end, or stops soon after `limit` bytes.
fn read_all(mut from: impl Read, limit: usize, memory: Option<&BodyMemory>) -> Result<Vec<u8>, UnpackError> {
    let (mut all, mut piece) = (Vec::new(), vec![0; PIECE_BYTES]);
    loop {
        let read = match from.read(&mut piece) {
            Ok(0) => return Ok(all),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(UnpackError::Invalid(error)),
        };
        if all.len() + read > limit {
            return Err(UnpackError::TooLarge);
        }
        let grown = (all.len() + read).max((all.capacity() * 2).min(limit));
        if all.len() + read > all.capacity() {
            if memory.is_some_and(|memory| !(memory.0)(grown - all.capacity())) {
                return Err(UnpackError::NoRoom);
            }
            all.reserve_exact(grown - all.len());
        }
        all.extend_from_slice(piece.get(..read).unwrap_or_default());
    }
}
