/* A tour of liboleo: makes an image, writes to it, takes a snapshot, and reads it as another program would.
 *
 *   cc tour.c $(pkg-config --cflags --libs oleo) -o tour && ./tour disk.img
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include <oleo.h>

/* Ends the program with what the library says. */
static int64_t must(int64_t result, const char *what)
{
	if (result < 0) {
		fprintf(stderr, "%s: %s (%s, errno %d)\n", what, oleo_error_message(), oleo_error_kind(), (int)-result);
		exit(1);
	}
	return result;
}

static void write_all(const char *name)
{
	oleo_image image;
	oleo_file file;

	must(oleo_create(name, (uint64_t)256 << 20, "tour", &image), "create");
	must(oleo_subvolume_create(image, "home", NULL), "subvolume");
	must(oleo_mkdir(image, "home/letters", 0755), "mkdir");
	must(oleo_file_create(image, "home/letters/first", 0644, &file), "create a file");
	must(oleo_file_write(file, (const uint8_t *)"Dear reader\n", 12, 0), "write");
	must(oleo_file_write(file, (const uint8_t *)"far away", 8, 1 << 20), "write behind a hole");
	must(oleo_file_sync(file), "sync the file");
	must(oleo_file_close(file), "close the file");
	must(oleo_snapshot(image, "home", "monday", OLEO_READ_ONLY, NULL), "snapshot");
	must(oleo_rename(image, "home/letters/first", "home/letters/sent"), "rename");
	must(oleo_symlink(image, "letters/sent", "home/latest"), "symlink");
	must(oleo_close(image), "close");
}

static void list(oleo_image image, const char *path)
{
	struct oleo_entry entry;
	oleo_dir dir;

	must(oleo_dir_open(image, path, &dir), path);
	while (must(oleo_dir_next(dir, &entry), path)) {
		const char *kind = S_ISDIR(entry.mode) ? "directory" : S_ISLNK(entry.mode) ? "link" : "file";
		printf("%s/%s: %s\n", path, entry.name, entry.subvolume ? "subvolume" : kind);
	}
	must(oleo_dir_close(dir), path);
}

static void read_all(const char *name)
{
	oleo_image image;
	oleo_file file;
	oleo_subvolumes subvolumes;
	struct oleo_subvolume subvolume;
	struct oleo_stat about;
	struct oleo_info info;
	struct oleo_extent extents[8];
	uint8_t text[32];
	int64_t count;

	must(oleo_open(name, 0, &image), "open");
	must(oleo_get_info(image, &info), "info");
	printf("label %s, blocks of %" PRIu32 " bytes\n", info.label, info.nodesize);
	must(oleo_subvolumes_open(image, &subvolumes), "subvolumes");
	while (must(oleo_subvolumes_next(subvolumes, &subvolume), "subvolumes"))
		printf("subvolume %" PRIu64 ": /%s%s\n", subvolume.id, subvolume.path,
		       subvolume.flags & OLEO_READ_ONLY ? ", read-only" : "");
	must(oleo_subvolumes_close(subvolumes), "subvolumes");
	list(image, "");
	list(image, "home/letters");
	list(image, "monday/letters");

	must(oleo_stat(image, "home/latest", 0, &about), "stat");
	printf("home/latest: %" PRIu64 " bytes\n", about.size);
	must(oleo_file_open(image, "monday/letters/first", &file), "open a file");
	count = must(oleo_file_read(file, text, sizeof text, 0), "read");
	printf("%.*s", (int)strcspn((char *)text, "\n") + 1, (char *)text);
	printf("%" PRId64 " bytes read\n", count);
	count = must(oleo_file_extents(file, 0, extents, 8), "extents");
	for (int64_t at = 0; at < count; at++)
		printf("extent at %" PRIu64 " of %" PRIu64 " bytes\n", extents[at].offset, extents[at].length);

	/* What goes wrong is a negative errno, and a message. */
	count = oleo_file_open(image, "no/such/file", &file);
	printf("errno %d: %s\n", (int)-count, oleo_error_message());
	must(oleo_close(image), "close");
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: %s IMAGE\n", argv[0]);
		return 2;
	}
	write_all(argv[1]);
	read_all(argv[1]);
	return 0;
}
