//! The bytes that each token adds to the text.
//!
//! A tokenizer's decoder is a chain of steps over token strings. All chains in use by generating
//! models treat each token on its own, except at the start of the text. Therefore the chain runs
//! once per token at load time, and decoding is a table look-up. This is also exact for tokens that
//! are part of a character, which a decoder that returns strings cannot represent.

use serde::Deserialize;

use super::error::TextError;

/// A step of the decoder in `tokenizer.json`.
#[derive(Debug, Deserialize)]
#[serde(tag = "type")]
enum DecoderStep {
    ByteLevel,
    ByteFallback,
    Fuse,
    Replace {
        pattern: DecoderPattern,
        content: String,
    },
    Strip {
        content: char,
        start: usize,
        stop: usize,
    },
    Metaspace {
        replacement: char,
        #[serde(default)]
        prepend_scheme: Option<String>,
        #[serde(default)]
        add_prefix_space: Option<bool>,
    },
    WordPiece {
        prefix: String,
        cleanup: bool,
    },
    Sequence {
        decoders: Vec<serde_json::Value>,
    },
    #[serde(other)]
    Unsupported,
}

#[derive(Debug, Deserialize)]
enum DecoderPattern {
    String(String),
    Regex(#[allow(dead_code)] String),
}

/// The characters that are removed from the start of a text, unless the text continues another one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeadingTrim {
    /// Removes nothing.
    Keep,
    /// Removes this character, at most this many times.
    Strip(char, usize),
    /// Removes the spaces of the first token.
    FirstToken,
}

/// The bytes of every token, in one allocation.
#[derive(Debug)]
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    /// Token `i` is `bytes[ends[i - 1]..ends[i]]`.
    ends: Vec<u32>,
    /// The text between two tokens. It is a space for tokenizers without a decoder, whose tokens
    /// are words.
    pub(super) separator: &'static str,
    pub(super) leading_trim: LeadingTrim,
}

impl TokenBytes {
    /// Runs the decoder of `tokenizer.json` over every token of the vocabulary.
    pub(super) fn new(
        decoder: Option<&serde_json::Value>,
        size: u32,
        token: impl Fn(u32) -> Option<String>,
    ) -> Result<Self, TextError> {
        let mut steps = Vec::new();
        match decoder {
            Some(decoder) if !decoder.is_null() => flatten(decoder, &mut steps)?,
            _ => {}
        }
        let mut pieces = TokenBytes {
            bytes: Vec::new(),
            ends: Vec::with_capacity(size as usize),
            separator: if steps.is_empty() { " " } else { "" },
            leading_trim: LeadingTrim::Keep,
        };
        let mut fused = false;
        for step in &steps {
            match step {
                DecoderStep::Fuse => fused = true,
                DecoderStep::Strip { content, start, stop } if fused => {
                    if *stop > 0 {
                        return Err(TextError::Decoder("Strip at the end of the text".into()));
                    }
                    pieces.leading_trim = LeadingTrim::Strip(*content, *start);
                }
                DecoderStep::Metaspace { prepend_scheme, add_prefix_space, .. } => {
                    let prepends = match prepend_scheme {
                        Some(scheme) => scheme != "never",
                        None => add_prefix_space.unwrap_or(true),
                    };
                    if prepends {
                        pieces.leading_trim = LeadingTrim::FirstToken;
                    }
                }
                DecoderStep::WordPiece { .. } => pieces.leading_trim = LeadingTrim::FirstToken,
                _ => {}
            }
        }
        for id in 0..size {
            if let Some(token) = token(id) {
                pieces.bytes.extend(apply(&steps, token));
            }
            let end = u32::try_from(pieces.bytes.len())
                .map_err(|_| TextError::Decoder("a vocabulary of more than 4 GiB".into()))?;
            pieces.ends.push(end);
        }
        Ok(pieces)
    }

    /// Returns the bytes of a token. They are empty for an id outside the vocabulary.
    pub(super) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else { return &[] };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start as usize..end as usize]
    }

    /// Returns the length of the longest token in bytes.
    pub(super) fn longest(&self) -> usize {
        (0..self.ends.len() as u32).map(|id| self.get(id).len()).max().unwrap_or(0)
    }
}

fn flatten(decoder: &serde_json::Value, steps: &mut Vec<DecoderStep>) -> Result<(), TextError> {
    let name = || decoder["type"].as_str().unwrap_or("unknown").to_owned();
    match DecoderStep::deserialize(decoder).map_err(|_| TextError::Decoder(name()))? {
        DecoderStep::Sequence { decoders } => decoders.iter().try_for_each(|decoder| flatten(decoder, steps)),
        DecoderStep::Unsupported => Err(TextError::Decoder(name())),
        DecoderStep::Replace { pattern: DecoderPattern::Regex(_), .. } => {
            Err(TextError::Decoder("Replace with a regular expression".into()))
        }
        step => {
            steps.push(step);
            Ok(())
        }
    }
}

fn apply(steps: &[DecoderStep], token: String) -> Vec<u8> {
    let mut text = token;
    let mut fused = false;
    for step in steps {
        match step {
            DecoderStep::ByteLevel => return byte_level(&text).unwrap_or_else(|| text.into_bytes()),
            DecoderStep::ByteFallback => {
                if let Some(byte) = fallback_byte(&text) {
                    return vec![byte];
                }
            }
            DecoderStep::Replace { pattern: DecoderPattern::String(pattern), content } => {
                text = text.replace(pattern.as_str(), content);
            }
            DecoderStep::Strip { content, start, stop } if !fused => {
                text = strip(&text, *content, *start, *stop)
            }
            DecoderStep::Metaspace { replacement, .. } => text = text.replace(*replacement, " "),
            DecoderStep::WordPiece { prefix, cleanup } => text = word_piece(&text, prefix, *cleanup),
            DecoderStep::Fuse => fused = true,
            // `flatten` refuses or flattens these steps, or they concern only the start of the
            // whole text.
            DecoderStep::Strip { .. }
            | DecoderStep::Replace { .. }
            | DecoderStep::Sequence { .. }
            | DecoderStep::Unsupported => {}
        }
    }
    text.into_bytes()
}

/// Returns the text of a token of BERT's vocabulary: the prefix marks a token that continues a
/// word, and all others begin with a space. With `cleanup`, there is none before some marks and
/// endings.
fn word_piece(token: &str, prefix: &str, cleanup: bool) -> String {
    const WITHOUT_SPACE: [&str; 9] = [".", "?", "!", ",", "n't", "'m", "'s", "'ve", "'re"];
    if let Some(rest) = token.strip_prefix(prefix) {
        return rest.to_owned();
    }
    let text = format!(" {token}");
    match cleanup {
        true => WITHOUT_SPACE.iter().fold(text, |text, end| text.replace(&format!(" {end}"), end)),
        false => text,
    }
}

fn strip(text: &str, content: char, start: usize, stop: usize) -> String {
    let leading = text.chars().take(start).take_while(|&c| c == content).count();
    let rest = &text[leading * content.len_utf8()..];
    let trailing = rest.chars().rev().take(stop).take_while(|&c| c == content).count();
    rest[..rest.len() - trailing * content.len_utf8()].to_owned()
}

/// Returns the byte that a token such as `<0x0A>` stands for.
fn fallback_byte(token: &str) -> Option<u8> {
    let digits = token.strip_prefix("<0x")?.strip_suffix('>')?;
    (digits.len() == 2).then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

/// Converts GPT-2's printable alphabet to bytes. Returns `None` if a character is not part of the
/// alphabet.
///
/// Bytes that are printable in Latin-1 stand for themselves. The other 68 bytes are the characters
/// from U+0100 on, in order.
fn byte_level(token: &str) -> Option<Vec<u8>> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    token
        .chars()
        .map(|c| match u32::from(c) {
            code @ 0..=0xFF => Some(code as u8).filter(|&byte| printable(byte)),
            code => (0..=255u8).filter(|&byte| !printable(byte)).nth((code - 0x100) as usize),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn piece(decoder: serde_json::Value, token: &str) -> Vec<u8> {
        let pieces = TokenBytes::new(Some(&decoder), 1, |_| Some(token.to_owned())).unwrap();
        pieces.get(0).to_vec()
    }

    #[test]
    fn each_decoder_gives_its_bytes() {
        assert_eq!(piece(json!({"type": "ByteLevel"}), "Ġa"), b" a");
        assert_eq!(piece(json!({"type": "ByteLevel"}), "Ċ"), b"\n");
        assert_eq!(piece(json!({"type": "ByteLevel"}), "a b"), b"a b");
        assert_eq!(piece(json!({"type": "ByteFallback"}), "<0xE2>"), [0xE2]);
        assert_eq!(piece(json!({"type": "Metaspace", "replacement": "▁"}), "▁a"), b" a");
        for (token, text) in
            [("##ing", "ing"), ("word", " word"), (".", "."), ("n't", "n't"), ("-", " -"), ("'", " '")]
        {
            let decoder = json!({"type": "WordPiece", "prefix": "##", "cleanup": true});
            assert_eq!(piece(decoder, token), text.as_bytes());
        }
        let strip = json!({"type": "Strip", "content": " ", "start": 1, "stop": 1});
        assert_eq!(piece(strip, "  a "), b" a");
    }

    #[test]
    fn unknown_decoders_are_refused_by_name() {
        let error = TokenBytes::new(Some(&json!({"type": "CTC", "cleanup": true})), 1, |_| None).unwrap_err();
        assert!(error.to_string().contains("CTC"), "{error}");
    }
}
