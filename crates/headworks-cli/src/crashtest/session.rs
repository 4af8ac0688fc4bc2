//! The directory of a crash test and its runs: servers with a program each, in a process group that ends together.

use std::fs::File;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use super::arguments::{CrashtestArgs, Cut};
use super::child::{kill_group, wait};
use super::image;

/// Lines of a failed check that are shown.
const SHOWN_LINES: usize = 20;
/// Longest path of a unix socket, with its closing zero.
const SOCKET_PATH: usize = 108;

/// What a cut found.
pub enum Outcome {
    Holds,
    /// The load ended before the cut.
    Finished,
    /// The check failed, and how.
    Broken(String),
}

/// A directory with the template, the image of the present cut, and logs.
pub struct Session<'a> {
    options: &'a CrashtestArgs,
    directory: PathBuf,
    /// Whether the directory goes at the end; not once an image is broken.
    temporary: std::cell::Cell<bool>,
}

impl<'a> Session<'a> {
    /// Makes the directory and the template.
    pub fn new(options: &'a CrashtestArgs) -> Result<Self, String> {
        let temporary =
            || std::env::temp_dir().join(format!("headworks-crashtest.{}", std::process::id()));
        let directory = options.work.clone().unwrap_or_else(temporary);
        std::fs::create_dir_all(&directory)
            .map_err(|error| format!("{} cannot be made: {error}", directory.display()))?;
        let directory = directory.canonicalize().map_err(|error| error.to_string())?;
        let temporary = std::cell::Cell::new(options.work.is_none());
        let session = Self { options, directory, temporary };
        session.make_template()?;
        Ok(session)
    }

    /// The image of the present cut.
    pub fn image(&self) -> PathBuf {
        self.path("disk.img")
    }

    /// The last lines that the check printed.
    pub fn end_of_check(&self) -> Vec<String> {
        let bytes = std::fs::read(self.path("check.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&bytes);
        let lines: Vec<&str> = text.lines().collect();
        lines[lines.len().saturating_sub(SHOWN_LINES)..]
            .iter()
            .map(|line| (*line).to_owned())
            .collect()
    }

    /// Runs the load without a cut and returns how many writes and flushes reached the disk.
    pub fn count(&self) -> Result<u64, String> {
        self.begin()?;
        // A disk that lies has a cache that only a cut empties: the check needs an honest one.
        let status = self.load("")?;
        if !status.success() {
            return Err(format!(
                "the program fails without a power cut: {status}; see {}",
                self.shown("load.log")
            ));
        }
        let report = self.report();
        let commands = report["commands"].as_u64().unwrap_or(0);
        if report["writes"].as_u64().unwrap_or(0) == 0 {
            return Err("the program wrote nothing: it gets the disk as $uri".into());
        }
        match self.check()? {
            None => Ok(commands),
            Some(said) => Err(format!(
                "the check fails without a power cut: {said}; see {}",
                self.shown("check.log")
            )),
        }
    }

    /// Runs the load up to a cut, and the check on what is left.
    pub fn cut(&self, cut: Cut) -> Result<Outcome, String> {
        self.begin()?;
        let Cut { place, seed } = cut;
        let lie = if self.options.lie { "flush=lie," } else { "" };
        let status = self.load(&format!("at={place},seed={seed},{lie}"))?;
        if self.report()["cut"].is_null() {
            return match status.success() {
                true => Ok(Outcome::Finished),
                false => Err(format!(
                    "the program fails before its power is cut: {status}; see {}",
                    self.shown("load.log")
                )),
            };
        }
        Ok(self.check()?.map_or(Outcome::Holds, |said| {
            self.temporary.set(false);
            Outcome::Broken(said)
        }))
    }

    fn make_template(&self) -> Result<(), String> {
        let template = self.path("template.img");
        let made = match &self.options.image {
            Some(image) => image::copy(image, &template),
            None => File::create(&template).and_then(|file| file.set_len(self.options.disk_size())),
        };
        made.map_err(|error| format!("{} cannot be made: {error}", template.display()))?;
        let Some(setup) = &self.options.setup else { return Ok(()) };
        let spec = format!("file:path={}", self.specified("template.img"));
        match self.serve(&spec, setup, "setup.log")? {
            status if status.success() => Ok(()),
            status => Err(format!("the setup fails: {status}; see {}", self.shown("setup.log"))),
        }
    }

    /// A fresh image and an empty $state.
    fn begin(&self) -> Result<(), String> {
        let state = self.path("state");
        let made = || -> io::Result<()> {
            if state.exists() {
                std::fs::remove_dir_all(&state)?;
            }
            std::fs::create_dir(&state)?;
            let _ = std::fs::remove_file(self.path("report.json"));
            image::copy(&self.path("template.img"), &self.image())
        };
        made().map_err(|error| format!("{} cannot be used: {error}", self.directory.display()))
    }

    fn load(&self, keys: &str) -> Result<ExitStatus, String> {
        let spec = format!(
            "powercut:{keys}report={},of=file:path={}",
            self.specified("report.json"),
            self.specified("disk.img")
        );
        self.serve(&spec, self.options.program(), "load.log")
    }

    /// Runs the check. Returns how it failed.
    fn check(&self) -> Result<Option<String>, String> {
        let spec = format!("file:path={}", self.specified("disk.img"));
        let status =
            self.serve(&spec, self.options.check.as_deref().unwrap_or_default(), "check.log")?;
        Ok((!status.success()).then(|| format!("the check ends with {status}")))
    }

    fn report(&self) -> serde_json::Value {
        let bytes = std::fs::read(self.path("report.json")).unwrap_or_default();
        serde_json::from_slice(&bytes).unwrap_or_default()
    }

    /// Serves a device while a program runs; both end together.
    fn serve(&self, spec: &str, program: &str, log: &str) -> Result<ExitStatus, String> {
        let start = || -> io::Result<Child> {
            let log = File::create(self.path(log))?;
            // A server that was killed leaves its socket.
            let socket = self.path("socket");
            let _ = std::fs::remove_file(&socket);
            let fits = socket.as_os_str().len() < SOCKET_PATH;
            Command::new(std::env::current_exe()?)
                .arg("serve")
                .arg("--unix")
                .arg(if fits { socket.as_os_str() } else { "-".as_ref() })
                .args(["--cache-file", "off", "--cache", &self.options.cache])
                .args([spec, "--run", program])
                .env("state", self.path("state"))
                .stdin(Stdio::null())
                .stdout(log.try_clone()?)
                .stderr(log)
                .process_group(0)
                .spawn()
        };
        let mut server =
            start().map_err(|error| format!("the server cannot be started: {error}"))?;
        let ended = wait(&mut server, Duration::from_nanos(self.options.timeout));
        // What is left of the program ends with its machine.
        kill_group(&server);
        ended.map_err(|error| error.to_string())?.ok_or_else(|| {
            let seconds = self.options.timeout as f64 / 1e9;
            format!("`{program}` did not end within {seconds} s: --timeout gives it longer")
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// A path as a value in a specification.
    fn specified(&self, name: &str) -> String {
        self.path(name).display().to_string().replace(',', ",,")
    }

    /// A log that stays for the user.
    fn shown(&self, name: &str) -> String {
        self.temporary.set(false);
        self.path(name).display().to_string()
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if self.temporary.get() {
            let _ = std::fs::remove_dir_all(Path::new(&self.directory));
        }
    }
}
