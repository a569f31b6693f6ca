//! Memory drawn as a bar, in whole characters.

/// `used` of `of`, `width` characters wide.
pub fn bar(used: usize, of: usize, width: usize) -> String {
    let filled = (used * width).div_ceil(of.max(1)).min(width);
    format!("{}{}", "█".repeat(filled), "░".repeat(width - filled))
}

/// Bytes in MiB, one decimal.
pub fn mib(bytes: usize) -> String {
    format!("{:.1} MiB", bytes as f64 / (1 << 20) as f64)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_bar_is_as_wide_as_asked_and_never_overflows() {
        for (used, of) in [(0, 0), (0, 5), (3, 5), (5, 5), (9, 5)] {
            assert_eq!(super::bar(used, of, 10).chars().count(), 10);
        }
        assert_eq!(super::bar(5, 10, 4), "██░░");
    }
}
