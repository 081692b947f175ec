#define DT_IMPLEMENTATION
#include "../dt_comm.h"
#include "../dt_data.h"
#include "../dt_dist.h"
#include "../dt_nn.h"
