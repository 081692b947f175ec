# Tests: tests/FOLDER/test_NAME.c becomes build/FLAVOUR/test_NAME, whatever its folder; tests/run.sh runs the programs.
# A folder is a header or a group of headers; tests/gpu has rules of its own.
#
# A line of a test's first comment, "run: WORD, WORD", says how it runs. Without it, it has the defaults: beside one other
# program, in full length, in `make test` as it is and under AddressSanitizer, compiled with -O0. The words:
#     alone        nothing runs beside it: it has ranks of its own, or it measures time
#     long         `make test` sets DT_TEST_QUICK=1, test-all runs it in full
#     machines     it needs network namespaces: in test-machines, test-quick and test-all, not in `make test`
#     asan-later   under AddressSanitizer in test-all only: it starts other programs, or it takes long there
#     asan-only    in `make test` under AddressSanitizer only
#     ubsan        test-all also runs it under UndefinedBehaviorSanitizer alone: it runs every kernel
#     portable     once more with the kernels in plain C, DT_CPU_ISA=portable
#     no-valgrind  test-all does not run it under valgrind, where it takes too long
#     -O1          compiled with -O1: it computes for longer than it compiles
#     zlib         linked with zlib, if zlib is installed
#
# UTEST=dir: the tests are compiled with dir/utest.h, for example the public one, in place of tests/utest.h. They have
# directories of their own then, build/utest-FLAVOUR, which another UTEST empties. tests/gpu is only compiled with it.
WORDS := alone long machines asan-later asan-only ubsan portable no-valgrind -O1 zlib

# $(call run_lines,files): the words of these files, as path:word. $(call run_check,lines,words): an error if there are others.
run_lines = $(shell awk 'FNR == 1 { comment = 1 } \
    comment && /^[ \/*]*run:/ { s = $$0; sub(/^[ \/*]*run:/, "", s); sub(/\*\/.*/, "", s); n = split(s, w, /[ ,]+/); \
        for (i = 1; i <= n; i++) if (w[i] != "") print FILENAME ":" w[i] } \
    /\*\// { comment = 0 }' $(1))
run_check = $(foreach r,$(1),$(if $(filter $(2),$(lastword $(subst :, ,$(r)))),,$(error $(firstword $(subst :, ,$(r))): \
    unknown word "$(lastword $(subst :, ,$(r)))" in its line "run:". Known words: $(2))))
tests_with = $(basename $(notdir $(patsubst %:$(1),%,$(filter %:$(1),$(RUN)))))

$(if $(UTEST),$(if $(wildcard $(UTEST)/utest.h),,$(error UTEST=$(UTEST): there is no file $(UTEST)/utest.h)))
$(if $(UTEST),$(shell [ "$$(cat build/utest-dir 2>/dev/null)" = '$(abspath $(UTEST))' ] || \
    { rm -rf build/utest-*; mkdir -p build; echo '$(abspath $(UTEST))' > build/utest-dir; }))
# $(call tests_in,flavour): where the programs of the tests are
tests_in = build/$(if $(UTEST),utest-)$(1)

TEST_FILES := $(filter-out tests/gpu/%,$(wildcard tests/*/test_*.c))
TEST_DIRS  := $(patsubst %/,%,$(sort $(dir $(TEST_FILES))))
TESTS      := $(sort $(basename $(notdir $(TEST_FILES))))
$(if $(wildcard tests/test_*.c),$(error $(wildcard tests/test_*.c): tests are in folders, for example tests/core))
$(foreach t,$(TESTS),$(if $(word 2,$(filter %/$(t).c,$(TEST_FILES))),\
    $(error two tests with one name: $(filter %/$(t).c,$(TEST_FILES)))))
RUN        := $(call run_lines,$(TEST_FILES))
$(call run_check,$(RUN),$(WORDS))
ALONE      := $(filter $(call tests_with,alone),$(TESTS))
TOGETHER   := $(filter-out $(ALONE),$(TESTS))
LONG       := $(call tests_with,long)
MACHINES   := $(call tests_with,machines)
ASAN_LATER := $(call tests_with,asan-later)
UBSAN      := $(call tests_with,ubsan)
# the tests that `make test` does not run as they are
NOT_NORMAL := $(MACHINES) $(call tests_with,asan-only)

.PHONY: test-machines test-clusters check-headers pictures layouts probes programs
test-machines: $(MACHINES:%=$(call tests_in,normal)/%) build/tools/dtrun ## ranks on network namespaces as machines; needs root
	@tests/run.sh $(foreach t,$(MACHINES),'normal/$(t)|alone: $(call tests_in,normal)/$(t)')

test-clusters: build/examples/allreduce build/examples/mnist build/tools/dtrun ## a real Slurm, sshd and mpirun on this machine; needs root
	@tests/clusters.sh

check-headers: ## every header alone and together, C99 to C++20, gcc, clang, nvcc; manuals, symbols
	@tests/check_headers.sh

layouts: $(call tests_in,normal)/test_layouts ## the table of docs/architecture.md: three models, every layout, the same weights
	@$< --filter="layouts*" | grep '^|'

pictures: $(call tests_in,normal)/test_pictures ## draw the pictures of README.md again, from the algorithms
	DT_PICTURES=docs $<

# ---------------------------------------------------------------------------------------------------- flavours
# A flavour is a directory under build/ with its own flags. plain is for valgrind.
FLAVOURS      := normal asan ubsan tsan plain cblas
CFLAGS_asan   := -O0 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
# Kernels with both sanitizers take minutes to compile. Those of asan have AddressSanitizer, those of ubsan the other.
build/asan/lib/dt_cpu.o build/asan/lib/dt_cpu_avx2.o: CFLAGS_asan := -O1 -fno-omit-frame-pointer -fsanitize=address
CFLAGS_ubsan  := -O1 -fsanitize=undefined -fno-sanitize-recover=all
CFLAGS_tsan   := -O1 -fno-omit-frame-pointer -fsanitize=thread
CFLAGS_plain  := -O1
CFLAGS_cblas  := -DDT_USE_CBLAS
LDLIBS_cblas   = $(shell cat build/probe/cblas 2>/dev/null)
# -lz if zlib is installed. Expanded in recipes, because `tools` may install it first.
LDLIBS_zlib    = $(shell echo 'int main(void) { return 0; }' | $(CC) -x c - -lz -o /dev/null 2>/dev/null && \
    echo '\#include <zlib.h>' | $(CC) -x c -E - >/dev/null 2>&1 && echo -lz)
ENV_asan      := DT_TEST_SLOW=4 ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
ENV_ubsan     := DT_TEST_SLOW=4 DT_TEST_QUICK=1 UBSAN_OPTIONS=print_stacktrace=1
ENV_tsan      := DT_TEST_SLOW=10 TSAN_OPTIONS=halt_on_error=1
# valgrind's address space is small: ranks reserve 64 MiB
ENV_valgrind  := DT_TEST_QUICK=1 DT_TEST_SLOW=30 DT_COMM_ARENA=64
VALGRIND      := valgrind -q --error-exitcode=1 --leak-check=full --errors-for-leak-kinds=definite --show-leak-kinds=definite

# $(call in_flavours,flavours,names): the file NAME of each in the directory of each flavour
in_flavours    = $(foreach f,$(1),$(2:%=$(call tests_in,$(f))/%))
# tests compute little: most take longer to compile than to run
$(call in_flavours,normal asan,$(TESTS:%=%.o)): OPTIMISE := -O0
$(call in_flavours,normal asan,$(patsubst %,%.o,$(call tests_with,-O1))): OPTIMISE := -O1
$(call in_flavours,$(FLAVOURS),$(call tests_with,zlib)): LDLIBS += $(LDLIBS_zlib)
programs: $(TESTS:%=$(call tests_in,normal)/%)

# If a test defines DT_X_IMPLEMENTATION itself, its object precedes the library's, and that part of the library is not linked.
vpath test_%.c $(TEST_DIRS)
define flavour
$(call library,$(1),$$(CFLAGS_$(1)))
$(call tests_in,$(1))/%.o: %.c
	@mkdir -p $$(@D)
	$$(CC) $(UTEST:%=-I%) -I. -Itests $$(CPPFLAGS) $$(CFLAGS) $$(CFLAGS_$(1)) $$(OPTIMISE) -MMD -MP -c $$< -o $$@
$(TESTS:%=$(call tests_in,$(1))/%): $(call tests_in,$(1))/%: $(call tests_in,$(1))/%.o build/$(1)/libdt.a
	$$(CC) $$(CFLAGS) $$(CFLAGS_$(1)) $$^ -o $$@ $$(LDFLAGS) $$(LDLIBS) $$(LDLIBS_$(1))
endef
$(foreach f,$(FLAVOURS),$(eval $(call flavour,$(f))))

# ---------------------------------------------------------------------------------------------------- plans
# A plan is what tests/run.sh runs: 'label|command' ... A missing tool is a named skip. Plans are expanded after the
# prerequisites of their target are made, so that a tool that `tools` installed is used.
programs       = $(TESTS:%=$(call tests_in,$(1))/%)
# Builds as much as it can. A part that does not compile fails the run, even if an older program is there.
make_all       = if $(MAKE) -k -j$(JOBS) --no-print-directory GPU_PARTS="$(GPU_PARTS)" $(1); \
    then built='build|echo 1 passed, 0 failed, 0 skipped'; else built='build|echo see the errors above; exit 1'; fi
# $(call plan,flavour,environment,environment of the long ones,tests that are left out); those that run alone come last
plan           = $(foreach t,$(filter-out $(4),$(TOGETHER)),'$(1)/$(t)|$(call line,$(1),$(2),$(3))') \
    $(foreach t,$(filter-out $(4),$(ALONE)),'$(1)/$(t)|alone: $(call line,$(1),$(2),$(3))')
line           = $(2) $(if $(filter $(t),$(LONG)),$(3)) $(call tests_in,$(1))/$(t)
plan_normal    = $(call plan,normal,,$(1),$(2))
plan_portable  = $(foreach t,$(call tests_with,portable),'portable/$(t)|$(1) DT_CPU_ISA=portable $(call tests_in,normal)/$(t)')
plan_asan      = $(call plan,asan,$(ENV_asan) $(1),,$(2))
plan_ubsan     = $(foreach t,$(UBSAN),'ubsan/$(t)|$(ENV_ubsan) $(call tests_in,ubsan)/$(t)')
plan_tsan      = $(call plan,tsan,DT_TEST_QUICK=1 $(ENV_tsan) $(no_aslr))
plan_valgrind  = $(if $(shell command -v valgrind),$(foreach t,$(TESTS),$(if $(filter $(t),$(call tests_with,no-valgrind)),\
        'valgrind/$(t)|skip: it takes a quarter of an hour; AddressSanitizer runs it',\
        'valgrind/$(t)|$(ENV_valgrind) $(VALGRIND) $(call tests_in,plain)/$(t)')),\
    'valgrind|skip: valgrind is not installed')
plan_cblas     = $(if $(LDLIBS_cblas),$(foreach t,$(TESTS),'cblas/$(t)|$(call tests_in,cblas)/$(t)'),\
    'cblas|skip: no CBLAS with a cblas.h was found')
# ThreadSanitizer of older gcc does not start with the address randomisation of newer kernels
no_aslr        = $(if $(shell setarch -R true 2>/dev/null && echo y),setarch -R)

# ---------------------------------------------------------------------------------------------------- probes
# Small programs are compiled, linked and run. build/probe/ keeps the answers that other rules need.
probes: ## what this machine has: CBLAS, zlib, clang, valgrind, Open MPI, nvcc
	@mkdir -p build/probe
	@printf '%s\n' '#include <cblas.h>' 'int main(void)' '{ float a = 2, c = 0;' \
	    'cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, 1, 1, 1, 1, &a, 1, &a, 1, 0, &c, 1);' \
	    'return c != 4; }' > build/probe/cblas.c
	@printf '%s\n' 'int main(void)' '{' '    volatile int x = 1;' '    return x - 1;' '}' > build/probe/c.c
	@: > build/probe/cblas; for l in -lopenblas -lblis -lcblas "-lcblas -lblas"; do \
	    if $(CC) build/probe/cblas.c -o build/probe/cblas.x $$l 2>/dev/null && build/probe/cblas.x; then \
	        echo "$$l" > build/probe/cblas; break; fi; done
	@l=$$(cat build/probe/cblas); echo "probe cblas: $${l:-no (DT_USE_CBLAS is not tested)}"
	@echo "probe zlib: $(or $(LDLIBS_zlib),no (gzipped files are not tested))"
	@clang build/probe/c.c -o build/probe/clang.x 2>/dev/null && build/probe/clang.x && \
	    echo "probe clang: yes" || echo "probe clang: no (headers are checked with gcc alone)"
	@$(CC) build/probe/c.c -o build/probe/c.x && valgrind -q --error-exitcode=1 build/probe/c.x 2>/dev/null && \
	    echo "probe valgrind: yes" || echo "probe valgrind: no"
	@mpicc build/probe/c.c -o build/probe/mpi.x 2>/dev/null && mpirun --version 2>/dev/null | grep -q 'Open MPI' && \
	    echo "probe mpi: yes" || echo "probe mpi: no (DT_USE_MPI is not tested)"
	@$(if $(NVCC),$(NVCC) -x cu build/probe/c.c -o build/probe/nvcc.x 2>/dev/null,false) && \
	    echo "probe nvcc: yes" || echo "probe nvcc: no (headers are not checked with it)"
