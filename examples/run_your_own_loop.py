"""Run a training loop of your own on ranks: DistributedDataParallel, as torchrun would start it."""

import sparkdl


def main(steps):
    import torch
    from torch import distributed, nn

    distributed.init_process_group("gloo")
    torch.manual_seed(distributed.get_rank())  # each rank has rows of its own
    network = nn.parallel.DistributedDataParallel(nn.Linear(4, 1))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1)
    for _ in range(steps):
        rows = torch.randn(32, 4)
        loss = (network(rows) - rows.sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


print(f"loss on rank 0: {sparkdl.TorchRunner(np=2).run(main, steps=100):.4f}")
