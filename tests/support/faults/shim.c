/* Counts, fails and records the calls of a process that open or change files under one folder. Loaded with LD_PRELOAD.
 *
 * Python's `os` module, Arrow and FFmpeg all reach the system through these functions of libc, so a test sees every
 * write, also those of C code. `shim.py` controls it through the functions `faults_*`.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, RENAME = 4, OPEN = 8, MKDIR = 16, UNLINK = 32, TRUNCATE = 64, ALLOCATE = 128, LINK = 256, READ_OPEN = 512 };
enum { ONCE = 0, FROM_THEN_ON = 1, SHORT = 2, SHORT_THEN_FAIL = 3 };
#define SPACE (WRITE | OPEN | MKDIR | TRUNCATE | ALLOCATE | LINK)

#define REAL(name) ((__typeof__(&name))real_##name)
#define LOAD(name) \
    static void *real_##name; \
    if (!real_##name) real_##name = dlsym(RTLD_NEXT, #name)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[PATH_MAX];
static size_t root_len;
static long count, fail_at, injected;
static int fail_errno, fail_mode, fail_kinds;
static int record_fd = -1;

#define MAX_MAPS 256
static struct { char *address; size_t length; uint64_t inode; off_t offset; } maps[MAX_MAPS];

/* ---- control */

void faults_root(const char *folder) {
    root_len = strlen(folder);
    memcpy(root, folder, root_len + 1);
}

void faults_arm(long n, int error, int mode, int kinds) {
    pthread_mutex_lock(&lock);
    count = injected = 0;
    fail_errno = error, fail_mode = mode, fail_kinds = kinds, fail_at = n;
    pthread_mutex_unlock(&lock);
}

long faults_disarm(void) {
    pthread_mutex_lock(&lock);
    fail_at = 0, fail_kinds = 0;
    long found = injected;
    pthread_mutex_unlock(&lock);
    return found;
}

long faults_count(void) { return count; }

/* ---- which calls are meant */

static int below(const char *path) {
    return root_len && strncmp(path, root, root_len) == 0 && (path[root_len] == '/' || path[root_len] == 0);
}

static int fd_path(int fd, char *out) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(name, out, PATH_MAX - 1);
    if (length < 0) return 0;
    out[length] = 0;
    return 1;
}

static int absolute(int dir, const char *path, char *out) {
    char base[PATH_MAX];
    int saved = errno, ok = 1;
    if (path[0] == '/') {
        snprintf(out, PATH_MAX, "%s", path);
    } else {
        ok = dir == AT_FDCWD ? getcwd(base, sizeof base) != NULL : fd_path(dir, base);
        if (ok && (size_t)snprintf(out, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) ok = 0;
    }
    errno = saved;
    return ok && below(out);
}

static int fd_below(int fd, char *out) {
    int saved = errno, found = root_len && fd != record_fd && fd_path(fd, out) && below(out);
    errno = saved;
    return found;
}

/* Return an errno if this call should fail. A write may be shortened instead. */
static int inject(int kind, size_t *length) {
    pthread_mutex_lock(&lock);
    int error = 0;
    if (fail_at) {
        int short_mode = fail_mode == SHORT || fail_mode == SHORT_THEN_FAIL;
        int after = fail_mode == SHORT_THEN_FAIL && injected;
        int can_be_short = length && *length > 1;
        if (after ? (kind & SPACE) : (kind & fail_kinds) && (!short_mode || can_be_short)) {
            count++;
            if (after) {
                error = fail_errno, injected++;
            } else if (count == fail_at && short_mode) {
                *length /= 2, injected++;
            } else if (count == fail_at || (fail_mode == FROM_THEN_ON && count > fail_at)) {
                error = fail_errno, injected++;
            }
        }
    }
    pthread_mutex_unlock(&lock);
    return error;
}

/* ---- recording */

static void put(int op, uint64_t inode, uint64_t offset, const char *a, const char *b, const void *data, size_t length) {
    if (record_fd < 0) return;
    struct { uint32_t op, length_a, length_b, unused; uint64_t inode, offset, length; } header = {
        op, a ? strlen(a) : 0, b ? strlen(b) : 0, 0, inode, offset, length};
    struct iovec parts[4] = {{&header, sizeof header}, {(void *)a, header.length_a}, {(void *)b, header.length_b},
                             {(void *)data, length}};
    LOAD(writev);
    int saved = errno;
    pthread_mutex_lock(&lock);
    size_t total = sizeof header + header.length_a + header.length_b + length;
    if (REAL(writev)(record_fd, parts, 4) != (ssize_t)total) abort();
    pthread_mutex_unlock(&lock);
    errno = saved;
}

static uint64_t inode_of(int fd) {
    struct stat status;
    return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

static void put_size(int fd) {
    struct stat status;
    if (record_fd >= 0 && fstat(fd, &status) == 0) put('T', status.st_ino, status.st_size, NULL, NULL, NULL, 0);
}

void faults_record(int fd) { record_fd = fd; }

/* Also record mapped pages: the kernel may write them back at any time. */
void faults_mark(const char *text) {
    for (int i = 0; i < MAX_MAPS; i++)
        if (maps[i].address) put('W', maps[i].inode, maps[i].offset, NULL, NULL, maps[i].address, maps[i].length);
    put('M', 0, 0, text, NULL, NULL, 0);
}

/* ---- writing */

#define WRITES(call) \
    char path[PATH_MAX]; \
    if (!fd_below(fd, path)) return call; \
    size_t wanted = length; \
    int error = inject(WRITE, &wanted); \
    if (error) { errno = error; return -1; } \
    length = wanted;

ssize_t write(int fd, const void *data, size_t length) {
    LOAD(write);
    WRITES(REAL(write)(fd, data, length))
    ssize_t written = REAL(write)(fd, data, length);
    if (written > 0) put('W', inode_of(fd), lseek(fd, 0, SEEK_CUR) - written, NULL, NULL, data, written);
    return written;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    LOAD(pwrite);
    WRITES(REAL(pwrite)(fd, data, length, offset))
    ssize_t written = REAL(pwrite)(fd, data, length, offset);
    if (written > 0) put('W', inode_of(fd), offset, NULL, NULL, data, written);
    return written;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) { return pwrite(fd, data, length, offset); }

ssize_t writev(int fd, const struct iovec *parts, int num_parts) {
    LOAD(writev);
    char path[PATH_MAX];
    if (!fd_below(fd, path)) return REAL(writev)(fd, parts, num_parts);
    ssize_t total = 0;
    for (int i = 0; i < num_parts; i++) {
        ssize_t written = write(fd, parts[i].iov_base, parts[i].iov_len);
        if (written < 0) return total ? total : -1;
        total += written;
        if ((size_t)written < parts[i].iov_len) break;
    }
    return total;
}

/* ---- syncing */

#define SYNCS(name) \
    int name(int fd) { \
        LOAD(name); \
        char path[PATH_MAX]; \
        if (!fd_below(fd, path)) return REAL(name)(fd); \
        int error = inject(SYNC, NULL); \
        if (error) { errno = error; return -1; } \
        int done = REAL(name)(fd); \
        if (!done) put('S', inode_of(fd), 0, NULL, NULL, NULL, 0); \
        return done; \
    }
SYNCS(fsync)
SYNCS(fdatasync)

static void track(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    char path[PATH_MAX];
    if (address == MAP_FAILED || !(flags & MAP_SHARED) || !(protection & PROT_WRITE) || fd < 0) return;
    if (!fd_below(fd, path)) return;
    for (int i = 0; i < MAX_MAPS; i++)
        if (!maps[i].address) {
            maps[i].address = address, maps[i].length = length;
            maps[i].inode = inode_of(fd), maps[i].offset = offset;
            return;
        }
    abort();
}

void *mmap(void *address, size_t length, int protection, int flags, int fd, off_t offset) {
    LOAD(mmap);
    void *found = REAL(mmap)(address, length, protection, flags, fd, offset);
    track(found, length, protection, flags, fd, offset);
    return found;
}

void *mmap64(void *address, size_t length, int protection, int flags, int fd, off64_t offset) {
    return mmap(address, length, protection, flags, fd, offset);
}

int munmap(void *address, size_t length) {
    LOAD(munmap);
    for (int i = 0; i < MAX_MAPS; i++)
        if (maps[i].address == address) maps[i].address = NULL;
    return REAL(munmap)(address, length);
}

int msync(void *address, size_t length, int flags) {
    LOAD(msync);
    for (int i = 0; i < MAX_MAPS; i++)
        if (maps[i].address && maps[i].address <= (char *)address && (char *)address < maps[i].address + maps[i].length) {
            int error = inject(SYNC, NULL);
            if (error) { errno = error; return -1; }
            put('W', maps[i].inode, maps[i].offset, NULL, NULL, maps[i].address, maps[i].length);
            put('S', maps[i].inode, 0, NULL, NULL, NULL, 0);
        }
    return REAL(msync)(address, length, flags);
}

/* ---- sizes */

int ftruncate(int fd, off_t size) {
    LOAD(ftruncate);
    char path[PATH_MAX];
    if (!fd_below(fd, path)) return REAL(ftruncate)(fd, size);
    int error = inject(TRUNCATE, NULL);
    if (error) { errno = error; return -1; }
    int done = REAL(ftruncate)(fd, size);
    if (!done) put_size(fd);
    return done;
}

int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

int posix_fallocate(int fd, off_t offset, off_t length) {
    LOAD(posix_fallocate);
    char path[PATH_MAX];
    if (!fd_below(fd, path)) return REAL(posix_fallocate)(fd, offset, length);
    int error = inject(ALLOCATE, NULL);
    if (error) return error;
    int done = REAL(posix_fallocate)(fd, offset, length);
    if (!done) put_size(fd);
    return done;
}

int posix_fallocate64(int fd, off64_t offset, off64_t length) { return posix_fallocate(fd, offset, length); }

int fallocate(int fd, int mode, off_t offset, off_t length) {
    LOAD(fallocate);
    char path[PATH_MAX];
    if (!fd_below(fd, path)) return REAL(fallocate)(fd, mode, offset, length);
    int error = inject(ALLOCATE, NULL);
    if (error) { errno = error; return -1; }
    int done = REAL(fallocate)(fd, mode, offset, length);
    if (!done) put_size(fd);
    return done;
}

int fallocate64(int fd, int mode, off64_t offset, off64_t length) { return fallocate(fd, mode, offset, length); }

/* ---- opening */

static int open_file(int dir, const char *path, int flags, mode_t mode) {
    LOAD(openat);
    char full[PATH_MAX];
    int writes = (flags & O_ACCMODE) != O_RDONLY || (flags & (O_CREAT | O_TRUNC));
    if (!absolute(dir, path, full)) return REAL(openat)(dir, path, flags, mode);
    int error = inject(writes ? OPEN : READ_OPEN, NULL);
    if (error) { errno = error; return -1; }
    if (!writes) return REAL(openat)(dir, path, flags, mode);
    struct stat before;
    int saved = errno, existed = fstatat(dir, path, &before, 0) == 0;
    errno = saved;
    int fd = REAL(openat)(dir, path, flags, mode);
    if (fd >= 0 && !existed) put('C', inode_of(fd), 0, full, NULL, NULL, 0);
    if (fd >= 0 && existed && (flags & O_TRUNC)) put_size(fd);
    return fd;
}

#define MODE(flags) \
    mode_t mode = 0; \
    if ((flags) & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) { MODE(flags) return open_file(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE(flags) return open_file(AT_FDCWD, path, flags, mode); }
int openat(int dir, const char *path, int flags, ...) { MODE(flags) return open_file(dir, path, flags, mode); }
int openat64(int dir, const char *path, int flags, ...) { MODE(flags) return open_file(dir, path, flags, mode); }
int creat(const char *path, mode_t mode) { return open_file(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode); }
int creat64(const char *path, mode_t mode) { return creat(path, mode); }
int __open_2(const char *path, int flags) { return open_file(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return open_file(AT_FDCWD, path, flags, 0); }
int __openat_2(int dir, const char *path, int flags) { return open_file(dir, path, flags, 0); }
int __openat64_2(int dir, const char *path, int flags) { return open_file(dir, path, flags, 0); }

DIR *opendir(const char *path) { /* its open is inside libc */
    LOAD(opendir);
    char full[PATH_MAX];
    int error = absolute(AT_FDCWD, path, full) ? inject(READ_OPEN, NULL) : 0;
    if (error) { errno = error; return NULL; }
    return REAL(opendir)(path);
}

FILE *fopen(const char *path, const char *mode) { /* so is this one */
    LOAD(fopen);
    char full[PATH_MAX];
    int writes = mode[0] != 'r' || strchr(mode, '+') != NULL;
    int error = absolute(AT_FDCWD, path, full) ? inject(writes ? OPEN : READ_OPEN, NULL) : 0;
    if (error) { errno = error; return NULL; }
    return REAL(fopen)(path, mode);
}

/* ---- names */

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    LOAD(renameat2);
    char a[PATH_MAX], b[PATH_MAX];
    int meant = absolute(from_dir, from, a) + absolute(to_dir, to, b);
    if (!meant) return REAL(renameat2)(from_dir, from, to_dir, to, flags);
    int error = inject(RENAME, NULL);
    if (error) { errno = error; return -1; }
    int done = REAL(renameat2)(from_dir, from, to_dir, to, flags);
    if (!done) put('R', 0, 0, a, b, NULL, 0);
    return done;
}

int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    return renameat2(from_dir, from, to_dir, to, 0);
}
int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int linkat(int from_dir, const char *from, int to_dir, const char *to, int flags) {
    LOAD(linkat);
    char a[PATH_MAX], b[PATH_MAX];
    int meant = absolute(from_dir, from, a) + absolute(to_dir, to, b);
    if (!meant) return REAL(linkat)(from_dir, from, to_dir, to, flags);
    int error = inject(LINK, NULL);
    if (error) { errno = error; return -1; }
    int done = REAL(linkat)(from_dir, from, to_dir, to, flags);
    if (!done) put('L', 0, 0, a, b, NULL, 0);
    return done;
}

int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int dir, const char *path, int flags) {
    LOAD(unlinkat);
    char full[PATH_MAX];
    if (!absolute(dir, path, full)) return REAL(unlinkat)(dir, path, flags);
    int error = inject(UNLINK, NULL);
    if (error) { errno = error; return -1; }
    int done = REAL(unlinkat)(dir, path, flags);
    if (!done) put('U', 0, 0, full, NULL, NULL, 0);
    return done;
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }
int rmdir(const char *path) { return unlinkat(AT_FDCWD, path, AT_REMOVEDIR); }

int mkdirat(int dir, const char *path, mode_t mode) {
    LOAD(mkdirat);
    char full[PATH_MAX];
    if (!absolute(dir, path, full)) return REAL(mkdirat)(dir, path, mode);
    int error = inject(MKDIR, NULL);
    if (error) { errno = error; return -1; }
    int done = REAL(mkdirat)(dir, path, mode);
    struct stat status;
    if (!done && fstatat(dir, path, &status, 0) == 0) put('D', status.st_ino, 0, full, NULL, NULL, 0);
    return done;
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }
