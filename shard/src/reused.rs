//! Vectors of borrowing values that keep their allocations between calls.

/// Returns an empty vector with the allocation of `used`, for elements that differ only in their
/// lifetime. Collecting a vector's own iterator happens in place.
pub(crate) fn emptied<A, B>(mut used: Vec<A>) -> Vec<B> {
    used.clear();
    used.into_iter().map(|_| -> B { unreachable!("the vector was cleared") }).collect()
}

#[cfg(test)]
mod tests {
    use millrace_backend::SeqRow;

    use super::*;

    #[test]
    fn an_emptied_vector_keeps_its_allocation() {
        let used: Vec<SeqRow<'_>> = Vec::with_capacity(7);
        let (at, capacity) = (used.as_ptr().addr(), used.capacity());
        let reused: Vec<SeqRow<'static>> = emptied(used);
        assert_eq!((reused.as_ptr().addr(), reused.capacity()), (at, capacity));
    }
}
