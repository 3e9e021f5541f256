// For LD_PRELOAD: the time of day is an hour late while the file $TRIGGER exists. Clocks that only count do not jump.
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int late() {
  const char *trigger = getenv("TRIGGER");
  return trigger && access(trigger, F_OK) == 0 ? 3600 : 0;
}

extern "C" int clock_gettime(clockid_t clock, struct timespec *found) noexcept {
  static int (*real)(clockid_t, struct timespec *) =
      (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int result = real(clock, found);
  if (clock == CLOCK_REALTIME) found->tv_sec += late();
  return result;
}

extern "C" int gettimeofday(struct timeval *found, void *) noexcept {
  struct timespec now;
  int result = clock_gettime(CLOCK_REALTIME, &now);
  found->tv_sec = now.tv_sec;
  found->tv_usec = now.tv_nsec / 1000;
  return result;
}

extern "C" time_t time(time_t *found) noexcept {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (found) *found = now.tv_sec;
  return now.tv_sec;
}
