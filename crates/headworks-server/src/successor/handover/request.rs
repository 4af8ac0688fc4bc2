//! Requests of the control socket for an upgrade, which the program carries out.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Longest wait until a client has been sent its answer, before the process exits.
const WRITTEN_TIMEOUT: Duration = Duration::from_secs(1);
/// Longest wait of a client: the preparation of the new process, the pause, and reserve for both.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(90);

/// Result of an upgrade.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpgradeReport {
    /// The process that serves now.
    pub pid: u32,
    /// Time since the request.
    pub took: Duration,
    /// Time during which no request was served.
    pub paused: Duration,
}

/// The reason why a server was not upgraded, with the name of an errno.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpgradeRefusal {
    /// Name of the errno, such as `EBUSY`.
    pub errno: &'static str,
    /// A sentence for the operator.
    pub message: String,
}

/// The answer to a request.
pub type UpgradeResult = Result<UpgradeReport, UpgradeRefusal>;

/// A request for an upgrade. Dropped without an answer, it is answered with a refusal.
#[derive(Debug)]
pub struct UpgradeRequest {
    answer: Sender<UpgradeResult>,
    /// Closed when the answer has been sent to the client.
    written: Receiver<Infallible>,
}

impl UpgradeRequest {
    /// Answers, and waits at most one second until the client has been sent the answer.
    pub fn answer(self, result: UpgradeResult) {
        let is_waited_for = result.is_ok();
        // A client that is gone needs no answer.
        if self.answer.send(result).is_ok() && is_waited_for {
            let _ = self.written.recv_timeout(WRITTEN_TIMEOUT);
        }
    }
}

/// Held by a client's thread until the answer has been sent.
#[derive(Debug)]
pub(crate) struct AnswerGuard {
    _written: Sender<Infallible>,
}

/// A function of the program that takes requests for an upgrade; it must not block.
#[derive(Clone)]
pub struct UpgradeHook(Arc<dyn Fn(UpgradeRequest) + Send + Sync>);

impl UpgradeHook {
    /// Wraps a function that passes requests to the thread that carries them out.
    pub fn new(take: impl Fn(UpgradeRequest) + Send + Sync + 'static) -> Self {
        Self(Arc::new(take))
    }

    /// Asks for an upgrade and waits for the result.
    pub(crate) fn ask(&self) -> (UpgradeResult, AnswerGuard) {
        let ((answer, result), (guard, written)) = (channel(), channel());
        (self.0)(UpgradeRequest { answer, written });
        let refusal = UpgradeRefusal { errno: "EIO", message: "the server gave no answer".into() };
        let result = result.recv_timeout(ANSWER_TIMEOUT).unwrap_or(Err(refusal));
        (result, AnswerGuard { _written: guard })
    }
}

impl fmt::Debug for UpgradeHook {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("UpgradeHook")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;

    #[test]
    fn answer_waits_until_the_client_has_it() {
        let (requests, taken) = channel();
        let requests = Mutex::new(requests);
        let hook = UpgradeHook::new(move |request| requests.lock().unwrap().send(request).unwrap());
        let report = UpgradeReport { pid: 7, took: Duration::ZERO, paused: Duration::ZERO };
        let (told, done) = channel();
        let main = std::thread::spawn(move || {
            let request: UpgradeRequest = taken.recv().unwrap();
            request.answer(Ok(report));
            told.send(()).unwrap();
        });
        let (result, guard) = hook.ask();
        assert_eq!(result, Ok(report));
        drop(guard);
        done.recv_timeout(Duration::from_secs(20)).unwrap();
        main.join().unwrap();
    }

    #[test]
    fn dropped_request_is_refused() {
        let (result, _guard) = UpgradeHook::new(drop).ask();
        assert_eq!(result.unwrap_err().errno, "EIO");
    }
}
