"""Runs in AIPerf's environment: loads a trace with its Mooncake loader and prints what it made of it as JSON.

Arguments: the trace, a folder with a tokenizer. Prompts are built as a replay would send them; nothing is sent.
"""

import json
import sys

from aiperf.common import random_generator
from aiperf.common.tokenizer import Tokenizer
from aiperf.dataset.generator.prompt import PromptGenerator
from aiperf.dataset.loader import hash_ids_synthesis
from aiperf.dataset.loader.mooncake_trace import MooncakeTraceDatasetLoader

trace, folder = sys.argv[1:]
random_generator.init(0)
tokenizer = Tokenizer.from_pretrained(folder, resolve_alias=False)
# Its pool of decoding processes takes hub names only, not the folder that this process has loaded.
hash_ids_synthesis.parallel_decode = lambda sequences, *_, **__: [
    tokenizer.decode(tokens) for tokens in sequences
]
generator = PromptGenerator(prompts=None, prefix_prompts=None, tokenizer=tokenizer)
loader = MooncakeTraceDatasetLoader(filename=trace, prompt_generator=generator, default_block_size=512)
sessions = loader.load_dataset()
rows = [row for session in sessions.values() for row in session]
turns = [turn for talk in loader.convert_to_conversations(sessions) for turn in talk.turns]
# Before the text is cut into tokens again, which may merge tokens where blocks meet.
sequences = [generator._build_token_sequence(row.input_length, row.hash_ids, 512) for row in rows]
found = {
    "rows": len(rows),
    "input_tokens": [len(sequence) for sequence in sequences],
    "output_tokens": [turn.max_tokens for turn in turns],
    "timestamps": [turn.timestamp for turn in turns],
    "prompts": [turn.texts[0].contents[0] for turn in turns],
}
sys.stdout.write(json.dumps(found))
