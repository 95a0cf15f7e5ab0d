// SPDX-License-Identifier: MIT OR Apache-2.0
//! The nearest valid name, for error messages.

/// The candidate that needs the fewest edits, if that is few enough to be a slip of the pen.
pub(crate) fn nearest<'a>(found: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let found: Vec<u8> = found.bytes().take(64).map(|byte| byte.to_ascii_uppercase()).collect();
    let best = candidates.into_iter().map(|name| (distance(&found, name.as_bytes()), name)).min()?;
    // Half of a name replaced is no slip.
    (best.0 * 2 <= best.1.len().max(2)).then_some(best.1)
}

/// Insertions, deletions and replacements that turn `a` into `b`, case ignored in `b`.
fn distance(a: &[u8], b: &[u8]) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, left) in a.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, right) in b.iter().enumerate() {
            let replaced = diagonal + usize::from(*left != right.to_ascii_uppercase());
            diagonal = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(row[j + 1] + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_found_and_strangers_are_not() {
        let names = ["CBUF_CON0", "CBUF_CON1", "CONV_CON1", "DCOMP_CTRL"];
        assert_eq!(nearest("cbuf_con0", names), Some("CBUF_CON0"));
        assert_eq!(nearest("CBUF_CN1", names), Some("CBUF_CON1"));
        assert_eq!(nearest("DCMP_CTRL", names), Some("DCOMP_CTRL"));
        assert_eq!(nearest("ZZZZZZZZZ", names), None);
        assert_eq!(nearest("X", []), None);
    }

    #[test]
    fn distances_are_those_of_the_definition() {
        for (a, b, edits) in [("", "", 0), ("", "abc", 3), ("KITTEN", "sitting", 3), ("FLAW", "lawn", 2)] {
            assert_eq!(distance(a.as_bytes(), b.as_bytes()), edits, "{a} {b}");
        }
    }
}
