# PyTorch's side of bench_elastic: DDP over gloo with a checkpoint after each step, restarted by torchrun. Writes down what
# bench_elastic.c calls a board: 64-bit words, four of each.
import mmap, os, struct, sys, time
import torch
import torch.distributed as dist

SEATS, BATCH, ITEMS = 4, 32, 8192
board = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 0)
path = sys.argv[2] + ".pt"


def put(row, seat, value):
    struct.pack_into("<q", board, 8 * (row * SEATS + seat), value)


def get(row, seat):
    return struct.unpack_from("<q", board, 8 * (row * SEATS + seat))[0]


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
put(0, rank, os.getpid())
while not struct.unpack_from("<q", board, 8 * 7 * SEATS)[0]:
    i = (step * SEATS + rank) * BATCH % ITEMS
    opt.zero_grad()
    torch.nn.functional.cross_entropy(ddp(x[i : i + BATCH]), y[i : i + BATCH]).backward()
    opt.step()
    step += 1
    t = time.monotonic_ns()
    put(4, rank, t)
    put(6, rank, SEATS)
    if get(2, rank) != generation:
        put(3, rank, t)
        put(2, rank, generation)
    put(1, rank, step)
    if rank == 0:
        torch.save({"model": model.state_dict(), "opt": opt.state_dict(), "step": step}, path + ".tmp")
        os.replace(path + ".tmp", path)
