//! Bodies of requests that are compressed: `content-encoding: gzip` or `zstd`.
//!
//! A compressed body is unpacked before its route sees it. `--payload-limit` bounds its size both
//! before and after, and the unpacked bytes count toward `--max-body-bytes-in-flight`, so that a small
//! body that unpacks to a large one costs no more than a large one.

use std::fmt;
use std::io::{self, Read};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use bytes::Buf;

use super::body::{Api, BodyFate, SharedFate};
use super::{App, offload};

/// Bytes that are unpacked at once.
const PIECE: usize = 64 << 10;

/// The logarithm of the largest window of zstd, 8 MiB: what RFC 8878 recommends every decoder to support.
const WINDOW_LOG: u32 = 23;

/// Takes more of the memory for the bodies of all requests. Whoever reads the connection puts it into the
/// request's extensions.
#[derive(Clone)]
pub(crate) struct BodyRoom(Arc<dyn Fn(usize) -> bool + Send + Sync>);

impl BodyRoom {
    /// `take` is false if there are not so many bytes left.
    pub(crate) fn new(take: impl Fn(usize) -> bool + Send + Sync + 'static) -> Self {
        BodyRoom(Arc::new(take))
    }
}

impl fmt::Debug for BodyRoom {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BodyRoom").finish_non_exhaustive()
    }
}

/// How a body is compressed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encoding {
    Gzip,
    Zstd,
}

/// Why a body was not unpacked.
#[derive(Debug)]
enum Refusal {
    /// It is no such data.
    Invalid(io::Error),
    /// It is larger than any body may be.
    TooLarge,
    /// The bodies of all requests together take too much memory.
    NoRoom,
}

/// Unpacks the body of a request that has one of the encodings, and refuses other encodings.
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
    let limit = app.service.limits().payload_limit;
    let (mut parts, body) = request.into_parts();
    let Ok(packed) = axum::body::to_bytes(body, limit).await else {
        return unread(api, parts.extensions.get::<SharedFate>());
    };
    let room = parts.extensions.get::<BodyRoom>().cloned();
    // The work is proportional to what may come out of it, which is at most the limit.
    let unpacked = offload::run(limit.min(packed.len().saturating_mul(1024)), move || {
        unpack(encoding, packed, limit, room.as_ref())
    });
    match unpacked.await {
        Ok(bytes) => {
            parts.headers.remove(header::CONTENT_ENCODING);
            parts.headers.insert(header::CONTENT_LENGTH, bytes.len().into());
            next.run(Request::from_parts(parts, Body::from(bytes))).await
        }
        Err(Refusal::Invalid(error)) => {
            let name = if encoding == Encoding::Gzip { "gzip" } else { "zstd" };
            api.refused(
                StatusCode::BAD_REQUEST,
                format!("Failed to unpack the request body as {name}: {error}"),
            )
        }
        Err(Refusal::TooLarge) => {
            let text = format!(
                "The request body has more than {limit} bytes when it is unpacked: length limit exceeded"
            );
            api.refused(StatusCode::PAYLOAD_TOO_LARGE, text)
        }
        Err(Refusal::NoRoom) => {
            if let Some(fate) = parts.extensions.get::<SharedFate>() {
                // The layer around this one says what that means.
                fate.set(BodyFate::NoRoom);
            }
            api.refused(
                StatusCode::SERVICE_UNAVAILABLE,
                "The server has no memory for the request now".into(),
            )
        }
    }
}

/// The answer to a request whose body could not be read.
fn unread(api: Api, fate: Option<&SharedFate>) -> Response {
    let (status, why) = match fate.map(SharedFate::get) {
        Some(BodyFate::TooSlow) => (StatusCode::BAD_REQUEST, "the body took too long"),
        Some(BodyFate::Broken) => (StatusCode::BAD_REQUEST, "the body is incomplete"),
        _ => (StatusCode::PAYLOAD_TOO_LARGE, "length limit exceeded"),
    };
    api.refused(status, format!("Failed to buffer the request body: {why}"))
}

/// The encoding of a body; an error if it is none that is served, or more than one.
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

fn unpack(
    encoding: Encoding,
    packed: Bytes,
    limit: usize,
    room: Option<&BodyRoom>,
) -> Result<Vec<u8>, Refusal> {
    let packed = packed.reader();
    match encoding {
        Encoding::Gzip => gather(flate2::bufread::MultiGzDecoder::new(packed), limit, room),
        Encoding::Zstd => {
            let mut decoder = zstd::stream::read::Decoder::with_buffer(packed).map_err(Refusal::Invalid)?;
            decoder.window_log_max(WINDOW_LOG).map_err(Refusal::Invalid)?;
            gather(decoder, limit, room)
        }
    }
}

/// Reads to the end, and not much further than `limit`.
fn gather(mut from: impl Read, limit: usize, room: Option<&BodyRoom>) -> Result<Vec<u8>, Refusal> {
    let (mut all, mut piece) = (Vec::new(), vec![0; PIECE]);
    loop {
        let read = match from.read(&mut piece) {
            Ok(0) => return Ok(all),
            Ok(read) => read,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Refusal::Invalid(error)),
        };
        if all.len() + read > limit {
            return Err(Refusal::TooLarge);
        }
        let grown = (all.len() + read).max((all.capacity() * 2).min(limit));
        if all.len() + read > all.capacity() {
            if room.is_some_and(|room| !(room.0)(grown - all.capacity())) {
                return Err(Refusal::NoRoom);
            }
            all.reserve_exact(grown - all.len());
        }
        all.extend_from_slice(piece.get(..read).unwrap_or_default());
    }
}
