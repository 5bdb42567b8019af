//! Downloads on threads of their own: writing files and hashing must not delay the threads that
//! answer requests.

use std::future::Future;

use anyhow::{Context, Result, bail};
use millrace_router::serve::shutdown_signal;
use tokio::runtime::Runtime;
use tokio::sync::oneshot;

use super::fetch::WeightDownload;
use super::progress::DownloadProgress;

/// Threads of a download. Hashing SHA-256 takes a second per gigabyte or two on each.
const THREADS: usize = 4;

/// A download that runs on its own threads. It is cancelled when this is dropped.
#[derive(Debug)]
pub(crate) struct BackgroundDownload {
    /// The counters of bytes.
    pub(crate) progress: DownloadProgress,
    finished: oneshot::Receiver<Result<(), String>>,
    runtime: Option<Runtime>,
}

impl BackgroundDownload {
    /// Starts the download.
    ///
    /// # Errors
    /// If the threads cannot be started.
    pub(crate) fn start(download: WeightDownload) -> Result<BackgroundDownload> {
        let (runtime, progress) = (runtime()?, download.progress());
        let (sender, finished) = oneshot::channel();
        runtime.spawn(async move {
            let result = download.run().await.map_err(|error| error.to_string());
            // Nobody waits any more if the server is ending.
            let _ = sender.send(result);
        });
        Ok(BackgroundDownload { progress, finished, runtime: Some(runtime) })
    }

    /// Waits for the end.
    ///
    /// # Errors
    /// The reason for which the download failed.
    pub(crate) async fn finish(mut self) -> Result<(), String> {
        let result = (&mut self.finished).await;
        result.unwrap_or_else(|_| Err("the download has ended unexpectedly".to_owned()))
    }
}

impl Drop for BackgroundDownload {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Runs a download, and ends it at a signal. Files that are not complete stay in the cache.
///
/// # Errors
/// The error of the download, or that a signal ended it.
pub(crate) fn block_on<T, E>(download: impl Future<Output = Result<T, E>>) -> Result<T>
where
    E: std::error::Error + Send + Sync + 'static,
{
    let runtime = runtime()?;
    let result = runtime.block_on(async {
        let asked = shutdown_signal().context("cannot wait for SIGTERM")?;
        tokio::select! {
            result = download => Ok(result?),
            () = asked => bail!("interrupted; the next start continues the download"),
        }
    });
    runtime.shutdown_background();
    result
}

fn runtime() -> Result<Runtime> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(THREADS).thread_name("download").enable_all();
    builder.build().context("cannot start threads for the download")
}
