//! Runs each program of `examples/`: what they show is so. Each is a module here, and fails if what it shows is not there.

#[path = "../../examples/any_system.rs"]
mod any_system;
#[path = "../../examples/build_image.rs"]
mod build_image;
#[path = "../../examples/compare_snapshots.rs"]
mod compare_snapshots;
#[path = "../../examples/custom_device.rs"]
mod custom_device;
#[path = "../../examples/in_memory.rs"]
mod in_memory;
#[path = "../../examples/quick_start.rs"]
mod quick_start;
#[path = "../../examples/receive_stream.rs"]
mod receive_stream;
#[path = "../../examples/versioned_store.rs"]
mod versioned_store;

macro_rules! run {
    ($($name:ident)*) => {
        const RUN: &[&str] = &[$(stringify!($name)),*];
        mod runs { $(
            #[test]
            fn $name() {
                super::$name::main().unwrap();
            }
        )* }
    };
}

run! { any_system build_image compare_snapshots custom_device in_memory quick_start receive_stream versioned_store }

/// Goal: no example is forgotten here.
#[test]
fn all_examples_are_run() {
    let files = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/examples")).unwrap();
    let mut names: Vec<String> =
        files.map(|f| f.unwrap().file_name().to_string_lossy().trim_end_matches(".rs").to_owned()).collect();
    names.sort();
    assert_eq!(names, RUN);
}
