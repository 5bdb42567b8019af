//! The chat core: conversations and answers in a form that does not depend on an API.
//!
//! A route translates its request into a [`ConversationRequest`], which becomes a prompt. An
//! [`AnswerReader`] separates reasoning and tool calls from the text of the answer, and the route
//! translates its events into the terms of its API:
//!
//! ```text
//! request ──route──► ConversationRequest ──► PreparedChat ──service──► TextEvent
//!                                                                          │
//! response ◄──route── AnswerEvent ◄── AnswerReader ◄───────────────────────┘
//! ```
//!
//! Messages and tools have the JSON form that chat templates read. Nothing here knows HTTP or the
//! JSON of an API's responses.
//!
//! | file | its job |
//! |---|---|
//! | `input` | a conversation, its prompt, and the request for the service |
//! | `messages` | validation of messages, and the text that an answer continues |
//! | `call_arguments` | the arguments of earlier tool calls |
//! | `late_system` | moves system messages that the template would not write |
//! | `transcript` | messages built from the items of an API that has other parts than messages |
//! | `tools` | the tools of a request and the choice among them |
//! | `custom_tools` | tools that take a text instead of JSON |
//! | `answer` | the grammar of an answer, and its tool calls as they are generated |
//! | `blocks` | an answer as a sequence of blocks, each a text or a call |
//! | `ignored` | the names of request fields that have no effect |
//! | `error` | why a conversation is refused |

mod answer;
mod blocks;
mod call_arguments;
mod custom_tools;
mod error;
mod ignored;
mod input;
mod late_system;
mod messages;
mod tools;
mod transcript;

#[cfg(test)]
mod models_page_tests;
#[cfg(test)]
mod published_tests;
#[cfg(test)]
mod round_trip_tests;
#[cfg(test)]
mod spoken_tests;

pub(crate) use answer::{AnswerEvent, AnswerFormat, AnswerReader};
pub(crate) use blocks::{AnswerBlock, BlockEvent, BlockReader};
pub(crate) use call_arguments::call_arguments;
pub(crate) use custom_tools::{CUSTOM_INPUT, custom_function, is_text_format};
pub(crate) use error::ChatError;
pub(crate) use ignored::IgnoredFields;
pub(crate) use input::{
    ConversationRequest, EFFORT_VARIABLE, PreparedChat, THINKING_VARIABLES, ThinkingOptions,
};
pub(crate) use messages::ContinuationOptions;
pub(crate) use tools::{MAX_TOOLS, ToolOptions, ToolSelection, check_function};
pub(crate) use transcript::Transcript;
