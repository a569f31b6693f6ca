//! What one run of a comparison went through, read from the lines that it prints, with the CPU time that its process had taken at each; and the table
//! of several.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};
use std::time::Instant;

use pocketune::threads::cpu_time;
use serde_json::{Value, json};

use crate::Failure;
use crate::memory_bar::mib;

/// A loss on the way.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Updates done.
    pub iter: usize,
    /// Seconds since the process began: of all its threads' CPU time where the system tells, else of the clock.
    pub seconds: f64,
    /// The loss.
    pub loss: f64,
}

/// One run.
#[derive(Clone, Debug, Default)]
pub struct Course {
    /// The method, with the options that it alone had.
    pub label: String,
    /// Losses of updates.
    pub reports: Vec<Point>,
    /// Losses on the validation set, where there is one.
    pub validations: Vec<Point>,
    /// The peak of its process, and as planned.
    pub peak: u64,
    /// The planned one.
    pub planned: u64,
    /// The mean cosine between what it goes along and the exact gradient, at the start.
    pub cosine: f64,
}

/// Runs `pocketune` with these words.
pub fn run(label: &str, words: &[OsString]) -> Result<Course, Failure> {
    let failed = |error: std::io::Error| Failure(format!("{label}: {error}"));
    let program = std::env::current_exe().map_err(failed)?;
    let mut child = Command::new(program)
        .args(words)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(failed)?;
    let (start, id) = (Instant::now(), child.id());
    let stderr = child.stderr.take();
    // What it says beside its lines is read meanwhile, or it would wait for a reader.
    let said = std::thread::spawn(move || {
        let mut text = String::new();
        stderr.map(|mut stderr| stderr.read_to_string(&mut text));
        text
    });
    let mut course = Course { label: label.into(), ..Course::default() };
    for line in child.stdout.take().into_iter().flat_map(|out| BufReader::new(out).lines()) {
        let seconds = cpu_time(id).unwrap_or_else(|| start.elapsed()).as_secs_f64();
        if let Ok(line) = serde_json::from_str::<Value>(&line.map_err(failed)?) {
            course.take(&line, seconds);
        }
    }
    let status = child.wait().map_err(failed)?;
    let said = said.join().unwrap_or_default();
    // 75: the time was up before the last update.
    if !(status.success() || status.code() == Some(75)) {
        let last = said.lines().last().unwrap_or("no word why");
        return Err(Failure(format!("{label}: {}", last.trim_start_matches("error: "))));
    }
    if course.reports.is_empty() {
        return Err(Failure(format!("{label}: it ended before its first update")));
    }
    Ok(course)
}

impl Course {
    /// Takes in one of the lines that a run prints.
    fn take(&mut self, line: &Value, seconds: f64) {
        let Some(iter) = line["iter"].as_u64() else { return };
        let point = |loss: f64| Point { iter: iter as usize, seconds, loss };
        if let Some(loss) = line["val_loss"].as_f64() {
            self.validations.push(point(loss));
        } else if let Some(loss) = line["loss"].as_f64() {
            self.reports.push(point(loss));
            self.peak = line["peak_rss_bytes"].as_u64().unwrap_or(0);
            self.planned = line["planned_peak_bytes"].as_u64().unwrap_or(0);
        }
    }

    /// The losses that methods are compared by: on the validation set where there is one.
    pub fn points(&self) -> &[Point] {
        if self.validations.is_empty() { &self.reports } else { &self.validations }
    }

    /// Seconds of an update: the median of those between two reports.
    pub fn step_seconds(&self) -> f64 {
        let mut steps: Vec<f64> = self.reports.windows(2).map(|two| two[1].seconds - two[0].seconds).collect();
        steps.sort_by(f64::total_cmp);
        steps.get(steps.len() / 2).copied().unwrap_or_else(|| self.reports.first().map_or(0.0, |first| first.seconds))
    }

    fn last(&self) -> Point {
        self.points().last().copied().unwrap_or(Point { iter: 0, seconds: 0.0, loss: f64::NAN })
    }

    /// The last loss at or before a moment.
    fn before(&self, moment: impl Fn(&Point) -> bool) -> f64 {
        self.points().iter().rfind(|point| moment(point)).map_or(f64::NAN, |point| point.loss)
    }

    /// All figures.
    pub fn json(&self) -> Value {
        let points = |points: &[Point]| points.iter().map(|p| json!([p.iter, p.seconds, p.loss])).collect::<Vec<_>>();
        json!({
            "method": self.label, "peak_rss_bytes": self.peak, "planned_peak_bytes": self.planned,
            "step_cpu_seconds": self.step_seconds(), "cosine": self.cosine,
            "losses": points(&self.reports), "validation_losses": points(&self.validations),
        })
    }
}

/// What is compared.
pub struct Table {
    /// Updates that all runs did.
    pub steps: usize,
    /// Seconds that all runs took.
    pub seconds: f64,
    /// One for each run: its name; the loss at these updates, and at these seconds; the peak; seconds of an update; the cosine.
    pub rows: Vec<[String; 6]>,
}

impl Table {
    /// What the columns are.
    pub fn heads(&self) -> [String; 6] {
        [
            "method".into(),
            format!("loss at {} updates", self.steps),
            format!("loss at {:.1} CPU s", self.seconds),
            "peak RSS".into(),
            "CPU s an update".into(),
            "cosine".into(),
        ]
    }

    /// That of several runs.
    pub fn of(courses: &[Course]) -> Self {
        let steps = courses.iter().map(|course| course.last().iter).min().unwrap_or(0);
        let seconds = courses.iter().map(|course| course.last().seconds).fold(f64::INFINITY, f64::min);
        let row = |course: &Course| {
            [
                course.label.clone(),
                format!("{:.4}", course.before(|point| point.iter <= steps)),
                format!("{:.4}", course.before(|point| point.seconds <= seconds)),
                mib(course.peak as usize),
                format!("{:.3}", course.step_seconds()),
                if course.cosine.is_nan() { "–".into() } else { format!("{:.4}", course.cosine) },
            ]
        };
        Self { steps, seconds, rows: courses.iter().map(row).collect() }
    }

    /// As text, in columns.
    pub fn text(&self) -> String {
        let lines: Vec<[String; 6]> = [self.heads()].into_iter().chain(self.rows.iter().cloned()).collect();
        let width = |at: usize| lines.iter().map(|line| line[at].chars().count()).max().unwrap_or(0);
        let mut text = String::new();
        for line in &lines {
            let first = format!("{:<width$}", line[0], width = width(0));
            let rest = (1..6).map(|at| format!("  {:>width$}", line[at], width = width(at)));
            text.push_str(&format!("{first}{}\n", rest.collect::<String>()));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn methods_are_compared_where_all_of_them_have_been() {
        let point = |iter, seconds, loss| Point { iter, seconds, loss };
        let course =
            |label: &str, points: Vec<Point>| Course { label: label.into(), reports: points, ..Course::default() };
        let quick =
            course("quick", vec![point(1, 1.0, 5.0), point(2, 2.0, 4.0), point(3, 3.0, 3.0), point(4, 4.0, 2.0)]);
        let slow = course("slow", vec![point(1, 3.0, 4.5), point(2, 6.0, 3.5)]);
        let table = Table::of(&[quick, slow]);
        assert_eq!((table.steps, table.seconds), (2, 4.0));
        assert_eq!(table.rows[0][1..3], ["4.0000", "2.0000"]);
        assert_eq!(table.rows[1][1..3], ["3.5000", "4.5000"]);
        assert_eq!([&table.rows[0][4], &table.rows[1][4]], ["1.000", "3.000"]);
        assert_eq!(table.text().lines().count(), 3);
    }
}
