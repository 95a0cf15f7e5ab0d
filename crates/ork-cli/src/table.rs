// SPDX-License-Identifier: MIT OR Apache-2.0
//! A table as text and as Markdown.

use std::fmt::Write;

/// A cell that says nothing.
pub(crate) const BLANK: &str = "-";

/// Rows of as many cells as the head has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Table {
    pub(crate) head: Vec<&'static str>,
    pub(crate) rows: Vec<Vec<String>>,
}

impl Table {
    /// Without the columns, from the given one on, in which no row says anything.
    pub(crate) fn dense(self, from: usize) -> Self {
        let says = |column: usize| self.rows.iter().any(|row| row.get(column).is_some_and(|c| c != BLANK));
        let keep: Vec<bool> = (0..self.head.len()).map(|column| column < from || says(column)).collect();
        fn kept<T>(cells: Vec<T>, keep: &[bool]) -> Vec<T> {
            cells.into_iter().zip(keep).filter(|(_, keep)| **keep).map(|(cell, _)| cell).collect()
        }
        Self {
            head: kept(self.head, &keep),
            rows: self.rows.into_iter().map(|row| kept(row, &keep)).collect(),
        }
    }

    /// Columns of equal width.
    pub(crate) fn text(&self) -> String {
        let head: Vec<String> = self.head.iter().map(|&cell| cell.to_owned()).collect();
        let all: Vec<&Vec<String>> = std::iter::once(&head).chain(&self.rows).collect();
        let width = |column: usize| {
            all.iter().filter_map(|row| row.get(column)).map(|c| c.chars().count()).max().unwrap_or(0)
        };
        let mut out = String::new();
        for row in &all {
            let cells: Vec<String> = row
                .iter()
                .enumerate()
                .map(|(column, cell)| format!("{cell:<w$}", w = width(column)))
                .collect();
            // Writing to a string cannot fail.
            let _ = writeln!(out, "{}", cells.join("  ").trim_end());
        }
        out
    }

    /// A table of Markdown.
    pub(crate) fn markdown(&self) -> String {
        let mut out = format!("| {} |\n|{}\n", self.head.join(" | "), "---|".repeat(self.head.len()));
        for row in &self.rows {
            let cells: Vec<String> = row.iter().map(|cell| cell.replace('|', "\\|")).collect();
            let _ = writeln!(out, "| {} |", cells.join(" | "));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms() {
        let row = |cells: [&str; 3]| cells.map(str::to_owned).to_vec();
        let table = Table {
            head: vec!["name", "nothing", "β"],
            rows: vec![row(["a|b", "-", "1 ± 2"]), row(["longer", "-", "-"])],
        };
        let table = table.dense(1);
        assert_eq!(table.text(), "name    β\na|b     1 ± 2\nlonger  -\n");
        assert_eq!(table.markdown(), "| name | β |\n|---|---|\n| a\\|b | 1 ± 2 |\n| longer | - |\n");
    }
}
