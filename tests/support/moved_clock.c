// A wall clock that a test moves on, for a process that it is preloaded into (LD_PRELOAD) and for all its children.
//
//   MOVED_CLOCK  a file of int64: how many moves there were, and of each the real instant and what is added from then on
//                (nanoseconds)
//
// A file shows the instant at which this clock stood when it was written. Clocks that only measure are left alone.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define SIZE (1 << 20)
#define REAL(type, name, ...) \
  static type (*real_##name)(__VA_ARGS__); \
  if (!real_##name) real_##name = dlsym(RTLD_NEXT, #name)

static const volatile int64_t *moves;

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("MOVED_CLOCK");
  int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) return;
  void *found = mmap(NULL, SIZE, PROT_READ, MAP_SHARED, file, 0);
  close(file);
  if (found != MAP_FAILED) moves = found;
}

static int64_t nanoseconds(struct timespec at) { return at.tv_sec * SECOND + at.tv_nsec; }

// The last move before an instant adds to it; `is_moved`: it is one of this clock, and what was added is taken off.
static struct timespec moved(struct timespec at, int is_moved) {
  int64_t instant = nanoseconds(at), added = 0;
  for (int64_t place = moves ? moves[0] : 0; place > 0; place--) {
    added = moves[2 * place];
    if (instant >= moves[2 * place - 1] + (is_moved ? added : 0)) break;
    added = 0;
  }
  instant += is_moved ? -added : added;
  return (struct timespec){instant / SECOND, instant % SECOND};
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  REAL(int, clock_gettime, clockid_t, struct timespec *);
  int result = real_clock_gettime(clock, at);
  if (!result && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) *at = moved(*at, 0);
  return result;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
  struct timespec now;
  (void)zone;
  clock_gettime(CLOCK_REALTIME, &now);
  *at = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
  return 0;
}

time_t time(time_t *at) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (at) *at = now.tv_sec;
  return now.tv_sec;
}

static int shown(int result, struct stat64 *found) {
  if (!result) {
    found->st_mtim = moved(found->st_mtim, 0);
    found->st_ctim = moved(found->st_ctim, 0);
    found->st_atim = moved(found->st_atim, 0);
  }
  return result;
}

int stat64(const char *restrict path, struct stat64 *restrict found) {
  REAL(int, stat64, const char *, struct stat64 *);
  return shown(real_stat64(path, found), found);
}

int lstat64(const char *restrict path, struct stat64 *restrict found) {
  REAL(int, lstat64, const char *, struct stat64 *);
  return shown(real_lstat64(path, found), found);
}

int fstat64(int file, struct stat64 *found) {
  REAL(int, fstat64, int, struct stat64 *);
  return shown(real_fstat64(file, found), found);
}

int fstatat64(int folder, const char *restrict path, struct stat64 *restrict found, int flags) {
  REAL(int, fstatat64, int, const char *, struct stat64 *, int);
  return shown(real_fstatat64(folder, path, found, flags), found);
}

int utimensat(int folder, const char *path, const struct timespec given[2], int flags) {
  REAL(int, utimensat, int, const char *, const struct timespec *, int);
  if (!given) return real_utimensat(folder, path, NULL, flags);
  struct timespec real[2];
  for (int place = 0; place < 2; place++)
    real[place] = given[place].tv_nsec < SECOND ? moved(given[place], 1) : given[place];
  return real_utimensat(folder, path, real, flags);
}
