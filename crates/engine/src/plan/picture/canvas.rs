//! SVG text: shapes, words and round numbers for axes. It knows nothing of plans, and writes no script, font or link.

use std::fmt::Write;

/// A picture in the making.
pub struct Canvas {
    text: String,
}

impl Canvas {
    /// An empty picture on a light ground.
    pub fn new(width: f64, height: f64) -> Self {
        let text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" width=\"{width}\" height=\"{height}\" \
             font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\">\n\
             <rect width=\"{width}\" height=\"{height}\" fill=\"#fcfcfa\"/>\n"
        );
        Self { text }
    }

    /// A filled rectangle.
    pub fn rect(&mut self, [x, y, width, height]: [f64; 4], fill: &str) {
        self.add(format_args!(
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{height:.1}\" fill=\"{fill}\"/>"
        ));
    }

    /// A line; `how` is written as it is.
    pub fn line(&mut self, [x1, y1, x2, y2]: [f64; 4], how: &str) {
        self.add(format_args!("<line x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\" {how}/>"));
    }

    /// A dot.
    pub fn dot(&mut self, [x, y]: [f64; 2], radius: f64, how: &str) {
        self.add(format_args!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{radius}\" {how}/>"));
    }

    /// A path along `points`; closed where it is filled.
    pub fn path(&mut self, points: &[[f64; 2]], closed: bool, how: &str) {
        let mut path = String::new();
        for (at, [x, y]) in points.iter().enumerate() {
            let _ = write!(path, "{}{x:.1} {y:.1}", if at == 0 { "M" } else { "L" });
        }
        self.add(format_args!("<path d=\"{path}{}\" {how}/>", if closed { "Z" } else { "" }));
    }

    /// Words at a place; `anchor` is the end that is there.
    pub fn words(&mut self, [x, y]: [f64; 2], size: f64, anchor: &str, how: &str, words: &str) {
        let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
        self.add(format_args!(
            "<text x=\"{x:.1}\" y=\"{y:.1}\" font-size=\"{size}\" text-anchor=\"{anchor}\" {how}>{words}</text>"
        ));
    }

    fn add(&mut self, shape: std::fmt::Arguments) {
        // Writing to a string does not fail.
        let _ = writeln!(self.text, "{shape}");
    }

    /// The whole picture.
    pub fn finish(mut self) -> String {
        self.text.push_str("</svg>\n");
        self.text
    }
}

/// About `count` round steps up to `most`: their size, and the decimals that it needs.
pub fn ticks(most: f64, count: f64) -> (f64, usize) {
    let rough = (most / count).max(1e-9);
    let power = 10_f64.powf(rough.log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].into_iter().find(|times| times * power >= rough * 0.999).unwrap_or(10.0) * power;
    (step, (-step.log10().floor()).max(0.0) as usize)
}

#[cfg(test)]
mod tests {
    #[test]
    fn steps_of_an_axis_are_round_and_not_too_many() {
        for (most, step, decimals) in
            [(100.0, 20.0, 0), (7.0, 2.0, 0), (0.9, 0.2, 1), (1730.0, 500.0, 0), (0.02, 0.005, 3)]
        {
            let found = super::ticks(most, 6.0);
            assert!((found.0 / step - 1.0).abs() < 1e-6, "{most}: {found:?}");
            assert_eq!(found.1, decimals, "{most}");
        }
    }
}
