// Updates of weights in the memory of the host, in one pass, for train.engine.torch.host_update, which compiles this file.
//
// Each number is rounded as the operators of train.engine.torch.optimizers round it, so that both leave the same bits.

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

// A piece of a tensor. `gradient` is float, or bfloat16 if `is_half`; `copy` is the weight in bfloat16, or null.
typedef struct {
  float *weight, *first, *second;
  const void *gradient;
  uint16_t *copy;
  int64_t size, tensor, is_half;
} piece;

INLINE float gradient_at(const void *values, int64_t i, int is_half) {
  if (!is_half) return ((const float *)values)[i];
  uint32_t bits = (uint32_t)((const uint16_t *)values)[i] << 16;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

INLINE uint16_t rounded(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  uint16_t nearest_even = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
  return value == value ? nearest_even : 0x7fc0;
}

// a b + c, rounded once where the CPU has an instruction for that, as in PyTorch's operators.
INLINE float fused(float a, float b, float c) {
#ifdef FP_FAST_FMAF
  return fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

INLINE float lerp(float start, float end, float share) {
  return share < 0.5f ? fused(share, end - start, start) : fused(share - 1, end - start, end);
}

// LARS and SGD. `numbers`: lr, momentum, decay, share of the velocity. `rates`, `decays`: of each tensor.
INLINE void momentum(piece p, const float *numbers, float rate, float decay, float scale, int is_decoupled,
                     int is_half, int has_copy) {
  float *restrict weight = p.weight, *restrict velocity = p.first;
  uint16_t *restrict copy = p.copy;
  float kept = numbers[1], share = numbers[3];
  for (int64_t i = 0; i < p.size; i++) {
    float w = weight[i], v = velocity[i] * kept;
    v = fused(scale * gradient_at(p.gradient, i, is_half), rate, v);
    if (is_decoupled)
      w = fused(-w, decay, w);
    else
      v = fused(-w, decay, v);
    w = fused(v, share, w);
    velocity[i] = v;
    weight[i] = w;
    if (has_copy) copy[i] = rounded(w);
  }
}

// Adam. `numbers`: minus the rate, shares of the gradient in both moments, decay, epsilon.
INLINE void adam(piece p, const float *numbers, float decay, float scale, int is_decoupled, int is_half,
                 int has_copy) {
  float *restrict weight = p.weight, *restrict first = p.first, *restrict second = p.second;
  uint16_t *restrict copy = p.copy;
  float rate = numbers[0], share_1 = numbers[1], share_2 = numbers[2], epsilon = numbers[4];
  for (int64_t i = 0; i < p.size; i++) {
    float w = weight[i], mean = gradient_at(p.gradient, i, is_half) * scale;
    if (is_decoupled)
      w = fused(-w, decay, w);
    else
      mean = fused(w, decay, mean);
    float m = lerp(first[i], mean, share_1), v = lerp(second[i], mean * mean, share_2);
    w = fused(m / (sqrtf(v) + epsilon), rate, w);
    first[i] = m;
    second[i] = v;
    weight[i] = w;
    if (has_copy) copy[i] = rounded(w);
  }
}

// A loop for each case, so that each is one of vector instructions.
#define EACH_CASE(call)                                    \
  if (p.is_half && p.copy) call(1, 1);                     \
  else if (p.is_half) call(1, 0);                          \
  else if (p.copy) call(0, 1);                             \
  else call(0, 0)

void update_momentum(const piece *pieces, int64_t count, const float *numbers, const float *rates, const float *decays,
                     float scale, int is_decoupled) {
  for (; count > 0; count--, pieces++) {
    piece p = *pieces;
    float rate = rates[p.tensor], decay = decays[p.tensor];
#define MOMENTUM(is_half, has_copy) momentum(p, numbers, rate, decay, scale, is_decoupled, is_half, has_copy)
    EACH_CASE(MOMENTUM);
  }
}

void update_adam(const piece *pieces, int64_t count, const float *numbers, const float *rates, const float *decays,
                 float scale, int is_decoupled) {
  (void)rates;
  for (; count > 0; count--, pieces++) {
    piece p = *pieces;
    float decay = decays[p.tensor];
#define ADAM(is_half, has_copy) adam(p, numbers, decay, scale, is_decoupled, is_half, has_copy)
    EACH_CASE(ADAM);
  }
}
