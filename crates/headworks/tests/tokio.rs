//! The async wrapper on a tokio runtime: `cargo test -p headworks --features tokio --test tokio`.

use headworks::{
    AsyncHandle, DeviceSetup, Io, NullDevice, Owner, OwnerOptions, VolumeOptions, WaitOutcome,
};
use headworks_testing::LateDevice;

#[test]
fn reap_awaits_completions_and_reports_owner_shutdown() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build().unwrap();
    let (owner, handles) =
        Owner::start(OwnerOptions { handles: 2, ..OwnerOptions::default() }).unwrap();
    let device = LateDevice::new(300_000);
    let device = owner.add_device(DeviceSetup::new(device, NullDevice::queue_options())).unwrap();
    let options = VolumeOptions { size: 1 << 20, block_size: 512, ..VolumeOptions::default() };
    let volume = owner.add_volume(device, options).unwrap();
    runtime.block_on(async {
        let tasks = handles.into_iter().map(|handle| async move {
            let mut handle = AsyncHandle::new(handle).unwrap();
            let mut completions = Vec::new();
            assert_eq!(handle.reap(1, &mut completions).await.unwrap(), WaitOutcome::Idle);
            for round in 0..100 {
                let slot = handle.get_mut().slot().unwrap();
                handle.get_mut().put(volume, slot, Io::read(round * 4096, 4096)).unwrap();
                let outcome = handle.reap(8, &mut completions).await.unwrap();
                assert_eq!(outcome, WaitOutcome::Ready);
                let completion = completions.pop().unwrap();
                assert_eq!(completion.status, Ok(()));
                handle.get_mut().release(completion.slot.unwrap());
            }
            handle
        });
        let mut handles = Vec::new();
        for task in tasks {
            handles.push(task.await);
        }
        owner.shutdown().unwrap();
        let slot = handles[0].get_mut().slot().unwrap();
        handles[0].get_mut().put(volume, slot, Io::flush()).unwrap();
        let outcome = handles[0].reap(1, &mut Vec::new()).await.unwrap();
        assert_eq!(outcome, WaitOutcome::OwnerEnded);
    });
}
