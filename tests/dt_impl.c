#define DT_IMPLEMENTATION
#include "../dt_data.h"
#include "../dt_nn.h"
