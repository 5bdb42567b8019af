//! The factors that files of Falcon-H1 have in their weights, and its configuration beside them.

use millrace_model::{DecoderSpec, FeatureBlock, LayerSlot, RecurrentBlock, RecurrentSlot, WeightSlot};

use super::described::Settings;

/// The factors on what goes into the parts of a layer, or comes out of them.
pub(super) struct Factors {
    attention: f32,
    key: f32,
    out: f32,
    gate: f32,
    down: f32,
    embedding: f32,
    head: f32,
    recurrent_in: f32,
    recurrent_out: f32,
    /// On the gates, values, keys, queries and rates of the recurrence.
    recurrent: [f32; 5],
}

impl Factors {
    /// Reads the factors. A tied head has the factor of the embedding, so that there are none for
    /// such a model unless neither has one.
    ///
    /// # Errors
    /// Returns the reason if the file cannot have them.
    pub(super) fn read(settings: Settings<'_>, spec: &DecoderSpec) -> Result<Factors, String> {
        let number = |key: &str| settings.number(key).unwrap_or(1.0) as f32;
        let at =
            |key: &str, index: usize| settings.numbers(key).get(index).map_or(1.0, |&factor| factor as f32);
        let (embedding, head) = (number("embedding_multiplier"), number("lm_head_multiplier"));
        if spec.tied_head && embedding != head {
            return Err("its head is the embedding, and both have different factors".to_owned());
        }
        Ok(Factors {
            attention: number("attention_in_multiplier"),
            key: number("key_multiplier"),
            out: number("attention_out_multiplier"),
            gate: at("mlp_multipliers", 0),
            down: at("mlp_multipliers", 1),
            embedding,
            head,
            recurrent_in: number("ssm_in_multiplier"),
            recurrent_out: number("ssm_out_multiplier"),
            recurrent: [0, 1, 2, 3, 4].map(|index| at("ssm_multipliers", index)),
        })
    }

    /// Returns the factor on the rows of a block of a weight.
    pub(super) fn of(&self, slot: WeightSlot, block: FeatureBlock) -> f32 {
        let [gate, value, key, query, rate] = self.recurrent.map(|factor| factor * self.recurrent_in);
        match (slot, block) {
            (WeightSlot::Embedding, _) => self.embedding,
            (WeightSlot::Head, _) => self.head,
            (WeightSlot::Layer(_, LayerSlot::Qkv | LayerSlot::QkvBias), FeatureBlock::Key) => {
                self.attention * self.key
            }
            (WeightSlot::Layer(_, LayerSlot::Qkv | LayerSlot::QkvBias), _) => self.attention,
            (WeightSlot::Layer(_, LayerSlot::Out | LayerSlot::OutBias), _) => self.out,
            (WeightSlot::Layer(_, LayerSlot::GateUp | LayerSlot::GateUpBias), FeatureBlock::Gate) => {
                self.gate
            }
            (WeightSlot::Layer(_, LayerSlot::Down | LayerSlot::DownBias), _) => self.down,
            (WeightSlot::Recurrent(_, RecurrentSlot::Out | RecurrentSlot::OutBias), _) => self.recurrent_out,
            (WeightSlot::Recurrent(_, RecurrentSlot::In | RecurrentSlot::Rates), block) => match block {
                FeatureBlock::Recurrent(RecurrentBlock::Gate) => gate,
                FeatureBlock::Recurrent(RecurrentBlock::Value) => value,
                FeatureBlock::Recurrent(RecurrentBlock::Key) => key,
                FeatureBlock::Recurrent(RecurrentBlock::Query) => query,
                _ => rate,
            },
            _ => 1.0,
        }
    }
}
