"""Runs in GuideLLM's environment: loads a trace with its Mooncake reader and prints what it made of it as JSON.

Arguments: the trace, a folder with a tokenizer. Prompts are built as a replay would send them; nothing is sent.
"""

import json
import sys

from guidellm.data.deserializers import DatasetDeserializerFactory
from guidellm.schemas.data.deserializers import MooncakeTraceFormatArgs
from transformers import AutoTokenizer

trace, folder = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
config = MooncakeTraceFormatArgs(kind="mooncake", source={"kind": "json_file", "path": trace}, time_scale=0.001)
dataset = DatasetDeserializerFactory.deserialize(config, lambda: tokenizer, 0)
found = {"rows": 0, "input_tokens": [], "output_tokens": [], "timestamps": [], "prompts": []}
for row in dataset:
    for turn in json.loads(row["conversation_turns"])["turns"]:
        columns = turn["columns"]
        found["rows"] += 1
        found["input_tokens"] += columns["prompt_tokens_count_column"]
        found["output_tokens"] += columns["output_tokens_count_column"]
        found["timestamps"] += [1e3 * second for second in columns["relative_timestamp_column"]]
        found["prompts"] += [*columns["text_column"]]
sys.stdout.write(json.dumps(found))
