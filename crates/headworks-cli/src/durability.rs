//! Durability of exports in words: when a write is acknowledged, and what a crash or power cut may lose.

use headworks::house::display_size;
use headworks_core::WriteMode;
use headworks_core::writeback::DirtyOptions;
use headworks_server::AutoCache;

/// The properties of an export that decide what a crash loses.
#[derive(Clone, Copy)]
pub struct ExportDurability<'a> {
    /// Export name for messages.
    pub name: &'a str,
    /// The data outlives the process.
    pub lasting: bool,
    /// Clients cannot write to it.
    pub read_only: bool,
    /// When a write is acknowledged.
    pub mode: WriteMode,
}

/// Upper limit of dirty bytes in a cache of `bytes`.
pub fn dirty_limit(bytes: u64, dirty: &DirtyOptions) -> u64 {
    match dirty.dirty_bytes {
        0 => (u128::from(bytes) * u128::from(dirty.dirty_ratio) / 100) as u64,
        limit => limit.min(bytes),
    }
}

/// How much of a cache may be dirty, in words: `256 MiB`, and that of an automatic size `up to` so many bytes where the disks write that
/// within seconds, if its memory is `kept` for the next server.
pub fn dirty_most(limit: u64, auto: Option<AutoCache>, dirty: &DirtyOptions, kept: bool) -> String {
    let words = display_size(limit);
    let most = auto.map_or(0, |auto| dirty_limit(auto.room, dirty));
    if !kept || dirty.dirty_bytes > 0 || most <= limit {
        return words;
    }
    let seconds = AutoCache::written_out_within(dirty.dirty_ratio);
    format!("{words}, or what the disks write in {seconds} s (up to {})", display_size(most))
}

/// Whether a cache can have acknowledged writes of one of the exports that are not written yet.
pub fn may_be_dirty(exports: &[ExportDurability]) -> bool {
    exports.iter().any(|export| !export.read_only && export.mode.holds_dirty())
}

/// Describes when writes are acknowledged: `writeback: ...`, with export names if modes differ. None if nothing can be written.
pub fn write_modes(exports: &[ExportDurability]) -> Option<String> {
    let written: Vec<_> = exports.iter().filter(|export| !export.read_only).copied().collect();
    let modes = grouped(&written, "; ", |export| {
        let means = match export.mode {
            WriteMode::Writeback => {
                "writes are acknowledged from the cache; a flush or FUA makes them durable"
            }
            WriteMode::Stream => {
                "writes are acknowledged from the cache and soon leave it; a flush or FUA makes them durable"
            }
            WriteMode::Writethrough => "reads are cached, writes are acknowledged by the device",
            WriteMode::None => "no cache, writes are acknowledged by the device",
            WriteMode::Unsafe => {
                "writes are acknowledged from the cache, AND FLUSHES AND FUA GUARANTEE NOTHING"
            }
        };
        (export.mode.name(), means.to_owned())
    });
    Some(modes).filter(|_| !written.is_empty())
}

/// Describes what a kill -9 and a power cut may lose, with at most `most` ([`dirty_most`]) only in the cache, whose memory is `kept` for the
/// next server.
pub fn loss(exports: &[ExportDurability], most: &str, kept: bool) -> String {
    grouped(exports, "; ", |export| {
        let lost = match export.mode {
            _ if !export.lasting => "everything: its data is in memory".to_owned(),
            _ if export.read_only => "nothing: read-only".to_owned(),
            WriteMode::Writethrough | WriteMode::None => {
                "no acknowledged write; a power cut may lose unflushed writes".into()
            }
            WriteMode::Writeback | WriteMode::Stream if kept => {
                format!(
                    "no acknowledged write; a power cut may lose unflushed writes, at most {most}"
                )
            }
            WriteMode::Unsafe if kept => {
                format!(
                    "no acknowledged write; a power cut may lose any, flushed or not, at most {most}"
                )
            }
            WriteMode::Writeback | WriteMode::Stream => {
                format!("acknowledged unflushed writes, at most {most}; a power cut, too")
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

/// Joins equal texts: `WORD: TEXT` if all exports agree, else `WORD (names): TEXT` per group.
fn grouped<'a>(
    exports: &[ExportDurability<'a>],
    between: &str,
    say: impl Fn(&ExportDurability<'a>) -> (&'static str, String),
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

    fn export(name: &str, mode: WriteMode) -> ExportDurability<'_> {
        ExportDurability { name, lasting: true, read_only: false, mode }
    }

    #[test]
    fn equal_modes_print_once_different_ones_with_names() {
        let same = [export("a", WriteMode::Writeback), export("b", WriteMode::Writeback)];
        let text = write_modes(&same).unwrap();
        assert!(text.starts_with("writeback: writes are acknowledged from the cache"), "{text}");
        let mixed = [
            export("a", WriteMode::None),
            export("b", WriteMode::Writeback),
            export("c", WriteMode::None),
        ];
        let text = write_modes(&mixed).unwrap();
        assert!(text.starts_with("none (a, c): no cache"), "{text}");
        assert!(text.contains("; writeback (b): "), "{text}");
    }

    #[test]
    fn what_cannot_be_written_has_no_write_mode_and_no_dirty_data() {
        let image = ExportDurability { read_only: true, ..export("r", WriteMode::Writeback) };
        let memory = ExportDurability { lasting: false, ..export("m", WriteMode::None) };
        assert_eq!((write_modes(&[image]), may_be_dirty(&[image])), (None, false));
        assert!(!may_be_dirty(&[memory]) && may_be_dirty(&[image, export("a", WriteMode::Stream)]));
        let both = write_modes(&[image, memory]).unwrap();
        assert!(both.starts_with("none: no cache"), "of the one that is written: {both}");
    }

    #[test]
    fn loss_depends_on_write_mode() {
        let one = |mode| loss(&[export("a", mode)], "50 MiB", false);
        let kept = |mode| loss(&[export("a", mode)], "50 MiB", true);
        for mode in WriteMode::ALL {
            assert!(kept(mode).starts_with("no acknowledged write; a power cut may lose"));
        }
        assert!(one(WriteMode::None).starts_with("no acknowledged write; a power cut"));
        assert_eq!(one(WriteMode::None), one(WriteMode::Writethrough));
        assert!(one(WriteMode::Writeback).contains("unflushed writes, at most 50 MiB"));
        assert_eq!(one(WriteMode::Stream), one(WriteMode::Writeback));
        assert!(one(WriteMode::Unsafe).contains("flushed or not, at most 50 MiB"));
        let memory = ExportDurability { lasting: false, ..export("m", WriteMode::None) };
        let read_only = ExportDurability { read_only: true, ..export("r", WriteMode::Writeback) };
        let text = loss(&[memory, read_only, export("w", WriteMode::None)], "", false);
        assert!(text.starts_with("of m everything: its data is in memory; of r nothing"), "{text}");
        assert!(text.contains("; of w no acknowledged write"), "{text}");
    }

    #[test]
    fn fast_disks_may_have_more_dirty_where_a_death_loses_nothing() {
        let auto = Some(AutoCache::of_memory(24 << 30));
        let mut dirty = DirtyOptions::default();
        let limit = dirty_limit(AutoCache::DIRTYABLE, &dirty);
        let said = dirty_most(limit, auto, &dirty, true);
        assert_eq!(said, "256 MiB, or what the disks write in 2 s (up to 2.3 GiB)");
        assert_eq!(dirty_most(limit, auto, &dirty, false), "256 MiB");
        assert_eq!(dirty_most(limit, None, &dirty, true), "256 MiB");
        let small = Some(AutoCache::of_memory(1 << 30));
        let limit = dirty_limit(512 << 20, &dirty);
        assert_eq!(dirty_most(limit, small, &dirty, true), display_size(limit), "no more room");
        dirty.dirty_bytes = 8 << 20;
        assert_eq!(dirty_most(8 << 20, auto, &dirty, true), "8 MiB");
    }

    #[test]
    fn dirty_bytes_limits_before_dirty_ratio() {
        let mut dirty = DirtyOptions::default();
        assert_eq!(dirty_limit(100 << 20, &dirty), 20 << 20);
        dirty.dirty_bytes = 8 << 20;
        assert_eq!(dirty_limit(100 << 20, &dirty), 8 << 20);
        assert_eq!(dirty_limit(4 << 20, &dirty), 4 << 20);
    }
}
