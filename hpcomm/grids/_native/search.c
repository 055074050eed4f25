/* search.c: which of many convex cells overlap, or have a point in them.

   Each cell has a ball around it. Balls are kept in a tree of boxes: the box of a node holds its balls, and its two
   children have half of them each, divided where their middles are widest apart. So cells may be of any size, and of very
   different ones.

   Cost: n log n to make the tree; for each of the other cells or points about log n boxes, and what clip.c takes for each
   pair whose balls meet. */
#include "search.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LEAF = 6 };
static const double ROUNDING = 1e-14; /* of lengths beside coordinates of 1 */
static const double MARGIN = 1e-9;    /* of a ball: more than rounding, and what is on the edge of a cell */

struct ball {
  double at[3], reach;
};

struct tree {
  struct ball *balls;
  size_t *order;              /* of the balls: a node has a range of it */
  double (*low)[3], (*high)[3]; /* of the nodes; children of i are 2 i + 1 and 2 i + 2 */
  double (*corners)[3];       /* room for those of a cell */
  int64_t *near;              /* room for what meets() finds */
};

static double distance(const double a[3], const double b[3]) {
  double square = 0;
  for (int d = 0; d < 3; d++) square += (a[d] - b[d]) * (a[d] - b[d]);
  return sqrt(square);
}

/* The corners of cell i: how many. A rectangle has 4. */
static size_t corners_of(const struct cells *cells, size_t i, double (*to)[3]) {
  const double *from = cells->at + i * cells->corners * (size_t)cells->wide;
  if (cells->wide == BOUNDS)
    for (int k = 0; k < 4; k++) {
      const double u = from[k % 2], h = from[2 + k / 2], ring = sqrt(fmax(0.0, 1 - h * h));
      to[k][0] = ring * cos(u), to[k][1] = ring * sin(u), to[k][2] = h;
    }
  else
    for (size_t k = 0; k < cells->corners; k++, from += cells->wide)
      to[k][0] = from[0], to[k][1] = from[1], to[k][2] = cells->wide == SPHERE ? from[2] : 0.0;
  return cells->wide == BOUNDS ? 4 : cells->corners;
}

/* A ball with the corners in it has the cell in it. On the sphere it is a cap, which also has each great circle and parallel
   between two of its points, if it is no more than half the sphere. */
static struct ball ball_of(double (*corners)[3], size_t n, int wide) {
  struct ball ball = {{0}, 0};
  const double zero[3] = {0};
  for (size_t k = 0; k < n; k++)
    for (int d = 0; d < 3; d++) ball.at[d] += corners[k][d] / (double)n;
  for (size_t k = 0; k < n; k++) ball.reach = fmax(ball.reach, distance(corners[k], ball.at));
  const double off = distance(ball.at, zero);
  ball.reach *= 1 + MARGIN;
  if (wide != PLANE && ball.reach * ball.reach > 1 + off * off) ball.reach = INFINITY; /* anywhere */
  return ball;
}

/* The area up to which a cell's overlap is rounding: as long as the cell, and as wide as the last digits of a corner. It does
   not depend on how often the last corner is repeated. */
static double rounding_of(double (*corners)[3], size_t n) {
  const double zero[3] = {0};
  double length = 0;
  for (size_t k = 1; k < n; k++) length = fmax(length, distance(corners[k], corners[0]));
  return ROUNDING * (distance(corners[0], zero) + length) * length;
}

/* Order so that those before `middle` are no farther along the axis than those behind it: Hoare, Find, 1961. */
static void divide(const struct tree *t, size_t first, size_t last, size_t middle, int axis) {
  while (last - first > 1) {
    const double pivot = t->balls[t->order[first + (last - first - 1) / 2]].at[axis]; /* not the last: each part has some */
    size_t i = first, j = last - 1;
    for (;; i++, j--) {
      while (t->balls[t->order[i]].at[axis] < pivot) i++;
      while (t->balls[t->order[j]].at[axis] > pivot) j--;
      if (i >= j) break;
      const size_t one = t->order[i];
      t->order[i] = t->order[j], t->order[j] = one;
    }
    if (middle <= j)
      last = j + 1;
    else
      first = j + 1;
  }
}

static void make_node(struct tree *t, size_t node, size_t first, size_t last) {
  double least[3], most[3], *low = t->low[node], *high = t->high[node];
  for (int d = 0; d < 3; d++) low[d] = least[d] = INFINITY, high[d] = most[d] = -INFINITY;
  for (size_t i = first; i < last; i++) {
    const struct ball *ball = t->balls + t->order[i];
    for (int d = 0; d < 3; d++) {
      low[d] = fmin(low[d], ball->at[d] - ball->reach), high[d] = fmax(high[d], ball->at[d] + ball->reach);
      least[d] = fmin(least[d], ball->at[d]), most[d] = fmax(most[d], ball->at[d]);
    }
  }
  if (last - first <= LEAF) return;
  int axis = 0;
  for (int d = 1; d < 3; d++)
    if (most[d] - least[d] > most[axis] - least[axis]) axis = d;
  const size_t middle = first + (last - first) / 2;
  divide(t, first, last, middle, axis);
  make_node(t, 2 * node + 1, first, middle);
  make_node(t, 2 * node + 2, middle, last);
}

/* Of cells, to be asked for others. End with tree_done, whatever it says. */
static int make_tree(struct tree *t, const struct cells *cells, const struct cells *others) {
  size_t nodes = 1;
  for (size_t most = cells->count; most > LEAF; most -= most / 2) nodes = 2 * nodes + 1;
  t->balls = malloc((cells->count + 1) * sizeof *t->balls);
  t->order = malloc((cells->count + 1) * sizeof *t->order);
  t->low = malloc(nodes * sizeof *t->low);
  t->high = malloc(nodes * sizeof *t->high);
  t->corners = malloc((cells->corners + others->corners + 4) * sizeof *t->corners);
  t->near = malloc((cells->count + 1) * sizeof *t->near);
  if (!t->balls || !t->order || !t->low || !t->high || !t->corners || !t->near) return -1;
  for (size_t i = 0; i < cells->count; i++) {
    t->balls[i] = ball_of(t->corners, corners_of(cells, i, t->corners), cells->wide);
    t->order[i] = i;
  }
  make_node(t, 0, 0, cells->count);
  return 0;
}

static void tree_done(struct tree *t) {
  free(t->balls);
  free(t->order);
  free(t->low);
  free(t->high);
  free(t->corners);
  free(t->near);
}

/* Put into `near` those whose balls meet this one: how many. */
static size_t meets(const struct tree *t, size_t node, size_t first, size_t last, const struct ball *ball, int64_t *near) {
  for (int d = 0; d < 3; d++)
    if (ball->at[d] + ball->reach < t->low[node][d] || ball->at[d] - ball->reach > t->high[node][d]) return 0;
  size_t n = 0;
  if (last - first > LEAF) {
    const size_t middle = first + (last - first) / 2;
    n = meets(t, 2 * node + 1, first, middle, ball, near);
    return n + meets(t, 2 * node + 2, middle, last, ball, near + n);
  }
  for (size_t i = first; i < last; i++) {
    const struct ball *other = t->balls + t->order[i];
    if (distance(ball->at, other->at) <= ball->reach + other->reach) near[n++] = (int64_t)t->order[i];
  }
  return n;
}

static int ascending(const void *a, const void *b) {
  const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
  return (x > y) - (x < y);
}

static int has_room(struct overlaps *o, size_t more) {
  if (o->count + more <= o->most) return 1;
  const size_t most = 2 * (o->count + more);
  struct overlap *pairs = realloc(o->pairs, most * sizeof *pairs);
  if (!pairs) return 0;
  o->pairs = pairs, o->most = most;
  return 1;
}

int find_overlaps(struct overlaps *o, const struct cells *ours, const struct cells *others, int has_moments) {
  struct tree tree = {0};
  struct clip_room room = {0};
  int failed = make_tree(&tree, others, ours);
  for (size_t a = 0; !failed && a < ours->count; a++) {
    const size_t corners = corners_of(ours, a, tree.corners);
    const struct ball ball = ball_of(tree.corners, corners, ours->wide);
    const double rounding = rounding_of(tree.corners, corners);
    const size_t n = meets(&tree, 0, 0, others->count, &ball, tree.near);
    qsort(tree.near, n, sizeof *tree.near, ascending);
    failed = !has_room(o, n);
    for (size_t i = 0; !failed && i < n; i++) {
      const size_t b = (size_t)tree.near[i];
      struct overlap *pair = o->pairs + o->count;
      *pair = (struct overlap){.a = (int64_t)a, .b = (int64_t)b};
      failed = clip_overlap(&room, ours, a, others, b, &pair->area, has_moments ? pair->moment : NULL);
      o->count += pair->area > rounding;
    }
  }
  clip_done(&room);
  tree_done(&tree);
  return failed ? -1 : 0;
}

int find_first(int64_t *which, const struct cells *points, const struct cells *polygons) {
  struct tree tree = {0};
  const int failed = make_tree(&tree, polygons, points);
  for (size_t a = 0; !failed && a < points->count; a++) {
    const double *x = points->at + 3 * a;
    const struct ball ball = {{x[0], x[1], x[2]}, 0};
    const size_t n = meets(&tree, 0, 0, polygons->count, &ball, tree.near);
    which[a] = -1;
    for (size_t i = 0; i < n; i++)
      if ((which[a] < 0 || tree.near[i] < which[a]) && clip_has(polygons, (size_t)tree.near[i], x)) which[a] = tree.near[i];
  }
  tree_done(&tree);
  return failed;
}
