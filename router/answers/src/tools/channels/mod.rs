//! Answers that consist of messages, each with a header that says where its text belongs: to the
//! reasoning, to the answer, or to a call.
//!
//! A format of such answers is one file here that implements `ChannelFormat`: it recognizes
//! headers and the ends of messages, and writes the grammar of answers. [`ChannelParser`] reads the
//! answers of all formats.
//!
//! | file | its job |
//! |---|---|
//! | `definition` | what a format consists of |
//! | `parser` | divides an answer into messages while it is streamed |
//! | `harmony` | gpt-oss |
//! | `kimi_k3` | Kimi K3 |
//! | `muse` | Muse Glimmer |
//! | `functionary` | Functionary from version 3.2 on |

mod definition;
mod functionary;
mod harmony;
mod kimi_k3;
mod muse;
mod parser;
#[cfg(test)]
mod tests;

pub use definition::Channels;
use functionary::FUNCTIONARY;
pub(crate) use harmony::HARMONY;
pub(crate) use kimi_k3::KIMI_K3;
pub(crate) use muse::MUSE;
pub use parser::ChannelParser;

use super::format::ToolFormat;

impl ToolFormat {
    /// Returns the format of the messages in which a model of this format writes its answers.
    pub fn channels(self) -> Option<Channels> {
        match self {
            ToolFormat::Harmony => Some(HARMONY),
            ToolFormat::KimiK3 => Some(KIMI_K3),
            ToolFormat::Muse => Some(MUSE),
            ToolFormat::Functionary => Some(FUNCTIONARY),
            _ => None,
        }
    }
}
