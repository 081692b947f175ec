/* A task farm: rank 0 hands out the rows of a picture of the Mandelbrot set, and whoever has finished a row gets the next
   one. Rows cost very different time, so the number of rows differs from worker to worker. Needs only dt_comm.h.

   Build: cc -O2 -I.. messages.c -o messages -lm -lpthread
   Run:   ./messages 4           starts four ranks on this machine; writes mandelbrot.pgm
          ./messages             under torchrun --no-python, mpirun or srun: dt_comm_init reads rank and world size */
#define DT_IMPLEMENTATION
#include "dt_comm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 480, HEIGHT = 320, ROUNDS = 2000, TASK = 1, RESULT = 2 }; /* TASK and RESULT are tags */
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
        if (dt_comm_recv(c, &row, 1, DT_COMM_I32, 0, .tag = TASK) || row < 0) return;
    }
}
static int master(dt_comm *c, const char *path)
{
    static uint8_t picture[HEIGHT][WIDTH];
    static int     rows[4096]; /* that each rank has done */
    int32_t        next = 0, working = dt_comm_size(c) - 1;
    while (working > 0) {
        result      r;
        dt_msg_info from;
        if (dt_comm_recv(c, &r, sizeof r, DT_COMM_U8, DT_ANY, .tag = RESULT, .info = &from)) return 1;
        if (r.row >= 0 && r.row < HEIGHT) memcpy(picture[r.row], r.pixel, WIDTH), rows[from.from]++;
        int32_t task = next < HEIGHT ? next++ : -1; /* -1: there is no more */
        working -= task < 0;
        if (dt_comm_send(c, &task, 1, DT_COMM_I32, from.from, .tag = TASK)) return 1;
    }
    FILE *f = fopen(path, "wb");
    if (!f || fprintf(f, "P5 %d %d 255\n", WIDTH, HEIGHT) < 0 || fwrite(picture, 1, sizeof picture, f) != sizeof picture || fclose(f))
        return perror(path), 1;
    for (int i = 1; i < dt_comm_size(c); i++) printf("rank %d computed %d rows\n", i, rows[i]);
    return printf("%s has %d rows\n", path, (int)next) < 0;
}
static int rank_main(void *arg)
{
    dt_comm *c = dt_comm_init();
    int      bad = dt_comm_size(c) < 2 || dt_comm_size(c) > 4096;
    if (c && bad) fprintf(stderr, "messages: expected 2 to 4096 ranks: ./messages 4\n");
    else if (c && dt_comm_rank(c) == 0) bad = master(c, (const char *)arg);
    else if (c) worker(c);
    const char *error = c ? dt_comm_error(c) : dt_comm_error(NULL);
    if (error) fprintf(stderr, "messages: %s\n", error);
    return dt_comm_free(c) || error || bad;
}
int main(int argc, char **argv)
{
    void *path = argc > 2 ? argv[2] : (void *)"mandelbrot.pgm";
    return argc > 1 ? dt_spawn(atoi(argv[1]), rank_main, path) : rank_main(path);
}
