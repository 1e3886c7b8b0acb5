//! The help of every command, as people see it.

use clap::Command;
use snapbox::{assert_data_eq, file};

/// The help of a command and of everything below it, in order.
fn collect(command: &mut Command, path: &str, all: &mut String) {
    let path = format!("{path} {}", command.get_name());
    let shown = command.clone().term_width(100).bin_name(path.trim()).render_long_help();
    all.push_str(&format!("==={path}\n{shown}\n"));
    for sub in command.get_subcommands_mut().filter(|sub| sub.get_name() != "help") {
        collect(sub, &path, all);
    }
}

/// Goal: nobody changes the help without seeing it. Method: all of it in one file; `SNAPSHOTS=overwrite cargo test -p
/// oleo-cli` writes it anew.
#[test]
fn help() {
    let mut command = crate::command();
    command.build();
    let mut all = String::new();
    collect(&mut command, "", &mut all);
    assert_data_eq!(all.replace(env!("CARGO_PKG_VERSION"), "[VERSION]"), file!["../tests/help.txt"].raw());
}

/// Goal: the grammar is sound: no clashes of letters, every argument described. Method: clap's own check, and a walk.
#[test]
fn grammar() {
    crate::command().debug_assert();
    fn look(command: &Command) {
        assert!(command.get_about().is_some(), "{} says nothing of itself", command.get_name());
        for argument in command.get_arguments() {
            assert!(argument.get_help().is_some(), "{}: {} is not described", command.get_name(), argument.get_id());
        }
        command.get_subcommands().for_each(look);
    }
    look(&crate::command());
}
