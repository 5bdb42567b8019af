//! MiMo: Qwen2 under another name. Its layers that predict several tokens at once are not used.

use super::family::Family;
use super::qwen2;

pub(super) const FAMILY: Family =
    Family { model_type: "mimo", architectures: &["MiMoForCausalLM"], ..qwen2::FAMILY };
