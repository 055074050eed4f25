/* search.h: all overlaps of two sets of convex cells. Needs no Python. */
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
#endif
