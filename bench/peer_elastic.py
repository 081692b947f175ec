# PyTorch's side of bench_elastic: DDP over gloo with a checkpoint every few steps, restarted by torchrun. Writes down what
# bench_elastic.c calls a board: 64-bit words, four of each.
import mmap, os, struct, sys, time
import torch
import torch.distributed as dist

SEATS, HASHES, BATCH, ITEMS = 4, 65536, 32, 8192
PID, STEPS, GENERATION, FIRST, LAST, WRONG, SIZE, BYTES, REST = range(9)
board = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0)
path, every = sys.argv[2] + ".pt", int(sys.argv[3])


def put(row, seat, value):
    struct.pack_into("<q", board, 8 * (row * SEATS + seat), value)


def get(row, seat):
    return struct.unpack_from("<q", board, 8 * (row * SEATS + seat))[0]


STOP, VICTIM, STARTED, AGAIN = range(4)  # of REST
victim = get(REST, VICTIM)
known = max(get(STEPS, i) for i in range(SEATS) if i != victim)  # the ranks of before are gone
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 256), torch.nn.ReLU(), torch.nn.Linear(256, 10))
x, y = torch.rand(ITEMS, 64) - 0.5, torch.randint(0, 10, (ITEMS,))
opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
step = 0
if os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    opt.load_state_dict(saved["opt"])
    step = saved["step"]
ddp = torch.nn.parallel.DistributedDataParallel(model)
generation = 1 + int(os.environ["TORCHELASTIC_RESTART_COUNT"])
put(PID, rank, os.getpid())
put(REST, STARTED, time.monotonic_ns())
put(REST, AGAIN, known - step)
while not get(REST, STOP):
    i = (step * SEATS + rank) * BATCH % ITEMS
    opt.zero_grad()
    torch.nn.functional.cross_entropy(ddp(x[i : i + BATCH]), y[i : i + BATCH]).backward()
    opt.step()
    step += 1
    t = time.monotonic_ns()
    value = float(model[0].bias.detach().double().abs().sum())  # a few weights; their last bits depend on DDP's buckets
    at = 9 * SEATS + step % HASHES
    if struct.unpack_from("<q", board, 8 * (at + HASHES))[0] != step:
        struct.pack_into("<d", board, 8 * at, value)
        struct.pack_into("<q", board, 8 * (at + HASHES), step)
    elif abs(struct.unpack_from("<d", board, 8 * at)[0] - value) > 1e-6 * value:
        put(WRONG, rank, get(WRONG, rank) + 1)
    put(LAST, rank, t)
    put(SIZE, rank, SEATS)
    if get(GENERATION, rank) != generation and step > known:
        put(FIRST, rank, t)
        put(GENERATION, rank, generation)
    put(STEPS, rank, step)
    if rank == 0 and step % every == 0:
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step}, path + ".tmp")
        os.replace(path + ".tmp", path)
