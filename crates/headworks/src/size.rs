//! Sizes in bytes as people read them.

/// Formats a size for people: `1 GiB`, `1.5 GiB`, `1000 bytes`; powers of 1024, rounded down to a tenth.
#[must_use]
pub fn display_size(bytes: u64) -> String {
    if bytes < 1024 {
        return format!("{bytes} bytes");
    }
    let power = (bytes.ilog2() / 10) as usize;
    let tenths = (u128::from(bytes) * 10) >> (10 * power);
    let unit = &"KMGTPE"[power - 1..power];
    match tenths % 10 {
        0 => format!("{} {unit}iB", tenths / 10),
        tenth => format!("{}.{tenth} {unit}iB", tenths / 10),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn display_size_rounds_down_to_a_tenth() {
        for (bytes, words) in [
            (0, "0 bytes"),
            (1000, "1000 bytes"),
            (1 << 10, "1 KiB"),
            (1 << 30, "1 GiB"),
            (3 << 29, "1.5 GiB"),
            ((1 << 30) - 1, "1023.9 MiB"),
            (i64::MAX as u64, "7.9 EiB"),
            (u64::MAX, "15.9 EiB"),
        ] {
            assert_eq!(display_size(bytes), words);
        }
    }
}
