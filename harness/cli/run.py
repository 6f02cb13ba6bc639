"""`agentx run`: replay a corpus against an endpoint and leave one run directory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from harness.cli.common import app, parse_duration, parse_tokens
from results.errors import EXIT_INVALID, UserError

if TYPE_CHECKING:
    from harness.run import RunOptions
    from replay.scenario import Fixed, Stage

_EPILOG = (
    "[bold]Examples[/bold]\n\n"
    "agentx run --mock --duration 30s\n\n"
    "agentx run --endpoint http://127.0.0.1:8000 --corpus corpus.parquet --concurrency 16 --duration 15m\n\n"
    "agentx run --endpoint http://127.0.0.1:8000 --scenario agentx-fast --concurrency 32\n\n"
    "agentx run --scenario agentx --explain\n\n"
    'agentx run --endpoint http://127.0.0.1:8000 --duration 5m --find-max "ttft_p90<2s,tpot_p90<50ms"\n\n'
    "The API key comes from AGENTX_API_KEY or OPENAI_API_KEY (or --api-key-file), never from a flag."
)


@app.command("run", epilog=_EPILOG)
def run_command(
    endpoint: Annotated[
        list[str] | None,
        typer.Option(help="URL of the server, with or without /v1; unix:/path.sock. Repeatable: slots take turns."),
    ] = None,
    mock: Annotated[
        str | None, typer.Option(metavar="[PROFILE]", help="Use the built-in simulated endpoint, started for this run.")
    ] = None,
    mock_cache_blocks: Annotated[
        int | None, typer.Option(help="Prefix cache of the simulated endpoint, in blocks.", min=1)
    ] = None,
    model: Annotated[str | None, typer.Option(help="Model name; default: the only one the server lists.")] = None,
    corpus: Annotated[Path | None, typer.Option(help="Corpus file; default: the one that ships.")] = None,
    scenario: Annotated[
        str,
        typer.Option(
            metavar="NAME|FILE",
            help="The rules: closed-loop, agentx, agentx-fast, interactive, offline, fixed, or YAML.",
        ),
    ] = "closed-loop",
    explain: Annotated[
        bool, typer.Option("--explain", help="Print the rules in force, where each comes from, and stop.")
    ] = False,
    concurrency: Annotated[int | None, typer.Option(help="Live session trees.", min=1)] = None,
    duration: Annotated[
        str | None,
        typer.Option(help="Length of the measured part (90s, 15m, 1h); default by scenario, none with --sessions."),
    ] = None,
    sessions: Annotated[int | None, typer.Option(help="End after this many session trees.", min=1)] = None,
    rate: Annotated[
        float | None, typer.Option(help="Open loop: session trees that arrive in a minute (Poisson).", min=1e-6)
    ] = None,
    arrival: Annotated[
        str | None,
        typer.Option(metavar="closed|poisson|recorded", help="When trees start; recorded: as the corpus's clock says."),
    ] = None,
    ramp: Annotated[
        str | None, typer.Option(help="Spread the first starts over this time; default 5 ms for each tree.")
    ] = None,
    stages: Annotated[
        str | None, typer.Option(metavar="N:D,...", help="Live session trees over time, such as 8:5m,16:5m,32:5m.")
    ] = None,
    max_request_rate: Annotated[
        float | None, typer.Option(help="Send no more than this many requests a second.", min=1e-6)
    ] = None,
    max_input_rate: Annotated[
        str | None, typer.Option(help="Send no more than this many input tokens a minute (900k).")
    ] = None,
    max_context: Annotated[
        str | None, typer.Option(help="Requests beyond this prompt + answer (128k) are over-long.")
    ] = None,
    overlong: Annotated[
        str | None,
        typer.Option(metavar="skip|end|fail", help="Leave out an over-long request, end its lane, or do not start."),
    ] = None,
    time_scale: Annotated[
        float | None, typer.Option(help="Multiplies recorded tool and think times; 0: no waiting.", min=0.0)
    ] = None,
    turn_clock: Annotated[
        str | None,
        typer.Option(metavar="completion|recorded", help="Turns a pause after the answer, or at their recorded time."),
    ] = None,
    isl: Annotated[str | None, typer.Option(help="Scenario fixed: input tokens (8192).")] = None,
    osl: Annotated[str | None, typer.Option(help="Scenario fixed: output tokens (1024).")] = None,
    seed: Annotated[int | None, typer.Option(help="Order, start positions and arrivals of the sessions.")] = None,
    salt: Annotated[
        str | None,
        typer.Option(help="Text salt; default: new for every run. Give the same to repeat the same prompts."),
    ] = None,
    workers: Annotated[str, typer.Option(help="Client processes, or auto.")] = "auto",
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="DIR|server|usage", help="Where token counts come from; default: server, else usage."),
    ] = None,
    surface: Annotated[
        str | None,
        typer.Option(
            metavar="chat|completions|messages|generate",
            help="API route; completions and generate (SGLang) send token ids.",
        ),
    ] = None,
    assistant: Annotated[
        str | None,
        typer.Option(metavar="recorded|live", help="Answers in the history: synthetic, or what the server said."),
    ] = None,
    reasoning: Annotated[
        str | None,
        typer.Option(metavar="drop|keep", help="Live histories: whether reasoning goes back with the answer."),
    ] = None,
    messages: Annotated[
        str | None, typer.Option(metavar="plain|tools", help="Tool results as user messages, or as tool messages.")
    ] = None,
    shared_prefix: Annotated[
        str | None,
        typer.Option(
            metavar="none|trace|all",
            help="Sessions share tools and system prompt: never, where sizes are equal, always.",
        ),
    ] = None,
    affinity: Annotated[
        str | None,
        typer.Option(metavar="KIND", help="Headers for routers: none, correlation, session, affinity, smg, dynamo."),
    ] = None,
    steady: Annotated[
        str | None, typer.Option(metavar="all|auto", help="Which part of the measured time counts (auto: MSER-5).")
    ] = None,
    drain: Annotated[str | None, typer.Option(help="How long answers may take to end after the last send.")] = None,
    find_max: Annotated[
        str | None,
        typer.Option(
            metavar="SLO", help='Runs until the most live sessions are found that hold "ttft_p90<2s,tpot_p90<50ms".'
        ),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for run directories.")] = Path("runs"),
    upload: Annotated[
        str | None,
        typer.Option(metavar="URL", help="Copy the finished run there too: s3://bucket/runs, gs://…, or a folder."),
    ] = None,
    chunks: Annotated[
        bool, typer.Option("--chunks", help="Keep the arrival time of every chunk (chunks.parquet).")
    ] = False,
    ready_timeout: Annotated[str, typer.Option(help="How long to wait for the server to come up.")] = "30s",
    connect_timeout: Annotated[str, typer.Option(help="Limit on opening a connection.")] = "10s",
    first_byte_timeout: Annotated[
        str | None, typer.Option(help="Limit on the first byte of an answer; default none.")
    ] = None,
    idle_timeout: Annotated[
        str | None, typer.Option(help="Limit between two bytes of an answer; default none.")
    ] = None,
    api_key_file: Annotated[Path | None, typer.Option(help="File that holds the API key.")] = None,
    headers_file: Annotated[
        Path | None,
        typer.Option(help="File of further headers, `Name: value` a line (also AGENTX_HEADERS_FILE); written nowhere."),
    ] = None,
    ca_file: Annotated[str | None, typer.Option(help="PEM file of a private certificate authority.")] = None,
    insecure: Annotated[
        bool, typer.Option("--insecure", help="Do not verify certificates (stamped in run.json).")
    ] = False,
    metrics_url: Annotated[
        list[str] | None,
        typer.Option(metavar="[ROLE=]URL", help="A metrics page of the server; repeatable. Default: next to it."),
    ] = None,
    metrics_targets: Annotated[
        Path | None, typer.Option(help="File of metrics pages (Prometheus file_sd, JSON or YAML).")
    ] = None,
    require_metrics: Annotated[
        bool, typer.Option("--require-metrics", help="Do not start without a metrics page of the server.")
    ] = False,
    serving: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE|FILE", help="What the server does not tell of itself; repeatable, or YAML."),
    ] = None,
    sidecar: Annotated[
        Path | None,
        typer.Option(help="JSON kept as serving.json beside the run's files: what a sweep knows of the server."),
    ] = None,
    power: Annotated[
        list[str] | None,
        typer.Option(help="Power source: auto, none, nvidia, amd, rapl, dcgm:URL, agent:URL, cmd:... (docs/power.md)."),
    ] = None,
    idle: Annotated[str, typer.Option(help="How long idle power is measured before the run.")] = "5s",
    prometheus_port: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Serve the run's own figures to Prometheus; on loopback by default."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json instead of the table.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No plan, no progress.")] = False,
) -> int:
    """Replay a corpus against a live endpoint, measure, and write one run directory."""
    from hardware.engine.profiles import PROFILES
    from harness.credentials import headers_file as headers_of
    from harness.credentials import read_api_key
    from harness.run import RunOptions, Watch, run
    from replay.endpoint import Limits
    from replay.scenario import load_rules
    from replay.surface import SURFACES
    from results.upload import Destination

    rules = load_rules(
        scenario,
        _given(
            concurrency=concurrency,
            duration_s=parse_duration(duration) if duration else None,
            sessions=sessions,
            arrival=_choice("--arrival", arrival, ("closed", "poisson", "recorded")) or ("poisson" if rate else None),
            rate_per_min=rate,
            ramp_s=parse_duration(ramp) if ramp else None,
            stages=_stages(stages) if stages else None,
            max_requests_per_s=max_request_rate,
            max_input_tokens_per_min=parse_tokens(max_input_rate) if max_input_rate else None,
            max_context=parse_tokens(max_context) if max_context else None,
            overlong=_choice("--overlong", overlong, ("skip", "end", "fail")),
            time_scale=time_scale,
            turn_clock=_choice("--turn-clock", turn_clock, ("completion", "recorded")),
            fixed=_fixed(isl, osl),
            seed=seed,
            surface=_choice("--surface", surface, tuple(SURFACES)),
            assistant=_choice("--assistant", assistant, ("recorded", "live")),
            reasoning=_choice("--reasoning", reasoning, ("drop", "keep")),
            messages=_choice("--messages", messages, ("plain", "tools")),
            shared_prefix=_choice("--shared-prefix", shared_prefix, ("none", "trace", "all")),
            affinity=_choice("--affinity", affinity, ("none", "correlation", "session", "affinity", "smg", "dynamo")),
            steady=_choice("--steady", steady, ("all", "auto")),
            drain_s=parse_duration(drain) if drain else None,
        )
        | ({"duration_s": None} if sessions and not duration else {}),
    )
    if explain:
        from harness.explain_view import print_rules

        print_rules(rules, as_json=as_json)
        return 0
    if bool(endpoint) == (mock is not None):
        raise UserError("run needs one endpoint", remedy="give --endpoint URL, or --mock for the simulated one")
    if mock is not None:
        _choice("--mock", mock, tuple(PROFILES))
    options = RunOptions(
        endpoints=tuple(endpoint or ()),
        mock=mock,
        mock_options=("--cache-blocks", str(mock_cache_blocks)) if mock_cache_blocks else (),
        model=model,
        corpus=corpus,
        rules=rules,
        limits=Limits(
            connect_s=parse_duration(connect_timeout),
            first_byte_s=parse_duration(first_byte_timeout) if first_byte_timeout else None,
            between_bytes_s=parse_duration(idle_timeout) if idle_timeout else None,
        ),
        workers=_workers(workers),
        tokenizer=tokenizer,
        salt=salt,
        out=out,
        ready_timeout_s=parse_duration(ready_timeout),
        keep_chunks=chunks,
        quiet=quiet,
        ca_file=ca_file,
        insecure=insecure,
        headers_file=headers_of(headers_file),
        sidecar=sidecar,
        watch=Watch(
            metrics_urls=tuple(metrics_url or ()),
            metrics_file=metrics_targets,
            require_metrics=require_metrics,
            serving=_stated(serving) if serving else {},
            power=tuple(power or ("auto",)),
            idle_s=parse_duration(idle),
            prometheus=_address(prometheus_port) if prometheus_port else None,
        ),
        upload=Destination.parse(upload) if upload else None,
    )
    if find_max is not None:
        return _find_max(options, find_max, read_api_key(api_key_file), as_json=as_json)
    finished = run(options, read_api_key(api_key_file), sys.argv[1:])
    from harness.summary_view import print_summary  # drawing tables takes a while to load: not before the first request

    print_summary(finished.summary, finished.directory, as_json=as_json)
    if finished.signal is not None:
        return 128 + finished.signal  # 130 for Ctrl-C, 143 for TERM, as a shell reports them
    return 0 if finished.summary["valid"] else EXIT_INVALID


def _find_max(options: RunOptions, text: str, api_key: str | None, *, as_json: bool) -> int:
    from harness.find_max import find_max
    from harness.find_max_view import print_found
    from results.slo import parse_objectives

    found = find_max(options, parse_objectives(text), api_key, sys.argv[1:])
    print_found(found, as_json=as_json)
    if found.signal is not None:
        return 128 + found.signal
    return 0 if found.highest else EXIT_INVALID


def _given(**options: Any) -> dict[str, Any]:
    """The rules that were given on the command line."""
    return {rule: value for rule, value in options.items() if value is not None}


def _choice(option: str, value: str | None, allowed: tuple[str, ...]) -> str | None:
    if value is not None and value not in allowed:
        raise UserError(f"{option} {value}", remedy=f"choose {' or '.join(allowed)}")
    return value


def _stages(text: str) -> tuple[Stage, ...]:
    from replay.scenario import Stage

    stages = []
    for part in text.split(","):
        count, _, duration = part.strip().partition(":")
        if not count.isdecimal() or not duration:
            raise UserError(f"--stages {text}: {part!r}", remedy="write live:duration, such as 8:5m,16:5m")
        stages.append(Stage(int(count), parse_duration(duration)))
    return tuple(stages)


def _fixed(isl: str | None, osl: str | None) -> Fixed | None:
    from replay.scenario import Fixed

    if isl is None and osl is None:
        return None
    return Fixed(parse_tokens(isl) if isl else Fixed.input_tokens, parse_tokens(osl) if osl else Fixed.output_tokens)


def _stated(items: list[str]) -> dict[str, str]:
    from collectors.fingerprint import parse_stated

    return parse_stated(items)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"--prometheus-port {text}", remedy="write a port, or host:port")
    return host or "127.0.0.1", int(port)


def _workers(text: str) -> int | None:
    if text == "auto":
        return None
    if not text.isdecimal() or int(text) < 1:
        raise UserError(f"--workers {text}", remedy="give a number of processes, or auto")
    return int(text)
