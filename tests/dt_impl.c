#define DT_IMPLEMENTATION
#ifdef DT_USE_CUDA
#include "../dt_cuda.h"
#endif
#include "../dt_comm.h"
#include "../dt_data.h"
#include "../dt_dist.h"
#include "../dt_io.h"
#include "../dt_nn.h"
#include "../dt_plot.h"
