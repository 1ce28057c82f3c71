"""A two-stage pipeline as one writes it without a library: rank 0 feeds and reads, ranks 1.. are the mesh.

torchrun --standalone --nproc-per-node 3 plain.py
"""

import os

import torch
import torch.distributed as dist

DIM, CHUNKS = 64, 8


def send(tensors, metadata, dst):
    specs = [(name, t.dtype, tuple(t.shape)) for name, t in tensors.items()]
    dist.send_object_list([metadata, specs], dst=dst)
    for tensor in tensors.values():
        dist.send(tensor.contiguous(), dst=dst)


def receive(src):
    box = [None, None]
    dist.recv_object_list(box, src=src)
    metadata, specs = box
    tensors = {}
    for name, dtype, shape in specs:
        tensors[name] = torch.empty(shape, dtype=dtype)
        dist.recv(tensors[name], src=src)
    return tensors, metadata


def pass_on(tensors, metadata, group):
    box = [metadata, None]
    if tensors is not None:
        box[1] = [(name, t.dtype, tuple(t.shape)) for name, t in tensors.items()]
    dist.broadcast_object_list(box, src=1, group=group)
    metadata, specs = box
    if metadata is None:
        return None, None
    if tensors is None:
        tensors = {name: torch.empty(shape, dtype=dtype) for name, dtype, shape in specs}
    for tensor in tensors.values():
        dist.broadcast(tensor, src=1, group=group)
    return tensors, metadata


class Mlp:
    def __init__(self, part, parts):
        made = torch.Generator().manual_seed(0)
        up, down = (torch.randn(DIM, DIM, generator=made) / 8 for _ in range(2))
        self.up, self.down = up.chunk(parts, 1)[part], down.chunk(parts, 0)[part]

    def __call__(self, x, group):
        x = torch.relu(x @ self.up) @ self.down
        dist.all_reduce(x, group=group)
        return x


def main():
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = dist.new_group(list(range(1, world)))
    if rank == 0:
        for k in range(CHUNKS):
            x = torch.randn(4, DIM, generator=torch.Generator().manual_seed(k))
            send({"x": x}, {"chunk": k, "scale": k + 1}, dst=1)
            tensors, metadata = receive(src=1)
            print(metadata["chunk"], f"{tensors['x'].norm().item():.4f}", flush=True)
        dist.send_object_list([None, []], dst=1)
    else:
        mlp = Mlp(rank - 1, world - 1)
        while True:
            tensors, metadata = receive(src=0) if rank == 1 else (None, None)
            tensors, metadata = pass_on(tensors, metadata, mesh)
            if metadata is None:
                break
            x = mlp(tensors["x"], mesh) * metadata["scale"]
            if rank == 1:
                send({"x": x}, {"chunk": metadata["chunk"]}, dst=0)
    dist.destroy_process_group()


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    main()
