/* A task farm: rank 0 hands out the rows of a picture of the Mandelbrot set; whoever has finished a row gets the next one.
   The farm survives its workers: if one is killed, its row goes to another; new ones may join. Needs only dt_comm.h.
   Build: cc -O2 -I.. messages.c -o messages -lm -lpthread
   Run:   ./messages 4 writes mandelbrot.pgm; meanwhile ./messages join adds a worker. Under dtrun, torchrun or srun: no number */
#define DT_IMPLEMENTATION
#include "dt_comm.h"
#include "options.h"
#include <fcntl.h>
enum { WIDTH = 480, HEIGHT = 320, ROUNDS = 2000, TASK = 1, RESULT = 2, ROOM = 4096 }; /* TASK and RESULT are tags */
static const char *const door = "mandelbrot.join"; /* a file with the invitation for new workers; only this user can read it */
typedef struct result { int32_t row; uint8_t pixel[WIDTH]; } result; /* row -1: none yet, the worker asks for its first task */
static void worker(dt_comm *c)
{
    result r = { -1, { 0 } };
    while (!dt_comm_send(c, &r, sizeof r, DT_COMM_U8, 0, .tag = RESULT) &&
           !dt_comm_recv(c, &r.row, 1, DT_COMM_I32, 0, .tag = TASK, .timeout = DT_FOREVER) && r.row >= 0)
        for (int x = 0; x < WIDTH; x++) {
            double a = -2.2 + 3.2 * x / (double)WIDTH, b = -1.1 + 2.2 * r.row / (double)HEIGHT, u = 0, v = 0;
            int    n = 0;
            for (double t; n < ROUNDS && u * u + v * v < 4; n++, u = t) t = u * u - v * v + a, v = 2 * u * v + b;
            r.pixel[x] = (uint8_t)(n == ROUNDS ? 0 : 255 - n % 256);
        }
}
static int master(dt_comm *c, const char *path)
{
    static uint8_t picture[HEIGHT][WIDTH];
    static int32_t rows[ROOM], task[ROOM], todo[HEIGHT], ntodo, done, end = -1; /* by rank: rows done, row in work + 1; a stack */
    static bool    have[HEIGHT], idle[ROOM];
    static char    text[160];
    for (int row = HEIGHT; row-- > 0;) todo[ntodo++] = row;
    int   fd = open(door, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW, 0600);
    FILE *f = fd < 0 || dt_comm_accept(c, .invitation = text) ? NULL : fdopen(fd, "w");
    if (!f || fputs(text, f) < 0 || fclose(f)) return perror(door), 1;
    while (done < HEIGHT && !dt_comm_get_status(c)) {
        result        r;
        dt_msg_info   from;
        dt_comm_event e;
        if (!dt_comm_recv(c, &r, sizeof r, DT_COMM_U8, DT_ANY, .tag = RESULT, .timeout = 0.1, .info = &from)) {
            if (r.row >= 0 && r.row < HEIGHT && !have[r.row]) {
                memcpy(picture[r.row], r.pixel, WIDTH);
                have[r.row] = true, done++, rows[from.from]++;
            }
            idle[from.from] = true, task[from.from] = 0;
        }
        while (dt_comm_next_event(c, &e) == 1)
            if (e.kind != DT_MEMBER_JOINED) { /* a new one asks for work by itself; one that is gone leaves its row */
                fprintf(stderr, "messages: %s\n", e.why);
                if (task[e.rank] && !have[task[e.rank] - 1]) todo[ntodo++] = task[e.rank] - 1;
                idle[e.rank] = false, task[e.rank] = 0;
            }
        for (int i = 1; i < dt_comm_size(c) && ntodo > 0; i++)
            if (idle[i] && !dt_comm_send(c, &todo[ntodo - 1], 1, DT_COMM_I32, i, .tag = TASK)) idle[i] = false, task[i] = todo[--ntodo] + 1;
    }
    remove(door);
    for (int i = 1; i < dt_comm_size(c); i++) dt_comm_send(c, &end, 1, DT_COMM_I32, i, .tag = TASK); /* or it has gone */
    f = fopen(path, "wb");
    if (!f || fprintf(f, "P5 %d %d 255\n", WIDTH, HEIGHT) < 0 || fwrite(picture, 1, sizeof picture, f) != sizeof picture || fclose(f))
        return perror(path), 1;
    for (int i = 1; i < dt_comm_size(c); i++) printf("rank %d computed %d rows\n", i, rows[i]);
    return printf("%s has %d rows\n", path, done) < 0;
}
static int rank_main(void *path) /* NULL: a worker that joins */
{
    char  text[160] = "";
    FILE *f = path ? NULL : fopen(door, "r");
    if (!path && (!f || !fgets(text, sizeof text, f) || fclose(f))) return perror(door), 1;
    dt_comm *c = path ? dt_comm_init(.tolerant = true, .room = ROOM) : dt_comm_join(.invitation = text);
    int      bad = c && dt_comm_rank(c) == 0 ? master(c, (const char *)path) : c ? (worker(c), 0) : 1;
    if (dt_comm_error(c)) fprintf(stderr, "messages: %s\n", dt_comm_error(c));
    return dt_comm_free(c) || bad;
}
int main(int argc, char **argv)
{
    int done = example_options(argc, argv, "messages [N [FILE] | join]: a task farm draws FILE (mandelbrot.pgm) with N ranks\n");
    if (done >= 0) return done;
    if (argc > 1 && !strcmp(argv[1], "join")) return rank_main(NULL);
    char path[] = "mandelbrot.pgm";
    return argc > 1 ? dt_spawn(atoi(argv[1]), rank_main, argc > 2 ? argv[2] : path) : rank_main(path);
}
