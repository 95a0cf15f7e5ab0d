// SPDX-License-Identifier: MIT OR Apache-2.0
//! Quality against bits, as SVG: perplexity with its error, and divergence on a logarithmic axis.

use svg::Document;
use svg::node::element::{Circle, Group, Rectangle};

use super::report::{Computed, Report};
use crate::chart::{Axis, Scale, round, short, stroke, text};

const WIDTH: f64 = 860.0;
const PANEL: f64 = 330.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 50.0;
const GAP: f64 = 70.0;
/// Least distance of two labels, in pixels.
const LINE: f64 = 15.0;

/// A point with its name.
#[derive(Clone, Debug)]
struct Point {
    name: String,
    x: f64,
    y: f64,
    error: f64,
    computed: Computed,
}

/// The plot; nothing if there is no row to show.
pub(crate) fn plot(report: &Report) -> Option<String> {
    let line = |y: &dyn Fn(&super::report::Line) -> Option<(f64, f64)>| -> Vec<Point> {
        report
            .rows
            .iter()
            .filter_map(|line| {
                let (y, error) = y(line)?;
                let (name, x) = (line.name.clone(), line.size.bits_per_weight);
                Some(Point { name, x, y, error, computed: line.computed })
            })
            .collect()
    };
    let mut perplexities = line(&|line| {
        let p = line.quality.perplexity.perplexity;
        Some((p.value, p.error))
    });
    if let Some(reference) = &report.reference
        && let Some(p) = reference.perplexity
    {
        let (y, error) = (p.perplexity.value, p.perplexity.error);
        let (name, x) = (format!("{} (reference)", reference.name), reference.size.bits_per_weight);
        perplexities.push(Point { name, x, y, error, computed: reference.computed });
    }
    // A divergence of nothing has no place on a logarithmic axis: the reference's own, up to rounding.
    let divergences: Vec<Point> = line(&|line| line.quality.versus.map(|v| (v.kl.value, v.kl.error)))
        .into_iter()
        .filter(|point| point.y > 1e-8)
        .collect();

    let x = Axis::around(perplexities.iter().map(|point| point.x), Scale::Linear)?;
    let around = perplexities.iter().flat_map(|p| [p.y - p.error, p.y + p.error]);
    let mut panels = vec![("Perplexity", Axis::around(around, Scale::Linear)?, perplexities)];
    if let Some(y) = Axis::around(divergences.iter().map(|point| point.y), Scale::Logarithmic) {
        panels.push(("Mean KL divergence from the reference, nats", y, divergences));
    }
    let height = TOP + panels.len() as f64 * (PANEL + GAP);
    let mut document = Document::new()
        .set("viewBox", (0, 0, WIDTH as i32, height as i32))
        .set("width", WIDTH)
        .set("height", height)
        .set("font-family", "sans-serif")
        .set("font-size", 12)
        .add(Rectangle::new().set("width", WIDTH).set("height", height).set("fill", "#ffffff"));
    let title = report.title.as_deref().unwrap_or("Quality against bits per weight");
    document = document.add(text(title, LEFT, 24.0, "start").set("font-size", 16));
    for (number, (name, y, points)) in panels.into_iter().enumerate() {
        let top = TOP + number as f64 * (PANEL + GAP);
        document = document.add(panel(name, x, y, points, top));
    }
    Some(document.to_string() + "\n")
}

fn panel(name: &str, x: Axis, y: Axis, mut points: Vec<Point>, top: f64) -> Group {
    let right = WIDTH - RIGHT;
    let across = |value: f64| LEFT + x.place(value) * (right - LEFT);
    let down = |value: f64| top + (1.0 - y.place(value)) * PANEL;
    let mut group = Group::new().add(text(name, LEFT, top - 6.0, "start").set("font-weight", "bold"));
    for tick in x.ticks() {
        let place = across(tick);
        group = group.add(stroke((place, top), (place, top + PANEL), "#e4e4e4")).add(text(
            &short(tick),
            place,
            top + PANEL + 16.0,
            "middle",
        ));
    }
    for tick in y.ticks() {
        let place = down(tick);
        group = group.add(stroke((LEFT, place), (right, place), "#e4e4e4")).add(text(
            &short(tick),
            LEFT - 6.0,
            place + 4.0,
            "end",
        ));
    }
    group = group
        .add(stroke((LEFT, top), (LEFT, top + PANEL), "#404040"))
        .add(stroke((LEFT, top + PANEL), (right, top + PANEL), "#404040"))
        .add(text("bits per weight", (LEFT + right) / 2.0, top + PANEL + 34.0, "middle"));
    points.sort_by(|a, b| b.y.total_cmp(&a.y));
    // From the top down: a label moves down until it is clear of those above it that it would cover.
    let mut labels: Vec<(f64, f64, f64)> = Vec::new();
    for point in &points {
        let (px, py) = (across(point.x), down(point.y));
        let colour = colour(point.computed);
        if y.scale == Scale::Linear && point.error > 0.0 {
            group = group.add(stroke(
                (px, down(point.y + point.error)),
                (px, down(point.y - point.error)),
                colour,
            ));
        }
        let width = 7.0 * point.name.chars().count() as f64;
        // Towards the side where there is room.
        let outward = px + 8.0 + width < WIDTH - RIGHT + 60.0;
        let (from, to) = if outward { (px + 8.0, px + 8.0 + width) } else { (px - 8.0 - width, px - 8.0) };
        let (anchor, place) = if outward { ("start", from) } else { ("end", to) };
        let mut at = py + 4.0;
        while let Some(&(above, ..)) =
            labels.iter().find(|(other, l, r)| (other - at).abs() < LINE && *l < to && from < *r)
        {
            at = above + LINE;
        }
        labels.push((at, from, to));
        group = group
            .add(Circle::new().set("cx", round(px)).set("cy", round(py)).set("r", 4).set("fill", colour))
            .add(text(&point.name, place, at, anchor).set("fill", colour));
    }
    let mut place = top + 14.0;
    for computed in [Computed::Cpu, Computed::SimulatedNpu, Computed::Npu] {
        if !points.iter().any(|point| point.computed == computed) {
            continue;
        }
        let colour = colour(computed);
        group = group
            .add(
                Circle::new().set("cx", WIDTH - 125.0).set("cy", place - 4.0).set("r", 4).set("fill", colour),
            )
            .add(text(computed.name(), WIDTH - 115.0, place, "start"));
        place += 18.0;
    }
    group
}

fn colour(computed: Computed) -> &'static str {
    match computed {
        Computed::Cpu => "#2b6cb0",
        Computed::SimulatedNpu => "#c05621",
        Computed::Npu => "#276749",
    }
}
