//! What a server promises of writes, in words: how they are acknowledged, and what a crash may lose.

use headworks::display_size;
use headworks_core::WriteMode;
use headworks_core::writeback::DirtyOptions;

/// An export, as far as it matters here.
pub struct Promise<'a> {
    /// Its name for people.
    pub name: &'a str,
    /// Its bytes outlive the process.
    pub lasting: bool,
    /// Nobody may write it.
    pub read_only: bool,
    /// When a write is acknowledged.
    pub mode: WriteMode,
}

/// The most that may be dirty in a cache of `bytes`.
pub fn dirty_limit(bytes: u64, dirty: &DirtyOptions) -> u64 {
    match dirty.dirty_bytes {
        0 => (u128::from(bytes) * u128::from(dirty.dirty_ratio) / 100) as u64,
        limit => limit.min(bytes),
    }
}

/// When a write is acknowledged: `writeback: ...`, or of several modes each with its exports.
pub fn write_modes(exports: &[Promise]) -> String {
    grouped(exports, "; ", |export| {
        let means = match export.mode {
            WriteMode::Writeback => {
                "an acknowledged write is in the cache; a flush or FUA makes it durable"
            }
            WriteMode::Writethrough => "reads are cached, an acknowledged write is in the device",
            WriteMode::None => "no cache, an acknowledged write is in the device",
            WriteMode::Unsafe => {
                "an acknowledged write is in the cache, AND FLUSHES AND FUA PROMISE NOTHING"
            }
        };
        (export.mode.name(), means.to_owned())
    })
}

/// What a kill -9 may lose, and a power cut, where `dirty` bytes may be in the cache alone.
pub fn loss(exports: &[Promise], dirty: u64) -> String {
    let most = display_size(dirty);
    grouped(exports, "; ", |export| {
        let lost = match export.mode {
            _ if !export.lasting => "everything: its bytes are in memory".to_owned(),
            _ if export.read_only => "nothing: nobody may write".to_owned(),
            WriteMode::Writethrough | WriteMode::None => {
                "nothing that was acknowledged; a power cut may lose what was not flushed".into()
            }
            WriteMode::Writeback => {
                format!(
                    "acknowledged writes that were not flushed, at most {most}; so does a power cut"
                )
            }
            WriteMode::Unsafe => {
                format!(
                    "acknowledged writes, flushed or not, at most {most}; a power cut may lose any"
                )
            }
        };
        ("", lost)
    })
}

/// What is said of each export, the same words once: `WORD: TEXT`, and if exports differ `WORD (names): TEXT`.
fn grouped<'a>(
    exports: &[Promise<'a>],
    between: &str,
    say: impl Fn(&Promise<'a>) -> (&'static str, String),
) -> String {
    let mut groups: Vec<((&'static str, String), Vec<&str>)> = Vec::new();
    for export in exports {
        let said = say(export);
        match groups.iter_mut().find(|(other, _)| *other == said) {
            Some((_, names)) => names.push(export.name),
            None => groups.push((said, vec![export.name])),
        }
    }
    let all = groups.len() == 1;
    let text = |((word, means), names): ((&'static str, String), Vec<&str>)| {
        let names = names.join(", ");
        match (all, word) {
            (true, "") => means,
            (true, word) => format!("{word}: {means}"),
            (false, "") => format!("of {names} {means}"),
            (false, word) => format!("{word} ({names}): {means}"),
        }
    };
    groups.into_iter().map(text).collect::<Vec<_>>().join(between)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn export(name: &str, mode: WriteMode) -> Promise<'_> {
        Promise { name, lasting: true, read_only: false, mode }
    }

    #[test]
    fn what_all_exports_have_is_said_once_and_what_differs_by_name() {
        let same = [export("a", WriteMode::Writeback), export("b", WriteMode::Writeback)];
        assert!(write_modes(&same).starts_with("writeback: an acknowledged write is in the cache"));
        let mixed = [
            export("a", WriteMode::None),
            export("b", WriteMode::Writeback),
            export("c", WriteMode::None),
        ];
        let text = write_modes(&mixed);
        assert!(text.starts_with("none (a, c): no cache"), "{text}");
        assert!(text.contains("; writeback (b): "), "{text}");
    }

    #[test]
    fn a_crash_loses_what_the_mode_leaves_in_memory() {
        let one = |mode| loss(&[export("a", mode)], 50 << 20);
        assert!(one(WriteMode::None).starts_with("nothing that was acknowledged; a power cut"));
        assert_eq!(one(WriteMode::None), one(WriteMode::Writethrough));
        assert!(one(WriteMode::Writeback).contains("not flushed, at most 50 MiB"));
        assert!(one(WriteMode::Unsafe).contains("flushed or not, at most 50 MiB"));
        let memory = Promise { lasting: false, ..export("m", WriteMode::None) };
        let read_only = Promise { read_only: true, ..export("r", WriteMode::Writeback) };
        let text = loss(&[memory, read_only, export("w", WriteMode::None)], 0);
        assert!(
            text.starts_with("of m everything: its bytes are in memory; of r nothing"),
            "{text}"
        );
        assert!(text.contains("; of w nothing that was acknowledged"), "{text}");
    }

    #[test]
    fn bytes_limit_what_is_dirty_before_the_ratio_does() {
        let mut dirty = DirtyOptions::default();
        assert_eq!(dirty_limit(100 << 20, &dirty), 20 << 20);
        dirty.dirty_bytes = 8 << 20;
        assert_eq!(dirty_limit(100 << 20, &dirty), 8 << 20);
        assert_eq!(dirty_limit(4 << 20, &dirty), 4 << 20);
    }
}
