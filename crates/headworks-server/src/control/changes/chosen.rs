//! The exports that a request names: names, and patterns with `*` and `?`.

use serde_json::Value;

use crate::control::rpc::{Params, RpcFault};
use crate::control::tree::{ExportNode, Tree};
use crate::name_pattern::{fits, is_pattern};

/// Most words of one request; each may be a pattern of any number of exports.
const WORDS_MAX: usize = 1024;

/// The exports of the parameter `exports`, each once, in the order of the words.
pub(super) fn chosen_exports(tree: &Tree, params: &Params) -> Result<Vec<ExportNode>, RpcFault> {
    let wrong = || RpcFault::params("exports is a list of names of exports, with at least one");
    let words = match params.get("exports") {
        Some(Value::Array(words)) if (1..=WORDS_MAX).contains(&words.len()) => words,
        _ => return Err(wrong()),
    };
    let mut chosen: Vec<ExportNode> = Vec::new();
    for word in words {
        for entry in fitting(tree, word.as_str().ok_or_else(wrong)?)? {
            if !chosen.iter().any(|known| known.id == entry.id) {
                chosen.push(entry.clone());
            }
        }
    }
    Ok(chosen)
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
    use serde_json::json;

    #[test]
    fn names_and_patterns_choose_each_export_once() {
        let tree = tree();
        let names = |words: Value| -> Result<Vec<String>, RpcFault> {
            let params = json!({ "exports": words });
            let chosen = chosen_exports(&tree, params.as_object().unwrap())?;
            Ok(chosen.iter().map(|entry| entry.shown_name().to_owned()).collect())
        };
        let all: Vec<String> =
            tree.exports.iter().map(|entry| entry.shown_name().to_owned()).collect();
        assert!(all.len() > 1);
        assert_eq!(names(json!(["*"])), Ok(all.clone()));
        assert_eq!(names(json!([all[1], "*"])).unwrap()[0], all[1], "in the order of the words");
        assert_eq!(names(json!([all[0], all[0]])), Ok(vec![all[0].clone()]));
        for wrong in [json!([]), json!("x"), json!([1]), Value::Null] {
            assert!(names(wrong.clone()).is_err(), "{wrong}");
        }
        let none = names(json!(["no-such-*"])).unwrap_err();
        assert_eq!(none.message(), "no export fits no-such-*");
    }
}
