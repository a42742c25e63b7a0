"""Containers of Kubernetes manifests and compose files: command, variables, replicas. Secrets are skipped."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from advisor.advice.current.launch import Launch, launches_of
from advisor.advice.current.shell import expand, keep, split
from engine.errors import InputError

KINDS = (
    "Deployment",
    "StatefulSet",
    "LeaderWorkerSet",
    "ReplicaSet",
    "Pod",
    "Job",
    "DynamoGraphDeployment",
    "List",
)
_GPU = "nvidia.com/gpu"


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod template, how many of it run, and how many pods are one instance."""

    name: str
    count: int
    spec: Mapping[str, Any]
    size: int = 1


def from_kubernetes(docs: Iterable[Any]) -> list[Launch]:
    """The engines of a manifest's workloads. Raises InputError where it has none."""
    docs = list(_flat(docs))
    files = _config_files(docs)
    pods = [pod for doc in docs for pod in _pods(doc)]
    if not pods:
        kinds = sorted({str(doc.get("kind"))[:40] for doc in docs})
        why = f"it has {', '.join(kinds) or 'nothing'}; {', '.join(KINDS)} are read"
        raise InputError(
            "the manifest has no workload that we read",
            why=why,
            hint="kubectl get deploy NAME -o yaml | advise analyze LOG --current -",
        )
    found = [launch for pod in pods for launch in _of_pod(pod, files)]
    if not found:
        names = ", ".join(f"{pod.name} ({'; '.join(_images(pod))})" for pod in pods[:5])
        raise InputError(
            "no container of the manifest starts an engine that we know",
            where=names,
            hint="--current 'vllm serve MODEL ...', as a launch line",
        )
    return found


def from_compose(doc: Mapping[str, Any]) -> list[Launch]:
    """The engines of a compose file's services. Raises InputError where it has none."""
    found = []
    for name, service in _mapping(doc.get("services")).items():
        values = _mapping(service)
        words = [*_words(values.get("entrypoint")), *_words(values.get("command"))]
        env = _variables(values.get("environment"))
        deploy = _mapping(values.get("deploy"))
        count = deploy.get("replicas", values.get("scale", 1))
        # Compose fills variables in from the host, whose values we do not know; only their defaults are said.
        words = [expand(word, {}) for word in words]
        env = {key: expand(setting, {}) for key, setting in env.items()}
        started = launches_of(words, env, _text(values.get("image")))
        replicas, gpus = _count(count, f"services.{name}"), _compose_gpus(deploy)
        found += [_with(one, count=replicas, devices=gpus) for one in started if replicas]
    if not found:
        raise InputError(
            "no service of the compose file starts an engine that we know",
            hint="--current 'vllm serve MODEL ...', as a launch line",
        )
    return found


def _flat(docs: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    for doc in docs:
        if (
            isinstance(doc, dict)
            and isinstance(doc.get("items"), list)
            and str(doc.get("kind", "")).endswith("List")
        ):
            yield from (item for item in doc["items"] if isinstance(item, dict))
        elif isinstance(doc, dict):
            yield doc


def _config_files(docs: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The files of the ConfigMaps, by name: launch lines refer to them."""
    maps = [_mapping(doc.get("data")) for doc in docs if doc.get("kind") == "ConfigMap"]
    return {str(k): v for data in maps for k, v in data.items() if isinstance(v, str)}


def _pods(doc: Mapping[str, Any]) -> list[Pod]:
    kind, spec = doc.get("kind"), _mapping(doc.get("spec"))
    name = str(_mapping(doc.get("metadata")).get("name", kind))[:64]
    count = _count(spec.get("replicas", 1), f"{kind} {name}: replicas")
    if kind == "Pod":
        return [Pod(name, 1, spec)]
    if kind == "LeaderWorkerSet":
        group = _mapping(spec.get("leaderWorkerTemplate"))
        template = _mapping(group.get("leaderTemplate") or group.get("workerTemplate"))
        size = _count(group.get("size", 1), f"{kind} {name}: size")
        return [Pod(name, count, _mapping(template.get("spec")), size)]
    if kind == "DynamoGraphDeployment":
        return [
            Pod(
                str(part.get("name"))[:64],
                _count(part.get("replicas", 1), f"{kind} {name}"),
                _mapping(_mapping(part.get("podTemplate")).get("spec")),
            )
            for part in _mappings(spec.get("components"))
        ]
    if kind in ("Deployment", "StatefulSet", "ReplicaSet", "Job"):
        return [Pod(name, count, _mapping(_mapping(spec.get("template")).get("spec")))]
    return []


def _of_pod(pod: Pod, files: Mapping[str, str]) -> list[Launch]:
    if pod.count == 0:
        return []
    for container in _mappings(pod.spec.get("containers")):
        env = _variables(container.get("env"))
        words = [*_words(container.get("command")), *_words(container.get("args"))]
        words = [expand(word, env) for word in words]
        found = launches_of(words, env, _text(container.get("image")))
        if found:
            limits = _mapping(_mapping(container.get("resources")).get("limits"))
            gpus = str(limits.get(_GPU))
            devices = int(gpus) * pod.size if re.fullmatch(r"[0-9]{1,4}", gpus) else None
            return [_with(one, count=pod.count, devices=devices, files=files) for one in found]
    return []


def _with(one: Launch, *, count: int, devices: int | None, files: Mapping[str, str] | None = None) -> Launch:
    merged = {**(files or {}), **one.files}
    return Launch(one.program, one.words, one.env, one.version, devices or one.devices, count, merged)


def _images(pod: Pod) -> list[str]:
    return [str(container.get("image"))[:80] for container in _mappings(pod.spec.get("containers"))[:4]]


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _mappings(value: Any) -> list[dict[str, Any]]:
    return [_mapping(item) for item in value] if isinstance(value, list) else []


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _words(value: Any) -> list[str]:
    """A command as a list: YAML gives lists (numbers in them too) or, in compose files, one text."""
    if isinstance(value, str):
        commands = split(value).commands
        return list(commands[0].words) if commands else []
    if not isinstance(value, list):
        return []
    return [str(word).lower() if isinstance(word, bool) else str(word) for word in value]


def _variables(value: Any) -> dict[str, str]:
    """Plain variables of both forms, a list or a mapping; those that come from elsewhere are left out."""
    pairs: dict[str, str] = {}
    if isinstance(value, dict):
        pairs = {str(k): str(v) for k, v in value.items() if v is not None}
    for item in value if isinstance(value, list) else []:
        if isinstance(item, dict) and "name" in item and "value" in item:
            pairs[str(item["name"])] = str(item["value"])
        elif isinstance(item, str) and "=" in item:
            name, _, setting = item.partition("=")
            pairs[name] = setting
    return keep(pairs)


def _count(value: Any, where: str) -> int:
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,6}", value):
        return int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 10**6:
        raise InputError("the number of replicas is not a count", where=where[:120], hint="write plain digits")
    return value


def _compose_gpus(deploy: Mapping[str, Any]) -> int | None:
    reserved = _mapping(_mapping(deploy.get("resources")).get("reservations"))
    for device in _mappings(reserved.get("devices")):
        count, ids = device.get("count"), device.get("device_ids")
        if isinstance(count, int) and not isinstance(count, bool) and count > 0:
            return count
        if isinstance(ids, list) and ids:
            return len(ids)
    return None
