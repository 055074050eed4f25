/* layout.c: arrays whose elements do not lie in order, such as every other one, or in Fortran's order. They go through
   pieces and cells as other arrays do, element by element in C order: where that is cut does not depend on how one rank's
   array lies. If all ranks' arrays fill their memory in one and the same order, that memory moves as it is. */
#include "node.h"

#include <stdlib.h>

/* Take over the axes, joined where they lie like one. steps: in bytes. 0: several elements may share a place. */
int layout_of(struct layout *l, size_t size, int axes, const int64_t *shape, const int64_t *steps) {
  int64_t extent[LAYOUT_AXES], stride[LAYOUT_AXES]; /* of the axes by their strides */
  *l = (struct layout){.size = (int64_t)size, .high = (int64_t)size};
  for (int i = 0; i < axes; i++) {
    const int before = (int)l->axes - 1;
    if (shape[i] == 1) continue;
    if (before >= 0 && l->step[before] == shape[i] * steps[i]) {
      l->length[before] *= shape[i], l->step[before] = steps[i];
    } else {
      l->length[l->axes] = shape[i], l->step[l->axes++] = steps[i];
    }
  }
  if (l->axes == 1 && l->step[0] == l->size) l->axes = 0;
  for (int i = 0; i < l->axes; i++) {
    const int64_t last = (l->length[i] - 1) * l->step[i], apart = l->step[i] < 0 ? -l->step[i] : l->step[i];
    int at = i;
    for (; at && stride[at - 1] > apart; at--) stride[at] = stride[at - 1], extent[at] = extent[at - 1];
    stride[at] = apart, extent[at] = last < 0 ? -last : last;
    *(last < 0 ? &l->low : &l->high) += last;
  }
  for (int64_t i = 0, within = l->size; i < l->axes; within += extent[i++])
    if (stride[i] < within) return 0;
  return 1;
}

#define ROW(type)                                                                                                    \
  for (; n; n--, to += to_step, from += from_step) memcpy(to, from, sizeof(type))

static void copy_row(char *to, int64_t to_step, const char *from, int64_t from_step, size_t size, size_t n) {
  if (to_step == from_step && to_step == (int64_t)size)
    memcpy(to, from, n * size);
  else if (size == 1)
    ROW(char);
  else if (size == 2)
    ROW(char[2]);
  else if (size == 4)
    ROW(char[4]);
  else if (size == 8)
    ROW(char[8]);
  else
    ROW(char[16]);
}

static void copy(char *array, int64_t step, char *plain, int64_t plain_step, size_t size, size_t n, int reads) {
  if (reads)
    copy_row(plain, plain_step, array, step, size, n);
  else
    copy_row(array, step, plain, plain_step, size, n);
}

/* Copy nbytes between elements in order and, from the byte `at` of those on, an array that lies so. */
static void walk(const struct layout *l, char *array, size_t at, char *plain, size_t nbytes, int reads) {
  const int last = (int)l->axes - 1, above = last ? last - 1 : 0;
  const size_t size = (size_t)l->size;
  const int64_t length = l->length[last], step = l->step[last];
  const int is_across = labs(l->step[above]) < labs(step); /* then columns of some rows are nearer than their elements */
  int64_t index[LAYOUT_AXES], rest = (int64_t)(at / size);
  for (int i = last; i >= 0; rest /= l->length[i--]) array += (index[i] = rest % l->length[i]) * l->step[i];
  for (int64_t n, rows, left = (int64_t)(nbytes / size); left; left -= n, plain += n * l->size) {
    n = left < length - index[last] ? left : length - index[last];
    rows = is_across && !index[last] ? left / length : 0;
    if (rows > l->length[above] - index[above]) rows = l->length[above] - index[above];
    if (rows > 1) {
      n = rows * length;
      for (int64_t i = 0; i < length; i++)
        copy(array + i * step, l->step[above], plain + i * l->size, length * l->size, size, (size_t)rows, reads);
      array += (rows - 1) * l->step[above], index[above] += rows - 1;
    } else {
      copy(array, step, plain, l->size, size, (size_t)n, reads);
    }
    array -= index[last] * step, index[last] = 0;
    for (int i = last - 1; i >= 0; i--) { /* to the next row; behind the last one nothing is left */
      array += l->step[i];
      if (++index[i] < l->length[i]) break;
      array -= l->length[i] * l->step[i], index[i] = 0;
    }
  }
}

void call_read(const struct call *c, char *to, size_t at, size_t nbytes) {
  if (c->x_lies)
    walk(c->x_lies, (char *)(uintptr_t)c->x, at, to, nbytes, 1);
  else
    memcpy(to, c->x + at, nbytes);
}

void call_write(const struct call *c, size_t at, const char *from, size_t nbytes) {
  if (c->out_lies)
    walk(c->out_lies, c->out, at, (char *)(uintptr_t)from, nbytes, 0);
  else
    memcpy(c->out + at, from, nbytes);
}

/* From x to out of one rank, unless they are one array. */
void call_copy(const struct call *c, size_t into, size_t from, size_t nbytes) {
  char some[4096];
  if (!c->x_lies && !c->out_lies) {
    if (c->out + into != c->x + from && nbytes) memmove(c->out + into, c->x + from, nbytes);
    return;
  }
  for (size_t i = 0, n; c->out != c->x && i < nbytes; i += n) {
    n = nbytes - i < sizeof some ? nbytes - i : sizeof some;
    call_read(c, some, from + i, n);
    call_write(c, into + i, some, n);
  }
}

/* How a rank's arrays lie, for others to compare: axes 0: in order; -1: not so that the others' could lie alike. */
void call_lies(const struct call *c, struct layout *l) {
  const struct layout *x = c->x_lies, *out = c->out_lies, *one = x ? x : out;
  *l = (struct layout){0};
  if (!one) return;
  const int is_filled = !one->low && (size_t)one->high == c->nbytes && !verb_is(c->verb, INPUT_BLOCKS | OUTPUT_BLOCKS);
  const int alike = (!c->x || (x && layout_same(one, x))) && (!c->out || (out && layout_same(one, out)));
  if (is_filled && alike)
    *l = *one;
  else
    l->axes = -1;
}

int layout_same(const struct layout *a, const struct layout *b) { return !memcmp(a, b, sizeof *a); }
