"""The shipped profiles: equal to the facts they come from, and found by every name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from advisor.advice import profiles
from advisor.advice.steps import weight_bytes
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
        assert gpu.fp4_tflops == fact["dense_tflops"].get("fp4")
        assert gpu.link.gbs_per_dir == fact["link"]["gbs_per_dir"]
        # What the facts mark as unverified is marked here too.
        assert ("link" in gpu.unverified) == ("link" in fact["unverified"])
        assert ("bf16_tflops" in gpu.unverified) == ("dense_tflops" in fact["unverified"])
        assert not {"memory_gb", "mem_bw_gbs"} & set(fact["unverified"])


def model_facts(shared: Path) -> dict[str, dict[str, Any]]:
    """Facts by the ids of our profiles."""
    facts = {row["id"]: row for row in json.loads((shared / "facts" / "models.json").read_text())["models"]}
    facts["smollm2-135m-instruct"] = facts.pop("smollm2-135m")
    return facts


def test_models_are_the_facts(shared: Path) -> None:
    facts = model_facts(shared)
    names = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab", "tied_embeddings")
    names += ("qk_norm", "qkv_bias", "gated_mlp")
    for model in profiles.models():
        fact = facts.pop(model.id)
        assert {n: getattr(model, n) for n in names} == {n: fact[n] for n in names}
        assert model.max_len == fact["max_context"]
        assert model.parameters == fact["params_total"]
        window = fact.get("window")
        found = (model.window.size, model.window.layers) if model.window else None
        assert found == ((window["size"], window["layers"]) if window else None)
        not_ours = {"license", "params_published"}
        assert set(fact["unverified"]) - not_ours == set(model.unverified) - {"quantised_bytes"}
    assert not facts


def test_sizes_give_the_facts_totals_and_kv(shared: Path) -> None:
    for model_id, fact in model_facts(shared).items():
        shape = profiles.model(model_id).shape
        # The facts leave out the norms inside latent attention, and gpt-oss's sinks and output bias.
        slack = 4e-6 if shape.latent or model_id.startswith("gpt-oss") else 0
        assert shape.parameters == pytest.approx(fact["params_total"], rel=slack, abs=0), model_id
        # Of active weights they are a larger part.
        active = pytest.approx(fact["params_active"], rel=5 * slack, abs=0)
        assert shape.active_parameters == active, model_id
        assert shape.kv_bytes_per_token() == fact["kv_bytes_per_token_bf16"], model_id
        assert shape.weight_bytes() == 2 * shape.parameters


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


def test_a_quantised_checkpoint_is_read_in_its_own_bytes() -> None:
    shape = profiles.model("deepseek-v3").shape
    assert (weight_bytes("auto", shape), weight_bytes("bfloat16", shape)) == (1.0, 2.0)
    assert weight_bytes("auto", profiles.model("llama-3.1-8b").shape) == 2.0


def test_prices_are_the_facts(shared: Path) -> None:
    content = json.loads((shared / "facts" / "hosted.json").read_text())
    facts = {(row["provider"], row["model"]): row for row in content["models"]}
    hosted = profiles.hosted()
    assert hosted.as_of == content["as_of"]
    names = ("input", "cached_input", "cache_write", "cache_write_1h", "cache_write_12h", "output")
    for price in hosted.prices:
        fact = facts.pop((price.provider, price.model))
        assert {n: getattr(price, n) for n in names} == {n: fact.get(n) for n in names}
        assert (price.context, price.min_cache_tokens) == (fact.get("context"), fact.get("min_cache_tokens"))
        assert price.sources_agree == fact.get("agree")
        assert len(price.input_above) == len(fact.get("input_tiers", ()))
        assert set(price.sources) <= set(hosted.sources)
    assert not facts


def test_gpus_rent_for_what_a_dated_source_says() -> None:
    # Median over 37 providers in May 2026; the middle of the specialty clouds; a package's catalogue.
    prices = {name: profiles.gpu_rental(name) for name in ("h100-sxm", "h200-sxm", "b200-sxm", "h20")}
    assert {name: price and price.usd_per_hour for name, price in prices.items()} == {
        "h100-sxm": 2.95,
        "h200-sxm": 4.0,
        "b200-sxm": 7.25,
        "h20": None,
    }
    for row in profiles.hosted().gpu_rental:
        assert profiles.gpu(row.gpu).id == row.gpu
        assert row.low <= row.usd_per_hour <= row.high


def test_roofline_constants_are_shares_of_a_peak() -> None:
    sources = profiles._read("roofline")["sources"]
    for family in profiles.rooflines():
        constants = family.constants._asdict()
        shares = [constants[name] for name in ("compute", "weights", "kv", "attention", "link", "pcie")]
        assert all(0 < share <= 1 for share in shares)
        for error in family.errors:
            assert set(error.sources) <= set(sources)
            assert (error.rows > 0) == (error.p50 is not None)
