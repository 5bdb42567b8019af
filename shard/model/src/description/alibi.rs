//! Attention with linear biases (ALiBi).

/// The heads of a layer with linear biases.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AlibiHeads {
    /// The way in which slopes follow from the number of heads.
    pub rule: SlopeRule,
    /// Number of query heads of the whole model.
    pub all: usize,
    /// Number of this rank's first head.
    pub first: usize,
}

impl AlibiHeads {
    /// Returns the slopes of this rank's `count` heads.
    pub fn slopes(&self, count: usize) -> Vec<f32> {
        (self.first..self.first + count).map(|head| self.slope(head)).collect()
    }

    /// Returns the slope of a head of the whole model.
    fn slope(&self, head: usize) -> f32 {
        // Slope i of n heads is 2 ^ (-max * (i + 1) / n).
        let slope = |i: usize, n: usize, max: f32| (-max * (i + 1) as f32 / n as f32).exp2();
        match self.rule {
            SlopeRule::Below { factor } => {
                let below =
                    if self.all.is_power_of_two() { self.all } else { self.all.next_power_of_two() / 2 };
                let slope = if head < below {
                    slope(head, below, 8.0)
                } else {
                    slope(2 * (head - below), 2 * below, 8.0)
                };
                factor * slope
            }
            SlopeRule::Above { max } => {
                let above = self.all.next_power_of_two();
                let order = |head: usize| {
                    if above == self.all {
                        head
                    } else if head < above / 2 {
                        2 * head + 1
                    } else {
                        2 * (head - above / 2)
                    }
                };
                slope(order(head), above, max)
            }
        }
    }
}

/// The way in which the slopes of linear biases follow from the number of heads, if that is not a
/// power of two.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum SlopeRule {
    /// The slopes of the next lower power of two, then every second one of the next higher (BLOOM,
    /// Baichuan).
    Below {
        /// Factor on all slopes. Falcon adds the biases before it scales the scores.
        factor: f32,
    },
    /// Those of the next higher power of two: every second one from the second on, then the others
    /// (MPT).
    Above {
        /// The largest exponent of two, 8 in the paper.
        max: f32,
    },
}
