//! The code that the build embedded for each `.cu` file.

include!(concat!(env!("OUT_DIR"), "/modules.rs"));

/// The entry of `module` in `table`.
pub(crate) fn find<T: ?Sized>(
    table: &'static [(&'static str, &'static T)],
    module: &str,
) -> Option<&'static T> {
    table.iter().find(|(name, _)| *name == module).map(|(_, what)| *what)
}
