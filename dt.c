/* dt.c - the implementation of all of dt's headers, for those who would rather add a file than a macro:

       cc -O2 app.c dt.c -lm -lpthread

   The optional parts are chosen by the same macros as in a header-only build: -DDT_USE_CBLAS, -DDT_USE_MPI (mpicc),
   -DDT_USE_CUDA, -DDT_USE_NCCL, -DDT_USE_ZLIB. To compile in parallel, compile this file several times, each time with
   -DDT_PART and the implementation macro of one header; the Makefile does that:

       cc -O2 -c -DDT_PART -DDT_CPU_IMPLEMENTATION dt.c -o dt_cpu.o */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE /* before the first header of libc, which with -std=c11 and DT_PART would come too early otherwise */
#endif
#ifndef DT_PART
#define DT_IMPLEMENTATION
#endif
#include "dt_base.h"
#include "dt.h"
#include "dt_cpu.h"
#include "dt_ops.h"
#include "dt_io.h"
#include "dt_plot.h"
#include "dt_nn.h"
#include "dt_layers.h"
#include "dt_data.h"
#include "dt_plan.h"
#include "dt_scale.h"
#include "dt_net.h"
#include "dt_msg.h"
#include "dt_comm.h"
#include "dt_sim.h"
#include "dt_mpi.h"
#include "dt_ps.h"
#include "dt_dist.h"
#include "dt_elastic.h"
#include "dt_serve.h"
#include "dt_pipe.h"
#include "dt_cuda.h"
#include "dt_nccl.h"
