//! The choice of the tenant of a request.

use std::str::FromStr;

use axum::http::{HeaderMap, HeaderName};

use crate::engine::Tenant;

/// Maximum number of characters of a tenant's name.
const MAX_NAME_LENGTH: usize = 128;

/// The source of the tenant of a request.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum FairBy {
    /// The API key. Without keys all requests have the same tenant.
    #[default]
    Key,
    /// The value of a header, or the API key of a request without the header. A client may invent
    /// tenants to get a larger share, so this is for servers behind a gateway that sets the header.
    Header(HeaderName),
}

/// The error of a text that is not a [`FairBy`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("give `key` or `header:NAME`")]
pub struct UnknownFairBy;

impl FromStr for FairBy {
    type Err = UnknownFairBy;

    /// Reads `key` or `header:NAME`.
    fn from_str(text: &str) -> Result<Self, UnknownFairBy> {
        match text.split_once(':') {
            None if text == "key" => Ok(FairBy::Key),
            Some(("header", name)) => name.parse().map(FairBy::Header).map_err(|_| UnknownFairBy),
            _ => Err(UnknownFairBy),
        }
    }
}

impl FairBy {
    /// The tenant that a header names, if it counts and is at most 128 visible ASCII characters.
    pub(super) fn named_tenant(&self, headers: &HeaderMap) -> Option<Tenant> {
        let FairBy::Header(name) = self else { return None };
        let value = headers.get(name)?.to_str().ok()?;
        let fits = !value.is_empty() && value.len() <= MAX_NAME_LENGTH;
        fits.then(|| Tenant::named(format!("header {value}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tenant_comes_from_the_header_that_the_operator_names() {
        assert_eq!("key".parse(), Ok(FairBy::Key));
        let by: FairBy = "header:X-Tenant".parse().unwrap();
        for wrong in ["", "keys", "header", "header:", "header:a b", "user"] {
            assert_eq!(wrong.parse::<FairBy>(), Err(UnknownFairBy), "{wrong}");
        }
        let long = "x".repeat(129);
        for (value, tenant) in
            [("a", Some("header a")), ("key 0", Some("header key 0")), ("", None), (&long, None)]
        {
            let headers =
                HeaderMap::from_iter([(HeaderName::from_static("x-tenant"), value.parse().unwrap())]);
            assert_eq!(by.named_tenant(&headers), tenant.map(Tenant::named), "{value}");
            assert_eq!(FairBy::Key.named_tenant(&headers), None);
        }
        assert_eq!(by.named_tenant(&HeaderMap::new()), None);
    }
}
