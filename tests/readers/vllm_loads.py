"""Runs in vLLM's environment: loads a trace as `vllm bench serve` does and prints what it made of it as JSON.

Arguments: the trace, a folder with a tokenizer. Prompts are built as a replay would send them; nothing is sent.
"""

import json
import sys

from transformers import AutoTokenizer
from vllm.benchmarks.datasets.datasets import TimedTrace

trace, folder = sys.argv[1:]
labels = {"timestamp": "timestamp", "input_length": "input_length", "output_length": "output_length"}
dataset = TimedTrace(
    dataset_path=trace,
    random_seed=0,
    timed_trace_chunk_hash_size=512,
    timed_trace_sec_multiplier=0.001,
    timed_trace_label_hash_ids="hash_ids",
    **{f"timed_trace_label_{name}": label for name, label in labels.items()},
)
samples = dataset.sample(AutoTokenizer.from_pretrained(folder), 10**6, no_oversample=True)
found = {
    "rows": len(samples),
    "input_tokens": [sample.prompt_len for sample in samples],
    "output_tokens": [sample.expected_output_len for sample in samples],
    "timestamps": [1e3 * sample.timestamp for sample in samples],
    "prompts": [sample.prompt for sample in samples],
}
sys.stdout.write(json.dumps(found))
