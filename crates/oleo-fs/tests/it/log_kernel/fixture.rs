//! A file system of ours, and what the kernel finds after a crash.

use std::collections::BTreeMap;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use oleo_device::{Device, FileDevice, FileOptions, MemDevice};
use oleo_format::TreeId;
use oleo_fs::{Follow, Fs, FsOptions, InodeRef, LogStats, NewInode, NewKind, RenameMode, XattrMode, replay};
use oleo_sim::budget::budget;
use oleo_sim::disk::{load, store};
use oleo_sim::oracle::{Mounted, Oracle, Scratch, oracle};
use oleo_txn::{Engine, EngineOptions};
use oleo_volume::{OpenOptions, Volume};

const IMAGE_LEN: u64 = 128 << 20;

/// The forms of a volume that a log looks different on.
const FORMS: [&[&str]; 4] = [
    &[],
    &["--nodesize", "4096", "--features", "^no-holes"],
    &["--nodesize", "4096"],
    &["--features", "^no-holes", "--csum", "blake2"],
];

/// An open file system over a device in memory.
pub struct Fixture {
    pub fs: Fs,
    device: Arc<MemDevice>,
    oracle: Oracle,
    scratch: Scratch,
    crashes: std::cell::Cell<u32>,
}

/// Returns the forms of volume that this run tries: one of them in CI.
pub fn forms() -> Vec<&'static [&'static str]> {
    budget().sample(FORMS.to_vec(), 1)
}

/// Runs a test on the forms of volume that this run tries.
pub fn on_all_forms(test: impl Fn(&Fixture)) {
    for form in forms() {
        let Some(fixture) = Fixture::new(form, FsOptions::default()) else { return };
        test(&fixture);
    }
}

impl Fixture {
    pub fn new(mkfs: &[&str], options: FsOptions) -> Option<Fixture> {
        let oracle = oracle()?;
        let scratch = oracle.scratch().unwrap();
        let image = scratch.image("bed.img", IMAGE_LEN).unwrap();
        oracle.mkfs(mkfs, &[&image]).unwrap();
        let device = Arc::new(load(&image).unwrap());
        let fs = open(device.clone(), options);
        Some(Fixture { fs, device, oracle, scratch, crashes: 0.into() })
    }

    pub fn top(&self) -> InodeRef {
        self.fs.root(TreeId::FS).unwrap()
    }

    pub fn at(&self, path: &str) -> InodeRef {
        self.fs.resolve(&self.top(), path.as_bytes(), Follow::No).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    fn parent<'p>(&self, path: &'p str) -> (InodeRef, &'p [u8]) {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        (self.at(dir), name.as_bytes())
    }

    pub fn make(&self, path: &str, kind: NewKind<'_>) -> InodeRef {
        let (dir, name) = self.parent(path);
        self.fs.create(&dir, name, &NewInode::new(kind, 0o755)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    pub fn mkdir(&self, path: &str) -> InodeRef {
        self.make(path, NewKind::Dir)
    }

    /// A new file with content.
    pub fn file(&self, path: &str, content: &[u8]) -> InodeRef {
        let file = self.make(path, NewKind::File);
        self.fs.write(&file, 0, content).unwrap();
        file
    }

    pub fn link(&self, from: &str, to: &str) {
        let (dir, name) = self.parent(to);
        self.fs.link(&self.at(from), &dir, name).unwrap();
    }

    pub fn unlink(&self, path: &str) {
        let (dir, name) = self.parent(path);
        self.fs.unlink(&dir, name).unwrap();
    }

    pub fn rmdir(&self, path: &str) {
        let (dir, name) = self.parent(path);
        self.fs.rmdir(&dir, name).unwrap();
    }

    pub fn rename(&self, from: &str, to: &str) {
        self.rename_as(from, to, RenameMode::Replace);
    }

    pub fn rename_as(&self, from: &str, to: &str, mode: RenameMode) {
        let ((from_dir, from), (to_dir, to)) = (self.parent(from), self.parent(to));
        self.fs.rename(&from_dir, from, &to_dir, to, mode).unwrap();
    }

    pub fn xattr(&self, path: &str, name: &str, value: &[u8]) {
        self.fs.xattr_set(&self.at(path), name.as_bytes(), value, XattrMode::Any).unwrap();
    }

    pub fn sync(&self) {
        self.fs.sync().unwrap();
    }

    pub fn fsync(&self, path: &str) {
        self.fs.fsync(&self.at(path)).unwrap();
    }

    pub fn stats(&self) -> LogStats {
        self.fs.log_stats()
    }

    /// Calls that were served by commits of the log alone.
    pub fn must_be_logged(&self) {
        let stats = self.stats();
        assert_eq!(stats.full_commits, 0, "{stats:?}");
        assert!(stats.log_commits > 0, "{stats:?}");
    }

    /// What a crash would leave now.
    pub fn image(&self) -> PathBuf {
        self.crashes.set(self.crashes.get() + 1);
        let path = self.scratch.path().join(format!("crash-{}.img", self.crashes.get()));
        store(&*self.device, &path).unwrap();
        path
    }

    /// Crashes a copy and has the kernel recover it; `look` sees the mount. The copy must be sound afterwards.
    pub fn after_crash<R>(&self, look: impl FnOnce(&Found) -> R) -> R {
        let path = self.image();
        let mounted = self.oracle.mount(&[&path], "").unwrap();
        let found = Found { mounted };
        let seen = look(&found);
        found.mounted.unmount().unwrap();
        let verdict = self.oracle.check(&[&path]).unwrap();
        assert!(verdict.is_clean(), "after the replay: {verdict}");
        std::fs::remove_file(&path).unwrap();
        seen
    }
}

impl Fixture {
    /// The same after a replay of ours: the kernel finds nothing to replay any more.
    pub fn after_our_replay<R>(&self, look: impl FnOnce(&Found) -> R) -> R {
        let path = self.image();
        {
            let options = FileOptions::default().write(true);
            let device: Arc<dyn Device> = Arc::new(FileDevice::open(&path, &options).unwrap());
            let fs = open(device, FsOptions::default());
            replay(&fs).unwrap();
            fs.sync().unwrap();
            assert_eq!(fs.engine().super_block().log_root.get(), 0);
        }
        let mounted = self.oracle.mount(&[&path], "").unwrap();
        let found = Found { mounted };
        let seen = look(&found);
        found.mounted.unmount().unwrap();
        let verdict = self.oracle.check(&[&path]).unwrap();
        assert!(verdict.is_clean(), "after our replay: {verdict}");
        std::fs::remove_file(&path).unwrap();
        seen
    }
}

fn open(device: Arc<dyn Device>, options: FsOptions) -> Fs {
    let volume = Volume::open(vec![device], &OpenOptions { write: true, ..OpenOptions::default() }).unwrap();
    Fs::open(Engine::open(Arc::new(volume), &EngineOptions::default()).unwrap(), &options).unwrap()
}

/// What the kernel has mounted after a crash.
pub struct Found {
    mounted: Mounted,
}

impl Found {
    pub fn path(&self, path: &str) -> PathBuf {
        self.mounted.path().join(path)
    }

    pub fn read(&self, path: &str) -> Vec<u8> {
        std::fs::read(self.path(path)).unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    /// # Panics
    /// When the content is another.
    pub fn must_hold(&self, path: &str, want: &[u8]) {
        let have = self.read(path);
        assert_eq!(have.len(), want.len(), "the length of {path}");
        let differs = have.iter().zip(want).position(|(a, b)| a != b);
        assert_eq!(differs, None, "{path} differs at");
    }

    pub fn has(&self, path: &str) -> bool {
        self.path(path).symlink_metadata().is_ok()
    }

    pub fn names(&self, dir: &str) -> Vec<String> {
        let list = std::fs::read_dir(self.path(dir)).unwrap();
        let mut names: Vec<String> =
            list.map(|e| String::from_utf8_lossy(e.unwrap().file_name().as_bytes()).into_owned()).collect();
        names.sort();
        names
    }

    /// # Panics
    /// When the directory has other names.
    pub fn must_list(&self, dir: &str, want: &[&str]) {
        assert_eq!(self.names(dir), want, "the names in {dir}");
    }

    pub fn meta(&self, path: &str) -> std::fs::Metadata {
        self.path(path).symlink_metadata().unwrap_or_else(|e| panic!("{path}: {e}"))
    }

    pub fn xattrs(&self, path: &str) -> BTreeMap<Vec<u8>, Vec<u8>> {
        oleo_sim::manifest::xattrs_of(&self.path(path)).unwrap()
    }
}
