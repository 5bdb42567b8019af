//! Work on whole answers, away from the async threads where it is long.

use crate::service::Answer;

/// Answers of at most so many bytes are written by the async thread itself: handing the work over would cost more.
const SHORT: usize = 32 << 10;

/// Bytes of text in these answers, the measure of how long it takes to read and to write them.
pub(super) fn bytes(answers: &[Answer]) -> usize {
    answers.iter().map(|answer| answer.finished.text.len() + answer.tokens.len()).sum()
}

/// Runs `work`, whose time is proportional to `bytes`: here if they are few, else on a thread that may block.
pub(super) async fn run<T: Send + 'static>(bytes: usize, work: impl FnOnce() -> T + Send + 'static) -> T {
    if bytes <= SHORT {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        // Nobody cancels the task, so it panicked. The panic belongs to this request, whose layer answers it.
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
