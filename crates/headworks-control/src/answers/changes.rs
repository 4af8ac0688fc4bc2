//! Answers of methods that change something.

use serde_json::Value;

use crate::shape::records;

records! {
    /// A tenant that was added or removed.
    TenantChange {
        /// name of the tenant
        tenant: String,
    }

    /// A listener that was added or removed.
    ListenerChange {
        /// name of the listener
        listener: String,
        /// path of its socket, or address and port
        address: String,
    }

    /// An export that was added.
    Added {
        /// name of the export
        export: String,
        /// sentences about it, such as that it is absent
        notes: Vec<String>,
    }

    /// An export that was removed.
    Removed {
        /// name of the export
        export: String,
        /// number of clients that were disconnected
        clients: u64,
        /// the image is closed: no other export has it
        closed: bool,
        /// what is left of an export that was given up; null if it was not
        abandoned: Option<Abandoned>,
    }

    /// An export that was given up: its device has not answered.
    Abandoned {
        /// what its removal waits for
        waits_for: String,
        /// acknowledged bytes that are in the cache only
        unwritten_bytes: u64,
        /// completed writes that no flush covers
        unflushed: u64,
        /// file with the bytes that are in the cache only, a map of them beside it; null without such a file
        recovery_file: Option<String>,
        /// sentences about what is left
        notes: Vec<String>,
    }

    /// An export whose size was asked for.
    Resized {
        /// name of the export
        export: String,
        /// bytes before
        before: u64,
        /// bytes now
        size: u64,
    }

    /// What was written out.
    Drained {
        /// bytes written out
        bytes: u64,
        /// time that it took
        seconds: f64,
        /// the exports that were written out
        exports: Vec<DrainedExport>,
    }

    /// An export that was written out.
    DrainedExport {
        /// name of the export
        export: String,
        /// bytes written out
        bytes: u64,
    }

    /// Exports that are frozen now.
    Frozen {
        /// their names
        exports: Vec<String>,
        /// bytes written out
        bytes: u64,
        /// time that it took
        seconds: f64,
        /// seconds after which it ends by itself
        timeout: f64,
    }

    /// Exports that were thawed.
    Thawed {
        /// their names
        exports: Vec<String>,
        /// time for which they were frozen
        seconds: f64,
    }

    /// The state of an overlay that was kept.
    Snapshotted {
        /// name of the export
        export: String,
        /// path of the file
        file: String,
        /// bytes written out
        bytes: u64,
        /// time for which writes waited, at most
        seconds: f64,
    }

    /// A disk whose power was cut.
    PowerCut {
        /// name of the export
        export: String,
    }

    /// Exports that refuse new clients, or take them again.
    ClientsChange {
        /// their names
        exports: Vec<String>,
        /// number of their present clients
        clients: u64,
    }

    /// What of an export could not be written.
    FailedRanges {
        /// name of the export
        export: String,
        /// the ranges, in ascending order
        ranges: Vec<FailedRange>,
    }

    /// A range that was acknowledged and could not be written.
    FailedRange {
        /// first byte, on the image
        offset: u64,
        /// length in bytes
        bytes: u64,
        /// what the device said
        error: String,
    }

    /// What discard-failed discarded, or would.
    Discarded {
        /// name of the export
        export: String,
        /// bytes that are lost, or would be
        failed_bytes: u64,
        /// acknowledged writes that were not flushed
        unflushed: u64,
        /// flushes failed
        was_suspect: bool,
        /// false without confirm, or if there was nothing
        discarded: bool,
    }

    /// How the running server differs from its configuration files.
    Diff {
        /// what differs
        changes: Vec<Difference>,
        /// sentences: what cannot be said in a file
        unsaved: Vec<String>,
        /// a drop-in file that says the changes
        text: String,
        /// path of the configuration file, or null
        config: Option<String>,
    }

    /// A value that differs from the configuration.
    Difference {
        /// path of the value
        path: String,
        /// the value of the configuration; null if it has none
        configured: Value,
        /// the value in force; null if there is none
        running: Value,
    }

    /// What a reload did, as sentences.
    Reloaded {
        /// false if the files have errors, and nothing was loaded
        reloaded: bool,
        /// errors of the files
        problems: Vec<String>,
        /// what was changed
        changed: Vec<String>,
        /// what could not be changed
        refused: Vec<String>,
        /// what could not be opened
        failed: Vec<String>,
        /// what takes effect after a restart
        restart: Vec<String>,
        /// values of a file that count no more because a later one has others
        overridden: Vec<String>,
    }

    /// The process that took over.
    Upgraded {
        /// the new process
        pid: u32,
        /// milliseconds that it took
        ms: u64,
        /// milliseconds for which nothing was served
        paused_ms: u64,
    }

    /// The level of the log.
    LogLevel {
        /// the level now
        level: String,
    }
}
