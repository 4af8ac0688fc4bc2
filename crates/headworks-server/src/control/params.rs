//! Typed access to the parameters of a method.

use serde_json::Value;

use super::rpc::{Params, RpcFault};

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
