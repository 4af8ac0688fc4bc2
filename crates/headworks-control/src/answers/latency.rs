//! Latencies of clients' requests. The stages are total, limit, buffer, cache, dirty, plug, tag, sched and device.

use std::collections::BTreeMap;

use crate::shape::records;

records! {
    /// Times of requests in a stage, in microseconds; upper bounds of buckets, at most 19 % too high.
    Percentiles {
        /// number of requests
        count: u64,
        /// median
        p50_us: f64,
        /// 90th percentile
        p90_us: f64,
        /// 99th percentile
        p99_us: f64,
        /// 99.9th percentile
        p999_us: f64,
        /// longest
        max_us: f64,
    }

    /// Histograms of one export, or of all.
    Histograms {
        /// name of the export that was asked for; left out without one
        #[serde(skip_serializing_if = "Option::is_none")]
        export: Option<String>,
        /// its histograms by kind of request: read, write, flush, trim, zero, prefetch, block_status; left out without one
        #[serde(skip_serializing_if = "Option::is_none")]
        ops: Option<OpHistograms>,
        /// of all exports by name, then as ops; left out with the parameter
        #[serde(skip_serializing_if = "Option::is_none")]
        exports: Option<BTreeMap<String, OpHistograms>>,
    }

    /// Requests of a kind.
    OpHistogram {
        /// number of requests
        count: u64,
        /// their bytes
        bytes: u64,
        /// sum of their times in microseconds
        sum_us: f64,
        /// by stage: pairs of a time in microseconds, the upper bound of a bucket, and the number of requests in it
        stages: BTreeMap<String, Vec<(f64, u64)>>,
    }
}

/// Histograms by kind of request.
pub type OpHistograms = BTreeMap<String, OpHistogram>;
