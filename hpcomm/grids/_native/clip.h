/* clip.h: overlaps of convex cells. Needs no Python. */
#ifndef HPCOMM_CLIP_H
#define HPCOMM_CLIP_H
#include <stddef.h>

/* Convex cells. On a plane or on the unit sphere: polygons, anticlockwise seen from outside, whose edges are straight or great
   circles. Cell i has the corners at[(i * corners + 0..corners - 1) * wide]; one with fewer repeats its last one. By bounds:
   rectangles on the sphere, corners 1. Cell i has the longitudes at[4 i], at[4 i + 1], less than half a turn apart, and the
   heights above the equator at[4 i + 2], at[4 i + 3]. */
enum { PLANE = 2, SPHERE = 3, BOUNDS = 4 };
struct cells {
  const double *at;
  size_t count, corners;
  int wide; /* one of these: how many numbers a corner has */
};

/* Room for what is left of one polygon; grows. Begin with zeros, end with clip_done. */
struct clip_room {
  double (*corners)[3], (*cut)[3], *side;
  char *along, *cut_along; /* whether the edge from a corner to the next one runs along a parallel */
  size_t most;
  double meridian[2][3]; /* those of the last rectangle: longitude, its sine and cosine */
};

/* The overlap of cell a of `ours` and b of `others`, of which one may be a rectangle: area, and moment, the integral of the
   position over it, 3 numbers; NULL: it is not wanted. 0; -1: there is no memory. */
int clip_overlap(struct clip_room *, const struct cells *ours, size_t a, const struct cells *others, size_t b, double *area,
                 double *moment);
/* The same of polygon a itself. */
int clip_whole(struct clip_room *, const struct cells *ours, size_t a, double *area, double *moment);
/* Whether x, of 3 numbers on the same surface, lies in polygon i: inside all planes through the origin and an edge, or on
   them but for rounding. */
int clip_has(const struct cells *, size_t i, const double *x);
void clip_done(struct clip_room *);
#endif
