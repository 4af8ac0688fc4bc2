//! Typed access to the parameters of a method.

use serde_json::Value;

use super::rpc::{Params, RpcFault};

/// What `set` sets: `path` and `value`, or `values`, a list of objects with both.
pub fn values(params: &Params) -> Result<Vec<(String, String)>, RpcFault> {
    let one = |params: &Params| Ok((text(params, "path")?.to_owned(), word(params, "value")?));
    let wrong = || {
        RpcFault::params(
            "values is a list of objects with path and value, without path and value beside it",
        )
    };
    match params.get("values") {
        None => Ok(vec![one(params)?]),
        Some(Value::Array(list)) if params.len() == 1 && !list.is_empty() => {
            list.iter().map(|value| one(value.as_object().ok_or_else(wrong)?)).collect()
        }
        Some(_) => Err(wrong()),
    }
}

/// A string parameter that may be missing.
pub fn optional_text<'a>(params: &'a Params, name: &str) -> Result<Option<&'a str>, RpcFault> {
    match params.get(name) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(RpcFault::params(format!("{name} is a string"))),
    }
}

/// A string parameter that must be present.
pub fn text<'a>(params: &'a Params, name: &str) -> Result<&'a str, RpcFault> {
    optional_text(params, name)?.ok_or_else(|| RpcFault::params(format!("{name} is missing")))
}

/// A string, number or switch parameter as a word.
pub fn word(params: &Params, name: &str) -> Result<String, RpcFault> {
    match params.get(name) {
        Some(Value::String(text)) => Ok(text.trim().to_owned()),
        Some(Value::Number(number)) => Ok(number.to_string()),
        Some(Value::Bool(switch)) => Ok(u8::from(*switch).to_string()),
        Some(_) => Err(RpcFault::params(format!("{name} must be a string or a number"))),
        None => Err(RpcFault::params(format!("{name} is missing"))),
    }
}
