/* A task farm: rank 0 hands out the rows of a picture of the Mandelbrot set, and the rank that is free gets the next one.
   Some rows take 100 times as long as others; so ranks get different numbers of rows, and end together. Needs only
   dt_comm.h.

   Build: cc -O2 -I.. messages.c -o messages -lm -lpthread
   Run:   ./messages 4 [FILE]      starts four ranks on this machine; the picture is FILE, or mandelbrot.pgm
          ./messages [0 FILE]      under dtrun, mpirun, torchrun --no-python or srun: dt_comm_init reads rank and world */
#define DT_IMPLEMENTATION
#include "dt_comm.h"
#include <stdio.h>
#include <stdlib.h>

enum { WIDE = 600, HIGH = 400, MOST = 1000 }; /* pixels; iterations of a pixel: a point that takes them all is in the set */
enum { READY = HIGH };                        /* tags: the row that a message carries, or READY: it carries none */

static void draw(int row, int32_t *out)
{
    for (int k = 0; k < WIDE; k++) {
        double cx = 3 * (k + 0.5) / (double)WIDE - 2.1, cy = 2 * (row + 0.5) / (double)HIGH - 1, x = 0, y = 0, next;
        for (out[k] = 0; out[k] < MOST && x * x + y * y < 4; out[k]++, x = next) {
            next = x * x - y * y + cx;
            y = 2 * x * y + cy;
        }
    }
}
static void work(dt_comm *c)
{
    int32_t pixel[WIDE], row;
    int     bad = dt_comm_send(c, NULL, 0, DT_COMM_I32, 0, .tag = READY);
    while (!bad && !dt_comm_recv(c, &row, 1, DT_COMM_I32, 0) && row < HIGH) {
        draw(row, pixel);
        bad = dt_comm_send(c, pixel, WIDE, DT_COMM_I32, 0, .tag = row);
    }
}
static void hand_out(dt_comm *c, int32_t *picture, int *rows)
{
    int32_t     pixel[WIDE], next = 0;
    dt_msg_info from;
    for (; dt_comm_size(c) == 1 && next < HIGH; next++, rows[0]++) draw(next, picture + next * WIDE);
    for (int busy = dt_comm_size(c) - 1; busy > 0; next += next < HIGH) { /* takes a message of any rank, with any tag */
        if (dt_comm_recv(c, pixel, WIDE, DT_COMM_I32, DT_ANY, .tag = DT_ANY, .info = &from)) return;
        for (int k = 0; k < from.n; k++) picture[from.tag * WIDE + k] = pixel[k];
        rows[from.from] += from.n > 0;
        busy -= next == HIGH; /* this rank gets no more */
        if (dt_comm_send(c, &next, 1, DT_COMM_I32, from.from)) return;
    }
}
static int report(const dt_comm *c, const int32_t *picture, const int *rows, const char *path)
{
    int   inside = 0;
    FILE *f = fopen(path, "wb");
    if (f) fprintf(f, "P5 %d %d 255\n", WIDE, HIGH);
    for (int i = 0; i < WIDE * HIGH; i++) {
        inside += picture[i] == MOST;
        if (f) fputc(picture[i] == MOST ? 0 : picture[i] < 51 ? 255 - 5 * picture[i] : 1, f);
    }
    if (!f || fclose(f)) return fprintf(stderr, "messages: cannot write %s\n", path), 1;
    for (int r = 0; r < dt_comm_size(c); r++) printf("rank %d: %d rows\n", r, rows[r]);
    printf("area of the Mandelbrot set: %.4f; picture: %s\n", 3.0 * 2.0 * inside / (WIDE * HIGH), path);
    return 0;
}
static int rank_main(void *path)
{
    dt_comm *c = dt_comm_init();
    int32_t *picture = (int32_t *)calloc(WIDE * HIGH, sizeof *picture);
    int     *rows = (int *)calloc((size_t)dt_comm_size(c), sizeof *rows), bad = !picture || !rows;
    if (c && !bad) dt_comm_rank(c) ? work(c) : hand_out(c, picture, rows);
    const char *error = dt_comm_error(c);
    if (error) fprintf(stderr, "messages: %s\n", error);
    else if (!bad && dt_comm_rank(c) == 0) bad = report(c, picture, rows, (const char *)path);
    free(picture);
    free(rows);
    return dt_comm_free(c) || error || bad;
}
int main(int argc, char **argv)
{
    char file[] = "mandelbrot.pgm", *path = argc > 2 ? argv[2] : file;
    return argc > 1 && atoi(argv[1]) ? dt_spawn(atoi(argv[1]), rank_main, path) : rank_main(path);
}
