"""What the metadata claims must be what the recipe starts: features of a configuration and their flags. Pure."""

from __future__ import annotations

import msgspec

from harness.sweep.schema import Argument, Configuration, Recipe, Serving, Shape
from results.errors import UserError


def features(serving: Serving) -> list[str]:
    """Names of all that the metadata asks for beyond one tensor-parallel server."""
    found = _of_shape(serving, "")
    if serving.nodes > 1:
        found.append("several_nodes")
    if serving.workers > 1:
        found.append("workers")
    if serving.disaggregation:
        found.append("disaggregated")
        found += _of_shape(serving.disaggregation.prefill, "prefill.")
        found += _of_shape(serving.disaggregation.decode, "decode.")
    if serving.speculative and serving.speculative.method != "none":
        found.append(f"speculative.{serving.speculative.method}")
    if serving.router:
        found.append(f"router.{serving.router.name}")
    if serving.kv_offload and serving.kv_offload.kind != "none":
        found.append(f"kv_offload.{serving.kv_offload.backend}")
    return found


def _of_shape(shape: Serving | Shape, prefix: str) -> list[str]:
    said = {
        "pipeline_parallel": shape.pp > 1,
        "expert_parallel": shape.ep > 1,
        "data_parallel": shape.dp > 1,
        "dp_attention": shape.dp_attention,
        "decode_context_parallel": shape.dcp > 1,
        "prefill_context_parallel": shape.pcp > 1,
        "workers": isinstance(shape, Shape) and shape.workers != 1,
    }
    return [prefix + name for name, wanted in said.items() if wanted]


def with_options(configuration: Configuration, recipe: Recipe | None) -> Configuration:
    """The configuration with the recipe's flags for its features before its own `extra`.

    UserError when the recipe has no flags for a feature and the configuration gives none: its metadata would lie.
    """
    if recipe is None:
        return configuration
    _check_room(configuration.serving, recipe)
    flags: dict[str, list[Argument]] = {}
    for feature in features(configuration.serving):
        option = recipe.options.get(feature)
        if option is None and not configuration.extra:
            raise UserError(
                f"recipe {recipe.name} has no flags for {feature}, which the metadata claims",
                remedy="give them under `extra` (or commands of your own under `server`), or take it out of `serving`",
            )
        for process, arguments in (option or {}).items():
            flags.setdefault(process, []).extend(arguments)
    for process, arguments in configuration.extra.items():
        flags.setdefault(process, []).extend(arguments)
    return msgspec.structs.replace(configuration, extra=flags)


def _check_room(serving: Serving, recipe: Recipe) -> None:
    room = (recipe.accelerators_per_node or 0) * serving.nodes
    if room and serving.accelerator_count > room:
        raise UserError(
            f"recipe {recipe.name} has {room} accelerators, the shape needs {serving.accelerator_count}",
            remedy="give a smaller shape, or `nodes` and commands of your own under `server`",
        )
