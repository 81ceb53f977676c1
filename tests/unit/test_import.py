"""What the user's process is after `import sparkdl`: what it was before."""

import pkgutil
import subprocess
import sys

import sparkdl

PROGRAM = """
import faulthandler, gc, os, signal, sys

def state():
    return {
        "collector": (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count(), gc.callbacks[:]),
        "signal handlers": {number: signal.getsignal(number) for number in signal.valid_signals()},
        "environment": dict(os.environ),
        "hooks": (sys.excepthook, sys.unraisablehook, faulthandler.is_enabled(), sys.getrecursionlimit()),
        "streams": (sys.stdout, sys.stderr),
        "folder": os.getcwd(),
    }

def changes(before):
    return {name: (before[name], now) for name, now in state().items() if before[name] != now}

before = state()
import sparkdl
print(changes(before))
import mlflow  # which writes the number of its telemetry's session into the environment
before = state()
for name in sparkdl.__all__:
    getattr(sparkdl, name)
print(changes(before))
"""


def test_importing_every_public_name_leaves_the_process_as_it_was() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout == "{}\n{}\n"


def test_no_public_name_is_that_of_a_module_which_would_take_its_place_once_it_is_imported() -> None:
    modules = {module.name for module in pkgutil.iter_modules(sparkdl.__path__)}
    assert not modules & set(sparkdl.__all__)


def test_what_runs_in_tasks_and_on_ranks_does_not_load_mlflow() -> None:
    modules = "sparkdl.data.preparing.write, sparkdl.scoring.task, sparkdl.extreme.tasks, sparkdl.training.loop"
    program = f"import sys, {modules}; print(sorted(sys.modules.keys() & {{'mlflow', 'matplotlib', 'pandas'}}))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120)
    assert done.stdout.strip() == "[]"
