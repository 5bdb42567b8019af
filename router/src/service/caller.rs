//! What is known of whoever sends a request.

use std::sync::Arc;

use super::ServiceError;
use crate::engine::Priority;

/// The bearer of an API key: which cached prefixes its requests share, and what they may ask for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Names a prefix cache that only this caller's requests use; `None` for the cache that is shared. It holds no NUL.
    partition: Option<Arc<str>>,
    may_ask_high: bool,
}

impl Caller {
    /// `partition` names the caller's own prefix cache, if it has one.
    pub(crate) fn new(partition: Option<Arc<str>>, may_ask_high: bool) -> Self {
        debug_assert!(partition.as_ref().is_none_or(|name| !name.contains('\0')), "NUL ends the name");
        Caller { partition, may_ask_high }
    }

    /// Refuses a priority that this caller may not ask for.
    ///
    /// # Errors
    /// [`ServiceError::Forbidden`].
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

    /// The salt of a request in the scheduler: the caller's partition, and the client's own salt within it. The partition
    /// ends with a NUL, so no salt that a client chooses can name another caller's partition.
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
