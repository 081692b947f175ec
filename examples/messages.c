/* A task farm: rank 0 hands out the rows of a picture of the Mandelbrot set, and whoever has finished a row gets the next
   one. Rows cost very different time, so the number of rows differs from worker to worker. The farm survives its workers: if
   one is killed, its row goes to another; new ones may join at any time. Needs only dt_comm.h.

   Build: cc -O2 -I.. messages.c -o messages -lm -lpthread
   Run:   ./messages 4           starts four ranks on this machine; writes mandelbrot.pgm
          ./messages join        one more worker, from the same directory, while it runs
          ./messages             under torchrun --no-python, mpirun or srun: dt_comm_init reads rank and world size */
#define DT_IMPLEMENTATION
#include "dt_comm.h"
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { WIDTH = 480, HEIGHT = 320, ROUNDS = 2000, TASK = 1, RESULT = 2, ROOM = 4096 }; /* TASK and RESULT are tags */
static const char *const door = "mandelbrot.join"; /* a file with the invitation for new workers; only this user can read it */
typedef struct result {
    int32_t row; /* -1: none yet, the worker asks for its first task */
    uint8_t pixel[WIDTH];
} result;

static void worker(dt_comm *c)
{
    result  r;
    int32_t row = -1;
    for (;;) {
        for (int x = 0; row >= 0 && x < WIDTH; x++) {
            double a = -2.2 + 3.2 * x / (double)WIDTH, b = -1.1 + 2.2 * row / (double)HEIGHT, u = 0, v = 0;
            int    n = 0;
            for (; n < ROUNDS && u * u + v * v < 4; n++) {
                double t = u * u - v * v + a;
                v = 2 * u * v + b;
                u = t;
            }
            r.pixel[x] = (uint8_t)(n == ROUNDS ? 0 : 255 - n % 256);
        }
        r.row = row;
        if (dt_comm_send(c, &r, sizeof r, DT_COMM_U8, 0, .tag = RESULT)) return;
        if (dt_comm_recv(c, &row, 1, DT_COMM_I32, 0, .tag = TASK, .timeout = DT_FOREVER) || row < 0) return;
    }
}
static bool open_door(dt_comm *c)
{
    char text[160];
    int  fd = dt_comm_accept(c, .invitation = text) ? -1 : open(door, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
    bool ok = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0) close(fd);
    return ok;
}
static int master(dt_comm *c, const char *path)
{
    static uint8_t picture[HEIGHT][WIDTH];
    static int     rows[ROOM], todo[HEIGHT]; /* that each rank has done; that are still to do: a stack */
    static int32_t task[ROOM];               /* the row that each rank works at; -1: none, it waits; -2: it has not come, or has gone */
    static bool    have[HEIGHT];
    int            ntodo = 0, done = 0;
    for (int row = HEIGHT; row-- > 0;) todo[ntodo++] = row;
    for (int i = 0; i < ROOM; i++) task[i] = -2;
    if (!open_door(c)) return perror(door), 1;
    while (done < HEIGHT && !dt_comm_get_status(c)) {
        result        r;
        dt_msg_info   from;
        dt_comm_event e;
        int           got = dt_comm_recv(c, &r, sizeof r, DT_COMM_U8, DT_ANY, .tag = RESULT, .timeout = 0.1, .info = &from);
        if (!got && r.row >= 0 && r.row < HEIGHT && !have[r.row]) {
            memcpy(picture[r.row], r.pixel, WIDTH);
            have[r.row] = true, done++, rows[from.from]++;
        }
        if (!got) task[from.from] = -1;
        while (dt_comm_next_event(c, &e) == 1) {
            if (e.kind == DT_MEMBER_JOINED) continue; /* it asks for work */
            fprintf(stderr, "messages: %s\n", e.why);
            if (task[e.rank] >= 0 && !have[task[e.rank]]) todo[ntodo++] = task[e.rank];
            task[e.rank] = -2;
        }
        for (int i = 1; i < dt_comm_size(c) && ntodo > 0; i++) /* whoever waits gets a row */
            if (task[i] == -1 && !dt_comm_send(c, &todo[ntodo - 1], 1, DT_COMM_I32, i, .tag = TASK)) task[i] = todo[--ntodo];
    }
    unlink(door);
    int32_t end = -1;
    for (int i = 1; i < dt_comm_size(c); i++) dt_comm_send(c, &end, 1, DT_COMM_I32, i, .tag = TASK);
    FILE *f = fopen(path, "wb");
    if (!f || fprintf(f, "P5 %d %d 255\n", WIDTH, HEIGHT) < 0 || fwrite(picture, 1, sizeof picture, f) != sizeof picture || fclose(f))
        return perror(path), 1;
    for (int i = 1; i < dt_comm_size(c); i++) printf("rank %d computed %d rows\n", i, rows[i]);
    return printf("%s has %d rows\n", path, done) < 0;
}
static bool spawned; /* ./messages 1: a farm whose workers join later */
static int rank_main(void *arg) /* arg NULL: a worker that joins */
{
    char  text[200] = "";
    FILE *f = arg ? NULL : fopen(door, "r");
    if (!arg && (!f || !fgets(text, sizeof text, f))) return perror(door), 1;
    if (f) fclose(f);
    dt_comm *c = arg ? dt_comm_init(.tolerant = true, .room = ROOM) : dt_comm_join(.invitation = text);
    int      bad = c && dt_comm_size(c) < 2 && !spawned;
    if (bad) fprintf(stderr, "messages: expected 2 to %d ranks: ./messages 4\n", ROOM);
    else if (c && dt_comm_rank(c) == 0) bad = master(c, (const char *)arg);
    else if (c) worker(c);
    const char *error = c ? dt_comm_error(c) : dt_comm_error(NULL);
    if (error) fprintf(stderr, "messages: %s\n", error);
    return dt_comm_free(c) || error || bad;
}
int main(int argc, char **argv)
{
    void *path = argc > 2 ? argv[2] : (void *)"mandelbrot.pgm";
    if (argc > 1 && !strcmp(argv[1], "join")) return rank_main(NULL);
    spawned = argc > 1;
    return argc > 1 ? dt_spawn(atoi(argv[1]), rank_main, path) : rank_main(path);
}
