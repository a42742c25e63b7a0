"""Which form of request an endpoint takes, found with small probes before the clock starts.

In order of preference: token ids on /v1/completions (lengths exact, nothing tokenized), text there, chat. Each
is first sent with everything that makes a replay exact (forced length, ids of the answer, usage); fields that
the endpoint refuses are left out one by one. What is lost is said in `Form.fell_back`, a sentence each, so that
no result hides it. Probes share nothing with the run: ids under labels of their own, words in other orders.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import aiohttp

from advisor.validation import words
from advisor.validation.client import authorization
from advisor.validation.endpoint import USER_AGENT, Endpoint
from advisor.validation.form import CHAT, COMPLETIONS, EXTRAS, Prompt
from advisor.validation.form import Form as Form
from advisor.validation.probe import Answer, send
from advisor.validation.prompts import PromptFactory
from advisor.validation.words import Wording
from engine.errors import MachineError
from engine.fetch import model_folder

if TYPE_CHECKING:
    from engine.text import Tokenizer

_PROBE_IN, _PROBE_OUT = 24, 8
_CACHE_IN = 192  # of the prompt that is sent twice: beyond the blocks of every engine
_FORCED_OUT = 32
_SHORT, _LONG = 8, 64  # words of the two probes that measure what is put around a prompt
_CLOSE = 2  # tokens: as far as a count may be off (BOS, a template's newline)
_LABEL = 2**62  # of probes; requests of a run have their row, blocks another kind
_ENDS_ITSELF = "Reply with the single word: yes"
_REFUSED = (400, 422)
_JUDGED = "; the output_lengths gate judges that"
_LOST = {
    "return_token_ids": "the endpoint gives no ids of answers: a chunk counts as one token between its gaps, "
    "and output lengths are those of its usage",
    "min_tokens": "the endpoint refuses min_tokens: answers may be shorter than the log's" + _JUDGED,
    "ignore_eos": "the endpoint refuses ignore_eos: answers may end before the log's did" + _JUDGED,
    "stream_options": "the endpoint refuses stream_options: no usage, so lengths and cached tokens are unknown",
    "temperature": "the endpoint refuses temperature 0: answers differ between runs",
}


async def agree(
    endpoint: Endpoint,
    *,
    seed: int | None = None,
    api_key: str | None = None,
    tokenizer: str | None = None,
    timeout_s: float = 120.0,
) -> Form:
    """Find the form for `endpoint`.

    `tokenizer` is that of its model, a folder, a GGUF file or a hub name that is on this machine: read only
    where prompts have to be text. `seed` is of the probes' content (None: a new one). `timeout_s` is for each
    probe. Raises MachineError where no form is taken, with the server's words on each.
    """
    if seed is None:
        seed = secrets.randbits(32)
    async with aiohttp.ClientSession(
        headers=authorization(api_key) | USER_AGENT, timeout=aiohttp.ClientTimeout(total=timeout_s)
    ) as session:
        return await _Search(session, endpoint, seed, tokenizer).form()


def load_tokenizer(source: str) -> Tokenizer:
    """The tokenizer at `source`, which is never fetched. Raises InputError and MachineError."""
    from engine.text import Tokenizer  # and `tokenizers`: most endpoints take ids

    return Tokenizer.load(model_folder(source, fetch=False, weights=False))


@dataclass(slots=True)
class _Search:
    session: aiohttp.ClientSession
    endpoint: Endpoint
    seed: int
    source: str | None  # of the tokenizer
    refused: list[str] = field(default_factory=list)
    label: int = _LABEL

    async def form(self) -> Form:
        for attempt in (self._ids, self._text, self._chat):
            found = await attempt()
            if found is not None:
                return await self._tried(*found)
        raise MachineError(
            f"the endpoint at {self.endpoint.url} takes no form of request that a replay can send",
            why="; ".join(self.refused),
            hint=f"advise doctor --endpoint {self.endpoint.url}",
        )

    # The three forms.

    async def _ids(self) -> tuple[Form, Answer] | None:
        form = Form("token ids", COMPLETIONS, self.endpoint.model)
        settled = await self._settle(form, lambda: self._unique(_PROBE_IN))
        if settled is None:
            return None
        counted = settled[1].n_in
        if counted is not None and abs(counted - _PROBE_IN) > _CLOSE:
            self.refused.append(
                f"token ids: {_PROBE_IN} of them count as {counted} tokens, so they are text to it"
            )
            return None
        return settled

    async def _text(self) -> tuple[Form, Answer] | None:
        said = "the endpoint takes no token ids: prompts are words of the same lengths and the same sharing"
        return await self._worded(Form("text", COMPLETIONS, self.endpoint.model, fell_back=(said,)))

    async def _chat(self) -> tuple[Form, Answer] | None:
        said = "the endpoint takes chat only: prompts are words of the same lengths and the same sharing"
        return await self._worded(Form("chat", CHAT, self.endpoint.model, fell_back=(said,)))

    async def _worded(self, form: Form) -> tuple[Form, Answer] | None:
        settled = await self._settle(form, lambda: " ".join(self._shuffled()[:_SHORT]))
        if settled is None:
            return None
        form, answer = settled
        if answer.n_in is None:
            wording = (
                Wording(words.COMMON) if self.source is None else words.words_of(load_tokenizer(self.source))
            )
            lost = "no usage, so what the endpoint adds to a prompt is unknown: prompts may be too long"
            return replace(form, wording=wording, fell_back=(*form.fell_back, lost)), answer
        return await self._measured(form), answer

    # What a form takes.

    async def _settle(self, form: Form, prompt: Callable[[], Prompt]) -> tuple[Form, Answer] | None:
        """The form without the fields that are refused, and the answer to it; None where it is not taken."""

        async def attempt(wanted: Form) -> Answer:
            return await self._send(wanted, prompt(), _PROBE_OUT)

        answer = await attempt(form)
        if _wants_other_limit(answer, form):
            form = replace(form, limit_field="max_completion_tokens")
            answer = await attempt(form)
        if answer.status in _REFUSED:
            named = [name for name in form.fields if name in answer.detail]
            if len(named) == 1:
                form = replace(form, fields=tuple(name for name in form.fields if name not in named))
                answer = await attempt(form)
        if answer.status in _REFUSED and form.fields:
            form, answer = await _built_up(form, attempt)
        if not answer.taken:
            self.refused.append(f"{form.name}: {answer.status}, {answer.detail[:160]}")
            return None
        lost = tuple(_LOST[name] for name in EXTRAS if name not in form.fields)
        return replace(form, fell_back=form.fell_back + lost), answer

    # What a text costs.

    async def _measured(self, form: Form) -> Form:
        if self.source is not None:
            tokenizer = load_tokenizer(self.source)
            wording = words.words_of(tokenizer)
            short, long = (wording.of(self._shuffled(wording.words)[:count]) for count in (_SHORT, _LONG))
            added = [await self._count(form, short) - _SHORT, await self._count(form, long) - _LONG]
            if abs(added[1] - added[0]) <= _CLOSE:
                return _with(form, words.with_overhead(wording, added[1]))
            lost = f"{tokenizer.name} is not the endpoint's tokenizer: it counts otherwise"
            form = replace(form, fell_back=(*form.fell_back, lost))
        samples = []
        for group in words.groups(words.COMMON):
            once = words.LEAD + " ".join(self._shuffled(group))
            twice = words.LEAD + " ".join([*self._shuffled(group), *self._shuffled(group)])
            samples.append(words.Sample(group, await self._count(form, once), await self._count(form, twice)))
        if any(sample.per_word < 0.5 for sample in samples):
            # Its usage does not grow with the prompt: cached tokens are left out of it, or it is made up.
            lost = "its usage does not count all tokens of a prompt: a word was taken for a token"
            return replace(form, wording=Wording(words.COMMON), fell_back=(*form.fell_back, lost))
        wording = words.measured(samples)
        lost = f"without its tokenizer lengths are as measured: {wording.per_word:.3g} tokens a word"
        return _with(replace(form, fell_back=(*form.fell_back, lost)), wording)

    async def _count(self, form: Form, text: str) -> int:
        answer = await self._send(form, text, 1)
        if not answer.taken or answer.n_in is None:
            raise MachineError(
                f"the endpoint at {self.endpoint.url} does not count a prompt that it took before",
                why=answer.detail[:160] or "no usage",
                hint=f"advise doctor --endpoint {self.endpoint.url}",
            )
        return answer.n_in

    # What the endpoint tells, and whether it obeys.

    async def _tried(self, form: Form, first: Answer) -> Form:
        """The form with what `first`, an answer to it, and what further probes show."""
        fell = list(form.fell_back)
        reports_cached = first.n_cached is not None or await self._hits(form)
        if not reports_cached:
            fell.append(
                "the endpoint reports no cached tokens: whether its prefix cache works as expected is unknown"
            )
        forced = await self._forced(form)
        if forced is False and {"min_tokens", "ignore_eos"} & set(form.fields):
            fell.append(
                "an answer ended by itself: the endpoint takes the forced length and ignores it" + _JUDGED
            )
        if "return_token_ids" in form.fields and first.token_ids is None:
            fell.append(_LOST["return_token_ids"])
        made = first.token_ids or first.n_out
        return replace(
            form,
            fell_back=tuple(fell),
            reports_usage=first.n_in is not None,
            reports_cached=reports_cached,
            cached_when_none=first.n_cached is not None,
            returns_ids=first.token_ids is not None,
            forces_length=forced,
            tokens_per_chunk=made / first.chunks if made and first.chunks else None,
        )

    async def _hits(self, form: Form) -> bool:
        """Whether cached tokens are reported where there are some: the same long prompt twice."""
        prompt = self._planned(form, _CACHE_IN)
        answers = [await self._send(form, prompt, 1) for _ in range(2)]
        return answers[1].n_cached is not None

    async def _forced(self, form: Form) -> bool | None:
        """Whether an answer that would end at once goes on to the wanted length; None: cannot be told."""
        if not {"min_tokens", "ignore_eos"} & set(form.fields):
            return False
        if self.endpoint.kind == "advise":
            return True
        answer = await self._send(replace(form, path=CHAT), _ENDS_ITSELF, _FORCED_OUT)
        made = answer.n_out if answer.n_out is not None else answer.token_ids
        if not answer.taken or made is None:
            return None
        return made >= _FORCED_OUT

    # Prompts of probes.

    def _unique(self, length: int) -> list[int]:
        self.label += 1
        ids: list[int] = self._factory().unique(length, self.label).tolist()
        return ids

    def _planned(self, form: Form, length: int) -> Prompt:
        self.label += 1
        return form.write([self._factory().unique(length, self.label)])[0]

    def _factory(self) -> PromptFactory:
        return PromptFactory(self.endpoint.vocab_size, self.seed)

    def _shuffled(self, from_: Sequence[str] = words.COMMON) -> list[str]:
        self.label += 1
        return words.shuffled(from_, self.seed, self.label)

    async def _send(self, form: Form, prompt: Prompt, output_tokens: int) -> Answer:
        return await send(self.session, self.endpoint.url + form.path, form.body(prompt, output_tokens))


async def _built_up(form: Form, attempt: Callable[[Form], Awaitable[Answer]]) -> tuple[Form, Answer]:
    """The form with the fields that are taken, each tried by itself on the ones before."""
    kept = replace(form, fields=())
    answer = await attempt(kept)
    if _wants_other_limit(answer, kept):
        kept = replace(kept, limit_field="max_completion_tokens")
        answer = await attempt(kept)
    if answer.taken:
        for name in form.fields:
            wider = replace(kept, fields=(*kept.fields, name))
            tried = await attempt(wider)
            if tried.taken:
                kept, answer = wider, tried
    return kept, answer


def _wants_other_limit(answer: Answer, form: Form) -> bool:
    return (
        answer.status in _REFUSED
        and form.limit_field == "max_tokens"
        and ("max_completion_tokens" in answer.detail or "max_tokens" in answer.detail)
        and form.path == CHAT
    )


def _with(form: Form, wording: Wording) -> Form:
    said = f"{wording.overhead} tokens of a prompt are the chat template's and the like, taken off its end"
    fell = (*form.fell_back, said) if wording.overhead > _CLOSE else form.fell_back
    return replace(form, wording=wording, fell_back=fell)
