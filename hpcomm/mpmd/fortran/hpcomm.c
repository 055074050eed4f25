/* Programs without Python: put and get fields (coupling_channel.py, coupler.py). hpcomm.h has the calls.
 *
 *     init       hpcomm_join.h: who is who; a communicator for each pair
 *     connect    hpcomm_plan.h: declare fields; hear what goes where
 *     put, get   values between the ranks that need them
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

MPI_Comm hpcomm_link(const char *peer) { return link_of(peer)->inter; }

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
