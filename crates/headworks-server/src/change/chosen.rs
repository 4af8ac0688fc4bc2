//! The exports that a request names: names, and patterns with `*` and `?`.

use crate::control::tree::{ExportNode, Tree};
use crate::spec::name_pattern::{fits, is_pattern};
use headworks_control::RpcFault;
use headworks_control::param::Names;

/// The exports of these words, each once, in the order of the words.
pub(super) fn chosen_exports(tree: &Tree, words: &Names) -> Result<Vec<ExportNode>, RpcFault> {
    let (chosen, unknown) = known_exports(tree, words);
    unknown.into_iter().next().map_or(Ok(chosen), Err)
}

/// The exports of those words that fit any, and a fault for each of the others.
pub(super) fn known_exports(tree: &Tree, words: &Names) -> (Vec<ExportNode>, Vec<RpcFault>) {
    let (mut chosen, mut unknown): (Vec<ExportNode>, Vec<RpcFault>) = Default::default();
    for word in &words.0 {
        let found = fitting(tree, word).unwrap_or_else(|fault| {
            unknown.push(fault);
            Vec::new()
        });
        for entry in found {
            if !chosen.iter().any(|known| known.id == entry.id) {
                chosen.push(entry.clone());
            }
        }
    }
    (chosen, unknown)
}

/// The export of a name, or all that fit a pattern.
fn fitting<'a>(tree: &'a Tree, word: &str) -> Result<Vec<&'a ExportNode>, RpcFault> {
    if !is_pattern(word) || tree.export(word).is_some() {
        return Ok(vec![tree.find_export(word)?]);
    }
    let fitting = tree.exports.iter().filter(|entry| fits(entry.shown_name(), word));
    let found: Vec<&ExportNode> = fitting.collect();
    if found.is_empty() {
        return Err(RpcFault::refused("ENOENT", format!("no export fits {word}")));
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::tree::tests::tree;

    #[test]
    fn names_and_patterns_choose_each_export_once() {
        let tree = tree();
        let names = |words: &[&str]| -> Result<Vec<String>, RpcFault> {
            let words = Names(words.iter().map(|&word| word.to_owned()).collect());
            Ok(super::super::names(&chosen_exports(&tree, &words)?))
        };
        let all: Vec<String> =
            tree.exports.iter().map(|entry| entry.shown_name().to_owned()).collect();
        assert!(all.len() > 1);
        assert_eq!(names(&["*"]), Ok(all.clone()));
        assert_eq!(names(&[&all[1], "*"]).unwrap()[0], all[1], "in the order of the words");
        assert_eq!(names(&[&all[0], &all[0]]), Ok(vec![all[0].clone()]));
        let none = names(&["no-such-*"]).unwrap_err();
        assert_eq!(none.message(), "no export fits no-such-*");
    }
}
