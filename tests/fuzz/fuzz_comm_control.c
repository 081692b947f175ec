/* fuzz_comm_control.c: frames over the control tree, under libFuzzer. A rank of 40 with four connections: 0 its parent
   (rank 0: a child), 1 a child, 2 one that has just dialed, 3 one that registers (or has news). Bytes: 0 this rank,
   1 its state, 2 how sockets behave, 3 bytes it exchanges; then what happens:
       0x00-0x3f  a frame on connection (byte & 3): kind, whose, length (2 bytes), body; its header is made here;
                  from 0x20 on the connection ends behind it
       0x40-0x7f  bytes as they are: length (1 byte), bytes
       0x80-0xbf  time passes: as many tenths of a second
       0xc0-0xff  this rank itself: asks, aborts, leaves */
#define DT_IMPLEMENTATION
#include "fuzz_comm.h"

enum { CONTROL_SIZE = 40, CONTROL_COMM = 77 };
enum { CONTROL_COMPLETE = 1, CONTROL_GATHERS = 2, CONTROL_COMMS = 4, CONTROL_DIALS = 8, CONTROL_LEAVES = 16 };

static dt__conn *control_conn(dt__world *w, int i)
{
    for (dt__conn *k = w->control->conns; k; k = k->next)
        if (k->fd == FUZZ_FD + i && k->state != DT__CONN_BROKEN) return k;
    return NULL;
}
static void control_begin(dt__world *w, const uint8_t *data)
{
    static const int ranks[4] = { 0, 1, 17, 3 };
    int              rank = ranks[data[0] & 3];
    fuzz_world(w, rank, CONTROL_SIZE);
    for (int r = 0; r < CONTROL_SIZE; r++) {
        dt__addr a;
        dt__addr_loopback(&a, 1);
        memcpy(w->member[r].addr, &a.u, a.n);
        w->member[r].addr_len = (uint32_t)a.n;
    }
    w->join_deadline = dt__comm_now() + 3000000000;
    if (dt__control_new(w) < 0) abort();
    dt__control *ctl = w->control;
    ctl->join = rank || (data[1] & CONTROL_COMPLETE) ? DT__JOIN_COMPLETE : DT__JOIN_OPEN;
    ctl->started = w->joined = true;
    int       below = rank * DT__TREE + 1 < CONTROL_SIZE ? rank * DT__TREE + 1 : CONTROL_SIZE - 1;
    dt__conn *k = dt__conn_new(w, FUZZ_FD, DT__KIND_TREE, rank ? (rank - 1) / DT__TREE : 2);
    if (rank) ctl->parent = k;
    k->state = DT__CONN_READY;
    dt__conn_new(w, FUZZ_FD + 1, DT__KIND_TREE, below)->state = DT__CONN_READY;
    dt__conn_new(w, FUZZ_FD + 2, DT__KIND_TREE, CONTROL_SIZE - 2);
    dt__conn_new(w, FUZZ_FD + 3, rank ? DT__KIND_NEWS : DT__KIND_REGISTER, CONTROL_SIZE - 3);
    if (!rank) ctl->registered[CONTROL_SIZE - 3] = 1;
    if (!rank) ctl->nregistered = CONTROL_SIZE - 1; /* one is missing */
    if (data[1] & CONTROL_GATHERS) {
        ctl->gathering = true;
        ctl->gather_seq = 1;
        ctl->gather_n = data[3];
        ctl->gather_out = (uint8_t *)malloc((size_t)data[3] * CONTROL_SIZE + !data[3]);
        if (!rank) { /* all others have come, but for one */
            dt__cgather g = { 1, data[3], 0, 0, 0 };
            for (; g.rank < CONTROL_SIZE - 1; g.rank++) dt__gather_take(w, &g, ctl->gather_out, data[3]);
        }
    }
    if (data[1] & CONTROL_LEAVES) {
        ctl->leave = DT__LEAVE_ASKED;
        ctl->leave_deadline = dt__comm_now() + 3000000000;
    }
    fuzz_dials = data[1] & CONTROL_DIALS ? 3 : 0;
}
static void control_time(dt__world *w, int64_t now)
{
    dt__control_timers(w, now);
    if (dt__control_next(w, now) > now + 10000000000) abort();
}
static void control_self(dt__world *w, dt_comm *c, int what)
{
    if (what & 1) dt__inquiry_begin(w, &(dt__cask){ c->id, 2, 1.5, w->rank, 1, 4, 3, 0, 0 }, c->member, true);
    else if (what & 2) dt__control_abort(w, what & 4 ? c->id : (uint64_t)what, DT_COMM_ERR_ABORT, 1, "enough", NULL);
    else if (w->control->leave == DT__LEAVE_NO) w->control->leave = DT__LEAVE_ASKED;
}
/* The next thing that happens; how many bytes tell it. */
static size_t control_step(dt__world *w, dt_comm *c, const uint8_t *p, size_t n, int how, int64_t *now)
{
    static uint8_t frame[sizeof(dt__chead) + 4096];
    size_t         used = 1, head = 0, body;
    if (p[0] >= 0xc0) control_self(w, c, p[0] & 7);
    else if (p[0] >= 0x80) control_time(w, *now += (p[0] & 63) * INT64_C(100000000));
    else {
        if (p[0] < 0x40) {
            if (n < 5) return n;
            dt__chead h = { DT__CFRAME_MAGIC, fuzz_kind(p[1]), (uint32_t)(p[3] | p[4] << 8), (int8_t)p[2] };
            memcpy(frame, &h, head = sizeof h);
            body = h.nbytes;
            used = 5;
        } else {
            if (n < 2) return n;
            body = p[1];
            used = 2;
        }
        if (body > n - used) body = n - used;
        memcpy(frame + head, p + used, body);
        used += body;
        dt__conn *k = control_conn(w, p[0] & 3);
        bool      ends = head && (p[0] & 0x20);
        if (!k) return used;
        fuzz_wire_is(p[0] & 3, frame, head + body, ends ? how | FUZZ_CLOSED : how);
        for (int i = 0; i < 64 && k->state != DT__CONN_BROKEN && (ends || fuzz_wires[p[0] & 3].at < head + body); i++)
            dt__conn_read(w, k);
    }
    return used;
}
static void control_check(dt__world *w)
{
    const dt__control *ctl = w->control;
    int                full = 0;
    if (ctl->nregistered > w->size || ctl->ngone > w->size || ctl->naborts >= 2 * DT__ABORTS) abort();
    for (int r = 0; r < w->size; r++) {
        if (ctl->gone[r] > DT__LOST) abort();
        full += ctl->root_on && ctl->root_have[r] == ctl->root_n;
    }
    if (full != ctl->root_done) abort(); /* a rank counts once */
    bool joining = ctl->join == DT__JOIN_OPEN && ctl->leave < DT__LEAVE_RELEASED;
    if (joining && ctl->registered[CONTROL_SIZE - 3] && !control_conn(w, 3)) abort(); /* one who went may come again */
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    dt__world w;
    dt_comm   c;
    int       member[4] = { 0, 1, 17, 3 };
    if (n < 4 || n > 4096) return 0;
    fuzz_begin();
    control_begin(&w, data);
    uint8_t *out = w.control->gather_out;
    int64_t  now = dt__comm_now();
    memset(&c, 0, sizeof c);
    c.client = &dt__comm_client;
    c.id = CONTROL_COMM;
    c.size = 4;
    c.member = member;
    c.failed_rank = -1;
    c.wake_fd = -1;
    c.seq = 3;
    c.done = 2;
    c.doing = 2;
    if (data[1] & CONTROL_COMMS) w.comms = &c;
    for (size_t at = 4; at < n;) {
        at += control_step(&w, &c, data + at, n - at, data[2] & ~(FUZZ_CLOSED | FUZZ_RESET), &now);
        for (dt__conn *k = w.control->conns; k; k = k->next)
            if (k->out && dt__conn_live(k)) dt__conn_flush(k);
        dt__control_reap(&w);
        control_check(&w);
    }
    if (c.status && (c.failed_rank < -1 || c.failed_rank >= c.size || strlen(c.text) >= sizeof c.text)) abort();
    if (w.control->join == DT__JOIN_COMPLETE && !w.rank) dt__table_finish(&w);
    fuzz_world_end(&w);
    free(out);
    fuzz_end();
    return 0;
}
