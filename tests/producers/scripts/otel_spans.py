"""OpenTelemetry's SDK with an instrumentation of the OpenAI client, spans as OTLP/JSON lines.

The last argument chooses the instrumentation: `genai` is OpenTelemetry's own, `openinference` Arize's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence

import openai
from common import Job
from google.protobuf.json_format import MessageToDict
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult


class Lines(SpanExporter):
    """Writes each batch as one line, ids in hexadecimal, as the collector's file exporter does."""

    def __init__(self, job: Job) -> None:
        self.job = job

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """One line a batch."""
        batch = MessageToDict(encode_spans(spans))
        for resource in batch["resourceSpans"]:
            for scope in resource["scopeSpans"]:
                for span, sent in zip(scope["spans"], spans, strict=True):
                    span["traceId"] = f"{sent.context.trace_id:032x}"
                    span["spanId"] = f"{sent.context.span_id:016x}"
        with (self.job.out / "spans.jsonl").open("a") as file:
            file.write(json.dumps(batch) + "\n")
        return SpanExportResult.SUCCESS


def main() -> None:
    """Send the chats, one after another."""
    kind = sys.argv.pop()
    job = Job.of_argv()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(Lines(job)))
    if kind == "genai":
        os.environ["OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"] = "true"
        from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
    else:
        from openinference.instrumentation.openai import OpenAIInstrumentor
    OpenAIInstrumentor().instrument(tracer_provider=provider)
    client = openai.OpenAI(base_url=f"{job.url}/v1", api_key="unused", max_retries=0)
    for messages in job.chats():
        answer = client.chat.completions.create(model=job.model, messages=messages, max_tokens=8, temperature=0)
        job.keep(answer.usage)
    provider.shutdown()
    job.finish()


if __name__ == "__main__":
    main()
