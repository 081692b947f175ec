# The CUDA backend without a GPU (docs/gpu.md): one target for each thing that can be shown.
#
# One compile of the kernels serves all targets: code for every architecture, ptxas' report on it, and the PTX that is
# interpreted. It has two parts, for two cores. `make test` has a part of its own, t, the oldest architecture, to save
# time. The PTX of compute_80 is also that of 86 and 89, the PTX of compute_100 also that of 120, except for the name in
# it; so these are assembled from one. A device uses the newest PTX that is not newer than itself: a device of compute
# capability 8.0 uses the PTX of 7.5 from the first part and from t, and that of 8.0 from the second. (One of 7.5 would have
# no bf16 convolutions in cuDNN.)
#
# The words of a line "run:" in a test's first comment (tests/rules.mk) are here:
#     own-rule    it tests the emulation itself: it has a rule and a line in a plan of its own
#     emulated    it is about settings of the emulation: not on a real GPU
#     test-cuda   not in `make test`
GPU_WORDS  := own-rule emulated test-cuda
GPU_RUN    := $(call run_lines,$(wildcard tests/gpu/test_*.c))
$(call run_check,$(GPU_RUN),$(GPU_WORDS))
gpu_with    = $(basename $(notdir $(patsubst %:$(1),%,$(filter %:$(1),$(GPU_RUN)))))
.PHONY: gpu-perf test-cuda test-cuda-build test-cuda-ptxas test-cuda-cudnn test-cuda-kernels test-cuda-trainers cuda-selftest

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
# the implementations of dt_cuda.h and dt_nccl.h; the rest is the library of the tests
GPU_HOST  := build/gpu/nccl.o build/gpu/cuda.o build/normal/libdt.a
GPU_KERN   = build/gpu/kernels-$(firstword $(GPU_PARTS)).o
GPU_CC     = $(CC) -I. -Itests -g -Wall -Wextra -Wshadow -Werror -isystem $(CUDA)/include
# -O1 is for the host's code; nvcc optimises the device's fully
GPU_NVCC   = $(NVCC) -std=c++17 -O1 -Xcompiler -Wall,-Wextra -Werror all-warnings -Xfatbin --compress-mode=none
GPU_REAL   = -L$(CUDA)/lib64 -Wl,--no-as-needed,--enable-new-dtags,-rpath,$(CUDA)/lib64 -lcudart -lcublas -lcudnn -lnccl
GPU_PIECES := $(filter-out dt_kernels,$(patsubst kernels/%.cu,%,$(wildcard kernels/*.cu)))
# Programs that use the backend: the conformance suite, and every tests/gpu/test_*.c that does not test the emulation.
GPU_MORE  := $(filter-out $(call gpu_with,own-rule) test_trainers,$(patsubst tests/gpu/%.c,%,$(wildcard tests/gpu/test_*.c)))
GPU_TESTS := test_conformance test_trainers $(GPU_MORE)
# compute capability 8.0 where there is only the PTX of 7.5: see above
gpu_run    = LD_LIBRARY_PATH=build/gpu $(if $(filter t,$(GPU_PARTS)),DT_EMU_CC=80) \
    DT_EMU_STRICT=1 DT_TEST_SLOW=4 DT_TEST_QUICK=1
gpu_regs   = DT_EMU_REGS=build/gpu/registers.txt
# why these tests cannot run on this machine; empty: they can
gpu_missing = $(if $(NVCC),$(if $(shell printf '\#include <cudnn.h>\n\#include <nccl.h>\n' | \
    $(CC) -isystem $(CUDA)/include -E - >/dev/null 2>&1 && echo y),,the headers of cuDNN or NCCL are missing),nvcc is missing)
GPU_STEPS := build ptxas cudnn kernels trainers
GPU_PTX    = 75 80 90 120
# what the target test-cuda-X builds (gpu_need_X), and what it runs (gpu_plan_X)
gpu_need_build    = $(GPU_HOST) build/gpu/host_nvcc.o build/gpu/host_clang.ok build/gpu/host_cxx.ok \
    build/gpu/mnist_gcc build/gpu/no_gpu $(gpu_need_ptxas) $(if $(gpu_all),build/gpu/mnist_nvcc build/gpu/no_gpu_pieces)
gpu_all           = $(filter b,$(GPU_PARTS))
gpu_need_ptxas    = $(GPU_PARTS:%=build/gpu/kernels-%.o)
gpu_need_cudnn    = build/gpu/test_cudnn $(GPU_LIBS:%=build/gpu/%)
gpu_need_kernels  = $(gpu_need_ptxas) build/gpu/registers.txt build/gpu/broken.ptx \
    $(patsubst %,build/gpu/%,test_ptx test_emu test_broken test_conformance $(if $(gpu_all),test_conformance-b gpu_perf))
gpu_need_trainers = build/gpu/registers.txt $(patsubst %,build/gpu/%,$(gpu_trainers) test_gpu_parallel-copies \
    $(if $(gpu_all),gpu_paper gpu_perf)) $(if $(gpu_all),build/bench/gpu_paper)
gpu_plan_build    = 'cuda/build|tests/gpu/build.sh $(CUDA) $(GPU_PARTS)'
gpu_plan_ptxas    = 'cuda/ptxas|tests/gpu/ptxas.sh build/gpu/ptxas.txt build/gpu/registers.txt "$(gpu_archs)" $(gpu_need_ptxas)'
gpu_archs         = $(foreach p,$(GPU_PARTS),$(GPU_ARCHS_$(p)))
gpu_plan_cudnn    = 'cuda/cudnn|DT_TEST_CUDNN=real CUDA_VISIBLE_DEVICES= build/gpu/test_cudnn' \
    'cuda/cudnn-emulated|LD_LIBRARY_PATH=build/gpu DT_TEST_CUDNN=emulated DT_EMU_DEVICES=0 build/gpu/test_cudnn'
gpu_plan_kernels  = 'cuda/interpreter|build/gpu/test_ptx' \
    'cuda/broken-kernels|DT_BROKEN_PTX=build/gpu/broken.ptx build/gpu/test_broken' \
    'cuda/emulation|$(gpu_run) build/gpu/test_emu' \
    $(foreach a,$(GPU_PTX),'cuda/conformance-$(a)|$(gpu_run) $(gpu_regs) DT_EMU_CC=$(subst 75,80,$(a)) \
        DT_TEST_DEVICE=cuda build/gpu/test_conformance$(if $(filter 80 90,$(a)),-b)') \
    $(if $(gpu_all),'cuda/perf|$(gpu_perf)')
# what each kernel costs: ptxas.txt comes with registers.txt, sass.txt only with `make gpu-perf`
gpu_perf          = LD_LIBRARY_PATH=build/gpu DT_EMU_STRICT=1 build/gpu/gpu_perf --count build/gpu/perf.csv \
    build/gpu/ptxas.txt build/gpu/sass.txt
# Every test runs with lazy streams and in one random order. The tests of gpu_short_X run in GPU_SEEDS random orders, in
# two halves for two cores: each net in f32, two with channels last, one of them in bf16; ranks and devices that train a
# conv net. If GPU_SEEDS is 1, only these run in a random order.
GPU_SEEDS         = 20
gpu_first         = $(if $(filter 1,$(GPU_SEEDS)),$(gpu_short_$(1)),$(if $(gpu_once_$(1)),$(gpu_once_$(1)),all))
gpu_half          = $(if $(3),'cuda/$(1)-seeds-$(2)|$(gpu_run) tests/gpu/seeds.sh "$(3)" build/gpu/$(1) $(gpu_short_$(1))')
gpu_harsh         = $(if $(filter 1,$(GPU_SEEDS)),1 2,$(shell seq -s " " $(GPU_SEEDS)))
gpu_trainers      = test_trainers $(filter-out $(gpu_later),$(GPU_MORE))
gpu_plan_trainers = $(foreach t,$(gpu_trainers),'cuda/$(t)|$(gpu_run) $(gpu_regs) build/gpu/$(t) $(gpu_filter_$(t))' \
        $(if $(call gpu_first,$(t)),'cuda/$(t)-random|$(gpu_run) tests/gpu/seeds.sh 1 build/gpu/$(t) \
            $(filter-out all,$(call gpu_first,$(t)))') \
        $(if $(gpu_short_$(t)),$(call gpu_half,$(t),a,$(shell seq -s " " 2 2 $(GPU_SEEDS))) \
            $(call gpu_half,$(t),b,$(shell seq -s " " 3 2 $(GPU_SEEDS))))) \
    'cuda/test_trainers-harsh|$(gpu_run) DT_HARSH=1 tests/gpu/seeds.sh "$(gpu_harsh)" build/gpu/test_trainers "trainers.*" "products.*"' \
    'cuda/test_gpu_parallel-copies|$(gpu_run) $(gpu_regs) build/gpu/test_gpu_parallel-copies' \
    $(if $(gpu_all),'cuda/launches|LD_LIBRARY_PATH=build/gpu build/gpu/gpu_paper' \
        'cuda/selftest-emulated|tests/gpu/selftest.sh "" "$(MAKE)" test_gpu_memory emulated')
# what `make test` leaves out, and the part of a long test that it runs
gpu_later                   = $(if $(filter t,$(GPU_PARTS)),$(call gpu_with,test-cuda))
gpu_filter_test_gpu_ranks   = $(if $(filter t,$(GPU_PARTS)),--filter='nccl.*')
gpu_once_test_gpu_ranks     = nccl.* ddp.* sharded.*
gpu_filter_test_gpu_pipe    = $(if $(filter t,$(GPU_PARTS)),--filter='pipe.*')
gpu_once_test_gpu_pipe      = pipe.*
gpu_short_test_gpu_pipe     = pipe.mixed_precision
gpu_short_test_trainers     = trainers.f32 trainers.images_with_channels_last
gpu_short_test_gpu_ranks    = ddp.conv_net_on_* sharded.stage_3_on_four_where_a_rank_runs_out
gpu_short_test_gpu_parallel = gpus.equal_one_and_those_of_the_cpu
plan_cuda         = $(if $(gpu_missing),$(foreach s,$(GPU_STEPS),'cuda/$(s)|skip: $(gpu_missing)'),\
    $(foreach s,$(GPU_STEPS),$(gpu_plan_$(s))))
programs_cuda     = $(if $(gpu_missing),,$(foreach s,$(GPU_STEPS),$(gpu_need_$(s))))
# with UTEST=dir (tests/rules.mk): these tests compile with that utest.h, too
gpu_syntax        = for f in $(wildcard $(1:%=tests/gpu/%.c)); do $(subst -I. ,-I$(UTEST) -I. ,$(GPU_CC)) $(2) \
    -fsyntax-only $$f || exit 1; done;
plan_utest        = $(if $(UTEST),$(if $(gpu_missing),'utest/gpu|skip: $(gpu_missing)',\
    'utest/gpu|$(call gpu_syntax,$(GPU_TESTS),$(GPU_USE) -std=c11) \
        $(call gpu_syntax,$(call gpu_with,own-rule),-std=gnu11) echo 1 passed, 0 failed, 0 skipped'))
gpu_step          = $(if $(gpu_missing),tests/run.sh 'cuda/$(1)|skip: $(gpu_missing)',\
    $(call make_all,$(gpu_need_$(1))); tests/run.sh "$$built" $(gpu_plan_$(1)))

test-cuda: ## the CUDA backend without a GPU: the five below; they need nvcc
	@$(if $(gpu_missing),tests/run.sh $(plan_cuda),$(call make_all,$(programs_cuda)); tests/run.sh "$$built" $(plan_cuda))
test-cuda-build: ## ... host code and kernels with every compiler; links with the real libraries, runs without a GPU
	@$(call gpu_step,build)
test-cuda-ptxas: ## ... every kernel for every architecture: no warning, no spill, registers, shared memory
	@$(call gpu_step,ptxas)
test-cuda-cudnn: ## ... descriptors, sizes and refusals by the real cuDNN, and by the emulated one
	@$(call gpu_step,cudnn)
test-cuda-kernels: ## ... the kernels' PTX interpreted, beside the CPU backend, for four architectures
	@$(call gpu_step,kernels)
test-cuda-trainers: ## ... whole trainers on emulated libraries, streams lazy and in 20 random orders
	@$(call gpu_step,trainers)
gpu-perf: ## what each CUDA kernel costs, counted by the interpreter: sectors, bank ways, instructions, occupancy
	@$(if $(gpu_missing),echo "skip: $(gpu_missing)",$(call make_all,build/gpu/registers.txt build/gpu/gpu_perf); \
	    tests/gpu/sass.sh build/gpu/sass.txt $(CUDA) "75 80 90" $(gpu_need_ptxas); \
	    $(gpu_perf) > build/gpu/perf.txt; status=$$?; cat build/gpu/perf.txt; exit $$status)
cuda-selftest: ## on a machine with a GPU: tests, speed of each kernel, and a report to send, build/gpu/selftest.txt
	@tests/gpu/selftest.sh "$(gpu_missing)" "$(MAKE)" "$(patsubst %,test_%,conformance trainers) \
	    $(filter-out $(call gpu_with,emulated),$(GPU_MORE))"

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
# ---- the emulated libraries; the interpreter in them takes half the time of these tests
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
build/gpu/%.o: tests/core/%.c $(HEADERS) $(wildcard tests/*.h tests/core/*.h) | build/gpu/.dirs
	$(GPU_CC) $(GPU_USE) -O1 -std=c11 -c $< -o $@
# ---- programs on the emulated libraries
build/gpu/test_ptx build/gpu/test_broken: build/gpu/%: tests/gpu/%.c tests/gpu/ptx.h | build/gpu/.dirs
	$(GPU_CC) -O0 -std=c11 $< -o $@ $(LDLIBS)
build/gpu/test_emu: tests/gpu/test_emu.c $(GPU_LIBS:%=build/gpu/%)
	$(GPU_CC) -O0 -std=gnu11 $< -o $@ $(GPU_LIBS:%=build/gpu/%) $(LDLIBS)
gpu_link = $(CXX) $(filter %.o,$^) $(filter %.a,$^) -Wl,--no-as-needed $(GPU_LIBS:%=build/gpu/%) -o $@ $(LDLIBS)
$(GPU_TESTS:%=build/gpu/%): build/gpu/%: build/gpu/%.o $(GPU_HOST) $(GPU_KERN) $(GPU_LIBS:%=build/gpu/%)
	$(gpu_link)
build/gpu/gpu_perf.o: bench/kernel_rows.h
build/gpu/gpu_perf: build/gpu/gpu_perf.o $(GPU_HOST) $(GPU_KERN) $(GPU_LIBS:%=build/gpu/%)
	$(gpu_link)
build/gpu/test_conformance-b: build/gpu/test_conformance.o $(GPU_HOST) build/gpu/kernels-b.o $(GPU_LIBS:%=build/gpu/%)
	$(gpu_link)
# GPUs of one program without dt_nccl.h: they copy between each other
build/gpu/test_gpu_parallel-copies: build/gpu/test_gpu_parallel.o build/gpu/cuda.o build/normal/libdt.a \
    $(GPU_KERN) $(GPU_LIBS:%=build/gpu/%)
	$(gpu_link)
# ---- programs on the real ones, both ways of building (docs/gpu.md); the kernels of nvcc's line are not optimised
build/gpu/mnist_nvcc: examples/mnist.c examples/example_data.h $(HEADERS) $(GPU_KERNELS) | build/gpu/.dirs
	$(NVCC) -I. $(GPU_USE) examples/mnist.c kernels/dt_kernels.cu -o $@ \
	    -Xcicc -O0 -gencode arch=compute_75,code=compute_75 -Xlinker --no-as-needed -lcublas -lcudnn -lnccl -lm -lpthread
build/gpu/mnist.o: examples/mnist.c examples/example_data.h $(HEADERS) | build/gpu/.dirs
	$(GPU_CC) $(GPU_USE) -DDT_LINKED -O1 -std=c11 -Wpedantic -c $< -o $@
build/gpu/mnist_gcc: build/gpu/mnist.o $(GPU_HOST) $(GPU_KERN)
	$(CXX) $(filter %.o,$^) $(filter %.a,$^) -o $@ $(GPU_REAL) $(LDLIBS)
build/gpu/no_gpu: build/gpu/no_gpu.o $(GPU_HOST) $(GPU_KERN)
	$(CXX) $(filter %.o,$^) $(filter %.a,$^) -o $@ $(GPU_REAL) $(LDLIBS)
build/gpu/no_gpu_pieces: build/gpu/no_gpu.o build/gpu/host_nvcc.o $(GPU_PIECES:%=build/gpu/pieces/%.o) build/normal/libdt.a
	$(NVCC) $^ -o $@ -lcublas -lcudnn -lnccl -lm -lpthread

build/gpu/gpu_paper: bench/gpu_paper.c bench/kernel_rows.h $(GPU_KERN) build/normal/libdt.a $(GPU_LIBS:%=build/gpu/%) $(HEADERS)
	$(GPU_CC) -DDT_USE_CUDA -O1 -std=c11 -c $< -o $@.o
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
