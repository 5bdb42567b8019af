//! Text that is padded to a width.

/// The maximum width of padded text in characters. The width comes from the template.
pub(super) const MAX_WIDTH: usize = 1 << 16;

/// Implements `str.center`. If the padding is odd, a text of even length gets the additional
/// character on the left.
pub(super) fn center(text: &str, width: usize, fill: char) -> String {
    let width = width.min(MAX_WIDTH);
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    let fill = |count: usize| fill.to_string().repeat(count);
    format!("{}{text}{}", fill(left), fill(missing - left))
}
