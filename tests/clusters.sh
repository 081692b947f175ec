#!/bin/bash
# clusters.sh - ranks under a real Slurm, a real ssh and real MPI launchers, all on this machine
#
# Two slurmd are two nodes of this machine, with a munge, a slurmctld and an sshd of their own, in a directory that is
# removed at the end; everything listens on 127.0.0.1. As root on a Debian-like system it installs what is missing.
# The last line is "N passed, N failed, N skipped".
cd "$(dirname "$0")/.." || exit 1
tmp=$(mktemp -d /tmp/dt_clusters.XXXXXX) || exit 1
chmod 711 "$tmp" # ssh and slurmd want a path that nobody else can write to
pi=$PWD/build/examples/allreduce mnist=$PWD/build/examples/mnist dtrun=$PWD/build/tools/dtrun
np=0 nf=0 ns=0
end() {
    local pids
    pids=$(cat "$tmp"/*.pid 2> /dev/null)
    # shellcheck disable=SC2086
    for signal in TERM KILL; do
        [ -n "$pids" ] && kill -$signal $pids 2> /dev/null
        for _ in 1 2 3 4 5 6 7 8 9 10; do kill -0 $pids 2> /dev/null && sleep 0.5; done
    done
    rm -rf "$tmp"
}
trap end EXIT
ok() { np=$((np + 1)) && echo "ok   $1"; }
skip() { ns=$((ns + 1)) && echo "skip $1: $2"; }
check() { # what, what the output must have, command...
    local what=$1 want=$2 out
    shift 2
    out=$(timeout 120 "$@" 2>&1 < /dev/null)
    case $out in *$want*) ok "$what" ;; *) nf=$((nf + 1)) && echo "FAIL $what: no '$want' in" && echo "$out" | head -20 | sed 's/^/       /' ;; esac
}
have() { # program, package...: installs the packages if the program is missing
    command -v "$1" > /dev/null && return 0
    [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null || return 1
    export DEBIAN_FRONTEND=noninteractive
    timeout 300 apt-get install -y -qq "${@:2}" > /dev/null 2>&1 ||
        { timeout 120 apt-get update -qq && timeout 300 apt-get install -y -qq "${@:2}"; } > /dev/null 2>&1
    command -v "$1" > /dev/null
}
free_port() { # a port that nobody listens at now
    local p
    for _ in 1 2 3 4 5 6 7 8 9; do
        p=$((20000 + RANDOM % 12000))
        (exec 3<> "/dev/tcp/127.0.0.1/$p") 2> /dev/null || { echo $p && return; }
    done
}
(umask 077 && head -c 32 /dev/urandom > "$tmp/token")

# ---------------------------------------------------------------------------------------------------- Slurm
slurm() {
    local host port i
    host=$(hostname)
    mkdir -m 700 "$tmp/munge" "$tmp/state" || return 1
    head -c 1024 /dev/urandom > "$tmp/munge/key" && chmod 400 "$tmp/munge/key"
    munged --force --key-file="$tmp/munge/key" --socket="$tmp/munge/socket" --pid-file="$tmp/munge.pid" \
        --log-file="$tmp/munge.log" --seed-file="$tmp/munge/seed" > "$tmp/munge.out" 2>&1 || return 1
    for ((i = 0; i < 3; i++)); do # another program may take a port first
        port=$(free_port)
        cat > "$tmp/slurm.conf" << CONF
ClusterName=dt
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=$port
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$tmp/munge/socket
StateSaveLocation=$tmp/state
SlurmdSpoolDir=$tmp/spool-%n
SlurmctldPidFile=$tmp/slurmctld.pid
SlurmdPidFile=$tmp/slurmd-%n.pid
SlurmctldLogFile=$tmp/slurmctld.log
SlurmdLogFile=$tmp/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
ReturnToService=2
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
NodeName=n[0-1] NodeHostname=$host NodeAddr=127.0.0.1 Port=[$((port + 1))-$((port + 2))] CPUs=2 State=UNKNOWN
PartitionName=p Nodes=ALL Default=YES State=UP OverSubscribe=FORCE:4
CONF
        slurmctld -c && slurmd -N n0 && slurmd -N n1 || continue
        for ((i = 0; i < 100; i++)); do
            [ "$(sinfo -h -N -o %T 2> /dev/null | grep -c idle)" = 2 ] && return 0
            sleep 0.2
        done
        break
    done
    return 1
}
if [ "$(id -u)" != 0 ]; then
    skip "Slurm" "its daemons need root"
elif ! have slurmctld slurmctld slurmd slurm-client munge || ! have munged munge || ! have slurmd slurmd || ! have srun slurm-client; then
    skip "Slurm" "slurmctld, slurmd, slurm-client and munge are not installed"
elif ! grep -q " $(hostname)\b" /etc/hosts && ! getent hosts "$(hostname)" > /dev/null; then
    skip "Slurm" "the name of this machine has no address"
else
    export SLURM_CONF=$tmp/slurm.conf
    if slurm > "$tmp/slurm.out" 2>&1; then
        check "srun: two ranks of one node, without any setting" "by 2 ranks" srun -N 1 -n 2 "$pi"
        check "srun: four ranks of two nodes, with MASTER_ADDR, MASTER_PORT and a token" "by 4 ranks" \
            env MASTER_ADDR=127.0.0.1 MASTER_PORT="$(free_port)" DT_TOKEN_FILE="$tmp/token" srun -N 2 -n 4 --overcommit "$pi"
        check "srun: where the names of the nodes lead nowhere, the message says to set MASTER_ADDR" "set MASTER_ADDR" \
            srun -N 2 -n 4 --overcommit "$pi"
        address=$(hostname -I 2> /dev/null | cut -d ' ' -f 1)
        if [ -z "$address" ]; then skip "srun: two nodes without a token" "this machine has no address but the loopback"; else
            check "srun: two nodes without a token say what is missing" "need a token" \
                env MASTER_ADDR="$address" MASTER_PORT="$(free_port)" srun -N 2 -n 4 --overcommit "$pi"
        fi
        export HEAD_PORT
        HEAD_PORT=$(free_port)
        check "srun starts one dtrun on each node" "by 4 ranks" srun -N 2 -n 2 --ntasks-per-node=1 sh -c \
            "exec $dtrun --nnodes \$SLURM_NNODES --node-rank \$SLURM_NODEID --master-addr 127.0.0.1 --master-port $HEAD_PORT --token-file $tmp/token -n 2 $pi"
        check "srun trains the conv net of examples/mnist.c on two nodes" "accuracy" \
            env MASTER_ADDR=127.0.0.1 MASTER_PORT="$(free_port)" DT_TOKEN_FILE="$tmp/token" srun -N 2 -n 2 "$mnist" --data data/digits --epochs 2
    else
        nf=$((nf + 1)) && echo "FAIL Slurm does not start:" && tail -n 5 "$tmp"/slurm.out "$tmp"/*.log 2> /dev/null | sed 's/^/       /'
    fi
fi

# ---------------------------------------------------------------------------------------------------- ssh
sshd_here() {
    local i
    ssh-keygen -q -t ed25519 -N '' -f "$tmp/host_key" && ssh-keygen -q -t ed25519 -N '' -f "$tmp/key" || return 1
    cp "$tmp/key.pub" "$tmp/authorized" && mkdir -p /run/sshd
    for ((i = 0; i < 3; i++)); do
        ssh_port=$(free_port)
        printf '%s\n' "ListenAddress 127.0.0.1" "Port $ssh_port" "HostKey $tmp/host_key" "PidFile $tmp/sshd.pid" \
            "AuthorizedKeysFile $tmp/authorized" "StrictModes no" "UsePAM no" "PasswordAuthentication no" \
            "PermitRootLogin prohibit-password" > "$tmp/sshd_config"
        "$(command -v sshd)" -f "$tmp/sshd_config" -E "$tmp/sshd.log" && return 0
    done
    return 1
}
if [ "$(id -u)" != 0 ]; then
    skip "ssh" "the test's sshd needs root"
elif ! have sshd openssh-server || ! have ssh openssh-client; then
    skip "ssh" "openssh-server is not installed"
elif ! sshd_here > "$tmp/ssh.out" 2>&1; then
    nf=$((nf + 1)) && echo "FAIL sshd does not start:" && tail -n 5 "$tmp/ssh.out" "$tmp/sshd.log" 2> /dev/null | sed 's/^/       /'
else
    printf '%s\n' '#!/bin/sh' "exec ssh -p $ssh_port -i $tmp/key -o BatchMode=yes -o StrictHostKeyChecking=no -o UserKnownHostsFile=$tmp/known -o LogLevel=ERROR \"\$@\"" > "$tmp/ssh"
    chmod 755 "$tmp/ssh"
    check "ssh logs in" "hello" "$tmp/ssh" 127.0.0.1 echo hello
    check "dtrun --hosts by ssh: four ranks on two hosts" "by 4 ranks" \
        "$dtrun" --ssh "$tmp/ssh" --hosts 127.0.0.1,localhost -n 2 --master-port "$(free_port)" "$pi"
    check "dtrun --hosts: a host that ssh cannot reach is named" "no-such-host" \
        "$dtrun" --ssh "$tmp/ssh" --hosts 127.0.0.1,no-such-host.invalid -n 1 --join-timeout 20 --master-port "$(free_port)" "$pi"
fi

# ---------------------------------------------------------------------------------------------------- Open MPI
if ! have mpirun openmpi-bin; then
    skip "mpirun" "Open MPI is not installed"
else
    check "mpirun starts three ranks" "by 3 ranks" mpirun --allow-run-as-root --oversubscribe -n 3 "$pi"
fi

echo "$np passed, $nf failed, $ns skipped"
[ $nf -eq 0 ]
