//! A report for CI systems: one suite, a test case for each cause or, if nothing is broken, for the whole test.

use std::fmt::Write as _;
use std::path::Path;

/// A test case of the report.
pub struct Case {
    pub name: String,
    /// Why it failed, if it did.
    pub failure: Option<String>,
    /// What to do with it: the command that repeats it.
    pub output: String,
}

/// Writes the report. The error is a sentence.
pub fn write(path: &Path, cases: &[Case], seconds: f64) -> Result<(), String> {
    std::fs::write(path, text(cases, seconds))
        .map_err(|error| format!("cannot write {}: {error}", path.display()))
}

fn text(cases: &[Case], seconds: f64) -> String {
    let failures = cases.iter().filter(|case| case.failure.is_some()).count();
    let mut text = format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuite name=\"crashtest\" tests=\"{}\" failures=\"{failures}\" time=\"{seconds:.3}\">\n",
        cases.len()
    );
    for case in cases {
        let _ =
            writeln!(text, "  <testcase classname=\"crashtest\" name=\"{}\">", escaped(&case.name));
        if let Some(failure) = &case.failure {
            let first = failure.lines().next().unwrap_or_default();
            let _ = writeln!(
                text,
                "    <failure message=\"{}\">{}</failure>",
                escaped(first),
                escaped(failure)
            );
        }
        let _ =
            writeln!(text, "    <system-out>{}</system-out>\n  </testcase>", escaped(&case.output));
    }
    text + "</testsuite>\n"
}

/// A text as XML has it: without characters that no escape can name.
fn escaped(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\n' | '\t' => safe.push(letter),
            letter if letter.is_control() || matches!(letter, '\u{fffe}' | '\u{ffff}') => {
                safe.push('?')
            }
            letter => safe.push(letter),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_counted_and_escaped() {
        let case = |failure: Option<&str>| Case {
            name: "a<b".into(),
            failure: failure.map(str::to_owned),
            output: "again & again\u{1}".into(),
        };
        let text = text(&[case(None), case(Some("row \"1\"\nis lost"))], 1.5);
        assert!(text.contains("tests=\"2\" failures=\"1\" time=\"1.500\""));
        assert!(text.contains("<testcase classname=\"crashtest\" name=\"a&lt;b\">"));
        assert!(text.contains(
            "<failure message=\"row &quot;1&quot;\">row &quot;1&quot;\nis lost</failure>"
        ));
        assert!(text.contains("<system-out>again &amp; again?</system-out>"));
    }
}
