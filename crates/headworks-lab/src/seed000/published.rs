//! The published measurements of seed 000 (MiB/s).

/// One job with the kernel's default limits: size of a write in KiB, and its bandwidth in MiB/s.
pub const SINGLE: [(u32, f64); 7] =
    [(128, 20.1), (256, 33.4), (512, 51.8), (1024, 67.1), (1280, 74.7), (2048, 82.9), (4096, 82.9)];

/// Writes of 1 MiB in pieces of 128 KiB: jobs, 5.18-rc1, 5.18-rc1 with the patches.
pub const JOBS: [(u32, f64, f64); 10] = [
    (1, 67.7, 67.7),
    (2, 67.7, 67.7),
    (4, 67.7, 67.7),
    (8, 67.7, 67.7),
    (16, 64.8, 65.6),
    (32, 59.8, 63.8),
    (64, 54.9, 59.4),
    (128, 49.0, 56.9),
    (256, 37.7, 58.3),
    (512, 31.8, 57.9),
];
