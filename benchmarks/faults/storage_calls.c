/* Stands between a program and the C library (LD_PRELOAD) and sees every call that changes a disk:
 * Python's own and LMDB's alike. Calls below one folder are counted; at the n-th the process is
 * killed, perhaps with half of a write done, or the call fails. All of them can be logged with what
 * they wrote, for simulated power failures. What is written through mappings is not seen: LMDB
 * writes its lock file so, and nothing else.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { NOTHING, KILL, KILL_HALF_WAY, FAIL_EIO, FAIL_ENOSPC };

static char root[PATH_MAX];
static size_t root_length;
static int log_file = -1;
static long calls, stop_at = -1;
static int action;

/* Called from Python by ctypes. */
void faults_arm(const char *folder, int log, long at, int what) {
    snprintf(root, sizeof root, "%s", folder);
    root_length = strlen(root);
    log_file = log;
    calls = 0;
    stop_at = at;
    action = what;
}
long faults_count(void) { return calls; }

static int is_below(const char *path) {
    return root_length && strncmp(path, root, root_length) == 0 &&
           (path[root_length] == '/' || path[root_length] == 0);
}

static int path_of(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, path, PATH_MAX - 1);
    if (n < 0) return 0;
    path[n] = 0;
    return is_below(path);
}

static int absolute(int dir, const char *given, char *path) {
    if (given[0] == '/') { snprintf(path, PATH_MAX, "%s", given); return is_below(path); }
    char base[PATH_MAX];
    if (dir == AT_FDCWD) { if (!getcwd(base, sizeof base)) return 0; }
    else {
        char link[64];
        snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
        ssize_t n = syscall(SYS_readlinkat, AT_FDCWD, link, base, PATH_MAX - 1);
        if (n < 0) return 0;
        base[n] = 0;
    }
    if (snprintf(path, PATH_MAX, "%s/%s", base, given) >= PATH_MAX) return 0;
    return is_below(path);
}

static void put(const void *bytes, size_t n) {
    if (log_file >= 0) syscall(SYS_write, log_file, bytes, n);
}

/* One entry: kind, inode, offset, length of the names, length of the data; then both. */
static void note(char kind, uint64_t inode, int64_t offset, const char *names,
                 const struct iovec *data, int parts) {
    if (log_file < 0) return;
    uint64_t total = 0;
    for (int i = 0; i < parts; i++) total += data[i].iov_len;
    struct { uint64_t kind, inode; int64_t offset; uint64_t names, data; } head =
        {(uint64_t)kind, inode, offset, strlen(names), total};
    put(&head, sizeof head);
    put(names, strlen(names));
    for (int i = 0; i < parts; i++) put(data[i].iov_base, data[i].iov_len);
}

void faults_mark(long number) { note('!', 0, number, "", NULL, 0); }

/* What to do at this call: NOTHING, or how it ends. Does not return if the process is killed. */
static int now(void) {
    if (calls++ != stop_at) return NOTHING;
    if (action == KILL) kill(getpid(), SIGKILL);
    return action;
}
static int failing(int what) {
    if (what == FAIL_EIO) errno = EIO;
    if (what == FAIL_ENOSPC) errno = ENOSPC;
    if (what == KILL_HALF_WAY) kill(getpid(), SIGKILL);
    return what == FAIL_EIO || what == FAIL_ENOSPC;
}
static uint64_t inode_of(int fd) {
    struct stat s;
    return fstat(fd, &s) ? 0 : s.st_ino;
}

static int opened(int dir, const char *given, int flags, mode_t mode) {
    char path[PATH_MAX];
    int seen = absolute(dir, given, path), new = 0;
    if (seen) {
        struct stat s;
        int there = syscall(SYS_newfstatat, AT_FDCWD, path, &s, 0) == 0;
        new = (flags & O_CREAT) && !there;
        int cut = (flags & O_TRUNC) && there && s.st_size > 0;
        if ((new || cut) && failing(now())) return -1;
    }
    int fd = syscall(SYS_openat, dir, given, flags, mode);
    if (seen && fd >= 0) {
        if (new) note('c', inode_of(fd), 0, path, NULL, 0);
        else if (flags & O_TRUNC) note('t', inode_of(fd), 0, path, NULL, 0);
    }
    return fd;
}
#define MODE                                                                                       \
    mode_t mode = 0;                                                                               \
    if (flags & (O_CREAT | __O_TMPFILE)) {                                                         \
        va_list more;                                                                              \
        va_start(more, flags);                                                                     \
        mode = va_arg(more, mode_t);                                                               \
        va_end(more);                                                                              \
    }
int open(const char *p, int flags, ...) { MODE return opened(AT_FDCWD, p, flags, mode); }
int open64(const char *p, int flags, ...) { MODE return opened(AT_FDCWD, p, flags, mode); }
int openat(int d, const char *p, int flags, ...) { MODE return opened(d, p, flags, mode); }
int openat64(int d, const char *p, int flags, ...) { MODE return opened(d, p, flags, mode); }

static ssize_t written(int fd, const struct iovec *data, int parts, off_t at) {
    char path[PATH_MAX];
    int seen = fd != log_file && fd > 2 && root_length && path_of(fd, path);
    off_t where = at;
    if (seen) {
        int flags = fcntl(fd, F_GETFL);
        struct stat s;
        if (at < 0) where = (flags & O_APPEND) && !fstat(fd, &s) ? s.st_size : lseek(fd, 0, SEEK_CUR);
        int what = now();
        if (what == KILL_HALF_WAY || what == FAIL_ENOSPC) {
            size_t half = data[0].iov_len / 2;
            if (at < 0) syscall(SYS_write, fd, data[0].iov_base, half);
            else syscall(SYS_pwrite64, fd, data[0].iov_base, half, at);
        }
        if (failing(what)) return -1;
        note(flags & O_DSYNC ? 'd' : 'w', inode_of(fd), where,
             path, data, parts);
    }
    if (at < 0) return syscall(SYS_writev, fd, data, parts);
    return syscall(SYS_pwritev, fd, data, parts, (long)at, 0L);
}
ssize_t write(int fd, const void *b, size_t n) {
    struct iovec v = {(void *)b, n};
    return written(fd, &v, 1, -1);
}
ssize_t pwrite(int fd, const void *b, size_t n, off_t at) {
    struct iovec v = {(void *)b, n};
    return written(fd, &v, 1, at);
}
ssize_t pwrite64(int fd, const void *b, size_t n, off64_t at) { return pwrite(fd, b, n, at); }
ssize_t writev(int fd, const struct iovec *v, int n) { return written(fd, v, n, -1); }
ssize_t pwritev(int fd, const struct iovec *v, int n, off_t at) { return written(fd, v, n, at); }
ssize_t pwritev64(int fd, const struct iovec *v, int n, off64_t at) { return written(fd, v, n, at); }

static int on_file(int fd, char kind, off_t size) {
    char path[PATH_MAX];
    if (!root_length || !path_of(fd, path)) return 0;
    if (failing(now())) return -1;
    note(kind, inode_of(fd), size, path, NULL, 0);
    return 0;
}
int fsync(int fd) { return on_file(fd, 's', 0) ? -1 : syscall(SYS_fsync, fd); }
int fdatasync(int fd) { return on_file(fd, 's', 0) ? -1 : syscall(SYS_fdatasync, fd); }
int ftruncate(int fd, off_t n) { return on_file(fd, 't', n) ? -1 : syscall(SYS_ftruncate, fd, n); }
int ftruncate64(int fd, off64_t n) { return ftruncate(fd, n); }

/* Whether a call on names is to fail; notes it otherwise, once it has worked. */
static int named(int dir, const char *given, char *path, int *seen) {
    *seen = absolute(dir, given, path);
    return *seen && failing(now());
}
#define ON_NAME(kind, dir, given, call)                                                            \
    char path[PATH_MAX];                                                                           \
    int seen;                                                                                      \
    if (named(dir, given, path, &seen)) return -1;                                                 \
    int result = call;                                                                             \
    if (!result && seen) note(kind, 0, 0, path, NULL, 0);                                          \
    return result;
int unlink(const char *p) { ON_NAME('u', AT_FDCWD, p, syscall(SYS_unlinkat, AT_FDCWD, p, 0)) }
int unlinkat(int d, const char *p, int f) { ON_NAME('u', d, p, syscall(SYS_unlinkat, d, p, f)) }
int rmdir(const char *p) { ON_NAME('u', AT_FDCWD, p, syscall(SYS_unlinkat, AT_FDCWD, p, AT_REMOVEDIR)) }
int mkdirat(int d, const char *p, mode_t m) {
    char path[PATH_MAX];
    int seen;
    if (named(d, p, path, &seen)) return -1;
    int result = syscall(SYS_mkdirat, d, p, m);
    struct stat s;
    if (!result && seen && !syscall(SYS_newfstatat, AT_FDCWD, path, &s, 0))
        note('m', s.st_ino, 0, path, NULL, 0);
    return result;
}
int mkdir(const char *p, mode_t m) { return mkdirat(AT_FDCWD, p, m); }
int renameat2(int d, const char *p, int e, const char *q, unsigned flags) {
    char from[PATH_MAX], to[PATH_MAX];
    int seen;
    if (named(d, p, from, &seen)) return -1;
    int result = syscall(SYS_renameat2, d, p, e, q, flags);
    if (!result && seen && absolute(e, q, to)) {
        struct iovec data = {to, strlen(to)};
        note('r', 0, 0, from, &data, 1);
    }
    return result;
}
int rename(const char *p, const char *q) { return renameat2(AT_FDCWD, p, AT_FDCWD, q, 0); }
int renameat(int d, const char *p, int e, const char *q) { return renameat2(d, p, e, q, 0); }
