"""What tests/cluster/test_hosts.py submits: ranks on two hosts reduce a tensor; one line of JSON."""

import json

import psutil

from sparkdl.cluster import get_session, run_ranks
from sparkdl.collectives import HorovodBackend, TorchBackend

MEGABYTES = 8


def sent():
    return psutil.net_io_counters(pernic=True)["eth0"].bytes_sent


def reduced(backend):
    def function(rank):
        import torch

        device = torch.device(rank.device)
        with backend.connect(device) as world:
            tensor = torch.ones(MEGABYTES << 18)
            world.all_reduce(torch.ones(1), op="sum")
            before = sent()
            total = world.all_reduce(tensor, op="sum")
            world.all_reduce(torch.ones(1), op="sum")
            return [rank.host, rank.local_rank, int(total[0]), (sent() - before) / (MEGABYTES << 20)]

    return function


spark = get_session()
backends = [TorchBackend()] if spark.version >= "4" else [HorovodBackend(), TorchBackend()]
report = {each.name: run_ranks(reduced(each), 4, spark=spark, backend=each, slot_timeout=60) for each in backends}
print(json.dumps(report))
spark.stop()
