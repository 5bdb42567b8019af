//! Texts of any length by a rule that a number chooses.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use super::Frame;

/// Stands in a piece for a number that is another each time.
const COUNTER: char = '§';

/// A rule that makes texts of any length which look alike.
#[derive(Debug, Clone)]
pub struct Pattern {
    before: String,
    between: &'static str,
    after: String,
    shape: Shape,
}

#[derive(Debug, Clone)]
enum Shape {
    /// The same again and again.
    Repeat(String),
    /// One text for the first half, another one for the second: brackets that open and close, among
    /// others.
    Halves(String, String),
    /// One text at the beginning, and the same again and again after it.
    Led(String, String),
}

impl Pattern {
    pub(super) fn new(frames: &[Frame], seed: u64) -> Self {
        let mut index = usize::try_from(seed).unwrap_or(usize::MAX);
        for frame in frames {
            if let Some(shape) = plain(frame, index) {
                return Pattern::within(frame, shape);
            }
            index -= frame.alphabet.plain_patterns() as usize;
        }
        let mut random = StdRng::seed_from_u64(seed);
        let frame = frames.choose(&mut random).expect("each target has a frame");
        let shape = shape(frame, &mut random);
        Pattern::within(frame, shape)
    }

    fn within(frame: &Frame, shape: Shape) -> Self {
        let Frame { before, between, after, .. } = *frame;
        Pattern { before: before.to_owned(), between, after: after.to_owned(), shape }
    }

    /// A text of about this many bytes, and never fewer.
    pub fn text(&self, bytes: usize) -> String {
        let mut text = self.before.clone();
        let room = bytes.saturating_sub(self.before.len() + self.after.len());
        let mut count = 0;
        match &self.shape {
            Shape::Repeat(unit) => self.fill(&mut text, unit, room, &mut count),
            Shape::Halves(first, second) => {
                self.fill(&mut text, first, room / 2, &mut count);
                text += self.between;
                self.fill(&mut text, second, room / 2, &mut count);
            }
            Shape::Led(first, rest) => {
                self.fill(&mut text, first, 0, &mut count);
                text += self.between;
                self.fill(&mut text, rest, room.saturating_sub(first.len()), &mut count);
            }
        }
        text + &self.after
    }

    /// Adds at least `room` bytes of whole units.
    fn fill(&self, text: &mut String, unit: &str, room: usize, count: &mut usize) {
        let until = text.len() + room;
        let mut is_first = true;
        while text.len() < until || is_first {
            if !is_first {
                text.push_str(self.between);
            }
            is_first = false;
            match unit.contains(COUNTER) {
                true => text.push_str(&unit.replace(COUNTER, &count.to_string())),
                false => text.push_str(unit),
            }
            *count += 1;
        }
    }
}

/// The single piece or pair with this number, if there are so many.
fn plain(frame: &Frame, index: usize) -> Option<Shape> {
    let (pieces, pairs) = (frame.alphabet.pieces, frame.alphabet.pairs);
    let of_pair = |(open, close): &(&str, &str)| Shape::Halves((*open).to_owned(), (*close).to_owned());
    match pieces.get(index) {
        Some(piece) => Some(Shape::Repeat((*piece).to_owned())),
        None => pairs.get(index - pieces.len()).map(of_pair),
    }
}

fn shape(frame: &Frame, random: &mut StdRng) -> Shape {
    let (pieces, pairs) = (frame.alphabet.pieces, frame.alphabet.pairs);
    let mut unit = |most: usize| {
        let pieces = (0..random.random_range(1..=most)).filter_map(|_| pieces.choose(random));
        pieces.copied().collect::<Vec<_>>().join(frame.between)
    };
    let (first, second, third) = (unit(1), unit(4), unit(3));
    match random.random_range(0..5) {
        0 | 1 => Shape::Repeat(second),
        2 => Shape::Halves(second, third),
        3 => Shape::Led(first, second),
        _ => match pairs.choose(random) {
            Some((open, close)) => Shape::Halves(format!("{open}{first}"), (*close).to_owned()),
            None => Shape::Repeat(third),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::super::targets;

    #[test]
    fn texts_are_as_long_as_asked_and_the_same_each_time() {
        for target in targets() {
            for seed in 0..target.plain_patterns() + 50 {
                let pattern = target.pattern(seed);
                for bytes in [512, 4096] {
                    let text = pattern.text(bytes);
                    let name = &target.name;
                    assert!(
                        (bytes - 32..2 * bytes + 256).contains(&text.len()),
                        "{name} {seed}: {}",
                        text.len()
                    );
                    assert_eq!(target.pattern(seed).text(bytes), text, "{name} {seed}");
                }
            }
        }
    }
}
