// SPDX-License-Identifier: MIT OR Apache-2.0
//! Plain loops compiled twice.

/// Defines a function whose body is also compiled with AVX2 and chosen at run time; on other processors than x86-64
/// the baseline has vectors already. The body is one plain loop nest. Rust neither reorders nor fuses float
/// operations, so both builds give the same bits, and the loop stays the only definition.
macro_rules! wide {
    ($(#[$meta:meta])* $vis:vis fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $(-> $ret:ty)? $body:block) => {
        $(#[$meta])*
        $vis fn $name($($arg: $ty),*) $(-> $ret)? {
            #[inline(always)]
            fn plain($($arg: $ty),*) $(-> $ret)? $body

            #[cfg(target_arch = "x86_64")]
            {
                #[target_feature(enable = "avx2")]
                fn avx2($($arg: $ty),*) $(-> $ret)? {
                    plain($($arg),*)
                }
                if is_x86_feature_detected!("avx2") {
                    // SAFETY: the processor has AVX2, the only requirement of a safe function compiled for it.
                    return unsafe { avx2($($arg),*) };
                }
            }
            plain($($arg),*)
        }
    };
}
pub(crate) use wide;
