"""Notices of clouds that they are about to take a host away (preemption). Runs on a rank."""

import json
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Self
from urllib.error import HTTPError

from sparkdl.cluster.sender import Sender

__all__ = ["NoticeWatch", "is_preempted"]

LOOK_SECONDS = 1.0  # between two checks; the shortest notice period, Google's, is 30 s
ANSWER_SECONDS = 2.0
METADATA = "http://169.254.169.254"
"""The address of the metadata server in all three clouds."""


class NoticeWatch:
    """Checks for a notice every second, in a separate thread, and reports it to the driver once.

    ``notice`` is the setting ``cluster.preemption_notice``.
    """

    def __init__(self, notice: str, rank: int, sender: Sender) -> None:
        self._notice, self._rank, self._sender = notice, rank, sender
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sparkdl-preemption", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()

    def _run(self) -> None:
        complained = False
        while not self._ended.wait(LOOK_SECONDS):
            try:
                if is_preempted(self._notice):
                    self._sender.send("preempted", {})
                    return
            except (OSError, ValueError) as error:
                if not complained:
                    complained = True
                    text = f"rank {self._rank} cannot check whether its host is about to be taken away"
                    self._tell(f"{text} (cluster.preemption_notice: {self._notice}): {error}")

    def _tell(self, text: str) -> None:
        try:
            self._sender.send("print", {"text": text + "\n"})
        except OSError:
            self._ended.set()  # the driver has ended


def is_preempted(notice: str) -> bool:
    """Whether the cloud of this name has announced that it takes this host away; or whether this file exists.

    Raises :class:`OSError` if the cloud's metadata server does not answer, and :class:`ValueError` for an invalid
    answer.
    """
    look = _CLOUDS.get(notice)
    return look() if look else Path(notice).exists()


def _by_aws() -> bool:
    # https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
    token = _asked("/latest/api/token", {"X-aws-ec2-metadata-token-ttl-seconds": "60"}, method="PUT")
    try:
        _asked("/latest/meta-data/spot/instance-action", {"X-aws-ec2-metadata-token": token})
    except HTTPError as error:
        if error.code == 404:  # no action is planned for this host
            return False
        raise
    return True


def _by_gcp() -> bool:
    # https://cloud.google.com/compute/docs/instances/create-use-spot#detect-preemption
    return _asked("/computeMetadata/v1/instance/preempted", {"Metadata-Flavor": "Google"}).strip() == "TRUE"


def _by_azure() -> bool:
    # https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
    headers = {"Metadata": "true"}
    name = _asked("/metadata/instance/compute/name?api-version=2021-02-01&format=text", headers).strip()
    events = json.loads(_asked("/metadata/scheduledevents?api-version=2020-07-01", headers))["Events"]
    return any(event["EventType"] in ("Preempt", "Terminate") and name in event["Resources"] for event in events)


_CLOUDS: dict[str, Callable[[], bool]] = {"aws": _by_aws, "gcp": _by_gcp, "azure": _by_azure}


def _asked(path: str, headers: dict[str, str], *, method: str = "GET") -> str:
    request = urllib.request.Request(METADATA + path, headers=headers, method=method)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=ANSWER_SECONDS) as answer:
        return str(answer.read().decode())
