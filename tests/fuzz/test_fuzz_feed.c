/* test_fuzz_feed.c: the corpus of the fuzzing target of feeds, with any compiler. A target that finds something wrong aborts.
   run: asan-only */
#define DT_IMPLEMENTATION
#define LLVMFuzzerTestOneInput fuzz_feeds
#include "fuzz_feed.c"
#undef LLVMFuzzerTestOneInput

#include "harness.h"

UTEST_MAIN()

UTEST(corpus, feed) { EXPECT_GE(fuzz_corpus(fuzz_seeds(__FILE__, "feed"), fuzz_feeds), 13); }
