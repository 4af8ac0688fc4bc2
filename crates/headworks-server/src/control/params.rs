//! Typed access to the parameters of a method.

use std::time::Duration;

use serde_json::Value;

use super::rpc::{Params, RpcFault};
use crate::latency::LatencyOp;
use crate::latency::slow::SlowFilter;

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

/// Which requests `why` considers: `op`, `read`, `write` or `other`; `seconds`, 1 to 60.
pub fn slow_filter(params: &Params) -> Result<SlowFilter, RpcFault> {
    let all = SlowFilter::default();
    let op = match optional_text(params, "op")? {
        None => None,
        Some(word) => {
            let known = LatencyOp::ALL.into_iter().find(|op| op.name() == word);
            let wrong = || RpcFault::params(format!("op is read, write or other, not `{word}`"));
            Some(known.ok_or_else(wrong)?)
        }
    };
    let seconds = match params.get("seconds") {
        None => all.seconds,
        Some(value) => {
            let seconds = value.as_u64().filter(|seconds| (1..=all.seconds).contains(seconds));
            let wrong = || {
                let most = all.seconds;
                RpcFault::params(format!("seconds is a number of 1 to {most}, not {value}"))
            };
            seconds.ok_or_else(wrong)?
        }
    };
    Ok(SlowFilter { op, seconds })
}

/// Longest time limit that a client can ask for, in seconds.
const SECONDS_MAX: u64 = 3600;

/// The time limit `timeout` in seconds; `default` if it is missing.
pub fn time_limit(params: &Params, default: Duration) -> Result<Duration, RpcFault> {
    let seconds = match params.get("timeout") {
        None | Some(Value::Null) => return Ok(default),
        Some(value) => value.as_f64(),
    };
    let fits = |seconds: &f64| (0.001..=SECONDS_MAX as f64).contains(seconds);
    seconds.filter(fits).map(Duration::from_secs_f64).ok_or_else(|| {
        let message = format!("timeout is a number of seconds, 0.001 to {SECONDS_MAX}");
        RpcFault::refused("EINVAL", message)
    })
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
