//! A client of the control socket: one connection for one request.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use serde_json::{Value, json};

use crate::methods::{Method, Request};
use crate::rpc::Params;

/// Time-out for an answer. The server gives up a stuck shard earlier and says so.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);
/// Time-out for a connection: a server accepts at once.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest accepted answer, far above the longest real one; a peer that sends more is no control socket.
const ANSWER_MAX: u64 = 256 << 20;

/// Why a request has no answer.
#[derive(Debug)]
pub enum ClientError {
    /// The socket cannot be connected.
    Connect(io::Error),
    /// The connection or the answer is broken, or the server refused; a sentence for the user.
    Failed(String),
}

/// Sends a request and returns its answer.
///
/// # Errors
/// There is no server, it refuses, or its answer is no answer of this method.
pub fn call<R: Request>(socket: &Path, request: &R) -> Result<R::Answer, ClientError> {
    read(socket, ask(socket, R::METHOD, &request.write())?)
}

/// Reads the answer of a method.
///
/// # Errors
/// It is none.
pub fn read<T: serde::de::DeserializeOwned>(
    socket: &Path,
    answer: Value,
) -> Result<T, ClientError> {
    T::deserialize(answer).map_err(|error| {
        let at = socket.display();
        ClientError::Failed(format!("the server at {at} gave an unknown answer: {error}"))
    })
}

/// Sends a request and returns its answer as it came.
///
/// # Errors
/// There is no server, or it refuses.
pub fn ask(socket: &Path, method: Method, params: &Params) -> Result<Value, ClientError> {
    let at = socket.display();
    let mut stream = connect(socket).map_err(ClientError::Connect)?;
    let failed = |sentence: String| Err(ClientError::Failed(sentence));
    let broken = |error: io::Error| failed(format!("lost the control connection to {at}: {error}"));
    // The server itself ends what may take long.
    let timeout = method.is_prompt().then_some(ANSWER_TIMEOUT);
    if let Err(error) = stream.set_read_timeout(timeout) {
        return broken(error);
    }
    let request = json!({ "jsonrpc": "2.0", "id": 1, "method": method.name(), "params": params });
    // A server at its limit of control clients answers without reading.
    let sent = stream.write_all(format!("{request}\n").as_bytes());
    let mut line = String::new();
    let read = BufReader::new(stream.take(ANSWER_MAX)).read_line(&mut line);
    if line.is_empty() && method == Method::Cut {
        // The server died of it.
        return Ok(Value::Object(params.clone()));
    }
    if line.is_empty() {
        return match sent.and(read.map(drop)) {
            Err(error) => broken(error),
            Ok(()) => failed(format!("the server at {at} closed the connection without an answer")),
        };
    }
    let Ok(mut answer) = serde_json::from_str::<Value>(&line) else {
        return failed(format!("{at} is not a control socket of headworks"));
    };
    match answer.get("error") {
        Some(error) => failed(refusal(error)),
        None => Ok(answer["result"].take()),
    }
}

/// Threads that wait for a connection.
static CONNECTING: AtomicUsize = AtomicUsize::new(0);
/// Their limit: a caller that tries again and again leaves one behind each time.
const CONNECTING_MAX: usize = 8;

/// Connects in a thread, because a call waits without end at a server that accepts no client and whose backlog is full.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let late = || {
        let seconds = CONNECT_TIMEOUT.as_secs();
        let message = format!(
            "its server accepts no client for {seconds} s, as one that is stopped or hangs"
        );
        io::Error::new(io::ErrorKind::TimedOut, message)
    };
    // Relaxed: a count.
    if CONNECTING.fetch_add(1, Ordering::Relaxed) >= CONNECTING_MAX {
        CONNECTING.fetch_sub(1, Ordering::Relaxed);
        return Err(late());
    }
    let (sender, connected) = channel();
    let path = socket.to_owned();
    let thread = std::thread::Builder::new().name("control-connect".into());
    let spawned = thread.spawn(move || {
        let connected = UnixStream::connect(path);
        CONNECTING.fetch_sub(1, Ordering::Relaxed);
        // The caller may have given up.
        let _ = sender.send(connected);
    });
    if let Err(error) = spawned {
        CONNECTING.fetch_sub(1, Ordering::Relaxed);
        return Err(error);
    }
    connected.recv_timeout(CONNECT_TIMEOUT).unwrap_or_else(|_| Err(late()))
}

/// Formats an error answer: the message, the accepted values and the errno, each once.
#[must_use]
pub fn refusal(error: &Value) -> String {
    let mut text = error["message"].as_str().unwrap_or("the server refused").to_owned();
    let data = |name: &str| error["data"][name].as_str();
    if let Some(accepted) = data("accepted").filter(|accepted| !text.contains(accepted)) {
        text += &format!("; accepted: {accepted}");
    }
    if let Some(errno) = data("errno") {
        text += &format!(" ({errno})");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answers;

    #[test]
    fn refusal_names_accepted_range_once_and_errno() {
        let error = |message: &str| {
            let data = json!({ "errno": "EINVAL", "accepted": "1..=4096" });
            refusal(&json!({ "code": -32000, "message": message, "data": data }))
        };
        assert_eq!(error("no"), "no; accepted: 1..=4096 (EINVAL)");
        assert_eq!(error("0 is not within 1..=4096"), "0 is not within 1..=4096 (EINVAL)");
        assert_eq!(refusal(&json!({ "code": -32601, "message": "no" })), "no");
    }

    #[test]
    fn answers_of_other_versions_are_read() {
        let answer = json!([{ "name": "a", "clients": 3, "invented_later": { "x": 1 } }]);
        let rows: Vec<answers::Export> = read(Path::new("s"), answer).unwrap();
        assert_eq!((&*rows[0].name, rows[0].clients, &rows[0].remote), ("a", 3, &None));
        let wrong = read::<Vec<answers::Export>>(Path::new("s"), json!({ "a": 1 }));
        assert!(matches!(wrong, Err(ClientError::Failed(text)) if text.contains("unknown answer")));
    }
}
