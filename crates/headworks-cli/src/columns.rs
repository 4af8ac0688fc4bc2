//! Tables of plain text: columns as wide as their widest cell.

/// Aligns rows of equal length to the left, with two spaces between columns.
pub fn aligned<const COLUMNS: usize>(rows: &[[String; COLUMNS]]) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].len()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..COLUMNS).map(width).collect();
    let line = |row: &[String; COLUMNS]| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::aligned;

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [["A", "LONG", "C"], ["abc", "d", ""]].map(|row| row.map(str::to_owned));
        assert_eq!(aligned(&rows), "A    LONG  C\nabc  d\n");
        assert_eq!(aligned::<2>(&[]), "");
    }
}
