# dt - `make help` lists the targets. Everything that is built is under build/.
# This file: what a user needs, the library, examples and tools. The rules of tests, CUDA, fuzzing and benchmarks: RULES.
ifeq ($(origin CC),default)
CC := gcc
endif
CFLAGS ?= -O2 -g -Wall -Wextra -Wpedantic -Wshadow -std=c11
LDLIBS  = -lm -lpthread -ldl
JOBS   ?= 2
NVCC   := $(shell command -v nvcc || ls /usr/local/cuda/bin/nvcc 2>/dev/null)
RULES  := tests/rules.mk tests/gpu/rules.mk tests/fuzz/rules.mk bench/rules.mk

HEADERS  := $(sort $(wildcard dt*.h))
EXAMPLES := $(sort $(patsubst examples/%.c,%,$(wildcard examples/*.c)))
CXX_EXAMPLES := $(sort $(patsubst examples/%.cpp,%,$(wildcard examples/*.cpp)))
TOOLS    := $(sort $(patsubst tools/%.c,%,$(wildcard tools/*.c)))

.PHONY: help demo test test-quick test-all data api build examples dtrun install uninstall single tools format clean
.DEFAULT_GOAL := help
.SECONDARY:
.DELETE_ON_ERROR:

help: ## this list
	@awk -F':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile $(RULES)
	@echo "  variables: CC, CFLAGS, JOBS (parallel compiles, $(JOBS)); V=1 shows the output of passing tests;"
	@echo "             UTEST=dir: tests with dir/utest.h, for example the public one"

# ---------------------------------------------------------------------------------------------------- run
demo: ## train a conv net on the digits in data/ with two processes, and write a report
	@[ -e build/demo/mnist ] || echo "compiling build/demo/mnist (V=1 shows how)"
	@$(MAKE) $(if $(V),,-s) -j$(JOBS) --no-print-directory build/demo/mnist
	@echo "DT_REPORT=build/demo.html build/demo/mnist $(DEMO) --svg build/demo.svg --csv build/demo.csv"
	@DT_REPORT=build/demo.html build/demo/mnist $(DEMO) --svg build/demo.svg --csv build/demo.csv
	@printf '%s\n' '' 'report      build/demo.html     open it in a browser' 'loss curve  build/demo.svg' \
	    'table       build/demo.csv' '' 'next:' \
	    '  build/demo/mnist $(DEMO) --opt-level O2     the same in mixed precision' \
	    '  make data && build/demo/mnist --nproc 2     Fashion-MNIST, 60,000 images' \
	    '  make dtrun && build/tools/dtrun -n 2 build/demo/mnist --data data/digits     with the launcher'
DEMO := --nproc 2 --data data/digits --epochs 12 --batch 50

test: GPU_SEEDS = 1
test: GPU_PTX = 75
test: GPU_PARTS = t
test: tools ## all tests, ASan+UBSan, headers, examples, CUDA without a GPU: 10 to 15 minutes on 2 cores
	@$(call make_all,$(programs_cuda) $(filter-out $(NOT_NORMAL:%=$(call tests_in,normal)/%),$(call programs,normal)) \
	    $(filter-out $(ASAN_LATER:%=$(call tests_in,asan)/%),$(call programs,asan)) \
	    $(TOOLS:%=build/tools/%) examples parse); \
	tests/run.sh "$$built" $(call plan_normal,DT_TEST_QUICK=1,$(NOT_NORMAL)) $(call plan_portable,DT_TEST_QUICK=1) \
	    $(call plan_asan,DT_TEST_QUICK=1,$(ASAN_LATER)) $(plan_cuda) 'check-headers|DT_TEST_QUICK=1 tests/check_headers.sh'

test-quick: ## the tests alone, fewer sizes: for every edit
	@$(call make_all,$(call programs,normal) $(TOOLS:%=build/tools/%)); \
	DT_TEST_QUICK=1 tests/run.sh "$$built" $(call plan_normal,) $(plan_utest)

test-all: tools probes ## adds full ASan, TSan, valgrind and CBLAS runs: before something is called done
	@$(call make_all,$(programs_cuda) $(foreach f,normal asan tsan plain,$(call programs,$(f))) \
	    $(UBSAN:%=$(call tests_in,ubsan)/%) \
	    $(if $(LDLIBS_cblas),$(call programs,cblas)) examples benches $(TOOLS:%=build/tools/%)); \
	tests/run.sh "$$built" $(call plan_normal,) $(call plan_portable,) $(call plan_asan,) $(plan_ubsan) $(plan_tsan) \
	    $(plan_valgrind) $(plan_cblas) $(plan_cuda) 'check-headers|tests/check_headers.sh' 'extending|tests/extending.sh' \
	    'packages|tests/packages.sh' 'report|tests/report.sh' 'clusters|tests/clusters.sh'

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

# ---------------------------------------------------------------------------------------------------- build
build: programs examples benches $(TOOLS:%=build/tools/%) ## tests, examples, benchmarks, tools, not run
dtrun: build/tools/dtrun ## the launcher: build/tools/dtrun
examples: $(EXAMPLES:%=build/examples/%) $(CXX_EXAMPLES:%=build/examples/%) build/demo/mnist

# Objects of the library: one for each header, and one for the AVX2 kernels. Those that take longest to compile come
# first, so that two jobs end together.
PARTS    := dt_cpu_avx2 dt_cpu dt dt_comm $(filter-out dt_cpu dt dt_comm,$(HEADERS:.h=))
PART_dt_cpu_avx2 := CPU_AVX2
# dt_nn.h is compiled with DT_NN_IMPLEMENTATION, and so on; dt.h with DT_CORE_IMPLEMENTATION
$(foreach h,$(HEADERS),$(eval PART_$(h:.h=) := $(shell echo $(patsubst dt_%.h,%,$(h)) | sed 's/^dt.h$$/core/' | tr a-z A-Z)))

# The library of one flavour (tests/rules.mk). A header is compiled as it is, as C. $(call library,flavour,flags)
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
# for other languages: examples/digits.py
build/libdt.so: dt.c $(HEADERS)
	@mkdir -p $(@D)
	$(CC) $(CPPFLAGS) $(CFLAGS) -fPIC -shared dt.c -o $@ $(LDFLAGS) $(LDLIBS)
build/libdt.a: build/normal/libdt.a
	ln -sf normal/libdt.a $@

# Examples, benchmarks and tools link with the library. Each also compiles as one file, as users do it.
define link_with_library
@mkdir -p $(@D)
$(CC) -I. -Itests -DDT_LINKED $(CPPFLAGS) $(CFLAGS) -MMD -MP -MF $@.d $< build/normal/libdt.a -o $@ $(LDFLAGS) $(LDLIBS)
endef
$(EXAMPLES:%=build/examples/%): build/examples/%: examples/%.c build/normal/libdt.a
	$(link_with_library)
$(CXX_EXAMPLES:%=build/examples/%): build/examples/%: examples/%.cpp build/normal/libdt.a
	@mkdir -p $(@D)
	$(CXX) -I. -DDT_LINKED $(CPPFLAGS) $(patsubst -std=c%,-std=c++20,$(CFLAGS)) -MMD -MP -MF $@.d $< build/normal/libdt.a -o $@ $(LDFLAGS) $(LDLIBS)
$(TOOLS:%=build/tools/%): build/tools/%: tools/%.c build/normal/libdt.a
	$(link_with_library)

# The demo links only what examples/mnist.c uses, so that it is there soon: the objects that take longest first.
DEMO_PARTS := dt_cpu_avx2 dt_cpu dt_comm dt dt_net dt_nn dt_dist dt_elastic dt_data dt_msg dt_plan dt_io dt_plot dt_base dt_cuda
build/demo/mnist: examples/mnist.c $(DEMO_PARTS:%=build/normal/lib/%.o)
	@mkdir -p $(@D)
	$(CC) -I. -DDT_LINKED $(CPPFLAGS) $(CFLAGS) -MMD -MP -MF $@.d $< $(DEMO_PARTS:%=build/normal/lib/%.o) -o $@ $(LDFLAGS) $(LDLIBS)

# PREFIX is where the files will be found, DESTDIR a directory before it while packaging.
PREFIX  ?= /usr/local
VERSION := $(shell sed -n 's/^\#define DT_VERSION "\(.*\)"/\1/p' dt_base.h)
INSTALLED = $(HEADERS:%=include/dt/%) lib/libdt.a lib/pkgconfig/dt.pc lib/cmake/dt/dt-config.cmake \
    lib/cmake/dt/dt-config-version.cmake $(TOOLS:%=bin/%) $(TOOLS:%=share/bash-completion/completions/%)
define fill_in
sed -e 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|; s|@MAJOR@|$(word 1,$(subst ., ,$(VERSION)))|' \
    -e 's|@MINOR@|$(word 2,$(subst ., ,$(VERSION)))|' $(1) > '$(DESTDIR)$(PREFIX)/$(2)'
endef
install: build/libdt.a $(TOOLS:%=build/tools/%) ## headers, libdt.a, tools, pkg-config and CMake files: PREFIX=/usr/local DESTDIR=
	install -d $(patsubst %,'$(DESTDIR)$(PREFIX)/%',$(sort $(dir $(INSTALLED))))
	install -m 644 $(HEADERS) '$(DESTDIR)$(PREFIX)/include/dt'
	install -m 644 build/libdt.a '$(DESTDIR)$(PREFIX)/lib'
	install -m 755 $(TOOLS:%=build/tools/%) '$(DESTDIR)$(PREFIX)/bin'
	for t in $(TOOLS); do \
	    install -m 644 tools/completion.bash '$(DESTDIR)$(PREFIX)'/share/bash-completion/completions/$$t || exit 1; done
	$(call fill_in,cmake/dt.pc.in,lib/pkgconfig/dt.pc)
	$(call fill_in,cmake/dt-config.cmake.in,lib/cmake/dt/dt-config.cmake)
	$(call fill_in,cmake/dt-config-version.cmake.in,lib/cmake/dt/dt-config-version.cmake)
uninstall: ## remove what install has put there, of this version
	rm -f $(INSTALLED:%='$(DESTDIR)$(PREFIX)/%')
	-rmdir '$(DESTDIR)$(PREFIX)/include/dt' '$(DESTDIR)$(PREFIX)/lib/cmake/dt'

api: ## a reference page for each header, from its comments: build/api/index.html
	@tools/api.sh build/api
single: build/dt_single.h ## all headers in one file, build/dt_single.h
build/dt_single.h: $(HEADERS) dt.c LICENSE tools/single.sh
	tools/single.sh $@

include $(RULES)
# A source file that was moved: dependency files of an older build still name its old path.
tests/%.c: ;
-include $(wildcard build/*/*.d build/*/lib/*.d)

# ---------------------------------------------------------------------------------------------------- tools
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
	clang-format -i $(HEADERS) $(wildcard tests/*.h examples/*.c bench/*.c tools/*.c) \
	    $(filter-out tests/golden/% tests/gpu/%,$(wildcard tests/*/*.[ch]))

clean: ## remove build/
	rm -rf build
