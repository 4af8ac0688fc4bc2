//! The new process of an upgrade: it receives the state of the old one, and serves when the old one says so.
//!
//! Until Go it changes nothing that the old process needs. If the old process dies before the live state has come, this one ends,
//! too: there is nothing that it could serve. If the old process dies after everything was adopted, this one serves.

use std::sync::Arc;
use std::time::{Duration, Instant};

use headworks_core::ConfigError;
use headworks_server::{Handover, Takeover, TakeoverSteps, UnmatchedClients};

use super::VARIABLE;
use super::channel::{Channel, Message, VERSION};
use super::packet::{PacketError, PacketSocket};
use super::process_state::ProcessState;

/// Time limit of each step of the old process. It is above every limit of that process, which decides: it ends this one.
const STEP_LIMIT: Duration = Duration::from_secs(120);
/// Time limit of the last message of this process.
const LAST_LIMIT: Duration = Duration::from_secs(2);

/// The process that this one is to replace.
#[derive(Debug)]
pub(in crate::serve) struct Predecessor(Arc<Channel>);

fn error(message: impl std::fmt::Display) -> ConfigError {
    ConfigError::new("upgrade", message.to_string())
}

fn of_predecessor(reason: &PacketError) -> ConfigError {
    error(format!("the process that was to be replaced: {reason}"))
}

fn deadline() -> Instant {
    Instant::now() + STEP_LIMIT
}

impl Predecessor {
    /// Takes the channel that the environment names; none for an ordinary start. To be called before any thread is started.
    ///
    /// # Errors
    /// The variable names no such channel.
    pub fn take() -> Result<Option<Self>, ConfigError> {
        let Some(number) = std::env::var_os(VARIABLE) else { return Ok(None) };
        // SAFETY: the process has no other thread that could read the environment.
        unsafe { std::env::remove_var(VARIABLE) };
        let socket = PacketSocket::inherit(&number.to_string_lossy())
            .map_err(|reason| error(format!("{VARIABLE}: {reason}; unset it")))?;
        Ok(Some(Self(Arc::new(Channel::new(socket)))))
    }

    /// Introduces this process and receives the standing state.
    ///
    /// # Errors
    /// The other process has ended, or its record cannot be read.
    pub fn standing(&self) -> Result<(ProcessState, Takeover), ConfigError> {
        let (state, steps) = self.introduce()?;
        Ok((state, Takeover::new(steps)?))
    }

    fn introduce(&self) -> Result<(ProcessState, TakeoverSteps), ConfigError> {
        let until = deadline();
        let hello = Message::Hello { version: VERSION };
        let received = self.0.send(hello, until).and_then(|()| self.0.receive(until));
        let joined = match received.map_err(|reason| of_predecessor(&reason))? {
            Message::Standing(joined) => joined,
            other => return Err(of_predecessor(&other.unexpected("Standing"))),
        };
        let (state, standing) = ProcessState::split(joined).map_err(error)?;
        let (one, other) = (Arc::clone(&self.0), Arc::clone(&self.0));
        let steps = TakeoverSteps {
            unmatched: UnmatchedClients::Refuse,
            standing,
            live: Box::new(move || live(&one)),
            adopted: Box::new(move || adopted(&other)),
        };
        Ok((state, steps))
    }

    /// Tells the other process why this one ends.
    pub fn fail(&self, reason: &str) {
        // It notices the end, too.
        let _ = self.0.send(Message::Failed(reason.to_owned()), Instant::now() + LAST_LIMIT);
    }

    /// Tells the other process that this one serves, with its pid file written.
    pub fn serving(self) {
        // A process that has ended already does not wait for it.
        let _ = self.0.send(Message::Serving, Instant::now() + LAST_LIMIT);
    }
}

/// Says that this process is prepared, and waits until the other one is paused.
fn live(channel: &Channel) -> Result<Handover, ConfigError> {
    let until = deadline();
    let received = channel.send(Message::Prepared, until).and_then(|()| channel.receive(until));
    match received.map_err(|reason| of_predecessor(&reason))? {
        Message::Live(live) => Ok(live),
        other => Err(of_predecessor(&other.unexpected("Live"))),
    }
}

/// Says that everything is adopted, and waits until the other process has left the service to this one.
fn adopted(channel: &Channel) -> Result<(), ConfigError> {
    let until = deadline();
    let received = channel.send(Message::Adopted, until).and_then(|()| channel.receive(until));
    match received {
        Ok(Message::Go) => Ok(()),
        Err(PacketError::Closed) => {
            tracing::warn!("the old process has ended before it said so; this one serves");
            Ok(())
        }
        Ok(other) => Err(of_predecessor(&other.unexpected("Go"))),
        Err(reason) => Err(of_predecessor(&reason)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_server::TakeoverSteps;

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    fn pair() -> (Channel, Predecessor) {
        let (ours, theirs) = PacketSocket::pair().unwrap();
        (Channel::new(ours), Predecessor(Arc::new(Channel::new(theirs))))
    }

    fn handover(record: &[u8]) -> Handover {
        Handover { record: record.to_vec(), descriptors: Vec::new() }
    }

    /// Introduces the new process to a scripted old one.
    fn introduced() -> (Channel, Predecessor, TakeoverSteps) {
        let (old, new) = pair();
        let steps = std::thread::scope(|scope| {
            let told = scope.spawn(|| {
                let hello = old.receive(soon()).unwrap();
                assert!(matches!(hello, Message::Hello { version: VERSION }));
                let joined = ProcessState::default().join(handover(b"standing")).unwrap();
                old.send(Message::Standing(joined), soon()).unwrap();
            });
            let (_, steps) = new.introduce().unwrap();
            told.join().unwrap();
            steps
        });
        assert_eq!(steps.standing.record, b"standing");
        (old, new, steps)
    }

    #[test]
    fn steps_come_in_order_until_go() {
        let (old, _new, steps) = introduced();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| {
                let live = (steps.live)().unwrap();
                assert_eq!(live.record, b"live");
                (steps.adopted)()
            });
            assert!(matches!(old.receive(soon()), Ok(Message::Prepared)));
            old.send(Message::Live(handover(b"live")), soon()).unwrap();
            assert!(matches!(old.receive(soon()), Ok(Message::Adopted)));
            old.send(Message::Go, soon()).unwrap();
            assert!(taken.join().unwrap().is_ok());
        });
    }

    #[test]
    fn end_of_the_old_process_matters_only_before_adoption() {
        let (old, _new, steps) = introduced();
        drop(old);
        let error = (steps.live)().unwrap_err().to_string();
        assert!(error.contains("the process that was to be replaced: it has ended"), "{error}");
        assert!((steps.adopted)().is_ok());
    }

    #[test]
    fn refusal_of_either_side_is_passed_on() {
        let (old, new, steps) = introduced();
        old.send(Message::Failed("requests are in flight".into()), soon()).unwrap();
        let error = (steps.adopted)().unwrap_err().to_string();
        assert!(error.contains("requests are in flight"), "{error}");
        assert!(matches!(old.receive(soon()), Ok(Message::Adopted)));
        new.fail("cannot open disk.img");
        let Ok(Message::Failed(reason)) = old.receive(soon()) else { panic!("another message") };
        assert_eq!(reason, "cannot open disk.img");
    }
}
