//! Large numbers in a readable form.

use std::fmt::{self, Display, Formatter};

/// A number of bytes, shown in the largest binary unit in which it is at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub usize);

impl Display for Bytes {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(&scaled(self.0 as f64, 1024.0, &[" B", " KiB", " MiB", " GiB", " TiB", " PiB"]))
    }
}

/// A count, shown in thousands, millions or billions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count(pub usize);

impl Display for Count {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(&scaled(self.0 as f64, 1000.0, &["", " k", " M", " B"]))
    }
}

/// A number of floating-point operations, shown in kFLOP, MFLOP, GFLOP and so on.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Operations(pub f64);

impl Display for Operations {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.pad(&scaled(self.0, 1000.0, &[" FLOP", " kFLOP", " MFLOP", " GFLOP", " TFLOP", " PFLOP"]))
    }
}

fn scaled(mut value: f64, step: f64, units: &[&str]) -> String {
    let mut unit = 0;
    while value >= step && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    let digits = if unit == 0 { 0 } else { 2 };
    format!("{value:.digits$}{}", units[unit])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_readable() {
        let texts = [0, 1023, 1024, 1536 << 20].map(|bytes| Bytes(bytes).to_string());
        assert_eq!(texts, ["0 B", "1023 B", "1.00 KiB", "1.50 GiB"]);
        assert_eq!([Count(260_032).to_string(), Count(8_030_261_248).to_string()], ["260.03 k", "8.03 B"]);
        assert_eq!(format!("{:>8}|", Bytes(5)), "     5 B|");
        assert_eq!(
            [Operations(999.0).to_string(), Operations(1.5e13).to_string()],
            ["999 FLOP", "15.00 TFLOP"]
        );
    }
}
