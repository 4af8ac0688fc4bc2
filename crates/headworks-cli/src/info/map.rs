//! `headworks info --map`: extents as `nbdinfo --map` shows them; neighbours of one type are one line.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::Write;

use headworks_core::Extent;
use serde_json::{Value, json};

/// Prints extents while they arrive.
pub struct Printer<W> {
    out: W,
    /// The reader of standard output is gone.
    unheard: bool,
    totals: bool,
    json: bool,
    /// Offset, length and type of the run that is not printed yet.
    run: (u64, u64, u32),
    printed: bool,
    /// Bytes per type.
    sums: BTreeMap<u32, u64>,
}

impl<W: Write> Printer<W> {
    /// Creates a printer of runs, or with `totals` only of the bytes per type.
    pub fn new(out: W, totals: bool, json: bool) -> Self {
        let (run, sums) = ((0, 0, 0), BTreeMap::new());
        Self { out, unheard: false, totals, json, run, printed: false, sums }
    }

    /// Returns false after the reader of standard output is gone.
    pub fn is_open(&self) -> bool {
        !self.unheard
    }

    fn write(&mut self, text: impl Display) {
        self.unheard |= !crate::shown::note(self.out.write_all(text.to_string().as_bytes()));
    }

    /// Adds the next extent.
    pub fn push(&mut self, extent: &Extent) {
        let (start, len, kind) = self.run;
        if len > 0 && kind != extent.state.0 {
            self.print_run();
            self.run = (start + len, 0, kind);
        }
        self.run = (self.run.0, self.run.1 + u64::from(extent.len), extent.state.0);
        *self.sums.entry(extent.state.0).or_default() += u64::from(extent.len);
    }

    /// Prints the last run and the totals.
    pub fn finish(mut self) {
        if self.run.1 > 0 {
            self.print_run();
        }
        match (self.totals, self.json) {
            (true, true) => self.write(format!("{:#}\n", totals_as_json(&self.sums))),
            (true, false) => self.write(totals_as_text(&self.sums)),
            (false, true) if self.printed => self.write("\n]\n"),
            (false, true) => self.write("[]\n"),
            (false, false) => {}
        }
        // A closed output ends the map.
        crate::shown::note(self.out.flush());
    }

    fn print_run(&mut self) {
        let (offset, length, kind) = self.run;
        if self.totals {
            return;
        }
        let first = !std::mem::replace(&mut self.printed, true);
        if self.json {
            let run = run_as_json(offset, length, kind);
            self.write(format!("{}{run}", if first { "[\n" } else { ",\n" }));
        } else {
            self.write(format!("{offset:>10}  {length:>10}  {kind:>3}  {}\n", describe(kind)));
        }
    }
}

fn run_as_json(offset: u64, length: u64, kind: u32) -> Value {
    json!({ "offset": offset, "length": length, "type": kind, "description": describe(kind) })
}

fn totals_as_json(sums: &BTreeMap<u32, u64>) -> Value {
    let all: u64 = sums.values().sum();
    let row = |(kind, size): (&u32, &u64)| {
        let percent = 100.0 * *size as f64 / all.max(1) as f64;
        json!({ "size": size, "percent": percent, "type": kind, "description": describe(*kind) })
    };
    sums.iter().map(row).collect()
}

fn totals_as_text(sums: &BTreeMap<u32, u64>) -> String {
    let all: u64 = sums.values().sum();
    let row = |(kind, size): (&u32, &u64)| {
        let percent = 100.0 * *size as f64 / all.max(1) as f64;
        format!("{size:>10} {percent:5.1}% {kind:>3} {}\n", describe(*kind))
    };
    sums.iter().map(row).collect()
}

fn describe(kind: u32) -> String {
    match kind {
        0 => "data".into(),
        1 => "hole".into(),
        2 => "zero".into(),
        3 => "hole,zero".into(),
        other => format!("{other:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::ExtentState;
    use std::io;

    #[test]
    fn neighbours_of_one_type_join_across_replies() {
        let mut printer = Printer::new(io::sink(), true, false);
        for (len, state) in [(4096, 0), (4096, 0), (u32::MAX, 3), (u32::MAX, 3), (1, 0)] {
            printer.push(&Extent { len, state: ExtentState(state) });
        }
        let holes = 2 * u64::from(u32::MAX);
        assert_eq!(printer.run, (8192 + holes, 1, 0));
        assert_eq!(printer.sums, BTreeMap::from([(0, 8193), (3, holes)]));
        let sums = BTreeMap::from([(0, 1 << 20), (3, 3 << 20)]);
        let text = "   1048576  25.0%   0 data\n   3145728  75.0%   3 hole,zero\n";
        assert_eq!(totals_as_text(&sums), text);
        assert_eq!(totals_as_json(&sums)[1]["percent"], 75.0);
        assert_eq!(totals_as_json(&BTreeMap::new()), json!([]));
    }

    /// A writer that fails after its first write.
    struct Once(Vec<u8>);

    impl Write for Once {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if !self.0.is_empty() {
                return Err(io::ErrorKind::BrokenPipe.into());
            }
            self.0 = bytes.to_vec();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn closed_output_stops_the_map() {
        let mut once = Once(Vec::new());
        let mut printer = Printer::new(&mut once, false, false);
        for (index, state) in [0, 3, 0, 3].into_iter().enumerate() {
            assert_eq!(printer.is_open(), index < 3, "the third extent prints the second run");
            printer.push(&Extent { len: 4096, state: ExtentState(state) });
        }
        printer.finish();
        assert_eq!(once.0, b"         0        4096    0  data\n");
    }
}
