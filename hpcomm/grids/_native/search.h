/* search.h: which of many convex cells overlap, or have a point in them. Needs no Python. */
#ifndef HPCOMM_SEARCH_H
#define HPCOMM_SEARCH_H
#include <stdint.h>

#include "clip.h"

/* What cell a of the ones and cell b of the others have in common; moment: of zeros where it is not wanted. */
struct overlap {
  int64_t a, b;
  double area, moment[3];
};

struct overlaps {
  struct overlap *pairs;
  size_t count, most;
};

/* All of `ours` with `others`, of which one may be rectangles, ordered by a, then by b. Cells that only touch have none.
   0; -1: there is no memory. Begin with zeros, and free `pairs` whatever it says. */
int find_overlaps(struct overlaps *, const struct cells *ours, const struct cells *others, int has_moments);
/* The first polygon that has each point in it, -1: none; points are cells of one corner, both in three dimensions. 0; -1: there
   is no memory. */
int find_first(int64_t *which, const struct cells *points, const struct cells *polygons);
#endif
