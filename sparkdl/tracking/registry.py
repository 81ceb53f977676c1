"""Registers a model version, and moves the alias to it if the gate allows it. Runs on the driver.

A registry has no compare-and-set. So two jobs may both find their version better than the alias's current one, and
move the alias in any order. Therefore each job marks a version that passed the gate before it moves the alias, and
checks again afterwards, until the alias points to the best of all marked versions. The job that sets the alias last has
seen the marks of all others.
"""

import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from sparkdl.errors import ConfigError, RegistryError
from sparkdl.masking import without_credentials
from sparkdl.settings import Gate, Tracking
from sparkdl.tracking.store import is_refusal, on_databricks

__all__ = ["Registered", "check_gate", "figures", "register", "versions_of"]

PASSED = "sparkdl_passed"
"""The tag of versions that passed the gate, to which the alias may point."""
DECIDING, DECIDED = "deciding", "decided"
"""The tag's values: whether the version's job may still move the alias, or has finished."""
ABANDONED_MILLISECONDS = 600_000  # after which a job counts as killed; a decision takes less than a second
ROUNDS = 20  # after these, jobs with contradicting gates leave the alias where it is
USUAL_METRICS = [
    f"{split}_{name}"
    for split in ("test", "validation")
    for name in ("accuracy", "precision_at_1", "mean_average_precision", "r2", "ndcg_at_10", "perplexity")
]
SMALLER_IS_BETTER = ("loss", "error", "perplexity", "rmse", "mae")  # the last word of a metric's name


@dataclass(frozen=True)
class Registered:
    """A version in the registry, and whether the alias was moved to it."""

    name: str
    version: int
    alias: str
    moved: bool
    """Whether the alias now points to this version."""
    reason: str
    """Why the alias was moved or not, as a sentence."""

    @property
    def uri(self) -> str:
        """The version's URI for :func:`sparkdl.score`, which always refers to the same version."""
        return f"models:/{self.name}/{self.version}"


def register(
    client: MlflowClient,
    model_uri: str,
    settings: Tracking,
    *,
    run_id: str,
    metrics: Mapping[str, float],
    kept: Mapping[str, Any] | None = None,
) -> Registered:
    """Make a logged model the next version under ``settings.register_as``; move the alias if the gate allows it.

    A model that already is a version does not become another one. The version has ``metrics`` as tags, with which later
    versions are compared, and the ``tags``, ``description`` and ``run_link`` of ``kept``, from another version. Raises
    :class:`RegistryError` if there is no name to register as, or the registry refuses.
    """
    name, alias = settings.register_as, settings.alias
    if not name:
        raise RegistryError("there is no name to register the model as; set tracking.register_as")
    try:
        current = _version_of_alias(client, name, alias)
        version = _create_version(client, name, model_uri, run_id, metrics, kept or {})
        refusal, praise = _judge(settings.gate, metrics, current)
        if current is not None and int(current.version) == version:
            refusal = praise = ""
        if not refusal:
            current = _move_alias(client, name, settings, version)
            if int(current.version) != version:
                refusal = _judge(settings.gate, metrics, current)[0] or "it is newer, and no worse"
    except MlflowException as error:
        if not is_refusal(error):
            raise  # a later attempt may succeed
        raise RegistryError(f"the registry refused {name!r}: {without_credentials(error.message)}") from None
    if not refusal:
        reason = f"alias '{alias}' points to version {version}{': ' if praise else ''}{praise}"
    elif current is None:
        reason = f"alias '{alias}' is not set: {refusal}"
    else:
        reason = f"alias '{alias}' stays on version {current.version}: {refusal}"
    return Registered(name, version, alias, moved=not refusal, reason=reason)


def versions_of(client: MlflowClient, name: str) -> list[ModelVersion]:
    """All versions of a registered model."""
    # MLflow's filters have no escapes, so the kind of quotes is one that the name does not have.
    quote = '"' if "'" in name else "'"
    found = client.search_model_versions(f"name = {quote}{name}{quote}")
    versions = list(found)
    while found.token:
        found = client.search_model_versions(f"name = {quote}{name}{quote}", page_token=found.token)
        versions += found
    return versions


def _version_of_alias(client: MlflowClient, name: str, alias: str) -> ModelVersion | None:
    """The version that the alias points to, or None; the registered model is created if it is new."""
    try:
        model = client.get_registered_model(name)
    except MlflowException as error:
        if error.error_code != "RESOURCE_DOES_NOT_EXIST":
            raise
        try:
            client.create_registered_model(name)
        except MlflowException as refused:
            if refused.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
            return _version_of_alias(client, name, alias)  # another job has just created it
        return None
    number = model.aliases.get(alias)
    return None if number is None else client.get_model_version(name, str(number))


def _create_version(
    client: MlflowClient,
    name: str,
    model_uri: str,
    run_id: str,
    metrics: Mapping[str, float],
    kept: Mapping[str, Any],
) -> int:
    """The number of the model's version, which is created unless an earlier call with a lost answer has done so."""
    tags = {metric: f"{value:.6g}" for metric, value in metrics.items()} | kept.get("tags", {})
    model_id = model_uri.removeprefix("models:/")
    # A registry in a database resolves "models:/" with MLflow's global store, which may be another one.
    source = model_uri if on_databricks(client) else client.get_logged_model(model_id).artifact_location
    for version in versions_of(client, name):
        if version.run_id == run_id and (version.model_id == model_id or version.source == source):
            return int(version.version)
    created = client.create_model_version(name, source, run_id, model_id=model_id, **{**kept, "tags": tags})
    return int(created.version)


def _move_alias(client: MlflowClient, name: str, settings: Tracking, version: int) -> ModelVersion:
    """Move the alias to the best of the versions that passed since the last decision; returns that version."""
    own = client.get_model_version(name, str(version))
    passed = _passed(client, name, settings.alias)
    if not any(_is_deciding(other, own) for other in passed):
        for other in passed:  # decided: the alias points to the best of them, or a person has moved it
            client.delete_model_version_tag(name, other.version, PASSED)
    client.set_model_version_tag(name, own.version, PASSED, f"{settings.alias} {DECIDING}")
    for _ in range(ROUNDS):
        passed = _passed(client, name, settings.alias)
        current = _version_of_alias(client, name, settings.alias)
        best = _best(settings.gate, [own, *passed, *([current] if current else [])])
        if current and current.version == best.version:
            break
        client.set_registered_model_alias(name, settings.alias, best.version)
    client.set_model_version_tag(name, own.version, PASSED, f"{settings.alias} {DECIDED}")
    return best


def _passed(client: MlflowClient, name: str, alias: str) -> list[ModelVersion]:
    """The versions that are marked for this alias."""
    marks = {f"{alias} {DECIDING}", f"{alias} {DECIDED}"}
    return [version for version in versions_of(client, name) if version.tags.get(PASSED) in marks]


def _is_deciding(other: ModelVersion, own: ModelVersion) -> bool:
    """Whether another version's job may still move the alias, and is not so old that it must have been killed."""
    age = own.creation_timestamp - other.creation_timestamp
    return other.version != own.version and other.tags[PASSED].endswith(DECIDING) and age < ABANDONED_MILLISECONDS


def _best(gate: Gate, versions: Iterable[ModelVersion]) -> ModelVersion:
    """The version that the alias would point to if the versions had been registered one after another."""
    best, *others = sorted(versions, key=lambda version: int(version.version))
    for other in others:
        if not _judge(gate, figures(other), best)[0]:
            best = other
    return best


def figures(version: ModelVersion) -> dict[str, float]:
    """The metrics that a version has as tags."""
    found = {}
    for name, text in version.tags.items():
        with suppress(ValueError):
            found[name] = float(text)
    return found


def check_gate(settings: Tracking, metrics: Iterable[str]) -> None:
    """Raise :class:`ConfigError` for a gate that needs metrics that the job does not measure."""
    metric, known = settings.gate.metric, sorted(metrics)
    if settings.register_as and metric and metric not in known:
        raise ConfigError(
            f"tracking.gate.metric: {metric!r} is not measured here; there will be {', '.join(known) or 'nothing'}"
        )


def _judge(gate: Gate, metrics: Mapping[str, float], current: ModelVersion | None) -> tuple[str, str]:
    """The reason why the alias must not move (empty if it may), and the reason why it moves."""
    bounded = gate.minimum is not None or gate.maximum is not None
    there = current.tags if current else {}
    asked = gate.metric or next(filter(there.__contains__, USUAL_METRICS), None)
    metric = asked or next(filter(metrics.__contains__, USUAL_METRICS), USUAL_METRICS[0])
    value = metrics.get(metric)
    if value is None:
        if not bounded and not (asked and gate.better_than_current):
            return "", ""  # there is no gate, or no metric by which versions could be compared
        known = ", ".join(sorted(metrics))
        return (
            f"this version has no {metric} that the gate asks for (tracking.gate.metric);"
            f" it has {known or 'no metrics'}"
        ), ""
    if not math.isfinite(value):
        return f"{metric} is {value}", ""
    if gate.minimum is not None and value < gate.minimum:
        return f"{metric} {value:.4g} is below {gate.minimum:.4g}", ""
    if gate.maximum is not None and value > gate.maximum:
        return f"{metric} {value:.4g} is above {gate.maximum:.4g}", ""
    praise = f"{metric} {value:.4g}" + (" is within the gate" if bounded else "")
    if not gate.better_than_current or current is None:
        return "", praise if bounded else ""
    before = figures(current).get(metric)
    if before is None:
        return "", f"{praise}, and version {current.version} does not tell its {metric}"
    smaller = gate.minimum is None and (gate.maximum is not None or metric.endswith(SMALLER_IS_BETTER))
    # Tags have six digits, so that smaller differences between versions do not count.
    better, worse = (value, before) if not smaller else (before, value)
    if better < worse and not math.isclose(value, before, rel_tol=1e-5):
        return f"{metric} {value:.4g} is worse than its {before:.4g}", ""
    return "", f"{praise}{',' if bounded else ' is'} no worse than the {before:.4g} of version {current.version}"
