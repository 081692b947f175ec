/* Messages between ranks: who is named when one makes no progress.
   run: alone */
#define _GNU_SOURCE
#include "harness.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "dt_comm.h"

/* What the ranks found, in memory that they share with the test. */
typedef struct outcome {
    int  failed[4];
    char text[4][800];
} outcome;
static outcome *shared_outcome(void)
{
    void *p = mmap(NULL, sizeof(outcome), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return p == MAP_FAILED ? NULL : (outcome *)p;
}
typedef struct job {
    outcome    *o;
    const char *transport;
    bool        send, warm;
} job;

/* Rank 0 receives from rank 1 (or sends it more than fits), which is in its program and does not answer; rank 2 has called
   more collectives than anybody: it is not to blame. */
static int one_silent(void *arg)
{
    const job *j = (const job *)arg;
    enum { MANY = 4 << 20 };
    dt_comm *c = dt_comm_init(.timeout = 1, .transport = j->transport);
    if (!c) return 1;
    int      rank = dt_comm_rank(c);
    float   *x = (float *)calloc(MANY, sizeof *x);
    if (!x) return 1;
    if (j->warm) dt_comm_barrier(c);
    if (rank == 0 && j->send) dt_comm_send(c, x, MANY, DT_COMM_F32, 1);
    if (rank == 0 && !j->send) dt_comm_recv(c, x, 1, DT_COMM_F32, 1);
    while (rank && !dt_comm_get_status(c)) usleep(10000); /* until it hears of the failure */
    j->o->failed[rank] = dt_comm_failed_rank(c);
    snprintf(j->o->text[rank], sizeof j->o->text[rank], "%s", dt_comm_error(c) ? dt_comm_error(c) : "");
    dt_comm_free(c);
    free(x);
    return 0;
}
UTEST(timeout, names_the_peer_of_the_message_in_the_words_of_the_call)
{
    static const char *const transport[] = { "shm", "tcp" };
    outcome                 *o = shared_outcome();
    ASSERT_TRUE(o != NULL);
    for (int i = 0; i < (dt_test_quick() ? 4 : 8); i++) {
        job j = { o, transport[i % 2], i / 2 % 2 == 1, i / 4 == 1 };
        memset(o, 0, sizeof *o);
        EXPECT_EQ(0, dt_spawn(3, one_silent, &j));
        for (int r = 0; r < 3; r++) {
            EXPECT_EQ(1, o->failed[r]);
            EXPECT_TRUE_MSG(strstr(o->text[r], j.send ? "dt_comm_send to rank 1" : "dt_comm_recv from rank 1") != NULL,
                            o->text[r]);
        }
    }
    munmap(o, sizeof *o);
}
UTEST_MAIN()
