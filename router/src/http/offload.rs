//! Work on whole answers, which leaves the async threads if it takes long.

use crate::service::Answer;

/// The most bytes of answers that the async thread writes itself, since handing them over takes
/// longer.
const MAX_INLINE_BYTES: usize = 32 << 10;

/// Returns the bytes of text in these answers, to which the time to read and write them is
/// proportional.
pub(super) fn bytes(answers: &[Answer]) -> usize {
    answers.iter().map(|answer| answer.finished.text.len() + answer.tokens.len()).sum()
}

/// Runs `work`, whose time is proportional to `bytes`: on this thread if they are few, and
/// otherwise on a thread that may block.
pub(super) async fn run<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes <= MAX_INLINE_BYTES {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // The task is never cancelled, so it panicked. The panic continues here, where the layer of
        // this request answers it.
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => panic!("the runtime ended before the answer was written: {error}"),
        },
    }
}

#[cfg(test)]
mod tests {
    #[tokio::test]
    async fn only_long_work_leaves_the_thread() {
        let here = std::thread::current().id();
        assert_eq!(super::run(1, || std::thread::current().id()).await, here);
        assert_ne!(super::run(1 << 20, || std::thread::current().id()).await, here);
    }
}
