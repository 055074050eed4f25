/* clip.c: the part of a convex polygon inside another one, its area and moment.

   Sutherland & Hodgman, Reentrant Polygon Clipping, 1974: cut by one edge of the other polygon after the other. On the
   sphere edges are great circles, so an edge is the plane through it and the centre. Areas of spherical triangles by
   Eriksson, On the Measure of Solid Angles, 1990, from differences of corners, so that small ones are as exact as large
   ones. Cells of rows have meridians and parallels as edges: planes, too, of which a great circle may cross the second
   kind twice. The same steps as in geometry.py, which does it where there is no compiler.

   Cost: corners of the one times edges of the other. */
#include "clip.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef double point[3];
static const double TOUCHES = 4e-16; /* of heights: a corner that is nearer lies on the parallel */
static const double STRAIGHT = 1e-8; /* shorter edges rise above their ends by less than that */
static const double EDGE = 1e-12;    /* of the way through a polygon: so far outside a point counts as on its edge */

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

static void corner(point to, const struct cells *cells, size_t i, size_t k) {
  const double *from = cells->at + (i * cells->corners + k) * (size_t)cells->wide;
  to[0] = from[0], to[1] = from[1], to[2] = cells->wide == SPHERE ? from[2] : 0.0;
}

static int has_room(struct clip_room *r, size_t most) {
  if (most <= r->most) return 1;
  double(*corners)[3] = realloc(r->corners, most * sizeof *corners);
  if (corners) r->corners = corners;
  double(*cut)[3] = realloc(r->cut, most * sizeof *cut);
  if (cut) r->cut = cut;
  double *side = realloc(r->side, most * sizeof *side);
  if (side) r->side = side;
  char *along = realloc(r->along, most);
  if (along) r->along = along;
  char *cut_along = realloc(r->cut_along, most);
  if (cut_along) r->cut_along = cut_along;
  if (!corners || !cut || !side || !along || !cut_along) return 0;
  r->most = most;
  return 1;
}

void clip_done(struct clip_room *r) {
  free(r->corners);
  free(r->cut);
  free(r->side);
  free(r->along);
  free(r->cut_along);
}

/* How far n corners are on the inner side of the edge from a to b; 0: on it, but for rounding. */
static void sides(struct clip_room *r, size_t n, int wide, const point a, const point b) {
  point edge, normal = {0};
  minus(edge, b, a);
  double little = 1e-16;
  if (wide == SPHERE)
    cross(normal, a, edge);
  else
    little *= larger(fabs(edge[0]), fabs(edge[1])) * larger(fabs(a[0]) + fabs(edge[0]), fabs(a[1]) + fabs(edge[1]));
  for (size_t i = 0; i < n; i++) {
    const double *p = r->corners[i];
    const double side = wide == SPHERE ? dot(p, normal) : edge[0] * (p[1] - a[1]) - edge[1] * (p[0] - a[0]);
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
      const double length = wide == SPHERE ? sqrt(dot(c, c)) : 0.0;
      for (int d = 0; length > 0 && d < 3; d++) c[d] /= length;
    }
  }
  double(*whole)[3] = r->corners;
  r->corners = r->cut;
  r->cut = whole;
  return left;
}

static int sign_of(double x) { return fabs(x) < TOUCHES ? 0 : x > 0 ? 1 : -1; }

static void keep(struct clip_room *r, size_t *left, const point p, int along) {
  for (int d = 0; d < 3; d++) r->cut[*left][d] = p[d];
  r->cut_along[(*left)++] = (char)along;
}

/* An edge from p to q: its highest or lowest point, if it passes one (turn 1 or -1), and where from there it is at a height:
   z = steep * cos(w), at an angle w from the highest point. */
struct arc {
  point normal;
  double length, steep;
  int turn;
};

static struct arc arc_of(const point p, const point q, int along) {
  struct arc arc = {.turn = 0};
  point edge;
  minus(edge, q, p);
  cross(arc.normal, p, edge);
  arc.length = sqrt(dot(arc.normal, arc.normal));
  if (along || arc.length < STRAIGHT) return arc;
  double *n = arc.normal;
  for (int d = 0; d < 3; d++) n[d] /= arc.length;
  arc.steep = larger(hypot(n[0], n[1]), 1e-300);
  const double rise = n[0] * p[1] - n[1] * p[0], rise_at_end = n[0] * q[1] - n[1] * q[0];
  arc.turn = rise > 0 && rise_at_end < 0 ? 1 : rise < 0 && rise_at_end > 0 ? -1 : 0;
  return arc;
}

/* Where the great circle is at this height, going up or down. */
static void at_height(point to, const struct arc *arc, double height, int upwards) {
  const point across = {arc->normal[1] / arc->steep, -arc->normal[0] / arc->steep, 0};
  point top;
  cross(top, across, arc->normal);
  const double share = height / arc->steep, cosine = share > 1 ? 1 : share < -1 ? -1 : share;
  const double sine = (upwards ? -1 : 1) * sqrt(1 - cosine * cosine);
  for (int d = 0; d < 3; d++) to[d] = top[d] * cosine + across[d] * sine;
}

/* Cut n corners where sign * (z - height) < 0: how many there are then. */
static size_t cut_by_parallel(struct clip_room *r, size_t n, double height, double sign) {
  size_t left = 0;
  for (size_t i = 0; i < n; i++) {
    const double *p = r->corners[i], *q = r->corners[i + 1 < n ? i + 1 : 0];
    const double inside = sign * (p[2] - height), after = sign * (q[2] - height);
    const struct arc arc = arc_of(p, q, r->along[i]);
    const int here = sign_of(inside), there = sign_of(after),
              far = arc.turn ? sign_of(sign * (arc.turn * arc.steep - height)) : 0;
    const int first = here ? here : far ? far : there, last = there ? there : far ? far : here;
    const int once = first * last < 0, twice = first * last > 0 && far * first < 0;
    if (here >= 0) keep(r, &left, p, r->along[i] || first < 0);
    point at;
    if (once && arc.steep == 0) {
      for (int d = 0; d < 3; d++) at[d] = p[d] + inside / (inside - after) * (q[d] - p[d]);
      keep(r, &left, at, last < 0);
    } else if (once || twice) {
      const int upwards = once ? sign * last > 0 : arc.turn > 0;
      at_height(at, &arc, height, upwards);
      keep(r, &left, at, once ? last < 0 : first > 0);
      if (twice) at_height(at, &arc, height, !upwards), keep(r, &left, at, last < 0);
    }
  }
  double(*whole)[3] = r->corners;
  char *along = r->along;
  r->corners = r->cut, r->along = r->cut_along;
  r->cut = whole, r->cut_along = along;
  return left;
}

/* The area from the great circle from a to b to the parallel, and to moment half the integral of r x dr along this. */
static double beside(const point a, const point b, point moment) {
  const double z = (a[2] + b[2]) / 2, ring = (a[0] * a[0] + a[1] * a[1] + b[0] * b[0] + b[1] * b[1]) / 2;
  const double turn = atan2(a[0] * b[1] - a[1] * b[0], a[0] * b[0] + a[1] * b[1]), t = tan(turn / 2);
  const double high = fabs(z), below = ring / (1 + high); /* 1 - |z|, with all its digits */
  moment[0] -= z * (b[1] - a[1]) / 2;
  moment[1] += z * (b[0] - a[0]) / 2;
  moment[2] += ring * turn / 2;
  const double area = below * turn - 2 * atan(below * t / (1 + high * t * t)); /* = 2 atan(|z| t) - |z| turn */
  return z > 0 ? area : -area;
}

static double flat_moments(const point *p, size_t n, point moment) {
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

static double round_moments(const point *p, size_t n, const char *along, int is_wanted, point moment) {
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
    if (along[i]) area += beside(a, b, moment);
    if (along[i] || !is_wanted) continue;
    point edge, normal;
    minus(edge, b, a);
    cross(normal, a, edge);
    const double sine = sqrt(dot(normal, normal)), scale = sine > 1e-300 ? atan2(sine, dot(a, b)) / sine : 1.0;
    for (int d = 0; d < 3; d++) moment[d] += normal[d] * scale / 2;
  }
  return area;
}

/* No edge between the n corners runs along a parallel. */
static void all_great(struct clip_room *r, size_t n) {
  if (n) memset(r->along, 0, n);
}

/* What there is to say of the n corners that are left. */
static int measured(const struct clip_room *r, size_t n, int wide, double *area, double *moment) {
  point whole = {0};
  const point *p = (const point *)r->corners;
  *area = wide == SPHERE ? round_moments(p, n, r->along, moment != NULL, whole) : flat_moments(p, n, whole);
  if (moment) memcpy(moment, whole, sizeof whole);
  return 0;
}

/* The corners of polygon a: how many, 0 if there is no memory. */
static size_t begin(struct clip_room *r, const struct cells *ours, size_t a) {
  const size_t n = ours->corners;
  if (!has_room(r, 4 * n)) return 0;
  for (size_t k = 0; k < n; k++) corner(r->corners[k], ours, a, k);
  return n;
}

int clip_whole(struct clip_room *r, const struct cells *ours, size_t a, double *area, double *moment) {
  const size_t n = begin(r, ours, a);
  all_great(r, n);
  return n ? measured(r, n, ours->wide, area, moment) : -1;
}

/* The overlap with a rectangle. */
static int within(struct clip_room *r, const struct cells *ours, size_t a, const double *bounds, double *area,
                  double *moment) {
  size_t n = begin(r, ours, a);
  if (!n) return -1;
  for (int side = 0; side < 2; side++) { /* first: what is cut by meridians has great circles as edges yet */
    double *m = r->meridian[side];
    if (m[0] != bounds[side] || (m[1] == 0 && m[2] == 0)) /* one rectangle is asked for with many polygons */
      m[0] = bounds[side], m[1] = sin(m[0]), m[2] = cos(m[0]);
    for (size_t i = 0; i < n; i++) {
      const double inside = (side ? -1 : 1) * (m[2] * r->corners[i][1] - m[1] * r->corners[i][0]);
      r->side[i] = fabs(inside) < 1e-16 ? 0.0 : inside;
    }
    n = cut(r, n, SPHERE);
  }
  all_great(r, n);
  for (int side = 0; side < 2; side++) {
    if (!has_room(r, 3 * n)) return -1;
    n = cut_by_parallel(r, n, bounds[2 + side], side ? -1 : 1);
  }
  return measured(r, n, SPHERE, area, moment);
}

int clip_overlap(struct clip_room *r, const struct cells *ours, size_t a, const struct cells *others, size_t b, double *area,
                 double *moment) {
  if (ours->wide == BOUNDS) return within(r, others, b, ours->at + 4 * a, area, moment);
  if (others->wide == BOUNDS) return within(r, ours, a, others->at + 4 * b, area, moment);
  size_t n = begin(r, ours, a);
  if (!n) return -1;
  point start, end;
  for (size_t k = 0; k < others->corners && n > 0; k++) {
    corner(start, others, b, k);
    corner(end, others, b, k + 1 < others->corners ? k + 1 : 0);
    sides(r, n, ours->wide, start, end);
    n = cut(r, n, ours->wide);
    if (!has_room(r, 2 * n)) return -1;
  }
  all_great(r, n);
  return measured(r, n, ours->wide, area, moment);
}

int clip_has(const struct cells *cells, size_t i, const double *x) {
  double least = INFINITY, most = 0;
  for (size_t k = 0; k < cells->corners; k++) {
    point a, b, edge, normal, off;
    corner(a, cells, i, k);
    corner(b, cells, i, k + 1 < cells->corners ? k + 1 : 0);
    minus(edge, b, a);
    cross(normal, a, edge);
    minus(off, x, a);
    const double side = dot(off, normal);
    if (!isfinite(side)) return 0;
    least = fmin(least, side), most = fmax(most, fabs(side));
  }
  return least >= -EDGE * most;
}
