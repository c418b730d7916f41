/* Preloaded: each call that names a file under $SLOW_DIR, or has it open, takes 1 ms more. $SLOW_TELL: count them. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#define open fcntl_open
#define open64 fcntl_open64
#include <fcntl.h>
#undef open
#undef open64
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static const char *where;
static long count;

__attribute__((constructor)) static void begin(void) { where = getenv("SLOW_DIR"); }

__attribute__((destructor)) static void end(void) {
    if (getenv("SLOW_TELL")) fprintf(stderr, "%ld\n", count);
}

static void at(const char *path) {
    struct timespec one = {0, 1000000};
    if (!where || !path || strncmp(path, where, strlen(where))) return;
    __atomic_add_fetch(&count, 1, __ATOMIC_RELAXED);
    nanosleep(&one, NULL);
}

static void on(int fd) {
    char link[64], name[4096];
    ssize_t size;
    if (!where) return;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    size = readlink(link, name, sizeof name - 1);
    if (size > 0) at((name[size] = 0, name));
}

#define SLOW(kind, name, takes, gives, who)                        \
    kind name takes {                                              \
        static kind(*real) takes;                                  \
        if (!real) real = (kind(*) takes)dlsym(RTLD_NEXT, #name);  \
        who;                                                       \
        return real gives;                                         \
    }

/* The mode is read even if it was not given, as the ABI allows. */
SLOW(int, open, (const char *path, int flags, mode_t mode), (path, flags, mode), at(path))
SLOW(int, open64, (const char *path, int flags, mode_t mode), (path, flags, mode), at(path))
SLOW(DIR *, opendir, (const char *path), (path), at(path))
SLOW(int, stat, (const char *path, struct stat *to), (path, to), at(path))
SLOW(int, stat64, (const char *path, struct stat64 *to), (path, to), at(path))
SLOW(int, lstat, (const char *path, struct stat *to), (path, to), at(path))
SLOW(int, lstat64, (const char *path, struct stat64 *to), (path, to), at(path))
SLOW(int, fstat, (int fd, struct stat *to), (fd, to), on(fd))
SLOW(int, fstat64, (int fd, struct stat64 *to), (fd, to), on(fd))
SLOW(int, fstatat, (int in, const char *path, struct stat *to, int how), (in, path, to, how), at(path))
SLOW(int, fstatat64, (int in, const char *path, struct stat64 *to, int how), (in, path, to, how), at(path))
SLOW(ssize_t, pread64, (int fd, void *to, size_t size, off_t from), (fd, to, size, from), on(fd))
SLOW(ssize_t, read, (int fd, void *to, size_t size), (fd, to, size), on(fd))
SLOW(ssize_t, write, (int fd, const void *from, size_t size), (fd, from, size), on(fd))
SLOW(int, fsync, (int fd), (fd), on(fd))
SLOW(int, mkdir, (const char *path, mode_t mode), (path, mode), at(path))
SLOW(int, chmod, (const char *path, mode_t mode), (path, mode), at(path))
SLOW(int, unlink, (const char *path), (path), at(path))
SLOW(int, link, (const char *from, const char *to), (from, to), at(from))
SLOW(int, rename, (const char *from, const char *to), (from, to), at(from))
