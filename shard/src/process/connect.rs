//! Connecting to the router.

use std::net::TcpStream;

use crate::Error;
use crate::options::{RankPlacement, RouterAddress};
use crate::process::connection::Connection;
use crate::process::remote;

/// Connects to the router at the address that `placement` names.
///
/// A placement with a secret belongs to a router on another machine: this waits until that router
/// listens, and both sides prove that they know the secret.
pub(super) fn connect(placement: &RankPlacement) -> Result<Box<dyn Connection>, Error> {
    let RankPlacement { address, secret, rank, world_size, .. } = placement;
    let failed = |source| Error::Connect { address: address.to_string(), source };
    match (address, secret) {
        #[cfg(unix)]
        (RouterAddress::Unix(path), _) => {
            let stream = std::os::unix::net::UnixStream::connect(path).map_err(failed)?;
            Ok(Box::new(stream))
        }
        #[cfg(not(unix))]
        (RouterAddress::Unix(_), _) => {
            use std::io::{Error as IoError, ErrorKind};
            Err(failed(IoError::new(ErrorKind::Unsupported, "this system has no Unix sockets")))
        }
        (RouterAddress::Tcp(leader), Some(secret)) => {
            Ok(Box::new(remote::connect(leader, secret, *rank, *world_size)?))
        }
        (RouterAddress::Tcp(address), None) => {
            let stream = TcpStream::connect(address).map_err(failed)?;
            // Messages are small, and the other side waits for each of them.
            stream.set_nodelay(true).map_err(failed)?;
            Ok(Box::new(stream))
        }
    }
}
