//! The README's commands and its program, as they stand there.

use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

use oleo_sim::oracle::Scratch;

const TOP: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

/// The only block of that language in the README.
fn block(language: &str) -> String {
    let readme = fs::read_to_string(Path::new(TOP).join("README.md")).unwrap();
    let fence = format!("```{language}\n");
    let mut blocks = readme.split(&fence).skip(1);
    let text = blocks.next().unwrap().split("```").next().unwrap().to_owned();
    assert!(blocks.next().is_none(), "one block of {language}");
    text
}

/// Text without what differs from run to run and with each change of the docs: numbers, units, identifiers, widths.
fn shape(text: &str) -> Vec<String> {
    let word = |word: &str| {
        let number = word.trim_start_matches('(').starts_with(|c: char| c.is_ascii_digit());
        let uuid = word.len() == 36 && word.matches('-').count() == 4;
        if number || uuid { "#".to_owned() } else { word.to_owned() }
    };
    text.lines().map(|line| line.split_whitespace().map(word).collect::<Vec<_>>().join(" ")).collect()
}

/// Goal: the commands of the README do what it shows. Method: each is run by a shell in a directory that has what a
/// checkout has; what it prints is compared line by line, numbers aside.
#[test]
fn commands() {
    let scratch = Scratch::new().unwrap();
    let dir = scratch.path();
    let copied =
        Command::new("cp").arg("-r").args([&format!("{TOP}/docs"), &format!("{TOP}/README.md")]).arg(dir).status();
    assert!(copied.unwrap().success());
    let bin = Path::new(env!("CARGO_BIN_EXE_oleo")).parent().unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let text = block("console");
    let steps: Vec<_> = text.split("$ ").filter(|step| !step.is_empty()).collect();
    assert_eq!(steps.len(), 5);
    for step in steps {
        let (command, shown) = step.split_once('\n').unwrap();
        let output = Command::new("sh").args(["-c", command]).current_dir(dir).env("PATH", &path).output().unwrap();
        assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
        let printed = String::from_utf8(output.stdout).unwrap();
        assert_eq!(shape(&printed), shape(shown), "{command} printed:\n{printed}");
    }
}

/// Goal: the README's program compiles and does what its assertions say. Method: it stands here too; the text between the
/// marks has to be that of the README.
#[test]
fn program() -> Result<(), Box<dyn Error>> {
    let scratch = Scratch::new()?;
    let img = scratch.path().join("store.img");
    // [README]
    let image = oleo::Image::create(&img, 1 << 30)?; // bytes; the file is sparse
    image.create_subvol("data")?;
    image.write("data/greeting", b"hello")?;
    image.snapshot("data", "data@1", &Default::default())?;
    image.write("data/greeting", b"good evening")?;
    assert_eq!(image.read("data@1/greeting")?, b"hello");
    image.close()?; // everything is durable from here on
    // [/README]
    let source = include_str!("readme.rs");
    let program =
        source.split("// [README]\n").nth(1).and_then(|rest| rest.split("    // [/README]").next()).ok_or("marks")?;
    let lines: Vec<_> = program.lines().map(|line| line.trim_start_matches("    ")).collect();
    assert_eq!(block("rust").lines().collect::<Vec<_>>(), lines);
    Ok(())
}
