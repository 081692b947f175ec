#!/bin/bash
# build.sh - the CUDA backend as users build it: what make has compiled and linked in build/gpu is looked at and run
#
#     tests/gpu/build.sh CUDA PART ...      the directory of the toolkit; of the kernels' compile: t, or a, b
#
# The programs are told that there is no GPU (CUDA_VISIBLE_DEVICES), so that this is the same on every machine.
cd "$(dirname "$0")/../.." || exit 1
cuda=$1 parts="${*:2}" passed=0 failed=0 skipped=0
export CUDA_VISIBLE_DEVICES='' LD_LIBRARY_PATH=$cuda/lib64
check() { # what, command: shows what it says when it fails
    local out
    if out=$("${@:2}" 2>&1); then
        passed=$((passed + 1))
        echo "ok   $1"
    else
        failed=$((failed + 1))
        printf '%s\nFAIL %s\n' "$out" "$1"
    fi
}
skip() {
    skipped=$((skipped + 1))
    echo "skip $1"
}
newer() { # than every source of it: make has built it now, it was not left by an earlier run
    [ -s "$1" ] || { echo "$1 was not built"; return 1; }
    local f
    for f in "${@:2}"; do
        [ ! "$f" -nt "$1" ] || { echo "$1 is older than $f: it does not compile any more"; return 1; }
    done
}
real() { # program, library ...: it loads NVIDIA's own
    local libs l
    libs=$(ldd "$1") || return 1
    for l in "${@:2}"; do
        echo "$libs" | grep -E "lib$l\.so\.[0-9]+ => /" | grep -qv build/gpu && continue
        printf '%s: %s is not the real one:\n%s\n' "$1" "$l" "$libs"
        return 1
    done
    ! echo "$libs" | grep 'not found'
}
static_runtime() { # nvcc links it so unless told otherwise
    ldd "$1" | grep libcudart && return 1
    grep -qa cudaGetDeviceCount "$1"
}
one_line() { # program, arguments: it says once that there is no GPU, and ends well
    local out
    out=$(timeout 300 "$@" 2>&1) || { echo "$out"; return 1; }
    echo "$out" | grep -q 'dt_cuda: no GPU: .*; training on the CPU$' &&
        [ "$(echo "$out" | grep -ci 'no GPU')" = 1 ] && return
    printf 'it does not say in one line that there is no GPU:\n%s\n' "$out"
    return 1
}

host=$(ls dt*.h) all=$(ls kernels/* dt.h dt_cuda.h)
# shellcheck disable=SC2086
{
    check "dt_cuda.h, C11, gcc, to code" newer build/gpu/cuda.o $host
    check "dt_nccl.h, C11, gcc, to code" newer build/gpu/nccl.o $host
    check "host code, C++17, nvcc, to code" newer build/gpu/host_nvcc.o $host dt.c
    check "host code, C++17, g++" newer build/gpu/host_cxx.ok $host dt.c
    if grep -q skip build/gpu/host_clang.ok 2> /dev/null; then skip "host code, C11, clang: clang is not installed"
    else check "host code, C11, clang" newer build/gpu/host_clang.ok $host dt.c; fi
    case $parts in
    *a*) check "kernels, sm_75, 100, 120 and PTX" newer build/gpu/kernels-a.o $all ;;
    *t*) check "kernels, sm_75 and PTX" newer build/gpu/kernels-t.o $all ;;
    esac
    case $parts in *b*)
        check "kernels, sm_80, 86, 89, 90 and PTX" newer build/gpu/kernels-b.o $all
        for f in kernels/*.cu; do
            [ "$f" = kernels/dt_kernels.cu ] || check "$f alone" newer "build/gpu/pieces/$(basename "$f" .cu).o" $all
        done
        check "mnist by one line of nvcc" newer build/gpu/mnist_nvcc $all examples/mnist.c
        check "nvcc's implementation and the files of kernels/ one by one link" newer build/gpu/no_gpu_pieces $all $host ;;
    esac
    check "mnist by gcc, kernels by nvcc" newer build/gpu/mnist_gcc $all examples/mnist.c
}
check "gcc's program loads $cuda's cudart, cuBLAS, cuDNN and NCCL" real build/gpu/mnist_gcc cudart cublas cudnn nccl
case $parts in *b*)
    check "nvcc's program loads cuBLAS, cuDNN and NCCL" real build/gpu/mnist_nvcc cublas cudnn nccl
    check "nvcc's program has the runtime in it" static_runtime build/gpu/mnist_nvcc ;;
esac
check "without a GPU: says so, trains on the CPU (gcc)" one_line build/gpu/no_gpu
case $parts in *b*) check "without a GPU: says so, trains on the CPU (nvcc)" one_line build/gpu/no_gpu_pieces ;; esac
if grep -q -e '--device' examples/mnist.c; then
    check "without a GPU: mnist --device cuda" one_line build/gpu/mnist_gcc --device cuda --data data/digits --epochs 1
else skip "mnist --device cuda: the example has no --device"; fi
echo "$passed passed, $failed failed, $skipped skipped"
[ $failed -eq 0 ] && [ $passed -gt 0 ]
