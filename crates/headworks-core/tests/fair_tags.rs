//! The tag policy `fair`: order, shares, bounds on waiting, the asynchronous limit, and liveness.

#[path = "fair_tags/bypass.rs"]
mod bypass;
#[path = "fair_tags/gate.rs"]
mod gate;
#[path = "fair_tags/liveness.rs"]
mod liveness;
#[path = "fair_tags/shares.rs"]
mod shares;
#[path = "fair_tags/tenants.rs"]
mod tenants;
#[path = "fair_tags/turns.rs"]
mod turns;
