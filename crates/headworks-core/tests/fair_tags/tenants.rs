//! Shares of tenants: they divide the device by weight, and their exports divide what each has.

use headworks_core::prng::Prng;
use headworks_core::tags::TagRequest;
use headworks_core::{ExportId, TenantId};

use crate::gate::{Gate, KIB, request};

/// An export: its tenant, its weight, its connections.
#[derive(Clone, Copy)]
struct Client {
    tenant: TenantId,
    weight: u16,
    connections: u32,
}

const NONE: TenantId = TenantId::NONE;

/// Exports that always have requests waiting, and the weights of tenants.
struct Crowd {
    gate: Gate,
    prng: Prng,
    clients: Vec<Client>,
    tenants: Vec<u16>,
}

impl Crowd {
    fn new(tenants: &[u16], clients: &[(TenantId, u16, u32)]) -> Self {
        let client = |&(tenant, weight, connections)| Client { tenant, weight, connections };
        let clients = clients.iter().map(client).collect();
        let (gate, prng) = (Gate::new(64, 64), Prng::new(11));
        Self { gate, prng, clients, tenants: tenants.to_vec() }
    }

    /// A request of an export, 4 KiB to 256 KiB.
    fn next(&mut self, export: usize) -> TagRequest {
        let Client { tenant, weight, connections } = self.clients[export];
        let connection = self.prng.below(connections.into()) as u32;
        let bytes = (4 * KIB) << self.prng.below(7);
        TagRequest {
            export: ExportId(export as u16),
            weight,
            tenant,
            tenant_weight: self.tenants.get(usize::from(tenant.0)).copied().unwrap_or(100),
            ..request(connection, 1, bytes)
        }
    }

    /// Lets every export have `many` requests waiting.
    fn fill(&mut self, many: usize) {
        for export in (0..self.clients.len()).cycle().take(many * self.clients.len()) {
            let request = self.next(export);
            self.gate.submit(request);
        }
    }

    /// Completes the oldest request and submits another of its export, `steps` times; returns each export's part of the bytes.
    fn run(&mut self, steps: usize) -> Vec<f64> {
        let mut bytes = vec![0.0; self.clients.len()];
        for _ in 0..steps {
            let done = self.gate.finish(0);
            let export = usize::from(done.export.0);
            bytes[export] += f64::from(done.bytes);
            let next = self.next(export);
            self.gate.submit(next);
            self.gate.now += 1;
        }
        let sum: f64 = bytes.iter().sum();
        bytes.into_iter().map(|part| part / sum).collect()
    }
}

#[track_caller]
fn assert_parts(parts: &[f64], wanted: &[f64], off: f64) {
    for (part, wanted) in parts.iter().zip(wanted) {
        assert!((part / wanted - 1.0).abs() <= off, "{parts:.4?} instead of {wanted:.4?}");
    }
}

#[test]
fn tenants_divide_the_device_and_exports_their_tenants_part() {
    let (one, two) = (TenantId(0), TenantId(1023));
    let mut tenants = vec![100; 1024];
    tenants[0] = 400;
    // However many connections and exports a tenant has, and whatever weights these have.
    let clients =
        [(one, 100, 1), (one, 300, 8), (two, 10_000, 40), (NONE, 100, 3), (two, 10_000, 1)];
    let mut crowd = Crowd::new(&tenants, &clients);
    crowd.fill(150);
    crowd.run(20_000);
    let parts = crowd.run(200_000);
    assert_parts(&parts, &[1.0 / 6.0, 0.5, 1.0 / 12.0, 1.0 / 6.0, 1.0 / 12.0], 0.02);
}

#[test]
fn moved_export_is_charged_to_its_new_tenant() {
    let clients = [(TenantId(0), 100, 2), (TenantId(0), 100, 2), (TenantId(1), 100, 2)];
    let mut crowd = Crowd::new(&[100, 100], &clients);
    crowd.fill(100);
    crowd.run(10_000);
    assert_parts(&crowd.run(60_000), &[0.25, 0.25, 0.5], 0.02);
    crowd.clients[0].tenant = TenantId(1);
    // What waits under the old tenant is served first.
    crowd.run(10_000);
    assert_parts(&crowd.run(60_000), &[0.25, 0.5, 0.25], 0.02);
    crowd.clients[0].tenant = NONE;
    crowd.tenants[1] = 200;
    crowd.run(10_000);
    assert_parts(&crowd.run(60_000), &[0.25, 0.25, 0.5], 0.02);
}

#[test]
fn tenant_without_requests_leaves_its_part_to_the_others() {
    let clients = [(TenantId(0), 100, 2), (TenantId(1), 100, 2)];
    let mut crowd = Crowd::new(&[100, 300, 1600], &clients);
    crowd.fill(100);
    crowd.run(10_000);
    assert_parts(&crowd.run(60_000), &[0.25, 0.75], 0.02);
    // It returns with its weight, and with no claim to what it did not use.
    crowd.clients.push(Client { tenant: TenantId(2), weight: 1, connections: 4 });
    crowd.fill(300);
    crowd.run(10_000);
    assert_parts(&crowd.run(60_000), &[0.05, 0.15, 0.8], 0.03);
}

#[test]
fn thousand_tenants_have_equal_parts() {
    let clients: Vec<_> = (0..1000).map(|n| (TenantId(n), 100, 1)).collect();
    let mut crowd = Crowd::new(&[100; 1000], &clients);
    crowd.fill(12);
    crowd.run(20_000);
    let parts = crowd.run(400_000);
    assert_parts(&parts, &[0.001; 1000], 0.05);
}
