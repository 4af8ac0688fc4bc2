//! Metrics of the process, with the names that Prometheus' client libraries use.
//!
//! A figure that the kernel does not tell is left out.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::text::{MetricType, MetricsPage};

/// Adds CPU time, memory, descriptors and start time of this process, which started `uptime` ago.
pub fn put_process(page: &mut MetricsPage, uptime: Duration) {
    let mut put = |kind, name: &str, help: &str, value: Option<f64>| {
        if let Some(value) = value {
            page.family(name, kind, help);
            page.sample(name, &[], value);
        }
    };
    let (gauge, counter) = (MetricType::Gauge, MetricType::Counter);
    let help = "CPU time of the process, of users and of the system.";
    put(counter, "process_cpu_seconds_total", help, cpu_seconds());
    let memory = memory_bytes();
    let help = "Memory of the process that is in use.";
    put(gauge, "process_resident_memory_bytes", help, memory.map(|(_, resident)| resident));
    let help = "Address space of the process.";
    put(gauge, "process_virtual_memory_bytes", help, memory.map(|(virtual_, _)| virtual_));
    put(gauge, "process_open_fds", "Open file descriptors.", open_descriptors());
    put(gauge, "process_max_fds", "Limit of open file descriptors.", descriptor_limit());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    let start = now.and_then(|now| now.checked_sub(uptime)).map(|start| start.as_secs_f64());
    put(gauge, "process_start_time_seconds", "Start of the process since the epoch.", start);
}

fn cpu_seconds() -> Option<f64> {
    // SAFETY: all bytes zero are a valid value.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: `usage` is ours.
    let done = unsafe { libc::getrusage(libc::RUSAGE_SELF, &raw mut usage) } == 0;
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    done.then(|| seconds(usage.ru_utime) + seconds(usage.ru_stime))
}

/// Address space and resident memory in bytes.
fn memory_bytes() -> Option<(f64, f64)> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = text.split_whitespace().map_while(|word| word.parse::<f64>().ok());
    // SAFETY: no pointers.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as f64;
    Some((pages.next()? * page, pages.next()? * page))
}

fn open_descriptors() -> Option<f64> {
    // The listing has a descriptor of its own.
    let count = std::fs::read_dir("/proc/self/fd").ok()?.count();
    Some(count.saturating_sub(1) as f64)
}

fn descriptor_limit() -> Option<f64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is ours.
    let done = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } == 0;
    done.then_some(limit.rlim_cur as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_this_process_are_plausible() {
        let mut page = MetricsPage::default();
        put_process(&mut page, Duration::from_secs(5));
        let text = page.into_text();
        let value = |name: &str| -> f64 {
            let line = text.lines().find(|line| line.starts_with(name)).unwrap();
            line.rsplit(' ').next().unwrap().parse().unwrap()
        };
        assert!(value("process_resident_memory_bytes") > 1e5);
        assert!(value("process_virtual_memory_bytes") > value("process_resident_memory_bytes"));
        assert!(value("process_cpu_seconds_total") >= 0.0);
        assert!(value("process_open_fds") >= 3.0);
        assert!(value("process_max_fds") >= value("process_open_fds"));
        assert!(value("process_start_time_seconds") > 1.7e9);
    }
}
