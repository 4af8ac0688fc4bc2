//! The answer of `headworks ctl reload` as text: what changed goes to standard output, what is wrong to standard error.

use serde_json::Value;

use crate::ctl::{list, plain};

fn lines<'a>(result: &'a Value, names: &'a [&str]) -> impl Iterator<Item = String> + 'a {
    names.iter().flat_map(|name| list(&result[*name])).map(plain)
}

/// What makes the command fail: problems of the files, of which nothing was loaded, and changes that failed.
pub fn failures(result: &Value) -> Vec<String> {
    lines(result, &["problems", "failed"]).collect()
}

/// What the reload did and left.
pub fn show(result: &Value) -> String {
    let done: String =
        lines(result, &["changed", "refused", "restart"]).map(|line| line + "\n").collect();
    match done.is_empty() && failures(result).is_empty() {
        true => "nothing changed\n".to_owned(),
        false => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn changes_print_and_problems_fail() {
        let result = json!({ "reloaded": true, "problems": [], "changed": ["export a added"],
            "refused": ["export b stays"], "failed": ["no c"], "restart": ["port after a restart"] });
        assert_eq!(show(&result), "export a added\nexport b stays\nport after a restart\n");
        assert_eq!(failures(&result), ["no c"]);
        let broken = json!({ "reloaded": false, "problems": ["f:1:1: bad", "f:2:1: bad"] });
        assert_eq!((show(&broken).as_str(), failures(&broken).len()), ("", 2));
        assert_eq!(show(&json!({ "reloaded": true })), "nothing changed\n");
    }
}
