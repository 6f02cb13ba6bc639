"""What a sweep file and a recipe may say. Strict: an unknown key or a wrong type is refused with its line."""

from __future__ import annotations

import math
import re
from typing import Annotated, Any, Literal

import msgspec
import typer
from msgspec import Meta, field

from harness.cli.common import parse_duration, parse_tokens

Name = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
Text = Annotated[str, Meta(min_length=1)]
Count = Annotated[int, Meta(ge=1, le=1_000_000)]
Argument = str | int | float
"""One word of a command; YAML reads `8` as a number, which is as good."""

PRECISIONS = Literal["fp4", "nvfp4", "mxfp4", "int4", "fp8", "int8", "bf16", "fp16", "fp32"]
_CREDENTIAL = re.compile(r"://[^/\s]*@|[?&]")
_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


class Strict(msgspec.Struct, forbid_unknown_fields=True):
    """Base of everything read from YAML."""


class Shape(Strict):
    """Workers of one role and how each is spread over accelerators."""

    workers: Annotated[int, Meta(ge=0, le=100_000)] = 1
    """0 decode workers: the prefill workers decode too (aggregated)."""
    tp: Count = 1
    pp: Count = 1
    ep: Count = 1
    dp: Count = 1
    dp_attention: bool = False
    dcp: Count = 1
    pcp: Count = 1
    hardware: str | None = None

    def __post_init__(self) -> None:
        _check_shape(self)

    @property
    def accelerators(self) -> int:
        """Devices of all workers of this role."""
        return self.workers * devices(self)


class Disaggregation(Strict):
    """Prefill and decode on workers of their own."""

    prefill: Shape
    decode: Shape
    kv_transfer: str | None = None
    """What moves keys and values from prefill to decode: nixl, mooncake, …"""

    def __post_init__(self) -> None:
        if not self.prefill.workers:
            raise ValueError("disaggregation needs at least one prefill worker")


class Speculative(Strict):
    """Speculative decoding."""

    method: Literal["none", "mtp", "draft_model", "eagle", "eagle3", "ngram", "dspark"]
    tokens: Count | None = None
    """Tokens drafted per step."""
    acceptance_length: Annotated[float, Meta(ge=1, le=1000)] | None = None
    """Synthetic mean tokens per step where acceptance is forced; generated prompts have no real one."""

    def __post_init__(self) -> None:
        if self.method != "none" and self.tokens is None:
            raise ValueError(f"speculative method {self.method} needs `tokens`, the number drafted per step")


class Router(Strict):
    """What spreads requests over workers."""

    name: Text
    version: str | None = None


class KvOffload(Strict):
    """Where keys and values go that do not fit on the accelerator."""

    kind: Literal["none", "dram", "nvme", "remote"]
    backend: str | None = None
    """native, vllm-simple, hicache, mooncake, lmcache, kvbm, …"""
    version: str | None = None
    gigabytes: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    """Budget in GB (1e9 bytes) of the whole server."""

    def __post_init__(self) -> None:
        if self.kind != "none" and not self.backend:
            raise ValueError(f"kv_offload kind {self.kind} needs `backend`")
        if self.kind == "none" and (self.backend or self.gigabytes):
            raise ValueError("kv_offload kind none takes no backend and no size")


class Serving(Strict):
    """What is served and how: the metadata of every run of a configuration."""

    model: Text
    engine: Literal[
        "vllm", "sglang", "trtllm", "atom", "dynamo-vllm", "dynamo-sglang", "dynamo-trtllm",
        "dynamo-mocker", "simulated",
    ]  # fmt: skip
    engine_version: str | None = None
    image: str | None = None
    hardware: str | None = None
    precision: PRECISIONS | None = None
    kv_precision: PRECISIONS | None = None
    nodes: Count = 1
    accelerators: Annotated[int, Meta(ge=0)] | None = None
    """0: no accelerator (CPU, simulation). Else it follows from the shape and may only repeat it."""
    tp: Count = 1
    pp: Count = 1
    ep: Count = 1
    dp: Count = 1
    """Replicas of the tp × pp group. Data parallel attention inside a group is `dp_attention: true` and `dp: 1`."""
    dp_attention: bool = False
    dcp: Count = 1
    pcp: Count = 1
    workers: Count = 1
    """Servers of that shape behind one router."""
    speculative: Speculative | None = None
    disaggregation: Disaggregation | None = None
    router: Router | None = None
    kv_offload: KvOffload | None = None

    def __post_init__(self) -> None:
        _check_shape(self)
        if self.disaggregation and any(n != 1 for n in (self.tp, self.pp, self.ep, self.dp, self.workers)):
            raise ValueError("with disaggregation the shape is that of prefill and decode; leave out tp, pp, ep, dp")
        if self.accelerators and self.accelerators != self.derived_accelerators:
            raise ValueError(
                f"accelerators {self.accelerators} contradicts the shape, which needs {self.derived_accelerators}"
            )

    @property
    def derived_accelerators(self) -> int:
        """Devices that the shape occupies: workers × tp × pp × dp × pcp, over both roles when disaggregated."""
        if self.disaggregation:
            return self.disaggregation.prefill.accelerators + self.disaggregation.decode.accelerators
        return self.workers * devices(self)

    @property
    def accelerator_count(self) -> int:
        """Devices used; 0 on a CPU."""
        return self.derived_accelerators if self.accelerators is None else self.accelerators


def devices(shape: Shape | Serving) -> int:
    """Devices of one worker; expert and decode-context parallelism share those of tp × dp."""
    return shape.tp * shape.pp * shape.dp * shape.pcp


def _check_shape(shape: Shape | Serving) -> None:
    if shape.tp % shape.dcp:
        raise ValueError(f"dcp {shape.dcp} does not divide tp {shape.tp}")
    total = devices(shape) * max(1, shape.workers)
    if shape.ep > total:
        raise ValueError(f"ep {shape.ep} is more than the {total} accelerators of the shape")


class Server(Strict):
    """How a server is started: processes without a shell, each in a session of its own."""

    commands: dict[Name, Annotated[list[Argument], Meta(min_length=1)]]
    """In starting order. `{port}`, `{port2}` … are free ports, `{tp}`, `{model}` … come from the metadata."""
    env: dict[str, Argument] = field(default_factory=dict)
    ready_timeout: str = "15m"
    stop_timeout: str = "60s"
    after: list[list[Argument]] = field(default_factory=list)
    """Commands run once everything has ended, `docker rm -f` say."""

    def __post_init__(self) -> None:
        if not self.commands:
            raise ValueError("a server needs at least one command")
        if wrong := next((name for name in self.env if not _ENVIRONMENT_NAME.fullmatch(name)), None):
            raise ValueError(f"{wrong!r} can't be the name of an environment variable")
        seconds(self.ready_timeout)
        seconds(self.stop_timeout)


class Recipe(Strict):
    """A way to start a server, as data: whole, or an engine that a machine completes."""

    description: Text
    checked: Text
    """What the flags were checked against, or that they were not."""
    serving: dict[str, Any]
    """Defaults for the configuration's metadata."""
    server: Server
    options: dict[str, dict[Name, list[Argument]]] = field(default_factory=dict)
    """Flags added to a command when the metadata says so: `expert_parallel`, `speculative.mtp`, …"""
    variables: dict[str, Argument] = field(default_factory=dict)
    name: Name = "recipe"
    accelerators_per_node: Annotated[int, Meta(ge=1)] | None = None


class OnMachine(Strict):
    """What an engine's recipe is on one machine."""

    serving: dict[str, Any] = field(default_factory=dict)
    env: dict[str, Argument] = field(default_factory=dict)
    variables: dict[str, Argument] = field(default_factory=dict)


class Machine(Strict):
    """A machine, and the engines that there are recipes for on it."""

    description: Text
    accelerators_per_node: Annotated[int, Meta(ge=1)]
    serving: dict[str, Any]
    engines: dict[Name, OnMachine]


class RunSettings(Strict):
    """Options of `agentx run`, by their names there."""

    rules: str | None = None
    """`agentx run --scenario`: a built-in one, or a YAML file."""
    corpus: str | None = None
    model: str | None = None
    duration: str | None = None
    sessions: Count | None = None
    max_context: str | int | None = None
    time_scale: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    seed: int | None = None
    workers: Annotated[int, Meta(ge=1)] | Literal["auto"] | None = None
    tokenizer: str | None = None
    messages: Literal["plain", "tools"] | None = None
    shared_prefix: Literal["none", "trace", "all"] | None = None
    overlong: Literal["skip", "end", "fail"] | None = None
    steady: Literal["all", "auto"] | None = None
    drain: str | None = None
    chunks: bool | None = None
    connect_timeout: str | None = None
    first_byte_timeout: str | None = None
    idle_timeout: str | None = None

    def __post_init__(self) -> None:
        for name in ("duration", "drain", "connect_timeout", "first_byte_timeout", "idle_timeout"):
            if (value := getattr(self, name)) is not None:
                seconds(value)
        if self.max_context is not None:
            _plain(parse_tokens, str(self.max_context))


class Scenario(RunSettings, kw_only=True):
    """A named way to load the server; what it says wins over `run`."""

    name: Name


class Auto(Strict):
    """Adaptive points: the ends, then where the frontier is least known."""

    low: Count = 1
    high: Count = 64
    max_points: Annotated[int, Meta(ge=2, le=100)] = 12
    tolerance: Annotated[float, Meta(gt=0, lt=1)] = 0.1

    def __post_init__(self) -> None:
        if self.low >= self.high:
            raise ValueError(f"low {self.low} is not below high {self.high}")


Points = Annotated[list[Count], Meta(min_length=1)] | Literal["auto"] | Auto


class Configuration(Strict):
    """One way to serve: a recipe, a server of one's own, or an endpoint that is already there."""

    name: Name
    serving: Serving
    recipe: str | None = None
    server: Server | None = None
    endpoint: str | None = None
    reset: Literal["auto", "reset_prefix_cache", "flush_cache", "salt"] = "auto"
    """How the cache of an `endpoint` is emptied between points; `salt`: it is not, every run has words of its own."""
    variables: dict[str, Argument] = field(default_factory=dict)
    extra: dict[Name, list[Argument]] = field(default_factory=dict)
    """Flags appended to the commands, by process."""
    points: Points | None = None
    runner: list[Text] = field(default_factory=list)
    """Labels of the machine for the CI matrix."""
    priority: int = 0
    """Higher comes first in the CI matrix."""

    def __post_init__(self) -> None:
        if (self.endpoint is None) == (self.server is None):
            raise ValueError(f"configuration {self.name} needs one of `recipe`, `server` or `endpoint`")
        if self.endpoint is not None and _CREDENTIAL.search(self.endpoint):
            raise ValueError("endpoint holds a credential; give it in AGENTX_API_KEY or by --api-key-file")
        if self.server and (strange := set(self.extra) - set(self.server.commands)):
            raise ValueError(f"extra names no command of the server: {', '.join(sorted(strange))}")
        if isinstance(self.points, list) and len(set(self.points)) != len(self.points):
            raise ValueError(f"points of {self.name} hold a concurrency twice")


class Sweep(Strict):
    """A whole sweep file."""

    name: Name
    configurations: Annotated[list[Configuration], Meta(min_length=1)]
    points: Points = "auto"
    scenarios: Annotated[list[Scenario], Meta(min_length=1)] = field(
        default_factory=lambda: [Scenario(name="closed-loop")]
    )
    run: RunSettings = field(default_factory=RunSettings)

    def __post_init__(self) -> None:
        _unique("configuration", [c.name for c in self.configurations])
        _unique("scenario", [s.name for s in self.scenarios])
        if isinstance(self.points, list) and len(set(self.points)) != len(self.points):
            raise ValueError("points hold a concurrency twice")


def seconds(text: str) -> float:
    """A duration of the sweep file in seconds; ValueError when it is none, or nothing."""
    value: float = _plain(parse_duration, text)
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is too long")
    return value


def _plain(parse: Any, text: str) -> Any:
    try:
        return parse(text)
    except typer.BadParameter as error:
        raise ValueError(str(error)) from error


def _unique(what: str, names: list[str]) -> None:
    lowered = [name.lower() for name in names]
    if twice := next((name for name in names if lowered.count(name.lower()) > 1), None):
        raise ValueError(f"{what} {twice} is there twice")


def known_names() -> set[str]:
    """Every key that a sweep file or a recipe may hold, for suggestions."""
    structs = (
        Sweep, Configuration, Serving, Shape, Disaggregation, Speculative, Router, KvOffload, Server, Recipe, Scenario,
        Auto, Machine, OnMachine,
    )  # fmt: skip
    return {name for struct in structs for name in struct.__struct_fields__}
