/* fuzz_comm_shake.c: the challenge on every socket under libFuzzer, both sides. Bytes: 0 side and state (see below),
   1 how the socket behaves, 2 kind (bit 7: ranks come with roles), 3 which rank is gone; then what the other side says. With SHAKE_SIGN its words are
   signed with the job's token here: what comes is authentic, but may be anything. */
#define DT_IMPLEMENTATION
#include "fuzz_comm.h"

enum { SHAKE_CLIENT = 1, SHAKE_SIGN = 2, SHAKE_JOB = 4, SHAKE_COMPLETE = 8, SHAKE_LOCAL = 16, SHAKE_INNER = 32,
       SHAKE_LEAVING = 64, SHAKE_FAILED = 128 };

static void shake_server(dt__world *w, const uint8_t *data, const uint8_t *p, size_t n)
{
    int          flags = data[0];
    dt__hello_c  c;
    dt__shake    h;
    dt__control *ctl;
    if (dt__control_new(w) < 0) abort();
    ctl = w->control;
    w->joined = true;
    if (flags & SHAKE_COMPLETE) ctl->join = DT__JOIN_COMPLETE;
    if (flags & SHAKE_LEAVING) ctl->leave = DT__LEAVE_RELEASED;
    if (w->rank == 0 && ctl->join == DT__JOIN_OPEN && (flags & SHAKE_FAILED)) ctl->join = DT__JOIN_FAILED;
    ctl->gone[data[3] % w->size] = (uint8_t)(data[3] >> 4) % 3;
    if (w->workers && (flags & SHAKE_COMPLETE)) memset(ctl->registered, DT__REG_DONE, (size_t)w->size);
    dt__conn *k = dt__conn_new(w, FUZZ_FD, 0, -1);
    k->local = flags & SHAKE_LOCAL;
    k->state = DT__CONN_HANDSHAKE;
    if (!dt__shake_server(&k->shake, w)) abort();
    memset(&c, 0, sizeof c);
    memcpy(&c, p, n < sizeof c ? n : sizeof c);
    if (flags & SHAKE_JOB) memcpy(c.job, w->job, 16);
    memset(&h, 0, sizeof h);
    memcpy(h.token, w->token, 32);
    h.s = k->shake.s;
    h.c = c;
    if (flags & SHAKE_SIGN) dt__shake_mac(&h, false, c.mac);
    fuzz_wire_is(0, (const uint8_t *)&c, n < sizeof c ? n : sizeof c, data[1]);
    for (int i = 0; i < 999 && k->state == DT__CONN_HANDSHAKE; i++) dt__conn_shake(w, k);
    /* who is let in has said all that it must */
    if (dt__conn_last_state(k) != DT__CONN_HANDSHAKE) {
        bool role = w->workers && c.kind == DT__KIND_REGISTER && (c.rank == DT__RANK_WORKER || c.rank == DT__RANK_SERVER);
        if (role) { /* a number of its role, and nobody else's */
            if (!dt__role_has(w, c.rank, k->peer) || k->shake.r.rank != k->peer || w->rank != 0) abort();
            c.rank = k->peer;
        } else if (k->shake.r.rank) abort();
        if (!(flags & SHAKE_SIGN) || n < sizeof c || c.magic != DT__SHAKE_MAGIC || c.version != DT__SHAKE_VERSION ||
            c.epoch != w->epoch || c.world != w->size || c.rank < 0 || c.rank >= w->size || c.rank == w->rank ||
            c.to != w->rank || memcmp(c.job, w->job, 16) || c.kind < DT__KIND_REGISTER || c.kind > DT__KIND_NEWS)
            abort();
        if (k->kind == DT__KIND_REGISTER && c.comm != dt__roles(w)) abort();
        if (k->peer != c.rank || k->kind != c.kind || fuzz_wires[0].sent < sizeof h.s + sizeof h.r) abort();
        if (k->kind != DT__KIND_REGISTER && ctl->gone[c.rank]) abort();
        if (k->kind == DT__KIND_TREE && c.rank < w->rank) abort();
        if ((k->kind == DT__KIND_LINK || k->kind == DT__KIND_FD) != (ctl->narrived == 1)) abort();
    } else {
        if (ctl->narrived || k->kind || k->peer >= 0) {
            if (!(flags & SHAKE_SIGN) || fuzz_wires[0].sent == sizeof h.s + sizeof h.r) abort(); /* not all was said */
        }
        if (!(flags & SHAKE_SIGN) && fuzz_wires[0].sent > sizeof h.s) abort(); /* strangers hear nothing */
        if (k->shake.r.status && !k->shake.r.text[0]) abort();
    }
}
static void shake_client(dt__world *w, const uint8_t *data, const uint8_t *p, size_t n)
{
    int       flags = data[0], kind = 1 + data[2] % 5, got = 0;
    uint8_t   both[sizeof(dt__hello_s) + sizeof(dt__hello_r)];
    char      text[256];
    dt__shake h, mine;
    if (!dt__shake_client(&h, w, data[3] % w->size, kind, 7, 0)) abort();
    memset(both, 0, sizeof both);
    memcpy(both, p, n < sizeof both ? n : sizeof both);
    mine = h;
    memcpy(&mine.s, both, sizeof mine.s);
    if (flags & SHAKE_JOB) memcpy(mine.s.job, w->job, 16);
    memcpy(&mine.r, both + sizeof mine.s, sizeof mine.r);
    if (h.any_job) memcpy(mine.c.job, mine.s.job, 16);
    dt__shake_mac(&mine, false, mine.c.mac);
    if (flags & SHAKE_SIGN) dt__shake_mac(&mine, true, mine.r.mac);
    memcpy(both, &mine.s, sizeof mine.s);
    memcpy(both + sizeof mine.s, &mine.r, sizeof mine.r);
    fuzz_wire_is(0, both, n < sizeof both ? n : sizeof both, data[1]);
    for (int i = 0; i < 999 && got == DT__SHAKE_AGAIN; i++) got = dt__shake_step(&h, FUZZ_FD);
    if (!dt__dial_text(got, 0, &h, text, sizeof text)[0]) abort();
    if (got == DT__SHAKE_DECIDE) abort();
    if (got == DT__SHAKE_DONE || got == DT__SHAKE_REFUSED) {
        bool same = mine.s.version == DT__SHAKE_VERSION; /* another version can refuse, not accept */
        if (!(flags & SHAKE_SIGN) || n < sizeof both || (!same && got == DT__SHAKE_DONE) ||
            mine.s.magic != DT__SHAKE_MAGIC || mine.r.magic != DT__SHAKE_MAGIC || (same && mine.s.epoch < w->epoch) ||
            (same && kind != DT__KIND_REGISTER && memcmp(mine.s.job, w->job, 16)) || (mine.r.status == 0) != (got == 1))
            abort();
        if (strlen(h.r.text) >= sizeof h.r.text) abort();
    }
    if (fuzz_wires[0].sent && mine.s.magic != DT__SHAKE_MAGIC) abort(); /* nothing for somebody else's server */
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    dt__world w;
    if (n < 4) return 0;
    fuzz_begin();
    fuzz_world(&w, data[0] & SHAKE_INNER ? 2 : 0, 4);
    if (data[2] & 128) w.workers = 2, w.servers = 1;
    if (data[0] & SHAKE_CLIENT) shake_client(&w, data, data + 4, n - 4);
    else shake_server(&w, data, data + 4, n - 4);
    fuzz_world_end(&w);
    fuzz_end();
    return 0;
}
