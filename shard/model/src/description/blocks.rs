//! The blocks of features along the axes of weights.

use super::recurrent::RecurrentBlock;

/// A run of features along an axis of a weight. A rank holds a share of some blocks, and all of
/// others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FeatureBlock {
    /// The rows of the vocabulary, `[vocab_rows]`.
    Vocabulary,
    /// The residual stream, `[hidden]`.
    Hidden,
    /// The features of an embedding: the residual stream, unless [`EmbeddingPlan::width`] says
    /// otherwise.
    ///
    /// [`EmbeddingPlan::width`]: super::EmbeddingPlan::width
    Embedding,
    /// The rows of the table of learned positions.
    Positions,
    /// The rows of the table of per-layer embeddings.
    PerLayerVocabulary,
    /// The features of a token for one layer, `[width]` of [`PerLayerEmbedding`].
    ///
    /// [`PerLayerEmbedding`]: super::PerLayerEmbedding
    PerLayer,
    /// The features of a token for all layers, `[layers * width]`.
    AllLayers,
    /// The features of one head, `[head_dim]`.
    HeadDim,
    /// One number for each query head, `[heads]`.
    Heads,
    /// All query heads, `[heads * head_dim]`. Their results may be shorter than the queries: the
    /// output projection reads [`AttentionHeads::result_cols`] features.
    ///
    /// [`AttentionHeads::result_cols`]: super::AttentionHeads::result_cols
    Query,
    /// All key heads, `[kv_heads * head_dim]`.
    Key,
    /// All value heads, `[kv_heads * head_dim]`.
    Value,
    /// The features that queries of latent attention are computed from, `[query_rank]`.
    QueryRank,
    /// The queries of latent attention, `[heads * (plain_dim + rotary_dim)]`: of each head first
    /// the features that are not rotated.
    HeadQueries,
    /// The shared rotated key of latent attention, `[rotary_dim]`.
    SharedKey,
    /// The latent, `[rank]`.
    Latent,
    /// The keys and values that are computed from a latent, `[heads * (plain_dim + value_dim)]`: of
    /// each head first the key.
    HeadKeysValues,
    /// The gate of the MLP, `[width]`.
    Gate,
    /// The up projection of the MLP, `[width]`.
    Up,
    /// One number for each expert, `[experts]`.
    Experts,
    /// The buckets of distances of query and key.
    DistanceBuckets,
    /// One number for each query head of the whole model, of which every rank has all.
    AllHeads,
    /// One number, `[1]`.
    One,
    /// One number for each output of the classifier of texts.
    Classes,
    /// The gates of the results of all query heads, `[heads * head_dim]`.
    QueryGate,
    /// A block of a recurrent layer.
    Recurrent(RecurrentBlock),
}

impl FeatureBlock {
    /// Returns whether the features are those of query, key or value heads.
    pub const fn is_of_heads(self) -> bool {
        matches!(self, FeatureBlock::Query | FeatureBlock::Key | FeatureBlock::Value)
    }
}
