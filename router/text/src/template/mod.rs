//! Chat templates: the text that a model was trained on, made from a conversation.
//!
//! | file | its job |
//! |---|---|
//! | `chat_template` | compiles and renders a template in a sandbox |
//! | `source_limits` | bounds on the template's text, checked before it is parsed |
//! | `roles` | finds the roles whose messages a template leaves out |
//! | `messages` | messages in the forms that different templates expect |
//! | `python` | differences between Jinja2 and minijinja |

mod chat_template;
mod messages;
mod python;
mod roles;
mod source_limits;

#[cfg(test)]
mod jinja_tests;
#[cfg(test)]
mod published_tests;

pub use chat_template::ChatTemplate;
