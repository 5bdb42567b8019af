//! Mixture of experts: how a router chooses, and the operands of the operations with experts.

/// The way in which a router's logits become scores.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RouterScores {
    /// The softmax over all experts. With [`RouterSpec::normalize`], it is the same as the softmax
    /// over the chosen ones.
    Softmax,
    /// The sigmoid of each logit.
    Sigmoid,
    /// A chosen expert's softmax among the experts that were not chosen before it and whose logits
    /// are near its own (Liu et al., "GRIN: GRadient-INformed MoE"). With the chosen logit `m`, a
    /// logit `x` is near if `m - x` is at most `2 * noise * max(|x|, m)`. There is no bias of the
    /// choice, and there are no groups. GPUs have no kernel for it.
    SparseMixer {
        /// The noise on logits in training, relative to their size.
        noise: f32,
    },
}

impl RouterScores {
    /// Returns whether a logit is near the logit `chosen` of the chosen expert.
    pub fn is_near(noise: f32, chosen: f32, logit: f32) -> bool {
        chosen - logit <= 2.0 * noise * logit.abs().max(chosen)
    }
}

/// The limitation of a token's choices to some groups of neighboring experts (DeepSeek).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertGroups {
    /// Number of groups, at most [`ExpertGroups::MAX`]; divides the number of experts.
    pub count: usize,
    /// Number of groups from which a token's experts are chosen.
    pub chosen: usize,
    /// The score by which groups are chosen.
    pub score: GroupScore,
}

impl ExpertGroups {
    /// The largest number of groups.
    pub const MAX: usize = 64;
}

/// The score of a group of experts, by their keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GroupScore {
    /// The best score of the group (DeepSeek-V2).
    Best,
    /// The sum of the two best scores of the group, which has at least two experts (DeepSeek-V3).
    TwoBest,
}

/// The choice of experts, and their weights.
///
/// The experts with the highest keys are chosen; among equal ones, those with lower numbers. A key
/// is the logit, or with a bias the score plus the bias. The weight of an expert is its score. A
/// logit that is NaN is never preferred, and a row without a finite logit goes to the first experts
/// in equal parts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RouterSpec {
    /// Number of experts.
    pub experts: usize,
    /// Number of experts that are chosen for a token, at most `experts`.
    pub top_k: usize,
    /// The way in which logits become scores.
    pub scores: RouterScores,
    /// Whether a token's weights are divided by their sum.
    pub normalize: bool,
    /// Factor on all weights.
    pub factor: f32,
    /// Whether weights multiply the inputs of experts, and not their results (Llama 4). GPUs
    /// compute it if one expert is chosen for each token.
    pub weighs_inputs: bool,
    /// The groups that limit the choice.
    pub groups: Option<ExpertGroups>,
}

/// The sizes for which a device allocates the working memory of experts, and the router whose
/// choices it holds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RoutingSpec {
    /// Tokens of a step.
    pub tokens: usize,
    /// Width of the residual stream.
    pub hidden: usize,
    /// Features of an expert's gate.
    pub width: usize,
    /// The choice of experts.
    pub router: RouterSpec,
}
