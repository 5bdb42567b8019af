//! The demo model, which is embedded in the binary so that `millrace serve` works without a
//! download.

/// The files of `models/demo`, by name.
pub(crate) const FILES: &[(&str, &[u8])] = &[
    ("config.json", include_bytes!("../../models/demo/config.json")),
    ("generation_config.json", include_bytes!("../../models/demo/generation_config.json")),
    ("model.safetensors", include_bytes!("../../models/demo/model.safetensors")),
    ("tokenizer.json", include_bytes!("../../models/demo/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../models/demo/tokenizer_config.json")),
];
