/* Everything that a caller can do wrong without the library being able to defend itself is left out; the rest must be an error, and under
 * valgrind without a complaint. Prints "sound" at the end. */
#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <oleo.h>

static int failures;

#define IS(call, wanted)                                                                                               \
	do {                                                                                                           \
		int64_t got = (call);                                                                                  \
		if (got != (int64_t)(wanted)) {                                                                        \
			printf("line %d: %s: %" PRId64 ", not %d (%s)\n", __LINE__, #call, got, (int)(wanted),         \
			       oleo_error_message());                                                                  \
			failures++;                                                                                    \
		}                                                                                                      \
	} while (0)

struct job {
	oleo_file file;
	uint8_t letter;
};

/* Threads write and read beside each other, each its own part. */
static void *work(void *argument)
{
	struct job *job = argument;
	uint8_t block[4096], back[4096];

	memset(block, job->letter, sizeof block);
	for (uint64_t at = 0; at < 64; at++)
		IS(oleo_file_write(job->file, block, sizeof block, (at * 4 + job->letter) * sizeof block), 0);
	for (uint64_t at = 0; at < 64; at++) {
		IS(oleo_file_read(job->file, back, sizeof back, (at * 4 + job->letter) * sizeof back), sizeof back);
		IS(memcmp(block, back, sizeof back), 0);
	}
	/* An error is this thread's alone. */
	IS(oleo_file_read(0, back, 1, 0), -EBADF);
	IS(strcmp(oleo_error_message(), "this is no open file"), 0);
	return NULL;
}

/* Changes a byte of the first block of 64 KiB that has what the file has. */
static void damage(const char *name)
{
	static uint8_t block[1 << 16];
	FILE *image = fopen(name, "r+b");

	while (fread(block, 1, sizeof block, image) == sizeof block) {
		size_t at = 0;
		while (at < sizeof block && block[at] == 3)
			at++;
		if (at < sizeof block)
			continue;
		fseek(image, -1, SEEK_CUR);
		fputc(4, image);
		fclose(image);
		return;
	}
	IS("the file's bytes are not found" == NULL, 1);
}

int main(int argc, char **argv)
{
	oleo_image image = 7, other = 0;
	oleo_file file = 0;
	oleo_dir dir = 0;
	oleo_subvolumes list = 0;
	oleo_findings findings = 0;
	struct oleo_finding finding;
	struct oleo_stat about;
	struct oleo_entry entry;
	struct oleo_subvolume subvolume;
	struct oleo_extent extents[64];
	struct oleo_info info;
	uint8_t byte, *large;
	char path[4096];
	(void)argc;

	/* Null pointers, before there is anything. */
	IS(oleo_open(NULL, 0, &image), -EINVAL);
	IS(oleo_open(argv[1], 0, NULL), -EINVAL);
	IS(oleo_open_devices(NULL, 1, 0, 0, &image), -EINVAL);
	IS(oleo_open_devices((const char *const[]){ argv[1] }, 0, 0, 0, &image), -EINVAL);
	IS(oleo_open_devices((const char *const[]){ argv[1], NULL }, 2, 0, 0, &image), -EINVAL);
	IS(oleo_open(argv[1], 1 << 20, &image), -EINVAL);
	IS(oleo_open(argv[1], OLEO_OPEN_WRITE | OLEO_OPEN_IN_USE, &image), -EINVAL);
	IS(oleo_open(argv[1], 0, &image), -ENOENT);
	IS(strcmp(oleo_error_kind(), "refusal"), 0);
	IS(oleo_create(NULL, 256 << 20, NULL, &image), -EINVAL);
	IS(oleo_create(argv[1], 256 << 20, "\xff", &image), -EINVAL);
	IS(oleo_create(argv[1], 1000, NULL, &image) < 0, 1);
	IS(image, 7);
	IS(oleo_sync(image), -EBADF);
	IS(oleo_close(image), -EBADF);
	IS(oleo_close(0), -EBADF);

	IS(oleo_create(argv[1], (uint64_t)256 << 20, NULL, &image), 0);
	IS(oleo_open(argv[1], 0, &other), -EBUSY);
	IS(oleo_get_info(image, NULL), -EINVAL);
	IS(oleo_get_info(image, &info), 0);
	IS(info.label[0], 0);

	/* Names. */
	IS(oleo_mkdir(image, NULL, 0755), -EINVAL);
	IS(oleo_mkdir(image, "", 0755) < 0, 1);
	IS(oleo_mkdir(image, "/", 0755) < 0, 1);
	IS(oleo_mkdir(image, "..", 0755) < 0, 1);
	IS(oleo_mkdir(image, "dir", 0755), 0);
	IS(oleo_mkdir(image, "dir", 0755), -EEXIST);
	memset(path, 'n', 256);
	path[256] = 0;
	IS(oleo_mkdir(image, path, 0755), -ENAMETOOLONG);
	path[255] = 0;
	IS(oleo_mkdir(image, path, 0755), 0);
	IS(oleo_mkdir(image, "dir/\xff\xfe\x01", 0755), 0);
	IS(oleo_rmdir(image, "dir"), -ENOTEMPTY);
	IS(oleo_unlink(image, "dir"), -EISDIR);
	IS(oleo_rename(image, "dir", NULL), -EINVAL);
	IS(oleo_rename(image, "none", "any"), -ENOENT);
	IS(oleo_symlink(image, "circle", "circle"), 0);
	IS(oleo_stat(image, "circle", 0, &about), -ELOOP);
	IS(oleo_stat(image, "circle", OLEO_NOFOLLOW, &about), 0);
	IS(oleo_stat(image, "circle", 8, &about), -EINVAL);
	IS(oleo_stat(image, "dir", 0, NULL), -EINVAL);
	IS(oleo_readlink(image, "circle", NULL, 0), 6);
	IS(oleo_readlink(image, "circle", NULL, 6), -EINVAL);
	IS(oleo_readlink(image, "circle", (uint8_t *)path, 5), -ERANGE);
	IS(oleo_readlink(image, "circle", (uint8_t *)path, 6), 6);
	IS(oleo_readlink(image, "dir", (uint8_t *)path, 6), -EINVAL);
	IS(oleo_getxattr(image, "dir", "user.none", 0, NULL, 0), -ENODATA);
	IS(oleo_setxattr(image, "dir", "user.none", (const uint8_t *)"v", 1, OLEO_XATTR_REPLACE), -ENODATA);
	IS(oleo_setxattr(image, "dir", "user.one", (const uint8_t *)"value", 5, 0), 0);
	IS(oleo_setxattr(image, "dir", "user.one", (const uint8_t *)"v", 1, OLEO_XATTR_CREATE), -EEXIST);
	IS(oleo_setxattr(image, "dir", "user.none", NULL, 0, OLEO_XATTR_CREATE), 0);
	IS(oleo_setxattr(image, "dir", "user.one", (const uint8_t *)"v", 1, 6), -EINVAL);
	IS(oleo_setxattr(image, "dir", "user.one", (const uint8_t *)"v", 1, 8), -EINVAL);
	IS(oleo_setxattr(image, "dir", "user.one", NULL, 1, 0), -EINVAL);
	IS(oleo_setxattr(image, "dir", NULL, (const uint8_t *)"v", 1, 0), -EINVAL);
	IS(oleo_setxattr(image, "dir", "nobody's", (const uint8_t *)"v", 1, 0), -EOPNOTSUPP);
	IS(oleo_setxattr(image, "nobody", "user.one", (const uint8_t *)"v", 1, 0), -ENOENT);
	IS(oleo_getxattr(image, "dir", "user.one", 0, (uint8_t *)path, sizeof path), 5);
	IS(memcmp(path, "value", 5), 0);
	IS(oleo_listxattr(image, "dir", 0, NULL, 0), 19);
	IS(oleo_listxattr(image, "dir", 0, (uint8_t *)path, 18), -ERANGE);
	IS(oleo_listxattr(image, "dir", 0, (uint8_t *)path, 19), 19);
	IS(memcmp(path, "user.one\0user.none", 19) == 0 || memcmp(path, "user.none\0user.one", 19) == 0, 1);
	IS(oleo_listxattr(image, "dir", 8, NULL, 0), -EINVAL);
	IS(oleo_removexattr(image, "dir", "user.none", 0), 0);
	IS(oleo_removexattr(image, "dir", "user.none", 0), -ENODATA);
	IS(oleo_removexattr(image, "dir", NULL, 0), -EINVAL);
	IS(oleo_listxattr(image, "dir", 0, NULL, 0), 9);
	IS(oleo_set_mode(image, "dir", 0700, 0), 0);
	IS(oleo_set_owner(image, "dir", 1000, 1001, 0), 0);
	IS(oleo_stat(image, "dir", 0, &about), 0);
	IS(about.mode, 040700);
	IS(about.uid, 1000);
	IS(about.gid, 1001);

	/* Directories. */
	IS(oleo_dir_open(image, "none", &dir), -ENOENT);
	IS(oleo_dir_open(image, "circle", &dir), -ELOOP);
	IS(oleo_dir_open(image, "dir", NULL), -EINVAL);
	IS(oleo_dir_open(image, "dir", &dir), 0);
	IS(oleo_dir_next(dir, NULL), -EINVAL);
	IS(oleo_dir_next(dir, &entry), 1);
	IS(strcmp(entry.name, "\xff\xfe\x01"), 0);
	IS(oleo_dir_next(dir, &entry), 0);
	IS(oleo_dir_next(dir, &entry), 0);
	IS(oleo_file_close(dir), -EBADF);
	IS(oleo_dir_close(dir), 0);
	IS(oleo_dir_close(dir), -EBADF);
	IS(oleo_dir_next(dir, &entry), -EBADF);

	/* Files. */
	IS(oleo_file_create(image, "file", 0640, NULL), -EINVAL);
	IS(oleo_file_create(image, "file", 0640, &file), 0);
	IS(oleo_file_create(image, "file", 0640, &file), -EEXIST);
	IS(oleo_file_open(image, "dir", &other), -EISDIR);
	IS(oleo_file_read(file, NULL, 10, 0), -EINVAL);
	IS(oleo_file_read(file, NULL, 0, 0), 0);
	IS(oleo_file_read(file, &byte, SIZE_MAX, 0), -EINVAL);
	IS(oleo_file_read(file, &byte, 1, UINT64_MAX), 0);
	IS(oleo_file_write(file, NULL, 10, 0), -EINVAL);
	IS(oleo_file_write(file, &byte, SIZE_MAX, 0), -EINVAL);
	byte = 1;
	IS(oleo_file_write(file, &byte, 1, UINT64_MAX), -EFBIG);
	IS(oleo_file_truncate(file, UINT64_MAX), -EFBIG);
	IS(oleo_file_extents(file, 0, NULL, 3), -EINVAL);
	IS(oleo_file_extents(file, 0, NULL, 0), 0);
	IS(oleo_file_extents(file, 0, extents, SIZE_MAX), -EINVAL);
	IS(oleo_file_stat(file, NULL), -EINVAL);

	/* Threads. */
	pthread_t threads[4];
	struct job jobs[4];
	for (int at = 0; at < 4; at++) {
		jobs[at] = (struct job){ file, (uint8_t)at };
		IS(pthread_create(&threads[at], NULL, work, &jobs[at]), 0);
	}
	for (int at = 0; at < 4; at++)
		pthread_join(threads[at], NULL);
	IS(oleo_file_stat(file, &about), 0);
	IS(about.size, 4 * 64 * 4096);
	IS(about.mode, 0100640);
	IS(oleo_file_sync(file), 0);

	/* Extents, a few at a time: a mebibyte in pieces with holes between. */
	IS(oleo_file_truncate(file, 0), 0);
	large = calloc(1, 1 << 16);
	memset(large, 3, 1 << 16);
	for (uint64_t at = 0; at < 20; at++)
		IS(oleo_file_write(file, large, 1 << 16, at << 20), 0);
	free(large);
	IS(oleo_file_sync(file), 0);
	uint64_t from = 0, seen = 0;
	for (int64_t count; (count = oleo_file_extents(file, from, extents, 3)) != 0;) {
		IS(count < 0, 0);
		if (count < 0)
			break;
		for (int64_t at = 0; at < count; at++) {
			IS(extents[at].offset, seen << 20);
			IS(extents[at].length, 1 << 16);
			seen++;
		}
		from = extents[count - 1].offset + extents[count - 1].length;
	}
	IS(seen, 20);

	/* Subvolumes. */
	IS(oleo_subvolume_create(image, NULL, NULL), -EINVAL);
	IS(oleo_subvolume_create(image, "sub", &from), 0);
	IS(from, 256);
	IS(oleo_snapshot(image, "dir", "snap", 0, NULL), -EINVAL);
	IS(oleo_snapshot(image, "sub", "snap", 8, NULL), -EINVAL);
	IS(oleo_snapshot(image, "sub", "snap", OLEO_READ_ONLY, &from), 0);
	IS(from, 257);
	IS(oleo_mkdir(image, "snap/new", 0755), -EROFS);
	IS(oleo_subvolumes_open(image, NULL), -EINVAL);
	IS(oleo_subvolumes_open(image, &list), 0);
	IS(oleo_subvolumes_next(list, NULL), -EINVAL);
	IS(oleo_subvolumes_next(list, &subvolume), 1);
	IS(subvolume.id, 5);
	IS(strcmp(subvolume.path, ""), 0);
	IS(oleo_subvolumes_next(list, &subvolume), 1);
	IS(oleo_subvolumes_next(list, &subvolume), 1);
	IS(strcmp(subvolume.path, "snap"), 0);
	IS(subvolume.flags, OLEO_READ_ONLY);
	IS(oleo_subvolumes_next(list, &subvolume), 0);
	IS(oleo_subvolume_delete(image, "dir") < 0, 1);
	IS(oleo_subvolume_delete(image, "snap"), 0);
	IS(oleo_remove_tree(image, "sub"), 0);

	/* What is open in an image goes with it. */
	IS(oleo_dir_open(image, "dir", &dir), 0);
	IS(oleo_close(image), 0);
	IS(oleo_file_read(file, &byte, 1, 0), -EBADF);
	IS(oleo_dir_next(dir, &entry), -EBADF);
	IS(oleo_subvolumes_next(list, &subvolume), -EBADF);
	IS(oleo_file_close(file), -EBADF);
	IS(oleo_close(image), -EBADF);

	/* For reading only. */
	IS(oleo_open(argv[1], 0, &image), 0);
	IS(oleo_file_open(image, "file", &file), 0);
	IS(oleo_file_read(file, &byte, 1, 0), 1);
	IS(byte, 3);
	IS(oleo_file_write(file, &byte, 1, 0), -EROFS);
	IS(oleo_mkdir(image, "more", 0755), -EROFS);
	IS(oleo_close(image), 0);

	/* Checks, first of a sound image, then of one with bytes in the file that are not what was written. */
	const char *names[] = { argv[1] };
	IS(oleo_check(NULL, 1, 0, 0, &findings), -EINVAL);
	IS(oleo_check(names, 0, 0, 0, &findings), -EINVAL);
	IS(oleo_check(names, 1, OLEO_OPEN_WRITE, 0, &findings), -EINVAL);
	IS(oleo_check((const char *const[]){ "/nobody" }, 1, 0, 0, &findings), -ENOENT);
	IS(oleo_check(names, 1, OLEO_CHECK_DATA, 0, NULL), 0);
	IS(oleo_check(names, 1, OLEO_CHECK_DATA, 0, &findings), 0);
	IS(oleo_findings_next(findings, NULL), -EINVAL);
	IS(oleo_findings_next(findings, &finding), 0);
	IS(oleo_dir_close(findings), -EBADF);
	IS(oleo_findings_close(findings), 0);
	IS(oleo_findings_close(findings), -EBADF);
	IS(oleo_findings_next(findings, &finding), -EBADF);
	damage(argv[1]);
	IS(oleo_check(names, 1, 0, 0, NULL), 0);
	IS(oleo_check(names, 1, OLEO_CHECK_DATA, 0, &findings), 1);
	IS(oleo_findings_next(findings, &finding), 1);
	IS(strcmp(finding.kind, "data-checksum"), 0);
	IS(finding.severity, 2);
	IS((finding.places & OLEO_AT_BLOCK) != 0 && finding.block != 0, 1);
	IS(strlen(finding.have) > 0 && strlen(finding.want) > 0, 1);
	IS(oleo_findings_next(findings, &finding), 0);
	IS(oleo_findings_close(findings), 0);

	if (failures == 0)
		printf("sound\n");
	return failures != 0;
}
