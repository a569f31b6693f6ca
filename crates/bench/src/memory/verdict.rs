//! Holds a run against its target and its own plan: a planned peak is never below the true one, and hardly above it.

use super::child::Measured;
use super::rows::Row;

/// Runs smaller than this may be planned 10 % too high, others 5 %.
const SMALL: usize = 128_000_000;

/// The measured cells of a row, and whether all is as it must be.
pub fn judge(row: &Row, measured: &Measured) -> (String, bool) {
    let mb = |bytes: usize| format!("{:.1}", bytes as f64 / 1e6);
    let faults = faults(row, measured);
    let verdict = if faults.is_empty() { "ok".into() } else { format!("short: {}", faults.join(", ")) };
    let Measured { peak, planned, seconds_a_step } = *measured;
    let (anon, total, planned) = (mb(peak.anon), mb(peak.total), mb(planned));
    let target = format!("{} / {}", row.anon, row.total);
    (format!("{anon} | {total} | {planned} | {target} | {seconds_a_step:.2} | {verdict}"), faults.is_empty())
}

fn faults(row: &Row, measured: &Measured) -> Vec<String> {
    let Measured { peak, planned, .. } = *measured;
    let above = |mb: u32, bytes: usize| bytes > mb as usize * 1_000_000;
    let room = if peak.total < SMALL { 10 } else { 5 };
    let error = planned as f64 / peak.total.max(1) as f64 * 100.0 - 100.0;
    let checks = [
        (above(row.anon, peak.anon), "anon".into()),
        (above(row.total, peak.total), "total".into()),
        (planned < peak.total, format!("plan {:.1} % too low", -error)),
        (planned * 100 > peak.total * (100 + room), format!("plan {error:.1} % too high")),
    ];
    checks.into_iter().filter_map(|(fault, words)| fault.then_some(words)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::rows::ROWS;
    use pocketune::memory::Resident;

    /// The verdict on the first row: at most 70 MB anonymous and 110 MB in all.
    fn verdict(anon: usize, total: usize, planned: usize) -> String {
        let measured = Measured { peak: Resident { total, anon }, planned, seconds_a_step: 1.0 };
        let (cells, ok) = judge(&ROWS[0], &measured);
        assert_eq!(ok, cells.ends_with("| ok"));
        cells.rsplit(" | ").next().unwrap().into()
    }

    #[test]
    fn a_row_is_ok_at_its_target_and_short_a_byte_above() {
        assert_eq!(verdict(70_000_000, 110_000_000, 115_000_000), "ok");
        assert_eq!(verdict(70_000_001, 110_000_001, 115_000_000), "short: anon, total");
    }

    #[test]
    fn a_plan_below_the_truth_or_far_above_it_is_short() {
        assert_eq!(verdict(1, 100_000_000, 99_000_000), "short: plan 1.0 % too low");
        assert_eq!(verdict(1, 100_000_000, 110_000_000), "ok");
        assert_eq!(verdict(1, 100_000_000, 111_000_000), "short: plan 11.0 % too high");
        assert_eq!(verdict(1, 200_000_000, 212_000_000), "short: total, plan 6.0 % too high");
    }
}
