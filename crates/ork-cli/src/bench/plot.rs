// SPDX-License-Identifier: MIT OR Apache-2.0
//! All runs as SVG: one panel for each test and provenance, one line for each arm, one mark for each run.

use ork_bench::{Provenance, Report, Row, Test, Twin, median};
use svg::Document;
use svg::node::element::{Circle, Group, Rectangle};

use crate::chart::{Axis, Scale, round, short, stroke, text};

const WIDTH: f64 = 860.0;
const LEFT: f64 = 220.0;
const RIGHT: f64 = 30.0;
const TOP: f64 = 50.0;
/// Height of an arm's line.
const LINE: f64 = 30.0;
/// Room for the heading and the axis of a panel.
const AROUND: f64 = 74.0;

/// The plot; nothing if there is no run to show.
pub(super) fn plot(report: &Report) -> Option<String> {
    // Measured and simulated speeds never share an axis.
    let mut panels: Vec<((Test, Provenance), Vec<&Row>)> = Vec::new();
    for row in &report.rows {
        let key = (row.test, row.provenance);
        match panels.iter_mut().find(|(known, _)| *known == key) {
            Some((_, rows)) => rows.push(row),
            None => panels.push((key, vec![row])),
        }
    }
    let height = TOP + panels.iter().map(|(_, rows)| AROUND + LINE * rows.len() as f64).sum::<f64>() + 10.0;
    let title = format!("Tokens per second of host time: every run of {} rounds", report.rounds);
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH as i32, height as i32))
        .set("width", WIDTH)
        .set("height", height)
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .add(Rectangle::new().set("width", WIDTH).set("height", height).set("fill", "#ffffff"))
        .add(text(&title, 20.0, 24.0, "start").set("font-size", 16))
        .add(text("filled and hollow: the twins of an arm; bar: median", 20.0, 42.0, "start"));
    let mut top = TOP;
    for ((test, provenance), rows) in &panels {
        document = document.add(panel(*test, *provenance, rows, top)?);
        top += AROUND + LINE * rows.len() as f64;
    }
    (!panels.is_empty()).then(|| document.to_string() + "\n")
}

fn panel(test: Test, provenance: Provenance, rows: &[&Row], top: f64) -> Option<Group> {
    let speeds = |seconds: &[f64]| -> Vec<f64> {
        seconds.iter().map(|seconds| f64::from(test.tokens) / seconds).collect()
    };
    let all = rows.iter().flat_map(|row| speeds(&row.seconds()));
    let axis = Axis::around(all, Scale::Linear)?;
    let across = |speed: f64| LEFT + axis.place(speed) * (WIDTH - LEFT - RIGHT);
    let (first, last) = (top + 34.0, top + 34.0 + LINE * rows.len() as f64);
    let (heading, colour) = match provenance {
        Provenance::Measured => (format!("{test}, measured"), "#2b6cb0"),
        Provenance::Simulated => (format!("{test}, with simulated NPU"), "#c05621"),
    };
    let mut group = Group::new().add(text(&heading, 20.0, top + 24.0, "start").set("font-weight", "bold"));
    for tick in axis.ticks() {
        let place = across(tick);
        group = group.add(stroke((place, first), (place, last), "#e4e4e4")).add(text(
            &short(tick),
            place,
            last + 16.0,
            "middle",
        ));
    }
    group = group.add(stroke((LEFT, last), (WIDTH - RIGHT, last), "#404040"));
    for (number, row) in rows.iter().enumerate() {
        let middle = first + LINE * (number as f64 + 0.5);
        group = group.add(text(&row.arm, LEFT - 8.0, middle + 4.0, "end"));
        for (twin, seconds) in [(Twin::A, &row.seconds_a), (Twin::B, &row.seconds_b)] {
            let fill = if twin == Twin::A { colour } else { "#ffffff" };
            for speed in speeds(seconds) {
                let mark = Circle::new().set("cx", round(across(speed))).set("cy", round(middle)).set("r", 4);
                group = group.add(mark.set("fill", fill).set("stroke", colour));
            }
        }
        if let Some(middle_speed) = median(&speeds(&row.seconds())) {
            let place = across(middle_speed);
            group = group
                .add(stroke((place, middle - 9.0), (place, middle + 9.0), "#101010").set("stroke-width", 2));
        }
    }
    Some(group)
}
