/* test_fuzz_comm.c: the corpora of the fuzzing targets of dt_comm.h, with any compiler. A target that finds something
   wrong aborts.
   run: asan-only */
#define DT_IMPLEMENTATION
#include "fuzz_comm.h"

#include "fuzz_files.h"
#include "harness.h"

#define LLVMFuzzerTestOneInput fuzz_shake
#include "fuzz_comm_shake.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_join
#include "fuzz_comm_join.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_control
#include "fuzz_comm_control.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_frame
#include "fuzz_comm_frame.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_mail
#include "fuzz_comm_mail.c"
#undef LLVMFuzzerTestOneInput
#define LLVMFuzzerTestOneInput fuzz_codec
#include "fuzz_codec.c"
#undef LLVMFuzzerTestOneInput

UTEST_MAIN()

UTEST(corpus, shake) { EXPECT_GE(fuzz_feed(fuzz_seeds(__FILE__, "comm_shake"), fuzz_shake), 50); }
UTEST(corpus, join) { EXPECT_GE(fuzz_feed(fuzz_seeds(__FILE__, "comm_join"), fuzz_join), 18); }
UTEST(corpus, control) { EXPECT_GE(fuzz_feed(fuzz_seeds(__FILE__, "comm_control"), fuzz_control), 90); }
UTEST(corpus, frame) { EXPECT_GE(fuzz_feed(fuzz_seeds(__FILE__, "comm_frame"), fuzz_frame), 30); }
UTEST(corpus, mail) { EXPECT_GE(fuzz_feed(fuzz_seeds(__FILE__, "comm_mail"), fuzz_mail), 70); }
UTEST(corpus, codec) { EXPECT_GE(fuzz_feed(fuzz_seeds(__FILE__, "codec"), fuzz_codec), 36); }
