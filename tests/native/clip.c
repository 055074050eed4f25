/* clip.c: random convex polygons on a plane and on the sphere. The overlap of two is the same whichever is cut by the
   other, and parts in rectangles that fill the sphere make up the whole. Among many, the pairs that are found are those
   that overlap, and of points the first polygon around each. Says nothing if all is well. */
#include "search.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CORNERS = 7, ROUNDS = 20000, MANY = 90 };

static uint64_t state;

static double share(void) { /* in [0, 1), by chance; xorshift: Marsaglia 2003 */
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return (double)(state >> 11) / (double)(1ull << 53);
}

/* A convex polygon about a random place, at most half the sphere away; some of the last corners are said twice. */
static void make(int wide, double *at) {
  const double size = pow(10, -6 * share()), turn = 7 * share(), lon = 7 * share(),
               lat = 1.5 * share();
  for (int k = 0, n = 0; k < CORNERS; k++, n += k < 2 || share() < 0.8) {
    const double way = turn + 6.283185307179586 * n / CORNERS, x = size * cos(way), y = size * sin(way);
    if (wide == 2) {
      at[2 * k] = lon + x, at[2 * k + 1] = lat + y;
      continue;
    }
    const double east[3] = {-sin(lon), cos(lon), 0}, north[3] = {-sin(lat) * cos(lon), -sin(lat) * sin(lon), cos(lat)},
                 up[3] = {cos(lat) * cos(lon), cos(lat) * sin(lon), sin(lat)};
    const double length = sqrt(1 + x * x + y * y);
    for (int d = 0; d < 3; d++) at[3 * k + d] = (up[d] + x * east[d] + y * north[d]) / length;
  }
}

static int differ(double a, double b, double whole) { return !(fabs(a - b) <= 1e-12 * whole + 1e-16); }

/* Whether the parts of a polygon in rectangles, of 5 x 4, are the whole. */
static int is_divided(struct clip_room *room, const struct cells *ours) {
  const double west = 7 * share(), low = -share(), high = share(), heights[5] = {-1, low, 0, high, 1};
  double area = 0, moment[3] = {0}, whole, all[3];
  if (clip_whole(room, ours, 0, &whole, all)) return 0;
  for (int i = 0; i < 20; i++) {
    const double turn = 6.283185307179586 / 5, u = west + turn * (i % 5), *h = heights + i / 5;
    const double bounds[4] = {u, u + turn, h[0], h[1]};
    double part, its[3];
    const struct cells box = {bounds, 1, 1, BOUNDS};
    if (clip_overlap(room, ours, 0, &box, 0, &part, its) || part < -1e-15) return 0;
    area += part;
    for (int d = 0; d < 3; d++) moment[d] += its[d];
  }
  int same = fabs(area - whole) <= 1e-12 * whole + 1e-15;
  for (int d = 0; d < 3; d++) same &= fabs(moment[d] - all[d]) <= 1e-12 * whole + 1e-15;
  return same;
}

/* Whether of n and MANY polygons those pairs are found that overlap, in their order, as one by one. */
static int are_found(struct clip_room *room, int wide, size_t n) {
  static double a[MANY * 3 * CORNERS], b[MANY * 3 * CORNERS];
  const struct cells ours = {a, n, CORNERS, wide}, others = {b, MANY, CORNERS, wide};
  for (int i = 0; i < MANY; i++) make(wide, a + i * wide * CORNERS), make(wide, b + i * wide * CORNERS);
  struct overlaps found = {0};
  int same = !find_overlaps(&found, &ours, &others, 1);
  size_t at = 0;
  for (size_t i = 0; same && i < n; i++)
    for (size_t k = 0; same && k < MANY; k++) {
      double area, moment[3];
      if (clip_overlap(room, &ours, i, &others, k, &area, moment)) return 0;
      const struct overlap *pair = found.pairs + at;
      if (at < found.count && pair->a == (int64_t)i && pair->b == (int64_t)k) {
        same = pair->area == area && area > 0 && !memcmp(pair->moment, moment, sizeof moment);
        at++;
      } else
        same = area < 1e-13; /* they only touch */
    }
  same = same && at == found.count;
  free(found.pairs);
  return same;
}

/* Whether the first of some polygons is found that has the middle of another one in it. */
static int are_located(void) {
  static double at[MANY * 3 * CORNERS], x[MANY * 3];
  const struct cells polygons = {at, MANY, CORNERS, SPHERE}, points = {x, MANY, 1, SPHERE};
  int64_t which[MANY];
  for (int i = 0; i < MANY; i++) {
    double *all = at + i * 3 * CORNERS, *to = x + 3 * i;
    make(3, all);
    for (int d = 0; d < 3; d++) to[d] = 0;
    for (int k = 0; k < 3 * CORNERS; k++) to[k % 3] += all[k];
    const double length = sqrt(to[0] * to[0] + to[1] * to[1] + to[2] * to[2]);
    for (int d = 0; d < 3; d++) to[d] /= length;
  }
  if (find_first(which, &points, &polygons)) return 0;
  int own = 0;
  for (int64_t i = 0, k; i < MANY; i++) {
    for (k = 0; k < MANY && !clip_has(&polygons, (size_t)k, x + 3 * i); k++) continue;
    if (which[i] != (k < MANY ? k : -1)) return 0;
    own += k <= i;
  }
  return own > MANY - 3; /* but for one of two corners, which has no middle */
}

int main(int argc, char **argv) {
  state = argc > 1 ? strtoull(argv[1], NULL, 10) : 1;
  struct clip_room room = {0};
  int wrong = 0;
  for (int i = 0; i < ROUNDS; i++) {
    const int wide = 2 + i % 2;
    double a[3 * CORNERS], b[3 * CORNERS], area[2], moment[2][3];
    make(wide, a);
    make(wide, b);
    const struct cells ours = {a, 1, CORNERS, wide}, others = {i % 3 ? b : a, 1, CORNERS, wide};
    for (int way = 0; way < 2; way++)
      if (clip_overlap(&room, way ? &others : &ours, 0, way ? &ours : &others, 0, area + way, moment[way])) return 2;
    double whole, all[3];
    if (clip_whole(&room, &ours, 0, &whole, all)) return 2;
    wrong += differ(area[0], area[1], whole) || area[0] < -1e-16 || area[0] > whole * (1 + 1e-9) + 1e-16 || !(whole >= 0);
    for (int d = 0; d < wide; d++) wrong += differ(moment[0][d], moment[1][d], whole);
    wrong += wide == 3 && !is_divided(&room, &ours);
  }
  for (int i = 0; i < 40; i++) wrong += !are_found(&room, 2 + i % 2, (size_t)(i % 4 * 30));
  for (int i = 0; i < 20; i++) wrong += !are_located();
  clip_done(&room);
  if (wrong) printf("%d of %d are wrong\n", wrong, ROUNDS);
  return wrong > 0;
}
