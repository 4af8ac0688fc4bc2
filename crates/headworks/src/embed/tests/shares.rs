//! What a handle may have: weights, tenants and limits.

use headworks_core::limits::{LimitKind, LimitTarget, Limits};
use headworks_core::{ExportConfig, ExportId, TenantId};

use super::*;

fn one_io_a_second() -> Limits {
    let mut limits = Limits::default();
    limits.rates[LimitKind::IopsTotal as usize].average = 1;
    limits
}

/// Fills a handle's slots with reads.
fn fill(handle: &mut Handle, volume: VolumeId) {
    while let Some(slot) = handle.slot() {
        handle.put(volume, slot, Io::read(0, 512)).unwrap();
    }
    handle.submit();
}

/// Takes what is there; returns the statuses.
fn take(handle: &mut Handle) -> Vec<Status> {
    let mut completions = Vec::new();
    handle.reap(usize::MAX, &mut completions);
    let taken = completions.into_iter().map(|it| {
        handle.release(it.slot.unwrap());
        it.status
    });
    taken.collect()
}

/// Waits for everything that is in flight.
fn take_all(handle: &mut Handle) -> Vec<Status> {
    let mut all = take(handle);
    while handle.wait() == WaitOutcome::Ready {
        all.extend(take(handle));
    }
    all
}

/// Gives all reads of both handles, and counts those of each until a third is done: both have some left then, however late this thread is.
fn compete(handles: &mut [Handle], volume: VolumeId) -> (usize, usize) {
    handles.iter_mut().for_each(|handle| fill(handle, volume));
    let (all, mut done) = (2 * handles[0].depth() as usize, [0; 2]);
    while done[0] + done[1] < all / 3 {
        for (handle, done) in handles.iter_mut().zip(&mut done) {
            *done += take(handle).len();
        }
        std::thread::yield_now();
    }
    handles.iter_mut().for_each(|handle| drop(take_all(handle)));
    (done[0], done[1])
}

#[test]
fn weights_divide_a_device() {
    for drive in DRIVES {
        let (owner, mut handles) =
            Owner::start(OwnerOptions { handles: 2, depth: 512, drive, ..options() }).unwrap();
        let slow = slow(1);
        let queue = QueueOptions { nr_requests: 2, queue_depth: 2, ..slow.queue };
        let volume = add(&owner, DeviceSetup { queue, ..slow });
        let share = |weight| ExportConfig { weight, ..ExportConfig::default() };
        owner.set_share(handles[1].export(), share(900)).unwrap();
        let (light, heavy) = compete(&mut handles, volume);
        assert!(heavy > 4 * light && light > 10, "{light} and {heavy}, by weights 100 and 900");
        // By tenants, whose weights do not depend on those of handles.
        let member = |weight, tenant| ExportConfig { tenant: TenantId(tenant), ..share(weight) };
        owner.set_share(handles[0].export(), member(1, 0)).unwrap();
        owner.set_share(handles[1].export(), member(10_000, 1)).unwrap();
        owner.set_tenant_weight(TenantId(0), 900).unwrap();
        let (heavy, light) = compete(&mut handles, volume);
        assert!(heavy > 4 * light && light > 10, "{heavy} and {light}, by tenants' weights");
    }
}

#[test]
fn limit_holds_one_handle_and_no_other() {
    for drive in DRIVES {
        let (owner, mut handles) =
            Owner::start(OwnerOptions { handles: 2, drive, ..options() }).unwrap();
        let volume = add(&owner, null());
        let limited = LimitTarget::Export(handles[0].export());
        owner.set_limits(limited, one_io_a_second()).unwrap();
        let began = WallClock::now();
        fill(&mut handles[0], volume);
        for _ in 0..1000 {
            assert_eq!(run(&mut handles[1], volume, Io::write(0, 512)), Ok(()));
        }
        // A flush is free, and passes what waits.
        let slot = one(&mut handles[0]).slot.unwrap();
        handles[0].put(volume, slot, Io::flush().user_data(1)).unwrap();
        let mut passed = 1;
        loop {
            let completion = one(&mut handles[0]);
            handles[0].release(completion.slot.unwrap());
            if completion.user_data == 1 {
                break;
            }
            passed += 1;
        }
        let (most, left) = (2 + began.elapsed().as_secs() as usize, handles[0].outstanding());
        assert!((1..=most).contains(&passed), "{passed} I/Os of at most {most}");
        assert_eq!(passed + left as usize, 16);
        assert!(passed < 16, "the flush passes");
        // What waits goes on when nothing limits it, without another I/O.
        owner.set_limits(limited, Limits::default()).unwrap();
        assert_eq!(take_all(&mut handles[0]), vec![Ok(()); 16 - passed]);
    }
}

#[test]
fn what_waits_for_a_limit_ends_with_its_volume_and_its_owner() {
    let (owner, mut handles, volume) = over(null(), 1);
    let other = add(&owner, null());
    let handle = &mut handles[0];
    owner.set_limits(LimitTarget::Server, one_io_a_second()).unwrap();
    assert_eq!(run(handle, other, Io::read(0, 512)), Ok(()));
    for target in [other; 8].into_iter().chain([volume]) {
        let slot = handle.slot().unwrap();
        handle.put(target, slot, Io::read(0, 512)).unwrap();
    }
    handle.submit();
    owner.remove_volume(volume, SOON).unwrap();
    let mut statuses = take(handle);
    while !statuses.contains(&Err(IoError::Invalid)) {
        assert_eq!(handle.wait(), WaitOutcome::Ready);
        statuses.extend(take(handle));
    }
    assert!(statuses.len() < 6, "it waits for no limit: {statuses:?}");
    // Nor does the end of the owner.
    let ending = std::thread::spawn(|| owner.shutdown().unwrap());
    statuses.extend(take_all(handle));
    assert_eq!(statuses.iter().filter(|status| status.is_ok()).count(), 8);
    assert_eq!(statuses.len(), 9);
    ending.join().unwrap();
}

#[test]
fn dropped_handle_that_waits_for_a_limit_wakes_nothing() {
    let (owner, mut handles, volume) = over(null(), 2);
    let late = add(&owner, slow(200));
    let limited = LimitTarget::Export(handles[0].export());
    owner.set_limits(limited, one_io_a_second()).unwrap();
    fill(&mut handles[0], volume);
    handles.remove(0);
    assert_eq!(run(&mut handles[0], late, Io::read(0, 512)), Ok(()));
    let sleeps = owner.shutdown().unwrap().counts.sleeps;
    assert!(sleeps < 50, "{sleeps} sleeps of the owner in a fifth of a second");
}

#[test]
fn shares_and_limits_are_checked() {
    let (owner, handles, _) = over(null(), 1);
    let share = ExportConfig { weight: 0, ..ExportConfig::default() };
    let said = |result: Result<(), ConfigError>| result.unwrap_err().to_string();
    assert_eq!(
        said(owner.set_share(handles[0].export(), share)),
        "weight: 0 is not within 1..=10000"
    );
    let usual = ExportConfig::default();
    assert_eq!(said(owner.set_share(ExportId(1), usual)), "handle: 1 is not one of 1");
    assert_eq!(said(owner.set_tenant_weight(TenantId(1024), 1)), "tenant: 1024 is not one of 1024");
    let mut limits = one_io_a_second();
    limits.rates[LimitKind::BpsRead as usize].average = 1;
    assert!(said(owner.set_limits(LimitTarget::Server, limits)).starts_with("bps-read"));
}
