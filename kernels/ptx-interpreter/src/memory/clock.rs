//! Vector clocks: the order between accesses of different warps that barriers establish
//! (Lamport, 1978; Fidge, 1988).

/// The part of a clock that belongs to the first mbarrier of a block. Parts below belong to warps.
pub(crate) const FIRST_MBARRIER: u16 = 32;

/// Times by part: a warp, or an mbarrier whose time is the number of its completed phases. An
/// access at time t of a part is known to a warp if the warp's clock shows at least t for the part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Clock {
    times: Vec<u32>,
}

impl Clock {
    pub(crate) fn get(&self, part: u16) -> u32 {
        self.times.get(usize::from(part)).copied().unwrap_or(0)
    }

    pub(crate) fn set(&mut self, part: u16, time: u32) {
        let index = usize::from(part);
        if self.times.len() <= index {
            self.times.resize(index + 1, 0);
        }
        self.times[index] = time;
    }

    /// Advances a part by one.
    pub(crate) fn tick(&mut self, part: u16) {
        self.set(part, self.get(part) + 1);
    }

    /// Learns everything that the other clock knows.
    pub(crate) fn merge(&mut self, other: &Clock) {
        if self.times.len() < other.times.len() {
            self.times.resize(other.times.len(), 0);
        }
        for (own, time) in self.times.iter_mut().zip(&other.times) {
            *own = (*own).max(*time);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clocks_learn_the_later_time_of_each_part() {
        let (mut a, mut b) = (Clock::default(), Clock::default());
        a.set(0, 5);
        b.set(0, 3);
        b.tick(FIRST_MBARRIER);
        a.merge(&b);
        assert_eq!((a.get(0), a.get(FIRST_MBARRIER), a.get(7)), (5, 1, 0));
    }
}
