/* clip.h: overlaps of convex polygons. Needs no Python. */
#ifndef HPCOMM_CLIP_H
#define HPCOMM_CLIP_H
#include <stddef.h>

/* Polygons on a plane (wide 2) or on the unit sphere (wide 3), anticlockwise seen from outside. Polygon i has the corners
   at[(i * corners + 0..corners - 1) * wide]; one with fewer corners repeats its last one. */
struct polygons {
  const double *at;
  size_t count, corners;
};

/* Room for what is left of one polygon; grows. Begin with zeros, end with clip_done. */
struct clip_room {
  double (*corners)[3], (*cut)[3], *side;
  char *along, *cut_along; /* whether the edge from a corner to the next one runs along a parallel */
  size_t most;
};

/* The overlap of polygon a of `ours` and b of `others`: area, and moment, the integral of the position over it, of `wide`
   numbers. 0; -1: there is no memory. */
int clip_overlap(struct clip_room *, int wide, const struct polygons *ours, size_t a, const struct polygons *others,
                 size_t b, double *area, double *moment);
/* The part of polygon a of `ours`, on the sphere, between two meridians and two parallels: bounds are longitudes, less than
   half a turn apart, and heights above the equator. */
int clip_within(struct clip_room *, const struct polygons *ours, size_t a, const double bounds[4], double *area,
                double *moment);
void clip_done(struct clip_room *);
#endif
