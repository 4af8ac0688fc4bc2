//! The policy `fair` at its gate: order, shares, waits, the asynchronous limit, and that it never stops.

#[path = "fair_tags/gate.rs"]
mod gate;
#[path = "fair_tags/liveness.rs"]
mod liveness;
#[path = "fair_tags/shares.rs"]
mod shares;
#[path = "fair_tags/turns.rs"]
mod turns;
