"""Scenarios: the rules of a replay as one validated piece of data, written whole into run.json.

A scenario is every choice that bears on what is sent and when, and on what counts. Built-in ones carry the public
AgentX rules and what they leave out; a YAML file with the same keys makes another. Options given on the command line
override single rules, and every such override stays visible in run.json and in the summary.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from results.errors import UserError

FREE = frozenset({"concurrency", "stages"})
"""The load itself is what a run varies; choosing it overrides nothing."""
MIN_SUBMISSION_S = 900.0
"""The public rules take no run as a submission whose measured part is shorter."""


class Stage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A stretch of the run with its own number of live sessions."""

    concurrency: int
    duration_s: float


class Fixed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Independent requests of one shape instead of a corpus."""

    input_tokens: int = 8192
    output_tokens: int = 1024


class Scenario(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules. Durations in seconds, ratios and shares from 0 to 1."""

    name: str = "closed-loop"
    description: str = ""

    concurrency: int = 8
    """Live session trees (closed loop)."""
    stages: tuple[Stage, ...] = ()
    """Changes of the number of live trees over the run; replaces `concurrency` and `duration_s`."""
    duration_s: float | None = 600.0
    """Length of the measured part; None: until `sessions` trees are over."""
    sessions: int | None = None
    drain_s: float = 60.0
    """How long answers may take to end after the last send."""
    stall_s: float = 1800.0
    """A run in which for so long no byte came, nothing was sent and nothing was due is over (a silent prefill of 562 s
    has been seen, so this is no limit on an answer)."""
    seed: int = 42

    arrival: Literal["closed", "poisson", "recorded"] = "closed"
    """Closed: a tree starts when one ends. Open loop, whatever is live: at Poisson times, or when the trace says."""
    rate_per_min: float | None = None
    """Mean arrivals of session trees in a minute (open loop)."""
    ramp_s: float | None = None
    """The first trees start spread evenly over this time; None: 5 ms for each, so that none waits for the client."""
    max_requests_per_s: float | None = None
    max_input_tokens_per_min: float | None = None

    order: Literal["shuffled", "sequential"] = "shuffled"
    start_min: float = 0.0
    start_max: float = 0.0
    """A slot's first tree starts at a moment drawn evenly between these shares of its recorded duration."""
    primers: bool = True
    """Before the measured part, the last turn before that moment is sent once in every stream, for one token."""
    warmup_requests: int = 0
    """Further turns per slot before the measured part: no pauses, one token each."""
    warmup_grace_s: float = 1800.0
    """The warm-up has failed when it takes longer."""

    time_scale: float = 1.0
    """Multiplies recorded pauses."""
    turn_clock: Literal["completion", "recorded"] = "completion"
    """A turn is due its recorded pause after the live end of the one before; or at its recorded time in the session,
    however late the answers were, but never before they ended."""
    human_pauses: bool = True
    """False: a turn that a person began follows at once; tool times stay."""
    tree_idle_cap_s: float | None = 300.0
    system_idle_cap_s: float | None = 10.0
    flat_agents: bool = False
    """Sub-agents that a trace recorded flat are found by their prefix chains and replayed beside the main lane."""
    cross_stream_order: bool = True
    """A turn also waits for what had ended before it, in the recording, on the other streams of its tree."""

    surface: Literal["chat", "completions", "messages", "generate"] = "chat"
    """The API route: chat completions, completions over token ids, Anthropic's Messages, SGLang's `/generate`."""
    assistant: Literal["recorded", "live"] = "recorded"
    """Whose words the history holds: synthetic text of the recorded length, or what the server really said."""
    reasoning: Literal["drop", "keep"] = "drop"
    """Live histories: whether what the model thought goes back with what it said, where the chat template takes it."""
    messages: Literal["plain", "tools"] = "tools"
    shared_prefix: Literal["none", "trace", "all"] = "trace"
    """Which sessions have tools and system prompt in common: none, those whose sizes are equal, or all."""
    affinity: Literal["none", "correlation", "session", "affinity", "smg", "dynamo"] = "none"
    """Headers by which routers keep a conversation on one worker (FACTS 2.4); sub-agents are sessions of their own."""
    max_context: int | None = None
    overlong: Literal["skip", "end", "fail"] = "end"
    """Requests beyond the context: left out alone, with the rest of their lane, or refused before the run."""
    fixed: Fixed | None = None

    unreadable: Literal["keep", "fail"] = "keep"
    """An answer of which an event could not be decoded counts, flagged; or it failed."""
    failed_limit: float = 0.10
    """Share of failed requests above which the run is stopped and not valid."""
    overflow_limit: float = 0.01
    """Share of context overflows above which the run is not valid."""
    coverage: float = 0.95
    """The last token must come at or after this share of the measured part (runs of 15 minutes and more)."""
    steady: Literal["all", "auto"] = "all"
    """Which part of the measured time enters the figures: all of it, or what MSER-5 leaves."""


_AGENTX = Scenario(
    name="agentx",
    description="the public AgentX rules: mid-session starts, primers and 10 warm-up turns a lane, one hour",
    duration_s=3600.0,
    drain_s=1800.0,
    order="sequential",
    ramp_s=0.0,
    start_min=0.25,
    start_max=0.75,
    warmup_requests=10,
    flat_agents=True,
    messages="plain",
    shared_prefix="none",
    affinity="correlation",
)

BUILTIN: dict[str, Scenario] = {
    scenario.name: scenario
    for scenario in (
        Scenario(description="whole sessions from their first turn, recorded pauses, no warm-up"),
        _AGENTX,
        msgspec.structs.replace(
            _AGENTX,
            name="agentx-fast",
            description="the public rules, shortened: 20 minutes, 1 warm-up turn a lane",
            duration_s=1200.0,
            warmup_requests=1,
        ),
        Scenario(
            name="interactive",
            description="a few people at work: whole sessions, every human pause as long as it was",
            concurrency=4,
            duration_s=1800.0,
            tree_idle_cap_s=None,
            system_idle_cap_s=None,
            flat_agents=True,
        ),
        Scenario(
            name="offline",
            description="batch work and rollouts: hundreds of agents, tool times kept, nobody to wait for",
            concurrency=256,
            duration_s=1200.0,
            human_pauses=False,
            flat_agents=True,
            start_min=0.0,
            start_max=0.9,
        ),
        Scenario(
            name="fixed",
            description="independent requests of 8192 tokens in, 1024 out: the chip-level test, no prefix reuse",
            concurrency=32,
            duration_s=600.0,
            shared_prefix="none",
            fixed=Fixed(),
        ),
    )
}


class Rules(msgspec.Struct, frozen=True, kw_only=True):
    """A scenario in force: where it came from and what was changed."""

    scenario: Scenario
    source: str
    """`built-in`, or the path of the file."""
    overrides: dict[str, tuple[Any, Any]]
    """Rule -> (the scenario's value, the value in force)."""

    def why_not_submission(self) -> list[str]:
        """Why the run does not stand for its scenario (not: why its figures would be wrong)."""
        out = [f"{name} overridden: {was} -> {now}" for name, (was, now) in self.overrides.items()]
        if self.scenario.name.startswith("agentx"):
            seconds = self.scenario.duration_s
            if seconds is not None and seconds < MIN_SUBMISSION_S:
                out.append(f"unsafe override: {seconds:g} s is shorter than {MIN_SUBMISSION_S:g} s")
        return out


def load_rules(name: str, overrides: dict[str, Any]) -> Rules:
    """The scenario `name` (built in, or the path of a YAML file) with `overrides` by rule.

    UserError names the file, the line and the key of what can't be used.
    """
    if name in BUILTIN:
        base, source = BUILTIN[name], "built-in"
    elif Path(name).suffix in (".yaml", ".yml") or Path(name).exists():
        base, source = read_scenario(Path(name)), name
    else:
        raise UserError(f"--scenario {name}: unknown", remedy=f"choose {', '.join(BUILTIN)}, or give a YAML file")
    changed = {
        rule: (msgspec.to_builtins(getattr(base, rule)), msgspec.to_builtins(value))
        for rule, value in overrides.items()
        if rule not in FREE and getattr(base, rule) != value
    }
    rules = Rules(scenario=msgspec.structs.replace(base, **overrides), source=source, overrides=changed)
    check(rules.scenario)
    return rules


def read_scenario(path: Path) -> Scenario:
    """A scenario from YAML: the keys of `Scenario`, and `base` for the built-in one to start from."""
    import yaml

    try:
        text = path.read_text()
        document = yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"--scenario {path}: {error.strerror}") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f":{mark.line + 1}" if mark else ""
        raise UserError(f"--scenario {path}{where}: not YAML: {getattr(error, 'problem', error)}") from error
    if not isinstance(document, dict):
        raise UserError(f"--scenario {path}: not a mapping of rules")
    base_name = document.pop("base", "closed-loop")
    if base_name not in BUILTIN:
        raise UserError(f"--scenario {_at(path, text, 'base')}: unknown {base_name}", remedy=", ".join(BUILTIN))
    rules = msgspec.to_builtins(BUILTIN[base_name]) | {"name": path.stem, "description": ""}
    try:
        return msgspec.convert({**rules, **_seconds(document, path, text)}, Scenario)
    except msgspec.ValidationError as error:
        key = _key(str(error), document)
        raise UserError(f"--scenario {_at(path, text, key)}: {error}") from error


def _seconds(document: dict[str, Any], path: Path, text: str) -> dict[str, Any]:
    """Durations may be written as 90s, 15m or 1h."""
    scale = {"s": 1.0, "m": 60.0, "h": 3600.0}
    out = dict(document)
    for key, value in document.items():
        if isinstance(value, str) and str(key).endswith("_s"):
            try:
                out[key] = float(value[:-1]) * scale[value[-1:]]
            except (KeyError, ValueError) as error:
                raise UserError(f"--scenario {_at(path, text, key)}: {value!r} is not a duration") from error
        elif isinstance(value, list) and key == "stages":
            out[key] = [_seconds(stage, path, text) if isinstance(stage, dict) else stage for stage in value]
    return out


def _key(message: str, document: dict[str, Any]) -> str:
    """The key a validation error is about."""
    return next((str(key) for key in document if f"$.{key}" in message or f"`{key}`" in message), "")


def _at(path: Path, text: str, key: str) -> str:
    for number, line in enumerate(text.splitlines(), 1):
        if key and line.strip().startswith(f"{key}:"):
            return f"{path}:{number}: {key}"
    return str(path)


def check(scenario: Scenario) -> None:
    """Raise UserError on rules that contradict each other."""
    if scenario.duration_s is not None and scenario.duration_s <= 0:
        raise UserError("--duration 0 sends nothing", remedy="give a positive duration, or --sessions N")
    if scenario.stall_s <= 0:
        raise UserError(f"stall_s {scenario.stall_s:g} ends every run at once", remedy="give seconds of silence")
    if scenario.concurrency < 1:
        raise UserError(f"concurrency {scenario.concurrency}", remedy="give at least one live session")
    if not 0.0 <= scenario.start_min <= scenario.start_max < 1.0:
        raise UserError(
            f"start position {scenario.start_min:g} to {scenario.start_max:g}",
            remedy="give shares of the recorded duration, 0 <= min <= max < 1",
        )
    if scenario.turn_clock == "recorded" and (_begins_inside(scenario) or not scenario.human_pauses):
        raise UserError("turns at their recorded times", remedy="no warm-up, no start position, and human pauses kept")
    if scenario.arrival != "closed" and scenario.stages:
        raise UserError("stages change the number of live sessions", remedy="they need arrival closed")
    if (scenario.stages or scenario.arrival != "closed") and _begins_inside(scenario):
        raise UserError("stages and open arrivals start with whole sessions", remedy="no warm-up, no start position")
    if scenario.arrival == "poisson" and not scenario.rate_per_min:
        raise UserError("arrival poisson needs a rate", remedy="give --rate SESSIONS_PER_MINUTE")
    if any(stage.concurrency < 1 or stage.duration_s <= 0 for stage in scenario.stages):
        raise UserError("a stage needs at least one live session and a positive duration")


def _begins_inside(scenario: Scenario) -> bool:
    """Whether sessions begin elsewhere than at their first turn, or something is sent before the measured part."""
    return bool(scenario.start_max or scenario.warmup_requests)


def explain(rules: Rules) -> list[tuple[str, Any, str]]:
    """(rule, value in force, where it came from) of every rule, in the scenario's order."""
    standard = Scenario()
    out: list[tuple[str, Any, str]] = []
    for name in Scenario.__struct_fields__[2:]:
        value = getattr(rules.scenario, name)
        if name in rules.overrides:
            where = f"given (the scenario says {rules.overrides[name][0]})"
        elif rules.source == "built-in" and value == getattr(standard, name):
            where = "default"
        else:
            where = f"scenario {rules.scenario.name}" if rules.source == "built-in" else rules.source
        out.append((name, msgspec.to_builtins(value), where))
    return out
