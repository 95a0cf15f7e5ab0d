// SPDX-License-Identifier: MIT OR Apache-2.0
//! The fast Walsh–Hadamard transform: butterflies (u + v, u − v) in natural order, times 1/√b.
//!
//! Two stages are done per pass over memory (each value is read and written half as often); the additions are those of
//! the plain stages in the same pairs, so the bits are too.

use crate::real::Real;
use crate::wide::wide;

wide! {
    pub(crate) fn transform_f32(block: &mut [f32]) {
        transform(block);
    }
}

wide! {
    pub(crate) fn transform_f64(block: &mut [f64]) {
        transform(block);
    }
}

/// # Panics
/// If the length is not a power of two.
#[inline(always)]
fn transform<T: Real>(block: &mut [T]) {
    let b = block.len();
    assert!(b.is_power_of_two(), "a Hadamard block of {b} is no power of two");
    let mut h = 1;
    if b >= 8 {
        for octet in block.as_chunks_mut::<8>().0 {
            *octet = eight(*octet);
        }
        h = 8;
    }
    while 2 * h < b {
        for quad in block.chunks_exact_mut(4 * h) {
            let (low, high) = quad.split_at_mut(2 * h);
            let ((p, q), (r, s)) = (low.split_at_mut(h), high.split_at_mut(h));
            for (((p, q), r), s) in p.iter_mut().zip(q).zip(r).zip(s) {
                let (a, b) = (*p + *q, *p - *q);
                let (c, d) = (*r + *s, *r - *s);
                (*p, *q, *r, *s) = (a + c, b + d, a - c, b - d);
            }
        }
        h *= 4;
    }
    if h < b {
        for pair in block.chunks_exact_mut(2 * h) {
            let (u, v) = pair.split_at_mut(h);
            for (u, v) in u.iter_mut().zip(v) {
                (*u, *v) = (*u + *v, *u - *v);
            }
        }
    }
    let norm = T::from_f64(1.0 / (b as f64).sqrt());
    for x in block {
        *x = *x * norm;
    }
}

/// The first three stages on eight neighbours, written out: the compiler makes shuffles of it.
#[inline(always)]
fn eight<T: Real>([a, b, c, d, e, f, g, h]: [T; 8]) -> [T; 8] {
    let [a, b, c, d, e, f, g, h] = [a + b, a - b, c + d, c - d, e + f, e - f, g + h, g - h];
    let [a, b, c, d, e, f, g, h] = [a + c, b + d, a - c, b - d, e + g, f + h, e - g, f - h];
    [a + e, b + f, c + g, d + h, a - e, b - f, c - g, d - h]
}
