//! A comparison as one HTML file: the table, and curves as SVG inside it. It needs no other file, runs no script and asks for nothing.

use pocketune::plan::{Canvas, ticks};

use super::course::{Course, Point, Table};

const SIZE: [f64; 2] = [860.0, 400.0];
/// Left, top, right, bottom.
const PLOT: [f64; 4] = [72.0, 48.0, 640.0, 344.0];
const INK: &str = "fill=\"#22262e\"";
const PALE: &str = "fill=\"#6b7280\"";
const COLOURS: [&str; 8] = ["#4f7cac", "#c2410c", "#4d7c0f", "#7c3aed", "#b45309", "#0f766e", "#be185d", "#57534e"];

/// The whole page.
pub fn html(courses: &[Course], table: &Table) -> String {
    let cells = |tag: &str, cells: &[String; 6]| {
        let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)));
        format!("<tr>{}</tr>\n", cells.collect::<String>())
    };
    let rows: String = table.rows.iter().map(|row| cells("td", row)).collect();
    let over = |x: fn(&Point) -> f64| -> Vec<Vec<[f64; 2]>> {
        courses.iter().map(|course| course.points().iter().map(|point| [x(point), point.loss]).collect()).collect()
    };
    let memory: Vec<Vec<[f64; 2]>> = courses
        .iter()
        .map(|course| course.points().last().map(|last| [course.peak as f64 / 1e6, last.loss]).into_iter().collect())
        .collect();
    let names: Vec<&str> = courses.iter().map(|course| course.label.as_str()).collect();
    let charts = [
        chart("Loss over updates", "updates", &names, &over(|point| point.iter as f64)),
        chart("Loss over time", "CPU seconds of the process", &names, &over(|point| point.seconds)),
        chart("Last loss over memory", "peak of resident memory, MB", &names, &memory),
    ];
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<meta charset=\"utf-8\">\n<title>Methods compared</title>\n<style>\n\
         body {{ font-family: system-ui, sans-serif; max-width: 60em; margin: 2em auto; color: #22262e; background: #fcfcfa }}\n\
         table {{ border-collapse: collapse }} th, td {{ padding: .3em .8em; text-align: right; border-bottom: 1px solid #e5e7eb }}\n\
         th:first-child, td:first-child {{ text-align: left }}\n</style>\n<h1>Methods compared</h1>\n\
         <table>\n{}{rows}</table>\n<p>Losses are those of the validation set where there is one. The cosine is between what a method goes along \
         and the exact gradient, at the start.</p>\n{}</html>\n",
        cells("th", &table.heads()),
        charts.concat()
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// Lines through the points of each name, or a dot where there is one point.
fn chart(title: &str, axis: &str, names: &[&str], curves: &[Vec<[f64; 2]>]) -> String {
    let all = || curves.iter().flatten().filter(|point| point.iter().all(|x| x.is_finite()));
    let most = all().map(|point| point[0]).fold(0.0, f64::max).max(1e-9);
    let (low, high) =
        all().fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), point| (a.min(point[1]), b.max(point[1])));
    let (low, high) = match (low.is_finite(), low < high) {
        (true, true) => (low, high),
        (true, false) => (low - 0.5, low + 0.5),
        (false, _) => (0.0, 1.0),
    };
    let x = |value: f64| PLOT[0] + (PLOT[2] - PLOT[0]) * value / most;
    let y = |value: f64| PLOT[3] - (PLOT[3] - PLOT[1]) * (value - low) / (high - low);
    let mut canvas = Canvas::new(SIZE[0], SIZE[1]);
    canvas.words([PLOT[0], 28.0], 16.0, "start", &format!("{INK} font-weight=\"600\""), title);
    let (step, decimals) = ticks(high - low, 6.0);
    for tick in (low / step).ceil() as i64..=(high / step).floor() as i64 {
        let value = tick as f64 * step;
        canvas.line([PLOT[0], y(value), PLOT[2], y(value)], "stroke=\"#e5e7eb\"");
        canvas.words([PLOT[0] - 8.0, y(value) + 4.0], 11.0, "end", PALE, &format!("{value:.decimals$}"));
    }
    let (step, decimals) = ticks(most, 8.0);
    for tick in 0..=(most / step) as usize {
        let value = tick as f64 * step;
        canvas.words([x(value), PLOT[3] + 18.0], 11.0, "middle", PALE, &format!("{value:.decimals$}"));
    }
    canvas.words([PLOT[2], PLOT[3] + 40.0], 12.0, "end", PALE, axis);
    for (at, (name, curve)) in names.iter().zip(curves).enumerate() {
        let colour = COLOURS[at % COLOURS.len()];
        let places: Vec<[f64; 2]> =
            curve.iter().filter(|point| point[1].is_finite()).map(|point| [x(point[0]), y(point[1])]).collect();
        match places[..] {
            [place] => canvas.dot(place, 5.0, &format!("class=\"run\" fill=\"{colour}\"")),
            _ => canvas.path(
                &places,
                false,
                &format!("class=\"run\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.5\""),
            ),
        }
        let row = PLOT[1] + 18.0 * at as f64;
        canvas.rect([PLOT[2] + 16.0, row, 10.0, 10.0], colour);
        canvas.words([PLOT[2] + 32.0, row + 9.0], 12.0, "start", INK, name);
    }
    canvas.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_run_has_a_curve_over_updates_and_time_and_a_dot_over_memory() {
        let course = |label: &str, loss: f64| Course {
            label: label.into(),
            reports: (1..4).map(|iter| Point { iter, seconds: iter as f64, loss: loss / iter as f64 }).collect(),
            peak: 1 << 20,
            ..Course::default()
        };
        let courses = [course("one", 4.0), course("a < b", 3.0)];
        let page = html(&courses, &Table::of(&courses));
        assert_eq!(page.matches("<svg ").count(), 3);
        assert_eq!(page.matches("<path ").count(), 4);
        assert_eq!(page.matches("<circle ").count(), 2);
        assert_eq!(page.matches(">a &lt; b<").count(), 4, "in the table and in three legends");
        assert!(!["NaN", "inf", "<script", "href", "src="].iter().any(|word| page.contains(word)), "{page}");
    }

    #[test]
    fn losses_that_are_all_alike_or_no_numbers_are_drawn_without_harm() {
        for loss in [0.0, 2.0, f64::NAN] {
            let svg = chart("t", "x", &["a"], &[vec![[1.0, loss], [2.0, loss]]]);
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
        }
    }
}
