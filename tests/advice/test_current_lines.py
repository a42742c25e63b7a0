"""`--current` on launch lines: forms that the stacks' documents and public scripts use, facts of exports.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from advisor.advice.current import Around, Current, read_current
from engine.config import PoolConfig
from engine.errors import InputError

H100 = Around(gpu="h100-sxm", gpu_memory_gb=80)


def pool(text: str, around: Around = H100) -> PoolConfig:
    current = read_current(text, around)
    assert len(current.pools) == 1
    return current.pools[0]


def said(current: Current) -> dict[str, object]:
    return {one.setting: one.value for one in current.read}


def test_vllm_serve_gives_pool_model_and_lengths() -> None:
    current = read_current(
        "vllm serve meta-llama/Llama-3.1-70B-Instruct --tensor-parallel-size 4 --pipeline_parallel_size 2 "
        "--max-model-len 16k --max-num-batched-tokens=4096 --max-num-seqs 128 --block-size 32 "
        "--kv-cache-dtype fp8 "
        "--gpu-memory-utilization 0.85 --dtype half --trust-remote-code --port 8080",
        H100,
    )
    one = current.pools[0]
    assert (current.stack, current.model) == ("vllm", "meta-llama/Llama-3.1-70B-Instruct")
    assert (one.tp, one.pp, one.token_budget, one.max_seqs, one.block_size) == (4, 2, 4096, 128, 32)
    assert (current.max_len, current.kv_dtype, current.dtype) == (16_000, "fp8", "float16")
    assert (current.memory_fraction, current.gpus) == (0.85, 8)
    assert current.ignored == ("--trust-remote-code", "--port")
    assert not current.unknown
    assert "token_budget" not in {one.setting for one in current.assumed}


@pytest.mark.parametrize(("text", "tokens"), [("8k", 8000), ("8K", 8192), ("16384", 16384), ("25.6k", 25_600)])
def test_vllm_sizes_are_decimal_in_small_letters_and_binary_in_large(text: str, tokens: int) -> None:
    assert read_current(f"vllm serve m --max-model-len {text}").max_len == tokens


def test_sglang_refuses_a_chunk_that_is_no_plain_integer() -> None:
    with pytest.raises(InputError, match=r"--chunked-prefill-size.*whole number") as error:
        read_current("sglang serve --model-path m --chunked-prefill-size 8k")
    assert error.value.hint == "write plain digits"


@pytest.mark.parametrize(
    "line",
    [
        "python -m vllm.entrypoints.openai.api_server --model m/m -tp 2",
        "CUDA_VISIBLE_DEVICES=0,1 VLLM_LOGGING_LEVEL=INFO vllm serve m/m --tensor_parallel_size=2",
        "nohup vllm serve m/m \\\n  --tensor-parallel-size 2 \\\n  > serve.log 2>&1 &",
        "export TP=2\nvllm serve m/m --tensor-parallel-size $TP  # two of them",
        "set -x\nsource env.sh && vllm serve --tensor-parallel-size ${TP:-2} m/m",
        "docker run --runtime nvidia --gpus all -v ~/.cache:/root/.cache -p 8000:8000 --ipc=host "
        "vllm/vllm-openai:latest --model m/m --tensor-parallel-size 2",
        "sudo docker run -itd --rm --entrypoint bash vllm/vllm-openai -c 'vllm serve m/m -tp=2 | tee log'",
        'podman run --gpus "device=0,1" -eHF_HOME=/x img bash -lc "exec vllm serve m/m --tensor-parallel 2"',
    ],
)
def test_the_same_vllm_launch_is_read_in_every_wrapping(line: str) -> None:
    current = read_current(line)
    assert (current.stack, current.model, current.pools[0].tp) == ("vllm", "m/m", 2)
    assert not current.unknown


def test_a_command_with_json_in_it_is_not_taken_for_yaml() -> None:
    line = (
        "uv run --with vllm vllm serve Qwen/Qwen3-8B --enable-auto-tool-choice -O3 --compilation-config "
        '\'{"level": 3}\' --speculative-config \'{"method": "eagle3", "model": "x"}\''
    )
    current = read_current(line)
    assert (current.model, current.other) == ("Qwen/Qwen3-8B", {"speculative": "eagle3"})
    assert not current.unknown


def test_a_model_that_is_a_variable_is_not_a_model() -> None:
    current = read_current("text-generation-launcher --model-id $MODEL --sharded false")
    assert (current.model, current.pools[0].tp) == (None, 1)
    assert any("--model" in note for note in current.notes)


def test_the_first_engine_can_be_asked_for_by_a_variable() -> None:
    line = "docker run -e VLLM_USE_V1=0 vllm/vllm-openai:v0.8.5 --model m"
    assert pool(line).batching == "prefill_first"
    assert pool(line.replace("=0", "=1")).batching == "chunked"


def test_a_version_is_taken_from_the_image_or_the_install() -> None:
    assert read_current("docker run vllm/vllm-openai:v0.11.0 --model m").version == "0.11.0"
    assert read_current("pip install vllm==0.20.2 && vllm serve m").version == "0.20.2"


def test_vllm_switches_turn_off_with_no_and_refuse_a_value() -> None:
    assert not pool("vllm serve m --no-enable-prefix-caching").prefix_cache
    assert not pool("vllm serve m --disable-prefix-caching").prefix_cache
    with pytest.raises(InputError, match="enable-prefix-caching false") as error:
        read_current("vllm serve m --enable-prefix-caching false")
    assert error.value.hint == "write --no-enable-prefix-caching"


def test_vllm_roles_of_a_split_come_from_the_kv_role() -> None:
    text = (
        'vllm serve m --max-num-batched-tokens 8192 --kv-transfer-config \'{"kv_connector":"NixlConnector",'
        '"kv_role":"kv_producer"}\' &\n'
        "vllm serve m --max-num-seqs 256 --kv-transfer-config.kv_role kv_consumer &\n"
        "vllm-router --vllm-pd-disaggregation --prefill http://p0:8100 --prefill http://p1:8100 "
        "--decode http://d0:8200 --policy cache_aware --decode-policy power_of_two"
    )
    current = read_current(text, H100)
    roles = {one.role: (one.count, one.token_budget, one.max_seqs) for one in current.pools}
    assert roles == {"prefill": (2, 8192, 1024), "decode": (1, 8192, 256)}
    assert current.router.policy == "prefix_affinity"


def test_vllm_removed_flags_and_keys_are_said() -> None:
    text = (
        "vllm serve m --swap-space 4 --num-scheduler-steps 8 --kv-transfer-config "
        '\'{"kv_connector":"P2pNcclConnector","kv_role":"kv_both","kv_rank":0}\''
    )
    notes = " ".join(read_current(text).notes)
    for part in ("--swap-space was last in vLLM 0.17.1", "--num-scheduler-steps was last in vLLM 0.9.2"):
        assert part in notes
    assert "kv_rank of kv_transfer_config: removed in vLLM 0.32" in notes
    assert "P2pNcclConnector is gone from vLLM 0.24" in notes
    older = " ".join(read_current(text, Around(version="0.9.2")).notes)
    assert "swap-space" not in older
    assert "0.24" not in older


def test_data_parallel_ranks_are_instances_behind_the_least_loaded_choice() -> None:
    current = read_current("vllm serve m -dp 4 -tp 2")
    assert (current.pools[0].count, current.pools[0].tp, current.gpus) == (4, 2, 8)
    assert current.router.policy == "least_loaded"


def test_equal_launches_add_up() -> None:
    text = (
        "CUDA_VISIBLE_DEVICES=0 vllm serve m --port 8000 &\nCUDA_VISIBLE_DEVICES=1 vllm serve m --port 8001 &\n"
    )
    assert pool(text).count == 2


def test_sglang_without_mixed_chunk_stalls_decodes_and_with_it_does_not() -> None:
    line = "python3 -m sglang.launch_server --model-path q/q --tp 8 --chunked-prefill-size 4096"
    assert (pool(line).batching, pool(line).token_budget, pool(line).tp) == ("prefill_first", 4096, 8)
    assert pool(line + " --enable-mixed-chunk").batching == "chunked"
    off = pool(line.replace("4096", "-1"))
    assert (off.batching, off.token_budget) == ("prefill_first", 16_384)


def test_sglang_queue_and_cache() -> None:
    line = "sglang serve --model-path m --schedule-policy lpm"
    assert pool(line).queue_policy == "prefix_first"
    without = pool(line + " --disable-radix-cache")
    assert (without.queue_policy, without.prefix_cache) == ("fcfs", False)
    decode = "sglang serve --model-path m --disaggregation-mode decode"
    assert (pool(decode).role, pool(decode).prefix_cache) == ("decode", False)
    assert pool(decode + " --disaggregation-decode-enable-radix-cache").prefix_cache


def test_sglang_data_parallel_attention_stays_one_instance() -> None:
    line = "python -m sglang.launch_server --model d --tp-size 8 --dp-size 8 --chunked-prefill-size 8192"
    assert pool(line).count == 8
    inside = pool(line + " --enable-dp-attention")
    assert (inside.count, inside.tp, inside.token_budget) == (1, 8, 1024)


def test_smg_counts_the_instances_of_a_split() -> None:
    text = (
        "sglang serve --model-path m --disaggregation-mode prefill &\n"
        "sglang serve --model-path m --disaggregation-mode decode --port 30002 &\n"
        "smg launch --pd-disaggregation --prefill http://p0:30001 8998 --prefill http://p1:30001 8998 "
        "--decode http://d0:30002 --policy power_of_two"
    )
    current = read_current(text)
    assert {one.role: one.count for one in current.pools} == {"prefill": 2, "decode": 1}
    assert current.router.policy == "least_loaded"


def test_trtllm_yaml_beats_the_command_line() -> None:
    text = (
        "cat > /tmp/extra.yml <<EOF\n"
        "max_batch_size: 64\nenable_chunked_prefill: true\n"
        "kv_cache_config:\n  dtype: fp8\n  free_gpu_memory_fraction: 0.8\n  enable_block_reuse: false\n"
        "EOF\n"
        "trtllm-serve deepseek-ai/DeepSeek-R1 --tp_size 8 --ep_size 8 --pp_size 1 --max_batch_size 1024 "
        "--max_num_tokens 4096 --extra_llm_api_options /tmp/extra.yml --reasoning_parser deepseek-r1"
    )
    current = read_current(text)
    one = current.pools[0]
    assert (current.stack, current.model) == ("trtllm", "deepseek-ai/DeepSeek-R1")
    assert (one.max_seqs, one.token_budget, one.tp, one.prefix_cache) == (64, 4096, 8, False)
    assert (current.kv_dtype, current.memory_fraction) == ("fp8", 0.8)
    assert said(current)["chunked"] is True


def test_vllm_command_line_beats_its_yaml(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("model: m/m\nmax-num-seqs: 64\nmax_num_batched_tokens: 4096\n")
    (tmp_path / "run.sh").write_text("#!/bin/bash\nvllm serve --config c.yaml --max-num-seqs 32\n")
    current = read_current(str(tmp_path / "run.sh"))
    assert (current.model, current.pools[0].max_seqs, current.pools[0].token_budget) == ("m/m", 32, 4096)


def test_a_config_file_that_is_not_here_is_said() -> None:
    notes = read_current("vllm serve --config /etc/none/serve.yaml").notes
    assert any("is not here" in note for note in notes)


def test_tgi_flags_beat_variables_and_caching_is_a_variable() -> None:
    line = (
        "PREFIX_CACHING=0 PREFILL_CHUNKING=1 ATTENTION=flashinfer MAX_CONCURRENT_REQUESTS=64 "
        "text-generation-launcher --model-id /models/m --num-shard 2 --max-input-tokens 15360 "
        "--max-total-tokens 16384 --max-batch-prefill-tokens 2048 --max-concurrent-requests 256 "
        "--cuda-memory-fraction 0.9 --port 3000"
    )
    current = read_current(line)
    one = current.pools[0]
    assert (current.stack, current.model, one.tp) == ("tgi", "/models/m", 2)
    assert (one.token_budget, one.max_seqs, one.prefix_cache) == (2048, 256, False)
    assert (current.max_len, current.memory_fraction) == (16_384, 0.9)


def test_tgi_image_with_flags_alone_takes_every_gpu_it_is_given() -> None:
    line = (
        "docker run --gpus 4 --shm-size 1g -e HF_TOKEN=hf_no -p 8080:80 "
        "ghcr.io/huggingface/text-generation-inference:3.3.4 --model-id m --max-input-length 1024"
    )
    current = read_current(line)
    assert (current.version, current.pools[0].tp, current.pools[0].token_budget) == ("3.3.4", 4, 1074)
    assert not pool(line.replace("3.3.4", "2.0.4")).prefix_cache


def test_mii_serve_is_read_from_python_text() -> None:
    text = (
        "import mii\n"
        "client = mii.serve('/models/m', tensor_parallel=2, replica_num=3, max_length=16384,\n"
        "  inference_engine_config={'state_manager': {'max_ragged_batch_size': 2048,\n"
        "  'max_ragged_sequence_count': 256, 'max_context': 16384}})\n"
    )
    current = read_current(text)
    one = current.pools[0]
    assert (current.stack, current.model, current.max_len) == ("mii", "/models/m", 16_384)
    assert (one.count, one.tp, one.token_budget, one.max_seqs, one.block_size) == (3, 2, 2048, 256, 128)
    assert not one.prefix_cache


def test_mii_server_module() -> None:
    line = "python -m mii.entrypoints.openai_api_server --tensor-parallel 4 --model m --port 8000"
    assert (read_current(line).stack, pool(line).tp) == ("mii", 4)


def test_unknown_flags_are_said_with_the_nearest_names_and_without_values() -> None:
    current = read_current("vllm serve m --max-num-seq 3 --max-nums-seqs 4 --private-thing hush")
    assert current.pools[0].max_seqs == 3  # a beginning that one flag has
    flags = {one.flag: one.nearest for one in current.unknown}
    assert "--max-num-seqs" in flags["--max-nums-seqs"]
    assert flags["--private-thing"] == ()
    assert "hush" not in repr(current)


@pytest.mark.parametrize(
    ("line", "match"),
    [
        ("vllm serve m --max-num-seqs", "--max-num-seqs has no value"),
        ("vllm serve m --max-num-seqs many", "'many' is not a whole number"),
        ("vllm serve m --max-num-seqs 0", "too small"),
        ("vllm serve m --gpu-memory-utilization 90", "too large"),
        ("vllm serve m --gpu-memory-utilization 1e400", "not a number"),
        ("vllm serve m --kv-transfer-config {oops", "not JSON"),
        ("vllm serve 'm --max-num-seqs 4", "cannot be split"),
        ("echo hello", "no engine is started"),
        ("ls missing.yaml.sh extra", "no engine is started"),
        ("missing.yaml", "no such file"),
        ("", "nothing to read"),
        ("vllm serve a &\nsglang serve --model-path a", "SGLang and vLLM"),
        ("vllm serve a &\nvllm serve b", "several models"),
        ("smg launch --policy round_robin", "only a router"),
        ("vllm serve m -tp $TP", "not a whole number"),
    ],
)
def test_what_cannot_be_read_is_an_input_error(line: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        read_current(line)


def test_no_secret_survives_in_result_or_error() -> None:
    secrets = ("sk-live-1234567890abcdef", "hf_AbCdEf0123456789")
    line = (
        f"HF_TOKEN={secrets[1]} OPENAI_API_KEY={secrets[0]} vllm serve m --api-key {secrets[0]} "
        f"--hf-token={secrets[1]} --made-up {secrets[0]} --max-num-seqs 8"
    )
    assert not any(secret in repr(read_current(line)) for secret in secrets)
    for broken in (f"{line} --max-num-seqs {secrets[0]}", f"{line} '", f"{line} -tp={secrets[1]}"):
        with pytest.raises(InputError) as error:
            read_current(broken)
        texts = (error.value.message, error.value.where, error.value.why, error.value.hint)
        assert not any(secret in str(text) for text in texts for secret in secrets)


def test_nothing_is_executed(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    with pytest.raises(InputError):
        read_current(f"vllm serve m -tp $(touch {mark}; echo 2) `touch {mark}`")
    assert not mark.exists()
