// SPDX-License-Identifier: MIT OR Apache-2.0
use ork_sim::SimOptions;
use serde_json::Value;

/// A simulator option that cannot be set as asked.
#[derive(Debug, thiserror::Error)]
pub enum VariantError {
    /// There is no such option.
    #[error("the simulator has no option {key}; there are {known}")]
    UnknownKey {
        /// What was asked for.
        key: String,
        /// All keys.
        known: String,
    },
    /// The option does not take this value.
    #[error("option {key}: {value:?} is no value of it")]
    Value {
        /// The option.
        key: String,
        /// The value.
        value: String,
        /// Which values there are.
        source: serde_json::Error,
    },
}

/// Sets one simulator option by name; `silicon.` may be left out.
///
/// # Errors
/// [`VariantError`].
pub fn set_variant(options: &SimOptions, key: &str, value: &str) -> Result<SimOptions, VariantError> {
    let mut tree = serde_json::to_value(options).unwrap_or_default();
    let known = || {
        let names =
            |value: &Value| value.as_object().map(|map| map.keys().cloned().collect()).unwrap_or_default();
        let mut list: Vec<String> = names(&tree);
        list.extend::<Vec<String>>(names(&tree["silicon"]));
        list.retain(|name| name != "silicon");
        VariantError::UnknownKey { key: key.to_owned(), known: list.join(", ") }
    };
    let short = key.strip_prefix("silicon.").unwrap_or(key);
    let pointer = [format!("/{key}"), format!("/silicon/{short}")]
        .into_iter()
        .find(|path| tree.pointer(path).is_some_and(|value| !value.is_object()))
        .ok_or_else(known)?;
    // Words are words, numbers and truth values themselves.
    let parsed = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
    if let Some(place) = tree.pointer_mut(&pointer) {
        *place = parsed;
    }
    serde_json::from_value(tree).map_err(|source| VariantError::Value {
        key: key.to_owned(),
        value: value.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use ork_sim::{Between, Silicon};

    #[test]
    fn keys_with_and_without_their_prefix() {
        let silicon = Silicon { lut_between: Between::HalfUp, ..Silicon::default() };
        let expected = SimOptions { silicon, ..SimOptions::default() };
        for key in ["lut_between", "silicon.lut_between"] {
            assert_eq!(set_variant(&SimOptions::default(), key, "half-up").unwrap(), expected);
        }
        let options = set_variant(&expected, "reference_kernels", "true").unwrap();
        assert_eq!(options, SimOptions { reference_kernels: true, ..expected });
    }

    #[test]
    fn wrong_keys_and_values_name_the_right_ones() {
        let error = set_variant(&SimOptions::default(), "lut", "x").unwrap_err().to_string();
        assert!(error.contains("no option lut;") && error.contains("lut_between, "), "{error}");
        assert!(set_variant(&SimOptions::default(), "silicon", "{}").is_err());
        let error = set_variant(&SimOptions::default(), "lut_between", "up").unwrap_err();
        let source = std::error::Error::source(&error).unwrap().to_string();
        assert!(source.contains("half-up"), "{source}");
    }
}
