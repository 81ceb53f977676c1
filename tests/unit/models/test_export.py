import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torch.nn.utils import parametrizations, spectral_norm, weight_norm

from sparkdl.errors import ModelError
from sparkdl.models import build, export_network, load_network, load_weights, trace_network, write_network
from sparkdl.models.networks import NETWORKS
from sparkdl.models.operations import operation

OF_IMAGES = [name for name in NETWORKS if name != "bag_of_words"]  # which reads numbers of words


class Answer(NamedTuple):
    logits: torch.Tensor


def _images(rows: int) -> torch.Tensor:
    return torch.randint(0, 256, (rows, 12, 12, 1), dtype=torch.uint8)


class _With(nn.Module):
    """A layer, and how its input comes to it and its result goes on."""

    def __init__(self, layer: nn.Module, forward: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> None:
        super().__init__()
        self.layer, self._forward = layer, forward

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self._forward(self.layer, inputs)


@pytest.mark.parametrize("name", OF_IMAGES)
def test_a_network_comes_back_the_same_for_every_batch_size(name: str, tmp_path: Path) -> None:
    network = build(name, input_shape=(12, 12, 1), num_classes=5, mean=[0.3], std=[0.2])
    loaded = load_network(export_network(network, tmp_path / "network.safetensors", _images(1)))
    for rows in (0, 1, 2, 1000):
        batch = _images(rows)
        with torch.no_grad():
            torch.testing.assert_close(loaded(batch), network(batch))


def test_layers_that_behave_differently_in_training_are_exported_for_inference(tmp_path: Path) -> None:
    network = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.9), nn.ReLU(inplace=True))
    network(torch.rand(64, 4))  # moves the running statistics
    loaded = load_network(export_network(network, tmp_path / "network.safetensors", torch.rand(1, 4)))
    assert network.training
    batch = torch.rand(8, 4)
    torch.testing.assert_close(loaded(batch), network.eval()(batch))


@pytest.mark.parametrize(
    ("network", "shape"),
    [
        (_With(nn.LSTM(6, 5, num_layers=2, bidirectional=True, batch_first=True), lambda r, x: r(x)[0][:, -1]), (4, 6)),
        (_With(nn.GRU(6, 5, batch_first=True), lambda r, x: r(x)[0].mean(1)), (4, 6)),
        (_With(nn.RNN(6, 5, batch_first=True), lambda r, x: r(x)[1].squeeze(0)), (4, 6)),
        (nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=True), 2), (4, 8)),
        (_With(nn.Embedding(9, 3), lambda e, x: e(x.abs().long() % 9).flatten(1)), (5,)),
        (
            nn.Sequential(nn.Conv1d(3, 4, 3), nn.BatchNorm1d(4), nn.GELU(), nn.AdaptiveMaxPool1d(1), nn.Flatten()),
            (3, 9),
        ),
        (nn.Sequential(nn.Conv3d(1, 2, 2), nn.BatchNorm3d(2), nn.Mish(), nn.AdaptiveAvgPool3d(1)), (1, 4, 4, 4)),
        (
            nn.Sequential(nn.ConvTranspose2d(3, 4, 2), nn.GroupNorm(2, 4), nn.SiLU(inplace=True), nn.Dropout2d()),
            (3, 5, 5),
        ),
        (
            nn.Sequential(nn.ReflectionPad2d(1), nn.MaxPool2d(2), nn.Upsample(scale_factor=2, mode="bilinear")),
            (2, 6, 6),
        ),
        (nn.Sequential(nn.LayerNorm(6), nn.Hardswish(inplace=True), nn.PReLU(), nn.LogSoftmax(1)), (6,)),
        (
            _With(nn.RMSNorm(6), lambda n, x: n(x).masked_fill((x > 0) & (x < 1), 0).clamp(-1, 1) @ x.new_ones(6, 2)),
            (6,),
        ),
        (_With(nn.Identity(), lambda _, x: torch.einsum("bij,bkj->bik", x, x).topk(2).values.sum(-1)), (3, 4)),
    ],
    ids=lambda value: type(getattr(value, "layer", value)).__name__ if isinstance(value, nn.Module) else "",
)
def test_the_layers_of_torch_are_among_the_operations_of_a_file(
    network: nn.Module, shape: tuple[int, ...], tmp_path: Path
) -> None:
    path, batch = tmp_path / "network.safetensors", torch.randn(3, *shape)
    expected = network.eval()(batch)
    torch.testing.assert_close(load_network(export_network(network, path, batch))(batch), expected)


def _autocast(layer: nn.Module, inputs: torch.Tensor) -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs: torch.Tensor = layer(inputs)
    return outputs.float()


def _statistics(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return x.cummin(1).values + x.nanmedian(1, keepdim=True).values + x.msort() + torch.var_mean(x, 1, keepdim=True)[0]


def _linear_algebra(_: nn.Module, x: torch.Tensor) -> torch.Tensor:
    square = x.unsqueeze(2) * x.unsqueeze(1) + torch.eye(6)
    return torch.linalg.solve(square, x) + torch.linalg.cholesky(square).sum(1) + torch.linalg.det(square)[:, None]


@pytest.mark.parametrize(
    "network",
    [
        nn.Sequential(spectral_norm(nn.Linear(6, 3))),
        nn.Sequential(parametrizations.spectral_norm(nn.Linear(6, 3))),
        nn.Sequential(weight_norm(nn.Linear(6, 3))),
        nn.Sequential(parametrizations.weight_norm(nn.Linear(6, 3))),
        nn.Sequential(parametrizations.orthogonal(nn.Linear(6, 6))),
        nn.Sequential(parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="cayley")),
        nn.Sequential(parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map="householder")),
        _With(nn.Identity(), lambda _, x: torch.fft.fft(x).real + torch.fft.irfft(torch.fft.rfft(x))),
        _With(nn.Identity(), lambda _, x: torch.view_as_real(torch.view_as_complex(x.view(-1, 3, 2)) * 1j).flatten(1)),
        _With(nn.Identity(), _statistics),
        _With(nn.Identity(), _linear_algebra),
        _With(nn.Linear(6, 6), lambda layer, x: torch.inner(x, layer.weight).swapdims(0, 1).T @ layer.weight.mH),
        _With(nn.Identity(), lambda _, x: x.index_add(1, torch.arange(6), x) + x.take(torch.tensor([0]))),
        _With(nn.Linear(6, 3), _autocast),
    ],
)
def test_what_only_computes_is_broken_up_into_operations_of_a_file(network: nn.Module, tmp_path: Path) -> None:
    path, batch = tmp_path / "network.safetensors", torch.rand(3, 6)
    with torch.no_grad():
        expected = network.eval()(batch)
        loaded = load_network(export_network(network, path, batch))
        # A norm that was estimated in one step may be near zero, and dividing by it enlarges errors of rounding.
        torch.testing.assert_close(loaded(batch), expected, rtol=1e-5, atol=1e-5)


def test_an_operation_that_a_file_may_not_ask_for_is_named_before_the_file_is_written(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"the network uses 'aten\.rand_like\.default', which is not among"):
        export_network(_With(nn.Identity(), lambda _, x: x + torch.rand_like(x)), tmp_path / "n", torch.rand(2, 4))
    assert not any(tmp_path.iterdir())


class _Attention(nn.Module):
    """Reshapes by the batch size, has a constant and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.register_buffer("positions", torch.arange(6.0).view(1, 6, 1), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        parts = inputs.view(inputs.shape[0], 6, 8) + self.positions
        mixed, _ = self.attention(parts, parts, parts)
        mixed = mixed.reshape(inputs.size(0) * 6, 8) * torch.tensor([1.0, 2.0] * 4)
        return mixed.view(inputs.shape[0], -1)[:, :5]


def test_a_users_own_network_with_computed_shapes_and_constants_is_exported(tmp_path: Path) -> None:
    network = _Attention().eval()
    path = export_network(network, tmp_path / "network.safetensors", torch.rand(1, 48))
    for rows in (1, 7):
        batch = torch.rand(rows, 48)
        with torch.no_grad():
            torch.testing.assert_close(load_network(path)(batch), network(batch))
    assert set(load_weights(path)) == {*network.state_dict(), "positions"}


def test_the_weights_go_back_into_the_network_they_came_from(tmp_path: Path) -> None:
    first, second = (build("cnn", input_shape=(12, 12, 1), num_classes=5) for _ in range(2))
    second.load_state_dict(load_weights(export_network(first, tmp_path / "network.safetensors", _images(1))))
    batch = _images(4)
    torch.testing.assert_close(first(batch), second(batch), rtol=0, atol=0)


def test_a_trace_serves_a_network_with_other_weights(tmp_path: Path) -> None:
    first, second, batch = _Attention().train(), _Attention().eval(), torch.rand(3, 48)
    traced = trace_network(first, batch)
    assert first.attention.training
    loaded = load_network(write_network(second, tmp_path / "network.safetensors", batch, traced))
    with torch.no_grad():
        torch.testing.assert_close(loaded(batch), second(batch))
        assert not torch.allclose(loaded(batch), first.eval()(batch))


class _Moody(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs if inputs.sum() > 0 else -inputs


class _Fixed(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return inputs.reshape(2, 4)


class _Random(nn.Module):
    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return nn.functional.dropout(inputs, training=True)


@pytest.mark.parametrize("network", [_Moody(), _Fixed()])
def test_a_network_that_depends_on_values_or_on_the_batch_size_is_refused(network: nn.Module, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="cannot be exported for batches of any size"):
        export_network(network, tmp_path / "network.safetensors", torch.rand(2, 4))


def test_a_network_that_answers_at_random_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="draw random numbers"):
        export_network(_Random(), tmp_path / "network.safetensors", torch.rand(2, 4))


def _tamper(path: Path, **changes: object) -> Path:
    """The same file with another first step."""
    with safe_open(path, framework="pt") as file:
        graph = json.loads(file.metadata()["sparkdl"])
    graph["steps"][0].update(changes)
    save_file(load_file(path), path, metadata={"sparkdl": json.dumps(graph)})
    return path


@pytest.mark.parametrize(
    "operation",
    [
        "aten.from_file.default",
        "aten.save.default",
        "aten.warn.default",
        "aten.__class__.mro",
        "aten.relu.__init__",
        "prims.add.default",
        "torch.hub.load",
        "operator.attrgetter",
        "os.system",
        "builtins.eval",
        "aten.relu.default\n",
        "aten.add.out",
        "aten.empty.memory_format",
        "aten.resize_.default",
        "aten.set_.source_Storage",
        "aten.max_pool2d_with_indices_backward.default",
        "aten._sparse_coo_tensor_unsafe.default",
        "aten.empty_strided.default",
        "aten._embedding_bag.default",
        "aten.convolution_backward.default",
        "aten._unsafe_index.Tensor",
        "aten.rand.default",
        "aten.bernoulli_.float",
        "aten._print.default",
        "aten.sum.int",
        "",
    ],
)
def test_a_strangers_file_reaches_nothing_but_tensor_operations(operation: str, tmp_path: Path) -> None:
    path = export_network(nn.Linear(4, 2), tmp_path / "network.safetensors", torch.rand(1, 4))
    with pytest.raises(ModelError, match=re.escape(f"the network uses {operation!r}, which is not among")):
        load_network(_tamper(path, op=operation))


def test_no_operation_that_a_file_may_ask_for_reaches_beyond_its_tensors() -> None:
    """Whatever this PyTorch has: no memory as it is, no files, no random numbers but where layers have them."""
    names = [schema.name.removeprefix("aten::") + f".{schema.overload_name or 'default'}" for schema in _schemas()]
    reached = [name for name in names if _is_reached(f"aten.{name}")]
    assert len(reached) > 700
    forbidden = (
        r"empty|resize|set_|file|print|save|warn|rand|normal|backward|unsafe|sparse|quantize|storage|cudnn|mkldnn"
    )
    pointwise = re.compile(
        r"(sigmoid|tanh|gelu|silu|elu|logit|mish|hardswish|hardsigmoid|hardtanh|leaky_relu"
        r"|softplus|threshold|log_sigmoid|native_dropout|hardshrink|softshrink)_backward"
    )
    odd = [name for name in reached if re.search(forbidden, name) and not pointwise.match(name)]
    assert [name for name in odd if not name.startswith(("sym_storage_offset", "special_"))] == []


def _schemas() -> list[torch._C.FunctionSchema]:
    return [schema for schema in torch._C._jit_get_all_schemas() if schema.name.startswith("aten::")]


def _is_reached(name: str) -> bool:
    try:
        operation(name)
    except ModelError:
        return False
    return True


@pytest.mark.parametrize(
    ("argument", "says"),
    [
        ({"dtype": "hub"}, "uses the dtype 'hub', which does not exist"),
        ({"dtype": "__name__"}, "uses the dtype '__name__', which does not exist"),
        ({"module": "os"}, "is damaged: KeyError: 'module'"),
        ({"node": "nobody"}, "the network's step 'linear' reads a value that no earlier step computes"),
    ],
)
def test_a_strangers_argument_is_data_and_nothing_else(argument: dict[str, str], says: str, tmp_path: Path) -> None:
    path = export_network(nn.Linear(4, 2), tmp_path / "network.safetensors", torch.rand(1, 4))
    with pytest.raises(ModelError, match=says):
        load_network(_tamper(path, args=[argument]))(torch.rand(1, 4))


def test_a_pickle_under_the_networks_name_is_refused_unopened(tmp_path: Path) -> None:
    path, proof = tmp_path / "network.safetensors", tmp_path / "was-executed"

    class Hostile:
        def __reduce__(self) -> tuple[object, tuple[object, ...]]:
            return (Path.touch, (proof,))

    torch.save(Hostile(), path)
    for read in (load_network, load_weights):
        with pytest.raises(ModelError, match="damaged or not one of ours"):
            read(path)
    assert not proof.exists()


def test_a_truncated_file_a_missing_one_and_plain_weights_are_told_apart(tmp_path: Path) -> None:
    path = export_network(nn.Linear(4, 2), tmp_path / "network.safetensors", torch.rand(1, 4))
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ModelError, match="damaged"):
        load_network(path)
    with pytest.raises(ModelError, match="there is no network at"):
        load_network(tmp_path / "nothing")
    save_file({"weight": torch.zeros(2)}, path)
    with pytest.raises(ModelError, match="holds weights but no network"):
        load_network(path)


class _Traced(nn.Module):
    """Does something else while it is traced."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 2)
        self.meanwhile = meanwhile

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_exporting():
            self.meanwhile()
        outputs: torch.Tensor = self.layer(inputs)
        return outputs


def test_two_threads_may_export_at_the_same_time(tmp_path: Path) -> None:
    first_began, second_began, first_ended = Event(), Event(), Event()
    first = _Traced(lambda: (first_began.set(), second_began.wait(0.5)))
    second = _Traced(lambda: (second_began.set(), first_ended.wait(5)))
    with ThreadPoolExecutor(2) as threads:
        exports = [threads.submit(export_network, first, tmp_path / "first", torch.rand(1, 4))]
        exports[0].add_done_callback(lambda _: first_ended.set())
        assert first_began.wait(10)
        exports.append(threads.submit(export_network, second, tmp_path / "second", torch.rand(1, 4)))
        for network, export in zip((first, second), exports, strict=True):
            batch = torch.rand(3, 4)
            torch.testing.assert_close(load_network(export.result())(batch), network(batch))


class _Texts(nn.Module):
    """Numbers and words, and several answers."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(9, 4), nn.Linear(4, 2)
        self.register_buffer("scale", torch.full((4,), 2.0), persistent=False)

    def forward(self, numbers: torch.Tensor, words: torch.Tensor, words_mask: torch.Tensor) -> dict[str, torch.Tensor]:
        vectors = (self.table(words) * words_mask.unsqueeze(2)).sum(1) * torch.tensor([1.0, 2.0, 3.0, 4.0]) * self.scale
        embedding = vectors + numbers.sum(1, keepdim=True)
        return {"logits": self.layer(embedding), "embedding": embedding, "unused": embedding}


def _texts(rows: int, length: int) -> dict[str, torch.Tensor]:
    words = torch.randint(0, 9, (rows, length))
    return {"words": words, "words_mask": words > 2, "numbers": torch.rand(rows, 3)}


def test_named_inputs_of_any_length_and_several_outputs_come_back(tmp_path: Path) -> None:
    network = _Texts().eval()
    path = tmp_path / "network.safetensors"
    export_network(network, path, _texts(2, 5), outputs=["logits", "embedding"], lengths=["words", "words_mask"])
    loaded = load_network(path)
    for rows, length in ((1, 1), (4, 2), (3, 20)):
        batch = _texts(rows, length)
        with torch.no_grad():
            expected, found = network(**batch), loaded(**batch)
        assert list(found) == ["logits", "embedding"]
        for name, value in found.items():
            torch.testing.assert_close(value, expected[name])
    assert set(load_weights(path)) == {"table.weight", "layer.weight", "layer.bias", "scale"}
    with pytest.raises(ModelError, match="takes the inputs words, words_mask, numbers, but was given words"):
        loaded(words=batch["words"])


class _WithLogits(nn.Module):
    def __init__(self, answered: Callable[[torch.Tensor], object]) -> None:
        super().__init__()
        self.layer, self.answered = nn.Linear(4, 2), answered

    def forward(self, inputs: torch.Tensor) -> object:
        return self.answered(self.layer(inputs))


@pytest.mark.parametrize(
    "answered", [lambda x: {"logits": x, "past": None}, lambda x: SimpleNamespace(logits=x), Answer]
)
def test_what_answers_an_object_with_logits_is_a_file_of_one_tensor(
    answered: Callable[[torch.Tensor], object], tmp_path: Path
) -> None:
    network = _WithLogits(answered)
    path = export_network(network, tmp_path / "network.safetensors", torch.rand(1, 4))
    batch = torch.rand(3, 4)
    torch.testing.assert_close(load_network(path)(batch), network.layer(batch).detach())
    assert set(load_weights(path)) == {"layer.weight", "layer.bias"}


def test_an_output_that_a_network_does_not_give_is_named_with_those_it_gives(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no tensor 'vectors'; it returns a dict with 'logits', 'embedding', 'unused'"):
        export_network(_Texts(), tmp_path / "n", _texts(2, 5), outputs=["logits", "vectors"])
    with pytest.raises(ModelError, match="no tensor 'embedding'; it returns one tensor 'logits'"):
        export_network(nn.Linear(4, 2), tmp_path / "n", torch.rand(2, 4), outputs=["logits", "embedding"])


def test_a_length_written_as_a_number_is_refused(tmp_path: Path) -> None:
    network = _With(nn.Embedding(9, 4), lambda table, words: table(words).reshape(-1, 20))
    with pytest.raises(ModelError, match="cannot be exported for batches and sequences of any size"):
        export_network(network, tmp_path / "n", {"inputs": torch.zeros(2, 5, dtype=torch.int64)}, lengths=["inputs"])


def test_one_tensor_to_one_tensor_is_a_file_that_sparkdl_of_before_reads(tmp_path: Path) -> None:
    path = export_network(nn.Linear(4, 2), tmp_path / "network.safetensors", torch.rand(1, 4))
    with safe_open(path, framework="pt") as file:
        graph = json.loads(file.metadata()["sparkdl"])
    assert (graph["version"], graph["input"], graph["output"]) == (1, "input", "linear")
