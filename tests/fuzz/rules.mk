# Fuzzing with clang's libFuzzer: fuzz-NAME runs tests/fuzz/fuzz_NAME.c RUNS times. Inputs that reached new code are kept
# in build/fuzz/NAME. The seeds are in tests/corpus/NAME; `make test` runs them, too, with any compiler.
.PHONY: fuzz
RUNS       ?= 5000000
FUZZ_CC     = clang -I. -Itests -O1 -g -std=c11 -DDT_NO_AVX2 $(if $(LDLIBS_zlib),-DDT_USE_ZLIB) \
    -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all
fuzz: $(patsubst tests/fuzz/fuzz_%.c,fuzz-%,$(wildcard tests/fuzz/fuzz_*.c)) ## every parser under libFuzzer; fuzz-idx: one
fuzz-%: build/fuzz/fuzz_%
	@mkdir -p build/fuzz/$*
	$< -runs=$(RUNS) -dict=tests/fuzz/fuzz_$*.dict -malloc_limit_mb=64 -max_len=4096 -print_final_stats=1 \
	    -artifact_prefix=build/fuzz/ build/fuzz/$* tests/corpus/$*
build/fuzz/fuzz_%: build/fuzz/fuzz_%.o build/fuzz/libdt.a
	$(FUZZ_CC) $^ -o $@ $(LDLIBS) $(LDLIBS_zlib)
build/fuzz/%.d: ; # the Makefile includes these: they are no programs
build/fuzz/%.o: tests/fuzz/%.c
	@mkdir -p $(@D)
	$(FUZZ_CC) -MMD -MP -c $< -o $@
build/fuzz/lib/%.o: %.h
	@mkdir -p $(@D)
	$(FUZZ_CC) -DDT_$(PART_$*)_IMPLEMENTATION -MMD -MP -x c -c $< -o $@
build/fuzz/libdt.a: $(HEADERS:%.h=build/fuzz/lib/%.o)
	@rm -f $@
	$(AR) rcs $@ $^
