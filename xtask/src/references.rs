// SPDX-License-Identifier: MIT OR Apache-2.0
//! Tables in the documentation that name tests and entries: everything named must exist, and nothing may be missing.

use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::Path;

const TABLE: &str = "docs/reference/laws-and-quirks.md";
const ASSUMPTIONS: &str = "docs/assumptions.md";

/// Rows that the table must have, in groups of one source: `(prefix, last number)`.
const NUMBERED: [(&str, u32); 4] = [("13-", 31), ("G-", 27), ("NS-", 37), ("M-", 24)];

/// One row: its id and the cells that say which tests hold it.
struct Row<'a> {
    id: &'a str,
    cells: Vec<&'a str>,
}

fn rows(table: &str) -> Vec<Row<'_>> {
    let of = |line: &'_ str| line.starts_with("| ") && !line.starts_with("| Id |");
    let cells = |line| -> Vec<&str> { str::split(line, '|').map(str::trim).collect() };
    table
        .lines()
        .filter(|line| of(line))
        .map(cells)
        .filter(|cells| cells.len() == 6)
        .map(|cells| Row { id: cells[1], cells: cells[3..5].to_vec() })
        .collect()
}

/// Words in backquotes.
fn quoted(text: &str) -> impl Iterator<Item = &str> {
    text.split('`').skip(1).step_by(2)
}

/// `S-n` and the like that stand in a cell outside backquotes.
fn entries(text: &str) -> impl Iterator<Item = &str> {
    text.split(['`', ' ', ',', '(', ')', ';']).filter(|word| {
        word.strip_prefix("S-").is_some_and(|number| number.chars().all(|digit| digit.is_ascii_digit()))
    })
}

/// Whether `crate/file::test` names a test: `crates/crate/tests/all/file.rs` or `crates/crate/tests/file.rs`, or
/// `crate/src/file::test` a unit test.
fn test_exists(root: &Path, name: &str) -> bool {
    let Some((place, test)) = name.split_once("::") else { return false };
    let Some((krate, file)) = place.split_once('/') else { return false };
    let folder = root.join("crates").join(krate);
    let paths = match file.strip_prefix("src/") {
        Some(file) => vec![folder.join("src").join(file)],
        None => vec![folder.join("tests/all").join(file), folder.join("tests").join(file)],
    };
    let text = paths.iter().find_map(|path| std::fs::read_to_string(path.with_extension("rs")).ok());
    let Some(text) = text else { return false };
    let declared = format!("fn {test}(");
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    lines.iter().enumerate().any(|(at, line)| {
        line.starts_with(&declared) && lines[..at].iter().rev().take(4).any(|line| *line == "#[test]")
    })
}

/// What is wrong with the table of laws and quirks.
pub(crate) fn table_faults(root: &Path, table: &str, assumptions: &str) -> Vec<String> {
    let mut faults = Vec::new();
    let rows = rows(table);
    let mut ids = BTreeSet::new();
    for row in &rows {
        if !ids.insert(row.id) {
            faults.push(format!("{} has two rows", row.id));
        }
        for cell in &row.cells {
            let mut holds = cell.starts_with('—');
            for name in quoted(cell) {
                holds = true;
                if !test_exists(root, name) {
                    faults.push(format!("{}: there is no test {name}", row.id));
                }
            }
            for entry in entries(cell) {
                holds = true;
                if !assumptions.contains(&format!("\n| {entry} |")) {
                    faults.push(format!("{}: docs/assumptions.md has no {entry}", row.id));
                }
            }
            if !holds {
                faults.push(format!("{}: a side names no test, no entry and no reason: {cell:?}", row.id));
            }
        }
    }
    for (prefix, last) in NUMBERED {
        for number in 1..=last {
            let id = format!("{prefix}{number}");
            let has = |row: &Row<'_>| row.id == id || row.id.starts_with(&format!("{id}-"));
            if !rows.iter().any(has) {
                faults.push(format!("{id} has no row"));
            }
        }
    }
    faults
}

/// Names of the checks with which the simulator refuses a program.
pub(crate) fn refusals(root: &Path) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    let folder = root.join("crates/ork-sim/src");
    for entry in std::fs::read_dir(&folder)? {
        let text = std::fs::read_to_string(entry?.path())?;
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        for (at, line) in lines.iter().enumerate() {
            if !line.contains("unmodelled(") && !line.contains("refuse(") {
                continue;
            }
            // The name is the first argument that is a word in quotes.
            let name = lines[at..lines.len().min(at + 4)].iter().find_map(|line| {
                line.split('"').skip(1).step_by(2).find(|word| {
                    !word.is_empty()
                        && word.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
                })
            });
            found.extend(name.map(str::to_owned));
        }
    }
    Ok(found)
}

/// The checks that `docs/assumptions.md` lists as refused.
fn listed(assumptions: &str) -> BTreeSet<String> {
    let section = assumptions.split("### Refused as unmodelled").nth(1).unwrap_or_default();
    section
        .lines()
        .filter(|line| line.starts_with("| `"))
        .filter_map(|line| line.split('|').nth(1))
        .flat_map(quoted)
        .map(str::to_owned)
        .collect()
}

fn read(root: &Path, name: &str) -> Result<String> {
    std::fs::read_to_string(root.join(name)).with_context(|| format!("cannot read {name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn laws_and_quirks_have_their_tests() {
        let root = crate::root();
        let (table, assumptions) = (read(&root, TABLE).unwrap(), read(&root, ASSUMPTIONS).unwrap());
        assert!(rows(&table).len() > 150, "the table is read");
        assert_eq!(table_faults(&root, &table, &assumptions), Vec::<String>::new());
    }

    #[test]
    fn faults_of_the_table_are_found() {
        let root = crate::root();
        let assumptions = read(&root, ASSUMPTIONS).unwrap();
        let table = read(&root, TABLE).unwrap();
        let fault = |from: &str, to: &str| {
            assert!(table.contains(from), "{from}");
            table_faults(&root, &table.replacen(from, to, 1), &assumptions)
        };
        // A test that does not exist, a helper that is no test, an entry that does not exist, an empty side, a row twice,
        // a row too few.
        for name in ["rows_of_another_name", "scheduled"] {
            let found = fault("ork-sim/laws::row_caps_of_int8", &format!("ork-sim/laws::{name}"));
            assert_eq!(found, [format!("10.3: there is no test ork-sim/laws::{name}")]);
        }
        assert_eq!(fault("| S-8 |", "| S-999 |"), ["13-24: docs/assumptions.md has no S-999"]);
        assert!(fault("| S-8 |", "|  |")[0].contains("13-24: a side names no test"));
        assert_eq!(fault("| G-12 |", "| G-11 |"), ["G-11 has two rows", "G-12 has no row"]);
    }

    #[test]
    fn what_the_simulator_refuses_is_listed() {
        let root = crate::root();
        let refused = refusals(&root).unwrap();
        assert!(refused.len() > 40, "{refused:?}");
        let listed = listed(&read(&root, ASSUMPTIONS).unwrap());
        let missing: Vec<_> = refused.difference(&listed).collect();
        assert!(missing.is_empty(), "docs/assumptions.md does not list {missing:?}");
        let stale: Vec<_> = listed.difference(&refused).collect();
        assert!(stale.is_empty(), "docs/assumptions.md lists {stale:?}, which nothing refuses any more");
    }
}
