//! Tables of plain text: columns as wide as their widest cell.

/// Aligns rows of equal length to the left, with two spaces between columns.
pub fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
    let columns = rows.first().map_or(0, |row| row.as_ref().len());
    let width = |column: usize| rows.iter().map(|row| row.as_ref()[column].len()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &R| {
        let cells = row.as_ref().iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
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
        assert_eq!(aligned::<[String; 2]>(&[]), "");
    }
}
