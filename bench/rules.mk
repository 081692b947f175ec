# Benchmarks: bench-NAME builds and runs bench/bench_NAME.c. Results are in README.md and docs/performance.md.
BENCHES := $(sort $(patsubst bench/%.c,%,$(wildcard bench/bench_*.c)))
.PHONY: benches parse gpu-paper bench-compile bench-report
benches: $(BENCHES:%=build/bench/%)
# `make test` only parses benchmarks, with all warnings
parse: $(BENCHES:%=build/parse/%.ok)
build/parse/%.ok: bench/%.c $(HEADERS) $(wildcard bench/*.h)
	@mkdir -p $(@D)
	$(CC) -I. -Itests -DDT_LINKED $(CPPFLAGS) $(CFLAGS) -Werror -fsyntax-only $< && touch $@
$(BENCHES:%=build/bench/%) build/bench/gpu_paper: build/bench/%: bench/%.c build/normal/libdt.a
	$(link_with_library)

bench-gemm: ## GEMM beside OpenBLAS and BLIS
	@$(call install,libopenblas.so.0,libopenblas0)
	@$(call install,libblis.so.4,libblis4)
	@$(MAKE) --no-print-directory build/bench/bench_gemm
	build/bench/bench_gemm

bench-step: build/bench/bench_step ## mallocs and time of a training step
	build/bench/bench_step

bench-compile: ## compile times: the library, examples, clone to demo; gcc, clang, nvcc
	@bench/bench_compile.sh "$(CC)"

# the Python with PyTorch for comparison: python3 if it has it, or an environment under build/venv
PEER_PYTHON = $(shell python3 -c 'import torch' 2>/dev/null && command -v python3 || echo build/venv/bin/python3)
# recipe lines of targets that need it
peer_python = case "$(PEER_PYTHON)" in build/*) $(MAKE) --no-print-directory build/venv/ready ;; esac
build/venv/ready:
	python3 -m venv build/venv
	build/venv/bin/pip install -q torch numpy
	@touch $@

bench-train: build/bench/bench_train ## training and inference beside PyTorch: MLP, conv net, ResNets, GPT
	@+$(peer_python)
	build/bench/bench_train --python $(PEER_PYTHON)

bench-lstm: build/bench/bench_lstm ## training of LSTM and GRU layers beside PyTorch
	@+$(peer_python)
	build/bench/bench_lstm --python $(PEER_PYTHON)

bench-generate: build/bench/bench_generate ## a GPT-2 of 124M parameters writes, beside PyTorch and the bandwidth of memory
	@+$(peer_python)
	@$(PEER_PYTHON) -c 'import transformers' 2>/dev/null || $(PEER_PYTHON) -m pip install -q transformers
	build/bench/bench_generate --python $(PEER_PYTHON)

bench-ops: build/bench/bench_ops ## single ops beside PyTorch, forward and backward, one and two threads
	@+$(peer_python)
	build/bench/bench_ops --python $(PEER_PYTHON)

bench-loader: build/bench/bench_loader ## loading data beside PyTorch's DataLoader and beside memcpy
	@+$(peer_python)
	build/bench/bench_loader --python $(PEER_PYTHON)

bench-ddp: build/bench/bench_ddp build/tools/dtrun ## two ranks beside PyTorch's DDP with gloo; how much communication is hidden
	@+$(peer_python)
	build/bench/bench_ddp --python $(PEER_PYTHON)

# one call begins no kill after 270 seconds; several calls with KILLS_LOG=FILE add up to more kills
KILLS ?= 1000
KILLS_SECONDS ?= 270
KILLS_PARTS ?= shm,tcp,restart,torch
KILLS_LOG ?=
bench-elastic: build/bench/bench_elastic build/tools/dtrun ## from kill -9 of a rank to the next step; beside restarts from a checkpoint and torchrun
	@+$(peer_python) || true
	build/bench/bench_elastic --kills $(KILLS) --seconds $(KILLS_SECONDS) --parts $(KILLS_PARTS) --log "$(KILLS_LOG)" --python $(PEER_PYTHON)

bench-shard: build/bench/bench_shard ## .shard = 1, 2 and 3 beside DDP, and beside PyTorch's FSDP2 with gloo; two ranks
	@+$(peer_python)
	build/bench/bench_shard --python $(PEER_PYTHON)

# parts of less than six minutes each; PARTS="gpt" measures one of them again and makes the table of all
PARTS ?= convnet resnet20 mlp16 gpt
bench-plan: build/bench/bench_plan ## steps of training on two ranks predicted from a profile of one, beside measured ones
	@mkdir -p build/plan
	@for part in $(PARTS); do build/bench/bench_plan --part $$part || exit 1; done
	build/bench/bench_plan --table

# PART: options of bench_compress, to measure a part and add it to build/compress.csv; none: everything, from the beginning
bench-compress: build/bench/bench_compress ## compressed gradients beside dense ones and PyTorch's hooks, by bandwidth; a picture
	@+$(peer_python) || true
	@$(if $(PART),,rm -f build/compress.csv)
	build/bench/bench_compress --python $(PEER_PYTHON) $(PART)

bench-compress-accuracy: build/bench/bench_compress_accuracy ## accuracy with each method of compression, digits and Fashion-MNIST, five seeds; no timing
	build/bench/bench_compress_accuracy
	@if [ -d data/fashion ]; then build/bench/bench_compress_accuracy --data data/fashion --batch 32 --steps 938 && \
	        build/bench/bench_compress_accuracy --data data/fashion --batch 32 --steps 2814 --methods none,dgc; \
	    else echo "Fashion-MNIST is not there (make data): its rows are left out"; fi

bench-pipe: build/bench/bench_pipe ## a model cut over two ranks beside PyTorch's pipelining with gloo and the bound of its schedule
	@+$(peer_python)
	build/bench/bench_pipe --python $(PEER_PYTHON)

bench-tensor: build/bench/bench_tensor ## layers divided between two ranks beside two processes apart; on four ranks with data and pipe
	build/bench/bench_tensor

# it names the libraries that are not installed and leaves them out
bench-allreduce: build/bench/bench_allreduce ## allreduce beside Open MPI and gloo, by size, transport and algorithm
	@if command -v mpicc > /dev/null; then mpicc -O2 bench/peer_allreduce_mpi.c -o build/bench/peer_allreduce_mpi; fi
	@+$(peer_python) || true
	build/bench/bench_allreduce --python $(PEER_PYTHON)

LOOPS ?= 0,1,2
# LOOPS: numbers of other programs; BEFORE: bench_allreduce of an older tree, to compare with
bench-allreduce-busy: build/bench/bench_allreduce ## allreduce while other programs use the cores, beside Open MPI and gloo
	@if command -v mpicc > /dev/null; then mpicc -O2 bench/peer_allreduce_mpi.c -o build/bench/peer_allreduce_mpi; fi
	build/bench/bench_allreduce --parts busy --sizes 8,16384,1048576,8388608 --loops $(LOOPS) \
	    $(if $(BEFORE),--before $(BEFORE)) --python $(PEER_PYTHON)

bench-p2p: build/bench/bench_p2p ## messages beside Open MPI: half round trips, 64 in flight, 10,000 pending receives
	@if command -v mpicc > /dev/null; then mpicc -O2 bench/peer_p2p_mpi.c -o build/bench/peer_p2p_mpi; fi
	build/bench/bench_p2p

# MXNet 1.9.1 is the last release. It needs an older numpy, so it has an environment of its own.
build/venv-mxnet/ready:
	python3 -m venv build/venv-mxnet
	build/venv-mxnet/bin/pip install -q mxnet==1.9.1 'numpy<1.24'
	@touch $@
bench-ps: build/bench/bench_ps ## the parameter server beside bare calls, allreduce and MXNet's kvstore; with a straggler
	@+$(MAKE) --no-print-directory build/venv-mxnet/ready || echo "MXNet 1.9.1 cannot be installed with pip: its rows are left out"
	build/bench/bench_ps --python build/venv-mxnet/bin/python3

gpu-paper: build/bench/gpu_paper ## launches, bytes and times of training steps on GPUs, computed (docs/gpu.md)
	@build/bench/gpu_paper

bench-report: ## every benchmark, as one page with pictures: build/report/index.html
	@bench/report.sh

bench-%: build/bench/bench_%
	$<
