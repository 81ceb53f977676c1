"""TorchRunner: programs of torch.distributed find on ranks what torchrun would give them."""

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import psutil
import pytest
from pyspark.sql import SparkSession

import sparkdl
from sparkdl import Dataset, TorchRunner
from sparkdl.errors import ConfigError, NotEnoughSlotsError, RankError

EVERYWHERE = pytest.mark.parametrize("np", [2, -2])
OF_TORCHRUN = {
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK"),
    *("ROLE_WORLD_SIZE", "ROLE_NAME", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID"),
    *("TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS", "TORCH_NCCL_ASYNC_ERROR_HANDLING"),
}


def main(scale: float, *, times: int = 1) -> tuple[float, set[str]]:
    import torch
    from torch import distributed

    distributed.init_process_group("gloo")
    total = torch.tensor([scale * times])
    distributed.all_reduce(total)
    both = distributed.new_group([0, 1])  # another group meets by the same store
    distributed.all_reduce(total, group=both)
    print("rank", distributed.get_rank(), "of", distributed.get_world_size())
    distributed.destroy_process_group()
    return total.item(), set(os.environ)


@EVERYWHERE
def test_a_program_finds_the_other_ranks_and_what_rank_0_returns_comes_home(
    spark: SparkSession, np: int, capfd: pytest.CaptureFixture[str]
) -> None:
    total, names = TorchRunner(np=np).run(main, 1.5, times=2)
    assert total == 12.0
    assert names >= OF_TORCHRUN
    assert set(capfd.readouterr().out.splitlines()) >= {"[rank 0] rank 0 of 2", "[rank 1] rank 1 of 2"}


def test_a_program_may_stay_connected_when_it_ends_and_the_next_one_starts_afresh(spark: SparkSession) -> None:
    def connect() -> list[str]:
        import sys

        from torch import distributed

        before = [name for name in ("left",) if hasattr(sys, name)]
        sys.left = distributed.is_initialized()  # type: ignore[attr-defined]
        distributed.init_process_group("gloo")
        return before

    assert [TorchRunner(np=2).run(connect) for _ in range(2)] == [[], []]


def test_what_a_program_has_started_ends_with_it(spark: SparkSession) -> None:
    def start() -> int:
        return subprocess.Popen(["sleep", "600"]).pid

    program = TorchRunner(np=1).run(start)
    assert not psutil.pid_exists(program) or psutil.Process(program).status() == psutil.STATUS_ZOMBIE


@EVERYWHERE
def test_the_first_error_arrives_whole_and_the_others_are_not_waited_for(spark: SparkSession, np: int) -> None:
    def fail() -> None:
        from torch import distributed

        distributed.init_process_group("gloo")
        if distributed.get_rank() == 1:
            raise ValueError("no data")
        distributed.barrier()

    with pytest.raises(RankError, match=r"^Traceback[\s\S]*in fail[\s\S]*ValueError: no data") as caught:
        TorchRunner(np=np).run(fail)
    assert (caught.value.rank, caught.value.exception_type) == (1, "ValueError")


@EVERYWHERE
def test_a_killed_rank_is_an_error_and_not_a_hang(spark: SparkSession, np: int) -> None:
    def die() -> None:
        from torch import distributed

        distributed.init_process_group("gloo")
        if distributed.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        distributed.barrier()

    with pytest.raises(RankError, match=r"ended without an error|ended with code -9") as caught:
        TorchRunner(np=np).run(die)
    assert (caught.value.rank, caught.value.exception_type) == (1, "process death")


def test_a_stopped_rank_is_given_up_after_the_heartbeat_timeout(spark: SparkSession) -> None:
    def stop() -> None:
        os.kill(os.getpid(), signal.SIGSTOP)

    with pytest.raises(RankError, match=r"no heartbeat for 5 s"):
        TorchRunner(np=1, heartbeat_timeout=5.0).run(stop)


@EVERYWHERE
def test_a_failed_program_is_started_again_and_goes_on_from_its_checkpoint(
    spark: SparkSession, np: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.chdir(tmp_path)  # a folder is the same one, wherever the executors have theirs

    def count() -> tuple[str, str]:
        from torch import distributed

        distributed.init_process_group("gloo")
        checkpoint = Path(str(sparkdl.checkpoint_dir()), "step")
        step = int(checkpoint.read_text()) if checkpoint.exists() else 0
        distributed.barrier()
        if distributed.get_rank() == 0:
            checkpoint.write_text(str(step + 1))
        if step < 2:
            raise ValueError(f"step {step}")
        return os.environ["TORCHELASTIC_RESTART_COUNT"], checkpoint.read_text()

    assert TorchRunner(np=np, max_restarts=2, checkpoint_dir="checkpoints").run(count) == ("2", "3")
    assert "ValueError: step 0" in caplog.text and "restart 2 of 2" in caplog.text
    assert (tmp_path / "checkpoints" / "step").read_text() == "3"


def test_when_restarts_are_used_up_the_last_error_is_raised(spark: SparkSession) -> None:
    def fail() -> None:
        raise ValueError("attempt " + os.environ["TORCHELASTIC_RESTART_COUNT"])

    assert sparkdl.checkpoint_dir() is None
    with pytest.raises(RankError, match="ValueError: attempt 1"):
        TorchRunner(np=1, max_restarts=1).run(fail)


def test_a_program_may_choose_another_meeting_place(spark: SparkSession) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]

    def setup(rank: int, world_size: int) -> str:  # as programs do that were written for torch.multiprocessing.spawn
        from torch import distributed

        os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = "localhost", str(port)
        distributed.init_process_group("gloo", rank=rank, world_size=world_size)
        gathered: list[int] = [0] * world_size
        distributed.all_gather_object(gathered, rank)
        return str(gathered)

    def start() -> str:
        return setup(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]))

    assert TorchRunner(np=2).run(start) == "[0, 1]"


@EVERYWHERE
def test_ddp_trains_on_the_rows_of_a_prepared_dataset(spark: SparkSession, np: int, clouds: Dataset) -> None:
    def train(path: str) -> tuple[float, bool]:
        import torch
        from torch import distributed
        from torch.nn.parallel import DistributedDataParallel

        distributed.init_process_group("gloo")
        loader = sparkdl.dataloader(path, batch_size=16)
        torch.manual_seed(distributed.get_rank())  # DDP gives all ranks the weights of rank 0
        width, classes = loader.dataset.input.shape[0], loader.dataset.num_classes
        model = DistributedDataParallel(torch.nn.Linear(width, classes))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        losses: list[float] = []
        for _ in range(3):
            for inputs, labels in loader:
                loss = torch.nn.functional.cross_entropy(model(inputs), labels)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
        weights = [torch.empty_like(model.module.weight) for _ in range(2)]
        distributed.all_gather(weights, model.module.weight.detach())
        equal = torch.equal(weights[0], weights[1])
        return losses[-1] / losses[0], equal and len(losses) == 3 * len(loader)

    share, equal = TorchRunner(np=np).run(train, clouds.path)
    assert share < 0.9 and equal


def test_a_decorated_function_runs_here_or_on_ranks(spark: SparkSession) -> None:
    @sparkdl.distributed(num_ranks=2)
    def size(default: str) -> str:
        """Says how many it is one of."""
        return os.environ.get("WORLD_SIZE", default)

    assert (size("one"), size.distributed("one"), size.__doc__) == ("one", "2", "Says how many it is one of.")


def test_a_script_runs_as_its_own_main_with_the_modules_beside_it(
    spark: SparkSession, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "beside.py").write_text(
        "from torch import distributed\n\ndef connect():\n    distributed.init_process_group('gloo')\n"
    )
    script = tmp_path / "program.py"
    script.write_text(
        "import sys\nfrom beside import connect\nfrom torch import distributed\n\n"
        "if __name__ == '__main__':\n    connect()\n    print(distributed.get_rank(), sys.argv[1:])\n"
        "    if '--fail' in sys.argv:\n        raise ValueError('told to')\n    sys.exit(0)\n"
    )
    assert TorchRunner(np=2).run(script, "--lr", 0.1) is None
    assert set(capfd.readouterr().out.splitlines()) >= {f"[rank {rank}] {rank} ['--lr', '0.1']" for rank in (0, 1)}
    with pytest.raises(SystemExit, match=r"^0$"):
        sparkdl.main(["run", str(script), "--num-ranks", "2", "--", "--lr", "3"])
    assert "[rank 1] 1 ['--lr', '3']" in capfd.readouterr().out
    with pytest.raises(RankError, match=r'File ".*program.py", line 9, in <module>\n    raise ValueError'):
        TorchRunner(np=2).run(str(script), "--fail")
    assert str(tmp_path) not in sys.path


def test_bad_input_is_one_line_before_anything_starts(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("x = 1\nif x\n")
    for wrong, words in {
        str(tmp_path / "none.py"): r"^cannot read the script \S+none.py: No such file or directory$",
        str(tmp_path): "Is a directory",
        str(tmp_path / "bad.py"): r"^the script \S+bad.py, line 2 is not Python: ",
    }.items():
        with pytest.raises(ConfigError, match=words):
            TorchRunner(np=2).run(wrong)
    with pytest.raises(ConfigError, match="only positional arguments, its command line, but got 'lr'"):
        TorchRunner(np=2).run(tmp_path / "bad.py", lr=1)
    with pytest.raises(NotEnoughSlotsError, match=r"4 ranks.*2 slots"):
        TorchRunner(np=4).run(main, 1.0)
    lock = threading.Lock()
    with pytest.raises(ConfigError, match=r"cannot send the function '.*<lambda>' to the ranks: main.lock "):
        TorchRunner(np=2).run(lambda: lock)
    with pytest.raises(ConfigError, match="max_restarts must be a whole number from 0 on, not -1"):
        TorchRunner(np=2, max_restarts=-1)
    with pytest.raises(ConfigError, match="heartbeat_timeout must be at least 4 s"):
        TorchRunner(np=2, heartbeat_timeout=1.0)
