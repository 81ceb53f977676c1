import dataclasses
import fcntl
import importlib.util
import inspect
import os
import re
import shutil
import signal
import stat
import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
SETUP = ROOT / ".setup"
sys.path.append(str(SETUP))

import checks  # noqa: E402
import horovod_wheel  # noqa: E402
import install  # noqa: E402
import patching  # noqa: E402
import sharing  # noqa: E402
import stacks  # noqa: E402
import steps  # noqa: E402
from steps import SetupError  # noqa: E402


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A fresh checkout: as much of it as the set-up looks at."""
    folder = tmp_path / "checkout"
    shutil.copytree(SETUP, folder / ".setup", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    return folder


def set_up(checkout: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the real set-up with an empty cache folder, on a machine without the usual programs."""
    environ = {"HOME": str(checkout.parent), "PATH": "", **environ}
    command = [sys.executable, str(checkout / ".setup" / "install.py")]
    return subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)


def program(folder: Path, name: str, script: str) -> Path:
    """A small program on a path of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def until(true: Callable[[], object]) -> None:
    """Wait for it, ten seconds at most."""
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end
        time.sleep(0.05)


def free(lock: Path) -> bool:
    """Whether nobody holds this lock."""
    folder = os.open(lock, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(folder)
    return True


def test_a_missing_compiler_is_one_line_and_nothing_is_left_behind(checkout: Path) -> None:
    answer = set_up(checkout)
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert line.startswith("set-up failed: no C++ compiler found (c++, g++, clang++)")
    assert "apt install g++" in line
    assert not (checkout / ".venv").exists()


def test_a_compiler_too_old_for_torch_is_one_line(tmp_path: Path) -> None:
    program(tmp_path, "g++", "exit 1")
    with pytest.raises(SetupError, match=r"g\+\+ does not compile C\+\+20"):
        checks.check_compiler({"PATH": str(tmp_path)})


def test_a_compiler_behind_a_launcher_is_found(tmp_path: Path) -> None:
    program(tmp_path, "ccache", '[ "$1" = g++ ] && [ "$2" = -std=c++20 ]')
    checks.check_compiler({"PATH": str(tmp_path), "CXX": "ccache g++"})
    with pytest.raises(SetupError, match="CXX is no command"):
        checks.check_compiler({"PATH": str(tmp_path), "CXX": 'g++ "'})


def test_compilers_are_as_many_as_memory_allows_or_as_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def flags(given: str) -> str:
        monkeypatch.setenv("MAKEFLAGS", given)
        return horovod_wheel._environment(Path("bin/python"))["MAKEFLAGS"]

    monkeypatch.setattr(horovod_wheel, "MEMORY_PER_COMPILER", 1 << 60)
    assert flags("") == flags("s") == "-j1"  # what `make` and `make -s` set
    assert flags(" -j3 --jobserver-auth=3,4") == flags("-j 3") == "-j3"


def test_a_cache_folder_that_cannot_be_made_is_one_line(checkout: Path) -> None:
    (checkout.parent / "file").touch()
    answer = set_up(checkout, XDG_CACHE_HOME=str(checkout.parent / "file"), PATH=os.environ["PATH"])
    assert answer.returncode == 1
    (line,) = answer.stderr.splitlines()
    assert str(checkout.parent / "file") in line


def test_a_wrong_python_is_one_line_that_names_the_right_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        SetupError, match=r"needs Python 3\.11, and python3 here is 3\.12: put `python3\.11` on the PATH"
    ):
        checks.find_python()


def test_another_python_hands_over_to_python_3_11(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    right = program(tmp_path, "python3.11", "exit 0")
    monkeypatch.setattr(sys, "version_info", (3, 12, 1))
    monkeypatch.setenv("PATH", str(tmp_path))
    assert checks.find_python() == str(right)


def test_too_little_disk_says_how_much_is_needed_and_how_much_is_free(tmp_path: Path) -> None:
    # Two folders on one disk: neither alone would be too much.
    free = shutil.disk_usage(tmp_path).free
    with pytest.raises(SetupError, match=r"not enough disk space at .*: [\d.]+ GB are needed and [\d.]+ GB are free"):
        checks.check_disk({tmp_path / "a": free * 0.7, tmp_path / "b" / "c": free * 0.7})


def test_a_disk_that_runs_full_on_the_way_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(SetupError) as failure:
        steps.run(["sh", "-c", "head -c 9 /dev/zero > /dev/full"], doing="filling the disk", log=tmp_path / "log")
    assert str(failure.value) == steps.disk_full()


def test_a_failed_command_names_its_reason_and_its_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "log"
    with pytest.raises(SetupError) as failure:
        steps.run(["sh", "-c", "echo 'ERROR: no such package'; echo bye; exit 3"], doing="trying", log=log)
    assert str(failure.value) == f"trying failed (exit code 3): ERROR: no such package - the whole story is in {log}"
    assert "bye" in log.read_text()


def test_java_17_is_found_and_another_version_is_not(tmp_path: Path) -> None:
    old = program(tmp_path / "old" / "bin", "java", """echo 'openjdk version "11.0.2"' >&2""").parent
    new = program(tmp_path / "new" / "bin", "java", """echo 'openjdk version "17.0.15" 2025' >&2""").parent
    assert checks.find_java_17({"PATH": str(new)}) == new / "java"
    assert checks.find_java_17({"PATH": str(old)}) is None
    assert checks.find_java_17({"PATH": str(tmp_path)}) is None
    # JAVA_HOME is what Spark starts, whatever is on the path.
    assert checks.find_java_17({"PATH": str(old), "JAVA_HOME": str(new.parent)}) == new / "java"
    assert checks.find_java_17({"PATH": str(new), "JAVA_HOME": str(old.parent)}) is None


def test_a_patch_changes_what_it_names_and_nothing_that_is_not_exactly_there(tmp_path: Path) -> None:
    source, patch = tmp_path / "source" / "words.txt", tmp_path / "1-words.patch"
    source.parent.mkdir()
    source.write_text("one\ntwo\n\nthree\nfour\nfive\n")
    patch.write_text(
        "Why.\n\n--- a/words.txt\n+++ b/words.txt\n"
        "@@ -1,3 +1,4 @@\n-one\n+1\n+1.5\n two\n \n@@ -5,2 +6,1 @@ a heading\n four\n-five\n"
    )
    patching.apply(patch, source.parent)
    assert source.read_text() == "1\n1.5\ntwo\n\nthree\nfour\n"
    with pytest.raises(SetupError, match=r"1-words\.patch does not fit words\.txt at line 5"):
        patching.apply(patch, source.parent)
    source.write_text("moved\none\ntwo\n\nthree\nfour\nfive\n")
    with pytest.raises(SetupError, match="does not fit"):
        patching.apply(patch, source.parent)


@pytest.mark.parametrize("patch", patching.PATCHES, ids=lambda patch: patch.stem)
def test_a_patch_of_horovod_says_why_and_is_whole(patch: Path) -> None:
    reason, *files = re.split(r"^--- a/.+\n\+\+\+ b/.+\n", patch.read_text(), flags=re.MULTILINE)
    assert reason.strip().endswith(".") and files
    for changes in files:
        hunks = re.findall(r"^@@ -\d+,(\d+) \+\d+,(\d+) @@.*\n((?:[ +-].*\n)*)", changes, re.MULTILINE)
        assert hunks
        for before, after, lines in hunks:
            assert sum(line[0] in " -" for line in lines.splitlines()) == int(before)
            assert sum(line[0] in " +" for line in lines.splitlines()) == int(after)


def test_a_wheel_is_kept_per_torch_and_for_gpus_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(horovod_wheel, "CACHE", tmp_path)
    monkeypatch.delenv("HOROVOD_GPU_OPERATIONS", raising=False)
    wheel = tmp_path / "wheels" / horovod_wheel.key("2.13.0+cpu") / f"{horovod_wheel.RELEASE}-cp311.whl"
    wheel.parent.mkdir(parents=True)
    wheel.touch()
    assert horovod_wheel.cached("2.13.0+cpu") == horovod_wheel.cached("2.13.0*") == wheel
    assert horovod_wheel.cached("2.14.0") is None
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    assert horovod_wheel.cached("2.13.0+cpu") is None


def test_commands_keep_the_lock_of_a_set_up_that_was_killed(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.mkdir()
    script = f"""
        import sys; sys.path.insert(0, {str(SETUP)!r})
        import install, pathlib, steps
        install.SETUP = pathlib.Path({str(lock)!r})
        with install._only_one():
            steps.run(["sh"], doing="waiting", log=pathlib.Path({str(tmp_path / "log")!r}))
    """
    program(tmp_path, "sh", f"echo $$ > {tmp_path / 'pid'}; exec /bin/sleep 60")
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    killed = subprocess.Popen([sys.executable, "-c", inspect.cleandoc(script)], env=environ)
    try:
        until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
        killed.kill()
        killed.wait()
        assert not free(lock)
    finally:
        killed.kill()
        if (tmp_path / "pid").exists():
            os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
    until(lambda: free(lock))


def test_set_up_is_due_again_when_the_lock_or_java_changes(checkout: Path) -> None:
    setup = checkout / ".setup"
    before = install.digest(False, setup)
    assert install.digest(False, setup) == before
    assert install.digest(True, setup) != before
    lock = setup / "requirements.txt"
    lock.write_text(lock.read_text().replace("mlflow==", "mlflow==9."))
    assert install.digest(False, setup) != before


def test_an_environment_whose_python_is_gone_or_whose_stamp_is_empty_is_made_anew(
    tmp_path: Path,
) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "activate").write_text(f"VIRTUAL_ENV={tmp_path}")
    (tmp_path / "bin" / "python").symlink_to(tmp_path / "gone")
    stack = dataclasses.replace(stacks.CLASSIC, venv=tmp_path)
    assert not install._works(stack)
    stack.stamp.touch()
    assert not install.up_to_date(stack, False)


def test_a_build_for_gpus_stays_one_until_the_user_says_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp = tmp_path / "stamp"
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "NCCL")
    install.write_stamp(stamp, "unfinished")
    monkeypatch.delenv("HOROVOD_GPU_OPERATIONS")
    install.remember_gpus(stamp)
    assert os.environ["HOROVOD_GPU_OPERATIONS"] == "NCCL"
    monkeypatch.setenv("HOROVOD_GPU_OPERATIONS", "")
    install.remember_gpus(stamp)
    assert "HOROVOD_GPU_OPERATIONS" not in os.environ


def test_a_package_that_pip_was_interrupted_in_is_installed_again(tmp_path: Path) -> None:
    packages = tmp_path / "lib" / "python3.11" / "site-packages"
    for name in ("whole-1.0.dist-info", "half-1.0.dist-info"):
        (packages / name).mkdir(parents=True)
        (packages / name / "METADATA").touch()
    (packages / "whole-1.0.dist-info" / "RECORD").touch()
    (tmp_path / "building-1").mkdir()  # of Horovod, as a set-up leaves it that is killed
    install.forget_half_installed(tmp_path)
    assert [path.name for path in packages.iterdir()] == ["whole-1.0.dist-info"]
    assert [path.name for path in tmp_path.iterdir()] == ["lib"]


def test_environments_share_the_files_that_are_the_same_and_no_others(tmp_path: Path) -> None:
    def install_package(name: str, version: str, files: dict[str, str]) -> Path:
        packages = tmp_path / name / "lib" / "python3.11" / "site-packages"
        metadata = packages / f"net-{version}.dist-info"
        metadata.mkdir(parents=True)
        for path, content in files.items():
            (packages / path).parent.mkdir(exist_ok=True)
            (packages / path).write_text(content)
        recorded = [f"{path},sha256={content.split()[0]},{len(content)}\n" for path, content in files.items()]
        (metadata / "RECORD").write_text("".join(recorded) + f"net-{version}.dist-info/RECORD,,\n")
        return packages

    files = {"net/same.py": "one", "net/altered.py": "two", "net/other.py": "three"}
    first, older = install_package("first", "2.0", files), install_package("older", "1.0", files)
    second = install_package("second", "2.0", files | {"net/other.py": "four"})
    (second / "net" / "altered.py").write_text("two and a half")  # by its user
    assert sharing.share(tmp_path / "second", tmp_path / "first") == len("one")
    assert sharing.share(tmp_path / "second", tmp_path / "first") == 0
    assert sharing.share(tmp_path / "older", tmp_path / "first") == 0
    assert sharing.share(tmp_path / "first", tmp_path / "not there") == 0
    shared = {path: first.joinpath(path).samefile(second / path) for path in files}
    assert shared == {"net/same.py": True, "net/altered.py": False, "net/other.py": False}
    assert [(second / path).read_text() for path in files] == ["one", "two and a half", "four"]
    assert not (older / "net" / "same.py").samefile(first / "net" / "same.py")


@pytest.mark.parametrize("stack", stacks.STACKS.values(), ids=lambda stack: stack.name)
def test_the_lock_pins_everything_the_project_asks_for(stack: stacks.Stack) -> None:
    lock = install.read_lock(stack.lock)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    classic = extras["classic"] if stack is stacks.CLASSIC else []
    for requirement in map(
        Requirement,
        [
            *project["dependencies"],
            *classic,
            *extras["optimizers"],
            *extras["text"],
            *extras["finetuning"],
            *extras["docs"],
            *extras["dev"],
        ],
    ):
        if requirement.name == "horovod":  # which is built, from the release that horovod.txt names
            assert f"{requirement} " in (SETUP / "horovod.txt").read_text()
            continue
        assert requirement.specifier.contains(lock[canonicalize_name(requirement.name)]), requirement


def test_packages_are_compiled_once_and_not_by_each_process() -> None:
    folder = Path(importlib.util.find_spec("mlflow").origin).parent
    sources = [path for path in folder.rglob("*.py") if "tests" not in path.parts]
    assert sources and all(Path(importlib.util.cache_from_source(str(path))).exists() for path in sources)


def test_horovod_was_built_with_gloo() -> None:
    proof = "import horovod.torch as hvd; hvd.init(); assert hvd.gloo_built() and hvd.size() == 1; hvd.shutdown()"
    subprocess.run([sys.executable, "-c", proof], check=True, cwd=ROOT, timeout=120)
