//! Options of the elevator bfq.

/// `iosched/*` of bfq, in the units that sysfs has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BfqOptions {
    /// How long an empty queue keeps the device, in microseconds; 0: never. 8000: Linux's default. On a device that does not
    /// rotate at most 200.
    pub slice_idle_us: u32,
    /// Whether the weights of interactive and of soft real-time queues are raised.
    pub low_latency: bool,
    /// The longest slot of a queue. 125: Linux's default.
    pub timeout_sync_ms: u32,
    /// The largest budget of a slot in sectors; 0: what the device serves in a slot at its peak rate.
    pub max_budget: u32,
    /// Whether one request at a time is in the device and every synchronous queue is waited for.
    pub strict_guarantees: bool,
    /// The longest backward seek that may be nearer than a forward one. 16384: Linux's default.
    pub back_seek_max_kb: u32,
    /// How much more a backward seek costs than a forward one. 2: Linux's default.
    pub back_seek_penalty: u32,
    /// Age at which a synchronous request is the first of its queue's next slot.
    pub fifo_expire_sync_ms: u32,
    /// Age at which an asynchronous request is the first of its queue's next slot.
    pub fifo_expire_async_ms: u32,
    /// On a rotating device, the least time of a slot before a raised queue ends it. 60000: each such end costs two seeks.
    pub hold_us: u32,
    /// On a rotating device, the estimated time that requests in the device take at most; 0: no limit.
    pub inflight_us: u32,
    /// On a device that does not rotate, the time that a slot takes at the peak rate; 0: that of `timeout_sync`.
    pub slot_us: u32,
}

impl Default for BfqOptions {
    fn default() -> Self {
        Self {
            slice_idle_us: 8000,
            low_latency: true,
            timeout_sync_ms: 125,
            max_budget: 0,
            strict_guarantees: false,
            back_seek_max_kb: 16_384,
            back_seek_penalty: 2,
            fifo_expire_sync_ms: 125,
            fifo_expire_async_ms: 250,
            hold_us: 60_000,
            inflight_us: 20_000,
            slot_us: 100,
        }
    }
}
