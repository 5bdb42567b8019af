//! The keys that only some architectures have.

use millrace_formats::GgufValue;
use millrace_model::{Attention, ClassifierPlan, LayerSpec, NormKind, Residual};

use super::described::{Described, Keys};

/// The architectures whose files say for each layer whether it has a window.
const LISTED_WINDOWS: [&str; 5] = ["olmo2", "cohere2", "exaone4", "exaone-moe", "gemma4"];

/// Every how many layers of a gated delta net one has attention, unless the file says it.
const USUAL_INTERVAL: usize = 4;

/// The numbers of poolings: the mean of all states, and the first one.
const MEAN: usize = 1;
const FIRST_STATE: usize = 2;

fn has_window(layer: &LayerSpec) -> bool {
    matches!(layer.attention, Attention::Sliding { .. })
}

/// Adds the keys of the model's architecture.
pub(super) fn add(model: &Described<'_>, keys: &mut Keys) {
    let spec = model.spec;
    let windows: Vec<bool> = spec.layers.iter().map(has_window).collect();
    // Other programs know that every fourth layer of a Cohere 2 has none.
    let is_usual = model.is(&["cohere2"]) && (1..).zip(&windows).all(|(layer, has)| *has == (layer % 4 != 0));
    if model.is(&LISTED_WINDOWS) && windows.contains(&true) && !is_usual {
        keys.add("attention.sliding_window_pattern", GgufValue::Bools(windows));
    }
    match model.architecture.name() {
        "command-r" | "cohere2" => keys.number("logit_scale", spec.head.factor.into()),
        "granite" | "granitemoe" | "granitehybrid" => granite(model, keys),
        "gemma2" | "gemma3" | "gemma-embedding" => gemma(model, keys),
        "gemma4" => gemma4(model, keys),
        "stablelm" | "gptneox" => {
            let is_parallel = matches!(spec.residual, Residual::Parallel { .. });
            keys.add("use_parallel_residual", GgufValue::Bool(is_parallel));
        }
        "mpt" => mpt(model, keys),
        "qwen3next" | "qwen35" | "qwen35moe" => delta_layers(model, keys),
        "llama4" | "ernie4_5-moe" => {
            if let Some(step) = model.settings.count(&["interleave_moe_layer_step", "moe_layer_interval"]) {
                keys.count("interleave_moe_layer_step", step);
            }
        }
        "modern-bert" => modern_bert(model, keys),
        "nemotron_h" | "nemotron_h_moe" => {
            // llama.cpp reads the epsilon under both names.
            if let NormKind::Rms { eps, .. } = spec.norm.kind {
                keys.number("attention.layer_norm_epsilon", eps.into());
            }
        }
        "deepseek2" if model.experts().is_none() => {
            // llama.cpp needs the keys of experts in a model without them, too.
            let width = spec.layers.iter().find_map(|layer| layer.mlp.dense()).map_or(0, |mlp| mlp.width);
            keys.count("expert_feed_forward_length", width);
            keys.count("expert_shared_count", 0);
        }
        _ => {}
    }
    if let Some(plan) = spec.head.classifier {
        classifier(model, plan, keys);
    }
    if let Some(types) = spec.embedding.token_types {
        let count = GgufValue::U32(u32::try_from(types).unwrap_or(u32::MAX));
        keys.list.push(("tokenizer.ggml.token_type_count".to_owned(), count));
    }
}

/// Adds the names of the classes, and the states that the classifier reads.
fn classifier(model: &Described<'_>, plan: ClassifierPlan, keys: &mut Keys) {
    let names = model.settings.inner("id2label");
    let name = |class: usize| {
        let name = names.and_then(|names| names.text(&class.to_string()));
        name.map_or_else(|| format!("LABEL_{class}"), str::to_owned)
    };
    keys.add("classifier.output_labels", GgufValue::Texts((0..plan.classes).map(name).collect()));
    if model.is(&["modern-bert"]) {
        keys.count("classifier.pooling_type", if plan.kind.averages() { MEAN } else { FIRST_STATE });
    }
}

fn granite(model: &Described<'_>, keys: &mut Keys) {
    let spec = model.spec;
    let scale = model.heads().map_or(1.0, |heads| heads.score_scale);
    keys.number("attention.scale", scale.into());
    keys.number("embedding_scale", spec.embedding.factor.into());
    keys.number("residual_scale", spec.branch_factor.into());
    let divisor = model.settings.number("logits_scaling");
    keys.number("logit_scale", divisor.unwrap_or(1.0 / f64::from(spec.head.factor)));
    if model.is(&["granitehybrid"]) {
        // The key says whether there are positions, whatever its name says.
        keys.add("rope.scaling.finetuned", GgufValue::Bool(model.rotates()));
    }
}

/// Adds the caps, the scale of scores and, where most layers have a window, every how many layers
/// one has none.
fn gemma(model: &Described<'_>, keys: &mut Keys) {
    let Some(heads) = model.heads() else { return };
    keys.number("attention.scale", heads.score_scale.into());
    if let Some(cap) = heads.score_cap {
        keys.number("attn_logit_softcapping", cap.into());
    }
    if let Some(cap) = model.spec.head.soft_cap {
        keys.number("final_logit_softcapping", cap.into());
    }
    if !model.is(&["gemma2"]) {
        let first = model.spec.layers.iter().position(|layer| !has_window(layer));
        keys.count("attention.sliding_window_pattern", first.unwrap_or(model.spec.layers.len()) + 1);
    }
}

fn gemma4(model: &Described<'_>, keys: &mut Keys) {
    let spec = model.spec;
    let head_dim = |wanted: bool| {
        let mut layers = spec.layers.iter().filter(move |layer| has_window(layer) == wanted);
        layers.find_map(|layer| Some(layer.attention.heads()?.layout.head_dim))
    };
    let (full, windowed) = (head_dim(false), head_dim(true));
    let Some(full) = full.or(windowed) else { return };
    let windowed = windowed.unwrap_or(full);
    for (name, length) in [
        ("attention.key_length", full),
        ("attention.value_length", full),
        ("attention.key_length_swa", windowed),
        ("attention.value_length_swa", windowed),
        ("rope.dimension_count_swa", windowed),
    ] {
        keys.count(name, length);
    }
    if !spec.layers.iter().any(has_window) {
        let windows = vec![false; spec.layers.len()];
        keys.add("attention.sliding_window_pattern", GgufValue::Bools(windows));
    }
    keys.count("embedding_length_per_layer_input", spec.per_layer.map_or(0, |inputs| inputs.width));
    let reads = |layer: &&LayerSpec| layer.attention.heads().is_some_and(|heads| heads.kv_source.is_some());
    keys.count("attention.shared_kv_layers", spec.layers.iter().filter(reads).count());
    if let Some(cap) = spec.head.soft_cap {
        keys.number("final_logit_softcapping", cap.into());
    }
}

fn mpt(model: &Described<'_>, keys: &mut Keys) {
    let attention = model.settings.inner("attn_config");
    let number = |key: &str| attention.and_then(|attention| attention.number(key));
    keys.number("attention.max_alibi_bias", number("alibi_bias_max").unwrap_or(8.0));
    if let Some(clip) = number("clip_qkv") {
        keys.number("attention.clamp_kqv", clip);
    }
}

/// Adds which layers have attention: every how many, if they are evenly spaced.
fn delta_layers(model: &Described<'_>, keys: &mut Keys) {
    let kinds: Vec<bool> =
        model.spec.layers.iter().map(|layer| layer.attention.recurrent().is_some()).collect();
    let every = kinds.iter().position(|is_recurrent| !is_recurrent).map_or(USUAL_INTERVAL, |first| first + 1);
    let is_even = kinds.iter().enumerate().all(|(layer, kind)| *kind != (layer + 1).is_multiple_of(every));
    match is_even {
        true => keys.count("full_attention_interval", every),
        false => keys.add("attention.recurrent_layers", GgufValue::Bools(kinds)),
    }
}

fn modern_bert(model: &Described<'_>, keys: &mut Keys) {
    let mut full =
        (0..).zip(&model.spec.layers).filter(|(_, layer)| !has_window(layer)).map(|(index, _)| index);
    let first: Option<usize> = full.next();
    let interval = match (first, full.next()) {
        (Some(first), Some(second)) => Some(second - first),
        _ => model.settings.count(&["global_attn_every_n_layers"]),
    };
    if let Some(interval) = interval {
        keys.count("attention.sliding_window_pattern", interval);
    }
    if let Some(act) = model.settings.text("hidden_activation") {
        keys.text("hidden_act", act);
    }
}
