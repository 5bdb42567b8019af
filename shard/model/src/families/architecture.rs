//! Finds the family of a configuration by its `model_type` and its `architectures`, which may
//! contradict each other.

use super::config::Config;
use super::error::ConfigError;
use super::family::Family;
use super::registry::FAMILIES;

/// The family of a configuration.
pub(super) struct FoundFamily {
    pub(super) family: &'static Family,
    /// Whether the architecture has a head: it generates or classifies texts.
    pub(super) has_head: bool,
    /// A warning for each contradiction between the keys.
    pub(super) warnings: Vec<String>,
}

/// The classes of transformers that a configuration may name, by their results.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ClassKind {
    /// Generates texts.
    Generates,
    /// Classifies texts.
    Classifies,
    /// Computes hidden states only.
    States,
    /// Any other class.
    Other,
}

impl ClassKind {
    fn of(class: &str) -> Self {
        const GENERATING: [&str; 3] = ["ForCausalLM", "LMHeadModel", "ForConditionalGeneration"];
        if GENERATING.iter().any(|end| class.ends_with(end)) {
            ClassKind::Generates
        } else if class.ends_with("ForSequenceClassification") {
            ClassKind::Classifies
        } else if class.ends_with("Model") {
            ClassKind::States
        } else {
            ClassKind::Other
        }
    }

    fn name(self) -> &'static str {
        match self {
            ClassKind::Generates => "generates texts",
            ClassKind::Classifies => "classifies texts",
            ClassKind::States => "computes vectors",
            ClassKind::Other => "does something else",
        }
    }
}

/// Finds the family of a configuration. Either of `model_type` and `architectures` may be missing.
///
/// If `architectures` names a class of another known family, `model_type` decides, as the automatic
/// classes of transformers do, with a warning. The class still decides whether there is a head.
///
/// # Errors
/// If the configuration has no known family, or its architecture does something that the family
/// does not.
pub(super) fn find(config: &Config) -> Result<FoundFamily, ConfigError> {
    let model_type: Option<String> = config.optional("model_type")?;
    let architectures: Vec<String> = config.optional("architectures")?.unwrap_or_default();
    let found = |has_head| {
        let fits = |family: &&Family| fits(family, has_head, model_type.as_deref(), &architectures);
        FAMILIES.iter().find(fits).map(|family| (family, has_head))
    };
    if let Some((family, has_head)) = found(true).or_else(|| found(false)) {
        let warnings = others_beside(family, has_head, &architectures).into_iter().collect();
        return Ok(FoundFamily { family, has_head, warnings });
    }
    if let Some(found) = of_another_family(model_type.as_deref(), &architectures) {
        return Ok(found);
    }
    let nearest = nearest(model_type.as_deref(), &architectures);
    let given = |text: String| if text.is_empty() { "(not given)".to_owned() } else { text };
    Err(ConfigError::UnknownModel {
        file: config.file().to_owned(),
        model_type: given(model_type.unwrap_or_default()),
        architectures: given(architectures.join(", ")),
        nearest: nearest.model_type,
        classes: nearest.architectures.join(", "),
    })
}

/// Returns the family whose names are the most similar to those of a configuration. It is a hint
/// for people who have misspelled a name, or whose model is a variant of a family.
fn nearest(model_type: Option<&str>, architectures: &[String]) -> &'static Family {
    let likeness = |family: &Family| {
        let of_type = model_type.map_or(0.0, |name| strsim::jaro_winkler(name, family.model_type));
        let pairs = architectures
            .iter()
            .flat_map(|class| family.architectures.iter().map(move |known| (class, known)));
        of_type + pairs.map(|(class, known)| strsim::jaro_winkler(class, known)).fold(0.0, f64::max)
    };
    let (first, others) = FAMILIES.split_first().map_or((&super::llama::FAMILY, FAMILIES), |found| found);
    others.iter().fold(first, |best, family| if likeness(family) >= likeness(best) { family } else { best })
}

/// Whether both keys of a configuration, as far as it has them, are those of a family.
fn fits(family: &Family, has_head: bool, model_type: Option<&str>, architectures: &[String]) -> bool {
    let by_type = model_type.map(|name| name == family.model_type);
    let by_class = (!architectures.is_empty())
        .then(|| architectures.iter().any(|class| is_class_of(family, has_head, class)));
    match (by_type, by_class) {
        (None, None) => false,
        (by_type, by_class) => by_type.unwrap_or(true) && by_class.unwrap_or(true),
    }
}

/// Whether a family has this class, with or without a head.
fn is_class_of(family: &Family, has_head: bool, class: &str) -> bool {
    family.architectures.iter().any(|known| match has_head {
        true => class == *known,
        false => is_without_head(known, class),
    })
}

/// Returns whether a class of transformers computes the hidden states of an architecture.
/// Checkpoints for vectors of texts name it. The text part of a model with images may have a class
/// of its own.
fn is_without_head(architecture: &str, class: &str) -> bool {
    architecture
        .strip_suffix("ForCausalLM")
        .is_some_and(|base| class.strip_prefix(base).is_some_and(|end| matches!(end, "Model" | "TextModel")))
}

/// Returns a warning if `architectures` names other classes beside the used one.
fn others_beside(family: &Family, has_head: bool, architectures: &[String]) -> Option<String> {
    let is_known = |class: &&String| is_class_of(family, has_head, class);
    let of_kind = |kind: ClassKind| architectures.iter().find(|class| ClassKind::of(class) == kind);
    let used = match generates(family) {
        true => of_kind(ClassKind::Generates).filter(is_known),
        // The encoders have a classifier if any class has one.
        false => of_kind(ClassKind::Classifies),
    };
    let used = used.or_else(|| architectures.iter().find(is_known))?;
    let is_other = |class: &&&String| ClassKind::of(class) != ClassKind::of(used) || !is_known(class);
    let others = architectures.iter().filter(|class| *class != used);
    let others: Vec<&str> = others.filter(|class| is_other(&class)).map(String::as_str).collect();
    (!others.is_empty()).then(|| {
        let (others, kind) = (others.join(", "), ClassKind::of(used).name());
        format!("config.json: `architectures` names {used} and {others}: {used} is used, which {kind}")
    })
}

/// Whether models of a family generate texts.
fn generates(family: &Family) -> bool {
    family.architectures.iter().any(|class| ClassKind::of(class) == ClassKind::Generates)
}

/// Returns the family of `model_type` if `architectures` names a class of another known family that
/// generates texts or computes states, as the family does.
fn of_another_family(model_type: Option<&str>, architectures: &[String]) -> Option<FoundFamily> {
    let model_type = model_type?;
    let family = FAMILIES.iter().find(|family| family.model_type == model_type)?;
    let own = family.architectures.iter().find(|class| ClassKind::of(class) == ClassKind::Generates)?;
    let known = |has_head| {
        let of_any = |class: &&String| {
            FAMILIES.iter().any(|family| generates(family) && is_class_of(family, has_head, class))
        };
        architectures.iter().find(of_any).map(|class| (class, has_head))
    };
    let (class, has_head) = known(true).or_else(|| known(false))?;
    let warning = format!(
        "config.json: `model_type` is {model_type}, but `architectures` names {class}: the model is computed as \
         {own}, as `model_type` says"
    );
    Some(FoundFamily { family, has_head, warnings: vec![warning] })
}
