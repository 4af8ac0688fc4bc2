//! What a later file changes of an earlier one: an edit of the earlier one has no effect there, which its author has to be told.

use super::ConfigFile;
use super::read::Setting;

impl ConfigFile {
    /// Values of this file that count no more once `later` is merged into it, one sentence each. The same value twice is none.
    #[must_use]
    pub fn overridden_by(&self, later: &Self) -> Vec<String> {
        let mut all = Vec::new();
        settings("", &self.server, &later.server, &mut all);
        for (old, new) in pairs(&self.tenants, &later.tenants, |one| &one.name) {
            settings(&format!("tenant {}: ", new.name), &old.settings, &new.settings, &mut all);
        }
        for (old, new) in pairs(&self.listeners, &later.listeners, |one| &one.name) {
            settings(&format!("listener {}: ", new.name), &old.settings, &new.settings, &mut all);
        }
        for (old, new) in pairs(&self.exports, &later.exports, |one| &one.name) {
            let (name, as_of) = (super::shown_name(&new.name), &new.origin);
            if old.clone().with_origin(as_of) != new.clone().with_origin(as_of) {
                all.push(format!(
                    "export {name}: the whole section in {as_of} counts, and nothing of that in {}",
                    old.origin
                ));
            }
        }
        all
    }
}

/// Sections with the same name.
fn pairs<'a, T>(
    earlier: &'a [T],
    later: &'a [T],
    name: impl Fn(&T) -> &String,
) -> impl Iterator<Item = (&'a T, &'a T)> {
    later
        .iter()
        .filter_map(move |new| Some((earlier.iter().find(|old| name(old) == name(new))?, new)))
}

fn settings(whose: &str, earlier: &[Setting], later: &[Setting], all: &mut Vec<String>) {
    for new in later {
        let old = earlier.iter().find(|old| old.name == new.name);
        let Some(old) = old.filter(|old| old.value.words() != new.value.words()) else { continue };
        let said = |one: &Setting| format!("{} in {}", one.value.words().join(","), one.origin);
        all.push(format!("{whose}{}: {} counts, not {}", new.name, said(new), said(old)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_values_are_told_with_both_places() {
        let file = |name: &str, text: &str| ConfigFile::parse(name, text).unwrap();
        let first = "[server]\ncache = '1G'\nshards = 2\n[[tenant]]\nname = 't'\nweight = 5\ndirty = '8M'\n\
                     [[export]]\nname = 'a'\nmem = { size = '1M' }\n[[export]]\nname = 'b'\nmem = { size = '1M' }\n";
        let later = "[server]\ncache = '2G'\nshards = 2\n[[tenant]]\nname = 't'\ndirty = 'none'\n\
                     [[export]]\nname = 'a'\nmem = { size = '1M' }\n[[export]]\nname = 'b'\nweight = 7\nmem = { size = '1M' }\n";
        let told = file("one", first).overridden_by(&file("two", later));
        assert_eq!(
            told,
            [
                "cache: 2G in file two:2 counts, not 1G in file one:2",
                "tenant t: dirty: none in file two:6 counts, not 8M in file one:7",
                "export b: the whole section in file two:11 counts, and nothing of that in file one:12",
            ]
        );
    }
}
