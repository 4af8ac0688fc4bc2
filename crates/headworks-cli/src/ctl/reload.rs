//! The answer of `headworks ctl reload` as text: what changed goes to standard output, what is wrong to standard error.

use headworks_control::answers::Reloaded;

/// What makes the command fail: problems of the files, of which nothing was loaded, and changes that failed.
pub fn failures(done: &Reloaded) -> Vec<String> {
    done.problems.iter().chain(&done.failed).cloned().collect()
}

/// What the reload did and left.
pub fn show(done: &Reloaded) -> String {
    let all = done.changed.iter().chain(&done.refused).chain(&done.restart);
    let text: String = all.map(|line| format!("{line}\n")).collect();
    let notes: String = done.overridden.iter().map(|line| format!("note: {line}\n")).collect();
    match text.is_empty() && failures(done).is_empty() {
        true => "nothing changed\n".to_owned() + &notes,
        false => text + &notes,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    fn show(answer: &Value) -> String {
        super::show(&crate::ctl::read(answer).unwrap())
    }

    fn failures(answer: &Value) -> Vec<String> {
        super::failures(&crate::ctl::read(answer).unwrap())
    }

    #[test]
    fn changes_print_and_problems_fail() {
        let result = json!({ "reloaded": true, "problems": [], "changed": ["export a added"],
            "refused": ["export b stays"], "failed": ["no c"], "restart": ["port after a restart"] });
        assert_eq!(show(&result), "export a added\nexport b stays\nport after a restart\n");
        assert_eq!(failures(&result), ["no c"]);
        let broken = json!({ "reloaded": false, "problems": ["f:1:1: bad", "f:2:1: bad"] });
        assert_eq!((show(&broken).as_str(), failures(&broken).len()), ("", 2));
        assert_eq!(show(&json!({ "reloaded": true })), "nothing changed\n");
        let overridden = json!({ "reloaded": true, "overridden": ["cache: 2G counts"] });
        assert_eq!(show(&overridden), "nothing changed\nnote: cache: 2G counts\n");
    }
}
