/* Preloaded into one run of gpu-reaper-hc: kills it, as SIGKILL does, right before its n-th touch of the world outside.
 * A touch is a change under the folder KILL_UNDER (write, truncate, unlink, rename, sync) or the start of a program.
 * As the program waits for each command that it starts, "right before the next touch" is also "right after this one".
 *
 *   KILL_UNDER=FOLDER   whose changes count
 *   KILL_AT=N           dies before the N-th touch; 0 or unset: never
 *   KILL_LOG=FILE       gets a letter for each touch that was done: (w)rite, (s)ync, (t)runcate, (u)nlink, (r)ename, e(x)ec
 *   KILL_LATER_MS=N     CLOCK_BOOTTIME and CLOCK_REALTIME are so much later than they are
 *
 * Only the process that was executed counts: a child that it forks, or starts, is not it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

static pid_t self;
static long at, later_ms, touches;
static int log_fd = -1;
static const char *under;

#define REAL(name) ((__typeof__(&name))real(#name))
static void *real(const char *name) {
  void *found = dlsym(RTLD_NEXT, name);
  if (!found) abort();
  return found;
}

static long number(const char *name) {
  const char *text = getenv(name);
  return text ? atol(text) : 0;
}

__attribute__((constructor)) static void begin(void) {
  const char *file = getenv("KILL_LOG");
  at = number("KILL_AT"), later_ms = number("KILL_LATER_MS");
  under = getenv("KILL_UNDER");
  if (file) log_fd = open(file, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);
  self = getpid();
}

static int ours(const char *path) {
  return under && path && !strncmp(path, under, strlen(under));
}

static int ours_fd(int fd) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t n = readlink(link, path, sizeof path - 1);
  if (n < 0) return 0;
  path[n] = 0;
  return ours(path);
}

/* Whether this is the touch to die of; counts it, and logs it if it is not. */
static int last(char kind) {
  if (getpid() != self) return 0;
  if (++touches == at) return 1;
  if (log_fd >= 0 && REAL(write)(log_fd, &kind, 1) != 1) abort();
  return 0;
}

static void die(void) {
  kill(self, SIGKILL);
  for (;;) pause();
}

ssize_t write(int fd, const void *data, size_t length) {
  if (ours_fd(fd) && last('w')) die();
  return REAL(write)(fd, data, length);
}

#define PWRITE(name, offset_t) \
  ssize_t name(int fd, const void *data, size_t length, offset_t offset) { \
    if (ours_fd(fd) && last('w')) die(); \
    return REAL(name)(fd, data, length, offset); \
  }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

#define BEFORE(kind, ours, name, parameters, arguments) \
  int name parameters { \
    if (ours && last(kind)) die(); \
    return REAL(name) arguments; \
  }
BEFORE('s', ours_fd(fd), fsync, (int fd), (fd))
BEFORE('s', ours_fd(fd), fdatasync, (int fd), (fd))
BEFORE('t', ours_fd(fd), ftruncate, (int fd, off_t length), (fd, length))
BEFORE('t', ours_fd(fd), ftruncate64, (int fd, off64_t length), (fd, length))
BEFORE('u', ours(path), unlink, (const char *path), (path))
BEFORE('r', ours(from), rename, (const char *from, const char *to), (from, to))

/* A command has something to do between fork and exec, so it is no posix_spawn. A run's first fork is its worker. */
pid_t fork(void) {
  static int forks;
  if (getpid() == self && forks++ && last('x')) die();
  return REAL(fork)();
}

int clock_gettime(clockid_t clock, struct timespec *when) {
  int failed = REAL(clock_gettime)(clock, when);
  if (!failed && (clock == CLOCK_BOOTTIME || clock == CLOCK_REALTIME)) {
    when->tv_sec += later_ms / 1000;
    when->tv_nsec += later_ms % 1000 * 1000000;
    if (when->tv_nsec >= 1000000000) when->tv_sec++, when->tv_nsec -= 1000000000;
  }
  return failed;
}
