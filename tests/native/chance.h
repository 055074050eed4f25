/* chance.h: numbers by chance, the same for the same seed, and delays by chance at every store of the core. */
#include "node.h"

#include <time.h>

static uint64_t seed;

static uint64_t draw(uint64_t *state) { /* splitmix64: Steele, Lea & Flood 2014 */
  *state += 0x9E3779B97F4A7C15ull;
  uint64_t z = *state;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

#ifdef NODE_STOPS
void node_stop_point(void) { /* others may get in between at any store */
  static _Thread_local uint64_t own;
  if (!own)
    own = seed ^ (uint64_t)(uintptr_t)&own;
  const uint64_t d = draw(&own);
  if (d % 64 == 0)
    nanosleep(&(struct timespec){0, (long)(d >> 8) % 20000}, NULL);
}
#endif
