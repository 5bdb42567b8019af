//! The keys of the rotation, and the tensors with the divisors of its frequencies.

use millrace_formats::GgufValue;
use millrace_model::{Attention, Positions, RopeScaling, RopeTable};

use super::described::{Described, Keys};

/// The number that divides the frequencies of features that are not rotated.
const HUGE: f32 = 1e30;

/// The architectures whose layers with a window have a base of their own in the file.
const OWN_BASES: [&str; 4] = ["gemma3", "gemma4", "gemma-embedding", "modern-bert"];

/// The architectures whose files have the logarithmic factor of YaRN, and the share of the number
/// in the configuration that it is.
const LOG_FACTORS: [(&str, f64); 3] = [("deepseek2", 0.1), ("mistral4", 0.1), ("mistral3", 1.0)];

/// The architectures whose files say which features are rotated by which dimension of positions.
const SECTIONED: [&str; 2] = ["qwen35", "qwen35moe"];

/// A tensor whose numbers follow from the configuration.
pub(super) struct Constant {
    pub(super) name: &'static str,
    pub(super) numbers: Vec<f32>,
}

/// Returns the table of layers without a window, or the one of all layers.
fn full_table<'a>(model: &Described<'a>) -> Option<&'a RopeTable> {
    table(model, |attention| !matches!(attention, Attention::Sliding { .. }))
        .or_else(|| table(model, |_| true))
        .or(model.spec.ropes.first())
}

/// Returns the table of the first layer of a kind that has one.
fn table<'a>(model: &Described<'a>, is_of_kind: fn(&Attention) -> bool) -> Option<&'a RopeTable> {
    let mut layers = model.spec.layers.iter().filter(|layer| is_of_kind(&layer.attention));
    let index = layers.find_map(|layer| match layer.attention.heads()?.positions {
        Positions::Rotary { table } => Some(table),
        _ => None,
    })?;
    model.spec.ropes.get(index)
}

/// Adds the keys of the rotation.
pub(super) fn add(model: &Described<'_>, keys: &mut Keys) {
    let Some(full) = full_table(model) else { return };
    keys.number("rope.freq_base", full.theta);
    keys.count("rope.dimension_count", full.rotary_dim);
    if model.is(&SECTIONED) {
        keys.add("rope.dimension_sections", GgufValue::I32s(sections(model, full)));
    }
    let windowed = table(model, |attention| matches!(attention, Attention::Sliding { .. }));
    if let Some(windowed) = windowed.filter(|_| model.is(&OWN_BASES)) {
        keys.number("rope.freq_base_swa", windowed.theta);
    }
    if let Some(scale) = model.spec.query_scale.filter(|_| model.is(&["mistral3", "mistral4"])) {
        keys.number("attention.temperature_scale", scale.beta);
        keys.count("attention.temperature_length", scale.interval as usize);
    }
    match &full.scaling {
        RopeScaling::Linear { factor } => {
            keys.text("rope.scaling.type", "linear");
            keys.number("rope.scaling.factor", *factor);
        }
        RopeScaling::Yarn { .. } => yarn(model, &full.scaling, keys),
        RopeScaling::LongRope { original, attention_factor, .. } => {
            keys.count("rope.scaling.original_context_length", *original);
            keys.number("rope.scaling.attn_factor", *attention_factor);
        }
        RopeScaling::Default
        | RopeScaling::Dynamic { .. }
        | RopeScaling::Llama3 { .. }
        | RopeScaling::Proportional { .. }
        | RopeScaling::Divided { .. } => {}
    }
}

/// Returns the pairs of features that are rotated by each dimension of positions. A text has equal
/// positions in all dimensions, so that one may have all pairs.
fn sections(model: &Described<'_>, table: &RopeTable) -> Vec<i32> {
    let stated = model.settings.rotation().map(|rope| rope.numbers("mrope_section")).unwrap_or_default();
    let mut sections: Vec<i32> = stated.iter().map(|&pairs| pairs as i32).collect();
    if sections.is_empty() {
        sections.push((table.rotary_dim / 2) as i32);
    }
    sections.resize(4, 0);
    sections
}

fn yarn(model: &Described<'_>, scaling: &RopeScaling, keys: &mut Keys) {
    let RopeScaling::Yarn { factor, original, beta_fast, beta_slow, attention_factor, .. } = *scaling else {
        return;
    };
    keys.text("rope.scaling.type", "yarn");
    keys.number("rope.scaling.factor", factor);
    keys.count("rope.scaling.original_context_length", original as usize);
    keys.number("rope.scaling.yarn_beta_fast", beta_fast);
    keys.number("rope.scaling.yarn_beta_slow", beta_slow);
    let share = LOG_FACTORS.iter().find(|(name, _)| model.is(&[name]));
    let scale = model.settings.rotation().and_then(|rope| rope.number("mscale_all_dim"));
    if let (Some((_, share)), Some(scale)) = (share, scale) {
        return keys.number("rope.scaling.yarn_log_multiplier", share * scale);
    }
    // Readers multiply the factor in the file by the usual one.
    let usual = if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
    if (attention_factor / usual - 1.0).abs() > 1e-6 {
        keys.number("rope.scaling.attn_factor", attention_factor / usual);
    }
}

/// Returns the tensors with the divisors of frequencies.
pub(super) fn constants(model: &Described<'_>) -> Vec<Constant> {
    // Readers know that no feature of a Kimi Linear is rotated.
    let Some(full) = full_table(model).filter(|_| !model.is(&["kimi-linear"])) else { return Vec::new() };
    let single = |numbers: &[f64]| numbers.iter().map(|&number| number as f32).collect();
    let divisors = |numbers| vec![Constant { name: "rope_freqs.weight", numbers }];
    match &full.scaling {
        RopeScaling::Llama3 { .. } => divisors(single(&llama3(full))),
        RopeScaling::Divided { divisors: numbers } => divisors(single(numbers)),
        RopeScaling::Proportional { pairs, .. } => {
            let pair = |index| if index < *pairs { 1.0 } else { HUGE };
            divisors((0..full.rotary_dim / 2).map(pair).collect())
        }
        RopeScaling::LongRope { short, long, .. } => vec![
            Constant { name: "rope_factors_long.weight", numbers: single(long) },
            Constant { name: "rope_factors_short.weight", numbers: single(short) },
        ],
        _ => Vec::new(),
    }
}

/// Returns the divisors of the frequencies of Llama 3: 1 for short waves, the factor for long ones,
/// and a transition between them. There are none for another scaling.
pub(super) fn llama3(table: &RopeTable) -> Vec<f64> {
    let RopeScaling::Llama3 { factor, low, high, original } = table.scaling else { return Vec::new() };
    let divisor = |pair: usize| {
        let frequency = table.theta.powf(-((2 * pair) as f64) / table.rotary_dim as f64);
        let wave = 2.0 * std::f64::consts::PI / frequency;
        let share = ((original / wave - low) / (high - low)).clamp(0.0, 1.0);
        1.0 / ((1.0 - share) / factor + share)
    };
    (0..table.rotary_dim / 2).map(divisor).collect()
}
