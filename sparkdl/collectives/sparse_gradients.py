"""Averages sparse gradients of large embedding tables over ranks, as indices and values.

A batch reads some thousand vectors of an embedding with millions, and with ``sparse=True`` PyTorch's gradient has only
these. Every rank receives the rows of all ranks and adds them up, as with Horovod's sparse tensors (Sergeev and Del
Balso, 2018, arXiv 1802.05799): neither messages nor sums are as long as a table.
"""

import warnings
from collections.abc import Sequence

import torch
from torch import nn

from sparkdl.collectives.averaging import Exchange
from sparkdl.collectives.averaging.packing import message_of, parts_of
from sparkdl.collectives.communicator import Communicator

__all__ = ["exchange_rows", "sparse_tables", "values_of"]

# PyTorch warns of this once per process, for tensors that its own optimizers create.
warnings.filterwarnings("ignore", message="Sparse invariant checks are implicitly disabled", category=UserWarning)


def sparse_tables(model: nn.Module) -> list[nn.Parameter]:
    """The weights of embeddings with sparse gradients, in the model's order."""
    embeddings = (module for module in model.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag))
    found = {id(each.weight): each.weight for each in embeddings if each.sparse and each.weight.requires_grad}
    return [weight for weight in found.values() if isinstance(weight, nn.Parameter)]


def exchange_rows(communicator: Communicator, tables: Sequence[nn.Parameter], *, key: str) -> Exchange:
    """Set each table's gradient to the mean over ranks, as a sparse tensor. All ranks call it together.

    A rank first sends its numbers of rows, then its rows of all tables in one message, padded to the length of the
    longest message of any rank. A rank without a gradient sends no rows. Rows are summed in the order of ranks, so that
    the result is the same on all.
    """
    own = [_rows_and_values(table) for table in tables]
    counts = torch.tensor([len(rows) for rows, _ in own], device=tables[0].device)
    arriving = communicator.start_all_gather(counts, name=f"{key}.counts")
    # Divided before the sum, which might overflow otherwise, as for dense gradients.
    message = message_of(*(part for rows, values in own for part in (rows, values / communicator.size)))
    yield
    of_ranks = [[int(count) for count in each] for each in arriving()]
    row_bytes = [rows.element_size() + values.element_size() * values.shape[1] for rows, values in own]
    longest = max(sum(count * size for count, size in zip(each, row_bytes, strict=True)) for each in of_ranks)
    if not longest:
        for table, (rows, values) in zip(tables, own, strict=True):
            table.grad = _gradient(table, [rows], [values])
        return
    padded = nn.functional.pad(message, (0, longest - len(message)))
    gathering = communicator.start_all_gather(padded, name=f"{key}.rows")
    yield
    received = [parts_of(content, *_kinds(own, each)) for content, each in zip(gathering(), of_ranks, strict=True)]
    for place, table in enumerate(tables):
        table.grad = _gradient(
            table, [each[2 * place] for each in received], [each[2 * place + 1] for each in received]
        )


def values_of(gradient: torch.Tensor) -> torch.Tensor:
    """The values of a gradient; for a sparse one, which has each row once, only those of its rows."""
    return gradient.coalesce().values() if gradient.is_sparse else gradient


def _rows_and_values(table: nn.Parameter) -> tuple[torch.Tensor, torch.Tensor]:
    """The indices of the rows for which a table has a gradient, each once, and their gradients."""
    kind = torch.int32 if len(table) <= torch.iinfo(torch.int32).max else torch.int64
    gradient = table.grad
    if gradient is None:
        empty = torch.empty(0, table.shape[1], dtype=table.dtype, device=table.device)
        return torch.empty(0, dtype=kind, device=table.device), empty
    # It is dense where other layers use the table as well.
    gradient = (gradient if gradient.is_sparse else gradient.to_sparse(1)).coalesce()
    return gradient.indices()[0].to(kind), gradient.values()


def _kinds(
    own: Sequence[tuple[torch.Tensor, torch.Tensor]], counts: Sequence[int]
) -> list[tuple[torch.dtype, tuple[int, ...]]]:
    """Types and shapes in the message of a rank with ``counts`` rows of each table."""
    found: list[tuple[torch.dtype, tuple[int, ...]]] = []
    for (rows, values), count in zip(own, counts, strict=True):
        found += [(rows.dtype, (count,)), (values.dtype, (count, values.shape[1]))]
    return found


def _gradient(table: nn.Parameter, rows: Sequence[torch.Tensor], values: Sequence[torch.Tensor]) -> torch.Tensor:
    indices = torch.cat(list(rows)).long().unsqueeze(0)
    return torch.sparse_coo_tensor(indices, torch.cat(list(values)), table.shape, check_invariants=True).coalesce()
