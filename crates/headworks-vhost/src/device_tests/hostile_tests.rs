//! Drivers that break the rules: of the rings, of chains and of tables, and nonsense.

use super::*;

/// A word of a ring, for drivers that break the rules.
fn poke(machine: &Machine, place: usize, value: u16) {
    // SAFETY: the place is an even one within the memory of the machine.
    unsafe { machine.memory.at(place).cast::<u16>().write_volatile(value) };
}

#[test]
fn broken_rules_break_the_ring_and_signal_it() {
    type Break = fn(&mut Machine);
    let rules: [(&str, Break); 9] = [
        ("index is further ahead", |machine| {
            poke(machine, machine.memory.places(0).available + 2, 5000)
        }),
        ("head is beyond", |machine| poke(machine, machine.memory.places(0).available + 4, 4096)),
        ("in flight already", |machine| {
            let places = machine.memory.places(0);
            poke(machine, places.available + 6, 0);
            poke(machine, places.available + 2, 2);
        }),
        ("next is beyond", |machine| poke(machine, machine.memory.places(0).descriptors + 14, 999)),
        ("longer than its table", |machine| {
            poke(machine, machine.memory.places(0).descriptors + 16 + 14, 0)
        }),
        ("without a status", |machine| {
            poke(machine, machine.memory.places(0).descriptors + 16 + 12, 0)
        }),
        ("readable descriptor behind", |machine| {
            poke(machine, machine.memory.places(0).descriptors + 12, 1 | 2);
        }),
        ("outside of the memory", |machine| {
            poke(machine, machine.memory.places(0).descriptors + 6, 99)
        }),
        ("indirect descriptor", |machine| {
            poke(machine, machine.memory.places(0).descriptors + 12, 5)
        }),
    ];
    for (name, break_rule) in rules {
        let (mut machine, mut process, mut disk) = started(small(4));
        let signal = event_fd();
        process.set(
            message::SET_VRING_ERR,
            0_u64.to_le_bytes().to_vec(),
            vec![copy_of(signal.as_raw_fd())],
        );
        machine.queues[0].put(0, RequestOp::Write, 0, 512, 0);
        machine.queues[0].submit();
        break_rule(&mut machine);
        process.turn(&mut disk);
        let broken = process.broken().unwrap_or_else(|| panic!("{name} passes"));
        assert_eq!(broken.queue, Some(0), "{name}");
        assert!(broken.why.contains(name), "{name}: {}", broken.why);
        assert_eq!(count_of(signal.as_raw_fd()), 1, "{name}: it is signalled");
        assert_eq!(process.take(), 0, "{name}: it takes nothing any more");
        // What was in flight is counted out, and nothing is written.
        process.turn(&mut disk);
        assert_eq!(process.device.in_flight(), 0);
        assert!(answers(&mut machine.queues[0]).is_empty(), "{name}");
        assert_eq!(process.broken(), None, "one line");
        // A reset helps.
        process.set(message::RESET_DEVICE, vec![], vec![]);
        assert_eq!(process.device.kicks().count(), 0);
    }
}

/// Writes a chain by hand into a table: address, length, flags, next. Addresses are places of the machine's memory.
fn write_table(machine: &Machine, table: usize, chain: &[(usize, u32, u16, u16)]) {
    for (index, (place, len, flags, next)) in chain.iter().enumerate() {
        let (address, len) = (machine.memory.guest(*place), *len);
        let one = Descriptor { address, len, flags: *flags, next: *next };
        let at = machine.memory.at(table + 16 * index).cast::<Descriptor>();
        // SAFETY: the tables of these tests are within the memory of the machine, aligned to 16.
        unsafe { at.write_volatile(one) };
    }
}

#[test]
fn header_and_status_may_share_descriptors_with_data_or_be_split() {
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    let (mut machine, mut process, mut disk) = started(small(1));
    let places = machine.memory.places(0);
    let (slot, buffer) = (places.slots, places.buffers);
    // A write whose header is in two parts, the second with the data behind it.
    machine.queues[0].put(0, RequestOp::Write, 4096, 512, 0);
    machine.queues[0].submit();
    // SAFETY: header and buffer are memory of the machine, and the request has not been taken.
    unsafe {
        machine.memory.at(slot).copy_to(machine.memory.at(buffer + 1024), 16);
        machine.memory.at(buffer + 1040).write_bytes(0x77, 512);
    }
    let split =
        [(buffer + 1024, 5, NEXT, 1), (buffer + 1029, 11 + 512, NEXT, 2), (slot + 16, 1, WRITE, 0)];
    write_table(&machine, places.descriptors, &split);
    process.turn(&mut disk);
    assert_eq!(answers(&mut machine.queues[0]), [(0, 0, 1)]);
    assert_eq!((disk[4095], disk[4096], disk[4607], disk[4608]), (0, 0x77, 0x77, 0));
    // A read whose status is the last byte behind the data.
    machine.queues[0].put(0, RequestOp::Read, 4096, 512, 0);
    machine.queues[0].submit();
    write_table(&machine, places.descriptors, &[(slot, 16, NEXT, 1), (buffer, 513, WRITE, 0)]);
    process.turn(&mut disk);
    let found = answers(&mut machine.queues[0]);
    assert_eq!((found[0].0, found[0].2), (0, 513));
    assert_eq!(machine.queues[0].buffer(0)[..513], [&[0x77; 512][..], &[0]].concat());
}

#[test]
fn indirect_tables_are_ends_of_chains_and_not_nested() {
    const NEXT: u16 = 1;
    const WRITE: u16 = 2;
    const INDIRECT: u16 = 4;
    type Chain = Vec<(usize, u32, u16, u16)>;
    type Chains = fn(usize, usize, usize) -> (Chain, Chain);
    let cases: [(&str, bool, Chains); 5] = [
        ("behind a header", true, |slot, table, buffer| {
            (
                vec![(slot, 16, NEXT, 1), (table, 32, INDIRECT, 0)],
                vec![(buffer, 512, NEXT, 1), (slot + 16, 1, WRITE, 0)],
            )
        }),
        ("nested", false, |slot, table, buffer| {
            (
                vec![(table, 48, INDIRECT, 0)],
                vec![(slot, 16, NEXT, 1), (buffer, 512, NEXT, 2), (table + 64, 16, INDIRECT, 0)],
            )
        }),
        ("not the end", false, |slot, table, buffer| {
            (
                vec![(table, 48, INDIRECT | NEXT, 1)],
                vec![(slot, 16, NEXT, 1), (buffer, 512, NEXT, 2), (slot + 16, 1, WRITE, 0)],
            )
        }),
        ("half a descriptor", false, |slot, table, buffer| {
            (
                vec![(table, 40, INDIRECT, 0)],
                vec![(slot, 16, NEXT, 1), (buffer, 512, NEXT, 2), (slot + 16, 1, WRITE, 0)],
            )
        }),
        ("beyond its table", false, |slot, table, buffer| {
            (
                vec![(table, 32, INDIRECT, 0)],
                vec![(slot, 16, NEXT, 1), (buffer, 512, NEXT, 2), (slot + 16, 1, WRITE, 0)],
            )
        }),
    ];
    for (name, is_legal, chains) in cases {
        let options = DriverOptions { is_indirect: true, pieces: 8, ..small(1) };
        let (mut machine, mut process, mut disk) = started(options);
        let places = machine.memory.places(0);
        machine.queues[0].put(0, RequestOp::Write, 0, 512, 0);
        machine.queues[0].submit();
        let (ring, table) = chains(places.slots, places.tables, places.buffers);
        write_table(&machine, places.tables, &table);
        write_table(&machine, places.tables + 64, &[(places.slots + 16, 1, WRITE, 0)]);
        write_table(&machine, places.descriptors, &ring);
        process.turn(&mut disk);
        assert_eq!(process.broken().is_none(), is_legal, "{name}");
        assert_eq!(answers(&mut machine.queues[0]).len(), usize::from(is_legal), "{name}");
    }
}

/// Rings and descriptors of random words, beside a device whose driver keeps the rules (V1).
#[test]
fn nonsense_harms_only_its_own_device() {
    let mut breaks = 0;
    for seed in 0..300 {
        let mut random = Prng::new(seed);
        let options = DriverOptions {
            is_indirect: random.below(2) == 0,
            pieces: 1 + random.below(3) as u16,
            buffer_bytes: 12288,
            ..small(8)
        };
        let (mut machine, mut process, mut disk) = started(options);
        let (mut honest_machine, mut honest, mut honest_disk) = started(small(4));
        for round in 0..20 {
            nonsense(&mut machine, &mut random);
            process.take();
            while process.below.len() > random.below(6) as usize {
                let place = random.below(process.below.len() as u64) as usize;
                let request = process.below.remove(place).unwrap();
                match random.below(8) {
                    0 => process.device.complete(request.ticket, Outcome::Failed),
                    _ => process.carry_out(request, &mut disk),
                }
            }
            process.device.publish();
            let is_broken = process.broken().is_some();
            breaks += u32::from(is_broken);
            if is_broken || random.below(9) == 0 {
                // A reset waits for what is in flight.
                while let Some(request) = process.below.pop_front() {
                    process.device.complete(request.ticket, Outcome::Failed);
                }
                process.device.publish();
                process.set(message::RESET_DEVICE, vec![], vec![]);
                assert_eq!(process.device.in_flight(), 0);
                machine = Machine::new(machine.options.clone(), FEATURES);
                machine.in_flight = None;
                machine.connect(&mut process);
            }
            let queue = &mut honest_machine.queues[0];
            queue.buffer(0).fill(round);
            queue.put(0, RequestOp::Write, 4096, 4096, 0);
            queue.submit();
            honest.turn(&mut honest_disk);
            assert_eq!(answers(&mut honest_machine.queues[0]), [(0, 0, 1)]);
            assert_eq!(honest_disk[4096..8192], [round; BLOCK]);
        }
    }
    assert!(breaks > 100, "only {breaks} rings broke: the nonsense is too tame");
}

/// Requests that keep the rules, and then a few random words into the rings, descriptors, tables and headers.
fn nonsense(machine: &mut Machine, random: &mut Prng) {
    let places = machine.memory.places(0);
    machine.queues[0].reap(|_| {});
    for slot in 0..8 {
        if !machine.queues[0].is_in_flight(slot) && random.below(2) == 0 {
            let op = [RequestOp::Read, RequestOp::Write, RequestOp::Flush, RequestOp::Discard]
                [random.below(4) as usize];
            let len = if op == RequestOp::Flush { 0 } else { 4096 };
            machine.queues[0].put(slot, op, random.below(200) * 4096, len, 0);
        }
    }
    machine.queues[0].submit();
    for _ in 0..random.below(4) {
        let size = usize::from(machine.queues[0].size());
        let (base, len) = match random.below(4) {
            0 => (places.descriptors, 16 * size),
            1 => (places.available, 4 + 2 * size),
            2 => (places.slots, 32 * 8),
            _ => (places.tables, places.table_bytes * 8),
        };
        let at = base + random.below(len as u64 / 2) as usize * 2;
        let value = match random.below(3) {
            0 => random.next() as u16,
            1 => random.below(8) as u16,
            _ => 1 << random.below(16),
        };
        poke(machine, at, value);
    }
}
