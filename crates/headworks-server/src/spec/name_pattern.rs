//! Patterns for names, as lists in a configuration have them: `*` stands for any bytes, `?` for one.

/// Whether a name fits one of the patterns.
pub(crate) fn fits_any(name: &str, patterns: &[String]) -> bool {
    patterns.iter().any(|pattern| is_like(name.as_bytes(), pattern.as_bytes()))
}

/// Whether a word is a pattern and no name.
pub(crate) fn is_pattern(word: &str) -> bool {
    word.contains(['*', '?'])
}

/// Whether a name fits one pattern.
pub(crate) fn fits(name: &str, pattern: &str) -> bool {
    is_like(name.as_bytes(), pattern.as_bytes())
}

/// Whether a name fits a pattern, in which `*` stands for any bytes and `?` for one.
fn is_like(name: &[u8], pattern: &[u8]) -> bool {
    let (mut at, mut of) = (0, 0);
    // Where the last star was, and how much of the name it has taken: more of it is tried when the rest does not fit.
    let mut star: Option<(usize, usize)> = None;
    while at < name.len() {
        match pattern.get(of) {
            Some(b'*') => {
                star = Some((of, at));
                of += 1;
            }
            Some(&byte) if byte == b'?' || byte == name[at] => (at, of) = (at + 1, of + 1),
            _ => match &mut star {
                Some((begin, taken)) => {
                    *taken += 1;
                    (at, of) = (*taken, *begin + 1);
                }
                None => return false,
            },
        }
    }
    pattern[of..].iter().all(|byte| *byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::is_like;

    #[test]
    fn patterns_fit_whole_names() {
        for (pattern, fits, misses) in [
            ("db", &["db"][..], &["db2", "d", ""][..]),
            ("web-*", &["web-", "web-1", "web-a-b"], &["web", "xweb-1"]),
            ("*-log", &["-log", "a-log", "a-log-log"], &["log", "a-logs"]),
            ("d?", &["db", "d1"], &["d", "dbb"]),
            ("*a*b*", &["ab", "xaybz", "aab"], &["ba", "a", "b"]),
            ("*", &["", "anything"], &[]),
            ("", &[""], &["x"]),
        ] {
            for name in fits {
                assert!(is_like(name.as_bytes(), pattern.as_bytes()), "{pattern} {name}");
            }
            for name in misses {
                assert!(!is_like(name.as_bytes(), pattern.as_bytes()), "{pattern} {name}");
            }
        }
    }
}
