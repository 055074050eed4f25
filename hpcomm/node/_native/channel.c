/* channel.c: from one sender to one receiver, through two boxes used in turn.

        sender                    receiver
        wait until empty          wait until full: number << 1 | 1 of this use
        fill                      read
        full = number << 1 | 1    full = 0

   Both write the word of a box, but never at the same time: who may write is told by what stands there. Faces of
   halos are packed straight into a box and unpacked from there, so they are copied once by each. */
#include "node.h"

static struct node_box *box(const struct channel *c) { return &c->at->box[c->count & 1]; }
static char *data(const struct channel *c) {
  return (char *)(c->at + 1) + (c->count & 1) * node_peek(&c->at->capacity);
}
static uint64_t word(const struct channel *c, int to_fill) { return to_fill ? 0 : (c->count << 1) | 1; }

void channel_attach(struct channel *c, struct segment *s, struct node_channel *at, int peer) {
  c->node.segment = s;
  c->at = at;
  c->count = 0;
  c->peer = peer;
}

char *channel_box(struct channel *c, int to_fill) {
  return node_await(&c->node, &box(c)->full, NODE_AT_VALUE, word(c, to_fill), c->peer) ? NULL : data(c);
}

char *channel_ready(struct channel *c, int to_fill) {
  return node_load(&box(c)->full) == word(c, to_fill) ? data(c) : NULL;
}

void channel_fill(struct channel *c) {
  node_post(&box(c)->full, word(c, 0));
  c->count++;
}

void channel_free(struct channel *c) {
  node_post(&box(c)->full, 0);
  c->count++;
}
