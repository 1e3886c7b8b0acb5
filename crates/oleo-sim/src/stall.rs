//! Callers on a mount that do not need a device or store that is silent.

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

/// How long a caller may wait that needs nothing but memory: less than clients of devices and stores wait for an answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// Names that are made meanwhile.
const MADE: u64 = 50;
/// More look-ups than this have to wait: there are no more threads for them if they keep others waiting.
const STUCK_MIN: usize = 4;

/// While what is below a mount is silent, looks up `cold` files of so many bytes, more than a mount has threads, and meanwhile makes and
/// lists names in directory `warm`, which is in memory with its `file`. `silent` silences the device or store, or ends that, and `is_asked`
/// says whether a request has reached it since. All names are found in the end.
///
/// # Errors
/// Says which of these did not hold. The silence has been ended.
///
/// # Panics
/// If what is in memory cannot be read before the silence.
pub fn others_are_answered(
    warm: &Path,
    (cold, len): (&[PathBuf], u64),
    silent: &dyn Fn(bool),
    is_asked: &dyn Fn() -> bool,
) -> Result<(), String> {
    assert!(!fs::read(warm.join("file")).expect("a file in memory").is_empty());
    fs::write(warm.join("made before"), b"").expect("a name");
    let before = fs::read_dir(warm).expect("a directory in memory").count();
    silent(true);
    thread::scope(|scope| {
        let look_up = |path: &PathBuf| {
            let path = path.clone();
            scope.spawn(move || fs::metadata(&path).is_ok_and(|meta| meta.len() == len))
        };
        let waiting: Vec<_> = cold.iter().map(look_up).collect();
        let begun = Instant::now();
        while !is_asked() && begun.elapsed() < PATIENCE {
            thread::sleep(Duration::from_millis(5));
        }
        let asked = is_asked();
        // Until each look-up has a thread that waits, if it gets one.
        thread::sleep(Duration::from_millis(300));
        let (done, is_done) = mpsc::channel();
        scope.spawn(move || done.send(work(warm)));
        let answered = is_done.recv_timeout(PATIENCE);
        let stuck = waiting.iter().filter(|thread| !thread.is_finished()).count();
        silent(false);
        let found = waiting.into_iter().filter_map(|thread| thread.join().ok()).filter(|found| *found).count();
        let answered = answered.map_err(|_| "work in memory waits for what is silent".to_owned())?;
        let listed = answered.map_err(|e| format!("work in memory: {e}"))?;
        let expect = |is: bool, what: String| if is { Ok(()) } else { Err(what) };
        expect(asked, "nothing is asked for: all names were in memory".to_owned())?;
        expect(listed == before + MADE as usize, format!("{listed} names, {before} before"))?;
        expect(stuck > STUCK_MIN, format!("{stuck} look-ups waited, which is no more than there are threads"))?;
        expect(found == cold.len(), format!("{found} of {} names are found", cold.len()))
    })
}

/// Changes a file, and makes and lists names.
fn work(warm: &Path) -> io::Result<usize> {
    for n in 0..MADE {
        let file = fs::File::open(warm.join("file"))?;
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(n))?;
        fs::write(warm.join(format!("made-{n}")), b"")?;
    }
    Ok(fs::read_dir(warm)?.count())
}
