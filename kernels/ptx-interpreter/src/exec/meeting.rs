//! Instructions at which lanes or warps meet.

use super::alu::Lanes;
use super::shared::Shared;
use super::warp::{Warp, lanes};
use crate::error::Trap;
use crate::instruction::{Shuffle, ShuffleMode, VoteMode};
use crate::operand::Source;

impl Warp {
    /// The lanes of a mask operand, which must be the same for all lanes that execute the
    /// instruction and contain them.
    pub(super) fn members(&self, mask: Source, active: u32, shared: &Shared<'_>) -> Result<u32, Trap> {
        let masks = self.value(mask, shared);
        let first = masks[active.trailing_zeros() as usize] as u32;
        for lane in lanes(active) {
            if masks[lane] as u32 != first {
                return Err(Trap::lane(lane as u32, "lanes that meet give different masks"));
            }
            if first >> lane & 1 == 0 {
                return Err(Trap::lane(lane as u32, "a lane is not in its own mask"));
            }
        }
        Ok(first & self.live)
    }

    pub(super) fn shuffle(&mut self, s: &Shuffle, active: u32, shared: &Shared<'_>) -> Result<(), Trap> {
        let [a, b, c] = [s.a, s.lane, s.clamp].map(|source| self.value(source, shared));
        let (mut values, mut in_range) = ([0; 32], [0; 32]);
        for lane in lanes(active) {
            let (own, by) = (lane as i64, b[lane] as i64 & 31);
            let segment = (c[lane] >> 8 & 31) as i64;
            let least = own & segment;
            let most = least | (c[lane] as i64 & 31 & !segment);
            let (from, ok) = match s.mode {
                ShuffleMode::Up => (own - by, own - by >= most),
                ShuffleMode::Down => (own + by, own + by <= most),
                ShuffleMode::Butterfly => (own ^ by, own ^ by <= most),
                ShuffleMode::Index => {
                    let from = least | (by & !segment);
                    (from, from <= most)
                }
            };
            let from = if ok { from as usize } else { lane };
            if active >> from & 1 == 0 {
                return Err(Trap::lane(lane as u32, format!("reads lane {from}, which does not take part")));
            }
            (values[lane], in_range[lane]) = (a[from], u64::from(ok));
        }
        self.set(s.d, &values, active);
        if let Some(p) = s.in_range {
            self.set(p, &in_range, active);
        }
        Ok(())
    }

    pub(super) fn vote(&self, mode: VoteMode, p: &Lanes, active: u32) -> Lanes {
        let ballot = lanes(active).filter(|lane| p[*lane] != 0).fold(0u32, |all, lane| all | 1 << lane);
        [match mode {
            VoteMode::Ballot => u64::from(ballot),
            VoteMode::Any => u64::from(ballot != 0),
            VoteMode::All => u64::from(ballot == active),
        }; 32]
    }
}
