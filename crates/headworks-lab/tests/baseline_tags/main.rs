//! The baseline tag policies: what they get wrong, what each patch of the series changes, and that both end.

mod bed;
mod hall;
mod kuai;
mod legacy;
mod loads;

/// A figure, for who runs the tests with `--nocapture`.
#[expect(clippy::disallowed_macros, reason = "the policy makes no system call, its tests may")]
fn say(text: std::fmt::Arguments<'_>) {
    println!("{text}");
}
