# dt - `make help` lists the targets. Everything that is built lies under build/.
ifeq ($(origin CC),default)
CC := gcc
endif
CFLAGS ?= -O2 -g -Wall -Wextra -Wpedantic -Wshadow -std=c11
LDLIBS  = -lm -lpthread -ldl
JOBS   ?= 2
NVCC   := $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)

TESTS    := $(sort $(patsubst tests/%.c,%,$(wildcard tests/test_*.c)))
# a test that defines DT_X_IMPLEMENTATION itself sees that header's private functions; its own object comes before the library
OWN_IMPL := $(patsubst tests/%.c,%,$(shell grep -lsE '^\#define DT_([A-Z]*_)?IMPLEMENTATION' tests/test_*.c))
CONFORM  := $(filter test_conformance%,$(TESTS))
EXAMPLES := $(sort $(patsubst examples/%.c,%,$(wildcard examples/*.c)))
BENCHES  := $(sort $(patsubst bench/%.c,%,$(wildcard bench/bench_*.c)))
TOOLS    := $(sort $(patsubst tools/%.c,%,$(wildcard tools/*.c)))
HEADERS  := $(sort $(wildcard dt*.h))
# Objects of the library: one a header, and the AVX2 kernels as one of their own; the longest to compile first, so that two
# jobs end together.
PARTS    := dt_cpu_avx2 dt_cpu dt dt_comm $(filter-out dt_cpu dt dt_comm,$(HEADERS:.h=))
PART_dt_cpu_avx2 := CPU_AVX2
# dt_nn.h is compiled with DT_NN_IMPLEMENTATION, and so on; dt.h with DT_CORE_IMPLEMENTATION
$(foreach h,$(HEADERS),$(eval PART_$(h:.h=) := $(shell echo $(patsubst dt_%.h,%,$(h)) | sed 's/^dt.h$$/core/' | tr a-z A-Z)))

# A flavour is a directory under build/ with its own flags. plain is for valgrind.
FLAVOURS      := normal asan ubsan tsan plain cblas
CFLAGS_asan   := -O0 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all
# kernels under both take minutes to compile: they have a flavour of their own, in test-all
build/asan/lib/dt_cpu.o build/asan/lib/dt_cpu_avx2.o: CFLAGS_asan := -O1 -fno-omit-frame-pointer -fsanitize=address
CFLAGS_ubsan  := -O1 -fsanitize=undefined -fno-sanitize-recover=all
CFLAGS_tsan   := -O1 -fno-omit-frame-pointer -fsanitize=thread
CFLAGS_plain  := -O1
CFLAGS_cblas  := -DDT_USE_CBLAS
LDLIBS_cblas   = $(shell cat build/probe/cblas 2>/dev/null)
# zlib, where it is: for the tests and the fuzzing of gzipped files; asked late, `tools` may have installed it
LDLIBS_zlib    = $(shell echo 'int main(void) { return 0; }' | $(CC) -x c - -lz -o /dev/null 2>/dev/null && \
    echo '\#include <zlib.h>' | $(CC) -x c -E - >/dev/null 2>&1 && echo -lz)
# the tests themselves compute little: compiling them takes longer than running them
$(foreach f,normal asan,$(TESTS:%=build/$(f)/%.o)): OPTIMISE := -O0
$(foreach f,normal asan,$(patsubst %,build/$(f)/%.o,test_reduce test_plans test_sim test_conformance)): OPTIMISE := -O1
$(FLAVOURS:%=build/%/test_examples.o): CPPFLAGS += -I. # as examples are built
ENV_asan      := DT_TEST_SLOW=4 ASAN_OPTIONS=detect_leaks=1 UBSAN_OPTIONS=print_stacktrace=1
ENV_tsan      := DT_TEST_SLOW=10 TSAN_OPTIONS=halt_on_error=1
# its address space is small: ranks reserve less than the machine has
ENV_valgrind  := DT_TEST_QUICK=1 DT_TEST_SLOW=30 DT_COMM_ARENA=64
VALGRIND      := valgrind -q --error-exitcode=1 --leak-check=full --errors-for-leak-kinds=definite --show-leak-kinds=definite

.PHONY: parse test-machines help demo data pictures test test-quick test-all test-cuda test-cuda-build test-cuda-ptxas \
    test-cuda-cudnn test-cuda-kernels test-cuda-trainers cuda-selftest gpu-paper fuzz check-headers probes tools build examples benches \
    dtrun format clean
.DEFAULT_GOAL := help
.SECONDARY:
.DELETE_ON_ERROR:

help: ## this list
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile
	@echo "  variables: CC, CFLAGS, JOBS (parallel compiles, $(JOBS)); V=1 shows the output of passing tests"

# ---------------------------------------------------------------------------------------------------- run
demo: ## train a conv net on the digits in data/ with two processes, under a minute
	@$(MAKE) -s -j$(JOBS) --no-print-directory build/examples/mnist
	build/examples/mnist --nproc 2 --data data/digits --epochs 12 --batch 50 --svg build/demo.svg --csv build/demo.csv
	@echo "the loss curve: build/demo.svg"

test: GPU_SEEDS = 1
test: GPU_PTX = 75
test: GPU_PARTS = t
test: tools ## all tests, ASan+UBSan, headers, examples, CUDA without a GPU: about 8 minutes on 2 cores
	@$(call make_all,$(programs_cuda) $(filter-out $(patsubst %,build/normal/%,$(ASAN_ENOUGH) $(MACHINES)),$(call programs,normal)) \
	    $(filter-out $(ASAN_LATER:%=build/asan/%),$(call programs,asan)) \
	    $(TOOLS:%=build/tools/%) examples parse); \
	tests/run.sh "$$built" $(call plan_normal,DT_TEST_QUICK=1,$(ASAN_ENOUGH) $(MACHINES)) $(call plan_portable,DT_TEST_QUICK=1) \
	    $(call plan_asan,DT_TEST_QUICK=1,$(ASAN_LATER)) $(plan_cuda) 'check-headers|DT_TEST_QUICK=1 tests/check_headers.sh'

test-quick: ## the tests alone, fewer sizes: for every edit
	@$(call make_all,$(call programs,normal) $(TOOLS:%=build/tools/%)); DT_TEST_QUICK=1 tests/run.sh "$$built" $(call plan_normal,)

test-all: tools probes ## adds full ASan, TSan, valgrind and CBLAS runs: before something is called done
	@$(call make_all,$(programs_cuda) $(foreach f,normal asan tsan plain,$(call programs,$(f))) \
	    $(UBSAN:%=build/ubsan/%) \
	    $(if $(LDLIBS_cblas),$(call programs,cblas)) examples benches $(TOOLS:%=build/tools/%)); \
	tests/run.sh "$$built" $(call plan_normal,) $(call plan_portable,) $(call plan_asan,) $(plan_ubsan) $(plan_tsan) $(plan_valgrind) \
	    $(plan_cblas) $(plan_cuda) 'check-headers|tests/check_headers.sh'

# Debian's package of Fashion-MNIST holds gzipped IDX files; the examples read them unpacked
FASHION_GZ := /usr/share/datasets/fashion-mnist
IDX_FILES  := train-images-idx3-ubyte train-labels-idx1-ubyte t10k-images-idx3-ubyte t10k-labels-idx1-ubyte
data: $(IDX_FILES:%=data/fashion/%) ## Fashion-MNIST for the examples, from Debian's package (31 MB)
data/fashion/%: | $(FASHION_GZ)
	@mkdir -p $(@D)
	gzip -dc $(FASHION_GZ)/$*.gz > $@.part && mv $@.part $@
$(FASHION_GZ):
	@export DEBIAN_FRONTEND=noninteractive; install='timeout 300 apt-get install -y -qq dataset-fashion-mnist'; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    $$install >/dev/null 2>&1 || { timeout 120 apt-get update -qq >/dev/null 2>&1; $$install >/dev/null 2>&1; }; fi; \
	[ -d $@ ] || { echo "data: needs Debian's package dataset-fashion-mnist, which cannot be installed here; or put" \
	    "the four IDX files, unpacked, into data/fashion/. Without them the examples use data/digits."; exit 1; }

pictures: build/normal/test_pictures ## draw the pictures of README.md again, from the algorithms
	DT_PICTURES=docs build/normal/test_pictures

check-headers: ## every header alone and together, C99 to C++20, gcc, clang, nvcc; manuals, symbols
	@tests/check_headers.sh

# ---------------------------------------------------------------------------------------------------- CUDA
# The CUDA backend where there is no GPU (docs/gpu.md), a target for each thing that can be shown; all is in tests/gpu.
# One compile serves all: code for every architecture, ptxas' report on it, and the PTX that is interpreted. It is done in
# two parts, for two cores; `make test` has a part t of its own, the oldest architecture, to be done in time. The PTX of
# compute_80 is that of 86 and 89, the PTX of compute_100 that of 120, but for the name in it; so these are assembled from
# one. A device takes the newest PTX that is not newer than itself: one of 8.0 takes that of 7.5 of the first part and of t
# (one of 7.5 has no bf16 convolutions in cuDNN), that of 8.0 of the second.
CUDA       = $(patsubst %/bin/nvcc,%,$(NVCC))
GPU_PARTS   = a b
GPU_ARCHS_t := 75
GPU_CODE_t := -gencode 'arch=compute_75,code=[compute_75,sm_75]'
GPU_ARCHS_a := 75 100 120
GPU_ARCHS_b := 80 86 89 90
GPU_CODE_a := -gencode 'arch=compute_75,code=[compute_75,sm_75]' -gencode 'arch=compute_100,code=[compute_100,sm_100,sm_120]'
GPU_CODE_b := -gencode 'arch=compute_80,code=[compute_80,sm_80,sm_86,sm_89]' \
    -gencode 'arch=compute_90,code=[compute_90,sm_90]'
GPU_LIBS  := libcudart.so.13 libcublas.so.13 libcudnn.so.9 libnccl.so.2
GPU_USE   := -DDT_USE_CUDA -DDT_USE_NCCL
# the implementations of dt_cuda.h and dt_nccl.h; the rest of dt is the library of the tests
GPU_HOST  := build/gpu/nccl.o build/gpu/cuda.o build/normal/libdt.a
GPU_KERN   = build/gpu/kernels-$(firstword $(GPU_PARTS)).o
GPU_CC     = $(CC) -g -Wall -Wextra -Wshadow -Werror -isystem $(CUDA)/include
# -O is of the host's code; the device's is optimised as far as nvcc can
GPU_NVCC   = $(NVCC) -std=c++17 -O1 -Xcompiler -Wall,-Wextra -Werror all-warnings -Xfatbin --compress-mode=none
GPU_REAL   = -L$(CUDA)/lib64 -Wl,--no-as-needed,--enable-new-dtags,-rpath,$(CUDA)/lib64 -lcudart -lcublas -lcudnn -lnccl
GPU_PIECES := $(filter-out dt_kernels,$(patsubst kernels/%.cu,%,$(wildcard kernels/*.cu)))
# Programs over the backend: the conformance suite, and every tests/gpu/test_*.c that is not of the emulation itself.
GPU_OWN   := test_ptx test_emu test_broken test_cudnn
GPU_MORE  := $(filter-out $(GPU_OWN) test_trainers,$(patsubst tests/gpu/%.c,%,$(wildcard tests/gpu/test_*.c)))
GPU_TESTS := test_conformance test_trainers $(GPU_MORE)
# what is about settings of the emulation and has no meaning on a GPU
GPU_EMULATED := test_refused
# of compute capability 8.0 where only the PTX of 7.5 is there: one of 7.5 has no bf16 convolutions in cuDNN
gpu_run    = LD_LIBRARY_PATH=build/gpu $(if $(filter t,$(GPU_PARTS)),DT_EMU_CC=80) DT_EMU_STRICT=1 DT_TEST_SLOW=4 DT_TEST_QUICK=1
gpu_regs   = DT_EMU_REGS=build/gpu/registers.txt
# why the rungs cannot be climbed here; empty: they can
gpu_missing = $(if $(NVCC),$(if $(shell printf '\#include <cudnn.h>\n\#include <nccl.h>\n' | \
    $(CC) -isystem $(CUDA)/include -E - >/dev/null 2>&1 && echo y),,the headers of cuDNN or NCCL are missing),nvcc is missing)
GPU_RUNGS := build ptxas cudnn kernels trainers
GPU_PTX    = 75 80 90 120
# what a rung needs built, and what it runs
gpu_need_build    = $(GPU_HOST) build/gpu/host_nvcc.o build/gpu/host_clang.ok build/gpu/host_cxx.ok \
    build/gpu/mnist_gcc build/gpu/no_gpu $(gpu_need_ptxas) $(if $(gpu_all),build/gpu/mnist_nvcc build/gpu/no_gpu_pieces)
gpu_all           = $(filter b,$(GPU_PARTS))
gpu_need_ptxas    = $(GPU_PARTS:%=build/gpu/kernels-%.o)
gpu_need_cudnn    = build/gpu/test_cudnn $(GPU_LIBS:%=build/gpu/%)
gpu_need_kernels  = $(gpu_need_ptxas) build/gpu/registers.txt build/gpu/broken.ptx \
    $(patsubst %,build/gpu/%,test_ptx test_emu test_broken test_conformance $(if $(gpu_all),test_conformance-b))
gpu_need_trainers = build/gpu/registers.txt $(patsubst %,build/gpu/%,test_trainers $(filter-out $(gpu_later),$(GPU_MORE)) test_gpu_parallel-copies \
    $(if $(gpu_all),gpu_paper))
gpu_plan_build    = 'cuda/build|tests/gpu/build.sh $(CUDA) $(GPU_PARTS)'
gpu_plan_ptxas    = 'cuda/ptxas|tests/gpu/ptxas.sh build/gpu/ptxas.txt build/gpu/registers.txt "$(gpu_archs)" $(gpu_need_ptxas)'
gpu_archs         = $(foreach p,$(GPU_PARTS),$(GPU_ARCHS_$(p)))
gpu_plan_cudnn    = 'cuda/cudnn|DT_TEST_CUDNN=real CUDA_VISIBLE_DEVICES= build/gpu/test_cudnn' \
    'cuda/cudnn-emulated|LD_LIBRARY_PATH=build/gpu DT_TEST_CUDNN=emulated DT_EMU_DEVICES=0 build/gpu/test_cudnn'
gpu_plan_kernels  = 'cuda/interpreter|build/gpu/test_ptx' \
    'cuda/broken-kernels|DT_BROKEN_PTX=build/gpu/broken.ptx build/gpu/test_broken' \
    'cuda/emulation|$(gpu_run) build/gpu/test_emu' \
    $(foreach a,$(GPU_PTX),'cuda/conformance-$(a)|$(gpu_run) $(gpu_regs) DT_EMU_CC=$(subst 75,80,$(a)) \
        DT_TEST_DEVICE=cuda build/gpu/test_conformance$(if $(filter 80 90,$(a)),-b)')
# All of it lazily and in one random order; more orders for each net in f32, two with channels last, one of them in bf16,
# and for ranks and devices that train a conv net: up to GPU_SEEDS, in two halves for two cores. With 1, only these.
GPU_SEEDS         = 20
gpu_first         = $(if $(filter 1,$(GPU_SEEDS)),$(gpu_short_$(1)),$(if $(gpu_once_$(1)),$(gpu_once_$(1)),all))
gpu_half          = $(if $(3),'cuda/$(1)-seeds-$(2)|$(gpu_run) tests/gpu/seeds.sh "$(3)" build/gpu/$(1) $(gpu_short_$(1))')
gpu_plan_trainers = $(foreach t,test_trainers $(filter-out $(gpu_later),$(GPU_MORE)),'cuda/$(t)|$(gpu_run) $(gpu_regs) build/gpu/$(t) $(gpu_filter_$(t))' \
        $(if $(call gpu_first,$(t)),'cuda/$(t)-random|$(gpu_run) tests/gpu/seeds.sh 1 build/gpu/$(t) $(filter-out all,$(call gpu_first,$(t)))') \
        $(if $(gpu_short_$(t)),$(call gpu_half,$(t),a,$(shell seq -s " " 2 2 $(GPU_SEEDS))) \
            $(call gpu_half,$(t),b,$(shell seq -s " " 3 2 $(GPU_SEEDS))))) \
    'cuda/test_gpu_parallel-copies|$(gpu_run) $(gpu_regs) build/gpu/test_gpu_parallel-copies' \
    $(if $(gpu_all),'cuda/launches|LD_LIBRARY_PATH=build/gpu build/gpu/gpu_paper')
# what `make test` leaves to test-cuda, and what it takes of a long one
gpu_later                   = $(if $(filter t,$(GPU_PARTS)),test_refused)
gpu_filter_test_gpu_ranks   = $(if $(filter t,$(GPU_PARTS)),--filter='nccl.*')
gpu_once_test_gpu_ranks     = nccl.* ddp.*
gpu_short_test_trainers     = trainers.f32 trainers.images_with_channels_last
gpu_short_test_gpu_ranks    = ddp.conv_net_on_*
gpu_short_test_gpu_parallel = gpus.equal_one_and_those_of_the_cpu
plan_cuda         = $(if $(gpu_missing),$(foreach r,$(GPU_RUNGS),'cuda/$(r)|skip: $(gpu_missing)'),\
    $(foreach r,$(GPU_RUNGS),$(gpu_plan_$(r))))
programs_cuda     = $(if $(gpu_missing),,$(foreach r,$(GPU_RUNGS),$(gpu_need_$(r))))
gpu_rung          = $(if $(gpu_missing),tests/run.sh 'cuda/$(1)|skip: $(gpu_missing)',\
    $(call make_all,$(gpu_need_$(1))); tests/run.sh "$$built" $(gpu_plan_$(1)))

test-cuda: ## the CUDA backend without a GPU: the five below; they need nvcc
	@$(if $(gpu_missing),tests/run.sh $(plan_cuda),$(call make_all,$(programs_cuda)); tests/run.sh "$$built" $(plan_cuda))
test-cuda-build: ## ... host code and kernels with every compiler; links with the real libraries, runs without a GPU
	@$(call gpu_rung,build)
test-cuda-ptxas: ## ... every kernel for every architecture: no warning, no spill, registers, shared memory
	@$(call gpu_rung,ptxas)
test-cuda-cudnn: ## ... descriptors, sizes and refusals by the real cuDNN, and by the emulated one
	@$(call gpu_rung,cudnn)
test-cuda-kernels: ## ... the kernels' PTX interpreted, beside the CPU backend, for four architectures
	@$(call gpu_rung,kernels)
test-cuda-trainers: ## ... whole trainers on emulated libraries, streams lazy and in 20 random orders
	@$(call gpu_rung,trainers)
cuda-selftest: ## on a machine with a GPU: the tests on it, and a report to send, build/gpu/selftest.txt
	@tests/gpu/selftest.sh "$(gpu_missing)" "$(MAKE)" "$(patsubst %,test_%,conformance trainers) \
	    $(filter-out $(GPU_EMULATED),$(GPU_MORE))"

build/gpu/.dirs:
	@mkdir -p $(@D)/pieces $(@D)/native && touch $@
# ---- kernels
GPU_KERNELS := $(wildcard kernels/*) dt.h dt_cuda.h
build/gpu/kernels-%.o: $(GPU_KERNELS) | build/gpu/.dirs
	$(GPU_NVCC) -cudart shared $(GPU_CODE_$*) -Xptxas -v,-warn-spills,-warn-lmem-usage \
	    -c kernels/dt_kernels.cu -o $@ > build/gpu/kernels-$*.log 2>&1 || \
	    { grep -E 'error|warning|fatal' build/gpu/kernels-$*.log; exit 1; }
build/gpu/registers.txt: $(gpu_need_ptxas) tests/gpu/ptxas.sh
	@tests/gpu/ptxas.sh build/gpu/ptxas.txt $@ "$(gpu_archs)" $(gpu_need_ptxas) > /dev/null || true
build/gpu/pieces/%.o: kernels/%.cu $(GPU_KERNELS) | build/gpu/.dirs
	$(GPU_NVCC) -Xcicc -O0 -gencode arch=compute_75,code=compute_75 -c $< -o $@
build/gpu/broken.ptx: tests/gpu/broken.cu | build/gpu/.dirs
	$(NVCC) -std=c++17 -O3 -ptx -arch=compute_80 $< -o $@
# ---- the emulated libraries: half the time of these tests is the interpreter's
build/gpu/libcudart.so.13: tests/gpu/ptx.h
$(GPU_LIBS:%=build/gpu/%): tests/gpu/emu.h
define gpu_lib
build/gpu/$(1): tests/gpu/emu_$(patsubst lib%,%,$(firstword $(subst ., ,$(1)))).c \
    $(if $(findstring cudart,$(1)),,build/gpu/libcudart.so.13) | build/gpu/.dirs
	$$(GPU_CC) $(if $(findstring cudart,$(1)),-O3,-O2) -std=gnu11 -fPIC -shared $$< -o $$@ -Wl,-soname,$(1) \
	    $(if $(findstring nccl,$(1)),,-Wl,--default-symver) \
	    $(if $(findstring cudart,$(1)),,-Lbuild/gpu -l:libcudart.so.13) $$(LDLIBS)
endef
$(foreach l,$(GPU_LIBS),$(eval $(call gpu_lib,$(l))))
# ---- host code: as C by gcc, which the programs are linked with, and as the others see it
build/gpu/cuda.o build/gpu/nccl.o: build/gpu/%.o: dt_%.h $(HEADERS) | build/gpu/.dirs
	$(GPU_CC) $(GPU_USE) -O1 -Wpedantic -DDT_$(PART_dt_$*)_IMPLEMENTATION -std=c11 -x c -c $< -o $@
GPU_BOTH  := $(GPU_USE) -DDT_PART -DDT_CUDA_IMPLEMENTATION -DDT_NCCL_IMPLEMENTATION
build/gpu/host_nvcc.o: dt.c $(HEADERS) | build/gpu/.dirs
	$(NVCC) -x cu -std=c++17 $(GPU_BOTH) -Werror all-warnings -Xcompiler -Wall,-Wextra,-Wshadow,-Werror -O0 -c $< -o $@
build/gpu/host_clang.ok: dt.c $(HEADERS) | build/gpu/.dirs
	if ! command -v clang >/dev/null; then echo "skip: clang is not installed" > $@; else clang $(GPU_BOTH) \
	    -isystem $(CUDA)/include -std=c11 -Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only $< && echo ok > $@; fi
build/gpu/host_cxx.ok: dt.c $(HEADERS) | build/gpu/.dirs
	$(CXX) $(GPU_BOTH) -isystem $(CUDA)/include -x c++ -std=c++17 -Wall -Wextra -Wpedantic -Wshadow -Werror \
	    -fsyntax-only $< && echo ok > $@
build/gpu/%.o: tests/gpu/%.c $(HEADERS) $(wildcard tests/*.h tests/gpu/*.h) | build/gpu/.dirs
	$(GPU_CC) $(GPU_USE) -O1 -std=c11 -c $< -o $@
build/gpu/%.o: tests/%.c $(HEADERS) $(wildcard tests/*.h) | build/gpu/.dirs
	$(GPU_CC) $(GPU_USE) -O1 -std=c11 -c $< -o $@
# ---- programs on the emulated libraries
build/gpu/test_ptx build/gpu/test_broken: build/gpu/%: tests/gpu/%.c tests/gpu/ptx.h | build/gpu/.dirs
	$(GPU_CC) -O0 -std=c11 $< -o $@ $(LDLIBS)
build/gpu/test_emu: tests/gpu/test_emu.c $(GPU_LIBS:%=build/gpu/%)
	$(GPU_CC) -O0 -std=gnu11 $< -o $@ $(GPU_LIBS:%=build/gpu/%) $(LDLIBS)
gpu_link = $(CXX) $(filter %.o,$^) $(filter %.a,$^) -Wl,--no-as-needed $(GPU_LIBS:%=build/gpu/%) -o $@ $(LDLIBS)
$(GPU_TESTS:%=build/gpu/%): build/gpu/%: build/gpu/%.o $(GPU_HOST) $(GPU_KERN) $(GPU_LIBS:%=build/gpu/%)
	$(gpu_link)
build/gpu/test_conformance-b: build/gpu/test_conformance.o $(GPU_HOST) build/gpu/kernels-b.o $(GPU_LIBS:%=build/gpu/%)
	$(gpu_link)
# GPUs of one program without dt_nccl.h: they copy between each other
build/gpu/test_gpu_parallel-copies: build/gpu/test_gpu_parallel.o build/gpu/cuda.o build/normal/libdt.a $(GPU_KERN) $(GPU_LIBS:%=build/gpu/%)
	$(gpu_link)
# ---- programs on the real ones, both ways of building (docs/gpu.md); the kernels of nvcc's line are not optimised
build/gpu/mnist_nvcc: examples/mnist.c examples/example_data.h $(HEADERS) $(GPU_KERNELS) | build/gpu/.dirs
	$(NVCC) -I. $(GPU_USE) examples/mnist.c kernels/dt_kernels.cu -o $@ \
	    -Xcicc -O0 -gencode arch=compute_75,code=compute_75 -Xlinker --no-as-needed -lcublas -lcudnn -lnccl -lm -lpthread
build/gpu/mnist.o: examples/mnist.c examples/example_data.h $(HEADERS) | build/gpu/.dirs
	$(GPU_CC) -I. $(GPU_USE) -DDT_LINKED -O1 -std=c11 -Wpedantic -c $< -o $@
build/gpu/mnist_gcc: build/gpu/mnist.o $(GPU_HOST) $(GPU_KERN)
	$(CXX) $(filter %.o,$^) $(filter %.a,$^) -o $@ $(GPU_REAL) $(LDLIBS)
build/gpu/no_gpu: build/gpu/no_gpu.o $(GPU_HOST) $(GPU_KERN)
	$(CXX) $(filter %.o,$^) $(filter %.a,$^) -o $@ $(GPU_REAL) $(LDLIBS)
build/gpu/no_gpu_pieces: build/gpu/no_gpu.o build/gpu/host_nvcc.o $(GPU_PIECES:%=build/gpu/pieces/%.o) build/normal/libdt.a
	$(NVCC) $^ -o $@ -lcublas -lcudnn -lnccl -lm -lpthread

build/gpu/gpu_paper: bench/gpu_paper.c $(GPU_KERN) build/normal/libdt.a $(GPU_LIBS:%=build/gpu/%) $(HEADERS)
	$(GPU_CC) -I. -DDT_USE_CUDA -O1 -std=c11 -c $< -o $@.o
	$(CXX) $@.o $(GPU_KERN) build/normal/libdt.a $(filter-out %nccl.so.2,$(GPU_LIBS:%=build/gpu/%)) -o $@ $(LDLIBS)
build/gpu/test_cudnn.o: tests/gpu/test_cudnn.c $(HEADERS) $(wildcard tests/*.h) | build/gpu/.dirs
	$(GPU_CC) -O0 -std=c11 -c $< -o $@
build/gpu/test_cudnn: build/gpu/test_cudnn.o $(GPU_KERN) build/normal/libdt.a
	$(CXX) $^ -o $@ $(GPU_REAL) $(LDLIBS)
# ---- on a real GPU (cuda-selftest): GPU_NATIVE is its compute capability
build/gpu/native/gpu_info: tests/gpu/gpu_info.c | build/gpu/.dirs
	$(GPU_CC) -O1 -std=c11 $< -o $@ $(GPU_REAL)
build/gpu/native/kernels-$(GPU_NATIVE).o: $(GPU_KERNELS) | build/gpu/.dirs
	$(GPU_NVCC) -gencode 'arch=compute_$(GPU_NATIVE),code=[compute_$(GPU_NATIVE),sm_$(GPU_NATIVE)]' -c kernels/dt_kernels.cu -o $@
build/gpu/native/%: build/gpu/%.o $(GPU_HOST) build/gpu/native/kernels-$(GPU_NATIVE).o
	$(CXX) $^ -o $@ $(GPU_REAL) $(LDLIBS)

# One target a parser, with clang's libFuzzer: RUNS executions. What reached something new is kept in build/fuzz/NAME;
# the seeds are in tests/corpus/NAME, which run in `make test`, too, with any compiler.
RUNS       ?= 5000000
FUZZ_CC     = clang -O1 -g -std=c11 -DDT_NO_AVX2 $(if $(LDLIBS_zlib),-DDT_USE_ZLIB) \
    -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
fuzz: $(patsubst tests/fuzz_%.c,fuzz-%,$(wildcard tests/fuzz_*.c)) ## every parser under libFuzzer; fuzz-idx: one
fuzz-%: build/fuzz/fuzz_%
	@mkdir -p build/fuzz/$*
	$< -runs=$(RUNS) -dict=tests/fuzz_$*.dict -malloc_limit_mb=64 -max_len=4096 -print_final_stats=1 \
	    -artifact_prefix=build/fuzz/ build/fuzz/$* tests/corpus/$*
build/fuzz/fuzz_%: build/fuzz/fuzz_%.o build/fuzz/libdt.a
	$(FUZZ_CC) $^ -o $@ $(LDLIBS) $(LDLIBS_zlib)
build/fuzz/%.o: tests/%.c
	@mkdir -p $(@D)
	$(FUZZ_CC) -MMD -MP -c $< -o $@
build/fuzz/lib/%.o: %.h
	@mkdir -p $(@D)
	$(FUZZ_CC) -DDT_$(PART_$*)_IMPLEMENTATION -MMD -MP -x c -c $< -o $@
build/fuzz/libdt.a: $(HEADERS:%.h=build/fuzz/lib/%.o)
	@rm -f $@
	$(AR) rcs $@ $^

bench-gemm: ## GEMM beside OpenBLAS and BLIS
	@$(call install,libopenblas.so.0,libopenblas0)
	@$(call install,libblis.so.4,libblis4)
	@$(MAKE) --no-print-directory build/bench/bench_gemm
	build/bench/bench_gemm

bench-step: build/bench/bench_step ## mallocs and time of a training step
	build/bench/bench_step

bench-compile: ## compile times: the library, examples, clone to demo; gcc, clang, nvcc
	@bench/bench_compile.sh "$(CC)"

# PyTorch for the peers of benchmarks: what python3 has, or one of our own under build/venv
PEER_PYTHON = $(shell python3 -c 'import torch' 2>/dev/null && command -v python3 || echo build/venv/bin/python3)
build/venv/ready:
	python3 -m venv build/venv
	build/venv/bin/pip install -q torch numpy
	@touch $@

bench-train: build/bench/bench_train ## training and inference beside PyTorch: MLP, conv net, ResNets, GPT
	@case "$(PEER_PYTHON)" in build/*) $(MAKE) --no-print-directory build/venv/ready ;; esac
	build/bench/bench_train --python $(PEER_PYTHON)

bench-loader: build/bench/bench_loader ## loading data beside PyTorch's DataLoader and beside memcpy
	@case "$(PEER_PYTHON)" in build/*) $(MAKE) --no-print-directory build/venv/ready ;; esac
	build/bench/bench_loader --python $(PEER_PYTHON)

bench-ddp: build/bench/bench_ddp build/tools/dtrun ## two ranks beside PyTorch's DDP with gloo; how much of communication is hidden
	@case "$(PEER_PYTHON)" in build/*) $(MAKE) --no-print-directory build/venv/ready ;; esac
	build/bench/bench_ddp --python $(PEER_PYTHON)

# the peers that are not there are named and left out
bench-allreduce: build/bench/bench_allreduce ## allreduce beside Open MPI and gloo, by size, transport and algorithm
	@if command -v mpicc > /dev/null; then mpicc -O2 bench/peer_allreduce_mpi.c -o build/bench/peer_allreduce_mpi; fi
	@case "$(PEER_PYTHON)" in build/*) $(MAKE) --no-print-directory build/venv/ready ;; esac || true
	build/bench/bench_allreduce --python $(PEER_PYTHON)

gpu-paper: build/bench/gpu_paper ## launches, bytes and times of training steps on GPUs, computed (docs/gpu.md)
	@build/bench/gpu_paper

bench-report: ## every benchmark, as one page with pictures: build/report/index.html
	@bench/report.sh

bench-%: build/bench/bench_%
	$<

# ---------------------------------------------------------------------------------------------------- plans
# What tests/run.sh runs: 'label|command'. A missing tool is a named skip. They are expanded after the prerequisites of
# their target are made, so a tool that `tools` installed is seen.
programs       = $(TESTS:%=build/$(1)/%)
# builds as much as it can; a part that does not compile fails the run, whatever older programs lie about
make_all       = if $(MAKE) -k -j$(JOBS) --no-print-directory GPU_PARTS="$(GPU_PARTS)" $(1); \
    then built='build|echo 1 passed, 0 failed, 0 skipped'; else built='build|echo see the errors above; exit 1'; fi
# tests that take long in full: in test-all only
LONG          := test_conformance test_train test_plans test_mpi test_restart test_faults test_join test_comm test_tcp test_survive test_net test_dtrun \
    test_sim
# tests of ranks and of clocks, which run with nothing beside them
ALONE         := $(filter test_harness test_progress test_comm test_join test_tcp test_mpi test_ddp test_feed test_choice \
    test_launch test_examples test_survive test_dtverify test_dtrun test_restart test_faults test_net test_syncnorm,$(TESTS))
# tests of machines that are network namespaces: a target of their own
MACHINES      := test_net
# whose programs are other programs, or that take long under AddressSanitizer: there in test-all only
ASAN_LATER    := test_mpi test_launch test_examples test_dtrun test_dtverify test_restart test_net test_choice test_pictures test_plans \
    test_survive test_faults test_sim test_comm test_join test_syncnorm test_harness test_tcp test_pack
# what runs every kernel
UBSAN         := test_conformance test_golden test_train test_optim
TOGETHER      := $(filter-out $(ALONE),$(TESTS))
test-machines: build/normal/test_net build/tools/dtrun ## ranks on several machines, which are network namespaces; needs root
	@tests/run.sh $(foreach t,$(MACHINES),'normal/$(t)|alone: build/normal/$(t)')
# these see private functions of one header: once in `make test`, under AddressSanitizer
ASAN_ENOUGH   := $(filter-out $(ASAN_LATER) $(ALONE) test_reduce,$(OWN_IMPL))
# plan,flavour,environment,that of the long ones,what is left out: what can run two at a time first
plan           = $(foreach t,$(filter-out $(4),$(TOGETHER)),'$(1)/$(t)|$(call line,$(1),$(2),$(3))') \
    $(foreach t,$(filter-out $(4),$(ALONE)),'$(1)/$(t)|alone: $(call line,$(1),$(2),$(3))')
line           = $(2) $(if $(filter $(t),$(LONG)),$(3)) build/$(1)/$(t)
plan_normal    = $(call plan,normal,,$(1),$(2))
plan_portable  = $(foreach t,$(CONFORM),'portable/$(t)|$(1) DT_CPU_ISA=portable build/normal/$(t)')
plan_asan      = $(call plan,asan,$(ENV_asan) $(1),,$(2))
plan_ubsan     = $(foreach t,$(UBSAN),'ubsan/$(t)|DT_TEST_SLOW=4 DT_TEST_QUICK=1 UBSAN_OPTIONS=print_stacktrace=1 build/ubsan/$(t)')
plan_tsan      = $(call plan,tsan,DT_TEST_QUICK=1 $(ENV_tsan) $(no_aslr))
plan_valgrind  = $(if $(shell command -v valgrind),\
    $(foreach t,$(filter-out test_train,$(TESTS)),'valgrind/$(t)|$(ENV_valgrind) $(VALGRIND) build/plain/$(t)') \
    'valgrind/test_train|skip: whole networks take a quarter of an hour; AddressSanitizer runs them',\
    'valgrind|skip: valgrind is not installed')
plan_cblas     = $(if $(LDLIBS_cblas),$(foreach t,$(TESTS),'cblas/$(t)|build/cblas/$(t)'),\
    'cblas|skip: no CBLAS with a cblas.h was found')
# ThreadSanitizer of older gcc does not start with the address randomisation of newer kernels
no_aslr        = $(if $(shell setarch -R true 2>/dev/null && echo y),setarch -R)

# ---------------------------------------------------------------------------------------------------- build
build: $(call programs,normal) examples benches $(TOOLS:%=build/tools/%) ## tests, examples, benchmarks, tools, not run
dtrun: build/tools/dtrun ## the launcher: build/tools/dtrun
examples: $(EXAMPLES:%=build/examples/%)
# benchmarks are only parsed in `make test`, with all warnings
parse: $(BENCHES:%=build/parse/%.ok)
build/parse/%.ok: bench/%.c $(HEADERS) $(wildcard bench/*.h)
	@mkdir -p $(@D)
	$(CC) -I. -DDT_LINKED $(CPPFLAGS) $(CFLAGS) -Werror -fsyntax-only $< && touch $@
benches: $(BENCHES:%=build/bench/%)

# The library: the implementation of each header is an object of its own. A header is compiled as it is, as C.
# lib,directory,flags
define library
build/$(1)/lib/%.o: %.h
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $$(CFLAGS) $(2) -DDT_$$(PART_$$*)_IMPLEMENTATION -MMD -MP -x c -c $$< -o $$@
build/$(1)/lib/dt_cpu_avx2.o: dt_cpu.h
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $$(CFLAGS) $(2) -DDT_CPU_AVX2_IMPLEMENTATION -MMD -MP -x c -c $$< -o $$@
build/$(1)/lib/dt_cpu.o: CPPFLAGS += -DDT_CPU_PARTS
build/$(1)/libdt.a: $$(patsubst %,build/$(1)/lib/%.o,$$(PARTS))
	@rm -f $$@
	$$(AR) rcs $$@ $$^
endef
define flavour
$(call library,$(1),$$(CFLAGS_$(1)))
build/$(1)/%.o: tests/%.c
	@mkdir -p $$(@D)
	$$(CC) $$(CPPFLAGS) $$(CFLAGS) $$(CFLAGS_$(1)) $$(OPTIMISE) -MMD -MP -c $$< -o $$@
$(TESTS:%=build/$(1)/%): build/$(1)/%: build/$(1)/%.o build/$(1)/libdt.a
	$$(CC) $$(CFLAGS) $$(CFLAGS_$(1)) $$^ -o $$@ $$(LDFLAGS) $$(LDLIBS) $$(LDLIBS_$(1))
endef
$(foreach f,$(FLAVOURS),$(eval $(call flavour,$(f))))
$(FLAVOURS:%=build/%/test_data_gzip): LDLIBS += $(LDLIBS_zlib)
build/libdt.a: build/normal/libdt.a
	ln -sf normal/libdt.a $@

# examples, benchmarks and tools are linked with the library; each compiles by itself, too, as users do it
$(EXAMPLES:%=build/examples/%): build/examples/%: examples/%.c build/normal/libdt.a
	@mkdir -p $(@D)
	$(CC) -I. -DDT_LINKED $(CPPFLAGS) $(CFLAGS) -MMD -MP -MF $@.d $< build/normal/libdt.a -o $@ $(LDFLAGS) $(LDLIBS)
$(BENCHES:%=build/bench/%) build/bench/gpu_paper: build/bench/%: bench/%.c build/normal/libdt.a
	@mkdir -p $(@D)
	$(CC) -I. -DDT_LINKED $(CPPFLAGS) $(CFLAGS) -MMD -MP -MF $@.d $< build/normal/libdt.a -o $@ $(LDFLAGS) $(LDLIBS)
$(TOOLS:%=build/tools/%): build/tools/%: tools/%.c build/normal/libdt.a
	@mkdir -p $(@D)
	$(CC) -I. -DDT_LINKED $(CPPFLAGS) $(CFLAGS) -MMD -MP -MF $@.d $< build/normal/libdt.a -o $@ $(LDFLAGS) $(LDLIBS)

-include $(wildcard build/*/*.d build/*/lib/*.d)

# ---------------------------------------------------------------------------------------------------- tools
# Five lines are compiled and linked; the answer is printed, and kept in build/probe/ where something depends on it.
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

# install,program or library,package: quietly, when it is missing and this is root on a Debian-like system
install = command -v $(1) >/dev/null || ldconfig -p 2>/dev/null | grep -q '$(1)' || { \
    if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
        export DEBIAN_FRONTEND=noninteractive; \
        timeout 300 apt-get install -y -qq $(2) >/dev/null 2>&1 || \
        { timeout 120 apt-get update -qq >/dev/null 2>&1; timeout 300 apt-get install -y -qq $(2) >/dev/null 2>&1; }; \
    fi; \
    command -v $(1) >/dev/null || ldconfig -p 2>/dev/null | grep -q '$(1)' && echo "tools: installed $(2)" || \
        echo "tools: $(2) is missing and cannot be installed here"; }

tools: ## install clang, valgrind, zlib and Open MPI if they are missing and this is root
	@$(call install,clang,clang)
	@$(call install,valgrind,valgrind)
	@$(call install,libz.so ,zlib1g-dev)
	@$(call install,mpicc,openmpi-bin libopenmpi-dev)

format: ## clang-format over headers, tests, examples, benchmarks and tools
	clang-format -i $(HEADERS) $(wildcard tests/*.[ch] examples/*.c bench/*.c tools/*.c)

clean: ## remove build/
	rm -rf build
