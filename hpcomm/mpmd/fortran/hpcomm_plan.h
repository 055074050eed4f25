/* What a program without Python gives and takes, and how it hears what goes where. Only hpcomm.c includes this,
 * behind hpcomm_join.h; the other end is hpcomm/mpmd/guest.py.
 *
 *     connect    declare ─────────────────────> swap 1: what is given and taken
 *                grids (numbers, coordinates) ─> rank r of n there: it plans for ranks r, r + n, ... here
 *                                              swap 2: does all that fit together?
 *                <─ lines, rows, weights ────── what goes where, for each field
 *                                              swap 3: have all planned it?
 */
#define VERSION 2 /* of what guest.py and this file say to each other */
#define NEAR 1e-6 /* of a period: times are floats */
#define NONE (-(1L << 62)) /* in place of a version, of which there is none yet (coupling_clock.py) */
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
  long version, joined, first, last; /* put or taken; how many; of the run; received */
  int waits;                         /* versions between these two: they came before a save */
  double time, **waiting;
  int64_t columns, *begin, *column; /* weights; begin NULL: none */
  double *weight, *inbox, *sum, *older, *newer;
};

struct field {
  char name[128];
  int role, grid, kind, width, by_component, sides;
  struct side *side;
};

static int grids, fields, is_connected, has_ended;
static struct grid *grid;
static struct field *field;

/* -- what this program gives and takes ---------------------------------------------------------------------
 */

static void check_begun(const char *verb) {
  int is_over = 0;
  if (own == MPI_COMM_NULL) fail(verb, "hpcomm_init first", "%s was called before init", verb);
  if (has_ended) fail(verb, "hpcomm_end last, and once", "%s was called after end", verb);
  if (fields || strcmp(verb, "end")) MPI_Finalized(&is_over);
  if (is_over) fail(verb, "MPI_Finalize last", "%s was called after MPI_Finalize", verb);
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
static char *swap(struct link *link, const char *text, const char *verb) {
  int count = 0, first = 0;
  char *theirs = NULL;
  struct wait wait = {verb, link, 1, &first, PATIENCE, 0, 0};
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
static void settle(struct link *link, const char *verb) {
  char *said = swap(link, "", verb);
  if (*said) {
    if (own_rank) nap(PATIENCE); /* the first rank says it for all */
    nap(1.0);                    /* who has refused says it first */
    fail(verb, "look at the error there", "%s", said);
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
static void send_grids(struct link *link) {
  size_t ints = 0, doubles = 0, n = 0;
  for (struct grid *g = grid; g < grid + grids; g++) {
    ints += 2 + (size_t)g->count;
    doubles += 2 * (size_t)g->count * (size_t)g->corners;
  }
  int64_t *numbers = link->sent[0] = memory(ints * sizeof *numbers);
  double *lonlat = link->sent[1] = memory(doubles * sizeof *lonlat);
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
  MPI_Isend(link->sent[0], (int)(ints * sizeof *numbers), MPI_BYTE, to, NUMBERS, link->notices, link->going);
  MPI_Isend(link->sent[1], (int)(doubles * sizeof *lonlat), MPI_BYTE, to, COORDINATES, link->notices,
            link->going + 1);
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
  s.first = s.every > 0 ? (long)ceil(s.start / s.every - NEAR) : 0;
  s.link = link_of(peer), s.version = s.last = s.every > 0 ? NONE : -1, s.time = -1, s.fills = strcmp(fill, "keep") != 0,
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

#define EACH_PLANNER(link)                                                \
  for (struct link *link = link_to; link < link_to + programs; link++)    \
    if (!strcmp(link->kind, "hpcomm"))

void hpcomm_connect(double start) {
  int planners = 0, guests = 0;
  const char *said = "";
  check_begun("connect");
  if (is_connected) return;
  is_connected = 1;
  if (!isfinite(start)) fail("connect", "a finite number of seconds", "%g is no time of the model", start);
  EACH_PLANNER(link) planners++;
  for (int i = 0; i < programs; i++) guests += !strcmp(link_to[i].kind, "fields");
  if (fields && guests && !planners)
    fail("connect", "start one beside them, on one rank: python -m hpcomm.mpmd.planner",
         "no program of this job is in Python, so nothing plans its fields");
  char *text = declaration(start);
  EACH_PLANNER(link) said = swap(link, text, "connect");
  EACH_PLANNER(link) send_grids(link);
  EACH_PLANNER(link) settle(link, "connect");
  EACH_PLANNER(link) {
    int to = own_rank % link->size;
    struct wait wait = {"connect", link, 1, &to, PATIENCE, 0, 0};
    finish(2, link->going, &wait);
    free(link->sent[0]), free(link->sent[1]);
  }
  EACH_PLANNER(link) hear_plans(link);
  for (struct link *link = link_to; link < link_to + programs; link++) /* others without Python, by name */
    for (struct field *f = field; f < field + fields; f++)
      for (int i = 0; i < f->sides; i++)
        if (f->side[i].link == link) merge(link);
  EACH_PLANNER(link) settle(link, "connect");
  for (struct field *f = field; f < field + fields; f++)
    if (f->role == HPCOMM_TAKES && f->sides != 1)
      fail("connect",
           "one giver for each field, of the same name; a program in Python, which plans, in the job",
           "'%s' takes a field '%s', which %s gives%s%s", own_name, f->name,
           f->sides ? "more than one" : "nobody", *said ? "; " : "", said);
  free(text);
}
