//! Exports trace spans to an OpenTelemetry collector.

use anyhow::{Context, Result, anyhow};
use clap::{Args, ValueEnum};
use opentelemetry::{KeyValue, global};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::propagation::TraceContextPropagator;
use opentelemetry_sdk::trace::SdkTracerProvider;

/// Flags for the export of traces.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Traces")]
pub(crate) struct TelemetryArgs {
    /// Collector that receives a span for each request and its phases, such as
    /// http://localhost:4317; traces are off if absent
    #[arg(long, env = "OTLP_ENDPOINT", value_name = "URL")]
    otlp_endpoint: Option<String>,
    /// Name of this server in traces
    #[arg(long, env = "OTLP_SERVICE_NAME", default_value = "millrace", value_name = "NAME")]
    otlp_service_name: String,
    /// Protocol of the collector: gRPC (usually port 4317), or protobuf over HTTP (usually port
    /// 4318)
    #[arg(long, env = "OTLP_PROTOCOL", default_value = "grpc", value_name = "PROTOCOL")]
    otlp_protocol: OtlpProtocol,
}

/// Protocol of a collector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OtlpProtocol {
    /// gRPC.
    Grpc,
    /// Protobuf in POST requests to `/v1/traces`.
    #[value(name = "http/protobuf", alias = "http")]
    Http,
}

/// The running export of spans. [`stop`](Self::stop) sends the remaining ones.
pub(crate) struct Telemetry(Option<SdkTracerProvider>);

impl TelemetryArgs {
    /// Starts the export if an endpoint is given. Must be called within the tokio runtime.
    ///
    /// # Errors
    /// If the endpoint is not a URL.
    pub(crate) fn start(&self) -> Result<Telemetry> {
        let Some(endpoint) = &self.otlp_endpoint else { return Ok(Telemetry(None)) };
        let exporter = match self.otlp_protocol {
            OtlpProtocol::Grpc => SpanExporter::builder().with_tonic().with_endpoint(endpoint).build(),
            OtlpProtocol::Http => over_http(endpoint),
        }
        .with_context(|| format!("--otlp-endpoint {endpoint}"))?;
        let resource = Resource::builder()
            .with_service_name(self.otlp_service_name.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .build();
        let provider =
            SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource).build();
        global::set_text_map_propagator(TraceContextPropagator::new());
        global::set_tracer_provider(provider.clone());
        Ok(Telemetry(Some(provider)))
    }
}

/// Makes the HTTP exporter on a separate thread, because its blocking client must not be created on
/// an async thread.
fn over_http(endpoint: &str) -> Result<SpanExporter, opentelemetry_otlp::ExporterBuildError> {
    let endpoint = match endpoint.trim_end_matches('/') {
        whole if whole.ends_with("/v1/traces") => whole.to_owned(),
        base => format!("{base}/v1/traces"),
    };
    let build = move || {
        SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(endpoint)
            .build()
    };
    std::thread::spawn(build).join().unwrap_or_else(|_| {
        Err(opentelemetry_otlp::ExporterBuildError::InternalFailure(
            "the HTTP client could not be created".into(),
        ))
    })
}

impl Telemetry {
    /// Sends the remaining spans. Waits at most some seconds for a collector that does not answer.
    pub(crate) async fn stop(self) {
        let Telemetry(Some(provider)) = self else { return };
        let stopped = tokio::task::spawn_blocking(move || provider.shutdown());
        let result = stopped.await.map_err(|error| anyhow!(error)).and_then(|result| Ok(result?));
        if let Err(error) = result {
            tracing::warn!("the last spans were not sent: {error:#}");
        }
    }
}
