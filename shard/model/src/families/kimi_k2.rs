//! Kimi K2: DeepSeek-V3 under another name.

use super::deepseek_v3;
use super::family::Family;

pub(super) const FAMILY: Family = Family { model_type: "kimi_k2", ..deepseek_v3::FAMILY };
