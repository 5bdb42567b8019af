//! The bar shown while a model loads.

use indicatif::{ProgressBar, ProgressStyle};
use millrace_router::engine::State;
use tokio::sync::watch;

/// Shows a bar on standard error until the engine is ready or has failed. Draws nothing when that is no terminal.
pub(crate) async fn show(mut state: watch::Receiver<State>) {
    let bar = ProgressBar::no_length();
    // Both templates are constants that the style accepts.
    let style =
        |template| ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar());
    let (unmeasured, measured) =
        (style("{msg}"), style("{msg:<20} {wide_bar} {bytes}/{total_bytes} ({bytes_per_sec})"));
    loop {
        match &*state.borrow_and_update() {
            State::Loading { phase, done, total } => {
                // A bar of unknown length would be drawn full.
                bar.set_style(if *total == 0 { unmeasured.clone() } else { measured.clone() });
                bar.set_length(*total);
                bar.set_position(*done);
                bar.set_message(phase.clone());
            }
            _ => break,
        }
        if state.changed().await.is_err() {
            break;
        }
    }
    bar.finish_and_clear();
}
