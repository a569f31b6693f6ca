//! The rows of the table: what is trained, what others published for it, and what we must reach. All in MB (10^6 bytes).

use crate::failure::{Failure, Result};

/// One shape at one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Row {
    /// The shape's name.
    pub shape: &'static str,
    /// Tokens in a record.
    pub seq: usize,
    /// MeBP's published peak.
    pub mebp: Option<u32>,
    /// MeSP's published peak.
    pub mesp: Option<u32>,
    /// Most anonymous memory of ours.
    pub anon: u32,
    /// Most resident memory of ours in all.
    pub total: u32,
}

/// All rows.
pub const ROWS: [Row; 7] = [
    Row { shape: "qwen2.5-0.5b", seq: 256, mebp: Some(361), mesp: Some(136), anon: 70, total: 110 },
    Row { shape: "qwen2.5-1.5b", seq: 256, mebp: Some(516), mesp: Some(263), anon: 120, total: 180 },
    Row { shape: "qwen2.5-3b", seq: 256, mebp: Some(638), mesp: Some(368), anon: 170, total: 260 },
    Row { shape: "gemma3-1b", seq: 256, mebp: Some(569), mesp: None, anon: 110, total: 200 },
    Row { shape: "gemma3-4b", seq: 256, mebp: Some(1029), mesp: None, anon: 200, total: 330 },
    Row { shape: "qwen2.5-0.5b", seq: 1024, mebp: Some(1050), mesp: Some(514), anon: 110, total: 160 },
    Row { shape: "qwen2.5-0.5b", seq: 8192, mebp: None, mesp: None, anon: 300, total: 400 },
];

impl Row {
    fn name(&self) -> String {
        format!("{}@{}", self.shape, self.seq)
    }
}

/// The rows called by `names`, in the order of the table; all of them where there is no name.
///
/// # Errors
/// When a name is no row's.
pub fn select(names: &[String]) -> Result<Vec<Row>> {
    let called = |row: &Row, name: &String| *name == row.name() || *name == row.shape;
    if let Some(unknown) = names.iter().find(|name| !ROWS.iter().any(|row| called(row, name))) {
        let known: Vec<String> = ROWS.iter().map(Row::name).collect();
        return Err(Failure::new(format!("--rows {unknown}: no such row; there are {}", known.join(", "))));
    }
    let wanted = |row: &&Row| names.is_empty() || names.iter().any(|name| called(row, name));
    Ok(ROWS.iter().filter(wanted).copied().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn selected(names: &[&str]) -> Result<Vec<String>> {
        let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
        select(&names).map(|rows| rows.iter().map(Row::name).collect())
    }

    #[test]
    fn rows_are_chosen_by_shape_or_by_shape_and_length() {
        assert_eq!(selected(&[]).unwrap().len(), ROWS.len());
        assert_eq!(selected(&["qwen2.5-0.5b@8192", "gemma3-1b"]).unwrap(), ["gemma3-1b@256", "qwen2.5-0.5b@8192"]);
        assert_eq!(selected(&["qwen2.5-0.5b"]).unwrap().len(), 3);
    }

    #[test]
    fn a_row_that_is_not_there_is_refused_with_those_that_are() {
        let refusal = selected(&["qwen2.5-0.5b@77"]).unwrap_err().to_string();
        assert!(refusal.starts_with("--rows qwen2.5-0.5b@77: no such row; there are qwen2.5-0.5b@256,"), "{refusal}");
    }

    #[test]
    fn every_row_has_a_shape() {
        ROWS.iter().for_each(|row| assert!(pocketune::families::shape(row.shape).is_ok(), "{}", row.shape));
    }
}
