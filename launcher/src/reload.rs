//! SIGHUP: reads the files with API keys and certificates again.

use anyhow::Result;
use millrace_router::http::ApiKeys;
use millrace_router::serve::Tls;

use crate::cli::HttpArgs;

/// The parts of a running server that come from files that may change.
pub(crate) struct Reloadable {
    http: HttpArgs,
    keys: ApiKeys,
    tls: Option<Tls>,
}

impl Reloadable {
    /// Returns the parts that can be read again. `None` if no file has any of them: then SIGHUP
    /// ends the process, as when its terminal is closed.
    pub(crate) fn new(http: &HttpArgs, keys: &ApiKeys, tls: Option<&Tls>) -> Option<Reloadable> {
        let is_needed = http.api_key_file.is_some() || tls.is_some();
        is_needed.then(|| Reloadable { http: http.clone(), keys: keys.clone(), tls: tls.cloned() })
    }

    /// Reads the files at each SIGHUP. What cannot be used is named, and what was read before
    /// stays.
    ///
    /// # Errors
    /// If the signal cannot be received.
    #[cfg(unix)]
    pub(crate) fn listen(self) -> Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut hangups = signal(SignalKind::hangup())?;
        let this = std::sync::Arc::new(self);
        tokio::spawn(async move {
            while hangups.recv().await.is_some() {
                let this = this.clone();
                // A panic has been logged.
                let _ = tokio::task::spawn_blocking(move || this.read()).await;
            }
        });
        Ok(())
    }

    #[cfg(not(unix))]
    pub(crate) fn listen(self) -> Result<()> {
        Ok(())
    }

    #[cfg(unix)]
    fn read(&self) {
        if self.http.api_key_file.is_some() {
            match self.http.keys() {
                Ok(keys) => {
                    self.keys.replace(&keys);
                    tracing::info!("SIGHUP: {} API keys are read again", self.keys.count());
                }
                Err(error) => tracing::error!("SIGHUP: the API keys stay as they are: {error:#}"),
            }
        }
        if let Some(tls) = &self.tls {
            match tls.reload() {
                Ok(()) => tracing::info!("SIGHUP: the TLS certificate is read again"),
                Err(error) => tracing::error!("SIGHUP: the TLS certificate stays as it is: {error}"),
            }
        }
    }
}
