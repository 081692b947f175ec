/* allreduce.h - the numbers of bench_allreduce.c's ranks, of dt, of Open MPI and of the bare loops */
#ifndef BENCH_ALLREDUCE_H_INCLUDED
#define BENCH_ALLREDUCE_H_INCLUDED

#include "rank_side.h"

static inline void sums_write(float *x, size_t n, float value)
{
    for (size_t i = 0; i < n; i++) x[i] = value;
}
static inline int sums_check(rank_side *s, float *x, size_t n)
{
    int sum = s->world * (s->world + 1) / 2;
    for (size_t i = 0; i < n; i++) x[i] = (float)((s->rank + 1) * (int)(i % 7 + 1));
    if (s->call(s, x, n)) return -1;
    for (size_t i = 0; i < n; i++)
        if (x[i] != (float)(sum * (int)(i % 7 + 1))) return -1;
    return 0;
}

#endif /* BENCH_ALLREDUCE_H_INCLUDED */
