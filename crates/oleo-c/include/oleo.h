/* Oleo: btrfs images without the kernel. See docs/c.md.
 *
 * This file is made of the source of the crate oleo-c; do not change it by hand. */

#ifndef OLEO_H
#define OLEO_H

#include <stddef.h>
#include <stdint.h>

/* Handles are numbers, never 0. One that was closed, or is of another kind, is refused with EBADF. */
typedef uint64_t oleo_image;
typedef uint64_t oleo_file;
typedef uint64_t oleo_dir;
typedef uint64_t oleo_subvolumes;
typedef uint64_t oleo_findings;

// Of a check: read and verify the contents of files, too, on every copy. In addition to OLEO_OPEN_DEGRADED.
#define OLEO_CHECK_DATA (1 << 16)

// A finding has a tree.
#define OLEO_AT_TREE 1

// A finding has an address.
#define OLEO_AT_BLOCK 2

// A finding has a key.
#define OLEO_AT_KEY 4

// A finding has a device.
#define OLEO_AT_DEVICE 8

// Flag of an extent: something else refers to it, too.
#define OLEO_EXTENT_SHARED 1

// Flag of an extent: it has space, and reads as zeros.
#define OLEO_EXTENT_UNWRITTEN 2

// Flag of an extent: its bytes are in a tree block; it has no address of its own.
#define OLEO_EXTENT_INLINE 4

// Flag of an extent: it is not on disk yet.
#define OLEO_EXTENT_DELAYED 8

// For reading and changes. Nobody else may use the image meanwhile.
#define OLEO_OPEN_WRITE 1

// For reading although somebody else may write to it; what is read may be torn.
#define OLEO_OPEN_IN_USE 2

// Go on without devices that are missing.
#define OLEO_OPEN_DEGRADED 4

// Where the newest roots cannot be read, go on from those of an earlier transaction (reading only).
#define OLEO_OPEN_BACKUP_ROOT 8

// Go on without trees that cannot be read, as far as files can be read without them (reading only).
#define OLEO_OPEN_IGNORE_BAD_TREES 16

// Do not apply the log that a crash left (reading only).
#define OLEO_OPEN_NO_LOG_REPLAY 32

// The last name of a path may be a symbolic link that is meant itself.
#define OLEO_NOFOLLOW 1

// An attribute that is set must not be there.
#define OLEO_XATTR_CREATE 2

// An attribute that is set must be there.
#define OLEO_XATTR_REPLACE 4

// A snapshot, or a subvolume, refuses changes.
#define OLEO_READ_ONLY 1

// Something that is not as it should be.
struct oleo_finding {
  // 1: a warning, without consequence; 2: an error.
  uint32_t severity;
  // Which of the places below are known: OLEO_AT_TREE and so on.
  uint32_t places;
  // The number of the tree.
  uint64_t tree;
  // The logical address of the tree block or extent.
  uint64_t block;
  // The number of the device.
  uint64_t device;
  // The key of the item: the number of the object.
  uint64_t key_objectid;
  // The key of the item: the offset.
  uint64_t key_offset;
  // The key of the item: the type.
  uint32_t key_type;
  // Zero.
  uint32_t reserved_key;
  // What kind of finding, such as "data-checksum"; names never change. Texts end in a zero byte, and stay until the next call with the
  // same list.
  const char *kind;
  // What is there.
  const char *have;
  // What should be there.
  const char *want;
  // Zeros.
  uint64_t reserved[4];
};

// A time.
struct oleo_time {
  // Seconds since 1970.
  int64_t seconds;
  // Nanoseconds within the second.
  uint32_t nanoseconds;
  // Zero.
  uint32_t reserved;
};

// What is known of a file or directory.
struct oleo_stat {
  // The number of the subvolume.
  uint64_t subvolume;
  // The number of the inode within it.
  uint64_t ino;
  // Bytes of content.
  uint64_t size;
  // Bytes that the extents stand for, before compression.
  uint64_t nbytes;
  // The transaction that made it.
  uint64_t generation;
  // The transaction that last changed it.
  uint64_t transid;
  // The flags of the inode, as they are on disk.
  uint64_t flags;
  // Type and permission bits, as in stat(2).
  uint32_t mode;
  // Names; 1 for a directory.
  uint32_t nlink;
  // Owner.
  uint32_t uid;
  // Group.
  uint32_t gid;
  // Of a device: its major number.
  uint32_t rdev_major;
  // Of a device: its minor number.
  uint32_t rdev_minor;
  // Last access.
  struct oleo_time atime;
  // Last change of the content.
  struct oleo_time mtime;
  // Last change of the inode.
  struct oleo_time ctime;
  // Creation.
  struct oleo_time otime;
  // Zeros.
  uint64_t reserved[4];
};

// A part of a file that is no hole.
struct oleo_extent {
  // Where in the file it begins, in bytes.
  uint64_t offset;
  // Bytes of the file that it stands for.
  uint64_t length;
  // Its logical address; of a compressed extent that of the whole extent. 0 if it has none.
  uint64_t logical;
  // OLEO_EXTENT_…
  uint32_t flags;
  // 0: none, 1: zlib, 2: lzo, 3: zstd.
  uint32_t compression;
};

// What is known of an image. Numbers are bytes.
struct oleo_info {
  // All that files can have: copies and parity taken off.
  uint64_t total;
  // What nothing uses.
  uint64_t free;
  // What files can still have.
  uint64_t available;
  // The newest transaction on disk.
  uint64_t generation;
  // The UUID of the file system.
  uint8_t uuid[16];
  // A tree block.
  uint32_t nodesize;
  // A data block.
  uint32_t sectorsize;
  // The label, ending in a zero byte.
  char label[256];
  // Zeros.
  uint64_t reserved[8];
};

// An entry of a directory.
struct oleo_entry {
  // The number of the inode; 0 if it leads to another subvolume.
  uint64_t ino;
  // The number of the subvolume that it leads to; 0 for everything else.
  uint64_t subvolume;
  // The type bits of a mode.
  uint32_t mode;
  // Bytes of the name, without the zero byte.
  uint32_t name_len;
  // The name, ending in a zero byte. Names are bytes: nothing says that they are text.
  char name[256];
};

// A subvolume or snapshot.
struct oleo_subvolume {
  // Its number; 5 for the top level.
  uint64_t id;
  // The number of the one that it is in; 0 for the top level.
  uint64_t parent_id;
  // The transaction that last wrote it.
  uint64_t generation;
  // The transaction of its last change.
  uint64_t ctransid;
  // The transaction that made it.
  uint64_t otransid;
  // Its UUID; zeros on very old file systems.
  uint8_t uuid[16];
  // The UUID of the one that it is a snapshot of; zeros if it is none.
  uint8_t parent_uuid[16];
  // The UUID of the one that it was received from; zeros if it was not.
  uint8_t received_uuid[16];
  // Its last change.
  struct oleo_time ctime;
  // Its creation.
  struct oleo_time otime;
  // 0 or OLEO_READ_ONLY.
  uint32_t flags;
  // Zero.
  uint32_t reserved_flags;
  // Its path from the top level, ending in a zero byte; empty for the top level. It stays until the next call with the same list.
  const char *path;
  // Zeros.
  uint64_t reserved[4];
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Checks a volume that nobody uses meanwhile, on all its devices; `offset` is where in the first one the image begins. Nothing is changed.
// How many findings there are, 0 if it is sound, or a negative errno if it cannot be checked. A list of them goes to `out`, which may be
// null: of each kind at most 100.
//
// # Safety
// `names` has `count` texts, each ending in a zero byte; `out` is null or has room for a handle.
int64_t oleo_check(const char *const *names,
                   size_t count,
                   uint32_t flags,
                   uint64_t offset,
                   oleo_findings *out);

// The next finding: 1 if there is one, 0 at the end, or a negative errno.
//
// # Safety
// `out` has room for it.
int oleo_findings_next(oleo_findings findings, struct oleo_finding *out);

// Gives a list of findings up.
int oleo_findings_close(oleo_findings findings);

// What went wrong in the last call of this thread that returned a negative number. Empty before the first. It stays until the next
// such call of this thread.
const char *oleo_error_message(void);

// Of which kind that was: "refusal" (it cannot be done as asked), "usage" (the call makes no sense), "corruption" (the image is damaged),
// "device" (what it lies on failed), or "bug". It stays for ever.
const char *oleo_error_kind(void);

// Opens a regular file; for changes, if the image is.
//
// # Safety
// `path` ends in a zero byte; `out` has room for a handle.
int oleo_file_open(oleo_image image, const char *path, oleo_file *out);

// Makes an empty regular file where there is nothing yet, with these permission bits, and opens it.
//
// # Safety
// `path` ends in a zero byte; `out` has room for a handle.
int oleo_file_create(oleo_image image, const char *path, uint32_t mode, oleo_file *out);

// Gives a file up.
int oleo_file_close(oleo_file file);

// What is known of the file.
//
// # Safety
// `out` has room for it.
int oleo_file_stat(oleo_file file, struct oleo_stat *out);

// Reads `len` bytes at `offset`, or as many as there are up to the end; how many, or a negative errno. Many threads may read in
// parallel.
//
// # Safety
// `buffer` has room for `len` bytes.
int64_t oleo_file_read(oleo_file file,
                       uint8_t *buffer,
                       size_t len,
                       uint64_t offset);

// Writes `len` bytes at `offset`, all of them or none; the file grows where it must.
//
// # Safety
// `data` has `len` bytes.
int oleo_file_write(oleo_file file, const uint8_t *data, size_t len, uint64_t offset);

// Makes the file this many bytes long: shorter, or longer by a hole.
int oleo_file_truncate(oleo_file file, uint64_t len);

// Makes the file durable, as fsync does.
int oleo_file_sync(oleo_file file);

// The extents from `offset` on, at most `count`; how many were put into `out`, or a negative errno. To go on, ask from the end of the last
// one; 0 means that there are no more. What is between extents is a hole.
//
// # Safety
// `out` has room for `count` extents.
int64_t oleo_file_extents(oleo_file file,
                          uint64_t offset,
                          struct oleo_extent *out,
                          size_t count);

// The version of the library: "0.1.0".
const char *oleo_version(void);

// Opens the image in a file, on a block device, or under an address (nbd://…). 0, or a negative errno.
//
// # Safety
// `name` ends in a zero byte; `out` has room for a handle.
int oleo_open(const char *name, uint32_t flags, oleo_image *out);

// The same for a volume on several devices, all of which are named; `offset` is where in the first one the image begins, in bytes.
//
// # Safety
// `names` has `count` texts, each ending in a zero byte; `out` has room for a handle.
int oleo_open_devices(const char *const *names,
                      size_t count,
                      uint32_t flags,
                      uint64_t offset,
                      oleo_image *out);

// Makes an empty file system of `size` bytes in a file that is not there or empty, or on a block device that holds none, and opens it
// for changes. `label` may be null.
//
// # Safety
// `name`, and `label` if it is not null, end in a zero byte; `out` has room for a handle.
int oleo_create(const char *name,
                uint64_t size,
                const char *label,
                oleo_image *out);

// Makes everything done so far durable.
int oleo_sync(oleo_image image);

// Makes everything durable and gives the image up, and what is open in it. Also after an error the handle is no longer valid: what
// was not durable is lost then, so call oleo_sync before if that has to be known.
int oleo_close(oleo_image image);

// What is known of an image.
//
// # Safety
// `out` has room for it.
int oleo_get_info(oleo_image image, struct oleo_info *out);

// What is known of what is at a path, from the top level; `flags` is 0 or OLEO_NOFOLLOW.
//
// # Safety
// `path` ends in a zero byte; `out` has room for it.
int oleo_stat(oleo_image image, const char *path, uint32_t flags, struct oleo_stat *out);

// Opens a directory for listing.
//
// # Safety
// `path` ends in a zero byte; `out` has room for a handle.
int oleo_dir_open(oleo_image image, const char *path, oleo_dir *out);

// The next entry, in the order of their creation: 1 if there is one, 0 at the end, or a negative errno. "." and ".." are not
// among them.
//
// # Safety
// `out` has room for it.
int oleo_dir_next(oleo_dir dir,
                  struct oleo_entry *out);

// Gives a directory up.
int oleo_dir_close(oleo_dir dir);

// The target of a symbolic link: how many bytes it has, or a negative errno. With `len` 0 nothing is written; where it does not fit,
// -ERANGE. There is no zero byte at its end.
//
// # Safety
// `path` ends in a zero byte; `buffer` has room for `len` bytes.
int64_t oleo_readlink(oleo_image image,
                      const char *path,
                      uint8_t *buffer,
                      size_t len);

// An extended attribute ("user.name"): how many bytes it has, or a negative errno; -ENODATA if there is none. The buffer is as for
// oleo_readlink, `flags` as for oleo_stat.
//
// # Safety
// `path` and `name` end in a zero byte; `buffer` has room for `len` bytes.
int64_t oleo_getxattr(oleo_image image,
                      const char *path,
                      const char *name,
                      uint32_t flags,
                      uint8_t *buffer,
                      size_t len);

// The names of all extended attributes, each ending in a zero byte: how many bytes they have together, or a negative errno. The buffer is
// as for oleo_readlink, `flags` as for oleo_stat.
//
// # Safety
// `path` ends in a zero byte; `buffer` has room for `len` bytes.
int64_t oleo_listxattr(oleo_image image,
                       const char *path,
                       uint32_t flags,
                       uint8_t *buffer,
                       size_t len);

// Sets an extended attribute to `len` bytes. `flags` is 0, or OLEO_NOFOLLOW, OLEO_XATTR_CREATE (-EEXIST if it is there), OLEO_XATTR_REPLACE
// (-ENODATA if it is not).
//
// # Safety
// `path` and `name` end in a zero byte; `value` has `len` bytes.
int oleo_setxattr(oleo_image image,
                  const char *path,
                  const char *name,
                  const uint8_t *value,
                  size_t len,
                  uint32_t flags);

// Removes an extended attribute; -ENODATA if there is none. `flags` as for oleo_stat.
//
// # Safety
// `path` and `name` end in a zero byte.
int oleo_removexattr(oleo_image image, const char *path, const char *name, uint32_t flags);

// Makes a directory with these permission bits.
//
// # Safety
// `path` ends in a zero byte.
int oleo_mkdir(oleo_image image, const char *path, uint32_t mode);

// Removes a file.
//
// # Safety
// `path` ends in a zero byte.
int oleo_unlink(oleo_image image, const char *path);

// Removes an empty directory.
//
// # Safety
// `path` ends in a zero byte.
int oleo_rmdir(oleo_image image, const char *path);

// Removes a file, or a directory with everything below, nested subvolumes included.
//
// # Safety
// `path` ends in a zero byte.
int oleo_remove_tree(oleo_image image, const char *path);

// Renames or moves, to exactly this path; a file that has it is replaced.
//
// # Safety
// `from` and `to` end in a zero byte.
int oleo_rename(oleo_image image, const char *from, const char *to);

// Gives the file at `path` another name.
//
// # Safety
// `path` and `name` end in a zero byte.
int oleo_link(oleo_image image, const char *path, const char *name);

// Makes a symbolic link at `path`.
//
// # Safety
// `target` and `path` end in a zero byte.
int oleo_symlink(oleo_image image, const char *target, const char *path);

// Changes permission bits. `flags` as for oleo_stat.
//
// # Safety
// `path` ends in a zero byte.
int oleo_set_mode(oleo_image image, const char *path, uint32_t mode, uint32_t flags);

// Changes owner and group. `flags` as for oleo_stat.
//
// # Safety
// `path` ends in a zero byte.
int oleo_set_owner(oleo_image image, const char *path, uint32_t uid, uint32_t gid, uint32_t flags);

// Makes a list of all subvolumes.
//
// # Safety
// `out` has room for a handle.
int oleo_subvolumes_open(oleo_image image, oleo_subvolumes *out);

// The next subvolume, by number, the top level first: 1 if there is one, 0 at the end, or a negative errno.
//
// # Safety
// `out` has room for it.
int oleo_subvolumes_next(oleo_subvolumes list, struct oleo_subvolume *out);

// Gives a list up.
int oleo_subvolumes_close(oleo_subvolumes list);

// Makes an empty subvolume; its number goes to `out`, which may be null.
//
// # Safety
// `path` ends in a zero byte; `out` is null or has room for a number.
int oleo_subvolume_create(oleo_image image, const char *path, uint64_t *out);

// Makes a snapshot of the subvolume at `source`; `flags` is 0 or OLEO_READ_ONLY. Its number goes to `out`, which may be null.
//
// # Safety
// `source` and `path` end in a zero byte; `out` is null or has room for a number.
int oleo_snapshot(oleo_image image,
                  const char *source,
                  const char *path,
                  uint32_t flags,
                  uint64_t *out);

// Deletes the subvolume at `path`; one with others inside is refused.
//
// # Safety
// `path` ends in a zero byte.
int oleo_subvolume_delete(oleo_image image, const char *path);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* OLEO_H */
