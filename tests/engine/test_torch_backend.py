"""Which devices an instance gets, how much KV they hold, and what `--load dummy` needs."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from helpers.tiny_model import LLAMA

from benchmarks.gpu import LLAMA_8B
from engine import devices
from engine.config import EngineConfig, PoolConfig
from engine.devices import Gpu, cores_of_instance, cores_of_rank
from engine.errors import InputError, MachineError
from engine.server import backend
from engine.server.backend import Backend, kv_size, load_torch, serving_gpus
from engine.server.codec import load_codec
from engine.server.messages import Start
from engine.shape import ModelShape

H100 = Gpu("NVIDIA H100 80GB HBM3", (9, 0), 80_000_000_000)
SHAPE = ModelShape.from_config(LLAMA)


def test_a_gpu_serves_where_there_is_one() -> None:
    assert serving_gpus(PoolConfig(), [H100, H100]) == (H100,)
    assert serving_gpus(PoolConfig(tp=2, devices_per_instance=2), [H100, H100]) == (H100, H100)
    assert serving_gpus(PoolConfig(), []) == ()


def test_a_plan_for_cores_is_served_on_cores_beside_a_gpu() -> None:
    assert serving_gpus(PoolConfig(devices_per_instance=16), [H100]) == ()
    assert serving_gpus(PoolConfig(tp=2, devices_per_instance=16), [H100, H100]) == ()


def test_too_few_gpus_are_refused() -> None:
    with pytest.raises(MachineError, match="an instance of 2 GPUs does not fit") as caught:
        serving_gpus(PoolConfig(tp=2, devices_per_instance=2), [H100])
    assert caught.value.why == "this machine has 1"


@pytest.mark.parametrize(
    ("capability", "dtype"),
    [((7, 5), "float16"), ((8, 0), "bfloat16"), ((8, 9), "bfloat16"), ((9, 0), "bfloat16")],
)
def test_auto_is_what_a_gpu_multiplies_fast(capability: tuple[int, int], dtype: str) -> None:
    """bfloat16 came to tensor cores with Ampere, compute capability 8.0."""
    assert Gpu("", capability, 0).dtype == dtype


def test_a_gpus_kv_is_nine_tenths_of_what_is_free_less_the_model() -> None:
    """Llama 3 8B: 16.06 GB of weights, 131,072 bytes of KV a token; 72 - 16.06 GB would be 426,800 tokens."""
    shape = ModelShape.from_config(LLAMA_8B)
    planned, blocks = kv_size(shape, PoolConfig(cuda_graphs=False), [H100], 2, 8)
    assert planned == (blocks - 1) * 16
    assert 0.99 * 426_800 < planned < 426_800
    graphs, _ = kv_size(shape, PoolConfig(), [H100], 2, 8)
    assert planned - 500 < graphs < planned
    used = Gpu(H100.name, H100.capability, H100.free_bytes // 2)
    less, _ = kv_size(shape, PoolConfig(tp=2, devices_per_instance=2), [H100, used], 2, 8)
    assert 0.97 * (36e9 - 8.03e9) / 65_536 < less < (36e9 - 8.03e9) / 65_536  # the fuller GPU decides


def test_ranks_on_cores_share_the_memory_of_their_instance(monkeypatch: pytest.MonkeyPatch) -> None:
    """2 layers x 2 KV heads x 16 x 2 x 2 bytes = 256 bytes a token; a quarter of 4 MiB on both of 2 cores."""
    monkeypatch.setattr(backend, "usable_memory", lambda: 2**22)
    for tp in (1, 2):
        planned, blocks = kv_size(SHAPE, PoolConfig(tp=tp, devices_per_instance=2), [], 2, 2)
        assert blocks == 2**20 // 256 // 16
        assert planned == (blocks - 1) * 16


def test_cores_are_dealt_out_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda _pid: {9, 3, 4, 7}, raising=False)
    assert [cores_of_rank(rank, 2, 2) for rank in (0, 1)] == [(3, 4), (7, 9)]
    assert cores_of_rank(0, 5) == ()
    assert cores_of_rank(0, 2, 3) == ()
    monkeypatch.delattr(devices.os, "sched_getaffinity")
    assert cores_of_rank(0, 1) == ()


def test_instances_follow_each_other_on_the_cores_and_share_them_where_there_are_too_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices.os, "sched_getaffinity", lambda _pid: {9, 3, 4, 7}, raising=False)
    assert [cores_of_instance(first, 1) for first in range(5)] == [(3,), (4,), (7,), (9,), (3,)]
    assert cores_of_instance(2, 4) == (7, 9, 3, 4)
    assert cores_of_instance(1, 6) == (4, 7, 9, 3)
    monkeypatch.delattr(devices.os, "sched_getaffinity")
    assert cores_of_instance(0, 1) == ()


def load(folder: Path, *, dummy: bool = False, oversubscribe: bool = True, **pool: object) -> Backend:
    """The only instance of a pool, as it is told to start."""
    values = {"pools": [{"kv_tokens": 256, **pool}], "model": {"name": "tiny", "path": str(folder)}}
    config = EngineConfig.model_validate(values)
    start = Start(
        config=values,
        pool=0,
        index=0,
        name="colocated-0",
        epoch=1,
        dtype="float32",
        transport=None,
        first_device=0,
        folder="",
        secret="",
        dummy=dummy,
        oversubscribe=oversubscribe,
    )
    cores = os.sched_getaffinity(0)
    try:
        return load_torch(start, config, lambda _dtype: None)
    finally:
        os.sched_setaffinity(0, cores)  # an instance pins itself; this process goes on


def test_a_dummy_needs_a_config_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(InputError, match="not a usable model folder"):
        load(tmp_path)
    loaded = load(tmp_path, dummy=True)
    assert (loaded.device, loaded.devices, loaded.tp, loaded.note) == ("cpu", ("cpu:0",), 1, None)
    assert (loaded.vocab_size, loaded.pages) == (256, None)
    loaded.close()
    config = EngineConfig.model_validate({"model": {"name": "tiny", "path": str(tmp_path)}})
    codec = load_codec(config, dummy=True, emulated=False)
    with pytest.raises(InputError, match="no tokenizer"):
        codec.encode("text")
    assert codec.decode([5, 6]) == "5 6 "


def test_heads_that_do_not_divide_are_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    with pytest.raises(InputError, match="cannot split this model"):
        load(tmp_path, dummy=True, tp=4, devices_per_instance=4)


def test_instances_that_do_not_fit_on_the_cores_are_refused_with_the_arithmetic(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    monkeypatch.setattr(backend, "usable_cores", lambda: 2)
    with pytest.raises(MachineError, match="do not fit") as caught:
        load(tmp_path, dummy=True, oversubscribe=False, count=3)
    assert caught.value.why == "3 cores are needed (3 colocated x 1), this machine has 2"
