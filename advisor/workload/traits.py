"""The six traits: what a workload is like, in the terms in which scheduling ideas are advised.

A trait is as strong as its weakest condition, each rising in a straight line between two bounds. Sources stand
beside the bounds; those marked `ours` come from no paper. They say what the traffic is like, never what to do.
"""

from __future__ import annotations

from advisor.workload.model import Trait, UnknownField, Workload

SHARED_HIT = (0.03, 0.50)  # 0.03 ours: below it no speedup shows; SGLang's workloads start at 0.50 (section 6)
SHARED_TOKENS = (
    32,
    512,
)  # mean hit tokens of a prompt; 32: SGLang's scheduler ignores shorter matches; 512 ours
DECODE_RATIO = (0.2, 1.0)  # output over uncached prompt tokens; above 1 decode dominates; ours
LONG_OUTPUT = (64, 512)  # mean tokens: SGLang's long outputs, 256 to 512, gain nothing from caching; 64 ours
LONG_PROMPT = (512, 4096)  # uncached P90: 512 is Sarathi-Serve's strict token budget (section 5); 4096 ours
STREAMS = (1, 8)  # mean concurrent streams beside a prompt; ours
STREAM_TPOT_S = 0.05  # a stream where no target says: 20 tokens/s, the chat preset; ours
STRICT_TTFT_S = (2.0, 0.2)  # presets server-relaxed and chat-strict
STRICT_TPOT_S = (0.2, 0.03)  # presets server-relaxed and chat-strict
SCALE_GPUS = (2, 16)  # ours
FEW_GPUS = (8, 2)  # two instances of one GPU can just be split; ours
LOW_TOKEN_RATE = (2000, 200)  # prompt and output tokens/s: a small share of one GPU; ours
SPIKY_DISPERSION = (1, 4)  # 1 is Poisson; above 4 size at the peak; ours
TICKS_PER_WINDOW = 10  # counts in shorter windows show the clock, not the traffic; ours


def find_traits(
    workload: Workload,
    *,
    ttft_s: float | None = None,
    tpot_s: float | None = None,
    gpus: int | None = None,
    offline: bool = False,
) -> tuple[Trait, ...]:
    """The six traits. Latency targets and GPUs as far as they are known; `offline`: no latency target applies.

    A strength is None where a condition that decides it is unknown.
    """
    return (
        _shared_prompts(workload),
        _independent_outputs(workload),
        _long_beside_streams(workload, tpot_s),
        _strict_at_scale(ttft_s, tpot_s, gpus, offline),
        _few_or_offline(gpus, offline),
        _low_or_spiky(workload),
    )


def unknown_traits(traits: tuple[Trait, ...]) -> tuple[UnknownField, ...]:
    """An entry for every trait without a strength."""
    return tuple(
        UnknownField(
            path=f"traits.{trait.name}.strength",
            why="not known: " + ", ".join(name for name, value in trait.evidence.items() if value is None),
            how_to_get="see those entries, or name a target with --gpus, --ttft and --tpot",
        )
        for trait in traits
        if trait.strength is None
    )


def _shared_prompts(workload: Workload) -> Trait:
    hit, prompt = workload.sharing.hit_rate_tokens, workload.lengths.prompt
    shared = None if hit is None or prompt is None else hit * prompt.mean
    return Trait(
        name="long shared prompts",
        strength=_all(_rise(hit, SHARED_HIT), _rise(shared, SHARED_TOKENS)),
        evidence={"hit_rate_tokens": hit, "shared_tokens_mean": shared},
    )


def _independent_outputs(workload: Workload) -> Trait:
    hit = workload.sharing.hit_rate_tokens
    output = workload.lengths.output.mean if workload.lengths.output else None
    prompt = _uncached_mean(workload)
    ratio = None if output is None or prompt is None else output / max(1.0, prompt)
    independent = None if hit is None else 1 - hit
    return Trait(
        name="long independent outputs",
        strength=_all(_rise(output, LONG_OUTPUT), _rise(ratio, DECODE_RATIO), independent),
        evidence={"output_mean": output, "output_per_prompt_token": ratio, "hit_rate_tokens": hit},
    )


def _long_beside_streams(workload: Workload, tpot_s: float | None) -> Trait:
    uncached, rate = workload.uncached_prompt, workload.arrivals.rate_rps
    whole_p90 = workload.lengths.prompt.p90 if workload.lengths.prompt else None
    # Without block ids nothing is known to be cached: the whole prompt is the upper bound.
    p90 = uncached.p90 if uncached else whole_p90
    output = workload.lengths.output.mean if workload.lengths.output else None
    streams = None if rate is None or output is None else rate * output * (tpot_s or STREAM_TPOT_S)
    return Trait(
        name="long prompts beside streaming users",
        strength=_all(_rise(p90, LONG_PROMPT), _rise(streams, STREAMS)),
        evidence={
            "uncached_prompt_p90": uncached.p90 if uncached else None,
            "prompt_p90": whole_p90,
            "streams_mean": streams,
        },
    )


def _strict_at_scale(ttft_s: float | None, tpot_s: float | None, gpus: int | None, offline: bool) -> Trait:
    targets = [_rise(ttft_s, STRICT_TTFT_S), _rise(tpot_s, STRICT_TPOT_S)]
    known = [strictness for strictness in targets if strictness is not None]
    strict = 0.0 if offline else max(known) if known else None
    return Trait(
        name="strict latency targets at scale",
        strength=_all(strict, _rise(gpus, SCALE_GPUS)),
        evidence={"ttft_s": ttft_s, "tpot_s": tpot_s, "gpus": gpus},
    )


def _few_or_offline(gpus: int | None, offline: bool) -> Trait:
    return Trait(
        name="few GPUs or offline",
        strength=1.0 if offline else _rise(gpus, FEW_GPUS),
        evidence={"gpus": gpus, "offline": float(offline)},
    )


def _low_or_spiky(workload: Workload) -> Trait:
    arrivals, lengths = workload.arrivals, workload.lengths
    output = lengths.output.mean if lengths.output else 0.0
    rate = None
    if arrivals.rate_rps is not None and lengths.prompt is not None:
        rate = arrivals.rate_rps * (lengths.prompt.mean + output)
    window = "10" if TICKS_PER_WINDOW * (arrivals.tick_s or 0.0) <= 10 else "60"
    spread = arrivals.dispersion[window]
    signs = [s for s in (_rise(rate, LOW_TOKEN_RATE), _rise(spread, SPIKY_DISPERSION)) if s is not None]
    return Trait(
        name="low or spiky volume",
        strength=max(signs) if signs else None,
        evidence={
            "tokens_per_s": rate,
            f"dispersion_{window}s": spread,
            "peak_rps_10s": arrivals.peak_rps["10"],
        },
    )


def _uncached_mean(workload: Workload) -> float | None:
    lengths = workload.uncached_prompt or workload.lengths.prompt
    return None if lengths is None else lengths.mean


def _rise(value: float | None, bounds: tuple[float, float]) -> float | None:
    """0 at the first bound, 1 at the second, straight between; None where the value is unknown."""
    if value is None:
        return None
    start, end = bounds
    return min(1.0, max(0.0, (value - start) / (end - start)))


def _all(*strengths: float | None) -> float | None:
    """The weakest; 0 decides even beside unknown ones, else an unknown one leaves it open."""
    known = [strength for strength in strengths if strength is not None]
    if known and min(known) == 0:
        return 0.0
    return min(known) if len(known) == len(strengths) else None
