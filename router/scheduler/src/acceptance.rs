//! How often guesses have been right, of late.

/// Factor by which the weight of a guess falls with each later one.
const MEMORY: f64 = 0.9;

/// Factor by which the weight of all guesses falls with each token before which there was none. So
/// guesses are tried again some time after they were wrong.
const FADING: f64 = 0.98;

/// Number of guesses whose weight the expected share has.
const EXPECTED: f64 = 2.0;

/// The share of right guesses among the last ones.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Acceptance {
    /// Weighted number of guesses, and of right ones.
    guesses: f64,
    right: f64,
}

impl Acceptance {
    /// Notes whether a guess was right.
    pub(super) fn note(&mut self, is_right: bool) {
        self.guesses = MEMORY * self.guesses + 1.0;
        self.right = MEMORY * self.right + f64::from(u8::from(is_right));
    }

    /// Notes that the first `right` of `count` guesses were right. The ones after the first wrong
    /// one say nothing.
    pub(super) fn note_drafts(&mut self, count: usize, right: usize) {
        (0..count.min(right + 1)).for_each(|draft| self.note(draft < right));
    }

    /// Notes a token before which there was no guess.
    pub(super) fn fade(&mut self) {
        self.guesses *= FADING;
        self.right *= FADING;
    }

    /// The share of right guesses, as far as it is known. Without any guess, it is `expected`.
    pub(super) fn share(&self, expected: f64) -> f64 {
        (self.right + EXPECTED * expected) / (self.guesses + EXPECTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_follows_the_guesses_and_returns_to_what_is_expected() {
        let mut acceptance = Acceptance::default();
        assert_eq!((acceptance.share(0.5), acceptance.share(0.9)), (0.5, 0.9));
        (0..100).for_each(|_| acceptance.note(true));
        assert!(acceptance.share(0.5) > 0.9);
        (0..100).for_each(|_| acceptance.note(false));
        assert!(acceptance.share(0.5) < 0.1);
        (0..300).for_each(|_| acceptance.fade());
        assert!((acceptance.share(0.5) - 0.5).abs() < 0.01);
    }

    #[test]
    fn guesses_after_a_wrong_one_say_nothing() {
        let mut acceptance = Acceptance::default();
        acceptance.note_drafts(8, 2);
        let mut wanted = Acceptance::default();
        [true, true, false].into_iter().for_each(|is_right| wanted.note(is_right));
        assert_eq!(acceptance.share(0.0).to_bits(), wanted.share(0.0).to_bits());
        let mut all = Acceptance::default();
        all.note_drafts(2, 2);
        assert_eq!(all.share(1.0), 1.0);
    }
}
