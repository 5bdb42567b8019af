//! A validated and tokenized request.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use millrace_answers::grammar::CompiledGrammar;

use super::context::RequestContext;
use super::params::Params;
use crate::engine::{Account, Request};

/// A validated and tokenized request.
#[derive(Debug, Clone)]
pub struct Prepared {
    pub(super) request: Request,
    /// The grammar of the answer.
    pub(super) grammar: Option<Arc<CompiledGrammar>>,
    /// The places of tools whose schemas exceed a limit, and are left out of the grammar.
    pub(super) excessive_tools: BTreeSet<usize>,
    pub(super) stops: Vec<String>,
    pub(super) params: Params,
    pub(super) seed: Option<u64>,
    pub(super) received: Instant,
    pub(super) validation: Duration,
    /// Whether metrics count this as a request. Of several answers to one prompt only the first is
    /// counted.
    pub(super) counted: bool,
    /// The HTTP request for which this request runs.
    pub(super) context: Option<Arc<RequestContext>>,
}

impl Prepared {
    /// The tokens of the prompt.
    pub fn prompt(&self) -> &[u32] {
        &self.request.prompt
    }

    /// Number of states at the beginning of the prompt that are not pooled.
    pub(crate) fn pooling_start(&self) -> usize {
        self.request.pooling_start as usize
    }

    /// Keywords of the request's schemas that are not enforced, such as `tools.pattern`.
    pub fn unenforced(&self) -> Vec<String> {
        let wanted = self.grammar.as_ref().zip(self.params.grammar.as_ref());
        wanted.map(|(grammar, wanted)| grammar.unenforced().fields(wanted.field)).unwrap_or_default()
    }

    /// The tools whose schemas the grammar leaves out, by their places among the tools that may be
    /// called.
    pub(crate) fn tools_left_out(&self) -> impl Iterator<Item = usize> {
        let broken = self.grammar.iter().flat_map(|grammar| grammar.unenforced().left_out.iter());
        broken.chain(&self.excessive_tools).copied()
    }

    /// The account that the request counts for, if it has one.
    pub(super) fn account(&self) -> Option<&Arc<Account>> {
        self.context.as_deref().and_then(RequestContext::account)
    }

    /// The sampling seed; `None` if the request is greedy.
    pub fn seed(&self) -> Option<u64> {
        self.seed
    }

    /// The same request with another sampling seed, for the answer with this index to the same
    /// prompt.
    #[must_use]
    pub fn variant(&self, index: u64) -> Self {
        let mut variant = self.clone();
        variant.seed = self.seed.map(|seed| variant_seed(seed, index));
        variant.request.sampling.seed = variant.seed.unwrap_or_default();
        variant.counted &= index == 0;
        variant
    }
}

/// The seed of the answer with this index. The seeds of neighbouring requests do not overlap: the
/// second answer with one seed differs from the first answer with the next seed. The mixing
/// function is SplitMix64 (Steele, Lea and Flood, 2014).
pub(crate) fn variant_seed(seed: u64, index: u64) -> u64 {
    if index == 0 {
        return seed;
    }
    let mut mixed = seed.wrapping_add(index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}
