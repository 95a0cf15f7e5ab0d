// SPDX-License-Identifier: MIT OR Apache-2.0
//! ggml's numbers of the cache types.

use llama_cpp_sys_2 as sys;
use ork_engine_options::CacheType;

/// ggml's number of a type.
pub(crate) const fn code(cache: CacheType) -> sys::ggml_type {
    match cache {
        CacheType::F32 => sys::GGML_TYPE_F32,
        CacheType::F16 => sys::GGML_TYPE_F16,
        CacheType::Bf16 => sys::GGML_TYPE_BF16,
        CacheType::Q8_0 => sys::GGML_TYPE_Q8_0,
        CacheType::Q5_1 => sys::GGML_TYPE_Q5_1,
        CacheType::Q5_0 => sys::GGML_TYPE_Q5_0,
        CacheType::Q4_1 => sys::GGML_TYPE_Q4_1,
        CacheType::Q4_0 => sys::GGML_TYPE_Q4_0,
        CacheType::Iq4Nl => sys::GGML_TYPE_IQ4_NL,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_serde_and_of_ggml() {
        for cache in CacheType::ALL {
            assert_eq!(serde_json::to_value(cache).unwrap(), cache.name());
            // SAFETY: a known type; the name is static.
            let name = unsafe { std::ffi::CStr::from_ptr(sys::ggml_type_name(code(cache))) };
            assert_eq!(name.to_str(), Ok(cache.name()));
        }
    }
}
