//! The table of the weights of recurrent layers.

use super::blocks::FeatureBlock;
use super::recurrent::{RecurrentBlock, RecurrentLayer, RecurrentSlot};
use super::slots::WeightInfo;
use super::spec::LayerSpec;

const HIDDEN: &[FeatureBlock] = &[FeatureBlock::Hidden];
const MIXED: &[FeatureBlock] = &[
    FeatureBlock::Recurrent(RecurrentBlock::Query),
    FeatureBlock::Recurrent(RecurrentBlock::Key),
    FeatureBlock::Recurrent(RecurrentBlock::Value),
];
const PROJECTED: &[FeatureBlock] = &[
    FeatureBlock::Recurrent(RecurrentBlock::Query),
    FeatureBlock::Recurrent(RecurrentBlock::Key),
    FeatureBlock::Recurrent(RecurrentBlock::Value),
    FeatureBlock::Recurrent(RecurrentBlock::Gate),
];
const TAPS: &[FeatureBlock] = &[
    FeatureBlock::Recurrent(RecurrentBlock::QueryTaps),
    FeatureBlock::Recurrent(RecurrentBlock::KeyTaps),
    FeatureBlock::Recurrent(RecurrentBlock::ValueTaps),
];
const RATES: &[FeatureBlock] =
    &[FeatureBlock::Recurrent(RecurrentBlock::Strength), FeatureBlock::Recurrent(RecurrentBlock::Rate)];
const STRENGTH: &[FeatureBlock] = &[FeatureBlock::Recurrent(RecurrentBlock::Strength)];
const RANK: &[FeatureBlock] = &[FeatureBlock::Recurrent(RecurrentBlock::Rank)];
const CHANNEL_RATE: &[FeatureBlock] = &[FeatureBlock::Recurrent(RecurrentBlock::ChannelRate)];
const LOW_RANK_GATE: &[FeatureBlock] = &[FeatureBlock::Recurrent(RecurrentBlock::LowRankGate)];
const RATE: &[FeatureBlock] = &[FeatureBlock::Recurrent(RecurrentBlock::Rate)];
const CHANNELS: &[FeatureBlock] = &[
    FeatureBlock::Recurrent(RecurrentBlock::QueryChannels),
    FeatureBlock::Recurrent(RecurrentBlock::KeyChannels),
    FeatureBlock::Recurrent(RecurrentBlock::Value),
];
const NORMED: &[FeatureBlock] = &[
    FeatureBlock::Recurrent(RecurrentBlock::ValueDim),
    FeatureBlock::Recurrent(RecurrentBlock::GroupedValue),
];

impl RecurrentSlot {
    /// Returns the row of this weight in the table. The usual tensors are those of Qwen3.5.
    pub fn info(self) -> WeightInfo {
        type Info = WeightInfo;
        match self {
            RecurrentSlot::In => Info::matrix(
                PROJECTED,
                FeatureBlock::Hidden,
                &[
                    ("linear_attn.in_proj_qkv", MIXED),
                    ("linear_attn.in_proj_z", &[FeatureBlock::Recurrent(RecurrentBlock::Gate)]),
                ],
            )
            .may_quantize()
            .only_if(|_, layer| recurrent(layer).is_some()),
            RecurrentSlot::InBias => Info::bias(PROJECTED, &[("conv.in_proj", PROJECTED)])
                .only_if(|_, layer| recurrent(layer).is_some_and(|layer| layer.in_bias)),
            // The rates decide what is remembered, and take little memory.
            RecurrentSlot::Rates => Info::matrix(
                RATES,
                FeatureBlock::Hidden,
                &[
                    ("linear_attn.in_proj_b", &[FeatureBlock::Recurrent(RecurrentBlock::Strength)]),
                    ("linear_attn.in_proj_a", RATE),
                ],
            )
            .only_if(|_, layer| has_rates(layer) && !is_by_channel(layer)),
            RecurrentSlot::Strengths => {
                Info::matrix(STRENGTH, FeatureBlock::Hidden, &[("self_attn.b_proj", STRENGTH)])
                    .only_if(|_, layer| is_by_channel(layer))
            }
            RecurrentSlot::RateDown => {
                Info::matrix(RANK, FeatureBlock::Hidden, &[("self_attn.f_a_proj", RANK)])
                    .only_if(|_, layer| is_by_channel(layer))
            }
            RecurrentSlot::RateUp => {
                Info::matrix(CHANNEL_RATE, RANK[0], &[("self_attn.f_b_proj", CHANNEL_RATE)])
                    .only_if(|_, layer| is_by_channel(layer))
            }
            RecurrentSlot::GateDown => {
                Info::matrix(RANK, FeatureBlock::Hidden, &[("self_attn.g_a_proj", RANK)])
                    .only_if(|_, layer| has_low_rank_gates(layer))
            }
            RecurrentSlot::GateUp => {
                Info::matrix(LOW_RANK_GATE, RANK[0], &[("self_attn.g_b_proj", LOW_RANK_GATE)])
                    .only_if(|_, layer| has_low_rank_gates(layer))
            }
            RecurrentSlot::Conv => Info::parameter(TAPS, &[("linear_attn.conv1d.weight", TAPS)])
                .only_if(|_, layer| recurrent(layer).is_some()),
            RecurrentSlot::ConvBias => Info::bias(CHANNELS, &[("conv.conv", CHANNELS)])
                .only_if(|_, layer| recurrent(layer).is_some_and(|layer| layer.conv_bias)),
            RecurrentSlot::DecayLog => {
                Info::parameter(RATE, &[("linear_attn.A_log", RATE)]).only_if(|_, layer| has_rates(layer))
            }
            RecurrentSlot::StepBias => Info::parameter(RATE, &[("linear_attn.dt_bias", RATE)])
                .only_if(|_, layer| has_rates(layer) && !is_by_channel(layer)),
            RecurrentSlot::ChannelBias => {
                Info::parameter(CHANNEL_RATE, &[("self_attn.dt_bias", CHANNEL_RATE)])
                    .only_if(|_, layer| is_by_channel(layer))
            }
            RecurrentSlot::Skip => Info::parameter(RATE, &[("mamba.D", RATE)])
                .only_if(|_, layer| recurrent(layer).is_some_and(RecurrentLayer::has_skip)),
            RecurrentSlot::Norm => Info::norm_scale(NORMED, &[("linear_attn.norm", NORMED)])
                .only_if(|_, layer| recurrent(layer).is_some_and(|layer| layer.result.norm_eps().is_some())),
            RecurrentSlot::Out => Info::matrix(
                HIDDEN,
                FeatureBlock::Recurrent(RecurrentBlock::Value),
                &[("linear_attn.out_proj", HIDDEN)],
            )
            .may_quantize()
            .only_if(|_, layer| recurrent(layer).is_some()),
            RecurrentSlot::OutBias => Info::bias(HIDDEN, &[("conv.out_proj", HIDDEN)])
                .only_if(|_, layer| recurrent(layer).is_some_and(|layer| layer.out_bias)),
        }
    }
}

/// Returns the recurrent layer, if the layer is one.
fn recurrent(layer: &LayerSpec) -> Option<&RecurrentLayer> {
    layer.attention.recurrent()
}

/// Returns whether the matrices of a layer change at rates of their own.
fn has_rates(layer: &LayerSpec) -> bool {
    recurrent(layer).is_some_and(|layer| !layer.is_convolution())
}

/// Returns whether the features of keys of a layer are forgotten at rates of their own.
fn is_by_channel(layer: &LayerSpec) -> bool {
    recurrent(layer).is_some_and(RecurrentLayer::is_by_channel)
}

/// Returns whether the gates of a layer are products of two matrices.
fn has_low_rank_gates(layer: &LayerSpec) -> bool {
    recurrent(layer).is_some_and(|layer| layer.low_rank_gates() > 0)
}
