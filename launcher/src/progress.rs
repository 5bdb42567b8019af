//! The bar shown while a model loads.

use indicatif::{ProgressBar, ProgressStyle};
use millrace_router::engine::State;
use tokio::sync::watch;

/// Shows a bar on standard error until the engine is ready or has failed. Draws nothing when that is no terminal.
pub(crate) async fn show(mut state: watch::Receiver<State>) {
    let bar = ProgressBar::no_length();
    // The template is a constant that the style accepts.
    if let Ok(style) =
        ProgressStyle::with_template("{msg:<20} {wide_bar} {bytes}/{total_bytes} ({bytes_per_sec})")
    {
        bar.set_style(style);
    }
    loop {
        match &*state.borrow_and_update() {
            State::Loading { phase, done, total } => {
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
