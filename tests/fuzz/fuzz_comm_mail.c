/* fuzz_comm_mail.c: what two peers send to the messages of a communicator (dt_msg.h, >>streams), under libFuzzer. Rank 0
   of 3 is the one that is tested. Bytes: 0 how the sockets behave (bit 7: they take nothing), 1 the memory for messages;
   then steps, each a byte and what it needs:
       0 receive   from, tag, how, 2 bytes: length         4 poll
       1 send      to, tag, how, 2 bytes: length           5 cancel    which message
       2 frame     see mail_frame: 9 bytes; its payload    6 give back which view
                   is a pattern                            7 time      seconds
       3 bytes     peer, how many, the bytes               8 many      how many, then a frame: tags that grow
   Every message ends once, nothing is written beside a buffer, what arrived whole is what was sent, and the memory has a
   limit. */
#define DT_IMPLEMENTATION
#include "fuzz_comm.h"

enum { MAIL_ITEMS = 40, MAIL_RANKS = 3, MAIL_STREAM = 1 << 20, MAIL_GUARD = 16, MAIL_MANY = 150, MAIL_SERVED = 50,
       MAIL_PIECES = 3000 };
enum { MAIL_LARGE = 1, MAIL_INFO = 2, MAIL_VIEW = 4, MAIL_FOREVER = 8, MAIL_SOON = 16, MAIL_SERVE = 32 }; /* how; 64: space */
typedef struct mail_item {
    dt__req     q;
    dt_msg_info info;
    dt_msg_view view;
    uint8_t    *memory; /* the buffer between guards */
    size_t      nmemory;
    int         peer;   /* as it was posted */
    int         ended, served;
    bool        given;  /* its view was given back */
} mail_item;
typedef struct mail_run {
    dt_comm   c;
    int       member[MAIL_RANKS], host[MAIL_RANKS];
    mail_item item[MAIL_ITEMS];
    int       nitems;
    bool      raw;      /* bytes of the input were sent: a payload may be anything */
    int64_t   clock;
    size_t    before;   /* bytes that are allocated without messages */
} mail_run;
static mail_run mail;
static uint8_t  mail_stream[MAIL_RANKS][MAIL_STREAM];
static uint8_t  mail_pattern[MAIL_STREAM / 2], mail_guard[MAIL_STREAM / 2]; /* of all payloads; around buffers */

static size_t mail_total(const dt__req *q) { return q->plain ? q->n : q->total; } /* of a receive that has ended well */
static bool mail_is_pattern(const void *p, size_t n)
{
    return n == 0 || (n <= sizeof mail_pattern && memcmp(p, mail_pattern, n) == 0);
}
static void mail_view_back(mail_item *t)
{
    if (t->given || t->q.send || !t->q.view || t->ended != 1 || t->q.w.status) return;
    if (!mail.raw && !mail_is_pattern(t->view.data, t->q.total)) abort();
    dt__view_free(&mail.c, &t->view);
    t->given = true;
}
static void mail_done(dt_comm *c, dt_work *w)
{
    mail_item *t = DT__OWNER(mail_item, q.w, w);
    if (c != &mail.c || t->ended++) abort();
    w->finished = true;
    if (w->status && w->status != DT_COMM_ERR_CANCELLED && w->status != DT_COMM_ERR_TIMEOUT &&
        w->status != DT_COMM_ERR_REMOTE && dt__comm_ok(c))
        abort();
    if (t->q.send || w->status) return;
    if (t->q.info && (t->info.from < 0 || t->info.from >= MAIL_RANKS || t->info.n < 0)) abort();
    if (t->q.view || t->q.n == 0) return;
    if (mail_total(&t->q) > t->q.n) abort();
    if (!mail.raw && !mail_is_pattern(t->memory + MAIL_GUARD, mail_total(&t->q))) abort();
}
static void mail_served(dt_comm *c, dt__req *q) /* as a handler does: gives the message back and posts the receive again */
{
    mail_item *t = DT__OWNER(mail_item, q, q);
    mail_done(c, &q->w);
    mail_view_back(t);
    if (q->w.status || ++t->served > MAIL_SERVED) return;
    dt__req again;
    memset(&again, 0, sizeof again);
    again.w.c = c;
    again.call = q->call;
    again.peer = t->peer;
    again.tag = q->tag;
    again.space = q->space;
    again.dtype = q->dtype;
    again.timeout = q->timeout;
    again.view = q->view;
    again.done_fn = q->done_fn;
    *q = again;
    t->ended = 0;
    t->given = false;
    memset(&t->view, 0, sizeof t->view);
    dt__mail_post(c, q);
}
static void mail_post(const uint8_t *p, bool send)
{
    mail_item *t = &mail.item[mail.nitems];
    int        how = p[2];
    if (mail.nitems == MAIL_ITEMS) return;
    mail.nitems++;
    size_t n = (size_t)(p[3] | p[4] << 8) % 9000;
    if (how & MAIL_LARGE) n = n % 999 + DT__STREAM_EAGER;
    t->nmemory = n + 2 * MAIL_GUARD;
    t->memory = (uint8_t *)malloc(t->nmemory);
    memcpy(t->memory, mail_guard, t->nmemory);
    if (send) memcpy(t->memory + MAIL_GUARD, mail_pattern, n);
    t->q.w.c = &mail.c;
    t->q.call = send ? "dt_comm_send" : "dt_comm_recv";
    t->q.send = send;
    t->q.peer = send ? p[0] % MAIL_RANKS : p[0] % (MAIL_RANKS + 1) - 1; /* -1: DT_ANY */
    t->peer = t->q.peer;
    t->q.tag = p[1] == 255 && !send ? DT_ANY : p[1];
    t->q.space = how & 64 ? (uint8_t)(1 + (how >> 7)) : 0;
    t->q.dtype = p[0] & 0x80 ? DT_COMM_F32 : DT_COMM_U8;
    if (t->q.dtype == DT_COMM_F32) n &= ~(size_t)3;
    t->q.ptr = (char *)t->memory + MAIL_GUARD;
    t->q.n = n;
    t->q.timeout = how & MAIL_FOREVER ? DT_FOREVER : how & MAIL_SOON ? 2 : 0;
    if (send) t->q.ref = t->q.space == DT__SPACE_REPLY ? p[1] & 1 : 0;
    else if (how & MAIL_VIEW) t->q.view = &t->view;
    else if (t->q.space == DT__SPACE_REPLY) t->q.short_ok = true;
    if (!send && (how & MAIL_INFO)) t->q.info = &t->info;
    if (t->q.view) t->q.ptr = NULL, t->q.n = 0;
    if (!send && t->q.view && (how & MAIL_SERVE)) t->q.info = NULL, t->q.done_fn = mail_served;
    dt__mail_post(&mail.c, &t->q);
}
/* Bytes for a peer's stream. */
static void mail_append(int peer, const void *p, size_t n)
{
    fuzz_wire *w = &fuzz_wires[peer];
    if (n > MAIL_STREAM - w->n) { /* no room: what follows is no frame */
        mail.raw = true;
        return;
    }
    memcpy(mail_stream[peer] + w->n, p, n);
    w->n += n;
}
static void mail_poll(void)
{
    for (int k = 1; k < MAIL_RANKS; k++)
        if (fuzz_wires[k].n - fuzz_wires[k].at > MAIL_PIECES) fuzz_wires[k].how &= ~FUZZ_PIECES;
    for (int idle = 0; idle < 4 && dt__comm_ok(&mail.c); idle++)
        if (dt__mail_poll(&mail.c)) idle = 0;
    for (int k = 1; k < MAIL_RANKS; k++)
        if (fuzz_wires[k].at == fuzz_wires[k].n) fuzz_wires[k].at = fuzz_wires[k].n = 0;
}
/* Bytes: 0 peer, and bit 7: f32, bit 6: device memory; 1 kind, 2 space and refusal, 3 tag, 4-5 bytes of the message,
   6 bit 7: times 40, else how much is added to them, 7 number: of which message here, from 200 on another, 8 offset. */
static void mail_frame(const uint8_t *p, int tag)
{
    dt__mhead h;
    int       peer = 1 + (p[0] & 63) % (MAIL_RANKS - 1);
    dt__mhead_fill(&h, p[1] % 12, 0, 0);
    h.space = p[2] % 4;
    h.ref = p[2] >> 7;
    h.dtype = (uint8_t)((p[0] & 0x80 ? DT_COMM_F32 : DT_COMM_U8) | (p[0] & 0x40 ? DT__M_DEVICE : 0));
    h.tag = tag;
    h.n = (uint64_t)(p[4] | p[5] << 8);
    if (p[6] & 0x80) h.n = h.n * 40 + p[6] - 0x80;
    if (p[7] < 200 && p[7] < mail.nitems) h.id = mail.item[p[7]].q.id;
    else h.id = p[7];
    h.at = p[8] < 250 ? (int64_t)p[8] * 64 : -(int64_t)(255 - p[8]);
    if (h.kind == DT__M_DATA && p[7] < mail.nitems && p[8] == 1) h.at = (int64_t)mail.item[p[7]].q.done;
    if (h.kind == DT__M_LARGE) h.at = -1 + (p[8] == 7); /* not visible */
    size_t n = dt__mhead_payload(&h), at = h.kind == DT__M_DATA && h.at > 0 ? (size_t)h.at : 0;
    mail_append(peer, &h, sizeof h);
    if (n <= sizeof mail_pattern && at <= sizeof mail_pattern - n) mail_append(peer, mail_pattern + at, n);
    else mail.raw = true; /* the rest of the stream is no frame */
}
/* What must hold between two steps. */
static void mail_check(void)
{
    const dt__mail *m = (const dt__mail *)mail.c.mail;
    int             posted = 0, pending = 0;
    for (int i = 0; i < mail.nitems; i++) {
        if (mail.item[i].ended) continue;
        if (mail.item[i].q.state == DT__REQ_POSTED && mail.item[i].q.link.next) posted++;
        else pending++;
    }
    if (posted != m->nposted || pending != m->npending || m->narrived < 0 || m->memory < 0) abort();
    /* A buffer is at most twice as large as its message. Keys and notices belong to messages. */
    if (m->memory > m->limit + 2 * DT__STREAM_EAGER) abort();
    if (fuzz_bytes - mail.before > 2 * (size_t)m->limit + (1 << 18)) abort();
}
static void mail_over(void) /* the communicator has failed: so has every message that had not ended */
{
    const dt__mail *m = (const dt__mail *)mail.c.mail;
    if (!mail.c.text[0]) abort();
    dt__mail_fail(&mail.c, mail.c.status);
    if (m->nposted || m->npending) abort();
    for (int i = 0; i < mail.nitems; i++)
        if (mail.item[i].ended != 1) abort();
}
static void mail_open(int how, int memory)
{
    static dt__client client;
    dt_comm          *c = &mail.c;
    memset(&mail, 0, sizeof mail);
    if (!mail_guard[0]) {
        memset(mail_guard, 0xa5, sizeof mail_guard);
        for (size_t i = 0; i < sizeof mail_pattern; i++) mail_pattern[i] = (uint8_t)(i * 7 + i / 256);
    }
    client = dt__comm_client;
    client.message_done = mail_done;
    c->client = &client;
    c->id = 77;
    c->size = MAIL_RANKS;
    c->streams = 1;
    c->timeout = 30;
    c->failed_rank = c->wake_fd = -1;
    c->member = mail.member;
    c->host = mail.host;
    for (int i = 0; i < MAIL_RANKS; i++) c->member[i] = c->host[i] = i;
    c->across = &dt__transport_tcp;
    c->opts.message_memory = INT64_C(1) << (10 + memory % 4 * 3); /* 1 KiB to 512 KiB */
    if (memory & 4) c->latency = 1e-3;
    mail.clock = DT__NS_PER_S;
    dt__net_clock = &mail.clock;
    if (dt__mail_open(c)) abort();
    for (int i = 1; i < MAIL_RANKS; i++) {
        fuzz_wire_is(i, mail_stream[i], 0, how & 0x80 ? (how & 15) | FUZZ_FULL : how & 3);
        dt__wire_of(c, i)->fd = FUZZ_FD + i;
    }
    mail.before = fuzz_bytes;
}
static void mail_close(void)
{
    for (int i = 0; i < mail.nitems; i++) mail_view_back(&mail.item[i]);
    for (int i = 0; i < mail.nitems; i++) {
        mail_item *t = &mail.item[i];
        if (memcmp(t->memory, mail_guard, MAIL_GUARD) != 0) abort();
        size_t from = t->q.view ? MAIL_GUARD : t->nmemory - MAIL_GUARD;
        if (!t->q.send && !t->q.view && t->ended == 1 && !t->q.w.status) from = MAIL_GUARD + mail_total(&t->q); /* it was shorter */
        if (memcmp(t->memory + from, mail_guard, t->nmemory - from) != 0) abort();
        fuzz_free(t->q.said);
        free(t->memory);
    }
    dt__mail_close(&mail.c);
    dt__net_clock = NULL;
}
/* One step; what is left of the input, or n + 1: it is over. */
static size_t mail_step(const uint8_t *p, size_t n)
{
    static const size_t needs[] = { 5, 5, 9, 2, 0, 1, 1, 1, 10 };
    uint8_t             frame[9];
    int                 op = *p++ % 9;
    n--;
    if (n < needs[op]) return 0;
    switch (op) {
    case 0:
    case 1: mail_post(p, op == 1); break;
    case 2: mail_frame(p, p[3]); break;
    case 3: {
        size_t k = p[1] < n - 2 ? p[1] : n - 2;
        mail_append(1 + p[0] % (MAIL_RANKS - 1), p + 2, k);
        mail.raw = true;
        return n - 2 - k;
    }
    case 4: mail_poll(); break;
    case 5:
        if (p[0] < mail.nitems && !mail.item[p[0]].ended) dt__mail_cancel(&mail.c, &mail.item[p[0]].q, DT_COMM_ERR_CANCELLED);
        break;
    case 6:
        if (p[0] < mail.nitems) mail_view_back(&mail.item[p[0]]);
        break;
    case 7:
        mail.clock += (int64_t)p[0] % 40 * DT__NS_PER_S / 4;
        dt__mail_overdue(&mail.c, mail.clock);
        break;
    default:
        for (int i = 0; i < p[0] && i < MAIL_MANY && dt__comm_ok(&mail.c); i++) {
            memcpy(frame, p + 1, sizeof frame);
            frame[5] &= 1; /* short ones */
            mail_frame(frame, p[4] + i);
            if (i % 16 == 15) mail_poll();
        }
        break;
    }
    return n - needs[op];
}
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    if (n < 2) return 0;
    fuzz_begin();
    fuzz_most = MAIL_STREAM;
    mail_open(data[0], data[1]);
    for (size_t left = n - 2; left > 0 && dt__comm_ok(&mail.c);) { /* the steps */
        left = mail_step(data + n - left, left);
        mail_check();
    }
    mail_poll();
    mail.clock += DT__NS_PER_S;
    mail_poll();
    mail_check();
    for (int i = 1; i < MAIL_RANKS && dt__comm_ok(&mail.c); i++) fuzz_wires[i].how = (data[0] & 12) | (data[0] & 0x80 ? FUZZ_FULL : 0);
    mail_poll();
    if (dt__comm_ok(&mail.c)) dt__comm_fail(&mail.c, DT_COMM_ERR_PEER, 1, "rank 1 is gone");
    mail_over();
    mail_close();
    fuzz_most = FUZZ_FRAME;
    fuzz_end();
    return 0;
}
