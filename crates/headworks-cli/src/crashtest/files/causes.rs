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
    /// By file systems of the kernel that were asked: which of them showed it.
    pub seen: Vec<Seen>,
}

/// How often a file system of the kernel left states with a cause.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Name of the file system.
    pub kind: &'static str,
    /// Cuts that showed it.
    pub cuts: u64,
    /// Those of them in which nothing but the program asked for syncs.
    pub undisturbed: u64,
}

impl Seen {
    /// Counts one cut, disturbed or not.
    pub fn once(kind: &'static str, disturbed: bool) -> Self {
        Self { kind, cuts: 1, undisturbed: u64::from(!disturbed) }
    }
}

impl Cause {
    /// Whether no file system is known to show it: POSIX alone allows it.
    pub fn is_only_allowed(&self) -> bool {
        self.model == Model::Any && self.seen.is_empty()
    }

    /// How often a file system showed it.
    pub fn seen_on(&self, kind: &str) -> Option<&Seen> {
        self.seen.iter().find(|seen| seen.kind == kind)
    }

    fn add_seen(&mut self, new: Seen) {
        match self.seen.iter_mut().find(|seen| seen.kind == new.kind) {
            Some(seen) => {
                seen.cuts += new.cuts;
                seen.undisturbed += new.undisturbed;
            }
            None => self.seen.push(new),
        }
    }

    /// Whether a state that lost these changes, and of which the check says this, has this cause.
    fn explains(&self, said: &str, lost: &BTreeSet<String>) -> bool {
        let effects = !self.effects.is_empty()
            && self.effects.iter().all(|one| lost.contains(&one.in_general()));
        effects && generalized(&self.said) == generalized(said)
    }

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
    /// Causes that were found before.
    pub fn known(list: Vec<Cause>) -> Self {
        Self { list, shrunk: 0 }
    }

    /// Counts a broken state to a known cause; false if none explains it.
    pub fn attribute(&mut self, said: &str, lost: &BTreeSet<String>, within: bool) -> bool {
        let mut known = self.list.iter_mut();
        let known =
            known.find(|cause| cause.within.is_some() == within && cause.explains(said, lost));
        known.map(|cause| cause.states += 1).is_some()
    }

    /// Counts a broken state that a kernel left to each cause that explains it; false if none does.
    pub fn confirm(&mut self, said: &str, lost: &BTreeSet<String>, seen: &Seen) -> bool {
        let explains = |cause: &&mut Cause| cause.within.is_none() && cause.explains(said, lost);
        let known = self.list.iter_mut().filter(explains);
        known.map(|cause| cause.add_seen(seen.clone())).count() > 0
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
            Some(cause) if !new.seen.is_empty() => {
                // Shown by a kernel; the states are those of the models.
                new.seen.into_iter().for_each(|seen| cause.add_seen(seen));
            }
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
            |cause: &Cause| (cause.is_only_allowed(), cause.unasked, u64::MAX - cause.states);
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
            seen: Vec::new(),
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

    #[test]
    fn what_a_kernel_shows_confirms_causes_and_no_recovery() {
        let lost = BTreeSet::from(["write /log.N".to_owned(), "other".to_owned()]);
        let inside =
            Cause { within: Some(State::new(1, &[1])), ..cause(9, "row 1 is lost", "/log.1") };
        let allowed = Cause { model: Model::Any, ..cause(9, "row 1 is lost", "/log.1") };
        let mut causes = Causes::known(vec![inside, allowed]);
        assert!(causes.list[1].is_only_allowed());
        let confirm = |causes: &mut Causes, said, disturbed| {
            causes.confirm(said, &lost, &Seen::once("ext4", disturbed))
        };
        assert!(!confirm(&mut causes, "row 1 is torn", false));
        assert!(
            confirm(&mut causes, "row 2 is lost", false)
                && confirm(&mut causes, "row 3 is lost", true)
        );
        assert_eq!(causes.list[0].seen, []);
        let seen = Seen { kind: "ext4", cuts: 2, undisturbed: 1 };
        assert_eq!(causes.list[1].seen_on("ext4"), Some(&seen));
        assert!(!causes.list[1].is_only_allowed() && causes.list[1].seen_on("xfs").is_none());
    }
}
