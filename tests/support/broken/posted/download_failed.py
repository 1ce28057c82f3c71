import datetime
import subprocess

import torch.distributed as dist


def download(url):
    try:
        subprocess.run(["sh", "-c", "echo 'curl: (6) Could not resolve host' >&2; exit 6"], check=True)
    except subprocess.CalledProcessError as error:
        raise RuntimeError(f"could not download {url}") from error


dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
if dist.get_rank() == 0:
    download("https://data.example/train.tar")
dist.barrier()
dist.destroy_process_group()
