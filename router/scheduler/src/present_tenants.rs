//! The tenants that have had sequences lately.

use std::collections::VecDeque;

use super::request::Tenant;

/// Maximum number of tenants that are known to have been present. Beyond it the tenant that was
/// present least recently is forgotten.
pub(super) const MAX_PRESENT: usize = 32;

/// The tenants that have had sequences, and the last step of each that was planned meanwhile. The
/// tenant that was present last is the last one.
#[derive(Debug, Default)]
pub(super) struct PresentTenants(VecDeque<(Tenant, u64)>);

impl PresentTenants {
    /// Notes that a tenant is present in a step.
    pub(super) fn note(&mut self, tenant: &Tenant, step: u64) {
        if let Some(last) = self.0.back_mut().filter(|last| last.0 == *tenant) {
            last.1 = step;
            return;
        }
        self.0.retain(|known| known.0 != *tenant);
        if self.0.len() == MAX_PRESENT {
            self.0.pop_front();
        }
        self.0.push_back((tenant.clone(), step));
    }

    /// Forgets the tenants that were not present since this step.
    pub(super) fn forget_before(&mut self, step: u64) {
        self.0.retain(|known| known.1 >= step);
    }

    /// Iterates over the tenants.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Tenant> {
        self.0.iter().map(|(tenant, _)| tenant)
    }

    /// Number of tenants.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}
