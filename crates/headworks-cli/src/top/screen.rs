//! Terminal of `top`: rows, keys and help. The terminal is restored at the end, also after a signal.
//!
//! A separate thread queries the server, so that a server that does not answer blocks neither keys nor signals.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::time::{Duration, Instant};

use headworks::house::display_size;
use headworks_control::answers::{CacheStats, Connection};
use ratatui::Frame;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use ratatui::layout::{Constraint, Layout};
use ratatui::style::{Modifier, Style};
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row as Cells, Table};

use super::overview::{OVERVIEW, Overview, overviews, server_line, table, worst_line};
use crate::ctl::or_dash;

use super::rates::{COLUMNS, Row, Sample, cell, rows};

/// Keys that select a sort column.
const LETTERS: [(char, &str); 6] =
    [('r', "r/s"), ('w', "w/s"), ('u', "%util"), ('d', "dev99"), ('t', "tag99"), ('a', "aqu-sz")];

/// Poll interval for signals.
const STEP: Duration = Duration::from_millis(200);
/// Poll interval for answers.
const ANSWER_STEP: Duration = Duration::from_millis(20);
/// Time without an answer after which the server is shown as silent.
const SILENCE: Duration = Duration::from_secs(2);

/// A signal asked the program to end.
static STOP_REQUESTED: AtomicBool = AtomicBool::new(false);

extern "C" fn end(_: libc::c_int) {
    STOP_REQUESTED.store(true, Ordering::Relaxed);
}

/// State of the view: sorting, scrolling and help.
#[derive(Debug, Default)]
struct View {
    sort: usize,
    /// First visible column.
    first: usize,
    connections: bool,
    help: bool,
    /// All columns in place of the overview.
    wide: bool,
    /// The server has not answered for a while.
    silent: bool,
    /// The state of the server, and its worst export.
    server: String,
    worst: String,
}

/// Action of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyAction {
    Nothing,
    Quit,
}

impl View {
    fn on_key(&mut self, key: KeyCode, control: bool) -> KeyAction {
        let last = COLUMNS.len() - 1;
        match key {
            KeyCode::Char('c') if control => return KeyAction::Quit,
            KeyCode::Char('q') | KeyCode::Esc => return KeyAction::Quit,
            KeyCode::Char('c') => self.connections = !self.connections,
            KeyCode::Char('x') => self.wide = !self.wide,
            KeyCode::Char('?' | 'h') => self.help = !self.help,
            KeyCode::Right => self.sort = (self.sort + 1).min(last),
            KeyCode::Left => self.sort = self.sort.saturating_sub(1),
            KeyCode::Home => self.sort = 0,
            KeyCode::End => self.sort = last,
            KeyCode::Char(letter) => {
                let column = LETTERS.iter().find(|(known, _)| *known == letter);
                let index = column.and_then(|(_, name)| COLUMNS.iter().position(|c| c.0 == *name));
                self.sort = index.unwrap_or(self.sort);
            }
            _ => {}
        }
        KeyAction::Nothing
    }
}

/// Thread that queries the server; it ends with the process.
struct Asker {
    asks: Sender<()>,
    answers: Receiver<Result<Sample, String>>,
    /// Start of the query that has no answer yet.
    since: Option<Instant>,
}

impl Asker {
    fn new(
        mut sample: impl FnMut() -> Result<Sample, String> + Send + 'static,
    ) -> Result<Self, String> {
        let (asks, asked) = channel();
        let (tell, answers) = channel();
        let thread = std::thread::Builder::new().name("asker".into());
        thread
            .spawn(move || while asked.recv().is_ok() && tell.send(sample()).is_ok() {})
            .map_err(|error| format!("cannot start a thread: {error}"))?;
        Ok(Self { asks, answers, since: None })
    }

    /// Sends a query unless one is outstanding.
    fn ask(&mut self) {
        if self.since.is_none() {
            self.since = Some(Instant::now());
            // `answer` reports a thread that has ended.
            let _ = self.asks.send(());
        }
    }

    /// Takes the answer if it has arrived.
    fn answer(&mut self) -> Option<Result<Sample, String>> {
        self.since?;
        let answer = match self.answers.try_recv() {
            Ok(answer) => answer,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                Err("the query thread has ended; start top again".to_owned())
            }
        };
        self.since = None;
        Some(answer)
    }

    fn is_silent(&self) -> bool {
        self.since.is_some_and(|since| since.elapsed() > SILENCE)
    }
}

/// Shows samples every `interval` until a key ends it or the server is gone.
///
/// # Errors
/// A sentence for the user.
pub fn run(
    mut sample: impl FnMut() -> Result<Sample, String> + Send + 'static,
    interval: Duration,
) -> Result<(), String> {
    let mut old = sample()?;
    let mut asker = Asker::new(sample)?;
    let mut terminal =
        ratatui::try_init().map_err(|error| format!("cannot use this terminal: {error}"))?;
    for signal in [libc::SIGTERM, libc::SIGHUP, libc::SIGINT] {
        // SAFETY: the handler only stores into an atomic.
        unsafe { libc::signal(signal, end as *const () as libc::sighandler_t) };
    }
    let mut view = View::default();
    let broken = |error: std::io::Error| format!("the terminal is broken: {error}");
    let mut watch = || -> Result<(), String> {
        let mut shown = Tables::of(&Sample::default(), &old);
        let mut connections = old.stats.connections.clone();
        let mut due = Instant::now() + interval.min(Duration::from_secs(1));
        loop {
            view.silent = asker.is_silent();
            let width = usize::from(terminal.size().map_err(broken)?.width);
            view.server = server_line(&old, &cache_size(old.stats.cache.as_ref()), width);
            view.worst = worst_line(&old);
            terminal.draw(|frame| draw(frame, &mut view, &shown, &connections)).map_err(broken)?;
            if STOP_REQUESTED.load(Ordering::Relaxed) {
                return Ok(());
            }
            let left = match asker.since {
                Some(_) if view.silent => STEP,
                Some(_) => ANSWER_STEP,
                None => due.saturating_duration_since(Instant::now()),
            };
            if event::poll(left.min(STEP)).map_err(broken)? {
                if let Event::Key(key) = event::read().map_err(broken)?
                    && key.kind == KeyEventKind::Press
                {
                    let control = key.modifiers.contains(KeyModifiers::CONTROL);
                    if view.on_key(key.code, control) == KeyAction::Quit {
                        return Ok(());
                    }
                }
                continue;
            }
            if left > STEP {
                continue;
            }
            let Some(new) = asker.answer() else {
                asker.ask();
                continue;
            };
            let new = new?;
            shown = Tables::of(&old, &new);
            connections = new.stats.connections.clone();
            old = new;
            due = Instant::now() + interval;
        }
    };
    let result = watch();
    ratatui::restore();
    result
}

/// What the cache has and may have now, and what it may have at most if that differs: `; cache 2.1 MiB of 11.7 GiB`, `, up to 24 GiB`.
fn cache_size(cache: Option<&CacheStats>) -> Vec<String> {
    let bytes = |units: u64| display_size(units * 4096);
    let Some(CacheStats { resident, units, room, .. }) = cache else { return Vec::new() };
    let now = format!("; cache {} of {}", bytes(*resident), bytes(*units));
    let most = (units != room).then(|| format!(", up to {}", bytes(*room)));
    std::iter::once(now).chain(most).collect()
}

/// The rows between two samples, as overview and with all columns.
struct Tables {
    overviews: Vec<Overview>,
    rows: Vec<Row>,
}

impl Tables {
    fn of(old: &Sample, new: &Sample) -> Self {
        Self { overviews: overviews(old, new), rows: rows(old, new) }
    }
}

fn draw(frame: &mut Frame<'_>, view: &mut View, shown: &Tables, connections: &[Connection]) {
    let [head, body, foot] =
        Layout::vertical([Constraint::Length(2), Constraint::Min(2), Constraint::Length(1)])
            .areas(frame.area());
    let sorted = COLUMNS[view.sort];
    let second = match (view.silent, view.wide) {
        (true, _) => "the server does not answer".to_owned(),
        (_, true) => format!("by {} ({})", sorted.0, sorted.1),
        (_, false) => view.worst.clone(),
    };
    let title = vec![Line::from(view.server.clone()), Line::from(second)];
    frame.render_widget(Paragraph::new(title), head);
    let keys = match view.wide {
        true => "q quit  x overview  arrows, r w u d t a: sort  c clients  ? help",
        false => "q quit  x all columns  c clients  ? help",
    };
    frame.render_widget(Paragraph::new(keys), foot);
    if view.help && !view.wide {
        let lines = OVERVIEW.map(|(name, what)| Line::from(format!("{name:>9}  {what}")));
        return frame.render_widget(Paragraph::new(lines.to_vec()), body);
    }
    if view.help {
        let lines = COLUMNS.map(|(name, what)| Line::from(format!("{name:>9}  {what}")));
        // Two columns of help: a small terminal has 24 lines.
        let [left, right] = Layout::horizontal([Constraint::Fill(1); 2]).areas(body);
        let (first, second) = lines.split_at(COLUMNS.len() / 2);
        frame.render_widget(Paragraph::new(first.to_vec()), left);
        return frame.render_widget(Paragraph::new(second.to_vec()), right);
    }
    if view.connections {
        return frame.render_widget(Paragraph::new(clients(connections)), body);
    }
    if !view.wide {
        return frame.render_widget(Paragraph::new(table(&shown.overviews)), body);
    }
    let rows = &shown.rows;
    // Scrolls so that the sort column is visible. Tenants have a column where a few of the others remain.
    let wide = usize::from(body.width) >= 60 && rows.iter().any(|row| row.tenant.is_some());
    let names_width = if wide { 13 + 11 } else { 13 };
    let room = (usize::from(body.width).saturating_sub(names_width) / 9).max(1);
    view.first = view.first.min(view.sort).max((view.sort + 1).saturating_sub(room));
    let columns = view.first..(view.first + room).min(COLUMNS.len());
    let mut order: Vec<&Row> = rows.iter().collect();
    order.sort_by(|a, b| b.values[view.sort].total_cmp(&a.values[view.sort]));
    let names = columns.clone().map(|column| {
        let style = match column == view.sort {
            true => Style::new().add_modifier(Modifier::REVERSED),
            false => Style::new().add_modifier(Modifier::BOLD),
        };
        Cell::from(format!("{:>8}", COLUMNS[column].0)).style(style)
    });
    let head = ["export", "tenant"].into_iter().take(if wide { 2 } else { 1 }).map(Cell::from);
    let header = Cells::new(head.chain(names));
    let lines = order.into_iter().map(|row| {
        let cells = columns.clone().map(|column| format!("{:>8}", cell(row.values[column])));
        let tenant = row.tenant.clone().unwrap_or_else(|| "-".to_owned());
        let names = [row.name.clone(), tenant].into_iter().take(if wide { 2 } else { 1 });
        Cells::new(names.chain(cells))
    });
    let widths = [12, 10]
        .into_iter()
        .take(if wide { 2 } else { 1 })
        .map(Constraint::Length)
        .chain(columns.clone().map(|_| Constraint::Length(8)));
    frame.render_widget(Table::new(lines, widths).header(header), body);
}

fn clients(connections: &[Connection]) -> Vec<Line<'static>> {
    let line = |one: &Connection| {
        let p99 = |op: &str| {
            let total = one.latency.as_ref().and_then(|ops| ops.get(op)?.get("total"));
            total.map_or("-".into(), |times| crate::observe::micros(times.p99_us))
        };
        Line::from(format!(
            "{:>10}  {:<24} {:<12} {:>4} in flight, p99 read {}, write {}, flush {}",
            one.id,
            crate::ctl::who(one),
            or_dash(one.export.as_ref()),
            one.in_flight,
            p99("read"),
            p99("write"),
            p99("flush")
        ))
    };
    std::iter::once(Line::from("connections, since each was opened"))
        .chain(connections.iter().map(line))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;

    fn screen(view: &mut View, width: u16) -> String {
        let row = |name: &str, value: f64| Row {
            name: name.into(),
            tenant: (name == "busy" && width > 80).then(|| "acme".to_owned()),
            values: (0..COLUMNS.len()).map(|column| value + column as f64).collect(),
        };
        let rows = [row("slow", 1.0), row("busy", 900.0)];
        let mut terminal = Terminal::new(TestBackend::new(width, 20)).unwrap();
        let tables = Tables { overviews: Vec::new(), rows: rows.into() };
        terminal.draw(|frame| draw(frame, view, &tables, &[])).unwrap();
        let buffer = terminal.backend().buffer().clone();
        let line = |y| (0..width).map(|x| buffer[(x, y)].symbol()).collect::<String>() + "\n";
        (0..20).map(line).collect()
    }

    #[test]
    fn title_has_the_size_of_the_cache() {
        let size = |room: u64| {
            let cache = CacheStats { resident: 512, units: 1024, room, ..CacheStats::default() };
            cache_size(Some(&cache))
        };
        assert_eq!(size(1024), ["; cache 2 MiB of 4 MiB"]);
        assert_eq!(size(2048), ["; cache 2 MiB of 4 MiB", ", up to 8 MiB"]);
        assert!(cache_size(None).is_empty());
        let server = server_line(&Sample::default(), &size(2048), 120);
        let mut view = View { server, ..View::default() };
        assert!(screen(&mut view, 120).contains("; cache 2 MiB of 4 MiB, up to 8 MiB"));
    }

    #[test]
    fn overview_is_shown_first_with_the_worst_export() {
        let mut view = View { worst: "slowest: db".into(), ..View::default() };
        let text = screen(&mut view, 80);
        assert!(text.contains("slowest: db") && text.contains("p99"), "{text}");
        view.on_key(KeyCode::Char('?'), false);
        assert!(screen(&mut view, 80).contains("stage in which requests spent most time"));
        (view.help, view.silent) = (false, true);
        assert!(screen(&mut view, 80).contains("the server does not answer"));
        view.on_key(KeyCode::Char('x'), false);
        assert!(view.wide);
    }

    #[test]
    fn busiest_row_is_first_and_sort_column_visible() {
        let mut view = View { wide: true, ..View::default() };
        let text = screen(&mut view, 80);
        assert!(text.find("busy") < text.find("slow"), "{text}");
        assert!(text.contains("r/s") && !text.contains("queue"), "{text}");
        assert_eq!(view.on_key(KeyCode::End, false), KeyAction::Nothing);
        let text = screen(&mut view, 80);
        assert!(text.contains("hit%") && text.contains(" queue"), "{text}");
        assert!(!text.contains("tenant"), "no export has one: {text}");
        let text = screen(&mut view, 100);
        assert!(
            text.contains("tenant") && text.contains("acme") && text.contains(" queue"),
            "{text}"
        );
        // Also on a narrow terminal.
        assert!(screen(&mut view, 20).contains("oldest"));
    }

    #[test]
    fn keys_sort_toggle_and_quit() {
        let mut view = View { wide: true, ..View::default() };
        for (letter, name) in LETTERS {
            view.on_key(KeyCode::Char(letter), false);
            assert_eq!(COLUMNS[view.sort].0, name);
        }
        view.on_key(KeyCode::Home, false);
        view.on_key(KeyCode::Left, false);
        assert_eq!(view.sort, 0);
        view.on_key(KeyCode::Char('?'), false);
        assert!(screen(&mut view, 80).contains("average read latency, ms"));
        view.on_key(KeyCode::Char('?'), false);
        view.on_key(KeyCode::Char('c'), false);
        assert!(screen(&mut view, 80).contains("connections, since each was opened"));
        assert_eq!(view.on_key(KeyCode::Char('q'), false), KeyAction::Quit);
        assert_eq!(view.on_key(KeyCode::Char('c'), true), KeyAction::Quit);
    }
}
