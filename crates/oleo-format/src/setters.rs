//! Methods that set the fields of a struct of options.

/// Gives a struct of options a method for each field, which sets it and returns the struct: structs that are `#[non_exhaustive]` can be
/// made in no other way outside of their crate.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($of:ident $(<$life:lifetime>)? { $($field:ident: $type:ty),* $(,)? }) => {
        impl $(<$life>)? $of $(<$life>)? {
            $(
                #[doc = concat!("Sets [`", stringify!($field), "`](field@", stringify!($of), "::", stringify!($field), ").")]
                #[must_use]
                pub fn $field(mut self, $field: $type) -> Self {
                    self.$field = $field;
                    self
                }
            )*
        }
    };
}

#[cfg(test)]
mod tests {
    #[derive(Default, PartialEq, Debug)]
    struct Options<'a> {
        number: u32,
        text: Option<&'a str>,
    }
    crate::setters!(Options<'a> { number: u32, text: Option<&'a str>, });

    /// Goal: each field has its method, and the others stay as they are.
    #[test]
    fn fields_are_set() {
        let set = Options::default().number(1).text(Some("a")).number(2);
        assert_eq!(set, Options { number: 2, text: Some("a") });
    }
}
