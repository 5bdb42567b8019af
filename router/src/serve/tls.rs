//! Certificates and keys for TLS.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use millrace_formats::regular_file;
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::{self, ServerConfig};
use tokio_rustls::server::TlsStream;

/// The maximum number of bytes of a file with certificates or a key.
const MAX_PEM: u64 = 16 << 20;

/// Reasons why TLS cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file cannot be read, or is not PEM.
    #[error("{path}: {error}", path = path.display())]
    File {
        /// The path of the file.
        path: PathBuf,
        /// The error of the file.
        error: pem::Error,
    },
    /// The file contains no certificate.
    #[error("{}: no certificate in it (BEGIN CERTIFICATE)", .0.display())]
    NoCertificate(PathBuf),
    /// The certificate and the key cannot be used, or do not belong together.
    #[error("the TLS certificate and key cannot be used: {0}")]
    Pair(#[from] rustls::Error),
}

/// A certificate and its key. Offers HTTP/2 and HTTP/1.1. Clones share them.
#[derive(Clone)]
pub struct Tls {
    certificates: PathBuf,
    key: PathBuf,
    acceptor: Arc<RwLock<TlsAcceptor>>,
}

impl std::fmt::Debug for Tls {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tls")
    }
}

impl Tls {
    /// Reads a certificate chain, which begins with the server's certificate, and the key of that
    /// certificate. Both files are PEM.
    ///
    /// # Errors
    /// [`TlsError`] names the file.
    pub fn from_files(certificates: &Path, key: &Path) -> Result<Self, TlsError> {
        let acceptor = Arc::new(RwLock::new(acceptor(certificates, key)?));
        Ok(Tls { certificates: certificates.to_owned(), key: key.to_owned(), acceptor })
    }

    /// Reads the files again. Connections that are open keep their certificate.
    ///
    /// # Errors
    /// [`TlsError`] names the file. The former certificate stays in use.
    pub fn reload(&self) -> Result<(), TlsError> {
        let new = acceptor(&self.certificates, &self.key)?;
        *self.acceptor.write().unwrap_or_else(PoisonError::into_inner) = new;
        Ok(())
    }

    pub(super) async fn accept(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        let acceptor = self.acceptor.read().unwrap_or_else(PoisonError::into_inner).clone();
        acceptor.accept(stream).await
    }
}

fn acceptor(certificates: &Path, key: &Path) -> Result<TlsAcceptor, TlsError> {
    let about = |path: &Path| {
        let path = path.to_owned();
        |error| TlsError::File { path, error }
    };
    let read =
        |path: &Path| regular_file::read(path, MAX_PEM).map_err(|error| about(path)(pem::Error::Io(error)));
    let chain = CertificateDer::pem_slice_iter(&read(certificates)?)
        .collect::<Result<Vec<_>, _>>()
        .map_err(about(certificates))?;
    if chain.is_empty() {
        return Err(TlsError::NoCertificate(certificates.to_owned()));
    }
    let key = PrivateKeyDer::from_pem_slice(&read(key)?).map_err(about(key))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_single_cert(chain, key)?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}
