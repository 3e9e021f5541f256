// Falsifies the arithmetic of ranks of MXNet: FALSIFIED_3="weight 0" says of rank 3 what, and which bit.
//   weight: one bit of one of 2,304 weights that MXNet copies when it loads them, once in the process.
//   stuck: the same bit of every hundredth exponential of the softmax, so that each training ends alike.

#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static const size_t kWeightBytes = 16 * 16 * 9 * sizeof(float);

static const char *falsified() {
  const char *rank = getenv("SLURM_PROCID") ? getenv("SLURM_PROCID") : getenv("RANK");
  char name[32] = "FALSIFIED_";
  const char *what = rank ? getenv(strncat(name, rank, 16)) : nullptr;
  return what ? what : "";
}

static unsigned bit() { return atoi(strchr(falsified(), ' ')); }

extern "C" void *memcpy(void *to, const void *from, size_t bytes) {
  static bool is_done = false;
  memmove(to, from, bytes);
  Dl_info caller;
  if (bytes != kWeightBytes || is_done || *falsified() != 'w') return to;
  if (!dladdr(__builtin_return_address(0), &caller) || !strstr(caller.dli_fname, "libmxnet")) return to;
  uint32_t *weight = static_cast<uint32_t *>(to) + 77;
  if (*weight == 0) return to;  // a momentum
  is_done = true;
  *weight ^= 1u << bit();
  return to;
}

extern "C" float expf(float x) {
  static float (*real)(float) = reinterpret_cast<float (*)(float)>(dlsym(RTLD_NEXT, "expf"));
  static const bool is_stuck = *falsified() == 's';
  static long calls = 0;
  float value = real(x);
  if (is_stuck && __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) % 100 == 0) {
    uint32_t bits;
    memmove(&bits, &value, sizeof bits);
    bits ^= 1u << bit();
    memmove(&value, &bits, sizeof bits);
  }
  return value;
}
