//! Connections in memory, for tests of time limits. With a paused clock, time passes only while
//! neither side can continue, so that a slow machine changes nothing.

use std::sync::Arc;

use tokio::io::DuplexStream;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::http::{self, HttpConfig};
use crate::serve::ConnectionLimits;
use crate::serve::connection::ConnectionServer;
use crate::service::{ModelInfo, RequestLimits, Service};
use crate::test_support::{self, FakeEngine, Script};

/// The number of bytes that a connection holds in each direction.
const BUFFER_BYTES: usize = 64 << 10;

/// The part of a server that serves connections, without sockets and without the front thread.
pub(super) struct InMemoryServer {
    connections: Arc<ConnectionServer>,
    pub(super) engine: FakeEngine,
}

impl InMemoryServer {
    pub(super) fn start(script: Script, connections: ConnectionLimits) -> Self {
        Self::start_with(script, RequestLimits::default(), connections)
    }

    pub(super) fn start_with(script: Script, limits: RequestLimits, connections: ConnectionLimits) -> Self {
        let engine = FakeEngine::new(script, 64);
        let model = ModelInfo { id: "m".into(), ..ModelInfo::default() };
        let service = Service::new(&test_support::assets(), engine.engine.clone(), limits, model).unwrap();
        let app = http::router(service.clone(), HttpConfig::default());
        let limit = Box::new(move || service.payload_limit());
        let connections = ConnectionServer::new(app, connections, limit, CancellationToken::new());
        InMemoryServer { connections: Arc::new(connections), engine }
    }

    pub(super) fn connect(&self) -> DuplexStream {
        self.connect_with(BUFFER_BYTES).0
    }

    /// Opens a connection that holds `buffer_bytes` in each direction. The task completes when the
    /// server has closed it.
    pub(super) fn connect_with(&self, buffer_bytes: usize) -> (DuplexStream, JoinHandle<()>) {
        let (client, stream) = tokio::io::duplex(buffer_bytes);
        let connections = self.connections.clone();
        let serve = async move { connections.serve(stream, Instant::now()).await };
        (client, tokio::spawn(serve))
    }
}
