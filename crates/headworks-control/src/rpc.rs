//! JSON-RPC 2.0, a request or a batch on each line.
//!
//! ```text
//!   {"jsonrpc":"2.0","id":1,"method":"get","params":{"path":"hw0/queue/scheduler"}}
//!   {"jsonrpc":"2.0","id":1,"result":{"hw0/queue/scheduler":"none [mq-deadline] bfq"}}
//!   {"jsonrpc":"2.0","id":2,"error":{"code":-32000,"message":"...","data":{"errno":"EINVAL","accepted":"1..=4096"}}}
//! ```
//!
//! Parameters are named. A request without an id is a notification: it is carried out and not answered. An error of a
//! method has the code -32000 and the name of an errno; malformed requests have the codes of the standard.

use serde_json::{Map, Value, json};

/// Code of an error: the line is no JSON.
pub const PARSE: i32 = -32700;
/// Code of an error: the JSON is no request.
pub const INVALID_REQUEST: i32 = -32600;
/// Code of an error: there is no such method.
pub const NO_METHOD: i32 = -32601;
/// Code of an error: the parameters do not fit the method.
pub const INVALID_PARAMS: i32 = -32602;
/// Code of an error: the method failed, `data` has the name of an errno.
pub const FAILED: i32 = -32000;

/// Most requests of a batch; each may take as long as a change of a queue option.
const BATCH_MAX: usize = 32;

/// Error of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RpcFault {
    code: i32,
    message: String,
    errno: Option<&'static str>,
    accepted: Option<String>,
}

impl RpcFault {
    /// The sentence for the user.
    pub fn into_message(self) -> String {
        self.message
    }

    fn standard(code: i32, message: impl Into<String>) -> Self {
        Self { code, message: message.into(), errno: None, accepted: None }
    }

    /// The line is not valid JSON.
    pub fn parse(message: impl Into<String>) -> Self {
        Self::standard(PARSE, message)
    }

    /// The JSON is not a valid request.
    pub fn request(message: impl Into<String>) -> Self {
        Self::standard(INVALID_REQUEST, message)
    }

    /// The method does not exist.
    pub fn method(message: impl Into<String>) -> Self {
        Self::standard(NO_METHOD, message)
    }

    /// The parameters do not fit the method.
    pub fn params(message: impl Into<String>) -> Self {
        Self::standard(INVALID_PARAMS, message)
    }

    /// The method failed: name of an errno, and a message.
    pub fn refused(errno: &'static str, message: impl Into<String>) -> Self {
        Self { errno: Some(errno), ..Self::standard(FAILED, message) }
    }

    /// Adds the values that would be accepted.
    pub fn accepts(self, accepted: impl Into<String>) -> Self {
        Self { accepted: Some(accepted.into()), ..self }
    }

    /// Adds a note to the message.
    pub fn with_note(self, note: &str) -> Self {
        Self { message: format!("{}; {note}", self.message), ..self }
    }

    /// The message of the error.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// Name of the errno, if the method failed.
    pub fn errno(&self) -> Option<&'static str> {
        self.errno
    }

    fn to_json(&self) -> Value {
        let mut error = json!({ "code": self.code, "message": self.message });
        if let Some(errno) = self.errno {
            error["data"] = json!({ "errno": errno });
        }
        if let Some(accepted) = &self.accepted {
            error["data"]["accepted"] = accepted.as_str().into();
        }
        error
    }
}

/// The parameters of a request, by name.
pub type Params = Map<String, Value>;

/// The result of a method.
pub type RpcResult = Result<Value, RpcFault>;

/// A function that carries out methods.
pub type Call<'a> = dyn FnMut(&str, &Params) -> RpcResult + 'a;

/// Answers one line; none if it only has notifications.
pub fn answer(line: &[u8], call: &mut Call) -> Option<Value> {
    match serde_json::from_slice(line) {
        Ok(Value::Array(batch)) => answer_batch(&batch, call),
        Ok(request) => answer_one(&request, call),
        Err(error) => Some(failure(&Value::Null, &RpcFault::parse(format!("no JSON: {error}")))),
    }
}

/// Builds an error response.
pub fn failure(id: &Value, fault: &RpcFault) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "error": fault.to_json() })
}

fn answer_batch(batch: &[Value], call: &mut Call) -> Option<Value> {
    if batch.is_empty() || batch.len() > BATCH_MAX {
        let message = format!("a batch has 1 to {BATCH_MAX} requests, not {}", batch.len());
        return Some(failure(&Value::Null, &RpcFault::request(message)));
    }
    let answers: Vec<Value> =
        batch.iter().filter_map(|request| answer_one(request, call)).collect();
    (!answers.is_empty()).then_some(Value::Array(answers))
}

fn answer_one(request: &Value, call: &mut Call) -> Option<Value> {
    let id = request.get("id");
    // An id of another type counts as missing.
    let known = id.filter(|id| id.is_string() || id.is_number() || id.is_null());
    let asked = match check(request, id.is_some() && known.is_none()) {
        Ok(asked) => asked,
        Err(fault) => return Some(failure(known.unwrap_or(&Value::Null), &fault)),
    };
    let result = match asked {
        Ok((method, Some(params))) => call(method, params),
        Ok((method, None)) => call(method, &Params::new()),
        Err(fault) => Err(fault),
    };
    let id = known?;
    Some(match result {
        Ok(result) => json!({ "jsonrpc": "2.0", "id": id, "result": result }),
        Err(fault) => failure(id, &fault),
    })
}

/// Method and parameters of a request; the error is for parameters that no method takes.
type MethodCall<'a> = Result<(&'a str, Option<&'a Params>), RpcFault>;

/// Parses a request; the outer error is for an invalid request.
fn check(request: &Value, wrong_id: bool) -> Result<MethodCall<'_>, RpcFault> {
    if !request.is_object() {
        return Err(RpcFault::request("a request must be an object"));
    }
    if request.get("jsonrpc").and_then(Value::as_str) != Some("2.0") {
        return Err(RpcFault::request("a request must contain \"jsonrpc\": \"2.0\""));
    }
    if wrong_id {
        return Err(RpcFault::request("id must be a string, a number or null"));
    }
    let Some(method) = request.get("method").and_then(Value::as_str) else {
        return Err(RpcFault::request("method must be a string"));
    };
    match request.get("params") {
        None => Ok(Ok((method, None))),
        Some(Value::Object(params)) => Ok(Ok((method, Some(params)))),
        Some(Value::Array(_)) => Ok(Err(RpcFault::params("parameters have names: an object"))),
        Some(_) => Err(RpcFault::request("params must be an object")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `echo` gives its parameters back, `fail` is refused; the rest is not there.
    fn say(line: &str) -> Option<Value> {
        answer(line.as_bytes(), &mut |method, params| match method {
            "echo" => Ok(Value::Object(params.clone())),
            "fail" => Err(RpcFault::refused("EINVAL", "no").accepts("1..=2")),
            _ => Err(RpcFault::method("no such method")),
        })
    }

    fn code(line: &str) -> (i64, Value) {
        let answer = say(line).expect("an answer");
        assert_eq!(answer["jsonrpc"], "2.0");
        assert!(answer["error"]["message"].as_str().is_some_and(|text| !text.is_empty()));
        (answer["error"]["code"].as_i64().unwrap(), answer["id"].clone())
    }

    #[test]
    fn answer_repeats_id_of_any_type() {
        for id in ["1", "-7", "1.5", "\"a\"", "null", "\"\"", "18446744073709551615"] {
            let line =
                format!(r#"{{"jsonrpc":"2.0","method":"echo","params":{{"a":1}},"id":{id}}}"#);
            let answer = say(&line).unwrap();
            assert_eq!(answer["result"], json!({ "a": 1 }), "{id}");
            assert_eq!(answer["id"].to_string(), id);
        }
        for id in ["{}", "[1]", "true"] {
            let line = format!(r#"{{"jsonrpc":"2.0","method":"echo","id":{id}}}"#);
            assert_eq!(code(&line), (-32600, Value::Null), "{id}");
        }
    }

    #[test]
    fn invalid_request_has_standard_code() {
        for (line, expected, id) in [
            ("", -32700, json!(null)),
            ("{", -32700, json!(null)),
            ("nonsense", -32700, json!(null)),
            ("\u{0}\u{1}", -32700, json!(null)),
            (r#"{"jsonrpc":"2.0"} {"jsonrpc":"2.0"}"#, -32700, json!(null)),
            ("1", -32600, json!(null)),
            ("null", -32600, json!(null)),
            ("{}", -32600, json!(null)),
            (r#"{"method":"echo","id":1}"#, -32600, json!(1)),
            (r#"{"jsonrpc":"1.0","method":"echo","id":1}"#, -32600, json!(1)),
            (r#"{"jsonrpc":2.0,"method":"echo","id":1}"#, -32600, json!(1)),
            (r#"{"jsonrpc":"2.0","id":1}"#, -32600, json!(1)),
            (r#"{"jsonrpc":"2.0","method":1,"id":1}"#, -32600, json!(1)),
            (r#"{"jsonrpc":"2.0","method":"echo","params":1,"id":1}"#, -32600, json!(1)),
            (r#"{"jsonrpc":"2.0","method":"echo","params":[1],"id":1}"#, -32602, json!(1)),
            (r#"{"jsonrpc":"2.0","method":"what","id":"x"}"#, -32601, json!("x")),
        ] {
            assert_eq!(code(line), (expected, id), "{line}");
        }
        let bytes = answer(b"\"\xff\"", &mut |_, _| unreachable!()).unwrap();
        assert_eq!(bytes["error"]["code"], -32700);
        let deep = "[".repeat(60_000);
        assert_eq!(code(&deep).0, -32700);
    }

    #[test]
    fn refusal_has_errno_and_accepted_values() {
        let answer = say(r#"{"jsonrpc":"2.0","method":"fail","id":1}"#).unwrap();
        let data = json!({ "errno": "EINVAL", "accepted": "1..=2" });
        assert_eq!(answer["error"], json!({ "code": -32000, "message": "no", "data": data }));
        assert_eq!(answer.get("result"), None);
    }

    #[test]
    fn notification_runs_without_answer() {
        let mut called = Vec::new();
        for method in ["echo", "fail", "what"] {
            let line = format!(r#"{{"jsonrpc":"2.0","method":"{method}"}}"#);
            let answer = answer(line.as_bytes(), &mut |method, _| {
                called.push(method.to_owned());
                Err(RpcFault::method("no"))
            });
            assert_eq!(answer, None);
        }
        assert_eq!(called, ["echo", "fail", "what"]);
    }

    #[test]
    fn batch_is_answered_in_order_without_notifications() {
        let request = |id: u32| format!(r#"{{"jsonrpc":"2.0","method":"echo","id":{id}}}"#);
        let line =
            format!(r#"[{},{{"jsonrpc":"2.0","method":"echo"}},1,{}]"#, request(5), request(6));
        let answers = say(&line).unwrap();
        let ids: Vec<&Value> = answers.as_array().unwrap().iter().map(|one| &one["id"]).collect();
        assert_eq!(ids, [&json!(5), &json!(null), &json!(6)]);
        assert_eq!(say(r#"[{"jsonrpc":"2.0","method":"echo"}]"#), None);
        assert_eq!(code("[]"), (-32600, Value::Null));
        let most = format!("[{}]", vec![request(1); BATCH_MAX].join(","));
        assert_eq!(say(&most).unwrap().as_array().unwrap().len(), BATCH_MAX);
        let more = format!("[{}]", vec![request(1); BATCH_MAX + 1].join(","));
        assert_eq!(code(&more), (-32600, Value::Null));
    }
}
