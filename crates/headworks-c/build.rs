//! The library's name for the dynamic linker. Without a number: the API is of a version 0, and a program is built for the one it has.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libheadworks_c.so");
}
