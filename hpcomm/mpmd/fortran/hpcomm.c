/* Fields of a program without Python. hpcomm.h has the calls; the other end is hpcomm/mpmd/guest.py.
 *
 *     init       lines to the first rank and back (handshake.py): who is who; a communicator for each pair
 *     connect    declare ─────────────────────> swap 1: what is given and taken
 *                grids (numbers, coordinates) ─> rank r of n there: it plans for ranks r, r + n, ... here
 *                                              swap 2: does all that fit together?
 *                <─ lines, rows, weights ────── what goes where, for each field
 *                                              swap 3: have all planned it?
 *     put, get   values between the ranks that need them, as in coupling_channel.py
 */
#ifdef __cplusplus
#error "hpcomm.c is C: compile it by mpicc, and link it with what mpicxx compiles"
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* for open_memstream and its like, in strict C, too */
#endif
#include "hpcomm.h"

#include "hpcomm_join.h"

/* The same bits as numpy's and SciPy's: no product is added before it is rounded. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

#define VERSION 1 /* of what guest.py and this file say to each other */
#define NEAR 1e-6 /* of a period: times are floats */
#define HEADER 2  /* doubles before the values of a field with a period: number of the time, the time */

enum { TOLD = 32300, NUMBERS, COORDINATES, PLANS, ROWS, WEIGHTS };

struct grid {
  int kind, corners; /* guest.py: KINDS */
  long count, nlat, nlon;
  int64_t *numbers;
  double *lonlat;
};

struct slot { /* messages that are under way together */
  MPI_Request *requests;
  char **memory;
};

struct side { /* a field on its way over one link */
  struct link *link;
  int tag, kind, ahead, turn, partners; /* kind: of what travels */
  double every, lag, timeout, start, factor, offset, fill;
  char how[8]; /* instant mean sum min max linear */
  int fills;   /* whether points that nothing reaches get fill */
  int *rank;
  int64_t *count, **rows;
  struct slot *slots;
  long version, joined;
  double time;
  int64_t columns, *begin, *column; /* weights; begin NULL: none */
  double *weight, *inbox, *sum, *older, *newer;
};

struct field {
  char name[128];
  int role, grid, kind, width, by_component, sides;
  struct side *side;
};

static int grids, fields, is_connected;
static struct grid *grid;
static struct field *field;

void hpcomm_init(const char *name, MPI_Comm *comm) {
  join(name);
  if (comm) *comm = own;
}

static struct link *link_of(const char *peer) {
  for (int i = 0; i < programs; i++)
    if (!strcmp(link_to[i].name, peer)) return link_to + i;
  fail("link", "the name that it gives to init or join", "no program %s in this job", peer);
}

MPI_Comm hpcomm_link(const char *peer) { return link_of(peer)->inter; }

void hpcomm_exit_at_once(int status) {
  if (*own_name) leave(status);
  _exit(status);
}

/* -- what this program gives and takes ---------------------------------------------------------------------
 */

static void check_begun(const char *verb) {
  if (own == MPI_COMM_NULL) fail(verb, "hpcomm_init first", "%s was called before init", verb);
}

static int add_grid(int kind, long count, const int64_t *numbers, int corners, const double *lonlat) {
  size_t n = (size_t)count, wide = 2 * (size_t)corners;
  check_begun("grid");
  if (count < 0 || (count && (!numbers || (kind && !lonlat))))
    fail("grid", "counts from 0, and arrays of that length", "a grid of %ld points", count);
  for (long i = 0; i < count; i++)
    if (numbers[i] < 0)
      fail("grid", "global numbers from 0", "point %ld here has the number %lld", i, (long long)numbers[i]);
  if (!(grid = realloc(grid, (size_t)(grids + 1) * sizeof *grid)))
    fail("grid", "more memory", "no memory is left");
  struct grid made = {
      kind, corners, count, 0, 0, memory(n * sizeof *numbers), memory(n * wide * sizeof *lonlat)};
  if (n) memcpy(made.numbers, numbers, n * sizeof *numbers);
  if (n && wide) memcpy(made.lonlat, lonlat, n * wide * sizeof *lonlat);
  grid[grids] = made;
  return grids++;
}

int hpcomm_grid(long count, const int64_t *numbers) { return add_grid(0, count, numbers, 0, NULL); }

int hpcomm_grid_points(long count, const int64_t *numbers, const double *lonlat) {
  return add_grid(1, count, numbers, 1, lonlat);
}

int hpcomm_grid_cells(long count, const int64_t *numbers, int corners, const double *lonlat) {
  if (corners < 3) fail("grid", "three corners or more", "cells of %d corners", corners);
  return add_grid(2, count, numbers, corners, lonlat);
}

int hpcomm_grid_rectangle(long nlat, long nlon, long lat, long nlats, long lon, long nlons) {
  if (lat < 0 || lon < 0 || nlats < 0 || nlons < 0 || lat + nlats > nlat || lon + nlons > nlon)
    fail("grid", "rows and columns from 0",
         "rows %ld to %ld and columns %ld to %ld are no part of %ld x %ld points", lat, lat + nlats - 1, lon,
         lon + nlons - 1, nlat, nlon);
  int64_t *numbers = memory((size_t)(nlats * nlons) * sizeof *numbers);
  for (long i = 0; i < nlats * nlons; i++) numbers[i] = (lat + i / nlons) * nlon + lon + i % nlons;
  int made = add_grid(0, nlats * nlons, numbers, 0, NULL);
  grid[made].kind = 3, grid[made].nlat = nlat, grid[made].nlon = nlon;
  free(numbers);
  return made;
}

static int add_field(const char *name, int role, int grid_, int kind, int width, int by_component) {
  struct field made = {"", role, grid_, kind, width, by_component, 0, NULL};
  check_begun("field");
  if (is_connected) fail("field", "declare all fields before connect", "field '%s' comes too late", name);
  if (!*name || strlen(name) >= sizeof made.name || strpbrk(name, "\t\n/"))
    fail("field", "\"heat\"", "'%s' is no name for a field", name);
  if ((role != HPCOMM_GIVES && role != HPCOMM_TAKES) || (kind != 4 && kind != 8) || width < 1)
    fail("field", "HPCOMM_GIVES or HPCOMM_TAKES; kind 4 or 8; width from 1",
         "field '%s' has the role %d, the kind %d and the width %d", name, role, kind, width);
  if (grid_ < 0 || grid_ >= grids)
    fail("field", "what hpcomm_grid returned", "field '%s': there is no grid %d", name, grid_);
  for (int i = 0; i < fields; i++)
    if (field[i].role == role && !strcmp(field[i].name, name))
      fail("field", "a name of its own for each", "this program %s '%s' twice", role ? "takes" : "gives",
           name);
  strcpy(made.name, name);
  if (!(field = realloc(field, (size_t)(fields + 1) * sizeof *field)))
    fail("field", "more memory", "no memory is left");
  field[fields] = made;
  return fields++;
}

int hpcomm_field(const char *name, int role, int grid_, int kind, int width) {
  return add_field(name, role, grid_, kind, width, 0);
}

int hpcomm_field_by_component(const char *name, int role, int grid_, int kind, int width) {
  return add_field(name, role, grid_, kind, width, 1);
}

/* -- connect -----------------------------------------------------------------------------------------------
 */

/* Say text to the other program, and hear what it says, on all ranks here. */
static char *swap(struct link *link, const char *text) {
  int count = 0, first = 0;
  char *theirs = NULL;
  struct wait wait = {"connect", link, 1, &first, PATIENCE, 0, 0};
  if (own_rank == 0) {
    MPI_Request going;
    MPI_Isend(text, (int)strlen(text), MPI_BYTE, 0, TOLD, link->notices, &going);
    theirs = hear(link->notices, 0, TOLD, &count, &wait);
    finish(1, &going, &wait);
  }
  MPI_Bcast(&count, 1, MPI_INT, 0, own);
  if (own_rank) theirs = memory((size_t)count);
  MPI_Bcast(theirs, count, MPI_BYTE, 0, own);
  return theirs;
}

/* End the job if another program has refused its part. */
static void settle(struct link *link) {
  char *said = swap(link, "");
  if (*said) {
    if (own_rank) nap(PATIENCE); /* the first rank says it for all */
    nap(1.0);                    /* who has refused says it first */
    fail("connect", "look at the error there", "%s", said);
  }
  free(said);
}

static char *declaration(double start) {
  static const char *role[] = {"gives", "takes"};
  char *text, *first;
  size_t nbytes;
  FILE *out = open_memstream(&text, &nbytes);
  fprintf(out, "%d\t%.17g\n", VERSION, start);
  for (struct field *f = field; f < field + fields; f++) {
    struct grid *g = grid + f->grid;
    fprintf(out, "%s\t%s\t%d\t%d\t%d\t%d\t%ld\t%ld\n", role[f->role], f->name, f->kind, f->width, f->grid,
            g->kind, g->nlat, g->nlon);
  }
  fclose(out);
  int count = (int)nbytes;
  MPI_Bcast(&count, 1, MPI_INT, 0, own);
  first = memory((size_t)count);
  if (!own_rank) memcpy(first, text, nbytes);
  MPI_Bcast(first, count, MPI_BYTE, 0, own);
  if (strcmp(first, text))
    fail("connect",
         "the same fields, grids and start on all ranks; a rank without points has grids of 0 points",
         "this rank declares:\n%sbut rank 0:\n%s", text, first);
  free(first);
  return text;
}

/* This rank's grids, on their way to the rank over there that plans for it. */
static void send_grids(struct link *link, MPI_Request *going, void **sent) {
  size_t ints = 0, doubles = 0, n = 0;
  for (struct grid *g = grid; g < grid + grids; g++) {
    ints += 2 + (size_t)g->count;
    doubles += 2 * (size_t)g->count * (size_t)g->corners;
  }
  int64_t *numbers = sent[0] = memory(ints * sizeof *numbers);
  double *lonlat = sent[1] = memory(doubles * sizeof *lonlat);
  for (struct grid *g = grid; g < grid + grids; g++) {
    n = (size_t)g->count;
    *numbers++ = g->count, *numbers++ = g->corners;
    memcpy(numbers, g->numbers, n * sizeof *numbers);
    memcpy(lonlat, g->lonlat, 2 * n * (size_t)g->corners * sizeof *lonlat);
    numbers += n, lonlat += 2 * n * (size_t)g->corners;
  }
  if (ints > INT_MAX / sizeof *numbers || doubles > INT_MAX / sizeof *lonlat)
    fail("connect", "more ranks", "the grids of this rank have more than 2 GiB");
  int to = own_rank % link->size;
  MPI_Isend(sent[0], (int)(ints * sizeof *numbers), MPI_BYTE, to, NUMBERS, link->notices, going);
  MPI_Isend(sent[1], (int)(doubles * sizeof *lonlat), MPI_BYTE, to, COORDINATES, link->notices, going + 1);
}

static int64_t nbytes_of(const struct field *f, const struct side *s, int partner) {
  return (s->every > 0 ? HEADER * 8 : 0) + s->count[partner] * f->width * s->kind;
}

static void make_slots(struct field *f, struct side *s) {
  size_t partners = (size_t)s->partners;
  s->slots = memory((size_t)s->ahead * sizeof *s->slots);
  for (struct slot *slot = s->slots; slot < s->slots + s->ahead; slot++) {
    slot->requests = memory(partners * sizeof *slot->requests);
    slot->memory = memory(partners * sizeof *slot->memory);
    for (int i = 0; i < s->partners; i++) {
      if (nbytes_of(f, s, i) > INT_MAX)
        fail("connect", "more ranks", "a message of '%s' has more than 2 GiB", f->name);
      slot->memory[i] = memory((size_t)nbytes_of(f, s, i));
      slot->requests[i] = MPI_REQUEST_NULL;
    }
  }
}

/* One line of a plan, whose numbers begin at rows and weights; where those of the next one do. */
static void take_plan(struct link *planner, char *line, int64_t **rows, double **weights) {
  struct side s = {0};
  char peer[65], role[8], name[128], fill[32];
  if (sscanf(line,
             "%64[^\t]\t%7[^\t]\t%127[^\t]\t%d\t%lf\t%lf\t%7[^\t]\t%d\t%lf\t%d\t%lf\t%lf\t%31[^\t]\t%lf",
             peer, role, name, &s.tag, &s.every, &s.lag, s.how, &s.ahead, &s.timeout, &s.kind, &s.factor,
             &s.offset, fill, &s.start) != 14)
    fail("connect", "hpcomm.c of the hpcomm there", "'%s' plans in another way: %.40s", planner->name, line);
  struct field *f = field;
  while (f < field + fields && (strcmp(f->name, name) || f->role != !strcmp(role, "takes"))) f++;
  if (f == field + fields)
    fail("connect", "hpcomm.c of the hpcomm there", "'%s' plans a field '%s'", planner->name, name);
  size_t n = (size_t)grid[f->grid].count * (size_t)f->width;
  s.link = link_of(peer), s.version = -1, s.time = -1, s.fills = strcmp(fill, "keep") != 0,
  s.fill = strtod(fill, NULL);
  s.partners = (int)*(*rows)++;
  s.rank = memory((size_t)s.partners * sizeof *s.rank);
  s.count = memory((size_t)s.partners * sizeof *s.count);
  s.rows = memory((size_t)s.partners * sizeof *s.rows);
  for (int i = 0; i < s.partners; i++) {
    s.rank[i] = (int)*(*rows)++, s.count[i] = *(*rows)++;
    s.rows[i] = *rows, *rows += s.count[i];
  }
  s.columns = *(*rows)++;
  if (s.columns < 0) /* no weights: what comes is what is taken */
    s.columns = grid[f->grid].count;
  else {
    s.begin = *rows, *rows += grid[f->grid].count + 1;
    s.column = *rows, *rows += s.begin[grid[f->grid].count];
    s.weight = *weights, *weights += s.begin[grid[f->grid].count];
  }
  make_slots(f, &s);
  s.sum = memory(n * sizeof(double));
  if (f->role == HPCOMM_TAKES) {
    s.inbox = memory((size_t)(s.columns * f->width) * sizeof(double));
    s.older = memory(n * sizeof(double)), s.newer = s.sum;
  }
  f->side = realloc(f->side, (size_t)(f->sides + 1) * sizeof s);
  if (!f->side) fail("connect", "more memory", "no memory is left");
  f->side[f->sides++] = s;
}

/* Fields go over a communicator of both programs' ranks. Collective over both. */
static void merge(struct link *link) {
  if (link->merged == MPI_COMM_NULL) MPI_Intercomm_merge(link->inter, !link->is_first, &link->merged);
}

static void hear_plans(struct link *link) {
  int nbytes, from = own_rank % link->size;
  struct wait wait = {"connect", link, 1, &from, PATIENCE, 0, 0};
  merge(link);
  char *text = hear(link->notices, from, PLANS, &nbytes, &wait);
  int64_t *rows = hear(link->notices, from, ROWS, &nbytes, &wait); /* these are kept */
  double *weights = hear(link->notices, from, WEIGHTS, &nbytes, &wait);
  for (char *line = text; line && *line; line = next_line(line)) take_plan(link, line, &rows, &weights);
  free(text);
}

void hpcomm_connect(double start) {
  check_begun("connect");
  if (is_connected) return;
  is_connected = 1;
  if (!isfinite(start)) fail("connect", "a finite number of seconds", "%g is no time of the model", start);
  char *text = declaration(start);
  MPI_Request going[2 * MOST];
  void *sent[2 * MOST] = {0};
  int coupled = 0;
  for (int i = 0; i < programs; i++) /* those in Python come first, by name */
    if (!strcmp(link_to[i].kind, "hpcomm")) {
      struct link link = link_to[i];
      memmove(link_to + coupled + 1, link_to + coupled, (size_t)(i - coupled) * sizeof link);
      link_to[coupled++] = link;
    }
  for (int i = 0; i < coupled; i++) link_to[i].said = swap(link_to + i, text);
  for (int i = 0; i < coupled; i++) send_grids(link_to + i, going + 2 * i, sent + 2 * i);
  for (int i = 0; i < coupled; i++) settle(link_to + i);
  for (int i = 0; i < coupled; i++) {
    int to = own_rank % link_to[i].size;
    struct wait wait = {"connect", link_to + i, 1, &to, PATIENCE, 0, 0};
    finish(2, going + 2 * i, &wait);
    free(sent[2 * i]), free(sent[2 * i + 1]);
  }
  for (int i = 0; i < coupled; i++) hear_plans(link_to + i);
  for (int i = coupled; i < programs; i++) /* what is planned with others without Python: by name, as there */
    for (struct field *f = field; f < field + fields; f++)
      for (int j = 0; j < f->sides; j++)
        if (f->side[j].link == link_to + i) merge(link_to + i);
  for (int i = 0; i < coupled; i++) settle(link_to + i);
  for (struct field *f = field; f < field + fields; f++)
    if (f->role == HPCOMM_TAKES && f->sides != 1)
      fail("connect",
           "one giver for each field, of the same name; a program in Python, which plans, in the job",
           "'%s' takes a field '%s', which %s gives%s%s", own_name, f->name,
           f->sides ? "more than one" : "nobody", coupled ? "; " : "", coupled ? link_to[0].said : "");
  free(text);
}

/* -- put and get (coupler.py, coupling_clock.py) -----------------------------------------------------------
 */

/* Tell the rank's supervisor, if it has one, how far it is (hpcomm/job/progress.py): once a second, or at the
 * end. */
static void note(double time, int is_end) {
  static long exchanges;
  static double told, last;
  const char *pipe = getenv("HPCOMM_PROGRESS");
  if (!is_end) exchanges++, last = time;
  if (!pipe || (!is_end && seconds() - told < 1.0)) return;
  told = seconds();
  if (exchanges) dprintf(atoi(pipe), "at %ld %.17g\n", exchanges, last);
  if (is_end) dprintf(atoi(pipe), "done 0\n");
}

static double value(const void *values, int kind, int64_t i) {
  return kind == 4 ? (double)((const float *)values)[i] : ((const double *)values)[i];
}

static void set(void *values, int kind, int64_t i, double x) {
  if (kind == 4)
    ((float *)values)[i] = (float)x;
  else
    ((double *)values)[i] = x;
}

static int64_t place(const struct field *f, int64_t point, int component) {
  return f->by_component ? component * grid[f->grid].count + point : point * f->width + component;
}

static struct field *checked(const char *verb, int number, int role, int kind, long count, double time) {
  if (!is_connected) hpcomm_connect(0.0);
  if (number < 0 || number >= fields)
    fail(verb, "what hpcomm_field returned", "there is no field %d", number);
  struct field *f = field + number;
  long points = grid[f->grid].count;
  if (f->role != role)
    fail(verb, role ? "hpcomm_put" : "hpcomm_get", "this program %s '%s'", role ? "gives" : "takes", f->name);
  if (kind != f->kind)
    fail(verb, "values of the kind that was declared",
         "field '%s' is of kind %d, and these values are of kind %d", f->name, f->kind, kind);
  if (count != points * f->width)
    fail(verb, "as many values as were declared",
         "field '%s' has %ld points x %d numbers here, and these are %ld values", f->name, points, f->width,
         count);
  if (!isfinite(time)) fail(verb, "a finite number of seconds", "%g is no time of the model", time);
  return f;
}

/* The place of a call, for errors. */
static const char *of(const char *verb, const struct field *f) {
  static char text[160];
  snprintf(text, sizeof text, "%s of '%s'", verb, f->name);
  return text;
}

static void send(struct field *f, struct side *s, const void *values, int kind, double version, double time) {
  struct slot *slot = s->slots + s->turn;
  struct wait wait = {of("put", f), s->link, s->partners, s->rank, s->timeout, 0, 0};
  s->turn = (s->turn + 1) % s->ahead;
  finish(s->partners, slot->requests, &wait);
  for (int i = 0; i < s->partners; i++) {
    double *head = (double *)(void *)slot->memory[i];
    void *out = s->every > 0 ? head + HEADER : head;
    if (s->every > 0) head[0] = version, head[1] = time;
    for (int64_t j = 0; j < s->count[i]; j++)
      for (int k = 0; k < f->width; k++)
        set(out, s->kind, j * f->width + k, value(values, kind, place(f, s->rows[i][j], k)));
    /* A send that is complete when it is buffered would hide from every deadline that nobody takes it. */
    MPI_Issend(slot->memory[i], (int)nbytes_of(f, s, i), MPI_BYTE,
               s->rank[i] + (s->link->is_first ? own_size : 0), s->tag, s->link->merged, slot->requests + i);
  }
}

/* Add to what was put since the last coupling time. */
static void accumulate(struct side *s, const void *values, int kind, int64_t n) {
  for (int64_t i = 0; i < n; i++) {
    double x = value(values, kind, i), past = s->sum[i];
    if (!s->joined)
      s->sum[i] = x;
    else if (s->how[0] == 's' || s->how[1] == 'e') /* sum, mean */
      s->sum[i] = past + x;
    else if (!isnan(past) && (isnan(x) || (s->how[1] == 'i' ? x < past : x > past)))
      s->sum[i] = x;
  }
  s->joined++;
}

static void put_over(struct field *f, struct side *s, const void *values, int kind, double time) {
  int64_t n = grid[f->grid].count * f->width;
  if (s->every <= 0) {
    send(f, s, values, kind, -1, -1);
    return;
  }
  double at = time / s->every, whole = nearbyint(at);
  int is_due = fabs(at - whole) < NEAR, joins = strcmp(s->how, "instant") && strcmp(s->how, "linear");
  if (s->version < 0 && !is_due)
    fail(of("put", f), "put the first values at the start: a multiple of the period",
         "the first put of '%s' is at %g s, which is no coupling time: its period is %g s", f->name, time,
         s->every);
  if (joins) accumulate(s, values, kind, n);
  if (!is_due) return;
  if ((long)whole <= s->version)
    fail(of("put", f), "times run forwards", "'%s' is put at %g s a second time, or backwards", f->name,
         time);
  s->version = (long)whole, s->time = time;
  if (!strcmp(s->how, "mean"))
    for (int64_t i = 0; i < n; i++) s->sum[i] /= (double)s->joined;
  s->joined = 0;
  send(f, s, joins ? s->sum : values, joins ? 8 : kind, whole, time);
}

void hpcomm_put_kind(int number, const void *values, int kind, long count, double time) {
  struct field *f = checked("put", number, HPCOMM_GIVES, kind, count, time);
  for (int i = 0; i < f->sides; i++) put_over(f, f->side + i, values, kind, time);
  note(time, 0);
}

/* Fill newer with what comes next, as it goes into the field; what was there becomes older. */
static void receive(struct field *f, struct side *s) {
  int64_t points = grid[f->grid].count, width = f->width;
  struct slot *slot = s->slots;
  struct wait wait = {of("get", f), s->link, s->partners, s->rank, s->timeout, 0, 0};
  for (int i = 0; i < s->partners; i++)
    MPI_Irecv(slot->memory[i], (int)nbytes_of(f, s, i), MPI_BYTE,
              s->rank[i] + (s->link->is_first ? own_size : 0), s->tag, s->link->merged, slot->requests + i);
  finish(s->partners, slot->requests, &wait);
  for (int i = 0; i < s->partners; i++) {
    double *head = (double *)(void *)slot->memory[i];
    const void *in = s->every > 0 ? head + HEADER : head;
    if (s->every > 0 && i == 0) s->version = lround(head[0]), s->time = head[1];
    for (int64_t j = 0; j < s->count[i]; j++)
      for (int64_t k = 0; k < width; k++)
        s->inbox[s->rows[i][j] * width + k] = value(in, s->kind, j * width + k);
  }
  if (s->every > 0 && !s->partners) s->version++; /* who gets no points hears of no version either */
  double *kept = s->older;
  s->older = s->newer, s->newer = kept;
  for (int64_t i = 0; i < points; i++)
    for (int k = 0; k < (int)width; k++) {
      double x = s->begin ? 0.0 : s->inbox[i * width + k];
      for (int64_t j = s->begin ? s->begin[i] : 0; s->begin && j < s->begin[i + 1]; j++)
        x += s->weight[j] * s->inbox[s->column[j] * width + k];
      s->newer[place(f, i, k)] = s->factor == 1.0 && s->offset == 0.0 ? x : x * s->factor + s->offset;
    }
  s->joined++;
}

/* Set the points that something reaches; share: of older in newer, between two times. */
static void fill(struct field *f, struct side *s, void *values, double share) {
  const double *older = s->joined > 1 ? s->older : s->newer;
  for (int64_t i = 0; i < grid[f->grid].count; i++)
    for (int k = 0; k < f->width; k++) {
      int64_t at = place(f, i, k);
      if (!s->begin || s->begin[i] < s->begin[i + 1])
        set(values, f->kind, at, share > 0 ? (1.0 - share) * older[at] + share * s->newer[at] : s->newer[at]);
      else if (s->fills)
        set(values, f->kind, at, s->fill);
    }
}

/* Fill values with what holds at this time. */
static void get_at(struct field *f, struct side *s, void *values, double time) {
  double at = (time - s->lag) / s->every, whole = fabs(at - nearbyint(at)) < NEAR ? nearbyint(at) : floor(at);
  double share = !strcmp(s->how, "linear") && fabs(at - whole) >= NEAR ? at - whole : 0.0;
  long version = (long)whole, ahead = share > 0;
  if (version < (long)ceil(s->start / s->every - NEAR)) return; /* nothing was put so early: they stay */
  while (s->version < version + ahead) receive(f, s);
  if (!s->joined || s->version - ahead > version)
    fail(of("get", f), "times run forwards; a giver begins at the same time as its takers",
         "'%s' is taken for %g s, which is over: version %ld, and here is %ld", f->name, time, version,
         s->version);
  fill(f, s, values, share);
}

void hpcomm_get_kind(int number, void *values, int kind, long count, double time) {
  struct field *f = checked("get", number, HPCOMM_TAKES, kind, count, time);
  if (f->side->every > 0)
    get_at(f, f->side, values, time);
  else {
    receive(f, f->side);
    fill(f, f->side, values, 0.0);
  }
  note(time, 0);
}

double hpcomm_time(int number) {
  if (number < 0 || number >= fields)
    fail("time", "what hpcomm_field returned", "there is no field %d", number);
  return field[number].sides ? field[number].side->time : -1.0;
}

/* -- the end -----------------------------------------------------------------------------------------------
 */

/* Wait until what was put has been taken, or its takers have ended. */
static void settle_puts(struct field *f, struct side *s) {
  struct wait wait = {of("end", f), NULL, 0, NULL, s->timeout, 0, 0};
  for (int is_done = f->role == HPCOMM_TAKES; !is_done;) {
    is_done = 1;
    for (int i = 0; i < s->ahead; i++) {
      int is_taken;
      MPI_Testall(s->partners, s->slots[i].requests, &is_taken, MPI_STATUSES_IGNORE);
      is_done &= is_taken;
    }
    hear_ends(s->link);
    for (int i = 0; i < s->partners; i++) is_done |= s->link->gone[s->rank[i]] > 0;
    if (!is_done) go_on(&wait);
  }
}

void hpcomm_end(void) {
  check_begun("end");
  for (struct field *f = field; f < field + fields; f++)
    for (int i = 0; i < f->sides; i++) settle_puts(f, f->side + i);
  note(0.0, 1);
  if (has_begun_mpi) MPI_Finalize();
}

/* -- for hpcomm_mod.f90 ------------------------------------------------------------------------------------
 */

void hpcomm_init_fortran(const char *name, MPI_Fint *comm, int *rank, int *size);
void hpcomm_init_fortran(const char *name, MPI_Fint *comm, int *rank, int *size) {
  MPI_Comm made;
  hpcomm_init(*name ? name : NULL, &made);
  *comm = MPI_Comm_c2f(made), *rank = own_rank, *size = own_size;
}

MPI_Fint hpcomm_link_fortran(const char *peer);
MPI_Fint hpcomm_link_fortran(const char *peer) { return MPI_Comm_c2f(hpcomm_link(peer)); }
