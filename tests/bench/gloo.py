"""gloo's time for what lib/transport does: usage: gloo.py PROCESSES FROM TO BYTES RUNS, with P, R, 0, 1 as placements.
Prints the median in ms, of so many bytes of float32 between processes of this host."""

import os
import statistics
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

WARM = 2


def operation(rank: int, count: int, source: str, target: str, size: int):
    """The collective that torch has for the pair, on tensors as DTensor would use them."""
    columns = 1024 if size > 1 << 20 else 32
    whole = torch.full((size // 4 // columns, columns), float(rank + 1))
    shard = whole[: whole.shape[0] // count].contiguous()
    out = [torch.empty_like(shard) for _ in range(count)]
    if (source, target) == ("P", "R"):
        return lambda: dist.all_reduce(whole)
    if (source, target) == ("0", "R"):
        return lambda: dist.all_gather(out, shard)
    if (source, target) == ("P", "0"):  # gloo has no reduce-scatter of its own: as DTensor does it
        return lambda: (dist.all_reduce(whole), whole.chunk(count)[rank].clone())
    pieces = [p.contiguous() for p in shard.chunk(count, 1)]
    got = [torch.empty_like(p) for p in pieces]

    def swap() -> None:
        asked = [dist.irecv(got[p], p) for p in range(count) if p != rank]
        asked += [dist.isend(pieces[p], p) for p in range(count) if p != rank]
        for work in asked:
            work.wait()

    return swap


def run(rank: int, count: int, source: str, target: str, size: int, runs: int, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count)
    call = operation(rank, count, source, target, size)
    times = []
    for i in range(WARM + runs):
        dist.barrier()
        begin = time.perf_counter()
        call()
        if i >= WARM:
            times.append((time.perf_counter() - begin) * 1e3)
    if rank == 0:
        print(f"{statistics.median(times):.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    processes, start, end, size, runs = int(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5])
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(run, (processes, start, end, size, runs, os.path.join(folder, "store")), nprocs=processes)
