/* dt inside a program that has a main loop, an allocator and a log of its own: a small game whose paddle learns to be where the
   ball will land. One training step a frame, within the time of a frame.

   Build: cc -O2 -I.. embed.c -o embed -lm -lpthread */
#define DT_IMPLEMENTATION
#include "dt_nn.h"
#include "options.h"
#include <math.h>
#include <time.h>

static const char *const embed_help = "embed [options]: a game loop that trains a net on the side\n"
                                      "    --frames N     2000\n";

/* The program's allocator: dt takes all its memory from it. */
static size_t held, most;
static void  *game_alloc(void *user, size_t nbytes)
{
    void *p = NULL;
    (void)user;
    if (posix_memalign(&p, 64, nbytes ? nbytes : 1)) return NULL; /* dt returns an error that says so */
    held += nbytes;
    if (held > most) most = held;
    return p;
}
static void game_free(void *user, void *p, size_t nbytes)
{
    (void)user;
    held -= nbytes;
    free(p);
}
/* The program's log: dt never prints. */
static void game_log(void *user, int level, const char *text) { fprintf((FILE *)user, "[dt, level %d] %s\n", level, text); }

typedef struct game {
    dt_model     *net;
    dt_optimizer *opt;
    float         ball[4];  /* x, y, and their speeds */
    unsigned      random;
} game;
static float chance(game *g) { return (float)((g->random = g->random * 1664525u + 1013904223u) >> 8) / 16777216.0f; }
static void  serve(game *g)
{
    g->ball[0] = chance(g);
    g->ball[1] = 1;
    g->ball[2] = chance(g) - 0.5f;
    g->ball[3] = -0.5f - 0.5f * chance(g);
}
/* Where the ball reaches the floor, with walls at 0 and 1: what the paddle must learn. */
static float landing(const float *b)
{
    float x = fmodf(fabsf(b[0] - b[2] * b[1] / b[3]), 2);
    return x > 1 ? 2 - x : x;
}
static dt_tensor *aim(game *g, dt_tensor *x)
{
    x = dt_linear(g->net, "fc1", x, .out = 64, .act = DT_ACT_RELU);
    return dt_linear(g->net, "fc2", dt_linear(g->net, "fc3", x, .out = 64, .act = DT_ACT_RELU), .out = 1);
}
/* One step with 32 balls. Returns the loss. */
static double learn(game *g)
{
    float balls[32][4], where[32];
    for (int i = 0; i < 32; i++) {
        serve(g);
        memcpy(balls[i], g->ball, sizeof balls[i]);
        where[i] = landing(balls[i]);
    }
    dt_tensor *loss = dt_mse_loss(aim(g, dt_from(balls, DT_SHAPE(32, 4))), dt_from(where, DT_SHAPE(32, 1)));
    dt_backward(loss);
    double value = dt_item(loss);
    dt_step(g->opt);
    return value;
}
static double play(game *g, int balls) /* the fraction that the paddle, 0.2 wide, catches */
{
    int caught = 0;
    dt_no_grad_begin();
    for (int i = 0; i < balls; i++) {
        serve(g);
        caught += fabs(dt_item(aim(g, dt_from(g->ball, DT_SHAPE(1, 4)))) - landing(g->ball)) < 0.1;
        dt_end();
    }
    dt_no_grad_end();
    return (double)caught / balls;
}
int main(int argc, char **argv)
{
    int done = example_options(argc, argv, embed_help);
    if (done >= 0) return done;
    int          frames = atoi(example_option(argc, argv, "--frames", "2000"));
    dt_allocator memory = { game_alloc, game_free, NULL };
    game         g;
    double       longest = 0, before, loss = 0;
    memset(&g, 0, sizeof g);
    dt_set_log(game_log, stderr);
    if (dt_set_allocator(&memory)) return dt_check("embed");
    dt_set_num_threads(1); /* the program has threads of its own */
    g.random = 1;
    g.net = dt_model_new(.seed = 1);
    g.opt = dt_adam(g.net, .lr = 2e-3);
    before = play(&g, 200);
    for (int frame = 0; frame < frames && !dt_error(); frame++) { /* the main loop */
        struct timespec a, b;
        clock_gettime(CLOCK_MONOTONIC, &a);
        loss = learn(&g);
        clock_gettime(CLOCK_MONOTONIC, &b);
        double took = (double)(b.tv_sec - a.tv_sec) + 1e-9 * (double)(b.tv_nsec - a.tv_nsec);
        if (frame > 10 && took > longest) longest = took;
        /* ... draw, read the keyboard, play sounds */
    }
    double after = play(&g, 200);
    printf("caught %.0f %% before, %.0f %% after %d frames (loss %.4f); longest step %.2f ms; at most %.2f MB\n", 100 * before, 100 * after, frames, loss,
           1e3 * longest, (double)most / 1e6);
    dt_optimizer_free(g.opt);
    dt_model_free(g.net);
    int rc = dt_check("embed") || !(after > before);
    dt_empty_cache();
    dt_set_allocator(NULL); /* all memory is back */
    printf("%zu bytes are still held\n", held);
    return rc;
}
