/* test_fuzz_run.c: the corpora of the fuzzing targets of dtrun, of the table of costs, of clusters and of profiles, with any compiler. A target that
   finds something wrong aborts.
   run: asan-only */
#define _GNU_SOURCE
#include "fuzz_files.h"
#include "harness.h"

#define LLVMFuzzerTestOneInput fuzz_costs
#include "fuzz_costs.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_cluster
#include "fuzz_cluster.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_profile
#include "fuzz_profile.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_dtrun
#include "fuzz_dtrun.c"
#undef LLVMFuzzerTestOneInput

UTEST_MAIN()

UTEST(corpus, cluster) { EXPECT_GE(fuzz_feed(fuzz_seeds(__FILE__, "cluster"), fuzz_cluster), 13); }
UTEST(corpus, profile) { EXPECT_GE(fuzz_feed(fuzz_seeds(__FILE__, "profile"), fuzz_profile), 12); }
UTEST(corpus, costs) { EXPECT_GE(fuzz_feed(fuzz_seeds(__FILE__, "costs"), fuzz_costs), 8); }
UTEST(corpus, dtrun) { EXPECT_GE(fuzz_feed(fuzz_seeds(__FILE__, "dtrun"), fuzz_dtrun), 45); }
