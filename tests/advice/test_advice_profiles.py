"""The shipped profiles: equal to the facts they come from, and found by every name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from advisor.advice import profiles
from engine.errors import InputError


def test_gpus_are_the_facts(shared: Path) -> None:
    content = json.loads((shared / "facts" / "gpus.json").read_text())
    facts = {row["id"]: row for row in content["accelerators"]}
    assert len(profiles.gpus()) > 20
    for gpu in profiles.gpus():
        fact = facts[gpu.id]
        assert gpu.memory_gb == fact["memory_gb"]
        assert gpu.mem_bw_gbs == fact["mem_bw_gbs"]
        assert gpu.bf16_tflops == fact["dense_tflops"]["bf16"]
        assert gpu.fp8_tflops == fact["dense_tflops"].get("fp8")
        assert gpu.link.gbs_per_dir == fact["link"]["gbs_per_dir"]
        # What the facts mark as unverified is marked here too.
        assert ("link" in gpu.unverified) == ("link" in fact["unverified"])
        assert ("bf16_tflops" in gpu.unverified) == ("dense_tflops" in fact["unverified"])
        assert not {"memory_gb", "mem_bw_gbs"} & set(fact["unverified"])


def test_models_are_the_facts(shared: Path) -> None:
    facts = {row["id"]: row for row in json.loads((shared / "facts" / "models.json").read_text())["models"]}
    facts["smollm2-135m-instruct"] = facts["smollm2-135m"]
    names = (
        "layers",
        "hidden",
        "heads",
        "kv_heads",
        "head_dim",
        "ffn",
        "vocab",
        "tied_embeddings",
        "qk_norm",
        "qkv_bias",
    )
    for model in profiles.models():
        fact = facts[model.id]
        assert {n: getattr(model, n) for n in names} == {n: fact[n] for n in names}
        assert model.max_len == fact["max_context"]
        assert model.parameters == fact["params_total"]
        assert ("tied_embeddings" in model.unverified) == ("tied_embeddings" in fact["unverified"])


@pytest.mark.parametrize("model", [m for m in profiles.models() if m.gated_mlp], ids=lambda m: m.id)
def test_the_engines_arithmetic_gives_the_published_parameters(model: profiles.ModelProfile) -> None:
    assert model.shape.parameters == model.parameters


def test_presets_are_the_facts(shared: Path) -> None:
    content = json.loads((shared / "facts" / "slos.json").read_text())
    facts = {row["id"]: row for row in content["suggested_presets"]}
    for preset in profiles.slos():
        if preset.id == "here":
            continue
        fact = facts.pop(preset.id)
        assert (preset.ttft_s, preset.tpot_s) == tuple(
            None if fact[k] is None else fact[k] / 1e3 for k in ("ttft_ms", "itl_ms")
        )
        assert preset.attainment == (0.90 if fact["percentile"] is None else fact["percentile"] / 100)
    assert not facts


def test_the_preset_of_this_machine() -> None:
    # Design, section 3: `--slo here`, ours: TTFT 3 s, TPOT 150 ms, 0.90.
    here = profiles.slo("here")
    assert (here.ttft_s, here.tpot_s, here.attainment, here.ours) == (3.0, 0.15, 0.90, True)


def test_every_source_is_explained() -> None:
    for kind, rows in (("gpus", profiles.gpus()), ("models", profiles.models())):
        keys = profiles._read(kind)["sources"]
        for row in rows:
            used = row.sources.values() if isinstance(row.sources, dict) else [row.sources]
            assert {source for names in used for source in names} <= set(keys)
    assert {p.source for p in profiles.step_times()} <= set(profiles._read("step_times")["sources"])


def test_step_times_name_known_gpus_and_models() -> None:
    for entry in profiles.step_times():
        assert profiles.gpu(entry.gpu).id == entry.gpu
        assert profiles.model(entry.model).id == entry.model


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("h100-sxm", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),  # the driver's name
        ("H100", "h100-sxm"),
        ("AMD Instinct MI300X", "mi300x"),
        ("nvidia a100-sxm4-80gb", "a100-sxm-80g"),
    ],
)
def test_gpus_by_alias(name: str, expected: str) -> None:
    assert profiles.gpu(name).id == expected


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("meta-llama/Llama-3.1-8B", "llama-3.1-8b"),
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "smollm2-135m-instruct"),
        ("smollm2-135m", "smollm2-135m-instruct"),
    ],
)
def test_models_by_alias(name: str, expected: str) -> None:
    assert profiles.model(name).id == expected


def test_an_unknown_name_lists_the_nearest_three() -> None:
    with pytest.raises(InputError, match="unknown GPU 'h100-smx'") as caught:
        profiles.gpu("h100-smx")
    assert caught.value.why == "the nearest are h100-sxm, h800-sxm, h200-sxm"
    assert caught.value.hint == "advise analyze LOG --gpu h100-sxm"


def test_a_config_json_is_a_model(tmp_path: Path) -> None:
    config = {
        "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 3,
        "intermediate_size": 128, "vocab_size": 100, "max_position_embeddings": 256,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    for path in (tmp_path, tmp_path / "config.json"):
        shape = profiles.model_shape("mine", str(path))
        assert (shape.layers, shape.kv_heads, shape.head_dim, shape.max_len) == (3, 2, 16, 256)
    with pytest.raises(InputError, match=r"config\.json cannot be read"):
        profiles.model_shape("mine", str(tmp_path / "other.json"))


def test_models_without_a_gate_are_refused() -> None:
    # OPT is in the profiles for its published step times; the engine's arithmetic is of gated MLPs.
    with pytest.raises(InputError, match="opt-13b cannot be planned for"):
        profiles.model_shape("opt-13b")
