// For LD_PRELOAD: write and fsync fail on files whose path holds $FAIL_PATH, with the error number $FAIL_ERRNO, $FAIL_TIMES
// times in each process, while the file $TRIGGER exists.
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int fails(int fd) {
  static int times = 0;
  const char *path = getenv("FAIL_PATH"), *number = getenv("FAIL_ERRNO"), *limit = getenv("FAIL_TIMES");
  const char *trigger = getenv("TRIGGER");
  if (!path || !number || !limit || !trigger || times >= atoi(limit)) return 0;
  char link[64], target[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
  ssize_t length = readlink(link, target, sizeof target - 1);
  if (length < 0) return 0;
  target[length] = 0;
  if (!strstr(target, path) || access(trigger, F_OK) != 0) return 0;
  times++;
  errno = atoi(number);
  return 1;
}

extern "C" ssize_t write(int fd, const void *data, size_t size) {
  static ssize_t (*real)(int, const void *, size_t) = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
  return fails(fd) ? -1 : real(fd, data, size);
}

extern "C" int fsync(int fd) {
  static int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, "fsync");
  return fails(fd) ? -1 : real(fd);
}
