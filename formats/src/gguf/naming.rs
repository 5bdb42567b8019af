//! How the names of tensors in GGUF become those of Hugging Face for the same weights.

/// The tensor with the divisors of the rotary frequencies.
pub(super) const ROPE_DIVISORS: &str = "rope_freqs.weight";

/// The tensors with the divisors of LongRoPE, for long and for short texts.
pub(super) const LONG_ROPE: [&str; 2] = ["rope_factors_long.weight", "rope_factors_short.weight"];

/// The names of a kind of models.
#[derive(Debug, Clone, Copy)]
pub(super) struct Naming {
    /// The prefix of the names of a layer's tensors. The number of the layer follows.
    pub(super) layers: &'static str,
    /// Pairs of names outside layers, without their suffix.
    pub(super) outer: &'static [(&'static str, &'static str)],
    /// Pairs of names of a layer's modules.
    pub(super) inner: &'static [(&'static str, &'static str)],
    /// Pairs that precede `inner`. A name with its suffix is translated as a whole.
    pub(super) special: &'static [(&'static str, &'static str)],
    /// Pairs between the two: those of a recurrent layer, which several architectures share.
    pub(super) recurrent: &'static [(&'static str, &'static str)],
    /// The modules with the matrices of all experts, and the name of the matrix of one expert, with
    /// `*` for its number.
    pub(super) experts: &'static [(&'static str, &'static str)],
}

/// Pairs of names in a layer that predicts the token after the next one. They follow the others.
const LATER: &[(&str, &str)] = &[
    ("nextn.enorm", "enorm"),
    ("nextn.hnorm", "hnorm"),
    ("nextn.eh_proj", "eh_proj"),
    ("nextn.shared_head_norm", "shared_head.norm"),
    ("nextn.shared_head_head", "shared_head.head"),
    ("nextn.embed_tokens", "embed_tokens"),
];

/// The prefix of the names of a layer's tensors in GGUF.
const LAYERS: &str = "blk.";

impl Naming {
    /// Returns the name in Hugging Face layout of the tensor `name`. A name that is not known stays
    /// as it is; in a layer it gets the prefix of layers, so that it is refused when the model has
    /// no use for it.
    pub(super) fn translate(&self, name: &str) -> String {
        let find = |pairs: &[(&str, &'static str)], name: &str| {
            if let Some((_, translated)) = pairs.iter().find(|(from, _)| *from == name) {
                return Some((*translated).to_owned());
            }
            let (module, suffix) = name.rsplit_once('.')?;
            let (_, translated) = pairs.iter().find(|(from, _)| *from == module)?;
            Some(format!("{translated}.{suffix}"))
        };
        match name.strip_prefix(LAYERS).and_then(|rest| rest.split_once('.')) {
            Some((layer, rest)) => {
                let tables = [self.special, self.recurrent, self.inner, LATER];
                let known = tables.iter().find_map(|pairs| find(pairs, rest));
                let rest = known.unwrap_or_else(|| rest.to_owned());
                format!("{}{layer}.{rest}", self.layers)
            }
            None => find(self.outer, name).unwrap_or_else(|| name.to_owned()),
        }
    }

    /// Returns the names of the matrices of one expert, with `*` for its number, if the tensor
    /// `name` has them of all experts of a layer: one matrix, or gate and up.
    pub(super) fn matrices_of_expert(&self, name: &str) -> Vec<String> {
        let rest = name.strip_prefix(LAYERS).and_then(|rest| rest.split_once('.'));
        let parts = rest.and_then(|(layer, rest)| Some((layer, rest.rsplit_once('.')?)));
        let Some((layer, (module, suffix @ ("weight" | "bias")))) = parts else { return Vec::new() };
        let modules = match module {
            "ffn_gate_up_exps" => &["ffn_gate_exps", "ffn_up_exps"][..],
            _ => &[module],
        };
        let one = |module: &&str| self.experts.iter().find(|(stacked, _)| stacked == module);
        let names = modules.iter().filter_map(one);
        names.map(|(_, one)| format!("{}{layer}.{one}.{suffix}", self.layers)).collect()
    }

    /// Returns the names of query, key and value if the tensor `name` has all three, and the models
    /// have them in tensors of their own.
    pub(super) fn fused_qkv(&self, name: &str) -> Option<[String; 3]> {
        const FUSED: &str = "attn_qkv";
        let (layer, rest) = name.strip_prefix(LAYERS)?.split_once('.')?;
        let suffix = rest.strip_prefix(FUSED)?.strip_prefix('.')?;
        if self.special.iter().chain(self.inner).any(|(from, _)| *from == FUSED) {
            return None;
        }
        let one = |part: &str| self.translate(&format!("{LAYERS}{layer}.{part}.{suffix}"));
        Some(["attn_q", "attn_k", "attn_v"].map(one))
    }

    /// Returns the name in GGUF of the tensor that is `name` in Hugging Face layout, the reverse of
    /// [`translate`](Self::translate). Returns nothing if GGUF has no name for it.
    pub(super) fn reverse(&self, name: &str) -> Option<String> {
        let (tables, before, rest) = match self.in_layer(name) {
            None => ([self.outer, &[], &[]], String::new(), name),
            Some((layer, rest)) => {
                let before = format!("{LAYERS}{}.", layer.parse::<u32>().ok()?);
                ([self.special, self.recurrent, self.inner], before, rest)
            }
        };
        // Of several pairs, the first one whose name in GGUF is read as this one. Names of
        // tensors, with a suffix, come before names of modules.
        let find = |wanted: &str, suffix: &str| {
            let pairs = tables.iter().flat_map(|pairs| pairs.iter());
            let mut names = pairs
                .filter(|(_, translated)| *translated == wanted)
                .map(|(stored, _)| format!("{before}{stored}{suffix}"));
            names.find(|stored| self.translate(stored) == name)
        };
        let of_module = || rest.rfind('.').and_then(|dot| find(&rest[..dot], &rest[dot..]));
        find(rest, "").or_else(of_module)
    }

    /// Returns the name in GGUF of the tensor with the matrices of all experts of a layer, one of
    /// which is `name` in Hugging Face layout, and the number of that expert. This is the reverse
    /// of [`matrices_of_expert`](Self::matrices_of_expert).
    pub(super) fn reverse_expert(&self, name: &str) -> Option<(String, usize)> {
        let (layer, rest) = self.in_layer(name)?;
        let layer = layer.parse::<u32>().ok()?;
        let (module, suffix) = rest.rsplit_once('.')?;
        self.experts.iter().find_map(|(stacked, one)| {
            let (before, after) = one.split_once('*')?;
            let expert = module.strip_prefix(before)?.strip_suffix(after)?.parse().ok()?;
            Some((format!("{LAYERS}{layer}.{stacked}.{suffix}"), expert))
        })
    }

    /// Splits the name of a layer's tensor in Hugging Face layout after the number of the layer.
    fn in_layer<'a>(&self, name: &'a str) -> Option<(&'a str, &'a str)> {
        name.strip_prefix(self.layers)?.split_once('.')
    }
}

/// Returns the name of a layer's tensor without the number of the layer.
pub(super) fn in_layer(name: &str) -> Option<&str> {
    Some(name.strip_prefix(LAYERS)?.split_once('.')?.1)
}
