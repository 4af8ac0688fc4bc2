//! Methods of copying and zeroing, by size and temperature: the table from which `memory/copy.rs` chooses.
//!
//! Cold are random pieces of 1 GiB in huge pages, more than the processor's caches hold; the buffer is always the same, as a request's.
//! Warm is one piece again and again. Every cell is ns for a piece, least / median of 15 runs in turn; `*` marks methods within 3 % of the
//! row's best median. Run it by `benches/copy.sh`.

use std::time::Instant;

use headworks::headworks_core::prng::Prng;
use headworks::house::Mapping;

/// The file that is measured, with the methods that the library does not choose.
#[path = "../src/memory/copy.rs"]
#[expect(dead_code, reason = "what chooses among them is not measured")]
mod copy;

use copy::{Copier, ReadAhead, stream, stream_zeros};

const POOL: usize = 1 << 30;
const SIZES: [usize; 5] = [4 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20];
const RUNS: usize = 15;
/// Bytes of a run.
const BYTES: usize = 32 << 20;

/// Copies a piece from the first address to the second; the third is where the next piece of the pool begins.
type Method<'a> = Box<dyn Fn(*const u8, *mut u8, usize, *const u8) + 'a>;

fn plain(from: *const u8, to: *mut u8, len: usize, _: *const u8) {
    // SAFETY: pieces of the pool and the buffer, which are different mappings.
    unsafe { to.copy_from_nonoverlapping(from, len) }
}

fn past_caches(from: *const u8, to: *mut u8, len: usize, _: *const u8) {
    // SAFETY: as above.
    unsafe { stream(from, to, len) }
}

#[cfg(target_arch = "x86_64")]
fn string_move(from: *const u8, to: *mut u8, len: usize, _: *const u8) {
    // SAFETY: as above; the instruction reads and writes `len` bytes, and the direction flag is clear.
    unsafe {
        std::arch::asm!("rep movsb", inout("rcx") len => _, inout("rsi") from => _, inout("rdi") to => _,
            options(nostack, preserves_flags));
    }
}

/// A loop of vectors with a prefetch 1 KiB ahead.
///
/// # Safety
/// As for `copy_nonoverlapping`; `len` is a multiple of 128, and the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn vectors_of(from: *const u8, to: *mut u8, len: usize) {
    use std::arch::x86_64::{
        __m256i, _MM_HINT_T0, _mm_prefetch, _mm256_loadu_si256, _mm256_setzero_si256,
        _mm256_storeu_si256,
    };
    for at in (0..len).step_by(128) {
        // SAFETY: a prefetch reads nothing; the rest is inside the ranges.
        unsafe {
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + 1024).cast());
            _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(at + 1088).cast());
            let (from, to) = (from.add(at).cast::<__m256i>(), to.add(at).cast::<__m256i>());
            let mut four = [_mm256_setzero_si256(); 4];
            for (index, vector) in four.iter_mut().enumerate() {
                *vector = _mm256_loadu_si256(from.add(index));
            }
            for (index, vector) in four.iter().enumerate() {
                _mm256_storeu_si256(to.add(index), *vector);
            }
        }
    }
}

fn methods<'a>() -> Vec<(&'static str, Method<'a>)> {
    let mut all: Vec<(&'static str, Method<'a>)> = vec![("memcpy", Box::new(plain))];
    #[cfg(target_arch = "x86_64")]
    {
        all.push(("rep movsb", Box::new(string_move)));
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: sizes are multiples of 4 KiB, the pieces as for the others, and the processor has AVX2.
            all.push((
                "vectors",
                Box::new(|from, to, len, _| unsafe { vectors_of(from, to, len) }),
            ));
        }
    }
    all
}

/// The library's ways out of the pool, by name.
fn copiers() -> Vec<(&'static str, Copier)> {
    let mut all = vec![
        ("pages ahead", Copier::with(ReadAhead::Pages)),
        ("next copy ahead", Copier::with(ReadAhead::NextCopy)),
    ];
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        all.push(("ahead between loads", Copier::with(ReadAhead::BetweenLoads)));
    }
    all.push(("as chosen", Copier::default()));
    all
}

/// Prints a row: ns for a piece by each method.
fn row<M>(
    name: &str,
    size: usize,
    methods: &[(&'static str, M)],
    mut run: impl FnMut(&M, &[usize]),
) {
    let mut prng = Prng::new(size as u64);
    let mut times = vec![Vec::new(); methods.len()];
    let count = (BYTES / size).max(16);
    for _ in 0..RUNS {
        for ((_, method), times) in methods.iter().zip(&mut times) {
            let places: Vec<usize> =
                (0..=count).map(|_| prng.below((POOL / size) as u64) as usize * size).collect();
            let began = Instant::now();
            run(method, &places);
            times.push(began.elapsed().as_nanos() as f64 / count as f64);
        }
    }
    times.iter_mut().for_each(|times| times.sort_by(f64::total_cmp));
    let best = times.iter().map(|times| times[RUNS / 2]).fold(f64::MAX, f64::min);
    print!("{:>5}K {name:14}", size >> 10);
    for ((method, _), times) in methods.iter().zip(&times) {
        let mark = if times[RUNS / 2] <= best * 1.03 { "*" } else { "" };
        print!(" | {method} {:.0} / {:.0}{mark}", times[0], times[RUNS / 2]);
    }
    println!();
}

fn main() {
    let pool = Mapping::new(POOL).expect("a pool of 1 GiB");
    let buffer = Mapping::new(1 << 20).expect("a buffer");
    // SAFETY: our own memory; advice is only a hint.
    unsafe {
        libc::madvise(pool.base().cast(), POOL, libc::MADV_HUGEPAGE);
        pool.base().write_bytes(1, POOL);
        buffer.base().write_bytes(2, 1 << 20);
    }
    let buffer = buffer.base();
    for size in SIZES {
        let chosen = copiers();
        let mut reads = methods();
        for (name, copier) in &chosen {
            // SAFETY: as for the others.
            reads.push((
                name,
                Box::new(|from, to, len, next| unsafe { copier.read(from, to, len, next) }),
            ));
        }
        row("read, cold", size, &reads, |method, places| {
            for pair in places.windows(2) {
                method(pool.at(pair[0], size), buffer, size, pool.at(pair[1], size));
            }
        });
        let mut writes = methods();
        writes.push(("past caches", Box::new(past_caches)));
        row("write, cold", size, &writes, |method, places| {
            for &place in &places[1..] {
                method(buffer, pool.at(place, size), size, std::ptr::null());
            }
        });
        row("write, warm", size, &writes, |method, places| {
            (1..places.len())
                .for_each(|_| method(buffer, pool.at(0, size), size, std::ptr::null()));
        });
        // SAFETY: pieces of the pool.
        let plain: fn(*mut u8, usize) = |to, len| unsafe { to.write_bytes(0, len) };
        // SAFETY: as above.
        let past_caches: fn(*mut u8, usize) = |to, len| unsafe { stream_zeros(to, len) };
        let zeroes = [("memset", plain), ("past caches", past_caches)];
        row("zero, cold", size, &zeroes, |method, places| {
            places[1..].iter().for_each(|&place| method(pool.at(place, size), size));
        });
        row("zero, warm", size, &zeroes, |method, places| {
            (1..places.len()).for_each(|_| method(pool.at(0, size), size));
        });
    }
}
