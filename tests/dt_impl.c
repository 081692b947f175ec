#define DT_IMPLEMENTATION
#include "../dt.h"
