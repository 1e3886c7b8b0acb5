//! The operations before a crash, as text; see the module above.

/// Name, and operations: a line each, the committed ones before the line `sync`. If the name says so, the kernel turns
/// an fsync into a commit, by a rule of its own, and there is no log.
pub const CASES: &[(&str, &str)] = &[
    // Data.
    ("append", "write f 0 5000\n sync\n write f 5000 70000\n fsync f"),
    ("overwrite", "write f 0 200000\n sync\n write f 4096 8192\n write f 100000 50\n fsync f"),
    (
        "twice",
        "write f 0 9000\n sync\n write f 9000 9000\n fsync f\n write f 2000 4000\n fsync f\n write f 40000 1\n fsync f",
    ),
    ("inline grows", "write f 0 100\n sync\n write f 100 200\n fsync f\n write f 300 9000\n fsync f"),
    ("inline stays", "write f 0 100\n sync\n write f 50 300\n fsync f"),
    ("shrink", "write f 0 200000\n sync\n truncate f 70001\n fsync f"),
    ("shrink and grow", "write f 0 200000\n sync\n truncate f 5000\n truncate f 150000\n fsync f"),
    ("to nothing", "write f 0 200000\n sync\n truncate f 0\n fsync f"),
    ("grow by size", "write f 0 5000\n sync\n truncate f 1000000\n fsync f"),
    ("hole", "write f 0 400000\n sync\n punch f 40960 81920\n fsync f"),
    ("hole at odd bytes", "write f 0 400000\n sync\n punch f 40000 81000\n fsync f"),
    ("holes between", "write f 0 4096\n sync\n write f 100000 4096\n write f 300000 4096\n fsync f"),
    ("prealloc within", "write f 0 4096\n sync\n truncate f 500000\n prealloc f 8192 200000\n fsync f"),
    ("prealloc behind the end", "write f 0 4096\n sync\n prealloc f 4096 1000000\n fsync f"),
    ("prealloc written", "write f 0 4096\n prealloc f 4096 1000000\n sync\n write f 50000 60000\n fsync f"),
    (
        "prealloc behind the end, then written",
        "write f 0 4096\n prealloc f 4096 1000000\n sync\n write f 4096 100\n fsync f",
    ),
    (
        "prealloc behind the end, in the log by name",
        "mkdir d\n create d/f\n prealloc d/f 0 4096\n write d/g 0 10\n prealloc d/g 4096 8192\n sync\n rename d/f d/h\n link d/g d/i\n fsync d",
    ),
    ("zeroed", "write f 0 300000\n sync\n zero f 5000 100000\n fsync f"),
    ("clone", "write f 0 262144\n create g\n sync\n clone f 0 262144 g 0\n fsync g"),
    ("clone of new data", "create g\n sync\n write f 0 262144\n fsync f\n clone f 65536 65536 g 131072\n fsync g"),
    ("clone into itself", "write f 0 262144\n sync\n clone f 0 65536 f 131072\n fsync f"),
    (
        "clone over part",
        "write f 0 262144\n write g 0 262144\n sync\n clone f 4096 8192 g 65536\n fsync g\n write g 65536 100\n fsync g",
    ),
    ("compressed", "create f\n compress f zstd\n sync\n write f 0 400000 text\n fsync f"),
    (
        "compressed, overwritten",
        "create f\n compress f lzo\n write f 0 400000 text\n sync\n write f 100000 5000 text\n fsync f\n write f 0 300 text\n fsync f",
    ),
    ("compressed, cut", "create f\n compress f zlib\n write f 0 400000 text\n sync\n truncate f 150000\n fsync f"),
    (
        "many extents",
        "create f\n sync\n write f 0 4096\n fsync f\n write f 8192 4096\n fsync f\n write f 16384 4096\n fsync f\n write f 24576 4096\n fsync f\n write f 4096 4096\n fsync f",
    ),
    ("unsynced neighbour", "write f 0 9000\n write g 0 9000\n sync\n write g 0 5000\n write f 0 5000\n fsync f"),
    // Names.
    ("new file", "mkdir d\n sync\n create d/f\n write d/f 0 300000\n fsync d/f"),
    ("new directories on the path", "sync\n mkdir a\n mkdir a/b\n mkdir a/b/c\n write a/b/c/f 0 7000\n fsync a/b/c/f"),
    ("link", "mkdir d\n write f 0 5000\n sync\n link f d/g\n write f 0 10\n fsync f"),
    (
        "link after fsync",
        "mkdir d\n write f 0 5000\n sync\n write f 0 10\n fsync f\n link f d/g\n write h 0 1\n fsync h",
    ),
    ("links within a directory", "write f 0 5000\n sync\n link f g\n link f h\n link f i\n fsync f"),
    ("new file with links", "mkdir d\n sync\n write f 0 5000\n link f d/g\n link f d/h\n fsync d/g"),
    ("rename", "write f 0 5000\n sync\n rename f g\n fsync g"),
    ("rename after fsync", "write f 0 5000\n sync\n write f 0 10\n fsync f\n rename f g\n write h 0 1\n fsync h"),
    (
        "rename over",
        "write f 0 5000\n write g 0 6000\n sync\n write f 0 10\n fsync f\n rename f g\n write h 0 1\n fsync h",
    ),
    (
        "write, fsync, rename over, fsync directory",
        "mkdir d\n write d/f 0 5000\n sync\n write d/f.new 0 7000\n fsync d/f.new\n rename d/f.new d/f\n fsync d",
    ),
    (
        "rename to another directory (commits)",
        "mkdir a\n mkdir b\n write a/f 0 5000\n sync\n rename a/f b/g\n fsync b/g",
    ),
    ("rename a directory", "mkdir a\n mkdir a/d\n write a/d/f 0 5000\n sync\n rename a/d a/e\n fsync a"),
    (
        "move a directory",
        "mkdir a\n mkdir b\n mkdir a/d\n write a/d/f 0 5000\n sync\n rename a/d b/d\n write b/d/f 0 10\n fsync b/d/f",
    ),
    ("exchange", "write f 0 5000\n write g 0 6000\n sync\n exchange f g\n fsync f"),
    (
        "exchange across (commits)",
        "mkdir a\n mkdir b\n write a/f 0 5000\n write b/g 0 6000\n sync\n exchange a/f b/g\n fsync a/f\n fsync b/g",
    ),
    ("exchange new and old", "write f 0 5000\n sync\n write g 0 6000\n fsync g\n exchange f g\n fsync g\n fsync f"),
    (
        "names go round",
        "write a 0 1000\n write b 0 2000\n write c 0 3000\n sync\n rename a x\n rename b a\n rename c b\n rename x c\n fsync a\n fsync b\n fsync c",
    ),
    ("name taken over", "write a 0 1000\n sync\n rename a b\n write a 0 2000\n fsync a"),
    ("unlink and make again", "write f 0 5000\n sync\n unlink f\n write f 0 100\n fsync f"),
    ("unlink of one link", "write f 0 5000\n link f g\n sync\n unlink g\n fsync f"),
    ("unlink, fsync directory", "mkdir d\n write d/f 0 5000\n write d/g 0 10\n sync\n unlink d/f\n fsync d"),
    (
        "unlink a large file, fsync directory",
        "mkdir d\n write d/f 0 1000000\n prealloc d/f 2000000 500000\n sync\n unlink d/f\n write d/g 0 1\n fsync d",
    ),
    ("rmdir, fsync directory", "mkdir d\n mkdir d/e\n write d/f 0 10\n sync\n rmdir d/e\n fsync d"),
    (
        "deleted ancestors (commits)",
        "mkdir a\n mkdir a/b\n write a/b/f 0 5000\n sync\n link a/b/f g\n unlink a/b/f\n rmdir a/b\n rmdir a\n write g 0 10\n fsync g",
    ),
    (
        "directory",
        "mkdir d\n write d/old 0 10\n sync\n write d/f 0 5000\n mkdir d/e\n write d/e/g 0 100\n symlink d/s target\n mknod d/p\n fsync d",
    ),
    (
        "directory of many",
        "mkdir d\n fill d 300\n sync\n mkdir e\n fill e 300\n unlink d/file-7\n unlink d/file-200\n fsync d\n fsync e",
    ),
    (
        "directory twice",
        "mkdir d\n write d/a 0 10\n write d/b 0 10\n sync\n unlink d/a\n fsync d\n write d/c 0 10\n unlink d/b\n fsync d",
    ),
    ("new directory", "sync\n mkdir d\n write d/a 0 10\n mkdir d/e\n write d/e/b 0 10\n fsync d"),
    ("old file in a logged directory", "mkdir d\n write d/f 0 5000\n sync\n chmod d/f\n write d/g 0 10\n fsync d"),
    ("symlink", "mkdir d\n sync\n symlink d/s to/somewhere\n write d/f 0 1\n fsync d/f\n fsync d"),
    ("tmpfile", "mkdir d\n sync\n tmpfile d d/f 9000\n fsync d/f"),
    ("tmpfile, synced first", "mkdir d\n sync\n tmpfile d d/f 9000 synced\n fsync d"),
    (
        "tmpfile, not linked durably",
        "mkdir d\n write d/g 0 10\n sync\n tmpfile d d/f 9000 synced\n write d/g 0 9\n fsync d/g",
    ),
    // Attributes.
    (
        "xattrs",
        "write f 0 10\n xattr f user.a 30\n xattr f user.b 40\n sync\n rmxattr f user.a\n xattr f user.b 50\n xattr f user.c 2000\n fsync f",
    ),
    ("xattrs of a directory", "mkdir d\n xattr d user.a 30\n sync\n rmxattr d user.a\n xattr d user.b 20\n fsync d"),
    ("xattrs of a new file", "sync\n write f 0 10\n xattr f user.a 30\n fsync f"),
    (
        "attributes",
        "write f 0 10\n mkdir d\n sync\n chmod f\n chown f\n times f\n fsync f\n times d\n chown d\n fsync d",
    ),
    // Subvolumes.
    (
        "two subvolumes",
        "subvol a\n subvol b\n write a/f 0 5000\n write b/f 0 5000\n write f 0 5000\n sync\n write a/f 5000 9000\n fsync a/f\n write b/g 0 100\n fsync b/g\n write f 0 10\n fsync f",
    ),
    (
        "after a snapshot",
        "subvol a\n write a/f 0 300000\n snapshot a b\n sync\n write a/f 5000 9000\n fsync a/f\n write b/f 100 10\n truncate b/f 20000\n fsync b/f",
    ),
];
