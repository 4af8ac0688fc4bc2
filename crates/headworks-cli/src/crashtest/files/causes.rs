//! Causes: broken states that lost the same kind of change and fail in the same way, in one sentence or two.
//!
//! A broken state whose losses include those of a known cause, and whose check says the same, belongs to it. Any other is shrunk, and makes
//! a cause or joins one. Sentences are compared with their numbers replaced.

use std::collections::BTreeSet;

use headworks_crash::{Effect, Model, State, generalized};

/// Failures that are shrunk at most.
const SHRINKS_MAX: usize = 40;

/// Why states are broken.
pub struct Cause {
    pub model: Model,
    /// What the check says of the first one, shrunk.
    pub said: String,
    /// What was not durable, and which sync is missing.
    pub why: Vec<String>,
    pub effects: Vec<Effect>,
    /// Number of broken states that it explains.
    pub states: u64,
    pub first: State,
    /// Of a cut in a recovery: the state whose check was cut.
    pub within: Option<State>,
    /// Number of the first state's directories.
    pub hash: u64,
    /// Needs a write-back that the program did not ask for: if nothing had reached the disk, the state would be right.
    pub unasked: bool,
    /// What the check printed.
    pub log: String,
}

impl Cause {
    /// What two causes have in common that are one: what the check says, and what was lost.
    fn in_general(&self) -> (String, BTreeSet<String>) {
        let lost = match self.effects.is_empty() {
            true => self.why.iter().map(|one| generalized(one)).collect(),
            false => self.effects.iter().map(Effect::in_general).collect(),
        };
        (generalized(&self.said), lost)
    }
}

/// The causes of a test.
#[derive(Default)]
pub struct Causes {
    pub list: Vec<Cause>,
    shrunk: usize,
}

impl Causes {
    /// Counts a broken state to a known cause; false if none explains it.
    pub fn attribute(&mut self, said: &str, lost: &BTreeSet<String>, within: bool) -> bool {
        let said = generalized(said);
        let explains = |cause: &&mut Cause| {
            let effects = !cause.effects.is_empty()
                && cause.effects.iter().all(|one| lost.contains(&one.in_general()));
            effects && cause.within.is_some() == within && generalized(&cause.said) == said
        };
        let known = self.list.iter_mut().find(explains);
        known.map(|cause| cause.states += 1).is_some()
    }

    /// Whether one more failure may be shrunk; counts it.
    pub fn may_shrink(&mut self) -> bool {
        self.shrunk += 1;
        self.shrunk <= SHRINKS_MAX
    }

    /// Adds a cause, or its states to one that says the same.
    pub fn add(&mut self, new: Cause) {
        let key = new.in_general();
        let same = |cause: &&mut Cause| {
            cause.within.is_some() == new.within.is_some() && cause.in_general() == key
        };
        match self.list.iter_mut().find(same) {
            Some(cause)
                if (new.first.place, new.first.lost.len())
                    < (cause.first.place, cause.first.lost.len())
                    && new.model == cause.model =>
            {
                let states = cause.states + new.states;
                *cause = Cause { states, ..new };
            }
            Some(cause) => cause.states += new.states,
            None => self.list.push(new),
        }
    }

    /// The causes in the order of a report: what needs no luck first, then by states.
    pub fn sorted(mut self) -> Vec<Cause> {
        let rank =
            |cause: &Cause| (cause.model == Model::Any, cause.unasked, u64::MAX - cause.states);
        self.list.sort_by(|one, other| {
            rank(one).cmp(&rank(other)).then(one.first.place.cmp(&other.first.place))
        });
        self.list
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cause(place: usize, said: &str, path: &str) -> Cause {
        let effect = Effect {
            step: 1,
            operation: "write",
            path: path.into(),
            offset: 0,
            length: 1,
            said: format!("write of {path}"),
        };
        Cause {
            model: Model::Journal,
            said: said.into(),
            why: vec![effect.said.clone()],
            effects: vec![effect],
            states: 1,
            first: State::new(place, &[1]),
            within: None,
            hash: 0,
            unasked: false,
            log: String::new(),
        }
    }

    #[test]
    fn causes_that_differ_in_numbers_are_one() {
        let mut causes = Causes::default();
        causes.add(cause(9, "row 12 is lost", "/log.12"));
        causes.add(cause(4, "row 3 is lost", "/log.3"));
        causes.add(cause(4, "row 3 is torn", "/log.3"));
        assert_eq!(causes.list.len(), 2);
        assert_eq!((causes.list[0].states, causes.list[0].first.place), (2, 4));
        let lost = |paths: &[&str]| paths.iter().map(|path| format!("write {path}")).collect();
        assert!(causes.attribute("row 77 is lost", &lost(&["/log.N", "/other"]), false));
        assert!(!causes.attribute("row 77 is lost", &lost(&["/other"]), false));
        assert!(!causes.attribute("row 77 is lost", &lost(&["/log.N"]), true));
        assert_eq!(causes.sorted()[0].states, 3);
    }
}
