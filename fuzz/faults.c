/* Preloaded before libc: calls that write below a folder fail, from a chosen one on, or that one only. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { ONCE, ALWAYS, SHORT };
static char folder[4096];
static long at, seen;
static int code, how, armed;

void faults_arm(const char *where, long call, int error, int kind) {
  strncpy(folder, where, sizeof folder - 1);
  at = call, seen = 0, code = error, how = kind;
  __atomic_store_n(&armed, 1, __ATOMIC_SEQ_CST);
}

long faults_disarm(void) {
  __atomic_store_n(&armed, 0, __ATOMIC_SEQ_CST);
  return seen;
}

static int inside(const char *path) {
  return path && !strncmp(path, folder, strlen(folder));
}

/* Whether this call fails. A short write takes half of the bytes once, and all others fail from then on. */
static int fails(int *half) {
  long now = __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST);
  if (half) *half = how == SHORT && now == at;
  if (half && *half) return 0;
  if (now == at || (how != ONCE && now > at)) return errno = code, 1;
  return 0;
}

static int by_name(const char *path) {
  return __atomic_load_n(&armed, __ATOMIC_SEQ_CST) && inside(path) && fails(NULL);
}

/* A full disk has room for another name of a file that is there. */
static int renaming(const char *path) {
  return code != ENOSPC && by_name(path);
}

static int by_handle(int handle, int *half) {
  char link[64], path[4096];
  if (half) *half = 0;
  if (!__atomic_load_n(&armed, __ATOMIC_SEQ_CST)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", handle);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return inside(path) && fails(half);
}

#define REAL(name) static __typeof__(name) *real; if (!real) real = dlsym(RTLD_NEXT, #name)
#define FAIL(type, name, params, args, test) type name params { REAL(name); if (test) return -1; return real args; }
#define CUT(half, n) ((half) && (n) > 1 ? (n) / 2 : (n))
#define WRITE(name, params, args, fd, n) ssize_t name params { REAL(name); int half; \
  if (by_handle(fd, &half)) { return -1; } n = CUT(half, n); return real args; }

WRITE(write, (int fd, const void *b, size_t n), (fd, b, n), fd, n)
WRITE(pwrite, (int fd, const void *b, size_t n, off_t o), (fd, b, n, o), fd, n)
WRITE(pwrite64, (int fd, const void *b, size_t n, off64_t o), (fd, b, n, o), fd, n)
WRITE(writev, (int fd, const struct iovec *v, int n), (fd, v, n), fd, n)
WRITE(pwritev, (int fd, const struct iovec *v, int n, off_t o), (fd, v, n, o), fd, n)
WRITE(pwritev64, (int fd, const struct iovec *v, int n, off64_t o), (fd, v, n, o), fd, n)
WRITE(copy_file_range, (int a, off64_t *ao, int b, off64_t *bo, size_t n, unsigned f), (a, ao, b, bo, n, f), b, n)
ssize_t sendfile(int, int, off_t *, size_t);
ssize_t sendfile64(int, int, off64_t *, size_t);
WRITE(sendfile, (int b, int a, off_t *o, size_t n), (b, a, o, n), b, n)
WRITE(sendfile64, (int b, int a, off64_t *o, size_t n), (b, a, o, n), b, n)
FAIL(int, fsync, (int fd), (fd), by_handle(fd, NULL))
FAIL(int, fdatasync, (int fd), (fd), by_handle(fd, NULL))
FAIL(int, ftruncate, (int fd, off_t n), (fd, n), by_handle(fd, NULL))
FAIL(int, ftruncate64, (int fd, off64_t n), (fd, n), by_handle(fd, NULL))
FAIL(int, rename, (const char *a, const char *b), (a, b), renaming(b))
FAIL(int, renameat, (int x, const char *a, int y, const char *b), (x, a, y, b), renaming(b))
FAIL(int, renameat2, (int x, const char *a, int y, const char *b, unsigned f), (x, a, y, b, f), renaming(b))
FAIL(int, link, (const char *a, const char *b), (a, b), by_name(b))
FAIL(int, linkat, (int x, const char *a, int y, const char *b, int f), (x, a, y, b, f), by_name(b))
FAIL(int, symlink, (const char *a, const char *b), (a, b), by_name(b))
FAIL(int, mkdir, (const char *p, mode_t m), (p, m), by_name(p))
FAIL(int, mkdirat, (int d, const char *p, mode_t m), (d, p, m), by_name(p))

int posix_fallocate(int fd, off_t o, off_t n) {
  REAL(posix_fallocate);
  return by_handle(fd, NULL) ? code : real(fd, o, n);
}

/* numpy writes arrays by streams of C, whose own writes cannot be replaced. */
size_t fwrite(const void *b, size_t size, size_t n, FILE *f) {
  REAL(fwrite);
  int half;
  if (by_handle(fileno(f), &half)) return 0;
  return real(b, size, CUT(half, n), f);
}

#define OPEN(name, params, args, p) int name params { REAL(name); mode_t m = 0; \
  if (f & (O_CREAT | O_TMPFILE)) { va_list l; va_start(l, f); m = va_arg(l, mode_t); va_end(l); } \
  return (f & O_CREAT) && access(p, F_OK) && by_name(p) ? -1 : real args; }

OPEN(open, (const char *p, int f, ...), (p, f, m), p)
OPEN(open64, (const char *p, int f, ...), (p, f, m), p)
OPEN(openat, (int d, const char *p, int f, ...), (d, p, f, m), p)
OPEN(openat64, (int d, const char *p, int f, ...), (d, p, f, m), p)
