//! The CPUs that shards are bound to. Invariant: a server that starts can run on each of them.

use headworks_core::ConfigError;

/// Checks that this process may run on each of the CPUs.
///
/// # Errors
/// The first on which it may not, with those on which it may.
pub fn check_cpus(cpus: &[usize]) -> Result<(), ConfigError> {
    let usable = usable_cpus();
    match cpus.iter().find(|&&cpu| !usable.is_empty() && !usable.contains(&cpu)) {
        None => Ok(()),
        Some(cpu) => {
            let message = format!("{cpu} is none on which this process may run: {}", list(&usable));
            Err(ConfigError::new("cpus", message))
        }
    }
}

/// The CPUs on which this thread may run, in order; empty if the kernel does not say.
fn usable_cpus() -> Vec<usize> {
    // SAFETY: an all-zero set is an empty one, which the call fills.
    let (failed, set) = unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        (libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set) != 0, set)
    };
    let most = if failed { 0 } else { libc::CPU_SETSIZE as usize };
    // SAFETY: a CPU of the set.
    (0..most).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Numbers in order as words: `0-3, 8`.
fn list(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|one, next| one + 1 == *next).map(|run| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    });
    runs.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_cpus_of_this_process_are_taken() {
        let usable = usable_cpus();
        check_cpus(&usable).unwrap();
        check_cpus(&[]).unwrap();
        let said = check_cpus(&[usable[0], 1023]).unwrap_err().to_string();
        let right = format!("cpus: 1023 is none on which this process may run: {}", list(&usable));
        assert_eq!(said, right);
        // What is no place of a set is no CPU either.
        assert!(check_cpus(&[usize::MAX]).is_err());
    }

    #[test]
    fn runs_are_shortened() {
        assert_eq!(list(&[0, 1, 2, 5, 7, 8]), "0-2, 5, 7-8");
    }
}
