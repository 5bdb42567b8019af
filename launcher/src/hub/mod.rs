//! Downloads models from the Hugging Face hub into the Hugging Face cache.
//!
//! | file | its job |
//! |---|---|
//! | `repository` | names of repositories, revisions and files, and their checks |
//! | `settings` | the variables of the hub: endpoint, token, offline mode, time limits |
//! | `client` | requests: redirects, the token, errors of the hub |
//! | `listing` | the files of a repository with sizes and checksums |
//! | `needed` | the files that Millrace reads |
//! | `cache` | the layout of the cache on disk, and its locks |
//! | `blob` | the download of one file: continuation and checksum |
//! | `retry` | when a failed request is repeated |
//! | `progress` | the bytes so far, as a bar or as lines of the log |
//! | `fetch` | the order of all this for one model |
//! | `adapter` | the same for a LoRA adapter |
//! | `background` | the download on threads of its own |

mod adapter;
mod background;
mod blob;
mod cache;
mod client;
mod error;
mod fetch;
mod listing;
mod needed;
mod paced_body;
mod progress;
mod repository;
mod retry;
mod settings;

pub(crate) use self::adapter::fetch_adapter;
pub(crate) use self::background::{BackgroundDownload, block_on};
pub(crate) use self::fetch::{FetchedModel, WeightDownload, fetch};
pub(crate) use self::progress::DownloadProgress;
pub(crate) use self::repository::Repository;
pub(crate) use self::settings::{HubSettings, cache_folder};
