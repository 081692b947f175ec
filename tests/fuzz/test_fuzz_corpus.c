/* test_fuzz_corpus.c: the corpora of the fuzzing targets, with any compiler: seeds, and what fuzzing found worth
   keeping. A target that finds something wrong aborts. (archive: test_archive.c; gzip: test_data_gzip.c) */
#include "dt_test.h"

#include "fuzz.h"

#define LLVMFuzzerTestOneInput fuzz_idx
#include "fuzz_idx.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_npy
#include "fuzz_npy.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_records
#include "fuzz_records.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_tokens
#include "fuzz_tokens.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_pnm
#include "fuzz_pnm.c"
#undef LLVMFuzzerTestOneInput

UTEST_MAIN()

UTEST(corpus, idx) { EXPECT_GE(fuzz_corpus(fuzz_seeds(__FILE__, "idx"), fuzz_idx), 15); }
UTEST(corpus, npy) { EXPECT_GE(fuzz_corpus(fuzz_seeds(__FILE__, "npy"), fuzz_npy), 50); }
UTEST(corpus, records) { EXPECT_GE(fuzz_corpus(fuzz_seeds(__FILE__, "records"), fuzz_records), 10); }
UTEST(corpus, tokens) { EXPECT_GE(fuzz_corpus(fuzz_seeds(__FILE__, "tokens"), fuzz_tokens), 10); }
UTEST(corpus, pnm) { EXPECT_GE(fuzz_corpus(fuzz_seeds(__FILE__, "pnm"), fuzz_pnm), 20); }
