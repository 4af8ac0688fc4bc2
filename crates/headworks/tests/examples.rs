//! The examples, each run once.

#[path = "../examples/counting.rs"]
mod counting;
#[path = "../examples/custom_device.rs"]
mod custom_device;
#[path = "../examples/custom_elevator.rs"]
mod custom_elevator;
#[path = "../examples/virtual_time.rs"]
mod virtual_time;

#[test]
fn counting_device_gets_fewer_commands_than_writes() {
    counting::main().unwrap();
}

#[test]
fn custom_device_completes_reads() {
    custom_device::main().unwrap();
}

#[test]
fn custom_elevator_completes_every_write() {
    custom_elevator::main().unwrap();
}

#[test]
fn virtual_time_is_deterministic() {
    virtual_time::main().unwrap();
    assert_eq!(virtual_time::run().unwrap(), virtual_time::run().unwrap());
}
