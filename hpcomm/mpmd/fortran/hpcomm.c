/* Programs without Python: put and get fields (coupling_channel.py, coupler.py). hpcomm.h has the calls.
 *
 *     init       hpcomm_join.h: who is who; a communicator for each pair
 *     connect    hpcomm_plan.h: declare fields; hear what goes where
 *     put, get   values between the ranks that need them
 *     save       the state of the coupling goes to a program in Python, which writes it
 */
#ifdef __cplusplus
#error "hpcomm.c is C: compile it by mpicc, and link it with what mpicxx compiles"
#endif
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* for open_memstream and its like, in strict C, too */
#endif
#include "hpcomm.h"

#include "hpcomm_join.h"
#include "hpcomm_plan.h"

/* The same bits as numpy's and SciPy's: no product is added before it is rounded. */
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(__GNUC__)
#pragma GCC optimize("fp-contract=off")
#endif

void hpcomm_init(const char *name, MPI_Comm *comm) {
  join(name);
  if (comm) *comm = own;
}

MPI_Comm hpcomm_link(const char *peer) {
  check_begun("link");
  return link_of(peer)->inter;
}

void hpcomm_exit_at_once(int status) {
  if (*own_name) leave(status);
  _exit(status);
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
  check_begun(verb);
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
    s->version++;
    return;
  }
  double at = time / s->every, whole = nearbyint(at);
  int is_due = fabs(at - whole) < NEAR, joins = strcmp(s->how, "instant") && strcmp(s->how, "linear");
  if (s->version == NONE && !is_due)
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

/* Receive the next version, as it goes into the field. */
static void receive(struct field *f, struct side *s, double *made) {
  int64_t points = grid[f->grid].count, width = f->width;
  struct slot *slot = s->slots;
  struct wait wait = {of("get", f), s->link, s->partners, s->rank, s->timeout, 0, 0};
  for (int i = 0; i < s->partners; i++)
    MPI_Irecv(slot->memory[i], (int)nbytes_of(f, s, i), MPI_BYTE,
              s->rank[i] + (s->link->is_first ? own_size : 0), s->tag, s->link->merged, slot->requests + i);
  finish(s->partners, slot->requests, &wait);
  s->last = s->last + 1 < s->first ? s->first : s->last + 1; /* who gets no points hears of none */
  for (int i = 0; i < s->partners; i++) {
    double *head = (double *)(void *)slot->memory[i];
    const void *in = s->every > 0 ? head + HEADER : head;
    if (s->every > 0) s->last = lround(head[0]);
    for (int64_t j = 0; j < s->count[i]; j++)
      for (int64_t k = 0; k < width; k++)
        s->inbox[s->rows[i][j] * width + k] = value(in, s->kind, j * width + k);
  }
  for (int64_t i = 0; i < points; i++)
    for (int k = 0; k < (int)width; k++) {
      double x = s->begin ? 0.0 : s->inbox[i * width + k];
      for (int64_t j = s->begin ? s->begin[i] : 0; s->begin && j < s->begin[i + 1]; j++)
        x += s->weight[j] * s->inbox[s->column[j] * width + k];
      made[place(f, i, k)] = s->factor == 1.0 && s->offset == 0.0 ? x : x * s->factor + s->offset;
    }
}

/* The next version becomes newer, and what that was, older. */
static void advance(struct field *f, struct side *s) {
  double *kept = s->older;
  s->older = s->newer, s->newer = kept;
  if (!s->waits)
    receive(f, s, s->newer);
  else {
    s->newer = s->waiting[0], s->waits--;
    memmove(s->waiting, s->waiting + 1, (size_t)s->waits * sizeof *s->waiting);
    free(kept);
  }
  s->version = s->last - s->waits, s->joined++;
  if (s->every > 0) s->time = (double)s->version * s->every;
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
  if (version < s->first) return; /* nothing was put so early: they stay */
  while (s->version < version + ahead) advance(f, s);
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
    advance(f, f->side);
    fill(f, f->side, values, 0.0);
  }
  note(time, 0);
}

double hpcomm_time(int number) {
  if (number < 0 || number >= fields)
    fail("time", "what hpcomm_field returned", "there is no field %d", number);
  return field[number].sides ? field[number].side->time : -1.0;
}

/* -- restart: the first program in Python keeps the state (restart.py, guest.py) -----------------------------
 */

static struct link *keeper(const char *verb) {
  EACH_PLANNER(link) return link;
  fail(verb, "start one beside it, on one rank: python -m hpcomm.mpmd.planner",
       "no program of this job is in Python, so nothing keeps its state");
}

static int is_coupled(const struct link *link, const char *verb) {
  int found = link == keeper(verb);
  for (struct field *f = field; f < field + fields; f++)
    for (int i = 0; i < f->sides; i++) found |= f->side[i].link == link;
  return found;
}

/* Receive all that was put, so that it can be saved. */
static void drain(struct field *f, struct side *s, long version) {
  if (s->every <= 0 && s->version != version)
    fail("save", "take it before; or every, for a field with a period",
         "'%s' was put %ld times, and taken %ld times", f->name, version + 1, s->version + 1);
  while (s->last < version) {
    if (!(s->waiting = realloc(s->waiting, (size_t)(s->waits + 1) * sizeof *s->waiting)))
      fail("save", "more memory", "no memory is left");
    s->waiting[s->waits] = memory((size_t)(grid[f->grid].count * f->width) * sizeof(double));
    receive(f, s, s->waiting[s->waits++]);
  }
}

/* Tell the other programs what this one does, and what it has put; to save, receive what they have. */
static void meet(const char *verb, const char *path, double time) {
  char here[PATH_MAX] = "", word[16], name[128];
  double theirs;
  long version;
  if (*path != '/' && !getcwd(here, sizeof here)) *here = 0;
  for (struct link *link = link_to; link < link_to + programs; link++) {
    char *text;
    size_t nbytes;
    if (!is_coupled(link, verb)) continue;
    FILE *out = open_memstream(&text, &nbytes);
    fprintf(out, "%s\t%.17g\t%s%s%s\n", verb, time, here, *here ? "/" : "", path);
    for (struct field *f = field; f < field + fields; f++)
      for (struct side *s = f->side; s < f->side + f->sides; s++)
        if (f->role == HPCOMM_GIVES && s->link == link) fprintf(out, "%s\t%ld\n", f->name, s->version);
    fclose(out);
    char *said = swap(link, text, verb);
    if (sscanf(said, "%15[^\t]\t%lf", word, &theirs) == 2 && !isnan(theirs) &&
        (strcmp(word, verb) || theirs < time || theirs > time))
      fail(verb, "the same call, at one time, in all programs", "'%s' %ss at %.15g s, and '%s' %ss at %.15g s",
           own_name, verb, time, link->name, word, theirs);
    for (char *line = next_line(said); line && *line; line = next_line(line))
      for (struct field *f = field; f < field + fields; f++)
        if (f->role == HPCOMM_TAKES && f->side->link == link && *verb == 's' &&
            sscanf(line, "%127[^\t]\t%ld", name, &version) == 2 && !strcmp(name, f->name))
          drain(f, f->side, version);
    free(text), free(said);
  }
}

/* The arrays of a side's state, in the order in which they travel; how many there are. */
static int arrays_of(const struct field *f, const struct side *s, double **arrays) {
  int n = 0;
  if (f->role == HPCOMM_GIVES) {
    if (s->joined) arrays[n++] = s->sum;
    return n;
  }
  if (s->joined > 1) arrays[n++] = s->older;
  if (s->joined) arrays[n++] = s->newer;
  for (int i = 0; i < s->waits; i++) arrays[n++] = s->waiting[i];
  return n;
}

/* Its numbers in a line of text; its arrays, each point by point. */
static void send_state(struct link *link) {
  char *text, *values;
  size_t ntext, nvalues;
  int to = own_rank % link->size;
  MPI_Request going[2];
  struct wait wait = {"save", link, 1, &to, PATIENCE, 0, 0};
  FILE *lines = open_memstream(&text, &ntext), *rows = open_memstream(&values, &nvalues);
  for (struct field *f = field; f < field + fields; f++)
    for (struct side *s = f->side; s < f->side + f->sides; s++) {
      double **arrays = memory((size_t)(2 + s->waits) * sizeof *arrays);
      fprintf(lines, "%s\t%s\t%s\t%ld\t%ld\t%ld\t%ld\t%d\n", f->role ? "takes" : "gives", f->name,
              s->link->name, s->version, s->joined, s->first, s->last, s->waits);
      for (int i = 0, n = arrays_of(f, s, arrays); i < n; i++)
        for (int64_t j = 0; j < grid[f->grid].count; j++)
          for (int k = 0; k < f->width; k++) fwrite(arrays[i] + place(f, j, k), sizeof(double), 1, rows);
      free(arrays);
    }
  fclose(lines), fclose(rows);
  if (nvalues > INT_MAX) fail("save", "more ranks", "the state of this rank has more than 2 GiB");
  MPI_Isend(text, (int)ntext, MPI_BYTE, to, PLANS, link->notices, going);
  MPI_Isend(values, (int)nvalues, MPI_BYTE, to, WEIGHTS, link->notices, going + 1);
  finish(2, going, &wait);
  free(text), free(values);
}

static void hear_state(struct link *link) {
  int nbytes, from = own_rank % link->size, missing = 0;
  struct wait wait = {"restore", link, 1, &from, PATIENCE, 0, 0};
  char *text = hear(link->notices, from, PLANS, &nbytes, &wait), role[8], name[128], peer[65];
  double *values = hear(link->notices, from, WEIGHTS, &nbytes, &wait), *at = values;
  struct side was;
  for (struct field *f = field; *text && f < field + fields; f++) missing += f->sides;
  for (char *line = text; line && *line; line = next_line(line)) {
    if (sscanf(line, "%7[^\t]\t%127[^\t]\t%64[^\t]\t%ld\t%ld\t%ld\t%ld\t%d", role, name, peer, &was.version,
               &was.joined, &was.first, &was.last, &was.waits) != 8)
      fail("restore", "hpcomm.c of the hpcomm there", "'%s' keeps a state in another way", link->name);
    for (struct field *f = field; f < field + fields; f++)
      for (struct side *s = f->side; s < f->side + f->sides; s++) {
        if (strcmp(f->name, name) || strcmp(s->link->name, peer) || f->role != !strcmp(role, "takes")) continue;
        if (was.version != NONE) s->version = was.version;
        if (was.last != NONE) s->last = was.last;
        s->joined = was.joined, s->first = was.first;
        s->waits = was.waits, s->waiting = memory((size_t)s->waits * sizeof *s->waiting);
        for (int i = 0; i < s->waits; i++)
          s->waiting[i] = memory((size_t)(grid[f->grid].count * f->width) * sizeof(double));
        if (s->every > 0 && s->version != NONE) s->time = (double)s->version * s->every;
        double **arrays = memory((size_t)(2 + s->waits) * sizeof *arrays);
        for (int i = 0, n = arrays_of(f, s, arrays); i < n; i++)
          for (int64_t j = 0; j < grid[f->grid].count; j++)
            for (int k = 0; k < f->width; k++) arrays[i][place(f, j, k)] = *at++;
        free(arrays), missing--;
      }
  }
  if (missing) fail("restore", "the programs and fields that saved it", "not every field of this run was saved");
  free(text), free(values);
}

void hpcomm_save(const char *path, double time) {
  check_begun("save");
  if (!is_connected) hpcomm_connect(0.0);
  meet("save", path, time);
  for (struct field *f = field; f < field + fields; f++)
    for (struct side *s = f->side; s < f->side + f->sides; s++) {
      struct wait wait = {of("save", f), s->link, s->partners, s->rank, s->timeout, 0, 0};
      for (int i = 0; i < s->ahead; i++) finish(s->partners, s->slots[i].requests, &wait);
    }
  for (struct link *link = link_to; link < link_to + programs; link++)
    if (is_coupled(link, "save")) settle(link, "save");
  send_state(keeper("save"));
  settle(keeper("save"), "save"); /* it is written */
}

void hpcomm_restore(const char *path, double time) {
  check_begun("restore");
  if (is_connected) fail("restore", "before the first put, get or connect", "fields are connected already");
  hpcomm_connect(time);
  meet("restore", path, time);
  hear_state(keeper("restore"));
  for (struct link *link = link_to; link < link_to + programs; link++)
    if (is_coupled(link, "restore")) settle(link, "restore");
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
  has_ended = 1;
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
