//! The sender of a request.

use std::sync::Arc;

use super::error::ServiceError;
use crate::engine::{Account, Priority, Tenant};

/// The holder of an API key. It determines which cached prefixes its requests share, which
/// priorities they may have, and how many tokens and places they get.
#[derive(Debug, Clone)]
pub(crate) struct Caller {
    /// Name of the prefix cache that only this caller's requests use; `None` for the shared cache.
    /// It contains no NUL.
    partition: Option<Arc<str>>,
    may_ask_high: bool,
    /// The tenant of the requests, unless a header names another one.
    tenant: Tenant,
    /// The limits of the key, and what it uses; `None` for a key without a limit or a name.
    account: Option<Arc<Account>>,
}

impl Caller {
    /// A caller with the prefix cache `partition`, or with the shared one.
    pub(crate) fn new(partition: Option<Arc<str>>, may_ask_high: bool) -> Self {
        debug_assert!(partition.as_ref().is_none_or(|name| !name.contains('\0')), "NUL terminates the name");
        Caller { partition, may_ask_high, tenant: Tenant::default(), account: None }
    }

    /// The same caller as this tenant.
    pub(crate) fn for_tenant(self, tenant: Tenant) -> Self {
        Caller { tenant, ..self }
    }

    /// The same caller with an account.
    pub(crate) fn with_account(self, account: Option<Arc<Account>>) -> Self {
        Caller { account, ..self }
    }

    /// The tenant of the caller's requests.
    pub(crate) fn tenant(&self) -> &Tenant {
        &self.tenant
    }

    /// The account of the caller.
    pub(crate) fn account(&self) -> Option<&Arc<Account>> {
        self.account.as_ref()
    }

    /// Checks that this caller may use `priority`.
    ///
    /// # Errors
    /// [`ServiceError::Forbidden`] if not.
    pub(crate) fn check_priority(&self, priority: Priority) -> Result<(), ServiceError> {
        if priority == Priority::High && !self.may_ask_high {
            return Err(ServiceError::Forbidden {
                param: "priority",
                detail: "`priority` high needs an API key that the operator has marked with `priority=high`; ask for \
                         `normal` or `low` with this one"
                    .into(),
            });
        }
        Ok(())
    }

    /// The scheduler's salt for a request: the caller's partition and, within it, the client's own
    /// salt. A NUL terminates the partition, so a client cannot choose a salt that names the
    /// partition of another caller.
    pub(crate) fn salt(&self, own: Option<&Arc<str>>) -> Option<Arc<str>> {
        match (&self.partition, own) {
            (None, own) => own.cloned(),
            (Some(partition), None) => Some(partition.clone()),
            (Some(partition), Some(own)) => Some(format!("{partition}\0{own}").into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn salts_of_different_callers_never_collide() {
        let partitions = ["key 0", "key 1", "key 10"];
        let own: [Option<Arc<str>>; 7] = [
            None,
            Some("".into()),
            Some("a".into()),
            Some("\0".into()),
            Some("key 1".into()),
            Some("key 1\0a".into()),
            Some("0\0a".into()),
        ];
        let mut salts = HashSet::new();
        for partition in partitions {
            let caller = Caller::new(Some(partition.into()), true);
            salts.extend(own.iter().map(|own| caller.salt(own.as_ref())));
        }
        assert_eq!(salts.len(), partitions.len() * own.len());
        assert!(!salts.contains(&None));
        let shared = Caller::new(None, true);
        assert!(own.iter().all(|own| shared.salt(own.as_ref()) == *own));
    }
}
