//! Statistics of a volume as log lines, one for each operation that happened.

use headworks_core::Op;
use headworks_core::stats::{Stage, VolumeStats};

/// `read: 16 bios in 1 requests, 15 merged, 65536 bytes, 0 errors; us p50/p99: plug 0.0/0.0 tag ... device ...`
#[must_use]
pub fn lines(stats: &VolumeStats) -> Vec<String> {
    let rows = Op::ALL.into_iter().zip(&stats.ops);
    rows.filter(|(_, row)| row.bios > 0 || row.requests > 0)
        .map(|(op, row)| {
            let micros = |ns: u64| ns as f64 / 1000.0;
            let stage = |stage: Stage| {
                let times = &row.stages[stage as usize];
                let (p50, p99) = (times.percentile(500), times.percentile(990));
                format!("{} {:.1}/{:.1}", stage.name(), micros(p50), micros(p99))
            };
            format!(
                "{}: {} bios in {} requests, {} merged, {} bytes, {} errors; us p50/p99: {}",
                op.name(),
                row.bios,
                row.requests,
                row.merges,
                row.bytes,
                row.errors,
                Stage::ALL.map(stage).join(", ")
            )
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use headworks_core::{
        Bio, Completion, DeviceId, Input, Instant, QueueOptions, RequestId, Shard, ShardConfig,
        VolumeId, VolumeOptions,
    };

    #[test]
    fn only_operations_that_occurred_are_listed() {
        let volume = VolumeOptions { size: 1 << 20, block_size: 512, ..VolumeOptions::default() };
        let config = ShardConfig::single(QueueOptions::default(), volume, 8);
        let mut shard = Shard::new(config).unwrap();
        let bio = |offset| Input::Bio(Bio { offset, len: 4096, ..Bio::default() });
        shard.handle(Instant(0), &[bio(0), bio(4096)]);
        let completion = Completion {
            id: RequestId { slot: 0, generation: 1 },
            transferred: 8192,
            status: Ok(()),
            hole: false,
        };
        let answer = Input::Complete { device: DeviceId(0), completion };
        shard.handle(Instant(100_000), &[answer]);
        let lines = lines(shard.stats(VolumeId(0)).unwrap());
        assert_eq!(lines.len(), 1, "{lines:?}");
        let expected = "read: 2 bios in 1 requests, 1 merged, 8192 bytes, 0 errors";
        assert!(lines[0].starts_with(expected), "{}", lines[0]);
        assert!(lines[0].contains("sched 0.0/0.0, device 114.7/114.7"), "{}", lines[0]);
    }
}
