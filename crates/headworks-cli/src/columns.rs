//! Tables of plain text: columns as wide as their widest cell.

use headworks_core::escape_controls;

/// Seconds as a table shows them: `17.0s`, `0.02s`.
pub fn seconds(value: f64) -> String {
    match value {
        value if value < 0.995 => format!("{value:.2}s"),
        value if value < 999.5 => format!("{value:.1}s"),
        value => format!("{value:.0}s"),
    }
}

/// Aligns rows of equal length to the left, with two spaces between columns. Control characters are escaped: a cell may be a
/// path that an image chose.
pub fn aligned<R: AsRef<[String]>>(rows: &[R]) -> String {
    aligned_by(rows, "  ")
}

/// The same with `gap` between columns.
pub fn aligned_by<R: AsRef<[String]>>(rows: &[R], gap: &str) -> String {
    let rows: Vec<Vec<String>> = rows
        .iter()
        .map(|row| row.as_ref().iter().map(|cell| escape_controls(cell)).collect())
        .collect();
    let columns = rows.first().map_or(0, Vec::len);
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max();
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        format!("{}\n", cells.collect::<Vec<_>>().join(gap).trim_end())
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
        let rows =
            [["a\n\u{1b}[2J", "b"], ["gr\u{f6}\u{df}e", "c"]].map(|row| row.map(str::to_owned));
        assert_eq!(aligned(&rows), "a\\n\\u{1b}[2J  b\ngr\u{f6}\u{df}e         c\n");
    }
}
