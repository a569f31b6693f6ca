//! The curve of time against kept bytes as an SVG: a dot a plan, those with a name named, and lines at what eager autograd keeps, half of it and
//! a quarter. It draws what it is given and measures nothing.

use pocketune::plan::{Canvas, ticks};

/// A plan that was run.
#[derive(Clone, Debug)]
pub struct Point {
    /// Bytes that wait for the backward pass.
    pub kept: usize,
    /// CPU seconds of its shortest step.
    pub seconds: f64,
    /// Its time against the first plan's.
    pub ratio: f64,
    /// Its shortest time against the first plan's.
    pub least: f64,
    /// What is kept, in words.
    pub words: String,
    /// The name of its policy, where it has one.
    pub name: Option<&'static str>,
}

const SIZE: [f64; 2] = [860.0, 460.0];
/// Left, top, right, bottom.
const PLOT: [f64; 4] = [72.0, 64.0, 830.0, 404.0];
const INK: &str = "fill=\"#22262e\"";
const PALE: &str = "fill=\"#6b7280\"";

/// Draws `points`; `eager` is what eager autograd keeps.
pub fn draw(title: &str, eager: usize, points: &[Point]) -> String {
    let more = |point: &Point| 100.0 * (point.ratio - 1.0);
    let highest = points.iter().map(more).fold(5.0, f64::max) * 1.15;
    let lowest = points.iter().map(more).fold(0.0, f64::min) * 1.15;
    let most = points.iter().map(|point| point.kept).fold(eager, usize::max) as f64;
    let x = |bytes: f64| PLOT[0] + (PLOT[2] - PLOT[0]) * bytes / most;
    let y = |percent: f64| PLOT[3] - (PLOT[3] - PLOT[1]) * (percent - lowest) / (highest - lowest);

    let mut canvas = Canvas::new(SIZE[0], SIZE[1]);
    canvas.words([PLOT[0], 28.0], 16.0, "start", &format!("{INK} font-weight=\"600\""), title);
    canvas.words([PLOT[0], 48.0], 12.0, "start", PALE, "CPU time of a step against keeping everything, in %");
    let (step, decimals) = ticks(highest - lowest, 6.0);
    for tick in (lowest / step).ceil() as i64..=(highest / step).floor() as i64 {
        let percent = tick as f64 * step;
        canvas.line([PLOT[0], y(percent), PLOT[2], y(percent)], "stroke=\"#e5e7eb\"");
        canvas.words([PLOT[0] - 8.0, y(percent) + 4.0], 11.0, "end", PALE, &format!("{percent:+.decimals$}"));
    }
    let (step, _) = ticks(most / 1e6, 8.0);
    for tick in 0..=(most / 1e6 / step) as usize {
        let megabytes = tick as f64 * step;
        canvas.words([x(megabytes * 1e6), PLOT[3] + 18.0], 11.0, "middle", PALE, &format!("{megabytes:.0}"));
    }
    canvas.words([PLOT[2], PLOT[3] + 40.0], 12.0, "end", PALE, "MB kept for the backward pass");
    for (share, words) in [(1.0, "eager autograd"), (0.5, "half of it"), (0.25, "a quarter")] {
        let x = x(share * eager as f64);
        canvas.line([x, PLOT[1], x, PLOT[3]], "stroke=\"#9ca3af\" stroke-dasharray=\"3 4\"");
        canvas.words([x - 4.0, PLOT[1] + 10.0], 11.0, "end", PALE, words);
    }
    let places: Vec<[f64; 2]> = points.iter().map(|point| [x(point.kept as f64), y(more(point))]).collect();
    canvas.path(&places, false, "class=\"curve\" fill=\"none\" stroke=\"#4f7cac\" stroke-width=\"1.5\"");
    for (point, &place) in points.iter().zip(&places) {
        let (radius, fill) = if point.name.is_some() { (6.0, "#c2410c") } else { (4.0, "#4f7cac") };
        canvas.dot(place, radius, &format!("class=\"plan\" fill=\"{fill}\""));
        if let Some(name) = point.name {
            let words = format!("{name} {:+.1} %", more(point));
            let anchor = if place[0] < PLOT[0] + 60.0 { "start" } else { "middle" };
            canvas.words([place[0], place[1] - 12.0], 12.0, anchor, &format!("{INK} font-weight=\"600\""), &words);
        }
    }
    canvas.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(kept: usize, ratio: f64, name: Option<&'static str>) -> Point {
        Point { kept, seconds: 2.0 * ratio, ratio, least: ratio, words: String::new(), name }
    }

    /// The number after ` name="` in a line.
    fn attribute(line: &str, name: &str) -> f64 {
        line.split(&format!(" {name}=\"")).nth(1).unwrap().split('"').next().unwrap().parse().unwrap()
    }

    #[test]
    fn every_plan_is_a_dot_where_its_bytes_and_its_time_put_it() {
        let points = [
            point(800, 1.0, Some("none")),
            point(400, 1.05, None),
            point(200, 1.1, Some("selective")),
            point(100, 1.25, Some("block")),
        ];
        let svg = draw("A model", 1000, &points);
        let dots: Vec<&str> = svg.lines().filter(|line| line.contains("class=\"plan\"")).collect();
        assert_eq!(dots.len(), points.len());
        for (dot, point) in dots.iter().zip(&points) {
            let x = PLOT[0] + (PLOT[2] - PLOT[0]) * point.kept as f64 / 1000.0;
            assert!((attribute(dot, "cx") - x).abs() < 0.06, "{dot}");
        }
        // Time grows upwards, evenly: 5, 10 and 25 % above the first.
        let height: Vec<f64> = dots.iter().map(|dot| attribute(dots[0], "cy") - attribute(dot, "cy")).collect();
        assert!((height[2] / height[1] - 2.0).abs() < 0.02 && (height[3] / height[1] - 5.0).abs() < 0.05, "{height:?}");
        for words in [">none +0.0 %<", ">selective +10.0 %<", ">block +25.0 %<"] {
            assert_eq!(svg.matches(words).count(), 1, "{words}");
        }
        assert!(!["NaN", "inf", "<script", "href"].iter().any(|word| svg.contains(word)));
    }
}
