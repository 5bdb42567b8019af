//! Progress bars: while a model loads, and their style.

use indicatif::{ProgressBar, ProgressStyle};
use millrace_router::engine::EngineState;
use tokio::sync::{oneshot, watch};

/// Returns the style of a bar of known length in bytes.
pub(crate) fn measured() -> ProgressStyle {
    style("{msg:<20} {wide_bar} {bytes}/{total_bytes} ({bytes_per_sec}, {eta})")
}

/// Returns the style of a template, which is a constant that the library accepts.
pub(crate) fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// Shows the bar on its own thread, because a stopped terminal blocks writers. The receiver
/// completes when the bar has been removed.
pub(crate) fn show_beside(state: watch::Receiver<EngineState>) -> oneshot::Receiver<()> {
    let (gone, receiver) = oneshot::channel::<()>();
    let draw = move || {
        if let Ok(runtime) = tokio::runtime::Builder::new_current_thread().build() {
            runtime.block_on(show(state));
        }
        drop(gone);
    };
    // Without a thread there is no bar, and the receiver completes at once.
    drop(std::thread::Builder::new().name("progress".into()).spawn(draw));
    receiver
}

/// Shows a bar on standard error until the engine is ready or has failed. Draws nothing if standard
/// error is not a terminal.
pub(crate) async fn show(mut state: watch::Receiver<EngineState>) {
    let bar = ProgressBar::no_length();
    let (unmeasured, measured) = (style("{msg}"), measured());
    loop {
        match &*state.borrow_and_update() {
            EngineState::Loading { phase, done, total } => {
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
