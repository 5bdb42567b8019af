//! Compares the model that a new file describes with the one that it is made from.

use millrace_backend::{KeySharing, RopeStyle};
use millrace_model::{
    DecoderSpec, LayerSpec, LearnedPositions, Mlp, ProjectionFactors, RopeScaling, RopeTable,
};

use super::rotation;

/// The largest relative difference of numbers that are single precision in the file.
const ROUNDING: f64 = 1e-6;

/// The differences between a model and its file that the weights in the file make up for.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Allowed {
    /// The features of query and key heads are in another order.
    pub(super) reordered_features: bool,
    /// The value heads of recurrent layers are in another order.
    pub(super) reordered_value_heads: bool,
    /// The file has the factors of Falcon-H1 in its weights.
    pub(super) factors: bool,
}

/// Returns the part of a model that the keys of its file do not describe, if there is one. `read`
/// is the specification that the file is read with.
pub(super) fn difference(expected: &DecoderSpec, read: &DecoderSpec, allowed: Allowed) -> Option<String> {
    let (mut expected, mut read) = (expected.clone(), read.clone());
    if allowed.factors {
        drop_factors(&mut expected);
    }
    if allowed.reordered_features {
        expected.ropes.iter_mut().for_each(|table| table.style = other_style(table.style));
    }
    if allowed.reordered_value_heads {
        let recurrent = expected.layers.iter_mut().filter_map(|layer| layer.attention.recurrent_mut());
        recurrent.for_each(|layer| layer.heads.sharing = other_sharing(layer.heads.sharing));
    }
    expected.embedding.positions = expected
        .embedding
        .positions
        .map(|table| LearnedPositions { rows: table.rows - table.first, first: 0 });
    read.model_type.clone_from(&expected.model_type);
    // The file has a head if and only if the model has one of its own.
    (read.tied_head, read.head.is_absent) = (expected.tied_head, expected.head.is_absent);
    adopt(&mut read, &expected);
    first_difference(&expected, &read)
}

fn other_style(style: RopeStyle) -> RopeStyle {
    match style {
        RopeStyle::Half => RopeStyle::Interleaved,
        RopeStyle::Interleaved => RopeStyle::Half,
    }
}

fn other_sharing(sharing: KeySharing) -> KeySharing {
    match sharing {
        KeySharing::Neighbors => KeySharing::Strided,
        KeySharing::Strided => KeySharing::Neighbors,
    }
}

fn first_difference(expected: &DecoderSpec, read: &DecoderSpec) -> Option<String> {
    let layers = expected.layers.len();
    if read.layers.len() != layers {
        return Some(format!("its {layers} layers"));
    }
    for (index, (layer, other)) in expected.layers.iter().zip(&read.layers).enumerate() {
        if layer.attention != other.attention {
            return Some(format!("the attention of layer {index}"));
        }
        if layer.mlp != other.mlp {
            return Some(format!("the MLP of layer {index}"));
        }
    }
    let parts = [
        ("the rotation of queries and keys", expected.ropes == read.ropes),
        ("the factors on queries", expected.query_scale == read.query_scale),
        ("the norms", expected.norm == read.norm),
        ("the residual stream", expected.residual == read.residual),
        ("the embedding", expected.embedding == read.embedding),
        ("the head", expected.head == read.head),
        ("the length of the context", expected.max_positions == read.max_positions),
        ("the choice of keys", expected.key_choice == read.key_choice),
    ];
    let part = parts.into_iter().find(|(_, is_same)| !is_same).map(|(part, _)| part.to_owned());
    part.or_else(|| (expected != read).then(|| "a part of it".to_owned()))
}

/// Sets the factors that the converter of Falcon-H1 multiplies into the weights to 1.
fn drop_factors(spec: &mut DecoderSpec) {
    (spec.embedding.factor, spec.head.factor) = (1.0, 1.0);
    for layer in &mut spec.layers {
        if let Some(heads) = layer.attention.heads_mut() {
            heads.score_scale = 1.0 / (heads.layout.head_dim as f32).sqrt();
            heads.out_factor = 1.0;
        }
        if let Some(recurrent) = layer.attention.recurrent_mut() {
            recurrent.factors = ProjectionFactors::NONE;
        }
        if let Some(mlp) = layer.mlp.dense_mut() {
            (mlp.up_factor, mlp.out_factor) = (1.0, 1.0);
        }
    }
}

/// Gives `read` the numbers of `expected` where they differ by rounding only.
fn adopt(read: &mut DecoderSpec, expected: &DecoderSpec) {
    for (read, expected) in [
        (&mut read.branch_factor, expected.branch_factor),
        (&mut read.embedding.factor, expected.embedding.factor),
        (&mut read.head.factor, expected.head.factor),
    ] {
        adopt_single(read, expected);
    }
    for (read, expected) in read.ropes.iter_mut().zip(&expected.ropes) {
        adopt_table(read, expected);
    }
    if let (Some(read), Some(expected)) = (&mut read.query_scale, &expected.query_scale) {
        adopt_number(&mut read.beta, expected.beta);
    }
    for (read, expected) in read.layers.iter_mut().zip(&expected.layers) {
        adopt_layer(read, expected);
    }
}

fn adopt_layer(read: &mut LayerSpec, expected: &LayerSpec) {
    if let (Some(read), Some(expected)) = (read.attention.heads_mut(), expected.attention.heads()) {
        adopt_single(&mut read.score_scale, expected.score_scale);
        if let (Some(read), Some(expected)) = (&mut read.score_cap, expected.score_cap) {
            adopt_single(read, expected);
        }
    }
    if let (Mlp::Experts(read), Mlp::Experts(expected)) = (&mut read.mlp, &expected.mlp) {
        adopt_single(&mut read.router.factor, expected.router.factor);
    }
}

fn adopt_table(read: &mut RopeTable, expected: &RopeTable) {
    adopt_number(&mut read.theta, expected.theta);
    match (&mut read.scaling, &expected.scaling) {
        (RopeScaling::Divided { divisors }, RopeScaling::Llama3 { .. }) => {
            if are_near(divisors, &rotation::llama3(expected)) {
                read.scaling = expected.scaling.clone();
            }
        }
        (RopeScaling::Divided { divisors }, RopeScaling::Divided { divisors: others }) => {
            if are_near(divisors, others) {
                divisors.clone_from(others);
            }
        }
        (read, expected) => adopt_scaling(read, expected),
    }
}

fn adopt_scaling(read: &mut RopeScaling, expected: &RopeScaling) {
    match (read, expected) {
        (RopeScaling::Linear { factor }, RopeScaling::Linear { factor: other }) => {
            adopt_number(factor, *other);
        }
        (
            RopeScaling::LongRope { short, long, attention_factor, .. },
            RopeScaling::LongRope { short: other_short, long: other_long, attention_factor: other, .. },
        ) => {
            adopt_number(attention_factor, *other);
            for (list, other) in [(short, other_short), (long, other_long)] {
                if are_near(list, other) {
                    list.clone_from(other);
                }
            }
        }
        (
            RopeScaling::Yarn { factor, beta_fast, beta_slow, attention_factor, .. },
            RopeScaling::Yarn {
                factor: other_factor,
                beta_fast: other_fast,
                beta_slow: other_slow,
                attention_factor: other_attention,
                ..
            },
        ) => {
            adopt_number(factor, *other_factor);
            adopt_number(beta_fast, *other_fast);
            adopt_number(beta_slow, *other_slow);
            adopt_number(attention_factor, *other_attention);
        }
        _ => {}
    }
}

fn is_near(found: f64, expected: f64) -> bool {
    (found - expected).abs() <= ROUNDING * expected.abs()
}

fn are_near(found: &[f64], expected: &[f64]) -> bool {
    found.len() == expected.len()
        && found.iter().zip(expected).all(|(found, expected)| is_near(*found, *expected))
}

fn adopt_number(found: &mut f64, expected: f64) {
    if is_near(*found, expected) {
        *found = expected;
    }
}

fn adopt_single(found: &mut f32, expected: f32) {
    if is_near(f64::from(*found), f64::from(expected)) {
        *found = expected;
    }
}
