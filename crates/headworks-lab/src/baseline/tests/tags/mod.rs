//! The old tag policies: the faults of 5.18, the effect of each patch of the series, and liveness of both.

mod bench;
mod kuai;
mod legacy;
mod loads;
mod sim;

/// Prints a figure, shown with `--nocapture`.
fn show(text: std::fmt::Arguments<'_>) {
    println!("{text}");
}
