//! Token types: what tokens of the second text of a pair get beside their embedding (BERT).

use millrace_backend::{Backend, Result, SeqRow};

/// The addition to the states of tokens of the second type.
pub(super) struct SecondType<B: Backend> {
    /// The same row for each token of a step, `[t, hidden]`, because devices add rows to rows.
    rows: B::Buf,
}

impl<B: Backend> SecondType<B> {
    /// Fills a buffer for steps of up to `tokens` tokens with `row`, `[hidden]`.
    pub(super) fn new(backend: &B, row: &[f32], tokens: usize) -> Result<Self> {
        let mut rows = backend.buf(tokens, row.len())?;
        backend.upload(tokens, &row.repeat(tokens), &mut Vec::new(), &mut rows)?;
        Ok(SecondType { rows })
    }

    /// Adds the row to the states of all tokens of the second type in `states`, `[tokens, hidden]`.
    /// The contents of `scratch`, `[tokens, hidden]`, are lost.
    pub(super) fn add(
        &self,
        backend: &B,
        rows: &[SeqRow<'_>],
        states: &mut B::Buf,
        scratch: &mut B::Buf,
    ) -> Result<()> {
        let mut first = 0;
        for row in rows {
            let typed = row.second_type();
            let (at, n) = (first + typed.start, typed.len());
            first += row.count;
            if n > 0 {
                // Devices add from the first row on.
                backend.copy_rows(states, at, n, scratch, 0)?;
                backend.add(n, &self.rows, scratch)?;
                backend.copy_rows(scratch, 0, n, states, at)?;
            }
        }
        Ok(())
    }
}
