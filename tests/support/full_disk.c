// Loaded before the C library, so that Python, SQLite and safetensors are all told the same.
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int is_full(int file) {
  char link[64], path[4096], place[512];
  const char *full = getenv("FULL_DISK");
  if (!full) return 0;
  int kept = errno, there = syscall(SYS_openat, AT_FDCWD, full, O_RDWR | O_APPEND | O_CLOEXEC);
  if (there < 0) return errno = kept, 0;
  long length = syscall(SYS_pread64, there, place, sizeof place - 1, 0);
  place[length < 0 ? 0 : length] = 0;
  place[strcspn(place, "\n")] = 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", file);
  long named = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
  path[named < 0 ? 0 : named] = 0;
  int found = place[0] && strstr(path, place);
  if (found) syscall(SYS_write, there, "\nfull", 5);
  syscall(SYS_close, there);
  errno = found ? ENOSPC : kept;
  return found;
}

ssize_t write(int file, const void *from, size_t bytes) {
  return is_full(file) ? -1 : syscall(SYS_write, file, from, bytes);
}

ssize_t pwrite(int file, const void *from, size_t bytes, off_t at) {
  return is_full(file) ? -1 : syscall(SYS_pwrite64, file, from, bytes, at);
}

ssize_t pwrite64(int file, const void *from, size_t bytes, off64_t at) {
  return is_full(file) ? -1 : syscall(SYS_pwrite64, file, from, bytes, at);
}

ssize_t writev(int file, const struct iovec *from, int parts) {
  return is_full(file) ? -1 : syscall(SYS_writev, file, from, parts);
}
