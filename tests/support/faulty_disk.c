// A disk that fails, for tests: preloaded into a server (LD_PRELOAD), it counts what is done to the files of one
// folder, lets one of these operations fail, and writes a journal from which a power cut can be made.
//
//   FAULTY_DISK_FOLDER   the folder; nothing else is touched
//   FAULTY_DISK_JOURNAL  records, see below; made anew by the process that has FAULTY_DISK_FOLDER open first
//   FAULTY_DISK_FAULT    eio | enospc | short | fsync | lie | cut, or empty: only the journal
//   FAULTY_DISK_AT       the operation that fails, counted from 1 while the file FAULTY_DISK_ARMED exists
//   FAULTY_DISK_COUNT    so many in a row (default 1)
//   FAULTY_DISK_ARMED    path of a file; operations count only while it exists, which the last fault ends
//
// A record: uint32 kind, uint32 length of path, uint64 offset, uint64 length of old, uint64 length of new; path, old, new.
// Kinds: 1 write, 2 sync of a file, 3 truncation (offset = new size, old = what was cut off), 4 rename (new = target path,
// old = its content; offset = 1 where there was one), 5 removal (old = content), 6 sync of a folder, 7 creation,
// 8 the fault.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define LIMIT 65536
static char *paths[LIMIT];
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;
static const char *folder, *fault, *armed;
static size_t folder_length;
static long at, count = 1, done;
static int journal = -1;
static pid_t owner;

#define REAL(type, name, ...) \
  static type (*real_##name)(__VA_ARGS__); \
  if (!real_##name) real_##name = dlsym(RTLD_NEXT, #name)

static ssize_t put(int fd, const void *data, size_t length) {
  REAL(ssize_t, write, int, const void *, size_t);
  size_t written = 0;
  while (written < length) {
    ssize_t part = real_write(fd, (const char *)data + written, length - written);
    if (part < 0) { if (errno == EINTR) continue; abort(); }
    written += (size_t)part;
  }
  return (ssize_t)written;
}

__attribute__((constructor)) static void begin(void) {
  const char *file = getenv("FAULTY_DISK_JOURNAL");
  folder = getenv("FAULTY_DISK_FOLDER");
  if (!folder || !file) { folder = NULL; return; }
  folder_length = strlen(folder);
  fault = getenv("FAULTY_DISK_FAULT");
  armed = getenv("FAULTY_DISK_ARMED");
  if (getenv("FAULTY_DISK_AT")) at = atol(getenv("FAULTY_DISK_AT"));
  if (getenv("FAULTY_DISK_COUNT")) count = atol(getenv("FAULTY_DISK_COUNT"));
  if (!fault) fault = "";
  owner = getpid();
  REAL(int, open, const char *, int, ...);
  journal = real_open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  unsetenv("LD_PRELOAD");  // children share the folder, but not the fault
}

static int mine(void) { return folder && getpid() == owner; }

static int in_folder(const char *path) {
  return path && strncmp(path, folder, folder_length) == 0 && (path[folder_length] == '/' || !path[folder_length]);
}

static char *absolute(int base, const char *path) {
  char buffer[8192], place[64];
  if (path[0] == '/') return strdup(path);
  if (base == AT_FDCWD) {
    if (!getcwd(buffer, 4096)) return strdup(path);
  } else {
    snprintf(place, sizeof place, "/proc/self/fd/%d", base);
    ssize_t length = readlink(place, buffer, 4096);
    if (length < 0) return strdup(path);
    buffer[length] = 0;
  }
  strcat(buffer, "/");
  strncat(buffer, path, 4000);
  return strdup(buffer);
}

static const char *path_of(int fd) { return mine() && fd >= 0 && fd < LIMIT ? paths[fd] : NULL; }

static void record(uint32_t kind, const char *path, uint64_t offset, const void *old, uint64_t old_length,
                   const void *new, uint64_t new_length) {
  uint32_t head[2] = {kind, (uint32_t)strlen(path)};
  uint64_t sizes[3] = {offset, old_length, new_length};
  size_t length = sizeof head + sizeof sizes + head[1] + old_length + new_length;
  char *all = malloc(length), *to = all;
  memcpy(to, head, sizeof head); to += sizeof head;
  memcpy(to, sizes, sizeof sizes); to += sizeof sizes;
  memcpy(to, path, head[1]); to += head[1];
  if (old_length) memcpy(to, old, old_length);
  to += old_length;
  if (new_length) memcpy(to, new, new_length);
  put(journal, all, length);  // one write: a kill leaves no half of a record
  free(all);
}

static int fails(const char *path) {
  if (!at || (armed && access(armed, F_OK) != 0)) return 0;
  done++;
  if (done < at || done >= at + count) return 0;
  if (armed && done == at + count - 1) {  // who waits for the fault sees it gone
    REAL(int, unlink, const char *);
    real_unlink(armed);
  }
  record(8, path, (uint64_t)done, NULL, 0, NULL, 0);
  return 1;
}

static int is(const char *name) { return strcmp(fault, name) == 0; }

static int cuts(void) { return is("cut") || is("lie"); }

static void cut(void) { kill(getpid(), SIGKILL); for (;;) pause(); }

static char *content(const char *path, off_t from, size_t most, size_t *length) {
  REAL(int, open, const char *, int, ...);
  struct stat about;
  *length = 0;
  int fd = real_open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return NULL;
  REAL(int, close, int);
  if (fstat(fd, &about) || !S_ISREG(about.st_mode) || about.st_size <= from) { real_close(fd); return NULL; }
  size_t wanted = (size_t)(about.st_size - from);
  if (wanted > most) wanted = most;
  char *data = malloc(wanted);
  while (*length < wanted) {
    ssize_t part = pread(fd, data + *length, wanted - *length, from + (off_t)*length);
    if (part <= 0) break;
    *length += (size_t)part;
  }
  real_close(fd);
  return data;
}

// What a write does: -2 go on with `*length` bytes, else the answer.
static ssize_t before_write(int fd, const char *path, off_t offset, const void *data, size_t *length) {
  ssize_t answer = -2;
  if (fails(path)) {
    if (cuts()) { *length /= 2; answer = -3; }
    else if (is("eio")) { errno = EIO; return -1; }
    else if (is("enospc")) { errno = ENOSPC; return -1; }
    else if (is("short") && *length > 1) *length /= 2;
  }
  size_t old_length;
  char *old = content(path, offset, *length, &old_length);
  record(1, path, (uint64_t)offset, old, old_length, data, *length);
  free(old);
  (void)fd;
  return answer;
}

static void opened(int fd, int base, const char *path, int flags, int existed, char *cut_off, size_t cut_length) {
  if (!mine() || fd < 0 || fd >= LIMIT) return;
  char *full = absolute(base, path);
  free(paths[fd]);
  paths[fd] = in_folder(full) ? full : (free(full), NULL);
  if (paths[fd]) {
    if ((flags & O_CREAT) && !existed) record(7, paths[fd], 0, NULL, 0, NULL, 0);
    else if ((flags & O_TRUNC) && cut_length) record(3, paths[fd], 0, cut_off, cut_length, NULL, 0);
  }
}

static int any_open(int (*function)(int, const char *, int, mode_t), int base, const char *path, int flags, mode_t mode) {
  char *old = NULL;
  size_t length = 0;
  int existed = 1;
  if (!mine()) return function(base, path, flags, mode);
  pthread_mutex_lock(&lock);
  char *full = absolute(base, path);
  if (in_folder(full)) {
    existed = access(full, F_OK) == 0;
    if (flags & O_TRUNC) old = content(full, 0, SIZE_MAX, &length);
  }
  free(full);
  int fd = function(base, path, flags, mode);
  int kept = errno;
  opened(fd, base, path, flags, existed, old, length);
  free(old);
  pthread_mutex_unlock(&lock);
  errno = kept;
  return fd;
}

static int plain_open(int base, const char *path, int flags, mode_t mode) {
  REAL(int, openat, int, const char *, int, ...);
  return real_openat(base, path, flags, mode);
}

#define MODE \
  mode_t mode = 0; \
  if (flags & (O_CREAT | O_TMPFILE)) { va_list rest; va_start(rest, flags); mode = va_arg(rest, mode_t); va_end(rest); }

int open(const char *path, int flags, ...) { MODE return any_open(plain_open, AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE return any_open(plain_open, AT_FDCWD, path, flags | O_LARGEFILE, mode); }
int openat(int base, const char *path, int flags, ...) { MODE return any_open(plain_open, base, path, flags, mode); }
int openat64(int base, const char *path, int flags, ...) { MODE return any_open(plain_open, base, path, flags | O_LARGEFILE, mode); }

int close(int fd) {
  REAL(int, close, int);
  if (!mine()) return real_close(fd);
  pthread_mutex_lock(&lock);
  if (fd >= 0 && fd < LIMIT && paths[fd]) { free(paths[fd]); paths[fd] = NULL; }
  int answer = real_close(fd);
  pthread_mutex_unlock(&lock);
  return answer;
}

static ssize_t any_write(int fd, const void *data, size_t length, off_t offset, int is_placed) {
  REAL(ssize_t, pwrite64, int, const void *, size_t, off_t);
  REAL(ssize_t, write, int, const void *, size_t);
  const char *path = path_of(fd);
  if (!path) return is_placed ? real_pwrite64(fd, data, length, offset) : real_write(fd, data, length);
  pthread_mutex_lock(&lock);
  struct stat about;
  off_t place = offset;
  if (!is_placed) {
    place = lseek(fd, 0, SEEK_CUR);
    if ((fcntl(fd, F_GETFL) & O_APPEND) && !fstat(fd, &about)) place = about.st_size;
  }
  ssize_t answer = before_write(fd, path, place, data, &length);
  if (answer != -1) {
    ssize_t stop = answer;
    answer = is_placed ? real_pwrite64(fd, data, length, offset) : real_write(fd, data, length);
    if (stop == -3) cut();
  }
  int kept = errno;
  pthread_mutex_unlock(&lock);
  errno = kept;
  return answer;
}

ssize_t write(int fd, const void *data, size_t length) { return any_write(fd, data, length, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) { return any_write(fd, data, length, offset, 1); }
ssize_t pwrite64(int fd, const void *data, size_t length, off_t offset) { return any_write(fd, data, length, offset, 1); }

ssize_t writev(int fd, const struct iovec *parts, int number) {
  REAL(ssize_t, writev, int, const struct iovec *, int);
  if (!path_of(fd)) return real_writev(fd, parts, number);
  ssize_t total = 0;
  for (int part = 0; part < number; part++) {
    ssize_t written = any_write(fd, parts[part].iov_base, parts[part].iov_len, 0, 0);
    if (written < 0) return total ? total : -1;
    total += written;
    if ((size_t)written < parts[part].iov_len) break;
  }
  return total;
}

static int any_sync(int fd, int is_data) {
  REAL(int, fsync, int);
  REAL(int, fdatasync, int);
  const char *path = path_of(fd);
  if (!path) return is_data ? real_fdatasync(fd) : real_fsync(fd);
  pthread_mutex_lock(&lock);
  int answer = 0, kept = 0;
  if (is("lie") && at && (!armed || access(armed, F_OK) == 0)) {
    if (fails(path)) cut();
  } else if (fails(path) && (is("fsync") || is("eio") || is("enospc") || is("cut"))) {
    if (is("cut")) cut();
    answer = -1;
    kept = is("enospc") ? ENOSPC : EIO;
  } else {
    struct stat about;
    int is_folder = !fstat(fd, &about) && S_ISDIR(about.st_mode);
    answer = is_folder ? 0 : is_data ? real_fdatasync(fd) : real_fsync(fd);
    kept = errno;
    if (!answer) record(is_folder ? 6 : 2, path, 0, NULL, 0, NULL, 0);
  }
  pthread_mutex_unlock(&lock);
  errno = kept;
  return answer;
}

int fsync(int fd) { return any_sync(fd, 0); }
int fdatasync(int fd) { return any_sync(fd, 1); }

static int any_truncate(int fd, off_t size) {
  REAL(int, ftruncate64, int, off_t);
  const char *path = path_of(fd);
  if (!path) return real_ftruncate64(fd, size);
  pthread_mutex_lock(&lock);
  int answer, kept = 0;
  if (fails(path) && !is("short") && !is("fsync")) {
    if (cuts()) cut();
    answer = -1;
    kept = is("enospc") ? ENOSPC : EIO;
  } else {
    size_t length;
    char *old = content(path, size, SIZE_MAX, &length);
    record(3, path, (uint64_t)size, old, length, NULL, 0);
    free(old);
    answer = real_ftruncate64(fd, size);
    kept = errno;
  }
  pthread_mutex_unlock(&lock);
  errno = kept;
  return answer;
}

int ftruncate(int fd, off_t size) { return any_truncate(fd, size); }
int ftruncate64(int fd, off_t size) { return any_truncate(fd, size); }

int renameat2(int, const char *, int, const char *, unsigned int);

int rename(const char *from, const char *to) {
  REAL(int, rename, const char *, const char *);
  if (!mine()) return real_rename(from, to);
  char *source = absolute(AT_FDCWD, from), *target = absolute(AT_FDCWD, to);
  int answer, kept = 0;
  pthread_mutex_lock(&lock);
  if (!in_folder(target)) {
    answer = real_rename(from, to);
    kept = errno;
  } else if (fails(target) && !is("short") && !is("fsync")) {
    if (cuts()) cut();
    answer = -1;
    kept = is("enospc") ? ENOSPC : EIO;
  } else {
    size_t length;
    int existed = access(target, F_OK) == 0;
    char *old = content(target, 0, SIZE_MAX, &length);
    answer = real_rename(from, to);
    kept = errno;
    if (!answer) {
      record(4, source, (uint64_t)existed, old, length, target, strlen(target));
      for (int fd = 0; fd < LIMIT; fd++)
        if (paths[fd] && strcmp(paths[fd], source) == 0) { free(paths[fd]); paths[fd] = strdup(target); }
    }
    free(old);
  }
  pthread_mutex_unlock(&lock);
  free(source);
  free(target);
  errno = kept;
  return answer;
}

int unlink(const char *path) {
  REAL(int, unlink, const char *);
  if (!mine()) return real_unlink(path);
  char *full = absolute(AT_FDCWD, path);
  if (!in_folder(full)) { free(full); return real_unlink(path); }
  pthread_mutex_lock(&lock);
  size_t length;
  char *old = content(full, 0, SIZE_MAX, &length);
  int answer = real_unlink(path), kept = errno;
  if (!answer) record(5, full, 0, old, length, NULL, 0);
  free(old);
  free(full);
  pthread_mutex_unlock(&lock);
  errno = kept;
  return answer;
}
