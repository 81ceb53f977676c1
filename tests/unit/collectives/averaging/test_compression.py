"""The mathematics of what travels: unbiased methods are right on average, others send their errors later."""

import math
from collections.abc import Callable

import pytest
import torch

from sparkdl.collectives.averaging import Averager, create_averager
from sparkdl.collectives.averaging.atomo import _singular, probabilities
from sparkdl.collectives.averaging.blockwise import BLOCK, PIECE
from sparkdl.collectives.averaging.demo import SIDE, _cosines
from sparkdl.collectives.averaging.packing import pack, unpack
from sparkdl.settings.averaging import CompressedAveraging

from .threads import ThreadMessenger, average, on_threads

RANKS = 3
COMPRESSIONS = {
    "float16": "float16",
    "bfloat16": "bfloat16",
    "int8": "int8",
    "qsgd": {"kind": "qsgd", "bits": 4},
    "qsgd, 2 bits": {"kind": "qsgd", "bits": 2},
    "topk": {"kind": "topk", "ratio": 0.1, "momentum": 0, "warmup_epochs": 0},
    "topk, momentum": {"kind": "topk", "ratio": 0.1, "momentum": 0.9, "warmup_epochs": 2},
    "powersgd": {"kind": "powersgd", "rank": 2},
    "atomo": {"kind": "atomo", "atoms": 2},
    "sign": "sign",
    "demo": {"kind": "demo", "coefficients": 16},
}
COMPRESSIONS |= {f"{name} on sharded_servers": COMPRESSIONS[name] for name in ("int8", "qsgd", "sign")}
of_each_compression = pytest.mark.parametrize("name", COMPRESSIONS)


def new_averager(name: str, rank: ThreadMessenger) -> Averager:
    topology = name.partition(" on ")[2] or "ring"
    return create_averager(CompressedAveraging(compression=COMPRESSIONS[name], topology=topology), rank)


def gradients(rank: int, step: int) -> list[torch.Tensor]:
    """Matrices and a vector, in float64: errors are the method's."""
    random = torch.Generator().manual_seed(1000 * rank + step)
    shapes = (20, 30), (11,), (8, 3, 5, 2)
    return [torch.randn(shape, generator=random, dtype=torch.float64) for shape in shapes]


def alone(work: Callable[[ThreadMessenger], None]) -> None:
    """Let a single rank work: it compresses as one of many does."""
    on_threads(1, work)


@of_each_compression
def test_all_ranks_have_the_same_bits(name: str) -> None:
    def work(rank: ThreadMessenger) -> list[torch.Tensor]:
        averager = new_averager(name, rank)
        own = [tensor for step in range(3) for tensor in gradients(rank.rank, step)]
        average(averager, own[:3], own[3:6])
        average(averager, own[6:])
        return own

    first, *others = on_threads(RANKS, work)
    for other in others:
        assert all(torch.equal(one, two) for one, two in zip(first, other, strict=True))


@pytest.mark.parametrize("name", ["qsgd", "qsgd, 2 bits", "qsgd on sharded_servers", "atomo"])
def test_an_unbiased_message_is_right_on_average(name: str) -> None:
    """The mean of many tries is as far from the value as their own spread explains, and no farther."""
    tries = 1500

    def work(rank: ThreadMessenger) -> None:
        torch.manual_seed(0)
        averager, value = new_averager(name, rank), flat(gradients(0, 0))
        total, squares = torch.zeros_like(value), torch.zeros_like(value)
        for _ in range(tries):
            found = gradients(0, 0)
            average(averager, found)
            total += flat(found)
            squares += flat(found) ** 2
        mean = total / tries
        variance = (squares / tries - mean**2).sum()
        assert variance > 0.01 * value.norm() ** 2
        assert (mean - value).norm() ** 2 < 2 * variance / tries

    alone(work)


@pytest.mark.parametrize(
    "name", ["int8", "topk", "powersgd", "sign", "int8 on sharded_servers", "sign on sharded_servers"]
)
def test_what_was_not_sent_is_sent_later(name: str) -> None:
    """All that ranks have received is the mean of all gradients, but for what they still keep: nothing is lost."""

    def work(rank: ThreadMessenger) -> tuple[list[torch.Tensor], list[torch.Tensor], dict, dict]:
        averager = new_averager(name, rank)
        received = [torch.zeros_like(tensor) for tensor in gradients(0, 0)]
        given = [torch.zeros_like(tensor) for tensor in gradients(0, 0)]
        for step in range(20):
            found = gradients(rank.rank, step)
            for total, tensor in zip(given, found, strict=True):
                total += tensor
            average(averager, found)
            for total, tensor in zip(received, found, strict=True):
                total += tensor
        return received, given, averager.own_state()["unsent"], averager.state()

    found = on_threads(RANKS, work)
    received = flat(found[0][0])
    given = sum(flat(given) for _, given, _, _ in found) / RANKS
    kept = sum(as_kept(unsent) for _, _, unsent, _ in found) / RANKS
    if name == "sign":
        kept = kept + as_kept(found[0][3]["outvoted"])
    if name.endswith("servers"):
        kept = kept + torch.cat([unsent["bucket.0.mean"] for _, _, unsent, _ in found])[: len(kept)]
    assert kept.norm() > 0.1
    torch.testing.assert_close(received + kept, given, rtol=1e-9, atol=1e-9)


def flat(tensors: list[torch.Tensor]) -> torch.Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in tensors])


def as_kept(unsent: dict[str, torch.Tensor]) -> torch.Tensor:
    """What is kept of a bucket, as a vector; of PowerSGD by matrices, and nothing of the vector that travels whole."""
    if "bucket.0" in unsent:
        return unsent["bucket.0"]
    if "bucket.0.mean" in unsent:
        return torch.cat([unsent[f"bucket.0.{server}"] for server in range(RANKS)])[: len(flat(gradients(0, 0)))]
    return flat([unsent["bucket.0.0"], torch.zeros(11, dtype=torch.float64), unsent["bucket.0.2"]])


@of_each_compression
def test_a_saved_averager_goes_on_with_the_same_bits(name: str) -> None:
    def work(rank: ThreadMessenger) -> None:
        one, other = new_averager(name, rank), new_averager(name, rank)
        for step in range(3):
            average(one, gradients(rank.rank, step))
        one.end_epoch()
        other.load(copied(one.state()))
        other.load_own(copied(one.own_state()))
        found = []
        for averager in (one, other):
            torch.manual_seed(0)  # what is drawn comes from PyTorch's own generator, which a checkpoint holds anyway
            after = [gradients(rank.rank, step) for step in (3, 4)]
            for bucket in after:
                average(averager, bucket)
            found.append([*after[0], *after[1]])
        assert all(torch.equal(one, two) for one, two in zip(*found, strict=True))

    alone(work)


def copied(value: object) -> object:
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return value.clone() if isinstance(value, torch.Tensor) else value


@of_each_compression
@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.float16])
def test_whole_numbers_and_halves_are_refused_and_not_changed(name: str, dtype: torch.dtype) -> None:
    def work(rank: ThreadMessenger) -> None:
        numbers = torch.ones(4096).to(dtype)
        with pytest.raises(TypeError, match=f"float32 and float64 can be compressed, but one is {dtype}"):
            average(new_averager(name, rank), [numbers])
        assert torch.equal(numbers, torch.ones(4096).to(dtype))

    alone(work)


@of_each_compression
@pytest.mark.parametrize("value", [math.inf, math.nan])
def test_a_gradient_that_is_not_finite_stays_so(name: str, value: float) -> None:
    def work(rank: ThreadMessenger) -> torch.Tensor:
        found = gradients(rank.rank, 0)
        if rank.rank == 1:
            found[0][3, 4] = value
        average(new_averager(name, rank), found)
        return found[0]

    assert not any(found.isfinite().all() for found in on_threads(2, work))


def test_powersgd_is_exact_where_the_mean_has_its_rank() -> None:
    """Two of three ranks have opposite noise of full rank, and the mean of all has rank two."""

    def gradient(rank: int) -> torch.Tensor:
        random = torch.Generator().manual_seed(0)
        left, right = (torch.randn(size, 2, generator=random, dtype=torch.float64) for size in (40, 30))
        noise = torch.randn(40, 30, generator=random, dtype=torch.float64)
        return left @ right.T + noise * (rank - 1)

    def work(rank: ThreadMessenger) -> torch.Tensor:
        found = gradient(rank.rank)
        average(new_averager("powersgd", rank), [found])
        return found

    for found in on_threads(RANKS, work):
        torch.testing.assert_close(found, gradient(1), rtol=1e-9, atol=1e-9)


def test_powersgd_approaches_the_best_approximation_since_it_begins_where_it_ended() -> None:
    def work(rank: ThreadMessenger) -> None:
        random = torch.Generator().manual_seed(0)
        matrix = torch.randn(40, 30, generator=random, dtype=torch.float64)
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        best = (left[:, :2] * values[:2]) @ right[:2]
        averager = new_averager("powersgd", rank)
        distances = []
        for _ in range(60):
            averager.load_own({"unsent": {}})  # the same matrix each time, without what is left of the last one
            found = matrix.clone()
            average(averager, [found])
            distances.append(float((found - best).norm() / best.norm()))
        assert distances[0] > 0.5 and distances[-1] < 0.05

    alone(work)


def test_powersgd_recovers_from_a_gradient_of_zeros() -> None:
    def work(rank: ThreadMessenger) -> None:
        averager, found = new_averager("powersgd", rank), torch.ones(40, 30, dtype=torch.float64)
        for matrix in (torch.zeros_like(found), found):
            average(averager, [matrix])
            average(averager, [torch.zeros_like(found)])
        unsent = averager.own_state()["unsent"]["bucket.0.0"]
        assert unsent.norm() < 1e-9

    alone(work)


@of_each_compression
def test_no_values_are_as_good_as_any(name: str) -> None:
    def work(rank: ThreadMessenger) -> list[torch.Tensor]:
        values = [torch.zeros(0)]
        average(new_averager(name, rank), values)
        return values

    assert [each.shape for (each,) in on_threads(2, work)] == [(0,), (0,)]


def test_atomo_sends_all_of_a_matrix_of_few_atoms() -> None:
    def work(rank: ThreadMessenger) -> None:
        matrix = torch.outer(torch.arange(1.0, 41), torch.arange(1.0, 31)).double()
        found = matrix.clone()
        average(new_averager("atomo", rank), [found])
        torch.testing.assert_close(found, matrix)

    alone(work)


def test_an_atom_is_drawn_with_a_probability_in_proportion_to_its_size() -> None:
    values = torch.tensor([8.0, 1, 1, 1, 1])
    torch.testing.assert_close(probabilities(values, 1), values.double() / 12)
    chances = probabilities(values, 2)
    torch.testing.assert_close(chances, torch.tensor([1, 0.25, 0.25, 0.25, 0.25], dtype=torch.float64))
    assert probabilities(torch.tensor([3.0, 1, 0, 0]), 2).tolist() == [1, 1, 0, 0]
    assert probabilities(torch.zeros(4), 2).tolist() == [0] * 4


@pytest.mark.parametrize("rank", [10, 100, 300])
def test_singular_values_of_a_batch_of_few_rows_are_found_without_the_whole_decomposition(rank: int) -> None:
    random = torch.Generator().manual_seed(0)
    matrix = torch.randn(300, rank, generator=random) @ torch.randn(rank, 400, generator=random)
    left, rows = _singular(matrix)
    torch.testing.assert_close(left @ rows, matrix, rtol=1e-3, atol=1e-2)
    torch.testing.assert_close(left.T @ left, torch.eye(left.shape[1]), rtol=0, atol=1e-4)
    expected = torch.linalg.svdvals(matrix)[: min(rank, len(rows))]
    torch.testing.assert_close(rows.norm(dim=1)[: len(expected)], expected, rtol=1e-3, atol=1e-3)
    assert rank == 300 or len(rows) < 300


@pytest.mark.parametrize("rank", [20, 200])
def test_neurons_that_are_never_active_hide_nothing_of_the_others(rank: int) -> None:
    random = torch.Generator().manual_seed(0)
    matrix = torch.randn(900, rank, generator=random) @ torch.randn(rank, 900, generator=random)
    matrix[torch.randperm(900, generator=random)[:500]] = 0
    matrix[:, torch.randperm(900, generator=random)[:500]] = 0
    left, rows = _singular(matrix)
    torch.testing.assert_close(left @ rows, matrix, rtol=1e-3, atol=1e-2)
    assert len(rows) < 900


def test_topk_sends_the_largest_values_of_a_long_vector() -> None:
    def work(rank: ThreadMessenger) -> None:
        found = torch.randn(1_000_003, generator=torch.Generator().manual_seed(0))
        expected = torch.zeros_like(found)
        largest = found.abs().topk(100_000).indices
        expected[largest] = found[largest]
        average(new_averager("topk", rank), [found])
        assert torch.equal(found, expected)

    alone(work)


def test_topk_applies_momentum_before_the_mean_and_forgets_it_where_values_were_sent() -> None:
    """By the formulas of DGC, in which u is the velocity and v what has come together."""

    def work(rank: ThreadMessenger) -> None:
        averager = new_averager("topk, momentum", rank)
        u, v = torch.zeros(700, dtype=torch.float64), torch.zeros(700, dtype=torch.float64)
        for epoch, count in enumerate([175, 111, 70, 70]):  # a quarter, a tenth, and the mean of their logarithms
            for step in range(3):
                found = torch.randn(700, generator=torch.Generator().manual_seed(10 * epoch + step)).double()
                u = 0.9 * u + found
                v = v + u
                largest = v.abs().topk(count).indices
                expected = torch.zeros(700, dtype=torch.float64)
                expected[largest] = v[largest]
                v[largest] = u[largest] = 0
                average(averager, [found])
                torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
            averager.end_epoch()

    alone(work)


def test_the_majority_of_signs_decides() -> None:
    def work(rank: ThreadMessenger) -> torch.Tensor:
        found = torch.tensor([[1.0, 1, -1], [1, -1, -1], [-1, 1, -1]])[rank.rank]
        average(new_averager("sign", rank), [found])
        return found.sign()

    assert [each.tolist() for each in on_threads(RANKS, work)] == [[1.0, 1.0, -1.0]] * RANKS


def test_the_cosine_transform_is_orthonormal_and_a_constant_is_one_coefficient() -> None:
    cosines = _cosines(torch.zeros(1, dtype=torch.float64))
    torch.testing.assert_close(cosines @ cosines.T, torch.eye(SIDE, dtype=torch.float64))
    spectrum = cosines @ torch.ones(SIDE, SIDE, dtype=torch.float64) @ cosines.T
    assert spectrum[0, 0] == pytest.approx(SIDE) and spectrum.abs().sum() == pytest.approx(SIDE)


def test_demo_sends_the_large_coefficients_of_the_momentum_and_steps_by_signs() -> None:
    """By the paper's algorithm, written with a transform of whole tiles at once."""

    def work(rank: ThreadMessenger) -> None:
        averager = new_averager("demo", rank)
        cosines = torch.tensor([[math.cos(math.pi / 64 * k * (i + 0.5)) for i in range(64)] for k in range(64)])
        cosines = torch.nn.functional.normalize(cosines.double())
        whole = torch.kron(cosines, cosines)
        momentum = torch.zeros(4096, dtype=torch.float64)
        for step in range(3):
            found = torch.randn(4000, generator=torch.Generator().manual_seed(step)).double()
            momentum = 0.999 * momentum + torch.nn.functional.pad(found, (0, 96))
            spectrum = whole @ momentum
            fast = torch.zeros_like(spectrum)
            places = spectrum.abs().topk(16).indices
            fast[places] = spectrum[places]
            sent = whole.T @ fast
            momentum = momentum - sent
            momentum[4000:] = 0  # what pads a tile is no value
            average(averager, [found])
            assert torch.equal(found, sent[:4000].sign())

    alone(work)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("float16", 2 * 4096),
        ("int8", 4096 + 8 * 4),
        ("int8 on sharded_servers", 4096 + 8 * 4),  # for two ranks, a half there and a half back
        ("qsgd", 4096 // 2 + 8 * 4),
        ("qsgd, 2 bits", 4096 // 4 + 8 * 4),
        ("topk", 410 * (4 + 4)),
        ("powersgd", 2 * (64 + 64) * 4),
        ("atomo", 2 * (64 + 64) * 4),
        ("sign", 4096 // 8 + 4096 // 512 * 4),
        ("demo", 16 * (4 + 2)),
    ],
)
def test_a_message_is_as_short_as_it_says(name: str, expected: int) -> None:
    """For 64 x 64 values of float32, which have 16,384 bytes."""

    def work(rank: ThreadMessenger) -> int:
        average(new_averager(name, rank), [torch.randn(64, 64)])
        return rank.bytes_sent

    assert on_threads(2, work) == [expected] * 2


@pytest.mark.parametrize("bits", [1, 2, 4, 8])
def test_packed_numbers_come_back(bits: int) -> None:
    codes = torch.randint(2**bits, (7, 512), dtype=torch.uint8)
    packed = pack(codes, bits=bits)
    assert packed.shape == (7, 512 * bits // 8)
    assert torch.equal(unpack(packed, bits=bits), codes)


@pytest.mark.parametrize(("name", "limit"), [("int8", 0.01), ("qsgd", 0.25), ("sign", 0.7)])
def test_a_vector_of_many_pieces_is_as_exact_as_each_of_them(name: str, limit: float) -> None:
    """Blocks are worked on some at a time, and the last one is not full."""

    def work(rank: ThreadMessenger) -> None:
        random = torch.Generator().manual_seed(0)
        value = torch.randn(2 * PIECE * BLOCK + 700, generator=random)
        found = value.clone()
        average(new_averager(name, rank), [found])
        for piece, exact in zip(found.split(PIECE * BLOCK), value.split(PIECE * BLOCK), strict=True):
            assert (piece - exact).norm() < limit * exact.norm()

    alone(work)
