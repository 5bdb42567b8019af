//! Tool calls: which tools a model may call, how it writes a call, and how its answer is parsed.
//!
//! | file | its job |
//! |---|---|
//! | `allowed` | the tools that a request allows |
//! | `format` | the formats in which models write calls, and how a model's format is detected |
//! | `syntax` | the markers of each format and the form of its calls |
//! | `call_grammar` | the grammar of answers that call tools |
//! | `parser` | finds the calls in the text of an answer while it is streamed |
//! | `delta` | the content and the parts of calls that a piece of an answer adds |
//! | `held_text` | holds back the end of a text that may become a call |
//! | `json_call` | reads one call in JSON |
//! | `tagged_call` | reads one call in tags and writes its arguments as JSON |
//! | `python_call` | reads one call in Python's syntax and writes its arguments as JSON |
//! | `gemma_call` | reads one call in Gemma's notation and writes its arguments as JSON |
//! | `channels` | reads answers that consist of messages with headers: reasoning, text and calls |
//! | `text_argument` | reads the text in a call of a tool that takes a text |
//! | `prompt_text` | writes tools and calls into messages, for templates without support for them |

mod allowed;
mod call_grammar;
mod channels;
mod delta;
mod format;
mod gemma_call;
mod held_text;
mod json_call;
mod parser;
mod prompt_text;
mod python_call;
mod syntax;
mod tagged_call;
mod text_argument;
mod written;

pub use allowed::{AllowedTools, Tool, ToolChoice};
pub use call_grammar::call_grammar;
pub use channels::{ChannelParser, Channels};
pub(crate) use channels::{HARMONY, KIMI_K3, MUSE};
pub use delta::{AnswerDelta, CallDelta};
pub use format::{ToolFormat, UnknownToolFormat};
pub(crate) use held_text::HeldText;
pub use parser::ToolCallParser;
pub use prompt_text::{show_calls, show_tools};
pub use text_argument::TextArgument;
