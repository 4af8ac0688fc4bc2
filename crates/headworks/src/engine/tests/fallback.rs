//! The choice of the engine, and its behaviour where the system forbids calls.

use headworks_core::extent::extents;

use super::*;

#[test]
fn engine_choice_is_parsed_and_depth_range_checked() {
    assert_eq!("uring".parse(), Ok(EngineChoice::Uring));
    assert_eq!("threads".parse(), Ok(EngineChoice::Threads));
    assert_eq!("auto".parse(), Ok(EngineChoice::Auto));
    assert_eq!("aio".parse::<EngineChoice>().unwrap_err().option, "engine");
    for depth in [0, DISK_DEPTH_MAX + 1] {
        assert_eq!(open_engine(EngineChoice::Auto, depth).err().unwrap().option, "disk_depth");
    }
    let (engine, why) = open_engine(EngineChoice::Threads, 1).unwrap();
    assert_eq!(engine.name(), "threads");
    assert_eq!(why, "threads (epoll and a thread pool; as asked)");
}

/// Runs `body` on a thread for which `call` fails with `errno`, as in a container.
fn forbidding(call: libc::c_long, errno: i32, body: impl FnOnce() + Send) {
    let statement =
        |code: u32, jump_true, k| libc::sock_filter { code: code as u16, jt: jump_true, jf: 0, k };
    let mut filter = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0), // the call's number
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, 1, call as u32),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ALLOW),
        statement(libc::BPF_RET | libc::BPF_K, 0, libc::SECCOMP_RET_ERRNO | errno as u32),
    ];
    thread::scope(|scope| {
        scope.spawn(|| {
            let program =
                libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
            // SAFETY: the program lives during the call; it concerns this thread only.
            unsafe {
                assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
                let mode = libc::SECCOMP_MODE_FILTER;
                assert_eq!(libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program), 0);
            }
            body();
        });
    });
}

#[test]
fn auto_falls_back_to_threads_with_reason_without_io_uring() {
    let cases = [
        (libc::SYS_io_uring_setup, libc::EPERM, "io_uring is forbidden here"),
        (libc::SYS_io_uring_setup, libc::ENOSYS, "this kernel has no io_uring"),
        (libc::SYS_io_uring_setup, libc::EINVAL, "io_uring needs Linux 6.1"),
        (libc::SYS_io_uring_setup, libc::ENOMEM, "there is not enough memory"),
        (libc::SYS_io_uring_setup, libc::EMFILE, "io_uring does not work here"),
        (libc::SYS_io_uring_enter, libc::EPERM, "io_uring is forbidden here"),
    ];
    for (call, errno, reason) in cases {
        if call == libc::SYS_io_uring_enter && open_engine(EngineChoice::Uring, 1).is_err() {
            continue; // io_uring is forbidden on this machine.
        }
        forbidding(call, errno, || {
            let (mut engine, why) = open_engine(EngineChoice::Auto, 4).unwrap();
            assert_eq!(engine.name(), "threads");
            assert!(why.contains(reason), "{why}");
            let file = file("/dev/shm", false);
            let sync = op(1, file.as_raw_fd(), DiskKind::Sync, 0, 0);
            assert_eq!(run(&mut *engine, sync, &[]), 0);

            let error = open_engine(EngineChoice::Uring, 4).err().unwrap();
            assert_eq!(error.option, "engine");
            assert!(error.message.starts_with(reason), "{error}");
        });
    }
}

#[test]
fn wait_rounds_up_to_milliseconds_without_epoll_pwait2() {
    for errno in [libc::ENOSYS, libc::EPERM] {
        forbidding(libc::SYS_epoll_pwait2, errno, || {
            let (mut engine, _) = open_engine(EngineChoice::Threads, 1).unwrap();
            for _ in 0..3 {
                let start = Instant::now();
                engine.turn(Wait::For(1_200_000), &mut Vec::new()).unwrap();
                assert!(start.elapsed() >= Duration::from_nanos(1_200_000));
            }
        });
    }
}

#[test]
fn operation_returns_eagain_when_no_thread_can_start() {
    let file = file("/dev/shm", false);
    forbidding(libc::SYS_clone3, libc::EAGAIN, || {
        let (mut engine, _) = open_engine(EngineChoice::Threads, 4).unwrap();
        let sync = op(1, file.as_raw_fd(), DiskKind::Sync, 0, 0);
        assert_eq!(run(&mut *engine, sync, &[]), -libc::EAGAIN);
    });
}

/// EAGAIN would be retried without end and, under `uring`, would stall all other operations.
#[test]
fn extent_query_reports_data_when_no_thread_can_start() {
    let file = file("/dev/shm", false);
    file.set_len(1 << 30).unwrap();
    for choice in [EngineChoice::Threads, EngineChoice::Auto] {
        forbidding(libc::SYS_clone3, libc::EAGAIN, || {
            let (mut engine, _) = open_engine(choice, 4).unwrap();
            let mut list = [0xee; 1024];
            // SAFETY: `list` outlives the operation.
            let place = unsafe { Span::new(list.as_mut_ptr(), list.len()) };
            let kind = DiskKind::Extents { one: false };
            let ask = op(1, file.as_raw_fd(), kind, 0, 1 << 30);
            assert_eq!(run(&mut *engine, ask, &[place]), 1);
            let told: Vec<_> = extents(&list, 1 << 30).map(|e| (e.len, e.state.0)).collect();
            assert_eq!(told, [(1 << 30, 0)]);
        });
    }
}
