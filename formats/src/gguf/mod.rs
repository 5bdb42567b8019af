//! GGUF files, versions 1 to 3: metadata as keys and values, then tensors.
//!
//! Georgi Gerganov and the authors of llama.cpp defined the format. Everything that a model needs
//! is in one file: configuration, tokenizer, chat template and weights.

mod file;
#[cfg(test)]
mod test_writer;
#[cfg(test)]
mod tests;
mod tokenizer;
mod value;
