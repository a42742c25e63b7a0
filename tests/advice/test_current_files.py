"""`--current` on config files, Kubernetes manifests and compose files, in the forms of exports.md section 2."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from advisor.advice.current import Around, Current, read_current
from engine.config import EngineConfig, PoolConfig
from engine.config_file import config_text
from engine.errors import InputError

H100 = Around(gpu="h100-sxm", gpu_memory_gb=80)


def from_stdin(text: str, around: Around = H100) -> Current:
    return read_current("-", around, stdin=io.StringIO(text))


def roles(current: Current) -> dict[str, tuple[int, int]]:
    return {one.role: (one.count, one.tp) for one in current.pools}


def test_vllm_config_file() -> None:
    current = from_stdin(
        "model: /models/my-model\nport: 8000\ntensor-parallel-size: 1\nmax-model-len: 16384\n"
        "gpu-memory-utilization: 0.9\nmax-num-batched-tokens: 2048\nmax-num-seqs: 128\n"
        "enable-prefix-caching: true\nenable-chunked-prefill: true\nscheduling-policy: fcfs\n"
        "kv-cache-dtype: auto\nlong-prefill-token-threshold: 1024\nmax-num-queued-tokens: 60000\n"
    )
    one = current.pools[0]
    assert (current.stack, current.model, current.max_len) == ("vllm", "/models/my-model", 16_384)
    assert (one.token_budget, one.max_seqs, one.batching) == (2048, 128, "chunked")
    assert current.other == {"long_prefill_threshold": 1024, "max_queued_tokens": 60_000}
    assert not current.unknown


def test_vllm_ignores_a_false_switch_in_yaml() -> None:
    current = from_stdin("model: m\nmax-num-seqs: 8\nenable-prefix-caching: false\n")
    assert current.pools[0].prefix_cache
    assert any("no-enable-prefix-caching: true turns it off" in note for note in current.notes)
    assert not from_stdin("model: m\nmax-num-seqs: 8\nno-enable-prefix-caching: true\n").pools[0].prefix_cache


def test_vllm_kv_transfer_in_yaml_is_a_mapping() -> None:
    current = from_stdin(
        "model: m\nmax-num-seqs: 64\nkv-transfer-config:\n"
        "  kv_connector: NixlConnector\n  kv_role: kv_consumer\n"
    )
    assert current.pools[0].role == "decode"
    assert any("prefill side is missing" in note for note in current.notes)


def test_sglang_config_file() -> None:
    current = from_stdin(
        "model-path: /models/m\nhost: 0.0.0.0\ntp-size: 2\ncontext-length: 16384\nmem-fraction-static: 0.85\n"
        "chunked-prefill-size: 2048\nenable-mixed-chunk: true\nmax-prefill-tokens: 8192\n"
        "max-running-requests: 128\nmax-queued-requests: 512\nschedule-policy: lpm\n"
    )
    one = current.pools[0]
    assert (current.stack, one.tp, one.batching, one.token_budget) == ("sglang", 2, "chunked", 2048)
    assert (one.max_seqs, one.queue_policy, current.memory_fraction) == (128, "prefix_first", 0.85)


def test_trtllm_config_file() -> None:
    current = from_stdin(
        "tensor_parallel_size: 2\npipeline_parallel_size: 1\nmax_batch_size: 128\nmax_num_tokens: 2048\n"
        "max_seq_len: 16384\nenable_chunked_prefill: true\nkv_cache_config: {enable_block_reuse: true, "
        "free_gpu_memory_fraction: 0.85, dtype: auto, tokens_per_block: 64}\n"
        "scheduler_config: {capacity_scheduler_policy: GUARANTEED_NO_EVICT, waiting_queue_policy: fcfs}\n"
    )
    one = current.pools[0]
    assert (current.stack, one.tp, one.max_seqs, one.token_budget, one.block_size) == (
        "trtllm",
        2,
        128,
        2048,
        64,
    )
    assert (current.memory_fraction, current.max_len) == (0.85, 16_384)
    assert not any("refused" in note for note in current.notes)


def test_trtllm_block_reuse_counts_only_inside_kv_cache_config() -> None:
    current = from_stdin("max_batch_size: 8\nmax_num_tokens: 2048\nenable_block_reuse: false\n")
    assert current.pools[0].prefix_cache
    assert any("only inside kv_cache_config" in note for note in current.notes)


def test_trtllm_split_file() -> None:
    current = from_stdin(
        "hostname: 0.0.0.0\nport: 8000\nmax_num_tokens: 4096\n"
        'context_servers: {num_instances: 2, urls: ["p0:8001", "p1:8001"], tensor_parallel_size: 1}\n'
        'generation_servers: {num_instances: 1, urls: ["d0:8002"], tensor_parallel_size: 4}\n'
    )
    assert roles(current) == {"prefill": (2, 1), "decode": (1, 4)}
    assert {one.token_budget for one in current.pools} == {4096}


def test_engine_yaml_is_taken_as_it_is(tmp_path: Path) -> None:
    config = EngineConfig(pools=(PoolConfig(token_budget=192, max_seqs=7),))
    (tmp_path / "engine.yaml").write_text(config_text(config))
    current = read_current(str(tmp_path / "engine.yaml"))
    assert (current.stack, current.pools, current.router) == ("advise", config.pools, config.router)


DEPLOYMENT = """
apiVersion: v1
kind: Secret
metadata: {name: hf-token}
stringData: {token: hf_VeryPrivate12345}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: mistral, namespace: default}
spec:
  replicas: 3
  selector: {matchLabels: {app: mistral}}
  template:
    metadata: {labels: {app: mistral}}
    spec:
      containers:
      - name: sidecar
        image: busybox
        command: [sleep, infinity]
      - name: mistral
        image: vllm/vllm-openai:v0.20.2
        command: ["/bin/sh", "-c"]
        args:
        - "vllm serve mistralai/Mistral-7B-Instruct-v0.3 --trust-remote-code --max_num_batched_tokens $(BUDGET)
          --tensor-parallel-size 2"
        env:
        - {name: BUDGET, value: "1024"}
        - {name: HF_TOKEN, valueFrom: {secretKeyRef: {name: hf-token, key: token}}}
        resources: {limits: {nvidia.com/gpu: "1"}}
---
apiVersion: v1
kind: Service
metadata: {name: mistral}
spec: {ports: [{port: 80}]}
"""


def test_deployment_with_a_shell_command_counts_its_replicas() -> None:
    current = from_stdin(DEPLOYMENT)
    one = current.pools[0]
    assert (current.stack, current.version) == ("vllm", "0.20.2")
    assert current.model == "mistralai/Mistral-7B-Instruct-v0.3"
    assert (one.count, one.tp, one.token_budget) == (3, 2, 1024)
    assert any("has 1 GPUs and its flags use 2" in note for note in current.notes)
    assert "hf_VeryPrivate12345" not in repr(current)


def test_deployments_of_a_split_in_one_stream() -> None:
    one = """
apiVersion: apps/v1
kind: Deployment
metadata: {{name: {name}}}
spec:
  replicas: {count}
  template: {{spec: {{containers: [{{name: modelserver, command: [vllm, serve],
    args: [/models/m, --tensor-parallel-size={tp}, --block-size=128, --kv-transfer-config,
      '{{"kv_connector":"NixlConnector","kv_role":"{role}"}}'],
    resources: {{limits: {{nvidia.com/gpu: "{tp}"}}}}}}]}}}}
"""
    text = one.format(name="prefill", count=2, tp=1, role="kv_producer") + "---"
    text += one.format(name="decode", count=1, tp=2, role="kv_consumer")
    current = from_stdin(text)
    assert roles(current) == {"prefill": (2, 1), "decode": (1, 2)}
    assert not any("GPUs" in note for note in current.notes)


def test_leader_worker_set_is_one_instance_a_group() -> None:
    current = from_stdin(
        """
apiVersion: leaderworkerset.x-k8s.io/v1
kind: LeaderWorkerSet
metadata: {name: vllm}
spec:
  replicas: 2
  leaderWorkerTemplate:
    size: 2
    leaderTemplate:
      spec:
        containers:
        - name: leader
          image: vllm/vllm-openai:v0.11.0
          command: [sh, -c, "bash multi-node-serving.sh leader --ray_cluster_size=$(LWS_GROUP_SIZE);
            python3 -m vllm.entrypoints.openai.api_server --port 8080 --model m/405B
            --tensor-parallel-size 8 --pipeline_parallel_size 2"]
          resources: {limits: {nvidia.com/gpu: "8"}}
    workerTemplate:
      spec: {containers: [{name: worker, command: [sh, -c, "bash multi-node-serving.sh worker"]}]}
"""
    )
    one = current.pools[0]
    assert (one.count, one.tp, one.pp, current.gpus) == (2, 8, 2, 32)
    assert not any("its flags use" in note for note in current.notes)


def test_tgi_stateful_set_is_read_from_variables() -> None:
    current = from_stdin(
        """
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: tgi}
spec:
  replicas: 2
  template: {spec: {containers: [{name: t, image: "ghcr.io/huggingface/text-generation-inference:3.3.4",
    env: [{name: MODEL_ID, value: m/m}, {name: NUM_SHARD, value: "4"},
      {name: MAX_BATCH_PREFILL_TOKENS, value: "4096"}, {name: MAX_TOTAL_TOKENS, value: 2560}]}]}}
"""
    )
    one = current.pools[0]
    assert (current.stack, current.model, current.max_len) == ("tgi", "m/m", 2560)
    assert (one.count, one.tp, one.token_budget) == (2, 4, 4096)


def test_dynamo_graph() -> None:
    current = from_stdin(
        """
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata: {name: g}
spec:
  components:
  - {name: Frontend, type: frontend, replicas: 1, podTemplate: {spec: {containers: [{name: main,
      command: [python3], args: [-m, dynamo.frontend, --router-mode, kv]}]}}}
  - {name: worker, type: worker, replicas: 3, podTemplate: {spec: {containers: [{name: main,
      command: [python3, -m, dynamo.vllm], args: [--model, /models/m, --max-num-seqs, "96"]}]}}}
"""
    )
    assert (current.stack, current.pools[0].count, current.pools[0].max_seqs) == ("vllm", 3, 96)


def test_config_map_holds_the_file_that_the_launch_names() -> None:
    current = from_stdin(
        """
apiVersion: v1
kind: ConfigMap
metadata: {name: c}
data: {extra.yml: "kv_cache_config: {enable_block_reuse: false}\\nmax_batch_size: 32\\n"}
---
apiVersion: v1
kind: Pod
metadata: {name: p}
spec: {containers: [{name: t, args: [trtllm-serve, m, --extra_llm_api_options, /etc/c/extra.yml]}]}
"""
    )
    assert (current.pools[0].max_seqs, current.pools[0].prefix_cache) == (32, False)


def test_compose_command_text_and_list() -> None:
    service = """
services:
  vllm:
    image: vllm/vllm-openai:v0.11.0
    environment: ["TENSOR_PARALLEL_SIZE=2", "HUGGING_FACE_HUB_TOKEN=hf_private0000000"]
    command: {command}
    deploy: {{replicas: 2, resources: {{reservations: {{devices: [{{driver: nvidia, count: 4}}]}}}}}}
  redis: {{image: redis}}
"""
    # Compose takes ${...} from the host, not from the service's own environment.
    text = "--model ${MODEL:-google/gemma-2-9b-it} --tensor-parallel-size ${TENSOR_PARALLEL_SIZE:-4} --port 80"
    for command in (text, str(text.split())):
        current = from_stdin(service.format(command=command))
        assert (current.model, current.pools[0].count, current.pools[0].tp) == ("google/gemma-2-9b-it", 2, 4)
        assert "hf_private" not in repr(current)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("apiVersion: v1\nkind: Service\nmetadata: {name: s}\n", "no workload"),
        ("apiVersion: v1\nkind: Pod\nspec: {containers: [{image: redis}]}\n", "no container"),
        ("apiVersion: apps/v1\nkind: Deployment\nspec: {replicas: many}\n", "not a count"),
        ("apiVersion: v1\nkind: [\n", "not valid YAML"),
        ("services: {web: {image: nginx}}\n", "no service"),
        ("pools: [{token_budgett: 4}]\n", "not an engine.yaml"),
        ("context_servers: {urls: [a]}\n", "generation_servers is missing"),
        ("colour: blue\nshape: round\n", "no key of this file"),
    ],
)
def test_files_that_cannot_be_read_are_input_errors(text: str, match: str) -> None:
    with pytest.raises(InputError, match=match):
        from_stdin(text)


def test_broken_yaml_is_not_quoted() -> None:
    with pytest.raises(InputError) as error:
        from_stdin("apiVersion: v1\nkind: Secret\nstringData: {token: hf_VeryPrivate12345\n")
    assert "hf_VeryPrivate12345" not in f"{error.value.message} {error.value.why} {error.value.where}"
