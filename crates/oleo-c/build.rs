//! The name by which programs find the shared library that they were linked with.

/// Raised when a program that was linked with an earlier version cannot run with this one.
const ABI: u32 = 0;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,liboleo.so.{ABI}");
}
