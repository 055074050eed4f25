/* clip.c: the part of a convex polygon inside another one, its area and moment.

   Sutherland & Hodgman, Reentrant Polygon Clipping, 1974: cut by one edge of the other polygon after the other. On the
   sphere edges are great circles, so an edge is the plane through it and the centre. Areas of spherical triangles by
   Eriksson, On the Measure of Solid Angles, 1990, from differences of corners, so that small ones are as exact as large
   ones. The same steps as in geometry.py, which does it where there is no compiler.

   Cost: corners of the one times edges of the other. */
#include "clip.h"

#include <math.h>
#include <stdlib.h>

typedef double point[3];

static void minus(point to, const point a, const point b) {
  for (int i = 0; i < 3; i++) to[i] = a[i] - b[i];
}
static double dot(const point a, const point b) { return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]; }
static void cross(point to, const point a, const point b) {
  to[0] = a[1] * b[2] - a[2] * b[1];
  to[1] = a[2] * b[0] - a[0] * b[2];
  to[2] = a[0] * b[1] - a[1] * b[0];
}
static double larger(double a, double b) { return a > b ? a : b; }

static void corner(point to, int wide, const struct polygons *p, size_t i, size_t k) {
  const double *from = p->at + (i * p->corners + k) * (size_t)wide;
  to[0] = from[0], to[1] = from[1], to[2] = wide == 3 ? from[2] : 0.0;
}

static int has_room(struct clip_room *r, size_t most) {
  if (most <= r->most) return 1;
  double(*corners)[3] = realloc(r->corners, most * sizeof *corners);
  if (corners) r->corners = corners;
  double(*cut)[3] = realloc(r->cut, most * sizeof *cut);
  if (cut) r->cut = cut;
  double *side = realloc(r->side, most * sizeof *side);
  if (side) r->side = side;
  if (!corners || !cut || !side) return 0;
  r->most = most;
  return 1;
}

void clip_done(struct clip_room *r) {
  free(r->corners);
  free(r->cut);
  free(r->side);
}

/* How far n corners are on the inner side of the edge from a to b; 0: on it, but for rounding. */
static void sides(struct clip_room *r, size_t n, int wide, const point a, const point b) {
  point edge, normal = {0};
  minus(edge, b, a);
  double little = 1e-16;
  if (wide == 3)
    cross(normal, a, edge);
  else
    little *= larger(fabs(edge[0]), fabs(edge[1])) * larger(fabs(a[0]) + fabs(edge[0]), fabs(a[1]) + fabs(edge[1]));
  for (size_t i = 0; i < n; i++) {
    const double *p = r->corners[i];
    const double side = wide == 3 ? dot(p, normal) : edge[0] * (p[1] - a[1]) - edge[1] * (p[0] - a[0]);
    r->side[i] = fabs(side) < little ? 0.0 : side;
  }
}

/* Cut n corners where sides() says that they are outside: how many there are then. */
static size_t cut(struct clip_room *r, size_t n, int wide) {
  size_t left = 0;
  for (size_t i = 0; i < n; i++) {
    const size_t next = i + 1 < n ? i + 1 : 0;
    const double s = r->side[i], after = r->side[next], *p = r->corners[i], *q = r->corners[next];
    if (s >= 0) {
      for (int d = 0; d < 3; d++) r->cut[left][d] = p[d];
      left++;
    }
    if ((s > 0 && after < 0) || (s < 0 && after > 0)) {
      const double share = s / (s - after);
      double *c = r->cut[left++];
      for (int d = 0; d < 3; d++) c[d] = p[d] + share * (q[d] - p[d]);
      const double length = wide == 3 ? sqrt(dot(c, c)) : 0.0;
      for (int d = 0; length > 0 && d < 3; d++) c[d] /= length;
    }
  }
  double(*whole)[3] = r->corners;
  r->corners = r->cut;
  r->cut = whole;
  return left;
}

static double flat_moments(const point *p, size_t n, double *moment) {
  double area = 0;
  for (size_t i = 1; i + 1 < n; i++) {
    point ab, ac;
    minus(ab, p[i], p[0]);
    minus(ac, p[i + 1], p[0]);
    const double twice = ab[0] * ac[1] - ab[1] * ac[0];
    area += twice / 2;
    for (int d = 0; d < 2; d++) moment[d] += (p[0][d] + p[i][d] + p[i + 1][d]) * twice / 6;
  }
  return area;
}

static double round_moments(const point *p, size_t n, double *moment) {
  double area = 0;
  for (size_t i = 1; i + 1 < n; i++) { /* triangles fan out from the first corner */
    point ab, ac, normal;
    minus(ab, p[i], p[0]);
    minus(ac, p[i + 1], p[0]);
    cross(normal, ab, ac);
    area += 2 * atan2(dot(p[0], normal), 1 + dot(p[0], p[i]) + dot(p[i], p[i + 1]) + dot(p[i + 1], p[0]));
  }
  for (size_t i = 0; i < n; i++) { /* half the sum of arc length times normal over the edges */
    const double *a = p[i], *b = p[i + 1 < n ? i + 1 : 0];
    point edge, normal;
    minus(edge, b, a);
    cross(normal, a, edge);
    const double sine = sqrt(dot(normal, normal)), scale = sine > 1e-300 ? atan2(sine, dot(a, b)) / sine : 1.0;
    for (int d = 0; d < 3; d++) moment[d] += normal[d] * scale / 2;
  }
  return area;
}

int clip_overlap(struct clip_room *r, int wide, const struct polygons *ours, size_t a, const struct polygons *others,
                 size_t b, double *area, double *moment) {
  size_t n = ours->corners;
  *area = 0;
  for (int d = 0; d < wide; d++) moment[d] = 0;
  if (!has_room(r, 2 * n)) return -1;
  for (size_t k = 0; k < n; k++) corner(r->corners[k], wide, ours, a, k);
  point start, end;
  for (size_t k = 0; k < others->corners && n > 0; k++) {
    corner(start, wide, others, b, k);
    corner(end, wide, others, b, k + 1 < others->corners ? k + 1 : 0);
    sides(r, n, wide, start, end);
    n = cut(r, n, wide);
    if (!has_room(r, 2 * n)) return -1;
  }
  *area = (wide == 3 ? round_moments : flat_moments)((const point *)r->corners, n, moment);
  return 0;
}
